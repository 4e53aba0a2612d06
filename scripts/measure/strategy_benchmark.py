#!/usr/bin/env python3
"""Compares search strategies on landscapes: EvoEngine's, Optuna's, a plain Gaussian process and Kernel Tuner's.

    python scripts/measure/strategy_benchmark.py a.landscape.xz b.landscape.xz --out docs/results/strategies
    python scripts/measure/strategy_benchmark.py synthetic --seeds 5 --budget 25 --strategies evolution,random

'evoengine landscape import' makes landscapes of the public results of other kernels. All strategies search the same
recorded configs with the same budget. The page defines what is reported. A run is determined by landscape, strategy,
seed, lag and order; --cache FOLDER stores finished runs, and the same command resumes.
Writes OUT.json, OUT.md and OUT.svg.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import common
from strategies import chart, kernel_tuner_runs
from strategies.page import command_line, page
from strategies.report import JUDGED, add_commit, landscape_report, short_name
from strategies.run_cache import RunCache
from strategies.running import landscape_of, load_run, run_all, sources
from strategies.tasks import KERNEL_TUNER, ORDERS, OURS, OWN_ORDER, PEER_CLASSES, PEERS, Run, Task

from evoengine.errors import UsageError
from evoengine.search.strategies.registry import STRATEGIES

_LAGS: Final = "0,8,46"
_NONE: Final = "none"
_LATER: Final = 12
"""Seeds of the other strategies that precede the first one of a slow strategy or a shuffled order."""


def main() -> int:
    arguments = _arguments()
    report = _first_report(arguments) if arguments.add_to is None else _extended_report(arguments)
    text, drawing = page(report), chart.chart(report)
    for landscape in report["landscapes"]:
        drawn = [id(entry) for entry in chart.charted(landscape["entries"])]
        for entry in landscape["entries"]:
            if id(entry) not in drawn:
                entry.pop("curve", None)
    common.write_results(arguments.out, report, text, indent=None)
    if arguments.out is not None:
        arguments.out.with_suffix(".svg").write_text(drawing + "\n")
    return 0


def _first_report(arguments: argparse.Namespace) -> dict[str, Any]:
    theirs, left_out = _kernel_tuner(arguments)
    _check(arguments)
    runs, commit = _runs(arguments, list(_tasks(arguments, theirs))), _commit()
    return {
        "judged": [_judged(commit)],
        "chart": "" if arguments.out is None else f"{arguments.out.name}.svg",
        "seeds": arguments.seeds,
        "budget": arguments.budget,
        "lags": arguments.lags,
        "left_out": left_out,
        "landscapes": [landscape_report(name, runs, arguments.budget, commit) for name in arguments.landscapes],
    }


def _extended_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns an earlier report with the judged strategy of the present commit; its peers do not run again."""
    report: dict[str, Any] = json.loads(arguments.add_to.read_text())
    records, commit = {record["name"]: record for record in report["landscapes"]}, _commit()
    if commit in (judged["commit"] for judged in report["judged"]):
        raise UsageError(f"{arguments.add_to} has commit {commit} already")
    arguments.seeds, arguments.budget, arguments.lags = report["seeds"], report["budget"], report["lags"]
    arguments.strategies, arguments.peers, arguments.kernel_tuner = JUDGED, _NONE, _NONE
    _check(arguments)
    for name in arguments.landscapes:
        if short_name(name) not in records:
            raise UsageError(f"{name} is not among the landscapes of {arguments.add_to}")
    runs = _runs(arguments, list(_tasks(arguments, [])))
    for name in arguments.landscapes:
        add_commit(records[short_name(name)], name, runs, arguments.budget, commit)
    report["judged"].append(_judged(commit))
    if arguments.out is not None:
        report["chart"] = f"{arguments.out.name}.svg"
    return report


def _runs(arguments: argparse.Namespace, tasks: list[Task]) -> list[Run]:
    stored = None if arguments.cache is None else RunCache(arguments.cache, sources({task.tuner for task in tasks}))
    return _stored(stored, tasks) if stored and arguments.cached_only else run_all(tasks, arguments.jobs, stored)


def _judged(commit: str) -> dict[str, str]:
    command = shlex.join(["scripts/measure/strategy_benchmark.py", *command_line(sys.argv[1:])])
    return {"commit": commit, "date": dt.datetime.now(dt.UTC).date().isoformat(), "command": command}


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("landscapes", nargs="+", help="Landscape files, or 'synthetic'.")
    parser.add_argument("--budget", type=int, default=100, help="Evaluations per run.")
    parser.add_argument("--seeds", type=int, default=30, help="Runs per strategy.")
    parser.add_argument("--shuffled-seeds", type=int, default=5, help="Runs of Kernel Tuner in each shuffled order.")
    parser.add_argument(
        "--slow-seeds", type=int, default=5, help="Runs of each slow strategy, at the smallest and the largest lag."
    )
    parser.add_argument("--lags", type=_numbers, default=_numbers(_LAGS), metavar="N,N", help=f"Default: {_LAGS}.")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="EvoEngine's strategies.")
    parser.add_argument("--peers", default=",".join(PEER_CLASSES), help=f"Peers, or '{_NONE}'.")
    parser.add_argument(
        "--kernel-tuner", default=",".join(kernel_tuner_runs.STRATEGIES), help=f"Its strategies, or '{_NONE}'."
    )
    parser.add_argument("--jobs", type=int, default=1, help="Worker processes.")
    parser.add_argument("--cache", type=Path, help="Folder that stores finished runs.")
    parser.add_argument("--cached-only", action="store_true", help="Run nothing; report the stored runs.")
    parser.add_argument(
        "--add-to", type=Path, metavar="JSON", help=f"Add '{JUDGED}' of this commit to a report; run nothing else."
    )
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return sorted({int(word) for word in text.split(",")})


def _names(text: str) -> list[str]:
    return [] if text == _NONE else text.split(",")


def _check(arguments: argparse.Namespace) -> None:
    for names, known, kind in (
        (_names(arguments.strategies), STRATEGIES, "strategy"),
        (_names(arguments.peers), tuple(PEER_CLASSES), "peer"),
        (_names(arguments.kernel_tuner), kernel_tuner_runs.STRATEGIES, "strategy of Kernel Tuner"),
    ):
        if unknown := sorted(set(names) - set(known)):
            raise UsageError(f"unknown {kind} '{unknown[0]}': choose some of {', '.join(known)}")
    for name in arguments.landscapes:
        if not any(evaluation.ok for evaluation in landscape_of(name).evaluations):
            raise UsageError(f"{name} has no correct config")
        if len(landscape_of(name).families) > 1:
            raise UsageError(f"{name} has several families: the peers search one")


def _kernel_tuner(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Returns Kernel Tuner's strategies to run, and the reason if there are none."""
    reason = ""
    if arguments.kernel_tuner == _NONE:
        reason = f"disabled by --kernel-tuner {_NONE}"
    elif not kernel_tuner_runs.is_installed():
        reason = "it is not installed: python -m pip install kernel_tuner==1.5.0"
    if reason:
        print(f"Kernel Tuner's strategies are left out: {reason}", file=sys.stderr)
    return ([] if reason else _names(arguments.kernel_tuner)), reason


def _tasks(arguments: argparse.Namespace, theirs: list[str]) -> Iterator[Task]:
    """Yields the tasks by seed, so that an interrupted benchmark has as many runs of every strategy as possible.

    Those that get fewer seeds come later.
    """
    asked = [(OURS, name) for name in _names(arguments.strategies)] + [(PEERS, one) for one in _names(arguments.peers)]
    tasks = [
        Task(landscape, tuner, name, seed, arguments.budget, lag)
        for landscape in arguments.landscapes
        for tuner, name in asked
        for lag in arguments.lags
        for seed in range(arguments.seeds)
    ]
    tasks += [
        Task(landscape, KERNEL_TUNER, name, seed, arguments.budget, 0, order)
        for landscape in arguments.landscapes
        for name in theirs
        for order in ORDERS
        for seed in range(arguments.seeds if order == OWN_ORDER else min(arguments.seeds, arguments.shuffled_seeds))
    ]
    ends = (arguments.lags[0], arguments.lags[-1])
    taken = [task for task in tasks if not task.slow or (task.seed < arguments.slow_seeds and task.lag in ends)]
    yield from sorted(taken, key=lambda task: task.seed + _LATER * (task.slow or task.order not in ("", OWN_ORDER)))


def _stored(stored: RunCache, tasks: list[Task]) -> list[Run]:
    return [run for task in tasks if (run := load_run(stored, task)) is not None]


def _commit() -> str:
    """Returns the last commit that changed what proposals depend on, with a mark if files differ from it."""
    parts = ["evoengine/search", "evoengine/space", "evoengine/landscape"]
    last, changed = _git("log", "-1", "--format=%h", "--", *parts), _git("status", "--porcelain", "--", *parts)
    return (last or "unknown") + (" with changes" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=common.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    common.run(main)
