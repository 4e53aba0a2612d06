"""Translation of ``mma.sync`` on tf32, 8-bit integers, 8-bit floats and f64, without fusion."""

from __future__ import annotations

from evoengine.emulator.ptx.records import Instruction, Operand, Vec
from evoengine.emulator.translate.writer import BlockWriter, Unsupported

_REGISTERS = {
    ("m16n8k4", "tf32"): 1,
    ("m16n8k8", "tf32"): 2,
    **{("m16n8k16", kind): 1 for kind in ("s8", "u8", "e4m3", "e5m2")},
    **{("m16n8k32", kind): 2 for kind in ("s8", "u8", "e4m3", "e5m2")},
}
"""Registers of a B fragment, by shape and element type; A has twice as many."""
_FP8 = ("e4m3", "e5m2")
_INT8 = ("s8", "u8")
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
    saturates = "satfinite" in ins.parts
    parts = tuple(part for part in ins.parts if part != "satfinite")
    if len(parts) != 10 or parts[1:3] != _SHAPE or parts[4:6] != ("row", "col"):
        raise Unsupported("form of mma")
    w.require_warps()
    if parts[3] == "m8n8k4" and parts[6:] == ("f64",) * 4:
        _multiply_f64(w, ins)
        return
    count = _REGISTERS.get((parts[3], parts[7]))
    integer = parts[7] in _INT8
    family = _INT8 if integer else _FP8 if parts[7] in _FP8 else parts[7:8]
    if count is None or parts[8] not in family:
        raise Unsupported(f"mma of .{parts[7]} and .{parts[8]} as .{parts[3]}")
    accumulators = ("s32",) if integer else ("f32", "f16") if parts[7] in _FP8 else ("f32",)
    if parts[6] not in accumulators or parts[9] not in accumulators or saturates > integer:
        raise Unsupported(f"mma accumulators .{parts[6]} and .{parts[9]}")
    _, a, b, _ = ins.operands
    left = ", ".join(w.use(item, "I") for item in _items(a, 2 * count))
    right = ", ".join(w.use(item, "I") for item in _items(b, count))
    value = w.temp(f"multiply_form({(parts[7], parts[8])}, ({left},), ({right},), X.ctas, X.threads)")
    _accumulate(w, ins, parts, value, saturates)


def _accumulate(w: BlockWriter, ins: Instruction, parts: tuple[str, ...], value: str, saturates: bool) -> None:
    """Adds the product to C, and assigns the sums to D."""
    d, c = ins.operands[0], ins.operands[3]
    if parts[9] == "f16":
        pairs = [w.use(item, "I") for item in _items(c, 2)]
        start = [f"widen_f16({pairs[number // 2]}, {number % 2})" for number in range(4)]
    else:
        start = [w.use(item, "i" if parts[9] == "s32" else "f") for item in _items(c, 4)]
    if parts[6] == "s32":
        sums = [w.temp(f"add_s32({value}[{number}], {start[number]}, {saturates})") for number in range(4)]
    else:
        sums = [w.temp(f"({value}[{number}] + {start[number]}).astype('f')") for number in range(4)]
    if parts[6] == "f16":
        for number, item in enumerate(_items(d, 2)):
            w.assign(item, "I", f"pack_f16_rn({sums[2 * number]}, {sums[2 * number + 1]})")
        return
    for item, total in zip(_items(d, 4), sums, strict=True):
        w.assign(item, "I" if parts[6] == "s32" else "f", total)


def _multiply_f64(w: BlockWriter, ins: Instruction) -> None:
    d, a, b, c = ins.operands
    (left,), (right,) = (tuple(w.use(item, "d") for item in _items(operand, 1)) for operand in (a, b))
    start = [w.use(item, "d") for item in _items(c, 2)]
    value = w.temp(f"multiply_f64({left}, {right}, X.ctas, X.threads)")
    sums = [w.temp(f"{value}[{number}] + {addend}") for number, addend in enumerate(start)]
    for item, total in zip(_items(d, 2), sums, strict=True):
        w.assign(item, "d", total)
