"""Static check that the result of ``mbarrier.try_wait`` decides something.

The instruction may return false before the phase is complete, after a time that the system chooses, so it must be
repeated until it is true. Source: PTX ISA 9.0, "mbarrier.test_wait/mbarrier.try_wait". The emulator gives up once at
each instruction, where the phase is not complete at that time. A kernel that tries once and ignores the result is
therefore found statically: in the data flow between registers, whatever the order of instructions, the result reaches
neither a guard nor a stored value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from evoengine.emulator.ptx.records import Instruction, Operand


def find_ignored_wait(
    instructions: Sequence[Instruction],
    registers: Callable[[Operand], Sequence[int]],
    has_destination: Callable[[Instruction], bool],
) -> int | None:
    """Returns the index of the first ``try_wait`` whose result decides nothing; None without any.

    Args:
        instructions: Instructions of an entry.
        registers: Returns the registers of an operand.
        has_destination: Whether the first operand of an instruction is a destination.
    """
    waits = [number for number, ins in enumerate(instructions) if ins.parts[:2] == ("mbarrier", "try_wait")]
    if not waits:
        return None
    sources: defaultdict[int, set[int]] = defaultdict(set)
    pending: list[int] = []
    for ins in instructions:
        if ins.predicate is not None:
            pending.append(ins.predicate.index)
        first = 1 if has_destination(ins) else 0
        used = {register for operand in ins.operands[first:] for register in registers(operand)}
        if first == 0:
            pending += used
        for target in registers(ins.operands[0]) if first and ins.operands else ():
            sources[target] |= used
    deciding: set[int] = set()
    while pending:
        register = pending.pop()
        if register not in deciding:
            deciding.add(register)
            pending += sources[register]
    results = ((number, registers(instructions[number].operands[0])) for number in waits)
    return next((number for number, targets in results if deciding.isdisjoint(targets)), None)
