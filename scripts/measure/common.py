"""Helpers of the measurement scripts: paths, command lines, output files, landscapes and builders.

Importing it puts the repository root on ``sys.path``: scripts run without an installation, and find ``tests``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evoengine.errors import EvoEngineError, UsageError
from evoengine.landscape.landscape import Landscape
from evoengine.model import Problem
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target, target_for_gpu

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "docs" / "results"
_GRACE_S: Final = 20.0
"""Seconds between SIGTERM and SIGKILL of a command that is out of time."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a script's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_landscapes(options: argparse.ArgumentParser) -> None:
    """Adds the input landscapes and ``--out`` to a parser."""
    options.add_argument("landscapes", nargs="+", type=Path, help="Files of measured landscapes.")
    options.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")


def comma_list(text: str) -> list[str]:
    return text.split(",")


def without_folders(words: Iterable[str]) -> list[str]:
    """Words of a command line; folders of this machine are removed from the names of existing files."""
    return [Path(word).name if Path(word).is_file() else word for word in words]


def write_results(out: Path | None, document: Any, text: str, *, indent: int | None = 1) -> None:
    """Prints a page, and writes OUT.json and OUT.md if `out` is given."""
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_suffix(".json").write_text(json.dumps(document, indent=indent) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(text.rstrip("\n") + "\n", encoding="utf-8")


def write_table(out: Path | None, text: str) -> None:
    """Prints a table, and writes it to a file if `out` is given."""
    print(text)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")


def measured_on(landscape: Landscape) -> tuple[Problem, Target]:
    """Problem and data sheet of a measured landscape.

    Raises:
        UsageError: The landscape is predicted, is of a foreign kernel, or no data sheet describes its GPU.
    """
    if landscape.problem is None or landscape.device.predicted:
        raise UsageError(f"{landscape.key}: needs measured landscapes of attention problems")
    target = target_for_gpu(landscape.device.name)
    if target is None:
        raise UsageError(f"{landscape.key}: no data sheet of {landscape.device.name}")
    return landscape.problem, target.compiled_for(landscape.device.arch)


def builder_setup(
    problem: Problem, target: Target, spaces: Sequence[SearchSpace], cache: Path | None = None
) -> BuildSetup:
    """Setup of a builder of kernels for `target`; without `cache`, it uses the default compile cache."""
    from evoengine.kernel.compile.cache import default_cache_dir
    from evoengine.space.data_dirs import data_dirs

    folder = default_cache_dir() if cache is None else cache
    return BuildSetup((problem,), target, target.arch, tuple(spaces), data_dirs("templates"), folder)


def builder(problem: Problem, target: Target, spaces: Sequence[SearchSpace], cache: Path | None = None) -> Builder:
    return Builder(builder_setup(problem, target, spaces, cache))


@dataclass(frozen=True)
class Outcome:
    """A command that ended, with its JSON, or the reason why there is none."""

    document: dict[str, Any] | None
    why: str
    seconds: float
    cut: bool = False
    """Whether the time limit of the whole call ended it."""


@dataclass
class Deadline:
    """Time limit of the whole call."""

    limit_s: float
    began: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self.began)


def run_json(words: Sequence[str], limit_s: float, program: Sequence[str] = ("-m", "evoengine")) -> Outcome:
    """Runs a verb, or a script, with ``--json`` in a process group of its own, which a time limit ends as a whole."""
    began = time.monotonic()
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise each start compiles hundreds of modules
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, *program, *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    late = False
    try:
        out, err = process.communicate(timeout=max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        late = True
        out, err = _end(process)
    seconds = time.monotonic() - began
    if late:
        return Outcome(None, f"no result within {seconds:.0f} s", seconds)
    try:
        return Outcome(json.loads(out), "", seconds)
    except json.JSONDecodeError:
        lines = err.strip().splitlines() or [f"no output, exit code {process.returncode}"]
        return Outcome(None, lines[-1].removeprefix("error: "), seconds)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ends a process and all that it started; a search stores what it has found."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=_GRACE_S)
    return "", ""


def run(main: Callable[[], int]) -> NoReturn:
    """Exits with the code of `main`; an error of EvoEngine becomes one line and exit code 2."""
    try:
        code = main()
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    raise SystemExit(code)
