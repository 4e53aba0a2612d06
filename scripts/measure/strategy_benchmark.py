#!/usr/bin/env python3
"""Compares search strategies on landscapes, and with Kernel Tuner's strategies where that package is installed.

    .venv/bin/python scripts/measure/strategy_benchmark.py a.landscape.xz b.landscape.xz --out docs/results/strategies
    .venv/bin/python scripts/measure/strategy_benchmark.py synthetic --seeds 5 --budgets 25,50 --strategies evolution,random

Every strategy gets the same valid configs, one landscape at a time, and is told each time before it is asked again.
An evaluation is one config, correct or not; none is evaluated twice. What counts is the best so far as a share of the
optimum (the optimum's time over the best time), and how many evaluations it takes to come within 5, 2 and 0.5 % of it.
The optimum is the least recorded median: the least of thousands, it owes a little to luck, which nothing corrects.
A run follows from landscape, strategy and seed; --cache FOLDER keeps each, and the same command goes on from there.
Writes OUT.json, OUT.md and OUT.svg, with one chart a landscape.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kernel_tuner_runs
from run_cache import RunCache, our_sources, their_sources
from strategy_report import chart, page

from evoengine.errors import EvoEngineError, UsageError
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.landscape.noise import Noise
from evoengine.landscape.synthetic import analytical_landscape
from evoengine.model import Config
from evoengine.search.strategies.registry import STRATEGIES, make_strategy

OURS: Final = "evoengine"
THEIRS: Final = "kernel_tuner"
BUDGETS: Final = (25, 50, 100, 200, 500)
NEAR: Final = (0.05, 0.02, 0.005)
"""Shares of the optimum within which a search is near it."""
_DIGITS: Final = 5


@dataclass(frozen=True)
class Task:
    """One run."""

    landscape: str
    tuner: str
    strategy: str
    seed: int
    budget: int
    sigma: float = 0.0
    drift: float = 0.0
    lag: int = 0


@dataclass(frozen=True)
class Run:
    """What came out: the best so far as a share of the optimum, after each evaluation."""

    task: Task
    shares: tuple[float, ...]
    seconds: float


def main() -> int:
    arguments = _arguments()
    budgets = tuple(sorted({int(text) for text in arguments.budgets.split(",")}))
    theirs, left_out = _theirs(arguments)
    tasks = [
        Task(landscape, tuner, strategy, seed, budgets[-1], arguments.noise, arguments.drift, arguments.lag)
        for landscape in arguments.landscapes
        for tuner, names in ((OURS, arguments.strategies.split(",")), (THEIRS, theirs))
        for strategy in names
        for seed in range(min(arguments.seeds, arguments.slow_seeds) if _is_slow(tuner, strategy) else arguments.seeds)
    ]
    try:
        _check(arguments)
        kept = None if arguments.cache is None else RunCache(arguments.cache, _sources({t.tuner for t in tasks}))
        if kept is not None and arguments.cached_only:
            runs = [run for task in tasks if (run := recall(kept, task)) is not None]
        else:
            runs = _run_all(tasks, arguments.processes, kept)
    except EvoEngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    report = {
        "command": _command(),
        "chart": "" if arguments.out is None else f"{arguments.out.name}.svg",
        "seeds": arguments.seeds,
        "budgets": budgets,
        "noise": arguments.noise,
        "drift": arguments.drift,
        "lag": arguments.lag,
        "kernel_tuner": left_out,
        "landscapes": [
            _landscape_report(name, runs, budgets) | {"held_out": _is_held_out(name, arguments)}
            for name in arguments.landscapes
        ],
    }
    text = page(report)
    print(text)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        for suffix, content in ((".json", json.dumps(report)), (".md", text), (".svg", chart(report))):
            arguments.out.with_suffix(suffix).write_text(content + "\n")
    return 0


def _command() -> str:
    """The command line, without what the figures do not depend on."""
    words = list(sys.argv[1:])
    for option in ("--cache", "--processes"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    words = [word for word in words if word != "--cached-only"]
    return shlex.join(["scripts/measure/strategy_benchmark.py", *words])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("landscapes", nargs="+", help="files, or 'synthetic'")
    parser.add_argument("--seeds", type=int, default=50, help="runs of each strategy")
    parser.add_argument("--slow-seeds", type=int, default=15, help="runs of Kernel Tuner's slow strategies")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="evaluations to look at; the last ends")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="of EvoEngine")
    parser.add_argument(
        "--kernel-tuner", default=",".join(kernel_tuner_runs.STRATEGIES), help="its strategies, or none"
    )
    parser.add_argument("--noise", type=float, default=0.0, help="relative noise of each time that a strategy is told")
    parser.add_argument("--drift", type=float, default=0.0, help="amplitude of a slow drift of these times")
    parser.add_argument(
        "--lag", type=int, default=0, help="latest outcomes that a proposal does not know, as in a search"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--held-out",
        action="append",
        metavar="TEXT",
        help="in the name of a landscape that nobody looked at when the default strategy's settings were chosen",
    )
    parser.add_argument("--cache", type=Path, help="a folder that keeps each finished run")
    parser.add_argument("--cached-only", action="store_true", help="run nothing: the page of what the cache holds")
    parser.add_argument("--out", type=Path, help="where to write, without a suffix")
    return parser.parse_args()


def _check(arguments: argparse.Namespace) -> None:
    unknown = sorted(set(arguments.strategies.split(",")) - set(STRATEGIES))
    if unknown:
        raise UsageError(f"unknown strategy '{unknown[0]}': choose some of {', '.join(STRATEGIES)}")
    for name in arguments.landscapes:
        if not any(evaluation.ok for evaluation in _landscape(name).evaluations):
            raise UsageError(f"{name} has no correct config: there is nothing to find")


def _theirs(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Kernel Tuner's strategies to run; or why there are none."""
    reason = ""
    if arguments.kernel_tuner == "none":
        reason = "nobody asked for them"
    elif arguments.noise or arguments.drift:
        reason = "its simulation knows no noise"
    elif not kernel_tuner_runs.is_installed():
        reason = "it is not installed: python -m pip install kernel_tuner==1.5.0"
    if reason:
        print(f"Kernel Tuner's strategies are left out: {reason}", file=sys.stderr)
    return [] if reason else arguments.kernel_tuner.split(","), reason


def _is_held_out(name: str, arguments: argparse.Namespace) -> bool | None:
    """None where nobody said of any."""
    if arguments.held_out is None:
        return None
    return any(text in Path(name).name for text in arguments.held_out)


def _is_slow(tuner: str, strategy: str) -> bool:
    return tuner == THEIRS and strategy in kernel_tuner_runs.SLOW


def _run_all(tasks: list[Task], processes: int, kept: RunCache | None) -> list[Run]:
    start_s, runs = time.monotonic(), []
    for library in ("OPENBLAS", "OMP", "MKL"):  # each run has a core, and idle threads of a library would spin there
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for run in pool.map(partial(run_or_recall, kept), tasks):
            runs.append(run)
            if len(runs) % max(1, len(tasks) // 20) == 0:
                took_s = time.monotonic() - start_s
                print(f"{len(runs)} of {len(tasks)} runs, {took_s:.0f} s", file=sys.stderr)
    return runs


def _sources(tuners: Iterable[str]) -> dict[str, str]:
    """What the runs of each tuner depend on."""
    hashes = {OURS: our_sources, THEIRS: their_sources}
    return {tuner: hashes[tuner]() for tuner in tuners}


def run_or_recall(kept: RunCache | None, task: Task) -> Run:
    """One run, or what is known of it."""
    known = None if kept is None else recall(kept, task)
    if known is not None:
        return known
    run = run_task(task)
    if kept is not None:
        kept.save(_facts(kept, task), {"shares": run.shares, "seconds": run.seconds})
    return run


def recall(kept: RunCache, task: Task) -> Run | None:
    """What is known of a run."""
    known = kept.load(_facts(kept, task))
    return None if known is None else Run(task, tuple(known["shares"]), known["seconds"])


def _facts(kept: RunCache, task: Task) -> dict[str, Any]:
    """What a run follows from."""
    return asdict(task) | {"landscape": _landscape(task.landscape).key, "sources": kept.sources[task.tuner]}


def run_task(task: Task) -> Run:
    """One run of one strategy, in this process."""
    landscape = _landscape(task.landscape)
    walk = _our_walk if task.tuner == OURS else _their_walk
    start_s = time.process_time()
    shares, best_told, best_us = [], float("inf"), float("inf")
    for config, told_us in walk(landscape, task):
        if told_us is not None and told_us < best_told:
            best_told, best_us = told_us, median_us(landscape.by_config[config])
        shares.append(median_us(landscape.best) / best_us)
    return Run(task, tuple(shares), time.process_time() - start_s)


def _our_walk(landscape: Landscape, task: Task) -> Iterator[tuple[Config, float | None]]:
    strategy = make_strategy(task.strategy, landscape.spaces, task.seed)
    told_us = _teller(landscape, task)
    for _ in range(min(task.budget, len(landscape.evaluations))):
        proposal = strategy.ask(task.lag)
        if proposal is None:
            return
        us = told_us(proposal.config)
        strategy.tell(proposal, us, landscape.by_config[proposal.config].status)
        yield proposal.config, us


def _their_walk(landscape: Landscape, task: Task) -> Iterator[tuple[Config, float | None]]:
    space = _simulated(task.landscape)
    family = landscape.families[0].name
    for values in space.run(task.strategy, task.seed, task.budget)[: task.budget]:
        config = Config.of(family, dict(zip(space.names, values, strict=True)))
        yield config, landscape.by_config[config].value_us


def _teller(landscape: Landscape, task: Task) -> Callable[[Config], float | None]:
    noise, when = Noise(task.sigma, task.drift, task.seed), iter(range(2**31))

    def told_us(config: Config) -> float | None:
        us = landscape.by_config[config].value_us
        if us is None or noise.quiet:
            return us
        return us * float(noise.scatter(1, config.key)[0]) * noise.drifted(next(when))

    return told_us


@cache
def _landscape(name: str) -> Landscape:
    return analytical_landscape() if name == "synthetic" else read_landscape(name)


@cache
def _simulated(name: str) -> kernel_tuner_runs.SimulatedSpace:
    return kernel_tuner_runs.SimulatedSpace(_landscape(name))


def _landscape_report(name: str, runs: list[Run], budgets: tuple[int, ...]) -> dict[str, Any]:
    landscape = _landscape(name)
    here = [run for run in runs if run.task.landscape == name]
    pairs = dict.fromkeys((run.task.tuner, run.task.strategy) for run in here)
    return {
        "name": Path(name).name,
        "key": landscape.key,
        "problem": "" if landscape.problem is None else landscape.problem.key,
        "device": landscape.device.name,
        "predicted": landscape.device.predicted,
        "configs": len(landscape.evaluations),
        "optimum_us": median_us(landscape.best),
        "strategies": [
            _strategy_report(tuner, strategy, [run for run in here if _is_of(run, tuner, strategy)], budgets)
            for tuner, strategy in pairs
        ],
    }


def _is_of(run: Run, tuner: str, strategy: str) -> bool:
    return (run.task.tuner, run.task.strategy) == (tuner, strategy)


def _strategy_report(tuner: str, strategy: str, runs: list[Run], budgets: tuple[int, ...]) -> dict[str, Any]:
    """Quartiles over the seeds; a run that never came near the optimum counts as one that needs forever."""
    return {
        "tuner": tuner,
        "strategy": strategy,
        "seeds": len(runs),
        "shares": {str(budget): _quartiles([_share_at(run, budget) for run in runs]) for budget in budgets},
        "evaluations": {
            str(near): _quartiles([_evaluations_to(run, near) for run in runs], worst_last=True) for near in NEAR
        },
        "reached": {
            str(near): sum(_evaluations_to(run, near) < float("inf") for run in runs) / len(runs) for near in NEAR
        },
        "curve": [_quartiles([_share_at(run, count) for run in runs])[1] for count in range(1, budgets[-1] + 1)],
        "seconds_per_run": sum(run.seconds for run in runs) / len(runs),
    }


def _share_at(run: Run, budget: int) -> float:
    return run.shares[min(budget, len(run.shares)) - 1] if run.shares else 0.0


def _evaluations_to(run: Run, near: float) -> float:
    return next((count for count, share in enumerate(run.shares, 1) if share >= 1 / (1 + near)), float("inf"))


def _quartiles(values: list[float], *, worst_last: bool = False) -> list[float | None]:
    """Lower quartile, median and upper quartile, each a value that occurs, the worse one of two; None for infinity."""
    ordered, whole = sorted(values), math.ceil if worst_last else math.floor
    picked = [ordered[whole(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75)]
    return [None if worst_last and value == float("inf") else round(value, _DIGITS) for value in picked]


if __name__ == "__main__":
    sys.exit(main())
