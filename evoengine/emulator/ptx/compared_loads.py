"""Plain loads whose value a compare-and-swap of the same address compares.

Loops that build an atomic from a compare-and-swap begin with a plain load, such as ``atomicAdd`` of doubles in the CUDA
C++ Programming Guide, "Atomic Functions". By the PTX ISA this load races with the atomics of other threads; what it
reads is only a guess, which the compare-and-swap rejects if it is out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from evoengine.emulator.ptx.records import Instruction, Mem, Reg

_NOT_PLAIN: Final = frozenset(("volatile", "relaxed", "acquire", "mmio", "nc", "param", "const", "local"))


def with_volatile_guesses(instructions: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """Makes these loads volatile: they need no order with atomics, as those that are written so."""
    copies: dict[int, set[int]] = {}
    for ins in instructions:
        if ins.name == "mov" and isinstance(ins.operands[0], Reg) and isinstance(ins.operands[1], Reg):
            copies.setdefault(ins.operands[0].index, set()).add(ins.operands[1].index)
    compared: dict[Mem, set[int]] = {}
    for ins in instructions:
        if ins.name == "atom" and "cas" in ins.parts and isinstance(ins.operands[1], Mem):
            value = ins.operands[2]
            sources = _sources((value.index,), copies) if isinstance(value, Reg) else set()
            compared.setdefault(ins.operands[1], set()).update(sources)
    return tuple(_as_volatile(ins) if compared and _is_compared(ins, compared) else ins for ins in instructions)


def _sources(registers: Iterable[int], copies: dict[int, set[int]]) -> set[int]:
    """The registers and all that they are copied from."""
    found: set[int] = set()
    pending = list(registers)
    while pending:
        register = pending.pop()
        if register not in found:
            found.add(register)
            pending += copies.get(register, ())
    return found


def _is_compared(ins: Instruction, compared: dict[Mem, set[int]]) -> bool:
    if ins.name != "ld" or not _NOT_PLAIN.isdisjoint(ins.parts):
        return False
    value, address = ins.operands[:2]
    return isinstance(value, Reg) and isinstance(address, Mem) and value.index in compared.get(address, ())


def _as_volatile(ins: Instruction) -> Instruction:
    return ins._replace(parts=("ld", "volatile", *(part for part in ins.parts[1:] if part != "weak")))
