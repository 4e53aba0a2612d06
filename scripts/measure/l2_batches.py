#!/usr/bin/env python3
"""Times kernels of a landscape on growing batches: how much of L2 holds the keys from one call to the next (GPU).

    python scripts/measure/l2_batches.py 6x20x64x64kv1500-again-h200.landscape.xz --out docs/results/l2-batches-h200

A batch adds bytes, and no time while its CTAs run beside the others and L2 holds all bytes. The kernels are the fastest
of each family without splits: with one copy of K and of V under way, which shows how long a copy takes, and with
several. They are timed as in ``compare``; the page has the forecast beside each time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import common

from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.device.cuda.device import CudaDevice
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape, median_us
from evoengine.model import Config, Problem
from evoengine.parity.inputs.cases import problem_case
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import Target

SAMPLES: Final = 20
MIB: Final = 2**20
FEW: Final = 3
"""Stages from which a ring counts as hiding its copies."""
KINDS: Final = {"one copy": lambda stages: stages == 1, "a ring": lambda stages: stages >= FEW}


@dataclass(frozen=True)
class Timed:
    """A kernel on one batch."""

    problem: str
    """Key of the problem with a batch of 1."""
    copies: str
    config: Config
    batch: int
    min_bytes: int
    """Bytes that a call reads or writes at least once."""
    measured_us: float
    forecast_us: float

    @property
    def name(self) -> str:
        return f"{self.config.family}, {self.copies}"

    def document(self) -> dict[str, Any]:
        """The row for JSON."""
        return vars(self) | {"config": {"family": self.config.family} | self.config.as_dict()}


def main() -> int:
    arguments = _arguments()
    device, compiler = CudaDevice(), Compiler(usable_cache_dir())
    rows: list[Timed] = []
    for path in arguments.landscapes:
        landscape = read_landscape(path)
        problem, target = common.measured_on(landscape)
        for kind, config in chosen(landscape):
            for batch in map(int, arguments.batches):
                part = replace(problem, batch=batch)
                kernel = _built(config, part, target, compiler)
                forecast = AnalyticForecast(find_space(config.family), part, target)
                forecast_us = float(forecast.us_of([config], [kernel.binary.resources])[0])
                measured_us = timed_us(device, kernel, part)
                rows.append(
                    Timed(replace(problem, batch=1).key, kind, config, batch, part.min_bytes, measured_us, forecast_us)
                )
            print(f"{path.name}: {config.family}, {kind}", flush=True)
    document = {"device": device.info.name, "rows": [row.document() for row in rows]}
    common.write_results(arguments.out, document, page(rows, device.info.name))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    common.add_landscapes(parser)
    parser.add_argument("--batches", type=common.comma_list, default=["1", "2", "3", "4", "5", "6"], help="Batches.")
    arguments: argparse.Namespace = parser.parse_args()
    return arguments


def chosen(landscape: Landscape) -> Iterator[tuple[str, Config]]:
    """Finds the fastest config of each family without splits, with one copy under way and with several."""
    correct = sorted((one for one in landscape.evaluations if one.ok), key=median_us)
    for family in sorted({one.config.family for one in correct}):
        for kind, is_wanted in KINDS.items():
            for one in correct:
                values = one.config.as_dict()
                stages = {values[name] for name in ("STAGES", "STAGES_K", "STAGES_V") if name in values}
                whole = values.get("SPLITS", 1) == values.get("SPLIT_WAVES", 0) + 1 == values.get("SPLIT_TILES", 1)
                if one.config.family == family and whole and all(map(is_wanted, stages)):
                    yield kind, one.config
                    break


def _built(config: Config, problem: Problem, target: Target, compiler: Compiler) -> Kernel:
    space = find_space(config.family)
    source = TemplateLibrary(data_dir("templates")).load(config.family).render(config, problem, space, target)
    return Kernel(source, compiler.compile(source, target.arch))


def timed_us(device: CudaDevice, kernel: Kernel, problem: Problem) -> float:
    """Median time of a call on warm caches."""
    case, loaded = problem_case(problem, 0), device.load(kernel)
    with closing(loaded), closing(loaded.stopwatch(case.inputs, plan_for(problem).stopwatch)) as watch:
        return median(sample_interleaved([watch], SAMPLES, warmup=2)[0])


def page(rows: Sequence[Timed], device: str) -> str:
    """The report as Markdown: a line for each kernel, a column for each batch."""
    lines = [f"# Kernels on growing batches, {device}", "", "Measured, and the forecast in brackets, in µs.", ""]
    for problem in dict.fromkeys(row.problem for row in rows):
        own = [row for row in rows if row.problem == problem]
        sizes = dict.fromkeys(f"{row.min_bytes / MIB:.0f} MiB" for row in own)
        lines += [f"Batches of {problem}:", "", f"| kernel | {' | '.join(sizes)} |", f"|:--|{'--:|' * len(sizes)}"]
        for name in dict.fromkeys(row.name for row in own):
            times = [f"{row.measured_us:.2f} ({row.forecast_us:.2f})" for row in own if row.name == name]
            lines.append(f"| {name} | {' | '.join(times)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    common.run(main)
