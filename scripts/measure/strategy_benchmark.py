#!/usr/bin/env python3
"""Compares search strategies on landscapes, and with Kernel Tuner's strategies if that package is installed.

    python scripts/measure/strategy_benchmark.py a.landscape.xz b.landscape.xz --out docs/results/strategies
    python scripts/measure/strategy_benchmark.py synthetic --seeds 5 --budgets 25,50 --strategies evolution,random

Every strategy searches the same valid configs, one landscape at a time, and receives each time before its next
proposal. An evaluation is one config, correct or not; no config is evaluated twice. Two results are reported: the best
so far as a share of the optimum (the optimum's time over the best time), and the evaluations needed to come within 5, 2
and 0.5 % of it. The optimum is the least recorded median, which as a minimum of thousands is slightly too low.
A run is determined by landscape, strategy and seed. --cache FOLDER stores finished runs; the same command resumes.
Writes OUT.json, OUT.md and OUT.svg, with one chart per landscape.
"""

from __future__ import annotations

import argparse
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
from xml.sax.saxutils import escape

import common
import kernel_tuner_runs
from run_cache import RunCache, our_sources, their_sources

from evoengine.errors import UsageError
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
"""Relative distances from the optimum within which a search is near it."""
_DIGITS: Final = 5
_WIDTH: Final = 900
_HEIGHT: Final = 420
_LEFT: Final = 60
_RIGHT: Final = 250
_TOP: Final = 40
_BOTTOM: Final = 40
_LOWEST: Final = 0.7
"""Lower end of the chart's axis, as a share of the optimum."""
_COLOURS: Final = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")
_TUNED: Final[dict[bool | None, str]] = {
    None: "",
    False: " The settings of evolution were tuned on this landscape.",
    True: " Held out: the settings of evolution were not tuned on this landscape.",
}
_LABELS: Final = {"evoengine": "", "kernel_tuner": "KT "}


@dataclass(frozen=True)
class Task:
    """One run of one strategy."""

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
    """Result of a task: the best so far as a share of the optimum, after each evaluation."""

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
    _check(arguments)
    stored = None if arguments.cache is None else RunCache(arguments.cache, _sources({t.tuner for t in tasks}))
    if stored is not None and arguments.cached_only:
        runs = [run for task in tasks if (run := load_run(stored, task)) is not None]
    else:
        runs = _run_all(tasks, arguments.processes, stored)
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
    common.write_results(arguments.out, report, text, indent=None)
    if arguments.out is not None:
        arguments.out.with_suffix(".svg").write_text(chart(report) + "\n")
    return 0


def _command() -> str:
    """The command line without options that do not change the results."""
    words = list(sys.argv[1:])
    for option in ("--cache", "--processes"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    words = [word for word in words if word != "--cached-only"]
    return shlex.join(["scripts/measure/strategy_benchmark.py", *words])


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("landscapes", nargs="+", help="Landscape files, or 'synthetic'.")
    parser.add_argument("--seeds", type=int, default=50, help="Runs per strategy.")
    parser.add_argument("--slow-seeds", type=int, default=15, help="Runs of each slow strategy of Kernel Tuner.")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="Evaluations to report, budget last.")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="EvoEngine's strategies.")
    parser.add_argument(
        "--kernel-tuner", default=",".join(kernel_tuner_runs.STRATEGIES), help="Kernel Tuner's strategies, or 'none'."
    )
    parser.add_argument("--noise", type=float, default=0.0, help="Relative noise of the reported times.")
    parser.add_argument("--drift", type=float, default=0.0, help="Amplitude of a slow drift of the reported times.")
    parser.add_argument(
        "--lag", type=int, default=0, help="Number of latest results unknown to a proposal, as in a search."
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="Worker processes.")
    parser.add_argument(
        "--held-out",
        action="append",
        metavar="TEXT",
        help="Text in the names of landscapes on which the default strategy was not tuned.",
    )
    parser.add_argument("--cache", type=Path, help="Folder that stores finished runs.")
    parser.add_argument("--cached-only", action="store_true", help="Run nothing; report the stored runs.")
    parser.add_argument("--out", type=Path, help="Path of the files to write, without a suffix.")
    return parser.parse_args()


def _check(arguments: argparse.Namespace) -> None:
    unknown = sorted(set(arguments.strategies.split(",")) - set(STRATEGIES))
    if unknown:
        raise UsageError(f"unknown strategy '{unknown[0]}': choose some of {', '.join(STRATEGIES)}")
    for name in arguments.landscapes:
        if not any(evaluation.ok for evaluation in _landscape(name).evaluations):
            raise UsageError(f"{name} has no correct config")


def _theirs(arguments: argparse.Namespace) -> tuple[list[str], str]:
    """Kernel Tuner's strategies to run, and the reason if there are none."""
    reason = ""
    if arguments.kernel_tuner == "none":
        reason = "disabled by --kernel-tuner none"
    elif arguments.noise or arguments.drift:
        reason = "its simulation does not support noise"
    elif not kernel_tuner_runs.is_installed():
        reason = "it is not installed: python -m pip install kernel_tuner==1.5.0"
    if reason:
        print(f"Kernel Tuner's strategies are left out: {reason}", file=sys.stderr)
    return [] if reason else arguments.kernel_tuner.split(","), reason


def _is_held_out(name: str, arguments: argparse.Namespace) -> bool | None:
    """Whether a landscape is held out; None without --held-out."""
    if arguments.held_out is None:
        return None
    return any(text in Path(name).name for text in arguments.held_out)


def _is_slow(tuner: str, strategy: str) -> bool:
    return tuner == THEIRS and strategy in kernel_tuner_runs.SLOW


def _run_all(tasks: list[Task], processes: int, stored: RunCache | None) -> list[Run]:
    start_s, runs = time.monotonic(), []
    for library in ("OPENBLAS", "OMP", "MKL"):  # one core per run; idle library threads would spin on it
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for run in pool.map(partial(run_cached, stored), tasks):
            runs.append(run)
            if len(runs) % max(1, len(tasks) // 20) == 0:
                took_s = time.monotonic() - start_s
                print(f"{len(runs)} of {len(tasks)} runs, {took_s:.0f} s", file=sys.stderr)
    return runs


def _sources(tuners: Iterable[str]) -> dict[str, str]:
    """Hash of the sources that the runs of each tuner depend on."""
    hashes = {OURS: our_sources, THEIRS: their_sources}
    return {tuner: hashes[tuner]() for tuner in tuners}


def run_cached(stored: RunCache | None, task: Task) -> Run:
    """Loads a stored run, or runs the task and stores it."""
    known = None if stored is None else load_run(stored, task)
    if known is not None:
        return known
    run = run_task(task)
    if stored is not None:
        stored.save(_facts(stored, task), {"shares": run.shares, "seconds": run.seconds})
    return run


def load_run(stored: RunCache, task: Task) -> Run | None:
    known = stored.load(_facts(stored, task))
    return None if known is None else Run(task, tuple(known["shares"]), known["seconds"])


def _facts(stored: RunCache, task: Task) -> dict[str, Any]:
    """Everything that determines the result of a task."""
    return asdict(task) | {"landscape": _landscape(task.landscape).key, "sources": stored.sources[task.tuner]}


def run_task(task: Task) -> Run:
    """One run of one strategy, in this process."""
    landscape = _landscape(task.landscape)
    walk = _our_walk if task.tuner == OURS else _their_walk
    start_s = time.process_time()
    shares, best_reported, best_us = [], float("inf"), float("inf")
    for config, us in walk(landscape, task):
        if us is not None and us < best_reported:
            best_reported, best_us = us, median_us(landscape.by_config[config])
        shares.append(median_us(landscape.best) / best_us)
    return Run(task, tuple(shares), time.process_time() - start_s)


def _our_walk(landscape: Landscape, task: Task) -> Iterator[tuple[Config, float | None]]:
    strategy = make_strategy(task.strategy, landscape.spaces, task.seed)
    reported_us = _reporter(landscape, task)
    for _ in range(min(task.budget, len(landscape.evaluations))):
        proposal = strategy.ask(task.lag)
        if proposal is None:
            return
        us = reported_us(proposal.config)
        strategy.tell(proposal, us, landscape.by_config[proposal.config].status)
        yield proposal.config, us


def _their_walk(landscape: Landscape, task: Task) -> Iterator[tuple[Config, float | None]]:
    space = _simulated(task.landscape)
    family = landscape.families[0].name
    for values in space.run(task.strategy, task.seed, task.budget)[: task.budget]:
        config = Config.of(family, dict(zip(space.names, values, strict=True)))
        yield config, landscape.by_config[config].value_us


def _reporter(landscape: Landscape, task: Task) -> Callable[[Config], float | None]:
    noise, when = Noise(task.sigma, task.drift, task.seed), iter(range(2**31))

    def reported_us(config: Config) -> float | None:
        us = landscape.by_config[config].value_us
        if us is None or noise.quiet:
            return us
        return us * float(noise.scatter(1, config.key)[0]) * noise.drifted(next(when))

    return reported_us


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
    """Quartiles over the seeds; a run that never comes near the optimum counts as infinite."""
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
    """Lower quartile, median and upper quartile: values that occur, the worse of two; None for infinity."""
    ordered, whole = sorted(values), math.ceil if worst_last else math.floor
    picked = [ordered[whole(part * (len(ordered) - 1))] for part in (0.25, 0.5, 0.75)]
    return [None if worst_last and value == float("inf") else round(value, _DIGITS) for value in picked]


# --- the page and the chart -------------------------------------------------------------------------------------------


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    return "\n".join(_page_lines(report))


def _page_lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"# Strategies on {len(report['landscapes'])} landscape{'s' * (len(report['landscapes']) > 1)}"
    yield ""
    yield f"{report['seeds']} seeds a strategy. Command:"
    yield ""
    yield f"    {report['command']}"
    if report["lag"]:
        yield ""
        yield f"EvoEngine's strategies propose without knowing the latest {report['lag']} outcomes."
    if report["noise"] or report["drift"]:
        yield ""
        yield f"Reported times have noise {report['noise']:g} and drift {report['drift']:g}."
    if report["kernel_tuner"]:
        yield ""
        yield f"Kernel Tuner's strategies (KT) were left out: {report['kernel_tuner']}."
    yield ""
    yield from _goals(report)
    if report["chart"]:
        yield ""
        yield f"![The median of the best so far over evaluations, for every strategy]({report['chart']})"
    for landscape in report["landscapes"]:
        yield ""
        yield from _table(landscape, report["budgets"], report["seeds"])


def _table(landscape: dict[str, Any], budgets: list[int], seeds: int) -> Iterator[str]:
    kind = "predicted for" if landscape["predicted"] else "measured on"
    yield f"## {landscape['name']}"
    yield ""
    yield f"{landscape['problem'] or 'a foreign kernel'}, {kind} {landscape['device']}, landscape {landscape['key']}:"
    yield f"{landscape['configs']:,} configs, optimum {landscape['optimum_us']:.4g} µs.{_TUNED[landscape['held_out']]}"
    yield ""
    yield "Best so far as a share of the optimum, median (lower quartile); evaluations until near it, median and share"
    yield "of runs that reached it:"
    yield ""
    heads = [f"after {budget}" for budget in budgets] + ["to within 5 %", "2 %", "0.5 %", "CPU ms an evaluation"]
    yield f"| strategy | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for strategy in landscape["strategies"]:
        shares = [strategy["shares"][str(budget)] for budget in budgets]
        cells = [f"{median:.3f} ({low:.3f})" for low, median, _ in shares]
        for near in ("0.05", "0.02", "0.005"):
            median, reached = strategy["evaluations"][near][1], strategy["reached"][near]
            cells.append(f"{'never' if median is None else median} ({reached:.0%})")
        cells.append(f"{1e3 * strategy['seconds_per_run'] / budgets[-1]:.1f}")
        yield f"| {_label(strategy)}{_fewer(strategy, seeds)} | {' | '.join(cells)} |"


def _goals(report: dict[str, Any]) -> Iterator[str]:
    """Goals of the default strategy, and whether they are met."""
    yield "The optimum is the least recorded median; strategies receive recorded medians. Goals of evolution, median"
    yield "over the seeds: at most 2 % above the optimum after 100 evaluations; to come within 5 % of it, at most half"
    yield "the evaluations of random search and no more than Kernel Tuner's best strategy (KT)."
    yield ""
    yield "| landscape | after 100 | evolution to 5 % | random to 5 % | ratio | best of KT to 5 % | held |"
    yield "|---|---|---|---|---|---|---|"
    for landscape in report["landscapes"]:
        by_name = {(one["tuner"], one["strategy"]): one for one in landscape["strategies"]}
        own, rival = by_name.get(("evoengine", "evolution")), by_name.get(("evoengine", "random"))
        if own is not None and rival is not None and 100 in report["budgets"]:
            foreign = [one for one in landscape["strategies"] if one["tuner"] == "kernel_tuner"]
            name = f"{landscape['name']}{', held out' if landscape['held_out'] else ''}"
            yield f"| {name} | {' | '.join(_goals_of(own, rival, foreign, report['seeds']))} |"


def _goals_of(own: dict[str, Any], rival: dict[str, Any], foreign: list[dict[str, Any]], seeds: int) -> Iterator[str]:
    above, needed, rivals = 1 / own["shares"]["100"][1] - 1, _needed(own), _needed(rival)
    best = min(foreign, key=_needed, default=None)
    held = [above <= 0.02, needed < float("inf") and needed <= rivals / 2]
    yield f"{above:.1%}"
    yield _count(needed)
    yield _count(rivals)
    yield "" if float("inf") in (needed, rivals) else f"{needed / rivals:.2f}"
    if best is None:
        yield "not run"
    else:
        held.append(needed < float("inf") and needed <= _needed(best))
        yield f"{_count(_needed(best))}, {best['strategy']}{_fewer(best, seeds)}"
    yield "yes" if all(held) else "no"


def _count(evaluations: float) -> str:
    return "never" if evaluations == float("inf") else f"{evaluations:g}"


def _needed(strategy: dict[str, Any]) -> float:
    median = strategy["evaluations"]["0.05"][1]
    return float("inf") if median is None else float(median)


def _fewer(strategy: dict[str, Any], seeds: int) -> str:
    return "" if strategy["seeds"] == seeds else f" ({strategy['seeds']} seeds)"


def _label(strategy: dict[str, Any]) -> str:
    return f"{_LABELS[strategy['tuner']]}{strategy['strategy']}"


def chart(report: dict[str, Any]) -> str:
    """SVG with one chart per landscape: median of the best so far over evaluations."""
    landscapes = report["landscapes"]
    box = f"0 0 {_WIDTH} {_HEIGHT * len(landscapes)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, landscape in enumerate(landscapes):
        parts.append(f'<g transform="translate(0 {number * _HEIGHT})">')
        parts.extend(_panel(landscape, report["budgets"][-1]))
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"])


def _panel(landscape: dict[str, Any], budget: int) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    title = f"{landscape['name']}: best so far as a share of the optimum, median over seeds"
    yield f'<text x="{_LEFT}" y="{_TOP - 15}" font-size="14">{escape(title)}</text>'
    for step in range(6):
        share = _LOWEST + (1 - _LOWEST) * step / 5
        y = _y(share)
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.2f}</text>'
        count = max(1, round(budget * step / 5))
        yield f'<text x="{_x(count, budget):.1f}" y="{bottom + 18}" text-anchor="middle">{count}</text>'
    yield f'<text x="{(_LEFT + right) / 2}" y="{bottom + 34}" text-anchor="middle">evaluations</text>'
    for place, strategy in enumerate(landscape["strategies"]):
        colour = _COLOURS[place % len(_COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if strategy["tuner"] == "kernel_tuner" else ""
        line = f'stroke="{colour}" stroke-width="1.8"{dashes}'
        points = " ".join(f"{_x(n, budget):.1f},{_y(share):.1f}" for n, share in _corners(strategy["curve"]))
        yield f'<polyline points="{points}" fill="none" {line}/>'
        y = _TOP + 12 + 18 * place
        yield f'<line x1="{right + 15}" x2="{right + 45}" y1="{y}" y2="{y}" {line}/>'
        yield f'<text x="{right + 52}" y="{y + 4}">{escape(_label(strategy))}</text>'


def _corners(curve: list[float]) -> Iterator[tuple[int, float]]:
    """The points of a curve, without the inner points of constant stretches."""
    for place, share in enumerate(curve):
        if not 0 < place < len(curve) - 1 or not curve[place - 1] == share == curve[place + 1]:
            yield place + 1, share


def _x(count: int, budget: int) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (count - 1) / max(1, budget - 1)


def _y(share: float) -> float:
    above = max(0.0, share - _LOWEST) / (1 - _LOWEST)
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * above


if __name__ == "__main__":
    common.run(main)
