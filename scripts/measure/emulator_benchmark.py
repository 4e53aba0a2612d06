#!/usr/bin/env python3
"""Measures what a candidate of a search without a GPU costs: CPU seconds by family, stage and parity case.

    .venv/bin/python scripts/measure/emulator_benchmark.py
    .venv/bin/python scripts/measure/emulator_benchmark.py --problem 1x8x512x64 --family mma,wmma --count 20 --counters
    .venv/bin/python scripts/measure/emulator_benchmark.py --prediction --counters

The configs that a search of each family starts with, and random valid ones, are compiled, pass the parity gate on the
emulator and are predicted, as in a search; with --prediction they are only predicted. Seconds are CPU seconds of this
process, so that a busy machine changes them little; each figure is the mean over a family's candidates. Translation of
PTX into Python counts where it happens: in the first case that needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as device workers run: a core each

import numpy as np

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.representative import on_tensor_cores
from evoengine.engine.families import AUTO, choose_families, wanted_spaces
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.records import Kernel
from evoengine.model import parse_problem
from evoengine.parity.compare import judge
from evoengine.parity.gate import REPEATED
from evoengine.search.candidate.build import Builder, BuildSetup
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.setup import ProblemSetup, prepare
from evoengine.space.data_dirs import data_dir
from evoengine.target import get_target

COMPILE, LOAD, AGAIN, JUDGE, PREDICT = "compile", "load", "repeat", "judge", "predict"
Seconds = dict[str, float]


def main() -> int:
    arguments = _arguments()
    keep_freed_memory()  # so do device workers
    problem, target = parse_problem(arguments.problem), get_target(arguments.target)
    (setup,) = prepare(problem, DeviceSpec("emulator", arguments.target), inputs_seed=arguments.seed).parts
    device = EmulatorDevice(target, counters=arguments.counters)
    families = choose_families(wanted_spaces(arguments.family, None), problem, target).taken
    spaces = tuple(family.space for family in families)
    builder = Builder(BuildSetup((problem,), target, target.arch, spaces, data_dir("templates"), None))
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
            if compilation.kernel is not None:  # it compiles, and fits the GPU
                examine(device, setup, compilation.kernel, spent)
                costs.append(spent)
        rows.append((family.name, costs))
    _print(arguments.problem, rows)
    return 0


def _examine(device: EmulatorDevice, setup: ProblemSetup, kernel: Kernel, spent: Seconds) -> None:
    """What an examiner does with a candidate that does not become champion."""
    draw = setup.pool.draw(kernel.source.source_hash, slow=not on_tensor_cores(kernel.binary.ptx))
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
    """What a prediction alone costs: the representative CTAs run, and are counted."""
    with _stage(spent, LOAD):
        loaded = device.load(kernel)
    with closing(loaded), _stage(spent, PREDICT):
        loaded.predict(setup.problem)


@contextmanager
def _stage(spent: Seconds, name: str) -> Iterator[None]:
    """Adds the CPU seconds of what it holds to a stage."""
    start = time.process_time()
    try:
        yield
    finally:
        spent[name] = spent.get(name, 0.0) + time.process_time() - start


def _print(problem: str, rows: list[tuple[str, list[Seconds]]]) -> None:
    stages = list(dict.fromkeys(stage for _, costs in rows for spent in costs for stage in spent))
    emulated = "emulated, all"
    print(f"CPU seconds a candidate, {problem}\n")
    print(f"| family | candidates | {' | '.join(stages)} | {emulated} |")
    print("|---|" + "--:|" * (len(stages) + 2))
    for name, costs in rows:
        means = {stage: sum(spent.get(stage, 0.0) for spent in costs) / max(1, len(costs)) for stage in stages}
        total = sum(means.values()) - means.get(COMPILE, 0.0)
        cells = " | ".join(f"{means[stage]:.3f}" for stage in stages)
        print(f"| {name} | {len(costs)} | {cells} | {total:.3f} |")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="1x8x512x64", help="as BxHxSxD")
    parser.add_argument("--family", default=AUTO, help="one, several with commas between, or auto")
    parser.add_argument("--target", default="l4", help="the GPU to predict for")
    parser.add_argument("--count", type=int, default=10, help="random candidates of each family")
    parser.add_argument("--seed", type=int, default=0, help="of the configs and the inputs")
    parser.add_argument("--counters", action="store_true", help="also count what every instruction does")
    parser.add_argument("--prediction", action="store_true", help="predict only, without the parity gate")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
