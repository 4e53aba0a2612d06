"""``selftest --null``: is the best of many equals ever taken for better than the others?"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from evoengine.cli.output.console import make_console, print_json, print_table
from evoengine.costmodel.latency import METHOD as PREDICTION_METHOD
from evoengine.device.device_selfcheck import build_known_good
from evoengine.engine.devices import choose_device
from evoengine.engine.options import SearchOptions
from evoengine.engine.worker_pools import ExaminePool, describe_device
from evoengine.errors import DefectError, UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.model import NAMED_PROBLEMS, Problem
from evoengine.search.candidate.evaluate import Builder, BuildSetup, prepare
from evoengine.search.selftest.null_control import (
    NullCompiler,
    NullRun,
    NullSettings,
    null_space,
    run_null,
    simulated_null,
)
from evoengine.search.strategies.registry import STRATEGIES
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space

NOISES: Final = (0.01, 0.02)
"""Relative noise that is injected where there is no GPU."""
DRIFT: Final = 0.02
"""And the amplitude of the drift."""
_FAMILY: Final = "mma"
"""Its first named start is the kernel that gets all the names."""
_PROBLEM: Final = NAMED_PROBLEMS["mission"]


@dataclass(frozen=True)
class NullRequest:
    """What a user asks for."""

    device: str
    runs: int
    budget: int
    seed: int
    strategy: str = "evolution"

    @property
    def settings(self) -> NullSettings:
        """What each run is told."""
        return NullSettings(self.budget, self.strategy)

    @property
    def seeds(self) -> range:
        """One of each run."""
        return range(self.seed, self.seed + self.runs)


@dataclass(frozen=True)
class Condition:
    """Runs under one kind of noise."""

    name: str
    runs: tuple[NullRun, ...]

    @property
    def accepted(self) -> int:
        """False acceptances."""
        return sum(run.accepted for run in self.runs)


def run_null_control(request: NullRequest, *, json_output: bool) -> bool:
    """Searches spaces of equals: on a GPU, and without one on a replay with injected noise.

    Returns:
        Whether nobody was crowned without reason.

    Raises:
        UsageError: there is no such device or strategy.
        EvoEngineError: it could not run.
    """
    if request.strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy '{request.strategy}': choose one of {', '.join(STRATEGIES)}")
    choice = choose_device(SearchOptions(_PROBLEM, device=request.device))
    on_gpu = choice.spec.kind == "cuda"
    notes = make_console(stderr=True)
    conditions = [device_condition(request, heard=partial(_tell, notes))] if on_gpu else list(_simulated(request))
    if json_output:
        print_json(_document(request, conditions))
    else:
        _print(conditions, on_gpu=on_gpu)
    return not any(condition.accepted for condition in conditions)


def _simulated(request: NullRequest) -> Iterator[Condition]:
    """Predictions do not scatter, so that the emulator could show nothing: what is searched here is a formula."""
    workers = min(len(os.sched_getaffinity(0)), request.runs)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        spread = map if workers == 1 else pool.map  # one run needs no process of its own
        for sigma in NOISES:
            runs = tuple(spread(partial(simulated_null, sigma, DRIFT), request.seeds, repeat(request.settings)))
            yield Condition(f"injected noise {sigma:.0%}, drift {DRIFT:.0%}", runs)


def device_condition(
    request: NullRequest, problem: Problem = _PROBLEM, heard: Callable[[NullRun], object] = lambda _run: None
) -> Condition:
    """Runs on a device: on the emulator, whose predictions do not scatter, only to see that everything fits together.

    Every candidate is timed in full and goes through acceptance. That the one kernel is right is looked at each time on
    the problem itself only, before and after it is timed: the gate's small cases are not what is tested here.

    Args:
        request: names the device.
        problem: what the kernel is for.
        heard: is told of each run when it ends.

    Raises:
        EvoEngineError: it could not run.
    """
    choice = choose_device(SearchOptions(problem, device=request.device))
    device, gpu = describe_device(choice)
    target, cache = gpu.compiled_for(device.arch), default_cache_dir()
    space = find_space(_FAMILY)
    builder = Builder(BuildSetup(problem, target, device.arch, (space,), data_dir("templates"), cache))
    kernel = builder.build(space.build(problem, target).starts()[0]).kernel
    if kernel is None:
        raise DefectError(f"the first start of family {_FAMILY} cannot be built for {device.arch}")
    setup = replace(prepare(problem, choice.spec), known_good=build_known_good(device.arch, cache))
    setup = replace(setup, pool=replace(setup.pool, shapes=()))
    names, compiler = null_space(problem, target), NullCompiler(kernel)
    method = PREDICTION_METHOD if device.predicted else setup.plan.stopwatch.method
    places = choice.places[:1] if device.predicted else choice.places
    with closing(ExaminePool(setup, places, target)) as examiner:
        runs = []
        for seed in request.seeds:
            runs.append(
                run_null(problem, device, method, names, compiler, examiner, seed=seed, settings=request.settings)
            )
            heard(runs[-1])
    return Condition(f"{device.name}, {method}", tuple(runs))


def _tell(notes: Console, run: NullRun) -> None:
    said = f"seed {run.seed}: {run.evaluated} candidates in {run.elapsed_s:.1f} s, {run.accepted} false acceptances"
    notes.print(said, markup=False)


def _print(conditions: Sequence[Condition], *, on_gpu: bool) -> None:
    console = make_console()
    table = Table(box=None, pad_edge=False)
    for name in ("device", "searches", "candidates", "false acceptances", "refused in duels", "luckiest", "failed"):
        table.add_column(name, justify="left" if name == "device" else "right", no_wrap=True)
    for condition in conditions:
        table.add_row(
            condition.name,
            str(len(condition.runs)),
            f"{sum(run.evaluated for run in condition.runs):,}",
            str(condition.accepted),
            str(sum(run.refused for run in condition.runs)),
            f"{1 - min(run.luckiest for run in condition.runs):.1%}",
            str(sum(run.failed for run in condition.runs)),
        )
    print_table(console, table)
    where = "" if on_gpu else "; there is no GPU here, so times come from a formula with injected noise"
    console.print(f"\nevery candidate is the same kernel under another name{where}", markup=False)


def _document(request: NullRequest, conditions: Sequence[Condition]) -> dict[str, Any]:
    return {
        "budget": request.budget,
        "strategy": request.strategy,
        "accepted": sum(condition.accepted for condition in conditions),
        "conditions": [
            {"name": condition.name, "accepted": condition.accepted, "runs": [asdict(run) for run in condition.runs]}
            for condition in conditions
        ],
    }
