"""Branches, exits, barriers and fences."""

from __future__ import annotations

from typing import Final

from evoengine.emulator.ptx.control_flow import EXIT, target_of
from evoengine.emulator.ptx.records import Imm, Instruction, Label, Operand
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow


def _branch(w: BlockWriter, target: int) -> str:
    """Result expression of a two-way branch: a block number, or ``(target, lanes, follower)``."""
    guard = w.guard()
    if guard is None:
        return str(target)
    follower = w.block.follower
    return f"X.branch({guard}, m, {target}, {follower})"


def terminator(w: BlockWriter, ins: Instruction) -> str:
    """Result expression of the instruction that ends a block, a :data:`~evoengine.emulator.batch.state.Target`."""
    name = ins.name
    if name == "bra":
        allow(ins, "uni")
        target = target_of(w.program.flow, ins.operands[0])
        if target is None:
            raise Unsupported("branch to an unknown label")
        return _branch(w, target)
    if name in ("ret", "exit"):
        allow(ins, "uni")
        return _branch(w, EXIT)
    if name == "trap":
        w.emit(f"X.trap({w.mask()}, {w.site})")
        return str(w.block.follower)
    if name == "brx":
        return _indexed(w, ins)
    return _barrier(w, ins)


def _indexed(w: BlockWriter, ins: Instruction) -> str:
    allow(ins, ("idx", "uni"))
    if ins.predicate is not None or not isinstance(ins.operands[1], Label):
        raise Unsupported("form of brx")
    labels = w.program.entry.branch_targets.get(ins.operands[1].name, ())
    targets = [w.program.flow.block_of_label[label] for label in labels]
    index = w.use(ins.operands[0], "I")
    w.emit(f"X.jump_index({index}, {len(targets)}, {w.mask()}, {w.site})")
    return f"('switch', {index}, {targets})"


def _barrier_value(w: BlockWriter, operand: Operand) -> str:
    return str(int(operand.text, 0)) if isinstance(operand, Imm) else w.use(operand, "I")


def _barrier(w: BlockWriter, ins: Instruction) -> str:
    allow(ins, ("cta", "sync", "arrive", "aligned"))
    number = _barrier_value(w, ins.operands[0]) if ins.operands else "0"
    count = _barrier_value(w, ins.operands[1]) if len(ins.operands) > 1 else "None"
    waits = "arrive" not in ins.parts
    return f"('barrier', {number}, {count}, {waits}, {w.block.follower}, {w.site}, {w.guard()})"


_WIDE_SCOPES: Final = frozenset(("gl", "gpu", "sys"))
_PRINTF: Final = "vprintf"
"""Function that ``printf`` calls."""


def _no_op(_: BlockWriter, __: Instruction) -> None:
    """Translates hints to nothing."""


def _fence(w: BlockWriter, ins: Instruction) -> None:
    """Translates a fence to a record for the checks, if it is a proxy fence or its scope includes other CTAs.

    The emulator executes memory operations in program order, so a fence changes nothing else.
    """
    if ins.parts[1] == "proxy" and "async" in ins.parts:
        space = next((part.partition("::")[0] for part in ins.parts[3:]), None)
        w.emit(f"X.proxy_fence({w.mask()}, {space!r})")
    elif ins.parts[1] == "mbarrier_init":
        w.emit(f"X.mbarriers.fence({w.mask()})")
    if not _WIDE_SCOPES.isdisjoint(ins.parts) and "proxy" not in ins.parts:
        w.emit(f"X.fence({w.mask()})")


def _warp_barrier(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``bar.warp.sync`` to a check: the lanes of a warp have already reconverged at this block."""
    allow(ins, ("warp", "sync"))
    w.emit(f"warp_barrier(X, {w.use(ins.operands[0], 'I')}, {w.mask()}, {w.site})")


def _call(_: BlockWriter, ins: Instruction) -> None:
    """Rejects a call that the parser could not inline."""
    callee = ins.operands[0] if ins.operands else None
    if not isinstance(callee, Label) or callee.name.startswith("%"):
        raise Unsupported("call through a pointer")
    if callee.name == _PRINTF:
        raise Unsupported("printf is not supported: remove it, or store the values in a buffer")
    raise Unsupported(f"call of {callee.name}: it is recursive, or the module does not define it")


def _number(operand: Operand) -> int:
    if not isinstance(operand, Imm):
        raise Unsupported("barrier reduction without a literal barrier number")
    return int(operand.text, 0)


def _record_vote(w: BlockWriter, ins: Instruction) -> None:
    number, vote = ins.operands
    w.emit(f"X.votes.record({_number(number)}, {w.use(vote, 'p')}, {w.mask()})")


def _vote_result(w: BlockWriter, ins: Instruction) -> None:
    result, number = ins.operands
    operation = ins.parts[1]
    value = w.temp(f"X.votes.result({_number(number)}, '{operation}')")
    w.assign(result, "I" if operation == "popc" else "p", value)


HANDLERS: dict[str, Handler] = {
    "membar": _fence,
    "fence": _fence,
    "griddepcontrol": _no_op,
    "nanosleep": _no_op,
    "bar": _warp_barrier,
    "discard": _no_op,
    "applypriority": _no_op,
    "call": _call,
    "barrier_note": _record_vote,
    "barrier_look": _vote_result,
}
