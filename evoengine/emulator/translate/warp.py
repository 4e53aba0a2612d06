"""Shuffles, votes and other communication within a warp."""

from __future__ import annotations

from typing import Final

from evoengine.emulator.ptx.records import Imm, Instruction, Operand, Pair, Reg
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of

_ALL: Final = 0xFFFFFFFF
"""Member mask of a whole warp."""


def _members(w: BlockWriter, operand: Operand) -> str | None:
    """Emits a check that each lane executes the instruction together with all lanes of its member mask.

    Returns:
        Expression for the member masks; None for all lanes of the warp.
    """
    mask = w.temp(w.mask())
    if isinstance(operand, Imm) and int(operand.text.rstrip("U"), 0) & _ALL == _ALL:
        w.emit(f"if {mask} is not None: require_warps(X, {mask}, {w.site})")
        return None
    members = w.temp(w.use(operand, "I"))
    w.emit(f"require_members(X, {members}, {mask}, {w.site})")
    return members


def _active(w: BlockWriter) -> str:
    return f"X.active({w.mask()})"


def _among(members: str | None, lanes: str) -> str:
    """Expression for the members among some lanes, both masks of the warp."""
    return lanes if members is None else f"{lanes} & {members}"


def _shfl(w: BlockWriter, ins: Instruction) -> None:
    modes = ("up", "down", "bfly", "idx")
    allow(ins, "sync", modes, "b32")
    d, a, b, c, *named = ins.operands
    members = _members(w, named[0]) if named else None
    mode = next(part for part in ins.parts if part in modes)
    lanes = f"'{mode}', {w.use(b, 'I')}, {w.use(c, 'I')}"
    if members is not None:
        w.emit(f"require_sources(X, {members}, {lanes}, {w.mask()}, {w.site})")
    else:  # where m is None, all lanes of all warps execute the block
        mask = w.temp(w.mask())
        w.emit(f"if {mask} is not None: require_sources(X, {w.constant(_ALL, 'I')}, {lanes}, {mask}, {w.site})")
    call = f"shuffle({w.use(a, 'I')}, {lanes}, X.threads)"
    if isinstance(d, Pair):
        value = w.temp(call)
        w.assign(d.first, "I", f"{value}[0]")
        w.assign(d.second, "p", f"{value}[1]")
    else:
        w.assign(d, "I", f"{call}[0]")


def _vote(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "sync", ("all", "any", "uni", "ballot", "pred", "b32"))
    d, a, *named = ins.operands
    members = _members(w, named[0]) if named else None
    mode = next(part for part in ins.parts[1:] if part != "sync")
    active = w.temp(_active(w))
    predicate = w.use(a, "p")
    on = w.temp(_among(members, f"ballot({predicate} & {active}, X.threads)"))
    if mode == "ballot":
        w.assign(d, "I", on)
    elif mode == "any":
        w.assign(d, "p", f"{on} != 0")
    else:
        present = w.temp(_among(members, f"ballot({active}, X.threads)"))
        every = f"({on} == {present})"
        w.assign(d, "p", every if mode == "all" else f"{every} | ({on} == 0)")


def _activemask(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "b32")
    w.assign(ins.operands[0], "I", f"ballot({_active(w)}, X.threads)")


def _match(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("any", "all", "sync", "b32", "b64"))
    code = code_of(ins.parts[-1])
    d, a, named = ins.operands
    members = _members(w, named)
    active = w.temp(_active(w))
    same = w.temp(_among(members, f"match_any({w.use(a, code)}, {active}, X.threads)"))
    if "any" in ins.parts:
        w.assign(d, "I", same)
        return
    present = w.temp(_among(members, f"ballot({active}, X.threads)"))
    result = f"where({same} == {present}, {present}, {w.constant(0, 'I')})"
    if isinstance(d, Pair):
        w.assign(d.first, "I", result)
        w.assign(d.second, "p", f"{same} == {present}")
    else:
        w.assign(d, "I", result)


def _redux(w: BlockWriter, ins: Instruction) -> None:
    operations = ("add", "min", "max", "and", "or", "xor")
    allow(ins, "sync", operations, ("u32", "s32", "b32"))
    d, a, named = ins.operands
    members = _members(w, named)
    operation = next(part for part in ins.parts if part in operations)
    code = code_of(ins.parts[-1])
    w.assign(d, code, f"reduce({w.use(a, code)}, '{operation}', {_active(w)}, X.threads, {members})")


def _elect(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "sync")
    d, named = ins.operands
    if not isinstance(d, Pair | Reg):
        raise Unsupported("elect destination")
    members = _members(w, named)
    present = w.temp(_among(members, f"ballot({_active(w)}, X.threads)"))
    leader = w.temp(f"popcount(({present} & -{present}) - {w.constant(1, 'I')})")
    if isinstance(d, Pair):
        w.assign(d.first, "I", leader)
        w.assign(d.second, "p", f"X.laneid == {leader}")
    else:
        w.assign(d, "p", f"X.laneid == {leader}")


def _transpose(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "sync", "aligned", "m8n8", "trans", "b16")
    d, a = ins.operands
    w.require_warps()
    w.assign(d, "I", f"transpose_matrix({w.use(a, 'I')}, X.threads)")


HANDLERS: dict[str, Handler] = {
    "shfl": _shfl,
    "movmatrix": _transpose,
    "vote": _vote,
    "activemask": _activemask,
    "match": _match,
    "redux": _redux,
    "elect": _elect,
}
