#!/usr/bin/env python3
"""Measures what each tunable gains or costs around the best config of a problem, on the GPU at hand.

    .venv/bin/python scripts/measure/knobs.py --db leaderboard.db --id 17 --near 12
    .venv/bin/python scripts/measure/knobs.py --db leaderboard.db --id 17 --out docs/results/knobs-mission-h200.md

For every tunable and each of its other values, the space is narrowed to that value; the nearest valid config and some
mutants of it are compiled, judged on the problem and timed; the best of them meets the best config again in turns.
So a row says: the best found with this value, against the best without it. Values that no valid config has are left
out. Every figure is a ratio taken in this one run.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.device.cuda.device import CudaDevice
from evoengine.device.protocols import Stopwatch, StopwatchOptions
from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import CandidateError, SearchSpaceError, UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.records import Kernel
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Problem, Value
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.space.data_dirs import data_dir
from evoengine.space.language.loader import find_space

QUICK_SAMPLES: Final = 5
DUEL_SAMPLES: Final = 40
COMPILE_TIMEOUT_S: Final = 120.0
MUTATION_RATE: Final = 0.08
"""Chance of each tunable to change in a mutant: two or three of them do."""


@dataclass(frozen=True)
class Trial:
    """A config that stands for one value of one tunable."""

    knob: str
    value: Value
    config: Config


@dataclass(frozen=True)
class Finding:
    """The best config with one value of one tunable."""

    knob: str
    value: Value
    us: float
    """Median in the duel with the best config."""
    best_us: float
    """The best config's own median in that duel."""
    changed: str
    """What else differs from the best config."""


def main() -> int:
    arguments = _arguments()
    with closing(Leaderboard(database_url(arguments.db))) as board:
        record = board.get(arguments.id)
    best, problem = record.evaluation.config, record.study.key.problem
    device = CudaDevice()
    trials = list(draw(best, problem, device, arguments.near, arguments.seed))
    kernels = _compile([best, *(trial.config for trial in trials)], problem, device, arguments.jobs)
    case = problem_case(problem, arguments.seed)
    findings = measure(device, best, trials, kernels, case)
    text = table(findings, best, f"{problem.key} on {device.info.name}, driver {device.info.driver}")
    print(text)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n")
    return 0


def draw(best: Config, problem: Problem, device: CudaDevice, near: int, seed: int) -> Iterator[Trial]:
    """The configs to measure: for every other value of every tunable, those nearest to the best."""
    space = find_space(best.family)
    target = device.target.compiled_for(device.info.arch)
    rng = np.random.default_rng(seed)
    for tunable in space.tunables:
        for value in tunable.values:
            if value == best[tunable.name]:
                continue
            try:
                narrowed = space.build(problem, target, overrides={tunable.name: [value]})
            except SearchSpaceError:  # no valid config has this value
                continue
            nearest = narrowed.repair(best.as_dict() | {tunable.name: value}, rng)
            mutants = (narrowed.mutate(nearest, rng, MUTATION_RATE) for _ in range(near - 1))
            for config in dict.fromkeys((nearest, *mutants)):
                yield Trial(tunable.name, value, config)


def _compile(configs: Sequence[Config], problem: Problem, device: CudaDevice, jobs: int) -> dict[Config, Kernel]:
    """What compiles, by config."""
    space = find_space(configs[0].family)
    arch = device.info.arch
    target = device.target.compiled_for(arch)
    setup = BuildSetup((problem,), target, arch, (space,), data_dir("templates"), default_cache_dir())
    kernels: dict[Config, Kernel] = {}
    with WorkerPool(functools.partial(Builder, setup), jobs, COMPILE_TIMEOUT_S, name="compile") as pool:
        futures = {config: pool.submit("build", config) for config in dict.fromkeys(configs)}
        for config, future in futures.items():
            kernel = future.result().kernel
            if kernel is not None:
                kernels[config] = kernel
    return kernels


def measure(
    device: CudaDevice, best: Config, trials: Sequence[Trial], kernels: dict[Config, Kernel], case: ParityCase
) -> list[Finding]:
    """Times all trials once, and the best of each value in turns with the best config.

    Raises:
        UsageError: the best config does not compile or is wrong here.
    """
    options = plan_for(case.inputs.problem).stopwatch
    times = {config: _quick_us(device, kernel, case, options) for config, kernel in kernels.items()}
    if times.get(best) is None:
        raise UsageError(f"the config of the row does not run here: {best}")
    findings = []
    for knob, value in dict.fromkeys((trial.knob, trial.value) for trial in trials):
        mine = [trial.config for trial in trials if (trial.knob, trial.value) == (knob, value)]
        timed = {config: us for config in mine if (us := times.get(config)) is not None}
        if not timed:
            continue
        winner = min(timed, key=lambda config: timed[config])
        us, best_us = _duel_us(device, (kernels[winner], kernels[best]), case, options)
        findings.append(Finding(knob, value, us, best_us, _difference(winner, best, knob)))
    return findings


def _quick_us(device: CudaDevice, kernel: Kernel, case: ParityCase, options: StopwatchOptions) -> float | None:
    """A rough time; None for a kernel that is wrong or does not run."""
    try:
        with closing(device.load(kernel)) as loaded:
            if not run_gate(loaded, (case,)).passed:
                return None
            with closing(loaded.stopwatch(case.inputs, options)) as watch:
                return median(watch.sample_us() for _ in range(QUICK_SAMPLES))
    except CandidateError:
        return None


def _duel_us(
    device: CudaDevice, pair: tuple[Kernel, Kernel], case: ParityCase, options: StopwatchOptions
) -> tuple[float, float]:
    """Medians of two kernels, sampled in turns."""
    first, second = (device.load(kernel) for kernel in pair)
    with closing(first), closing(second):
        watches: list[Stopwatch] = [loaded.stopwatch(case.inputs, options) for loaded in (first, second)]
        with closing(watches[0]), closing(watches[1]):
            ours, theirs = sample_interleaved(watches, DUEL_SAMPLES, warmup=2)
    return median(ours), median(theirs)


def _difference(config: Config, best: Config, knob: str) -> str:
    return ", ".join(f"{name}={config[name]}" for name in config if name != knob and config[name] != best[name])


def table(findings: Sequence[Finding], best: Config, title: str) -> str:
    """Markdown: a row a value, its time as a ratio to the best config's."""
    lines = [f"{title}. Best: `{best}`", "", "| tunable | best | value | time with it / best | and with it changed |"]
    lines.append("|---|---|---|---|---|")
    for item in findings:
        ratio = item.us / item.best_us
        lines.append(f"| {item.knob} | {best[item.knob]} | {item.value} | {ratio:.3f} | {item.changed} |")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", default="leaderboard.db")
    parser.add_argument("--id", type=int, required=True, help="row of the best config")
    parser.add_argument("--near", type=int, default=12, help="configs for each value")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", help="file to write the table to")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
