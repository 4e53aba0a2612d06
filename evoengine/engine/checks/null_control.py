"""Null control of the acceptance rule: searches among identical kernels, where no kernel may replace another."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Final

from evoengine.costmodel.latency import METHOD
from evoengine.device.device_selfcheck import build_known_good
from evoengine.engine.devices.choice import choose_device
from evoengine.engine.devices.facts import describe_device
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.options.verbs import SelftestOptions
from evoengine.engine.workers.pools import DeviceWorkers
from evoengine.errors import DefectError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, Problem
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.setup import SetupRequest, prepare
from evoengine.search.selftest.null_control import (
    NullCompiler,
    NullRun,
    NullSettings,
    null_space,
    run_null,
    simulated_null,
)
from evoengine.search.strategies.registry import check_strategy
from evoengine.space.data_dirs import data_dirs
from evoengine.space.loader import find_space

NOISES: Final = (0.01, 0.02)
"""Standard deviations of the relative noise that is injected without a GPU."""
DRIFT: Final = 0.02
"""Amplitude of the injected drift."""
_FAMILY: Final = "mma"
"""The family whose first start is the kernel of every config."""
_PROBLEM: Final = NAMED_PROBLEMS[DEFAULT_PROBLEM]


Report = Callable[[NullRun], object]
"""Receives a run when it ends."""


@dataclass(frozen=True)
class Condition:
    """Runs on one device or under one kind of noise."""

    name: str
    runs: tuple[NullRun, ...]

    @property
    def accepted(self) -> int:
        """Number of false acceptances."""
        return sum(run.accepted for run in self.runs)


def null_control(options: SelftestOptions, report: Report) -> tuple[list[Condition], bool]:
    """Searches spaces of identical kernels: on a GPU, or without one on a replay with injected noise.

    Args:
        options: Options of the self-test.
        report: Callback that receives each run on a GPU when it ends.

    Returns:
        The runs of each condition, and whether they ran on a GPU.

    Raises:
        UsageError: The device or the strategy is unknown.
        EvoEngineError: The device cannot be used.
    """
    check_strategy(options.strategy)
    choice = choose_device(SearchOptions(_PROBLEM, device=options.device))
    on_gpu = choice.spec.kind == "cuda"
    return [device_condition(options, report=report)] if on_gpu else list(_simulated(options)), on_gpu


def _simulated(options: SelftestOptions) -> Iterator[Condition]:
    """Searches a formula with injected noise; predictions of the emulator have no noise to test against."""
    workers = min(len(os.sched_getaffinity(0)), options.runs)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        spread = map if workers == 1 else pool.map  # one run needs no process of its own
        for sigma in NOISES:
            runs = tuple(spread(partial(simulated_null, sigma, DRIFT), _seeds(options), repeat(_settings(options))))
            yield Condition(f"injected noise {sigma:.0%}, drift {DRIFT:.0%}", runs)


def device_condition(
    options: SelftestOptions, problem: Problem = _PROBLEM, report: Report = lambda _run: None
) -> Condition:
    """Searches identical kernels on a device. On the emulator, whose predictions have no noise, it tests the set-up.

    Every candidate is timed in full and goes through acceptance. Its results are checked on the problem itself only,
    before and after timing; the gate's small cases are left out.

    Args:
        options: Options of the self-test.
        problem: Problem of the kernel.
        report: Callback that receives each run when it ends.

    Raises:
        EvoEngineError: The device cannot be used.
    """
    choice = choose_device(SearchOptions(problem, device=options.device))
    device, gpu = describe_device(choice)
    target, cache = gpu.compiled_for(device.arch), default_cache_dir()
    space = find_space(_FAMILY)
    builder = Builder(BuildSetup((problem,), target, device.arch, (space,), data_dirs("templates"), cache))
    kernel = builder.build(space.build(problem, target).starts()[0]).kernel
    if kernel is None:
        raise DefectError(f"the first start of family {_FAMILY} cannot be built for {device.arch}")
    setup = replace(prepare(SetupRequest(problem, choice.spec)), known_good=build_known_good(device.arch, cache))
    (part,) = setup.parts
    setup = replace(setup, parts=(replace(part, pool=replace(part.pool, shapes=())),))
    names, compiler = null_space(problem, target), NullCompiler(kernel)
    method = METHOD if device.predicted else part.plan.stopwatch.method
    bindings = choice.bindings[:1] if device.predicted else choice.bindings
    with closing(DeviceWorkers(setup, bindings, target)) as examiner:
        runs = []
        for seed in _seeds(options):
            runs.append(
                run_null(problem, device, method, names, compiler, examiner, seed=seed, settings=_settings(options))
            )
            report(runs[-1])
    return Condition(f"{device.name}, {method}", tuple(runs))


def _settings(options: SelftestOptions) -> NullSettings:
    return NullSettings(options.budget, options.strategy)


def _seeds(options: SelftestOptions) -> range:
    return range(options.seed, options.seed + options.runs)
