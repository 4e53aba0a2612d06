#!/usr/bin/env python3
"""Finds instructions of whole warps that the lanes of a warp may reach apart, in machine code. Needs nvdisasm, no GPU.

    python scripts/measure/lane_branches.py gpt-oss-window,4x12x1024x64 --family hopper --target h200 --count 20

After a branch by lane, such as ``if (lane == 0)``, ptxas must bring the warp together before shuffles, votes,
barriers, matrix loads, stores and products. It once did not (docs/results/parted-lanes-h200.md), and the emulator,
which runs PTX, cannot show that. The named starts of a family and random valid configs are compiled; each such
instruction that a path reaches from a branch by lane without a ``BSYNC`` of a ``BSSY`` before that branch, or a
``WARPSYNC``, is printed. Branches by lane are those whose predicate compares the lane, or the thread in its
warpgroup, as the text defines it last. The exit code is 1 if anything was found. Problems are shapes, or names of
models.toml.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import common
import models
import numpy as np

from evoengine.device.tools.programs import find_program
from evoengine.errors import CompileError, MissingDependencyError
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import Config, Problem, parse_problem
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.system.temporary import TemporaryFolder
from evoengine.target import Target, get_target

_FUNCTION: Final = re.compile(r"^\.text\.(\w+):")
_LABEL: Final = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION: Final = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+) )?([\w.]+)\s*(.*?) ;")
_TARGET: Final = re.compile(r"`\((\.L_x_\d+)\)")
_OF_WHOLE_WARPS: Final = ("SHFL", "VOTE", "REDUX", "BAR", "LDSM", "STSM", "HMMA", "HGMMA", "IMMA", "USETMAXREG")
_LANE_MASKS: Final = ("0x1f", "0x7f")
"""Masks that leave the lane, or the thread in its warpgroup, of a thread number."""


@dataclass(frozen=True)
class Instruction:
    """One line of nvdisasm's listing."""

    predicate: str
    """Name of the predicate, perhaps with ``!``; empty if there is none."""
    opcode: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'@' * bool(self.predicate)}{self.predicate} {self.opcode} {', '.join(self.operands)}".strip()


@dataclass
class Code:
    """Instructions of one entry, and the places of its labels."""

    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Region:
    """Code between a ``BSSY`` and its ``BSYNC``, or the whole entry."""

    barrier: str
    parted_by: int | None = None
    """Branch inside it after which lanes may be apart."""


def main() -> int:
    arguments = _arguments()
    nvdisasm = find_program("nvdisasm", os.environ)
    if nvdisasm is None:
        raise MissingDependencyError("nvdisasm is not installed: it comes with the CUDA toolkit")
    suite = {entry.name: entry.build() for entry in models.read_suite(models.SUITE)}
    target, space = get_target(arguments.target), find_space(arguments.family)
    template, compiler = TemplateLibrary(data_dir("templates")).load(arguments.family), Compiler(usable_cache_dir())
    followed = found = 0
    for text in arguments.problems:
        problem = suite.get(text) or parse_problem(text)
        if template.supports(problem, target.arch) is not None:
            continue
        for config in configs_of(space, problem, target, arguments.count, arguments.seed):
            try:
                binary = compiler.compile(template.render(config, problem, space, target), target.arch)
            except CompileError:
                continue
            reports = [report for code in disassemble(nvdisasm, binary.cubin) for report in apart(code)]
            followed, found = followed + 1, found + bool(reports)
            for report in reports:
                print(f"{problem.key} {config}: {report}", flush=True)
    print(
        f"{arguments.family}, {target.name}: {followed} configs, {found} with instructions that lanes may reach apart"
    )
    return int(found > 0)


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("problems", type=common.comma_list, help="Comma-separated problems.")
    parser.add_argument("--family", default="hopper", help="Template family.")
    parser.add_argument("--target", default="h200", help="GPU to compile for.")
    parser.add_argument("--count", type=int, default=10, help="Random configs for each problem, besides the starts.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    return parser.parse_args()


def configs_of(space: SearchSpace, problem: Problem, target: Target, count: int, seed: int) -> Iterator[Config]:
    """Yields the valid starts of a family, then random valid configs."""
    first = {tunable.name: tunable.values[0] for tunable in space.tunables}
    for start in space.starts:
        config = space.config({**first, **dict(start.values)})
        if not space.check(config.as_dict(), problem, target):
            yield config
    valid, rng = space.build(problem, target), np.random.default_rng(seed)
    for _ in range(count):
        yield valid.sample(rng)


def disassemble(nvdisasm: Path, cubin: bytes) -> Sequence[Code]:
    """Runs nvdisasm on machine code."""
    with TemporaryFolder() as folder:
        file = folder / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([str(nvdisasm), "-c", str(file)], capture_output=True, text=True, check=True)
    return read_listing(done.stdout)


def read_listing(text: str) -> Sequence[Code]:
    """Reads the entries of nvdisasm's listing."""
    codes: list[Code] = []
    for line in text.splitlines():
        if _FUNCTION.match(line):
            codes.append(Code())
        elif codes and (label := _LABEL.match(line)):
            codes[-1].labels[label[1]] = len(codes[-1].instructions)
        elif codes and (found := _INSTRUCTION.match(line)):
            operands = tuple(part.strip().removesuffix(".reuse") for part in found[3].split(",") if part.strip())
            codes[-1].instructions.append(Instruction(found[1] or "", found[2], operands))
    return codes


def branches_by_lane(code: Code) -> frozenset[int]:
    """Returns the branches whose predicate compares the lane or the thread in its warpgroup."""
    threads: set[str] = set()
    lanes: set[str] = set()
    found = []
    for place, one in enumerate(code.instructions):
        if one.opcode == "BRA" and one.predicate.removeprefix("!") in lanes:
            found.append(place)
        if not one.operands:
            continue
        target, rest = one.operands[0], one.operands[1:]
        masked = one.opcode == "LOP3.LUT" and any(part in threads for part in rest) and bool({*rest} & {*_LANE_MASKS})
        compared = one.opcode.startswith(("ISETP.NE", "ISETP.EQ")) and any(part in lanes for part in rest)
        kept = one.opcode == "S2R" and rest[:1] == ("SR_TID.X",)
        for names, holds in ((threads, kept), (lanes, masked or compared or rest[:1] == ("SR_LANEID",))):
            (names.add if holds else names.discard)(target)
    return frozenset(found)


def apart(code: Code) -> Sequence[str]:
    """Describes each instruction of whole warps that some path reaches after a branch by lane."""
    by_lane, found = branches_by_lane(code), dict[int, int]()
    pending: list[tuple[int, tuple[Region, ...]]] = [(0, (Region(""),))]
    seen: set[tuple[int, tuple[Region, ...]]] = set()
    while pending:
        place, regions = pending.pop()
        if place >= len(code.instructions) or (place, regions) in seen:
            continue
        seen.add((place, regions))
        one = code.instructions[place]
        parted = [region.parted_by for region in regions if region.parted_by is not None]
        if parted and one.opcode.split(".")[0] in _OF_WHOLE_WARPS:
            found.setdefault(place, parted[-1])
        pending += _following(code.labels, place, one, _regions_after(one, regions), place in by_lane)
    return [f"{code.instructions[place]} after {code.instructions[found[place]]}" for place in sorted(found)]


def _regions_after(one: Instruction, regions: tuple[Region, ...]) -> tuple[Region, ...]:
    if one.opcode == "BSSY":
        return (*regions, Region(one.operands[0]))
    if one.opcode == "BSYNC":
        places = [place for place, region in enumerate(regions) if region.barrier == one.operands[0]]
        return regions[: places[-1]] if places else regions
    if one.opcode.startswith("WARPSYNC"):
        return tuple(Region(region.barrier) for region in regions)
    return regions


def _following(
    labels: Mapping[str, int], place: int, one: Instruction, regions: tuple[Region, ...], by_lane: bool
) -> Iterator[tuple[int, tuple[Region, ...]]]:
    """Yields the places after an instruction; after a branch by lane, lanes are apart in the innermost region."""
    if one.opcode == "EXIT" and not one.predicate:
        return
    label = _TARGET.search(one.operands[-1]) if one.opcode.startswith("BRA") and one.operands else None
    if by_lane:
        regions = (*regions[:-1], Region(regions[-1].barrier, place))
    if label is not None and label[1] in labels:
        yield labels[label[1]], regions
    if label is None or one.predicate or one.opcode != "BRA":
        yield place + 1, regions


if __name__ == "__main__":
    common.run(main)
