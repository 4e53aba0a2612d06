"""Check of the registers that a pending ``wgmma`` uses, on the control-flow graph of an entry.

From ``wgmma.mma_async`` to the ``wait_group`` for its group, the accumulators may only be passed on to another
``wgmma``, and the registers of A may only be read. Source: PTX ISA 9.0, "wgmma.mma_async". A move between registers is
no access: ``ptxas`` gives both the same register, and here the state moves along.

The check is a data-flow analysis: a register counts as pending at a point if it is on some path to it.
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
    """An access to a register of a pending ``wgmma``."""

    site: int
    """Index of the instruction."""
    detail: str


@dataclass
class _State:
    """Pending registers, each with the number of commits since its ``wgmma``."""

    accumulators: dict[int, int]
    inputs: dict[int, int]

    def copy(self) -> _State:
        return _State(dict(self.accumulators), dict(self.inputs))

    def join(self, other: _State) -> bool:
        """Adds the registers that are pending in another state; returns whether this one has changed."""
        changed = False
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
    """Finds an access to a register that a pending ``wgmma`` uses; None without any.

    Args:
        entry: Parsed entry.
        blocks: Its basic blocks.
        registers: Lists the registers of an operand.
        has_destination: Whether the first operand of an instruction is a destination.
    """
    following = [sorted(successors(entry, blocks, block)) for block in blocks]
    before: dict[int, _State] = {0: _State({}, {})}
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
        for target in following[number]:
            if target not in before:
                before[target] = state.copy()
            elif not before[target].join(state):
                continue
            if target not in pending:
                pending.append(target)
    return None


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
