#!/usr/bin/env python3
"""Removes recorded improvements from a family's templates and lets ``evolve`` find them again, beside random patches.

    python scripts/measure/rediscovery.py --out docs/results/rediscovery-emulator
    python scripts/measure/rediscovery.py --device cuda --problem 4x16x1024x64 --out rediscovery-h200
    python scripts/measure/rediscovery.py --device cuda --run model,null --out rediscovery-h200    # adds these runs

Five runs, with the controls beside each:

- ``recorded``: templates without the improvements; the operators that need no model.
- ``model``: the same templates; a chat server on 127.0.0.1 proposes the improvements among prose, mistakes and hostile
  patches, and valid configs among invalid ones.
- ``random``: the same templates; random patches only, with the same budget.
- ``null``: the same templates; the server proposes the parent, with comments and empty lines added.
- ``shipped``: the shipped templates; the operators that need no model.

Writes OUT.md and OUT.json after each run. The exit code is 1 if an expectation fails: in ``recorded`` and ``model``
each improvement is found and a variant with some of them is champion, in ``model`` every mistake is rejected, and in
``null`` nothing that the server proposes is accepted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import common

from evoengine.engine.devices.gpus import find_gpu
from evoengine.errors import EvoEngineError
from evoengine.evolution.llm.prompts import patch_text
from evoengine.evolution.operators.recorded import SHIPPED, load_patch
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Edit, Patch
from tests.evolution.chat_server import Answering, Cassette, chat_server, says
from tests.evolution.weakened import weakened

FAMILY: Final = "mma"
REMOVED: Final = ("softmax-one-reduction", "softmax-folded-scale", "mma-mask-crossing-tiles")
"""Improvements of family mma."""
RUNS: Final = ("recorded", "model", "random", "null", "shipped")
CLASSIC: Final = "recorded,crossover,swap"
STEP: Final = "partials/flash/softmax_step.cuh"
STAGES: Final = ("tuned", "novelty", "reply", "apply", "space", "compile", "gate")
CONFIGS_PROMPT: Final = re.compile(r"Propose \d+ configs")
REPAIR_PROMPT: Final = "# Why it was rejected"
PROSE: Final = "Let me think about the kernel. It is fast already."
PROBLEMS: Final[Mapping[str, str]] = {"emulator": "1x2x512x64", "cuda": "4x16x1024x64"}
"""Default problem of each kind of device."""
WITH_TUNABLE: Final = "softmax-skip-rescale"
"""Recorded idea that adds a tunable; the templates never had it."""

_SUBTRAHEND: Final = "            const float subtrahend = finite_max(maximum) * scale;\n"
_SUM: Final = "                acc.sum[atom][2 * half] *= rescale;\n"
BAD: Final = (
    Patch((Edit(STEP, _SUM, ""),), summary="the sum is not rescaled"),
    Patch((Edit(STEP, _SUBTRAHEND, _SUBTRAHEND.replace("* scale", "* row_scale")),), summary="a name that is unknown"),
    Patch((Edit(STEP, _SUBTRAHEND, f"{_SUBTRAHEND}            }}\n"),), summary="the end of the function comes early"),
    Patch((Edit(STEP, _SUBTRAHEND, f"#include </etc/passwd>\n{_SUBTRAHEND}"),), summary="a file of the host"),
    Patch(
        (Edit(STEP, _SUBTRAHEND, _SUBTRAHEND.replace("* scale", "* (clock64() ? scale : 0.0f)")),),
        summary="a clock decides",
    ),
)
CONFIGS: Final = (
    [{"NO_SUCH": 1}, {"BLOCK_N": 64}, {"EXP2_POLY": 25}],
    "I would rather not.",
    [{"BLOCK_N": 17}, {"BLOCK_N": 96}, {"EXP2_POLY": 50}],
)
"""Replies to prompts for configs."""


@dataclass(frozen=True)
class Run:
    """One evolution."""

    name: str
    result: Mapping[str, Any]
    """Document of ``evolve --json``."""
    found: tuple[str, ...]
    """Removed improvements in correct variants."""
    kept: tuple[str, ...]
    """Removed improvements in the champion."""
    champions: tuple[str, ...]
    """Families of all champions, oldest first."""
    requests: Mapping[str, int]
    """Requests to the model, for ``patches`` and ``configs``."""

    @property
    def accepted(self) -> tuple[str, ...]:
        """Variants that became champion."""
        return tuple(name for name in dict.fromkeys(self.champions) if name != FAMILY)

    def document(self) -> dict[str, Any]:
        """Returns the run as JSON."""
        return {
            **self.result,
            "found": self.found,
            "kept": self.kept,
            "champions": self.champions,
            "requests": self.requests,
        }

    @classmethod
    def of(cls, name: str, document: Mapping[str, Any]) -> Run:
        """Reads a run from JSON."""
        found, kept, champions = (tuple(document[key]) for key in ("found", "kept", "champions"))
        return cls(name, document, found, kept, champions, document["requests"])


def main() -> int:
    """Makes the runs and writes the page after each."""
    options = common.parser(__doc__)
    options.add_argument("--device", default="emulator", help="auto, cuda, cuda:0 or emulator.")
    options.add_argument("--problem", help="Problem; the default depends on the device.")
    options.add_argument("--budget", type=int, default=20, help="Proposals of each run.")
    options.add_argument("--candidates", type=int, default=8, help="Candidates of each variant.")
    options.add_argument("--seed", type=int, default=0, help="Random seed.")
    options.add_argument("--time-limit", type=float, help="Seconds of each run.")
    options.add_argument("--run", type=common.comma_list, default=list(RUNS), help="Only these runs, by commas.")
    options.add_argument("--out", type=Path, required=True, help="Path of the files to write, without a suffix.")
    arguments = options.parse_args()
    unknown = set(arguments.run) - set(RUNS)
    if unknown:
        options.error(f"--run: choose some of {', '.join(RUNS)}")
    kind = "emulator" if arguments.device == "auto" and find_gpu() is None else arguments.device.partition(":")[0]
    arguments.problem = arguments.problem or PROBLEMS.get(kind, PROBLEMS["cuda"])
    file, runs = arguments.out.with_suffix(".json"), dict[str, Run]()
    if file.exists() and set(arguments.run) != set(RUNS):
        runs = {name: Run.of(name, document) for name, document in json.loads(file.read_text()).items()}
    for name in arguments.run:
        with tempfile.TemporaryDirectory() as folder:
            runs[name] = made(name, arguments, Path(folder))
        runs = {one: runs[one] for one in RUNS if one in runs}
        common.write_results(arguments.out, {one: run.document() for one, run in runs.items()}, page(arguments, runs))
    failures = [failure for name in arguments.run for failure in failed_expectations(runs[name])]
    print("\n".join(["", *summary(runs), *(f"FAILED: {failure}" for failure in failures)]))
    return 1 if failures else 0


# -- runs -------------------------------------------------------------------------------------------------------------


def made(name: str, arguments: argparse.Namespace, folder: Path) -> Run:
    """Makes one run."""
    environment, requests = {**os.environ, "EVOENGINE_LLM_KEY": ""}, Counter[str]()
    words, templates = ["--operator", "random" if name == "random" else CLASSIC], [common.ROOT / "templates"]
    if name != "shipped":
        data = weakened(folder / "data", FAMILY, REMOVED)
        environment["EVOENGINE_DATA"], templates = str(data), [data / "templates", *templates]
    with ExitStack() as stack:
        served = None
        if name in ("model", "null"):
            served = stack.enter_context(chat_server(mixed_model() if name == "model" else null_model()))
            words = ["--operator", "patches,configs", "--llm-url", served.url, "--llm-model", "stub"]
            words += ["--llm-calls", str(20 * arguments.budget), "--llm-price", "1,4"]
        result = evolve(words, arguments, folder / "board.db", environment)
        for prompt in () if served is None else served.prompts:
            requests["configs" if CONFIGS_PROMPT.search(prompt) else "patches"] += 1
    with Leaderboard(folder / "board.db", create=False) as board:
        scope = board.studies()[0].key.scope
        won = [one.evaluation_id for one in board.challenges(scope) if one.accepted and not one.pending]
        champions = tuple(board.get(row).row.family for row in won)
        library = TemplateLibrary(*templates, variants=tuple(one.variant for one in board.variants.all()))
    tuned = [one["variant"] for one in result["attempts"] if one["stage"] == "tuned"]
    present = {family: improvements(library, family) for family in dict.fromkeys((*tuned, *champions))}
    found = tuple(one for one in REMOVED if any(one in present[family] for family in tuned if family != FAMILY))
    kept = present[champions[-1]] if champions else ()
    return Run(name, result, found, kept, champions, requests)


def evolve(
    words: Sequence[str], arguments: argparse.Namespace, board: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Evolves the family, and returns the document that ``evolve`` prints."""
    command = [
        *(sys.executable, "-m", "evoengine", "evolve", "--family", FAMILY, "--json", "--db", str(board)),
        *("--problem", arguments.problem, "--device", arguments.device, *words),
        *("--budget", str(arguments.budget), "--candidates", str(arguments.candidates), "--seed", str(arguments.seed)),
        *(() if arguments.time_limit is None else ("--time-limit", str(arguments.time_limit))),
    ]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise EvoEngineError(f"evolve ended with exit code {done.returncode}: its message is above")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def improvements(library: TemplateLibrary, family: str) -> tuple[str, ...]:
    """Returns the removed improvements that a variant has."""
    texts = library.files(family)
    edits = {name: load_patch(SHIPPED / f"{name}.toml").patch.edits for name in REMOVED}
    return tuple(name for name, own in edits.items() if all(edit.replace in texts[edit.file] for edit in own))


def mixed_model() -> Answering:
    """Returns a model that proposes the removed improvements, and a new tunable, among worse replies, in turns."""
    good = [patch_text(load_patch(SHIPPED / f"{name}.toml").patch) for name in (*REMOVED, WITH_TUNABLE)]
    turns = [text for pair in zip(itertools.cycle(good), [PROSE, *map(patch_text, BAD)], strict=False) for text in pair]
    return _answering(itertools.cycle(turns), itertools.cycle(CONFIGS))


def null_model() -> Answering:
    """Returns a model that proposes the parent: the same text, other comments or empty lines, the parent's config."""
    numbers = itertools.count(1)

    def unchanged() -> Iterator[str]:
        while True:
            yield patch_text(Patch((Edit(STEP, _SUM, _SUM),), summary="the same text"))
            comment = f"                // version {next(numbers)}\n"
            yield patch_text(Patch((Edit(STEP, _SUM, f"{comment}{_SUM}"),), summary="a comment"))
            yield patch_text(Patch((Edit(STEP, _SUM, "\n" * next(numbers) + _SUM),), summary="empty lines"))

    return _answering(unchanged(), itertools.repeat([{}]))


def _answering(patches: Iterator[str], configs: Iterator[object]) -> Callable[[Mapping[str, Any]], Cassette]:
    """Answers prompts; a rejected patch is proposed again, prose is followed by the next patch."""
    last = PROSE

    def answer(body: Mapping[str, Any]) -> Cassette:
        nonlocal last
        prompt = body["messages"][-1]["content"]
        if CONFIGS_PROMPT.search(prompt):
            content = next(configs)
            return says(content if isinstance(content, str) else f"```json\n{json.dumps(content)}\n```")
        if REPAIR_PROMPT not in prompt or last == PROSE:
            last = next(patches)
        return says(last)

    return answer


# -- expectations and page --------------------------------------------------------------------------------------------


def failed_expectations(run: Run) -> list[str]:
    """Returns what is not as it must be."""
    attempts, failures = run.result["attempts"], []
    operators = {one["operator"] for one in attempts}
    if len(attempts) > 8 and not {"random", "parent"} <= operators:
        failures.append("the controls did not run")
    own = {one["variant"] for one in attempts if one["operator"] in ("patches", "configs", "parent") and one["variant"]}
    if run.name in ("recorded", "model"):
        failures += [f"{name} was not found" for name in REMOVED if name not in run.found]
        if not run.kept:
            failures.append("no variant with a removed improvement is champion")
        if run.result["best"]["best_us"] >= run.result["base_us"]:
            failures.append("nothing is faster than the unchanged family")
    if run.name == "model" and not {"patches", "configs"} <= run.requests.keys():
        failures.append("the model was not asked for both patches and configs")
    if run.name == "model":
        mistakes = {patch.summary for patch in BAD}
        wrong = [one for one in attempts if one["summary"] in mistakes]
        failures += [f"{one['summary']}: {one['stage']}" for one in wrong if one["stage"] == "tuned"]
        if not wrong:
            failures.append("no mistake was judged")
    if run.name == "null":
        accepted = [name for name in run.accepted if name in own]
        tuned = [one for one in attempts if one["operator"] in ("patches", "configs") and one["stage"] == "tuned"]
        failures += [f"{name} was accepted" for name in accepted]
        failures += [f"{one['variant']} was searched" for one in tuned]
        if "patches" not in operators:
            failures.append("the model proposed nothing")
    return [f"{run.name}: {failure}" for failure in failures]


def champion_text(run: Run) -> str:
    """Returns time and family of the first and the last champion."""
    champion = run.result["champion"]
    if champion is None:
        return "none"
    before, after = run.result["base_us"], champion["median_us"]
    return f"{before:.3f} → {after:.3f} µs ({before / after - 1:+.1%}), {champion['family']}"


def summary(runs: Mapping[str, Run]) -> list[str]:
    """Returns the table of all runs."""
    lines = [
        "| run | proposals | correct | accepted | found again | kept | champion before and after | requests | s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        proposals = [one for one in run.result["attempts"] if one["operator"] != "base"]
        correct = sum(one["stage"] == "tuned" for one in proposals)
        found, kept = ("–", "–") if name == "shipped" else (f"{len(run.found)} of {len(REMOVED)}", f"{len(run.kept)}")
        lines.append(
            f"| {name} | {len(proposals)} | {correct} | {len(run.accepted)} | {found} | {kept} | "
            f"{champion_text(run)} | {sum(run.requests.values())} | {run.result['elapsed_s']:.0f} |"
        )
    return lines


def page(arguments: argparse.Namespace, runs: Mapping[str, Run]) -> str:
    """Returns the page."""
    champions = [run.result["champion"] for run in runs.values() if run.result["champion"] is not None]
    kinds = {f"{'predicted for' if one['predicted'] else 'measured on'} {one['device']}" for one in champions}
    lines = [
        "# Recorded improvements, removed and found again",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, `scripts/measure/rediscovery.py`: family `{FAMILY}`,",
        f"problem `{arguments.problem}`, {', '.join(sorted(kinds))};",
        f"{arguments.budget} proposals, {arguments.candidates} candidates for each variant.",
        f"The weakened templates lack {', '.join(REMOVED)}.",
        "A chat server that plays replies stands for the model.",
        "",
        *summary(runs),
        "",
        "Correct: variants, or configs of one, that were searched. Accepted: variants that became champion. Found",
        "again: removed improvements in correct variants. Kept: those in the last champion. The unchanged templates",
        "are the first champion.",
        "",
    ]
    for name, run in runs.items():
        lines += [f"## {name.capitalize()}", "", *operator_table(run), "", *attempt_table(run), ""]
    return "\n".join(lines)


def operator_table(run: Run) -> list[str]:
    """Returns the proposals of a run by operator and by the stage at which they ended."""
    ends = Counter((one["operator"], one["stage"]) for one in run.result["attempts"])
    return [
        f"| operator | proposals | {' | '.join(STAGES)} | faster than parent | best gain | candidates | seconds |",
        "|---" * (len(STAGES) + 6) + "|",
        *(
            f"| {one['operator']}{' (control)' if one['control'] else ''} | {one['proposals']} | "
            f"{' | '.join(str(ends[one['operator'], stage]) for stage in STAGES)} | "
            f"{one['faster']} | {one['best_gain']:+.1%} | {one['candidates']} | {one['seconds']:.0f} |"
            for one in run.result["operators"]
        ),
    ]


def attempt_table(run: Run) -> list[str]:
    """Returns all proposals of a run."""
    return [
        "| proposal | parent | outcome | µs |",
        "|---|---|---|---|",
        *(
            f"| {one['summary'].replace('|', '/')} | `{one['parent']}` | {one['stage']} | "
            f"{'–' if one['best_us'] is None else format(one['best_us'], '.3f')} |"
            for one in run.result["attempts"]
        ),
    ]


if __name__ == "__main__":
    common.run(main)
