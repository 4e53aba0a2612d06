#!/usr/bin/env python3
"""Measures the cost of a candidate in a search without a GPU: CPU seconds by family, stage and parity case.

    python scripts/measure/emulator_benchmark.py
    python scripts/measure/emulator_benchmark.py --problem 1x8x512x64 --family mma,wmma --count 20 --counters
    python scripts/measure/emulator_benchmark.py --prediction --counters

The start configs of each family and random valid ones are compiled, run through the parity gate on the emulator and
predicted, as in a search; with --prediction they are only predicted. Times are CPU seconds of this process, averaged
over a family's candidates. Translation of PTX into Python counts in the first parity case that needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in device workers: one core each

import common
import numpy as np

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.representative import is_fast_on_emulator
from evoengine.engine.families import AUTO, choose_families, wanted_spaces
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.records import Kernel
from evoengine.model import parse_problem
from evoengine.parity.compare import judge
from evoengine.parity.gate import REPEATED
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.setup import ProblemSetup, SetupRequest, prepare
from evoengine.space.data_dirs import data_dirs
from evoengine.target import get_target

COMPILE, LOAD, AGAIN, JUDGE, PREDICT = "compile", "load", "repeat", "judge", "predict"
Seconds = dict[str, float]


def main() -> int:
    arguments = _arguments()
    keep_freed_memory()  # as in device workers
    problem, target = parse_problem(arguments.problem), get_target(arguments.target)
    (setup,) = prepare(
        SetupRequest(problem, DeviceSpec("emulator", arguments.target), inputs_seed=arguments.seed)
    ).parts
    device = EmulatorDevice(target, counters=arguments.counters)
    families = choose_families(wanted_spaces(arguments.family, None), problem, target).taken
    spaces = tuple(family.space for family in families)
    builder = Builder(BuildSetup((problem,), target, target.arch, spaces, data_dirs("templates"), None))
    examine = _predict if arguments.prediction else _examine
    rows = []
    for family in families:
        rng = np.random.default_rng(arguments.seed)
        drawn = [*family.valid.starts(), *(family.valid.sample(rng) for _ in range(arguments.count))]
        costs: list[Seconds] = []
        for config in drawn:
            spent: Seconds = {}
            with _stage(spent, COMPILE):
                compilation = builder.build(config)
            if compilation.kernel is not None:  # it compiles and passes the resource gate
                examine(device, setup, compilation.kernel, spent)
                costs.append(spent)
        rows.append((family.name, costs))
    _print(arguments.problem, rows)
    return 0


def _examine(device: EmulatorDevice, setup: ProblemSetup, kernel: Kernel, spent: Seconds) -> None:
    """The examination of a candidate that does not become the champion."""
    draw = setup.pool.draw(kernel.source.source_hash, slow=not is_fast_on_emulator(kernel.binary.ptx))
    with _stage(spent, LOAD):
        loaded = device.load(kernel)
    with closing(loaded):
        for number, case in enumerate(draw.gate):
            with _stage(spent, case.name.partition("/")[0].removesuffix("-slice")):
                output = loaded.attention(case.inputs)
            with _stage(spent, JUDGE):
                result = judge(case, output)
            if result.reason:
                sys.exit(f"{kernel.config.key}: {case.name}: {result.reason}")
            if number == REPEATED:
                with _stage(spent, AGAIN):
                    loaded.attention(case.inputs)
        with _stage(spent, PREDICT):
            loaded.predict(setup.problem)


def _predict(device: EmulatorDevice, setup: ProblemSetup, kernel: Kernel, spent: Seconds) -> None:
    """A prediction alone: runs and counts the representative CTAs."""
    with _stage(spent, LOAD):
        loaded = device.load(kernel)
    with closing(loaded), _stage(spent, PREDICT):
        loaded.predict(setup.problem)


@contextmanager
def _stage(spent: Seconds, name: str) -> Iterator[None]:
    """Adds the CPU seconds of the ``with`` block to a stage."""
    start = time.process_time()
    try:
        yield
    finally:
        spent[name] = spent.get(name, 0.0) + time.process_time() - start


def _print(problem: str, rows: list[tuple[str, list[Seconds]]]) -> None:
    stages = list(dict.fromkeys(stage for _, costs in rows for spent in costs for stage in spent))
    emulated = "emulated, all"
    print(f"CPU seconds per candidate, {problem}\n")
    print(f"| family | candidates | {' | '.join(stages)} | {emulated} |")
    print("|---|" + "--:|" * (len(stages) + 2))
    for name, costs in rows:
        means = {stage: sum(spent.get(stage, 0.0) for spent in costs) / max(1, len(costs)) for stage in stages}
        total = sum(means.values()) - means.get(COMPILE, 0.0)
        cells = " | ".join(f"{means[stage]:.3f}" for stage in stages)
        print(f"| {name} | {len(costs)} | {cells} | {total:.3f} |")


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--problem", default="1x8x512x64", help="Name or shape BxHxSxD.")
    parser.add_argument("--family", default=AUTO, help="Comma-separated families, or 'auto'.")
    parser.add_argument("--target", default="l4", help="GPU to predict for.")
    parser.add_argument("--count", type=int, default=10, help="Random candidates per family.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the configs and the inputs.")
    parser.add_argument("--counters", action="store_true", help="Count the work of every instruction.")
    parser.add_argument("--prediction", action="store_true", help="Predict only, without the parity gate.")
    return parser.parse_args()


if __name__ == "__main__":
    common.run(main)
