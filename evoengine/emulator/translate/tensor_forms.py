"""Translation of ``mma.sync`` on tf32, 8-bit integers, 8-bit floats and f64, without fusion."""

from __future__ import annotations

from evoengine.emulator.ptx.records import Instruction, Operand, Vec
from evoengine.emulator.translate.writer import BlockWriter, Unsupported

_REGISTERS = {
    ("m16n8k4", "tf32"): 1,
    ("m16n8k8", "tf32"): 2,
    **{("m16n8k16", kind): 1 for kind in ("s8", "u8")},
    **{("m16n8k32", kind): 2 for kind in ("s8", "u8", "e4m3", "e5m2")},
}
"""Registers of a B fragment, by shape and element type; A has twice as many."""
_SHAPE = ("sync", "aligned")


def is_other_form(ins: Instruction) -> bool:
    """Whether the operands of an ``mma`` are neither f16 nor bf16."""
    return not {"f16", "bf16"} & set(ins.parts[7:9])


def _items(operand: Operand, count: int) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count:
        raise Unsupported("mma fragment")
    return items


def multiply(w: BlockWriter, ins: Instruction) -> None:
    """Translates one ``mma.sync.aligned.SHAPE.row.col.D.A.B.C``."""
    parts = ins.parts
    if len(parts) != 10 or parts[1:3] != _SHAPE or parts[4:6] != ("row", "col"):
        raise Unsupported("form of mma")
    w.require_warps()
    if parts[3] == "m8n8k4" and parts[6:] == ("f64",) * 4:
        _multiply_f64(w, ins)
        return
    count = _REGISTERS.get((parts[3], parts[7]))
    integer = parts[7] in ("s8", "u8")
    if count is None or (parts[3], parts[8]) not in _REGISTERS or (parts[8] in ("s8", "u8")) != integer:
        raise Unsupported(f"mma of .{parts[7]} and .{parts[8]} as .{parts[3]}")
    if parts[6] != parts[9] or parts[6] != ("s32" if integer else "f32"):
        raise Unsupported(f"mma accumulator .{parts[6]}")
    d, a, b, c = ins.operands
    left = ", ".join(w.use(item, "I") for item in _items(a, 2 * count))
    right = ", ".join(w.use(item, "I") for item in _items(b, count))
    code = "I" if integer else "f"
    start = [w.use(item, code) for item in _items(c, 4)]
    value = w.temp(f"multiply_form({(parts[7], parts[8])}, ({left},), ({right},), X.ctas, X.threads)")
    to = "to_s32({})" if integer else "{}.astype('f')"
    sums = [w.temp(to.format(f"({value}[{number}] + {addend})")) for number, addend in enumerate(start)]
    for item, total in zip(_items(d, 4), sums, strict=True):
        w.assign(item, code, total)


def _multiply_f64(w: BlockWriter, ins: Instruction) -> None:
    d, a, b, c = ins.operands
    (left,), (right,) = (tuple(w.use(item, "d") for item in _items(operand, 1)) for operand in (a, b))
    start = [w.use(item, "d") for item in _items(c, 2)]
    value = w.temp(f"multiply_f64({left}, {right}, X.ctas, X.threads)")
    sums = [w.temp(f"{value}[{number}] + {addend}") for number, addend in enumerate(start)]
    for item, total in zip(_items(d, 2), sums, strict=True):
        w.assign(item, "d", total)
