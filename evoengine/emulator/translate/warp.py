"""Shuffles, votes and other communication within a warp."""

from __future__ import annotations

from evoengine.emulator.ptx.records import Instruction, Operand, Pair, Reg
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow, code_of


def _members(w: BlockWriter, operand: Operand) -> None:
    """Emits a check that all lanes of the member mask execute the instruction."""
    if operand is not None:
        w.emit(f"if m is not None: X.require_members({w.use(operand, 'I')}, m, {w.site})")


def _active(w: BlockWriter) -> str:
    return f"X.active({w.mask()})"


def _shfl(w: BlockWriter, ins: Instruction) -> None:
    modes = ("up", "down", "bfly", "idx")
    allow(ins, "sync", modes, "b32")
    d, a, b, c, *members = ins.operands
    if members:
        _members(w, members[0])
    mode = next(part for part in ins.parts if part in modes)
    call = f"shuffle({w.use(a, 'I')}, '{mode}', {w.use(b, 'I')}, {w.use(c, 'I')}, X.threads)"
    if isinstance(d, Pair):
        value = w.temp(call)
        w.assign(d.first, "I", f"{value}[0]")
        w.assign(d.second, "p", f"{value}[1]")
    else:
        w.assign(d, "I", f"{call}[0]")


def _vote(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "sync", ("all", "any", "uni", "ballot", "pred", "b32"))
    d, a, *members = ins.operands
    if members:
        _members(w, members[0])
    mode = next(part for part in ins.parts[1:] if part != "sync")
    active = w.temp(_active(w))
    predicate = w.use(a, "p")
    on = w.temp(f"ballot({predicate} & {active}, X.threads)")
    if mode == "ballot":
        w.assign(d, "I", on)
    elif mode == "any":
        w.assign(d, "p", f"{on} != 0")
    else:
        present = w.temp(f"ballot({active}, X.threads)")
        every = f"({on} == {present})"
        w.assign(d, "p", every if mode == "all" else f"{every} | ({on} == 0)")


def _activemask(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "b32")
    w.assign(ins.operands[0], "I", f"ballot({_active(w)}, X.threads)")


def _match(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, ("any", "all", "sync", "b32", "b64"))
    code = code_of(ins.parts[-1])
    d, a, members = ins.operands
    _members(w, members)
    active = w.temp(_active(w))
    same = w.temp(f"match_any({w.use(a, code)}, {active}, X.threads)")
    if "any" in ins.parts:
        w.assign(d, "I", same)
        return
    present = w.temp(f"ballot({active}, X.threads)")
    result = f"where({same} == {present}, {present}, {w.constant(0, 'I')})"
    if isinstance(d, Pair):
        w.assign(d.first, "I", result)
        w.assign(d.second, "p", f"{same} == {present}")
    else:
        w.assign(d, "I", result)


def _redux(w: BlockWriter, ins: Instruction) -> None:
    operations = ("add", "min", "max", "and", "or", "xor")
    allow(ins, "sync", operations, ("u32", "s32", "b32"))
    d, a, members = ins.operands
    _members(w, members)
    operation = next(part for part in ins.parts if part in operations)
    code = code_of(ins.parts[-1])
    w.assign(d, code, f"reduce({w.use(a, code)}, '{operation}', {_active(w)}, X.threads)")


def _elect(w: BlockWriter, ins: Instruction) -> None:
    allow(ins, "sync")
    d = ins.operands[0]
    if not isinstance(d, Pair | Reg):
        raise Unsupported("elect destination")
    present = w.temp(f"ballot({_active(w)}, X.threads)")
    leader = w.temp(f"popcount(({present} & -{present}) - {w.constant(1, 'I')})")
    if isinstance(d, Pair):
        w.assign(d.first, "I", leader)
        w.assign(d.second, "p", f"X.laneid == {leader}")
    else:
        w.assign(d, "p", f"X.laneid == {leader}")


HANDLERS: dict[str, Handler] = {
    "shfl": _shfl,
    "vote": _vote,
    "activemask": _activemask,
    "match": _match,
    "redux": _redux,
    "elect": _elect,
}
