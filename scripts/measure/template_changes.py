#!/usr/bin/env python3
"""Compares the kernels of two checkouts: registers, spills and instructions, and on a GPU their times.

    git worktree add build/before COMMIT
    python scripts/measure/template_changes.py build/before 1x8x512x64,2x12x384x64 --family mma --target h200
    python scripts/measure/template_changes.py build/before 1x8x512x64,gpt-oss-window --gpu --out template-changes.md

The named start configs of each family that are valid for a problem are built twice: from the templates and the search
space of the other checkout (*before*), where a tunable may be missing, and from those of this one. Starts whose
instructions are the same in both are left out, and those that ptxas serialises, which a search would end. Instructions
are those of the machine code, copies of unrolled loops included. With ``--gpu``, both kernels must pass the parity gate
on the problem and are timed in turns on the same inputs; *ratio* is the time after over the time before. Problems are
shapes, or names of models.toml.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Final

import common
import models

from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.device.cuda.device import CudaDevice
from evoengine.device.protocols import Stopwatch
from evoengine.errors import CompileError, EvoEngineError, SearchSpaceError
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.compile.disassembly import disassemble, machine_code
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import performance_loss
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, Problem, parse_problem
from evoengine.model.records import Value
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.cases import problem_case
from evoengine.space.loader import load_space
from evoengine.target import Target, get_target

SAMPLES: Final = 40
SEED: Final = 0
FAMILIES: Final = "mma,wgmma,hopper,scalar,wmma"


@dataclass(frozen=True)
class Pair:
    """Kernels of one config."""

    problem: Problem
    family: str
    start: str
    before: Kernel
    after: Kernel


def main() -> int:
    arguments = _arguments()
    device = CudaDevice() if arguments.gpu else None
    target = get_target(arguments.target) if device is None else device.target.compiled_for(device.info.arch)
    suite = {entry.name: entry.build() for entry in models.read_suite(models.SUITE)}
    problems = [suite.get(text) or parse_problem(text, causal=arguments.causal) for text in arguments.problems]
    lines, ratios = [], []
    for pair in pairs(arguments.before, problems, arguments.family, target, dict(arguments.set)):
        cells = [pair.problem.key, pair.family, pair.start, *_resources(pair)]
        if device is not None:
            before_us, after_us = duel_us(device, pair)
            ratios.append(after_us / before_us)
            cells += [f"{before_us:.2f} → {after_us:.2f}", f"{ratios[-1]:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], file=sys.stderr, flush=True)
    common.write_table(arguments.out, _table(lines, ratios, target if device is None else device.target))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("before", type=Path, help="Folder of the other checkout.")
    parser.add_argument("problems", type=common.comma_list, help="Comma-separated problems, such as 1x8x512x64.")
    parser.add_argument("--family", type=common.comma_list, default=FAMILIES.split(","), help="Families.")
    parser.add_argument("--causal", action="store_true", help="Causal mask, of problems that are given as a shape.")
    parser.add_argument("--set", type=_setting, nargs="*", default=(), help="Values for all starts, NAME=VALUE.")
    parser.add_argument("--target", default="l4", help="GPU that is compiled for, without --gpu.")
    parser.add_argument("--gpu", action="store_true", help="Time the kernels on this machine's GPU.")
    parser.add_argument("--out", type=Path, help="Markdown file to write.")
    return parser.parse_args()


def _setting(text: str) -> tuple[str, Value]:
    """Parses ``NAME=VALUE``, the value written as in a search space."""
    ((name, value),) = tomllib.loads(text).items()
    return name, value


def pairs(
    before: Path, problems: Sequence[Problem], families: Sequence[str], target: Target, values: Mapping[str, Value]
) -> Iterator[Pair]:
    """Builds the start configs, with the given values, that are valid in both checkouts, from each."""
    compiler = Compiler(usable_cache_dir())
    for problem in problems:
        for family in families:
            for name, config in _starts(common.ROOT, family, problem, target, values):
                try:
                    built = [_build(root, config, problem, target, compiler) for root in (before, common.ROOT)]
                except (CompileError, SearchSpaceError):  # not valid in the other checkout
                    continue
                first, second = built
                if performance_loss(first.binary) or performance_loss(second.binary):
                    continue
                if _instructions(first) != _instructions(second):
                    yield Pair(problem, family, name, first, second)


def _starts(
    root: Path, family: str, problem: Problem, target: Target, values: Mapping[str, Value]
) -> list[tuple[str, Config]]:
    """Start configs that are valid for a problem; none if the family does not support it."""
    space = load_space(root / "search_spaces" / f"{family}.toml")
    if TemplateLibrary(root / "templates").load(family).supports(problem, target.arch) is not None:
        return []
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    named = [(start.name, space.config({**first, **dict(start.values), **values})) for start in space.starts]
    return [(name, config) for name, config in named if not space.check(config.as_dict(), problem, target)]


def _build(root: Path, config: Config, problem: Problem, target: Target, compiler: Compiler) -> Kernel:
    space = load_space(root / "search_spaces" / f"{config.family}.toml")
    known = {tunable.name for tunable in space.tunables}
    config = space.config({name: value for name, value in config.as_dict().items() if name in known})
    source = TemplateLibrary(root / "templates").load(config.family).render(config, problem, space, target)
    return Kernel(source, compiler.compile(source, target.arch))


def _resources(pair: Pair) -> list[str]:
    found = [
        (
            kernel.binary.resources.registers,
            kernel.binary.resources.spill_bytes,
            len(_instructions(kernel)),
        )
        for kernel in (pair.before, pair.after)
    ]
    return [f"{before:,} → {after:,}" for before, after in zip(*found, strict=True)]


def _instructions(kernel: Kernel) -> tuple[str, ...]:
    return tuple(one.opcode for one in machine_code(disassemble(kernel.binary.cubin), ENTRY))


def duel_us(device: CudaDevice, pair: Pair) -> tuple[float, float]:
    """Medians of both kernels, sampled in turns on the same inputs.

    Raises:
        EvoEngineError: A kernel fails the parity gate on the problem.
    """
    case = problem_case(pair.problem, SEED)
    first, second = device.load(pair.before), device.load(pair.after)
    with closing(first), closing(second):
        for loaded in (first, second):
            verdict = run_gate(loaded, (case,))
            if not verdict.passed:
                raise EvoEngineError(f"{pair.problem.key}, {pair.family} {pair.start}: {verdict.reason}")
        options = plan_for(pair.problem).stopwatch
        watches: list[Stopwatch] = [loaded.stopwatch(case.inputs, options) for loaded in (first, second)]
        with closing(watches[0]), closing(watches[1]):
            before_us, after_us = sample_interleaved(watches, SAMPLES, warmup=2)
    return median(before_us), median(after_us)


def _table(lines: Sequence[str], ratios: Sequence[float], target: Target) -> str:
    head = ["problem", "family", "start", "registers", "bytes spilled", "instructions"]
    head += ["µs", "ratio"] if ratios else []
    text = [f"{target.marketing_name}; before → after", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]
    return "\n".join([*text, *([f"\nGeometric mean of the ratios: {geometric_mean(ratios):.3f}"] if ratios else [])])


if __name__ == "__main__":
    common.run(main)
