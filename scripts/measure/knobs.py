#!/usr/bin/env python3
"""Measures what each value of each tunable gains or costs.

    python scripts/measure/knobs.py gpu --db leaderboard.db --id 17 --out docs/results/knobs-mission-h200.md
    python scripts/measure/knobs.py landscape docs/results/landscapes/long-causal-h200.landscape.xz --out knobs.md

``gpu`` measures the neighbourhood of one config. For every other value of every tunable, the nearest valid config and
some mutants of it are compiled, checked by the parity gate and timed; the best of them is then timed interleaved with
the original config. Values without a valid config are left out. All ratios are from one run.

``landscape`` needs no GPU: for every value, it prints the number of recorded correct configs and the fastest of them
relative to the fastest of all. A value with few recorded configs may look worse than it is.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import common
import numpy as np

from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.device.cuda.device import CudaDevice
from evoengine.device.protocols import Stopwatch, StopwatchOptions
from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import CandidateError, SearchSpaceError, UsageError
from evoengine.kernel.records import Kernel
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import RecordedFamily, median_us
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Problem, Value
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.search.candidate.build import Builder
from evoengine.space.loader import find_space

SCREENING_SAMPLES: Final = 5
DUEL_SAMPLES: Final = 40
COMPILE_TIMEOUT_S: Final = 120.0
MUTATION_RATE: Final = 0.08
"""Probability that a tunable changes in a mutant; two or three of them do."""


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A config with one value of one tunable changed; others may differ too."""

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
    """Median of the best config in the same duel."""
    changed: str
    """The other differences from the best config."""


def measure_on_gpu(arguments: argparse.Namespace) -> str:
    """Markdown table of the neighbourhood of a leaderboard row."""
    with closing(Leaderboard(database_url(arguments.db))) as board:
        record = board.get(arguments.id)
    best, problem = record.evaluation.config, record.study.key.problem
    device = CudaDevice()
    variants = list(draw(best, problem, device, arguments.near, arguments.seed))
    kernels = _compile([best, *(variant.config for variant in variants)], problem, device, arguments.jobs)
    findings = measure(device, best, variants, kernels, problem_case(problem, arguments.seed))
    return gpu_table(findings, best, f"{problem.key} on {device.info.name}, driver {device.info.driver}")


def draw(best: Config, problem: Problem, device: CudaDevice, near: int, seed: int) -> Iterator[Variant]:
    """Yields the configs nearest to `best`, up to `near` for every other value of every tunable."""
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
                yield Variant(tunable.name, value, config)


def _compile(configs: Sequence[Config], problem: Problem, device: CudaDevice, jobs: int) -> dict[Config, Kernel]:
    """Compiles in worker processes; configs that do not compile are missing from the result."""
    target = device.target.compiled_for(device.info.arch)
    setup = common.builder_setup(problem, target, [find_space(configs[0].family)])
    kernels: dict[Config, Kernel] = {}
    with WorkerPool(functools.partial(Builder, setup), jobs, COMPILE_TIMEOUT_S, name="compile") as pool:
        futures = {config: pool.submit("build", config) for config in dict.fromkeys(configs)}
        for config, future in futures.items():
            kernel = future.result().kernel
            if kernel is not None:
                kernels[config] = kernel
    return kernels


def measure(
    device: CudaDevice, best: Config, variants: Sequence[Variant], kernels: dict[Config, Kernel], case: ParityCase
) -> list[Finding]:
    """Times all variants once, and the best of each value interleaved with the best config.

    Raises:
        UsageError: The best config does not compile or fails the parity gate on this GPU.
    """
    options = plan_for(case.inputs.problem).stopwatch
    times = {config: _screening_us(device, kernel, case, options) for config, kernel in kernels.items()}
    if times.get(best) is None:
        raise UsageError(f"the config of the row does not run on this GPU: {best}")
    findings = []
    for knob, value in dict.fromkeys((variant.knob, variant.value) for variant in variants):
        same = [variant.config for variant in variants if (variant.knob, variant.value) == (knob, value)]
        timed = {config: us for config in same if (us := times.get(config)) is not None}
        if not timed:
            continue
        winner = min(timed, key=lambda config: timed[config])
        us, best_us = _duel_us(device, (kernels[winner], kernels[best]), case, options)
        findings.append(Finding(knob, value, us, best_us, _difference(winner, best, knob)))
    return findings


def _screening_us(device: CudaDevice, kernel: Kernel, case: ParityCase, options: StopwatchOptions) -> float | None:
    """Median of a few samples; None for a kernel that fails the parity gate or does not run."""
    try:
        with closing(device.load(kernel)) as loaded:
            if not run_gate(loaded, (case,)).passed:
                return None
            with closing(loaded.stopwatch(case.inputs, options)) as watch:
                return median(watch.sample_us() for _ in range(SCREENING_SAMPLES))
    except CandidateError:
        return None


def _duel_us(
    device: CudaDevice, pair: tuple[Kernel, Kernel], case: ParityCase, options: StopwatchOptions
) -> tuple[float, float]:
    """Medians of two kernels, sampled interleaved."""
    first, second = (device.load(kernel) for kernel in pair)
    with closing(first), closing(second):
        watches: list[Stopwatch] = [loaded.stopwatch(case.inputs, options) for loaded in (first, second)]
        with closing(watches[0]), closing(watches[1]):
            ours, theirs = sample_interleaved(watches, DUEL_SAMPLES, warmup=2)
    return median(ours), median(theirs)


def _difference(config: Config, best: Config, knob: str) -> str:
    return ", ".join(f"{name}={config[name]}" for name in config if name != knob and config[name] != best[name])


def gpu_table(findings: Sequence[Finding], best: Config, title: str) -> str:
    """Markdown: one row per value, its time relative to the best config."""
    lines = [f"{title}. Best: `{best}`", "", "| tunable | best | value | time with it / best | and with it changed |"]
    lines.append("|---|---|---|---|---|")
    for item in findings:
        ratio = item.us / item.best_us
        lines.append(f"| {item.knob} | {best[item.knob]} | {item.value} | {ratio:.3f} | {item.changed} |")
    return "\n".join(lines)


# --- from a recorded landscape ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One value of one tunable in a landscape."""

    knob: str
    value: Value
    configs: int
    """Correct configs with this value."""
    best_us: float
    """Fastest time among these configs."""


def read_from_landscape(arguments: argparse.Namespace) -> str:
    """Markdown tables of the families of a landscape."""
    landscape = read_landscape(arguments.landscape)
    problem = landscape.problem.key if landscape.problem else "a foreign problem"
    return "\n\n".join(
        table(lines, f"{problem} on {landscape.device.name}, family {family.name}, {len(family.evaluations)} configs")
        for family in landscape.families
        if (lines := lines_of(family))
    )


def lines_of(family: RecordedFamily) -> list[Line]:
    """One line per value that a correct config has; tunables with a single such value are left out."""
    correct = [(evaluation.config, median_us(evaluation)) for evaluation in family.evaluations if evaluation.ok]
    lines = []
    for tunable in family.space.tunables:
        times = {value: [us for config, us in correct if config[tunable.name] == value] for value in tunable.values}
        found = [Line(tunable.name, value, len(us), min(us)) for value, us in times.items() if us]
        lines += found if len(found) > 1 else []
    return lines


def table(lines: Sequence[Line], title: str) -> str:
    """Markdown: one row per value, its best time relative to the best of all."""
    best_us = min(line.best_us for line in lines)
    head = [title, "", "| tunable | value | configs | best with it, µs | / best of all |", "|---|---|--:|--:|--:|"]
    rows = (
        f"| {line.knob} | {line.value} | {line.configs} | {line.best_us:.2f} | {line.best_us / best_us:.3f} |"
        for line in lines
    )
    return "\n".join([*head, *rows])


def main() -> int:
    arguments = _arguments()
    common.write_table(arguments.out, arguments.make(arguments))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    modes = parser.add_subparsers(required=True)
    gpu = modes.add_parser("gpu", help="Measure the neighbourhood of a leaderboard row.")
    gpu.add_argument("--db", default="leaderboard.db", help="Leaderboard file or URL.")
    gpu.add_argument("--id", type=int, required=True, help="Row of the best config.")
    gpu.add_argument("--near", type=int, default=12, help="Configs per value.")
    gpu.add_argument("--seed", type=int, default=0, help="Random seed.")
    gpu.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="Compile workers.")
    gpu.set_defaults(make=measure_on_gpu)
    landscape = modes.add_parser("landscape", help="Summarise a recorded landscape.")
    landscape.add_argument("landscape", type=Path, help="Landscape file.")
    landscape.set_defaults(make=read_from_landscape)
    for mode in (gpu, landscape):
        mode.add_argument("--out", type=Path, help="File to write the table to.")
    return parser.parse_args()


if __name__ == "__main__":
    common.run(main)
