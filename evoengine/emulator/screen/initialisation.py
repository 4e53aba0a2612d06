"""Reads of undefined registers: no path to the read writes the register, or a load leaves bytes of it undefined.

Such a register holds what an earlier kernel left in the register file. A register that is written on some paths only is
not reported: code that loads and uses a value under the same condition is correct.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from evoengine.emulator.ptx.control_flow import build, successors
from evoengine.emulator.ptx.declarations import parse_int
from evoengine.emulator.ptx.records import Entry, Instruction, Reg, Vec
from evoengine.emulator.screen.provenance import read_registers, written

_MASK: Final = re.compile(r'\s*\.pragma\s+"used_bytes_mask (\w+)"')


def uninitialised_reads(entry: Entry) -> list[Instruction]:
    """Returns the instructions that read a register which no instruction on any path before them writes."""
    blocks = build(entry).blocks
    if not blocks:
        return []
    writes = [_written(entry.instructions[block.start : block.end]) for block in blocks]
    known: dict[int, int] = {0: 0}
    pending = [0]
    while pending:
        number = pending.pop()
        after = known[number] | writes[number]
        for follower in successors(entry, blocks, blocks[number]):
            joined = known.get(follower, 0) | after
            if known.get(follower) != joined:
                known[follower] = joined
                pending.append(follower)
    wrong = []
    for number, before in sorted(known.items()):
        assigned = before
        for ins in entry.instructions[blocks[number].start : blocks[number].end]:
            missing = [index for index in read_registers(ins) if not assigned >> index & 1]
            if missing and not _is_padding(ins, missing, entry):
                wrong.append(ins)
            assigned |= _written((ins,))
    return wrong


def partial_loads(entry: Entry) -> list[Instruction]:
    """Returns the loads with bytes that ``.pragma "used_bytes_mask"`` exempts from loading, but that are used.

    NVRTC marks vector loads with elements that it does not use.
    """
    marks = [
        (number, match.group(1)) for number, text in enumerate(entry.text_lines, 1) if (match := _MASK.match(text))
    ]
    if not marks:
        return []
    read = frozenset[int]().union(*map(read_registers, entry.instructions))
    numbers, wrong = [number for number, _ in marks], []
    first = max(
        number for number, text in enumerate(entry.text_lines[: entry.instructions[0].line]) if ".entry" in text
    )
    lines = [first, *(ins.line for ins in entry.instructions)]
    for ins, (after, line) in zip(entry.instructions, pairwise(lines), strict=True):
        for _, mask in marks[bisect(numbers, after) : bisect(numbers, line)]:
            if ins.name != "ld" or any(register in read for register in _unloaded(ins, parse_int(mask))):
                wrong.append(ins)
    return wrong


def _unloaded(ins: Instruction, mask: int) -> Iterator[int]:
    """Yields the registers of a load that have bytes outside the mask."""
    size = int(ins.parts[-1].lstrip("bsuf")) // 8
    target = ins.operands[0]
    for number, item in enumerate(target.items if isinstance(target, Vec) else (target,)):
        if isinstance(item, Reg) and ~(mask >> number * size) & (1 << size) - 1:
            yield item.index


def _written(run: tuple[Instruction, ...]) -> int:
    """Registers that instructions write, as a bit set."""
    bits = 0
    for ins in run:
        for register in written(ins):
            bits |= 1 << register.index
    return bits


def _is_padding(ins: Instruction, missing: list[int], entry: Entry) -> bool:
    """Whether a register without a value is the upper half of a pair, and only the lower half is read.

    NVRTC widens a 32-bit value in this way: ``mov.b64 %rd, {%low, %undefined}``, then ``cvt.u32.u64``.
    """
    if ins.opcode != "mov.b64" or not isinstance(ins.operands[1], Vec):
        return False
    target, (low, *upper) = ins.operands[0], ins.operands[1].items
    if not isinstance(target, Reg) or (isinstance(low, Reg) and low.index in missing) or len(upper) != 1:
        return False
    readers = [other for other in entry.instructions if target.index in read_registers(other)]
    return all(other.opcode == "cvt.u32.u64" for other in readers)
