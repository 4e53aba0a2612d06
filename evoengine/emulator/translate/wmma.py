"""``wmma.load``, ``wmma.mma`` and ``wmma.store``: tiles of 16x16x16, f16 or bf16 operands, f32 accumulators."""

from __future__ import annotations

from evoengine.emulator.ptx import Imm, Instruction, Operand, Vec
from evoengine.emulator.translate.memory import address
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

_LINES = {"a": "row", "b": "col", "c": "row", "d": "row"}
"""For each matrix, the memory order whose lines are those of its fragment."""
_SPACES = {"shared": "shared", "shared::cta": "shared", "global": "global"}
_PACKED = {"f16": 8, "bf16": 4}
"""Registers of an A or B fragment."""
_WIDE = 8
"""Registers of an f32 fragment."""
_WORDS = ("load", "store", "a", "b", "c", "d", "sync", "aligned", "row", "col", "m16n16k16", "f32")
_TIGHT_PITCH = "16"


def _items(operand: Operand, count: int) -> tuple[Operand, ...]:
    if not isinstance(operand, Vec) or len(operand.items) != count:
        raise Unsupported("wmma fragment")
    return operand.items


def _place(w: BlockWriter, ins: Instruction, target: Operand, pitch: tuple[Operand, ...]) -> tuple[str, str, bool]:
    """The arguments ``space, address, pitch``, the element type, and whether memory holds the other lines."""
    allow(
        ins,
        ("load", "store", "a", "b", "c", "d", "sync", "aligned", "row", "col", "m16n16k16"),
        _SPACES,
        _PACKED,
        "f32",
    )
    space = next((_SPACES[part] for part in ins.parts if part in _SPACES), "generic")
    if "m16n16k16" not in ins.parts:
        raise Unsupported("form of wmma")
    order = next(part for part in ins.parts if part in ("row", "col"))
    step = w.use(pitch[0] if pitch else Imm(_TIGHT_PITCH), "I")
    return f"'{space}', {address(w, target, space)}, {step}", ins.parts[-1], order != _LINES[ins.parts[2]]


def _load(w: BlockWriter, ins: Instruction) -> None:
    d, source, *pitch = ins.operands
    place, kind, transpose = _place(w, ins, source, tuple(pitch))
    wide = ins.parts[2] == "c"
    if wide != (kind == "f32"):
        raise Unsupported("element type of wmma.load")
    count = _WIDE if wide else _PACKED[kind]
    value = w.temp(f"load_fragment(X, {place}, {count}, {wide}, {transpose}, {w.mask()}, {w.site})")
    for number, item in enumerate(_items(d, count)):
        w.assign(item, "f" if wide else "I", f"{value}[{number}]")


def _store(w: BlockWriter, ins: Instruction) -> None:
    target, source, *pitch = ins.operands
    place, kind, transpose = _place(w, ins, target, tuple(pitch))
    if kind != "f32":
        raise Unsupported("element type of wmma.store")
    values = ", ".join(w.use(item, "f") for item in _items(source, _WIDE))
    w.emit(f"store_fragment(X, {place}, ({values},), {transpose}, {w.mask()}, {w.site})")


def _mma(w: BlockWriter, ins: Instruction) -> None:
    """``wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32``, for bf16 ``….f32.bf16.bf16.f32``."""
    types = ins.parts[7:]
    kind = "f16" if types == ("f32", "f32") else types[1] if len(types) == 4 else ""
    if ins.parts[2:4] != ("sync", "aligned") or ins.parts[6] != "m16n16k16" or kind not in _PACKED:
        raise Unsupported("form of wmma.mma")
    if types not in (("f32", "f32"), ("f32", kind, kind, "f32")):
        raise Unsupported("element types of wmma.mma")
    d, a, b, c = ins.operands
    left = ", ".join(w.use(item, "I") for item in _items(a, _PACKED[kind]))
    right = ", ".join(w.use(item, "I") for item in _items(b, _PACKED[kind]))
    start = [w.use(item, "f") for item in _items(c, _WIDE)]
    value = w.temp(f"multiply_fragments('{kind}', ({left},), ({right},), X.ctas, X.threads)")
    sums = [w.temp(f"{value}[{number}] + {addend}") for number, addend in enumerate(start)]
    for item, total in zip(_items(d, _WIDE), sums, strict=True):
        w.assign(item, "f", total)


def _wmma(w: BlockWriter, ins: Instruction) -> None:
    handler = {"load": _load, "store": _store, "mma": _mma}.get(ins.parts[1])
    if handler is None:
        raise Unsupported("form of wmma")
    w.require_warps()
    handler(w, ins)


HANDLERS: dict[str, Handler] = {"wmma": _wmma}
