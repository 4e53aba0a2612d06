"""Translation of ``wmma``, here on 16x16x16 tiles with f16 or bf16 operands and f32 or f16 accumulators."""

from __future__ import annotations

from evoengine.emulator.ptx.records import Imm, Instruction, Operand, Vec
from evoengine.emulator.translate import wmma_shapes
from evoengine.emulator.translate.memory import address
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

_LINES = {"a": "row", "b": "col", "c": "row", "d": "row"}
"""Memory order, by matrix, in which a line of memory is a line of the fragment."""
_SPACES = {"shared": "shared", "shared::cta": "shared", "global": "global"}
_PACKED = {"f16": 8, "bf16": 4}
"""Registers of an A or B fragment, by element type."""
_WIDE = 8
"""Registers of an f32 accumulator."""
_HALVES = 4
"""Registers of an f16 accumulator."""
_TIGHT_PITCH = "16"


def _items(operand: Operand, count: int) -> tuple[Operand, ...]:
    if not isinstance(operand, Vec) or len(operand.items) != count:
        raise Unsupported("wmma fragment")
    return operand.items


def _location(w: BlockWriter, ins: Instruction, target: Operand, pitch: tuple[Operand, ...]) -> tuple[str, str, bool]:
    """The arguments ``space, address, pitch`` as text, the element type, and whether the tile must be transposed."""
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
    location, kind, transpose = _location(w, ins, source, tuple(pitch))
    wide = ins.parts[2] == "c"
    if wide and kind == "f16":
        value = w.temp(f"load_half_accumulator(X, {location}, {transpose}, {w.mask()}, {w.site})")
        for number, item in enumerate(_items(d, _HALVES)):
            w.assign(item, "I", f"{value}[{number}]")
        return
    if wide != (kind == "f32"):
        raise Unsupported("element type of wmma.load")
    count = _WIDE if wide else _PACKED[kind]
    value = w.temp(f"load_fragment(X, {location}, {count}, {wide}, {transpose}, {w.mask()}, {w.site})")
    if not wide:
        w.fragments.add(value)
    w.bind(_items(d, count), "f" if wide else "I", value)


def _operand(w: BlockWriter, operand: Operand, count: int) -> str:
    """Expression for A or B: the loaded fragment if the registers still hold it, else a tuple of registers."""
    names = [w.use(item, "I") for item in _items(operand, count)]
    whole = names[0].partition("[")[0]
    if whole in w.fragments and names == [f"{whole}[{number}]" for number in range(count)]:
        return whole
    return f"({', '.join(names)},)"


def _store(w: BlockWriter, ins: Instruction) -> None:
    target, source, *pitch = ins.operands
    location, kind, transpose = _location(w, ins, target, tuple(pitch))
    if kind not in ("f32", "f16"):
        raise Unsupported("element type of wmma.store")
    wide = kind == "f32"
    function = "store_fragment" if wide else "store_half_accumulator"
    count, code = (_WIDE, "f") if wide else (_HALVES, "I")
    values = ", ".join(w.use(item, code) for item in _items(source, count))
    w.emit(f"{function}(X, {location}, ({values},), {transpose}, {w.mask()}, {w.site})")


def _mma(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``wmma.mma.sync.aligned.row.col.m16n16k16.D.C`` on f16, or ``….D.A.B.C``.

    A and B have the same type; D and C are f32 or f16.
    """
    types = ins.parts[7:]
    kind = "f16" if len(types) == 2 else types[1] if len(types) == 4 and types[1] == types[2] else ""
    if ins.parts[2:4] != ("sync", "aligned") or ins.parts[6] != "m16n16k16" or kind not in _PACKED:
        raise Unsupported("form of wmma.mma")
    if types[0] not in ("f32", "f16") or types[-1] not in ("f32", "f16"):
        raise Unsupported("element types of wmma.mma")
    d, a, b, c = ins.operands
    left, right = (_operand(w, operand, _PACKED[kind]) for operand in (a, b))
    if types[-1] == "f32":
        start = [w.use(item, "f") for item in _items(c, _WIDE)]
    else:
        packed = [w.use(item, "I") for item in _items(c, _HALVES)]
        start = [f"widen_f16({packed[number // 2]}, {number % 2})" for number in range(_WIDE)]
    value = w.temp(f"multiply_fragments('{kind}', {left}, {right}, X.threads)")
    sums = [w.temp(f"{value}[{number}] + {addend}") for number, addend in enumerate(start)]
    if types[0] == "f32":
        for item, total in zip(_items(d, _WIDE), sums, strict=True):
            w.assign(item, "f", total)
    else:
        for number, item in enumerate(_items(d, _HALVES)):
            w.assign(item, "I", f"pack_f16_rn({sums[2 * number]}, {sums[2 * number + 1]})")


def _wmma(w: BlockWriter, ins: Instruction) -> None:
    handlers = {"load": _load, "store": _store, "mma": _mma}
    if wmma_shapes.is_other_shape(ins):
        handlers = {"load": wmma_shapes.access, "store": wmma_shapes.access, "mma": wmma_shapes.multiply}
    handler = handlers.get(ins.parts[1])
    if handler is None:
        raise Unsupported("form of wmma")
    w.require_warps()
    handler(w, ins)


HANDLERS: dict[str, Handler] = {"wmma": _wmma}
