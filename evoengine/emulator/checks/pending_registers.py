"""Checks of the registers that ``wgmma`` uses, on the control-flow graph of an entry.

From ``wgmma.mma_async`` to the ``wait_group`` for its group, the accumulators may only be passed on to another
``wgmma``, and the registers of A may only be read. Source: PTX ISA 9.0, "wgmma.mma_async". A ``wgmma.fence`` must lie
between a write of a register and the ``wgmma`` that takes it, and before the first ``wgmma`` (PTX ISA 9.0,
"wgmma.fence"). A move between registers is no access: ``ptxas`` gives both the same register, and here the state moves
along. Neither is a move of a constant, which NVRTC itself places after the fence.

The checks are a data-flow analysis: a register counts as pending or as written at a point if it is on some path to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from evoengine.emulator.ptx.control_flow import Block, successors
from evoengine.emulator.ptx.records import Entry, Imm, Instruction, Operand, Reg, Vec

Registers = Callable[[Operand], Sequence[int]]
"""Numbers of the registers in an operand."""
_MAX_AGE = 9
"""Age at which groups are no longer distinguished; ``wait_group`` waits for all but at most seven groups."""


@dataclass(frozen=True)
class PendingAccess:
    """An access to a register of a pending ``wgmma``, or a ``wgmma`` that lacks a fence."""

    site: int
    """Index of the instruction."""
    detail: str


@dataclass
class _State:
    """Registers that some ``wgmma`` uses, pending ones with the number of commits since their ``wgmma``."""

    accumulators: dict[int, int]
    inputs: dict[int, int]
    written: set[int]
    """Registers that other instructions have written since the last ``wgmma.fence``."""
    fenced: bool = False
    """Whether a ``wgmma.fence`` lies on every path."""

    def copy(self) -> _State:
        return _State(dict(self.accumulators), dict(self.inputs), set(self.written), self.fenced)

    def join(self, other: _State) -> bool:
        """Adds the registers of another state; returns whether this one has changed."""
        changed = not self.written >= other.written or (self.fenced and not other.fenced)
        self.written |= other.written
        self.fenced &= other.fenced
        for own, others in ((self.accumulators, other.accumulators), (self.inputs, other.inputs)):
            for register, age in others.items():
                if own.get(register, _MAX_AGE + 1) > age:
                    own[register] = age
                    changed = True
        return changed

    def commit(self) -> None:
        for table in (self.accumulators, self.inputs):
            for register, age in table.items():
                table[register] = min(age + 1, _MAX_AGE)

    def wait(self, newest: int) -> None:
        self.accumulators = {register: age for register, age in self.accumulators.items() if age <= newest}
        self.inputs = {register: age for register, age in self.inputs.items() if age <= newest}


def find_pending_access(
    entry: Entry, blocks: Sequence[Block], registers: Registers, has_destination: Callable[[Instruction], bool]
) -> PendingAccess | None:
    """Finds an access to a register that a pending ``wgmma`` uses, or a missing fence; None without any.

    Args:
        entry: Parsed entry.
        blocks: Its basic blocks.
        registers: Lists the registers of an operand.
        has_destination: Whether the first operand of an instruction is a destination.
    """
    used = _used(entry, registers)
    following = [sorted(successors(entry, blocks, block)) for block in blocks]
    before: dict[int, _State] = {0: _State({}, {}, set())}
    pending = [0]
    while pending:
        number = min(pending)
        pending.remove(number)
        state = before[number].copy()
        block = blocks[number]
        for site in range(block.start, block.end):
            found = _step(entry.instructions[site], state, registers, has_destination)
            if found:
                return PendingAccess(site, found)
            _note_writes(entry.instructions[site], state, used, registers, has_destination)
        for target in following[number]:
            if target not in before:
                before[target] = state.copy()
            elif not before[target].join(state):
                continue
            if target not in pending:
                pending.append(target)
    return None


def _used(entry: Entry, registers: Registers) -> set[int]:
    """Returns the registers that some ``wgmma`` uses, and those whose contents moves pass on to them."""
    found: set[int] = set()
    moves: dict[int, list[int]] = {}
    for ins in entry.instructions:
        if ins.name == "wgmma" and ins.parts[1] == "mma_async":
            found.update(register for operand in ins.operands[:2] for register in registers(operand))
        elif ins.name == "mov" and isinstance(ins.operands[0], Reg) and isinstance(ins.operands[1], Reg):
            moves.setdefault(ins.operands[0].index, []).append(ins.operands[1].index)
    left = list(found)
    while left:
        more = set(moves.get(left.pop(), ())) - found
        found |= more
        left += more
    return found


def _note_writes(
    ins: Instruction,
    state: _State,
    used: set[int],
    registers: Registers,
    has_destination: Callable[[Instruction], bool],
) -> None:
    """Keeps track of the registers that a ``wgmma.fence`` must order before the next ``wgmma`` that takes them."""
    if ins.name == "wgmma":
        if ins.parts[1] == "fence":
            state.written.clear()
            state.fenced = True
        return
    if not used or not ins.operands or not has_destination(ins):
        return
    targets = [register for register in registers(ins.operands[0]) if register in used]
    source = ins.operands[1] if ins.name == "mov" and isinstance(ins.operands[0], Reg) else None
    if isinstance(source, Imm) or (isinstance(source, Reg) and source.index not in state.written):
        state.written.difference_update(targets)
    else:
        state.written.update(targets)


def _step(ins: Instruction, state: _State, registers: Registers, has_destination: Callable[[Instruction], bool]) -> str:
    """Applies an instruction to the state; returns a description of an invalid access, or an empty text."""
    if ins.name == "wgmma":
        return _wgmma(ins, state, registers)
    if not state.accumulators and not state.inputs:
        return ""
    operands = ins.operands
    if ins.name == "mov" and isinstance(operands[0], Reg) and isinstance(operands[1], Reg):
        target, source = operands[0].index, operands[1].index
        for table in (state.accumulators, state.inputs):
            table.pop(target, None)
        if source in state.accumulators:
            state.accumulators[target] = state.accumulators[source]
        return ""
    writes = has_destination(ins)
    read = [] if ins.predicate is None else [ins.predicate.index]
    for operand in operands[1:] if writes else operands:
        read += registers(operand)
    if state.accumulators and any(register in state.accumulators for register in read):
        return "reads an accumulator of a wgmma that has not been waited for"
    return _writes(registers(operands[0]), state) if writes and operands else ""


def _writes(written: Iterable[int], state: _State) -> str:
    for register in written:
        if register in state.accumulators:
            return "writes an accumulator of a wgmma that has not been waited for"
        if register in state.inputs:
            return "writes an input register of a wgmma that has not been waited for"
    return ""


def _wgmma(ins: Instruction, state: _State, registers: Registers) -> str:
    if ins.parts[1] == "commit_group":
        state.commit()
    elif ins.parts[1] == "wait_group":
        newest = ins.operands[0]
        state.wait(int(newest.text, 0) if isinstance(newest, Imm) else 0)
    elif ins.parts[1] == "mma_async":
        target, left = ins.operands[:2]
        inputs = registers(left) if isinstance(left, Vec) else ()
        if not state.fenced:
            return "is a wgmma with no wgmma.fence before it"
        if not state.written.isdisjoint((*inputs, *registers(target))):
            return "takes a register that was written after the last wgmma.fence"
        if any(register in state.accumulators for register in inputs):
            return "takes as A an accumulator of a wgmma that has not been waited for"
        if found := _overwritten_inputs(registers(target), state):
            return found
        state.accumulators.update(dict.fromkeys(registers(target), 0))
        state.inputs.update(dict.fromkeys(inputs, 0))
    return ""


def _overwritten_inputs(written: Iterable[int], state: _State) -> str:
    hit = any(register in state.inputs for register in written)
    return "writes an input register of a wgmma that has not been waited for" if hit else ""
