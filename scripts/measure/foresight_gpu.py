#!/usr/bin/env python3
"""Compares predictions of searches without a GPU with searches on one; writes docs/results/foresight-gpu.md and .json.

    evoengine search --problem 2x12x384x64 --target h200 --device emulator --budget 500 --db predicted/2x12x384x64.db
    python scripts/measure/foresight_gpu.py predicted/*.db --work build/foresight --time-limit 550
    python scripts/measure/foresight_gpu.py predicted/*.db --work build/foresight --out docs/results/foresight-gpu

Each leaderboard holds the predictions of one problem. On the GPU, `verify --top 20` measures its shortlist, the module
of `export --top 20 --format torch` checks and times the same kernels, and two searches without named starts look for
the fastest kernel: one with the forecast and a budget of 500, one with neither forecast nor pruning by forecast. At
last the shortlist and the fastest 20 of each search are timed in turns in one process, by side_by_side.py.
WORK/state.json keeps each finished step, so that the same command goes on where it stopped. The exit code is 1 while
steps are left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import common
from foresight import is_judged

from evoengine.errors import UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from evoengine.report.command import problem_options
from evoengine.system.files import write_file

TOP: Final = 20
NEAR: Final = 1.05
UNAIDED: Final = "unaided"
STEPS: Final = ("verify", "module", "search", UNAIDED, "in_turns")
_FIRST_ESTIMATE_S: Final = {"verify": 12.0, "module": 15.0, "search": 40.0, UNAIDED: 25.0, "in_turns": 12.0}
_SIDE_BY_SIDE: Final = common.ROOT / "scripts" / "measure" / "side_by_side.py"
_STEP_LIMIT_S: Final = 240.0
_PAGE_WIDTH: Final = 125


@dataclass(frozen=True)
class Subject:
    """A leaderboard with predictions of one problem."""

    db: Path
    problem: Problem
    candidates: int
    """Candidates of the search that made the predictions."""

    @property
    def words(self) -> list[str]:
        return [word for word in problem_options(self.problem) if word]


@dataclass(frozen=True)
class Reached:
    """Figures of one problem; times in microseconds, of kernels that were timed in turns in one process."""

    problem: str
    judged: bool
    candidates: int
    """Candidates of the search without a GPU."""
    set_us: float
    """Fastest kernel of the shortlist."""
    search_us: float
    """Fastest kernel of the search with the forecast."""
    unaided_us: float | None
    """Fastest kernel of the search without it, if there was one."""
    stored_loss: float
    """The loss by the times that `verify` and the search stored, in two processes."""
    near_with: int | None
    """Evaluations of the search with the forecast until it is within 5 % of the fastest of all; None if it never is."""
    near_without: int | None
    spearman: float
    ratio: float
    """Measured over predicted time of the shortlist, median."""
    module_s: float | None
    """Seconds in which the exported module checks and times all of its kernels."""
    module: str

    @property
    def loss(self) -> float:
        """Time of the fastest kernel of the shortlist over that of the search, less 1."""
        return self.set_us / self.search_us - 1


def main() -> int:
    arguments = _arguments()
    arguments.work.mkdir(parents=True, exist_ok=True)
    deadline = common.Deadline(arguments.time_limit)
    subjects = [_subject(path) for path in arguments.predicted]
    if any(subject.db.parent.samefile(arguments.work) for subject in subjects):
        raise UsageError(f"{arguments.work} has the predictions, to which searches would be added: another --work")
    state_file = arguments.work / "state.json"
    state: dict[str, dict[str, Any]] = json.loads(state_file.read_text()) if state_file.is_file() else {}

    def save() -> None:
        write_file(state_file, json.dumps(state, indent=1) + "\n")

    for subject in subjects:
        if not _measure(subject, state.setdefault(subject.problem.key, {}), arguments, deadline, save):
            break
        print(f"{subject.problem.key}: {_line(_reached(subject, state[subject.problem.key]))}", flush=True)
    done = [one for one in subjects if all(step in state.get(one.problem.key, {}) for step in _steps(arguments))]
    if arguments.out is not None:
        found = [_reached(one, state[one.problem.key]) for one in done]
        document = {"problems": [vars(one) for one in found], "steps": state}
        common.write_results(arguments.out, document, page(found, state, arguments))
    print(f"{len(done)} of {len(subjects)} problems are measured")
    return int(len(done) < len(subjects))


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("predicted", nargs="+", type=Path, help="Leaderboards of searches without a GPU.")
    parser.add_argument("--work", type=Path, required=True, help="Folder of the state and the leaderboards.")
    parser.add_argument("--time-limit", type=float, default=float("inf"), help="Seconds for this call.")
    parser.add_argument("--budget", type=int, default=500, help="Candidates of the search with the forecast.")
    parser.add_argument("--unaided-budget", type=int, default=250, help="Candidates of the search without; 0: none.")
    parser.add_argument("--out", type=Path, help="Path of the page, without a suffix.")
    return parser.parse_args()


def _subject(path: Path) -> Subject:
    with Leaderboard(f"sqlite:///{path}", create=False) as board:
        (study,) = (study for study in board.studies() if study.scope.predicted)
        return Subject(path, study.key.problem, len(board.evaluations(study)))


def _measure(
    subject: Subject,
    steps: dict[str, Any],
    arguments: argparse.Namespace,
    deadline: common.Deadline,
    save: Callable[[], None],
) -> bool:
    """Runs the steps that are left, and saves each; returns False if the time limit would end one."""
    work = arguments.work / subject.db.stem
    for step in _steps(arguments):
        if step in steps:
            continue
        if deadline.left_s < _FIRST_ESTIMATE_S[step]:
            return False
        limit_s = min(_STEP_LIMIT_S, deadline.left_s)
        if step == "module":
            steps[step] = _run_module(subject.db.with_suffix(".py"), limit_s)
        else:
            outcome = _run_step(step, subject, work, arguments, limit_s)
            if outcome.document is None:
                print(f"{subject.problem.key}: {step}: {outcome.why}", flush=True)
                return False
            steps[step] = {"seconds": outcome.seconds} | _short(step, outcome.document, _leaderboards(subject, work))
        save()
    return True


def _steps(arguments: argparse.Namespace) -> tuple[str, ...]:
    return tuple(step for step in STEPS if step != UNAIDED or arguments.unaided_budget)


def _run_step(step: str, subject: Subject, work: Path, arguments: argparse.Namespace, limit_s: float) -> common.Outcome:
    bare = ["--device", "cuda", "--no-starts", "--no-transfer", "--no-energy", "--no-log", "--quiet"]
    search = ["search", *subject.words, *bare]
    match step:
        case "verify":
            words = ["verify", "--db", str(subject.db), "--top", str(TOP), "--device", "cuda", "--quiet"]
        case "search":
            words = [*search, "--db", f"{work}.db", "--budget", str(arguments.budget)]
        case "unaided":
            words = [*search, "--db", f"{work}-unaided.db", "--budget", str(arguments.unaided_budget)]
            words += ["--no-forecast", "--no-skip"]
        case _:
            boards = _leaderboards(subject, work)
            named = [boards[name] for name in boards if name != UNAIDED or arguments.unaided_budget]
            return common.run_json([*named, "--top", str(TOP)], limit_s, (str(_SIDE_BY_SIDE),))
    return common.run_json(words, limit_s)


def _leaderboards(subject: Subject, work: Path) -> dict[str, str]:
    """Leaderboards with measured rows of a problem, by the step that measures them."""
    return {"verify": str(subject.db), "search": f"{work}.db", UNAIDED: f"{work}-unaided.db"}


def _short(step: str, document: dict[str, Any], boards: Mapping[str, str]) -> dict[str, Any]:
    """Extracts what is kept of a step's JSON: of a search the times in the order of its evaluations.

    Of kernels that were timed in turns, the stored time of each and that in turns are kept.
    """
    if step == "verify":
        return {name: document[name] for name in ("device", "model", "compared", "spearman", "median_ratio", "best_us")}
    if step == "in_turns":
        finalists = document["finalists"]
        return {
            "pairs_us": {
                name: [[one["stored_us"], one["us"]] for one in finalists if one["leaderboard"] == board]
                for name, board in boards.items()
            }
        }
    with Leaderboard(f"sqlite:///{boards[step]}", create=False) as board:
        (study,) = board.studies()
        times = [stored.evaluation.value_us for stored in board.evaluations(study)]
    return {"device": document["device"], "times_us": times}


def _run_module(module: Path, limit_s: float) -> dict[str, Any]:
    """Runs an exported module as a program, with a cache of its own; without the file there is nothing to tell."""
    if not module.is_file():
        return {"seconds": None, "said": "no module"}
    environment = os.environ | {"XDG_CACHE_HOME": str(module.parent / "cache")}
    began = time.monotonic()
    said = ""
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, str(module)], env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
        said = (done.stdout + done.stderr).strip()
    return {"seconds": time.monotonic() - began, "said": said[-2000:]}


def _reached(subject: Subject, steps: Mapping[str, Any]) -> Reached:
    times = {
        name: [time or float("inf") for time in steps[name]["times_us"]] if name in steps else []
        for name in ("search", "unaided")
    }
    stored_us = steps["verify"]["best_us"]
    best = min(stored_us, *times["search"], *times["unaided"])
    pairs = steps["in_turns"]["pairs_us"]
    fastest = {step: min((us for _, us in own), default=None) for step, own in pairs.items()}
    return Reached(
        problem=subject.problem.key,
        judged=is_judged(subject.problem),
        candidates=subject.candidates,
        set_us=fastest["verify"],
        search_us=fastest["search"],
        unaided_us=fastest[UNAIDED],
        stored_loss=stored_us / min(times["search"]) - 1,
        near_with=_first_near(times["search"], best),
        near_without=_first_near(times["unaided"], best),
        spearman=steps["verify"]["spearman"],
        ratio=steps["verify"]["median_ratio"],
        module_s=steps["module"]["seconds"],
        module=steps["module"]["said"],
    )


def _first_near(times_us: Sequence[float], best_us: float) -> int | None:
    return next((number for number, found in enumerate(times_us, 1) if found <= NEAR * best_us), None)


def _line(found: Reached) -> str:
    return (
        f"set {found.set_us:.2f} us, search {found.search_us:.2f}, unaided {_us(found.unaided_us)}: "
        f"loss {found.loss:.1%}; to 5 % {found.near_with} with, {found.near_without} without; "
        f"module {found.module_s or 0:.0f} s"
    )


_ABOUT: Final = (
    f"*Set*: the fastest of the {TOP} kernels that a search without a GPU shortlists. *Search*: the fastest of a "
    "search on the GPU that begins with the forecast; *unaided*: of one without forecast and pruning. Neither uses "
    f"named starts. The set and the fastest {TOP} kernels of each search are timed in turns in one process. *Loss* "
    "is set over search; *stored*: by the times that `verify` and the search stored, each in a process of its own. "
    "*To 5 %* counts evaluations until a search is within 5 % of the fastest stored time. *Module*: seconds in "
    "which the exported file checks and times its kernels, the start of Python included. *Candidates* are those of "
    "the search without a GPU. *Judged* problems were not used for any fit."
)
_HEAD: Final = (
    "| problem | judged | candidates | set, µs | search, µs | loss | stored | unaided, µs | to 5 % with | without "
    "| Spearman | measured / predicted | module, s |"
)


def page(found: Sequence[Reached], state: Mapping[str, Any], arguments: argparse.Namespace) -> str:
    """The page as Markdown."""
    device = next((steps["verify"]["device"] for steps in state.values() if "verify" in steps), "no device")
    judged = [one for one in found if one.judged]
    near = [one.near_with / one.near_without for one in found if one.near_with and one.near_without]
    close, fair = (sum(one.loss <= bound for one in judged) for bound in (0.05, 0.1))
    about = f"{_ABOUT} Budgets: {arguments.budget} and {arguments.unaided_budget}."
    held = f"The set is within 5 % of the search on {close} of {len(judged)} judged problems, within 10 % on {fair}."
    if near:
        held += (
            f" Evaluations to 5 %, with over without the forecast: median {statistics.median(near):.2f}, "
            f"most {max(near):.2f} of the {len(near)} problems on which both come there."
        )
    lines = [
        f"# Predicted shortlists beside searches on {device}",
        "",
        "    scripts/measure/foresight_gpu.py predicted/*.db --work build/foresight --out docs/results/foresight-gpu",
        "",
        textwrap.fill(about, _PAGE_WIDTH),
        "",
        _HEAD,
        "|:--|:--|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *map(_row, found),
        "",
        textwrap.fill(held, _PAGE_WIDTH),
    ]
    return "\n".join(lines) + "\n"


def _us(time_us: float | None) -> str:
    return "–" if time_us is None else f"{time_us:.2f}"


def _row(one: Reached) -> str:
    cells = (
        *(one.problem, "yes" if one.judged else "no", str(one.candidates), f"{one.set_us:.2f}"),
        *(f"{one.search_us:.2f}", f"{one.loss:+.1%}", f"{one.stored_loss:+.1%}"),
        *(_us(one.unaided_us), str(one.near_with or "–"), str(one.near_without or "–"), f"{one.spearman:.2f}"),
        *(f"{one.ratio:.2f}", "–" if one.module_s is None else f"{one.module_s:.0f}"),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    common.run(main)
