#!/usr/bin/env python3
"""Runs tests of other projects on evoengine.attention with fallback=False; writes OUT.json and OUT.md.

    python scripts/measure/other_tests.py flash-attn CHECKOUT --db board.db --count 2000 --out build/flash-attn
    python scripts/measure/other_tests.py opinfo --db board.db --out build/opinfo
    python scripts/measure/other_tests.py flash-attn CHECKOUT --device emulator --count 200 --out build/flash-attn

`flash-attn` runs a random sample of the cases of FlashAttention's tests/test_flash_attn.py, without dropout and ALiBi
and with a head_dim that is a multiple of 8, from a checkout of https://github.com/Dao-AILab/flash-attention, whose code
it executes. `opinfo` runs PyTorch's samples of scaled_dot_product_attention in all its element types. Where the
leaderboard does not exist, short searches make it first. On the emulator one config of the family mma computes all
calls, and only short sequences are sampled. A case passes if its test does and every call launched a kernel. `--jobs N`
deals the cases to N processes. OUT.json keeps what is done, OUT-K.json what process K has done: the same command goes
on where it stopped. The exit code is 1 if a case failed or some are left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import textwrap
import time
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

import common
import torch
from flash_attn_adapter import Adapter, RefusedError, load_tests

import evoengine
from evoengine.api.serving import wrapping_launchers
from evoengine.errors import UsageError
from evoengine.system.files import write_file

EMULATOR: Final = "emulator"
TESTS: Final = ("test_flash_attn_output", "test_flash_attn_varlen_output")
_SEARCHES: Final = (
    *(["--problem", f"4x6x1024x{size}", "--lse"] for size in (32, 64, 128, 256)),
    ["--problem", "4x6x1024x64", "--lse", "--lengths", "1024,1010,1000,900"],
    ["--problem", "4x4x16x8"],
)
"""Problems whose kernels serve the cases; other sizes, masks and types use the nearest."""
_PATIENCE: Final = 5
"""Further attempts at a case for which the GPU had no memory."""
_PAUSE_S: Final = 4.0
_LONGEST_REASON: Final = 160
_SHORT: Final = 256
"""Longest sequence on the emulator, which takes a second for it."""


@dataclass(frozen=True)
class Case:
    """One call of a test."""

    test: str
    parameters: Mapping[str, Any]
    run: Callable[[], object]
    """Raises if the result is wrong, and RefusedError if no kernel serves the call."""

    @property
    def text(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.parameters.items())


def axes_of(test: Any) -> list[tuple[tuple[str, ...], list[Any]]]:
    """Names and values of a test's ``parametrize`` marks."""
    marks = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return [(tuple(name.strip() for name in mark.args[0].split(",")), list(mark.args[1])) for mark in marks]


def combinations(axes: Sequence[tuple[tuple[str, ...], list[Any]]]) -> Iterator[dict[str, Any]]:
    """Yields all combinations of values that kernels can serve: no dropout, no ALiBi, head_dim a multiple of 8."""
    wanted = [(names, [value for value in values if _served(names, value)]) for names, values in axes]
    for values in itertools.product(*(values for _, values in wanted)):
        chosen: dict[str, Any] = {}
        for (names, _), value in zip(wanted, values, strict=True):
            chosen |= dict(zip(names, value if len(names) > 1 else (value,), strict=True))
        yield chosen


def _served(names: tuple[str, ...], value: Any) -> bool:
    if names == ("d",):
        return value % 8 == 0
    return names not in (("dropout_p",), ("alibi",)) or not value


def flash_attn_cases(checkout: Path, adapter: Adapter, options: argparse.Namespace) -> list[Case]:
    """A random sample of FlashAttention's cases, the same for the same options."""
    tests = load_tests(checkout, adapter, "cpu" if options.device == EMULATOR else "cuda")
    cases: list[Case] = []
    for name in options.tests:
        test = getattr(tests, name, None)
        if test is None:
            raise UsageError(f"{checkout} has no test '{name}'")
        every = combinations(axes_of(test))
        cases += (
            Case(name, chosen, partial(test, **chosen)) for chosen in every if _longest(chosen) <= options.longest
        )
    return random.Random(options.seed).sample(cases, min(options.count, len(cases)))


def _longest(chosen: Mapping[str, Any]) -> int:
    return max((value for name, value in chosen.items() if name.startswith("seqlen")), default=0)


def opinfo_cases(adapter: Adapter, device: str, dtypes: Sequence[torch.dtype]) -> Iterator[Case]:
    """PyTorch's samples of SDPA; tensors without a batch or heads axis get one."""
    _without_test_package()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # hypothesis is not needed either
        from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")
    for dtype in dtypes:
        for number, sample in enumerate(op.sample_inputs(device, dtype, requires_grad=False)):
            tensors = (sample.input, *sample.args)
            named = {"dtype": str(dtype).removeprefix("torch."), "sample": number}
            named |= {"shapes": [list(tensor.shape) for tensor in tensors]} | _flags(sample.kwargs)
            yield Case("opinfo", named, partial(_check_sample, adapter, tensors, sample.kwargs))


def _without_test_package() -> None:
    """Makes torch's samples importable without ``expecttest``, whose base class of tests they do not use."""
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        stand_in = types.ModuleType("expecttest")
        vars(stand_in)["TestCase"] = unittest.TestCase
        sys.modules["expecttest"] = stand_in


def _flags(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value.shape) if isinstance(value, torch.Tensor) else value for name, value in kwargs.items()}


def _check_sample(adapter: Adapter, tensors: Sequence[torch.Tensor], kwargs: Mapping[str, Any]) -> None:
    """Compares a sample with SDPA in float64.

    Raises:
        AssertionError: The results differ by more than three roundings of the element type.
        RefusedError: No kernel serves the call.
    """
    q, k, v = tensors
    whole = max(one.dim() for one in tensors)
    if whole == 4 and q.dim() == 3:
        q = q.expand(k.shape[0], *q.shape)
    alone = [one[None] if one.dim() == 3 else one for one in (q, k, v)]
    o = adapter.sdpa(*alone, **kwargs)
    exact = torch.nn.functional.scaled_dot_product_attention(*(one.double() for one in (q, k, v)), **kwargs)
    step = torch.finfo(o.dtype).eps
    torch.testing.assert_close((o[0] if exact.dim() == 3 else o).double(), exact, rtol=3 * step, atol=3 * step)


class Results:
    """Outcomes of finished cases, in a file that is written after each."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.document: dict[str, Any] = {
            "settings": dict(settings),
            "done": 0,
            "launches": 0,
            "tests": {},
            "seconds": 0.0,
        }
        self.document |= {"refused": {}, "failed": []}
        if path.is_file():
            self.document = json.loads(path.read_text(encoding="utf-8"))
            if self.document["settings"] != dict(settings):
                raise UsageError(
                    f"{path} belongs to {self.document['settings']}: give the same options, or another --out"
                )

    def add(self, case: Case, outcome: str, reason: str, launches: int) -> None:
        """Adds a case and writes the file."""
        counts = self.document["tests"].setdefault(case.test, {})
        counts[outcome] = counts.get(outcome, 0) + 1
        self.document["done"] += 1
        self.document["launches"] += launches
        if outcome == "refused":
            self.document["refused"][reason] = self.document["refused"].get(reason, 0) + 1
        if outcome == "failed":
            self.document["failed"].append(f"{case.test}({case.text}): {reason}")
        self.save()

    def save(self) -> None:
        write_file(self._path, json.dumps(self.document, indent=1) + "\n")

    @property
    def totals(self) -> Counter[str]:
        """Number of cases by outcome."""
        return sum(map(Counter, self.document["tests"].values()), Counter())


def outcome_of(case: Case, adapter: Adapter) -> tuple[str, str, int]:
    """Runs a case; returns its outcome, the reason, and the number of launches."""
    import _pytest.outcomes

    calls, launches = adapter.calls, adapter.launches
    outcome, reason = "passed", ""
    try:
        with redirect_stdout(StringIO()):
            torch.cuda.empty_cache()  # other processes need it; nothing on the emulator
            case.run()
    except RefusedError as error:
        outcome, reason = "refused", str(error)
    except _pytest.outcomes.Skipped as error:
        outcome, reason = "skipped", str(error)
    except Exception as error:  # noqa: BLE001 - a test may fail with any error
        outcome, reason = "failed", f"{type(error).__name__}: {error}"
    made, launched = adapter.calls - calls, adapter.launches - launches
    if outcome == "passed" and launched != made:
        outcome, reason = "failed", f"{made} calls launched {launched} kernels"
    return outcome, " ".join(reason.split())[:_LONGEST_REASON], launched


def run_cases(cases: Sequence[Case], adapter: Adapter, results: Results, limit_s: float) -> None:
    """Runs the cases that are left, until the time limit or an error after which the GPU cannot be used."""
    began, before = time.monotonic(), results.document["seconds"]
    with adapter.counting():
        for case in cases[results.document["done"] :]:
            if time.monotonic() - began >= limit_s:
                return
            outcome, reason, launches = outcome_of(case, adapter)
            for _ in range(_PATIENCE if reason.startswith("OutOfMemoryError") else 0):  # beside other processes
                time.sleep(_PAUSE_S)
                outcome, reason, launches = outcome_of(case, adapter)
                if outcome != "failed":
                    break
            results.document["seconds"] = before + time.monotonic() - began
            results.add(case, outcome, reason, launches)
            if outcome == "failed":
                print(f"failed: {case.test}({case.text}): {reason}", flush=True)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()  # raises where the error has made the GPU unusable for this process


def page(document: Mapping[str, Any], total: int) -> str:
    """The page as Markdown."""
    settings = document["settings"]
    about = textwrap.fill(
        f"{datetime.now(UTC).isoformat(timespec='seconds')}, {settings['version']}, `scripts/measure/other_tests.py`: "
        f"{document['done']} of {total} cases, {document['launches']} launches, {document['seconds']:.0f} s. "
        "`evoengine.attention` has `fallback=False`: a kernel computes a call, or it is refused.",
        125,
    )
    lines = [
        f"# Tests of {settings['suite']} on {settings['device']}",
        "",
        about,
        "",
        "| test | passed | refused | skipped | failed |",
        "|---|---:|---:|---:|---:|",
    ]
    for test, counts in document["tests"].items():
        cells = (str(counts.get(name, 0)) for name in ("passed", "refused", "skipped", "failed"))
        lines.append(f"| {test} | {' | '.join(cells)} |")
    if document["refused"]:
        lines += ["", "| refused cases | reason |", "|---:|---|"]
        lines += [f"| {count} | {reason} |" for reason, count in sorted(document["refused"].items())]
    lines += ["", *(f"- failed: {text}" for text in document["failed"])]
    return "\n".join(lines).rstrip() + "\n"


def prepared(db: Path, budget: int) -> str:
    """Path of the leaderboard; short searches make it if it does not exist.

    Raises:
        UsageError: A search failed.
    """
    if not db.is_file():
        for problem in _SEARCHES:
            words = ["search", *problem, "--db", str(db), "--budget", str(budget), "--device", "cuda", "--quiet"]
            found = common.run_json(words, 600.0)
            if found.document is None:
                raise UsageError(f"search {' '.join(problem)}: {found.why}")
    return str(db.absolute())


def commit_of(checkout: Path) -> str:
    """Commit of a checkout; for a folder that is none, what the folder's name says."""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"commit {done.stdout.strip()}" if done.returncode == 0 else f"folder {checkout.absolute().name}"


def parse() -> argparse.Namespace:
    parser = common.parser(__doc__)
    suites = parser.add_subparsers(dest="suite", required=True)
    flash = suites.add_parser("flash-attn", help="FlashAttention's tests.")
    flash.add_argument("checkout", type=Path, help="Checkout of FlashAttention.")
    flash.add_argument("--count", type=int, default=2000, help="Number of cases.")
    flash.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    flash.add_argument("--tests", type=common.comma_list, default=list(TESTS), help="Names of tests.")
    flash.add_argument("--longest", type=int, help="Longest sequence. [default: any; 256 on the emulator]")
    flash.add_argument("--commit", default="", help="Commit of the checkout. [default: as git says]")
    opinfo = suites.add_parser("opinfo", help="PyTorch's samples of SDPA.")
    for one in (flash, opinfo):
        one.add_argument("--device", choices=("cuda", EMULATOR), default="cuda", help="Where kernels run.")
        one.add_argument("--db", type=Path, default=Path("build/other-tests.db"), help="Leaderboard of kernels.")
        one.add_argument("--budget", type=int, default=60, help="Candidates per search, if there is no leaderboard.")
        one.add_argument("--time-limit", type=float, default=math.inf, help="Seconds for this call.")
        one.add_argument("--jobs", type=int, default=1, help="Number of processes.")
        one.add_argument("--part", type=int, help="Run one process's cases: 0 to JOBS - 1.")
        one.add_argument("--out", type=Path, required=True, help="Path of the files to write, without a suffix.")
    options = parser.parse_args()
    if options.suite == "flash-attn" and options.longest is None:
        options.longest = _SHORT if options.device == EMULATOR else sys.maxsize
    return options


def tested(options: argparse.Namespace) -> tuple[Adapter, str]:
    """The adapter over the attention to test, and the name of the device."""
    if options.device == EMULATOR:
        from evoengine.kernel.compile.cache import default_cache_dir
        from tests.api.emulated import Emulated

        emulated = Emulated(default_cache_dir(), WARPS_M=4, WARPS_N=1)
        return Adapter(emulated.attention, emulated.dispatcher.wrapping), "the emulator (sm_89)"
    if not torch.cuda.is_available():
        raise UsageError("torch sees no GPU: run it where 'nvidia-smi' shows one, or give --device emulator")
    options.db.parent.mkdir(parents=True, exist_ok=True)
    board = prepared(options.db, options.budget)

    def attention(*arguments: Any, **named: Any) -> Any:
        return evoengine.attention(*arguments, **named, leaderboard=board)

    return Adapter(attention, wrapping_launchers), torch.cuda.get_device_name()


def run_jobs(options: argparse.Namespace) -> int:
    """Runs the cases in several processes and adds up what they found."""
    paths = [options.out.with_name(f"{options.out.name}-{part}").with_suffix(".json") for part in range(options.jobs)]
    command = [sys.executable, *sys.argv]
    jobs = [
        subprocess.Popen([*command, "--part", str(part), "--out", str(path)], stdout=subprocess.DEVNULL)
        for part, path in enumerate(paths)
    ]
    codes = [job.wait() for job in jobs]
    if not all(path.is_file() for path in paths):
        return max(codes)
    total = merged([json.loads(path.read_text(encoding="utf-8")) for path in paths])
    write_file(options.out.with_suffix(".json"), json.dumps(total, indent=1) + "\n")
    write_file(options.out.with_suffix(".md"), page(total, total["settings"]["cases"]))
    print(page(total, total["settings"]["cases"]))
    return max(codes)


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of what several processes found; the seconds are those of the longest."""
    total: dict[str, Any] = {
        "settings": {name: value for name, value in documents[0]["settings"].items() if name != "part"},
        "seconds": max(one["seconds"] for one in documents),
        "failed": [text for one in documents for text in one["failed"]],
        "refused": dict(sum((Counter(one["refused"]) for one in documents), Counter())),
    }
    for name in ("done", "launches"):
        total[name] = sum(one[name] for one in documents)
    tests = sorted({test for one in documents for test in one["tests"]})
    total["tests"] = {
        test: dict(sum((Counter(one["tests"].get(test, {})) for one in documents), Counter())) for test in tests
    }
    return total


def main() -> int:
    options, began = parse(), time.monotonic()
    adapter, device = tested(options)
    if options.jobs > 1 and options.part is None:
        return run_jobs(options)
    settings: dict[str, Any] = {"device": device}
    if options.suite == "flash-attn":
        cases = flash_attn_cases(options.checkout, adapter, options)
        version = f"commit {options.commit}" if options.commit else commit_of(options.checkout)
        length = "" if options.longest == sys.maxsize else f" of up to {options.longest} tokens"
        version += f", {len(cases)} cases{length}, seed {options.seed}"
        settings |= {"suite": "FlashAttention", "version": version}
    else:
        dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        cases = list(opinfo_cases(adapter, "cpu" if options.device == EMULATOR else "cuda", dtypes))
        settings |= {"suite": "PyTorch's OpInfo", "version": f"torch {torch.__version__}"}
    settings["cases"] = len(cases)
    if options.part is not None:
        settings["part"] = f"{options.part} of {options.jobs}"
        cases = cases[options.part :: options.jobs]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.out.with_suffix(".json"), settings)
    try:
        run_cases(cases, adapter, results, options.time_limit - (time.monotonic() - began))
    finally:
        write_file(options.out.with_suffix(".md"), page(results.document, len(cases)))
    said = ", ".join(f"{count} {outcome}" for outcome, count in results.totals.items())
    print(f"{results.document['done']} of {len(cases)} cases: {said}; {results.document['launches']} launches")
    return int(bool(results.document["failed"]) or results.document["done"] < len(cases))


if __name__ == "__main__":
    common.run(main)
