"""Extended-precision arithmetic: additions, subtractions and products that use the carry flag ``CC.CF``.

The flag is a local of the block's function, so a carry chain must be in one block, as compilers emit it.
"""

from __future__ import annotations

from evoengine.emulator.arrays import UNSIGNED
from evoengine.emulator.ptx.records import TYPE_BITS, Instruction
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

_TYPES = frozenset(("u32", "s32", "b32", "u64", "s64", "b64"))
_FLAG = "carry"


def _carry_in(w: BlockWriter, code: str) -> str:
    if not any(line.startswith(f"{_FLAG} = ") for line in w.lines):
        raise Unsupported("carry from another block")
    return w.temp(f"{_FLAG}.astype('{code}')")


def _chain(w: BlockWriter, ins: Instruction, left: str, right: str, code: str, reads: bool, subtract: bool) -> None:
    """Writes ``left ± right``; reads the carry flag if ``reads``, and writes it if the opcode has ``.cc``."""
    if ins.predicate is not None:
        raise Unsupported("carry in a guarded instruction")
    symbol = "-" if subtract else "+"
    carry_in = _carry_in(w, code) if reads else ""
    x, y = w.temp(left), w.temp(right)
    total = w.temp(f"{x} {symbol} {y}")
    flags = f"({x} < {y})" if subtract else f"({total} < {x})"
    if carry_in:
        before, total = total, w.temp(f"{total} {symbol} {carry_in}")
        flags += f" | ({before} < {carry_in})" if subtract else f" | ({total} < {before})"
    if "cc" in ins.parts:
        w.emit(f"{_FLAG} = {flags}")
    w.assign(ins.operands[0], code, total)


def _sum(w: BlockWriter, ins: Instruction, *, reads: bool, subtract: bool) -> None:
    allow(ins, _TYPES, "cc")
    code = UNSIGNED[TYPE_BITS[ins.parts[-1]]]
    a, b = ins.operands[1:3]
    _chain(w, ins, w.use(a, code), w.use(b, code), code, reads, subtract)


def add(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``add.cc``."""
    _sum(w, ins, reads=False, subtract=False)


def sub(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``sub.cc``."""
    _sum(w, ins, reads=False, subtract=True)


def _addc(w: BlockWriter, ins: Instruction) -> None:
    _sum(w, ins, reads=True, subtract=False)


def _subc(w: BlockWriter, ins: Instruction) -> None:
    _sum(w, ins, reads=True, subtract=True)


def _product(w: BlockWriter, ins: Instruction, *, reads: bool) -> None:
    allow(ins, _TYPES, "cc", ("lo", "hi"))
    kind = ins.parts[-1]
    bits = TYPE_BITS[kind]
    if kind[0] == "s" and "hi" in ins.parts:
        raise Unsupported("signed upper product with carry")
    code = UNSIGNED[bits]
    a, b, c = ins.operands[1:4]
    x, y = w.use(a, code), w.use(b, code)
    value = f"mul_hi({x}, {y})" if "hi" in ins.parts else f"{x} * {y}"
    _chain(w, ins, value, w.use(c, code), code, reads, subtract=False)


def mad(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``mad.lo.cc`` and ``mad.hi.cc``."""
    _product(w, ins, reads=False)


def _madc(w: BlockWriter, ins: Instruction) -> None:
    _product(w, ins, reads=True)


HANDLERS: dict[str, Handler] = {"addc": _addc, "subc": _subc, "madc": _madc}
