"""Translation of ``wmma`` on other tiles than 16x16x16 of f16 or bf16."""

from __future__ import annotations

from typing import Final

from evoengine.emulator.ptx.records import Imm, Instruction, Operand, Vec
from evoengine.emulator.translate.memory import address
from evoengine.emulator.translate.writer import BlockWriter, Unsupported, allow

_K16: Final = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}
_TF32: Final = {"m16n16k8": (16, 16, 8)}
_F64: Final = {"m8n8k4": (8, 8, 4)}
_SHAPES: Final = {**_K16, **_TF32, **_F64}
"""M, N and K of each shape."""
_OPERANDS: Final = {**dict.fromkeys(("f16", "bf16", "s8", "u8"), _K16), "tf32": _TF32, "f64": _F64}
"""Shapes of each element type of A and B."""
_SIZES: Final = {"s8": 1, "u8": 1, "f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s32": 4, "f64": 8}
"""Bytes of each element type."""
_ACCUMULATORS: Final = {
    "f16": ("f16", "f32"),
    **dict.fromkeys(("bf16", "tf32"), ("f32",)),
    **dict.fromkeys(("s8", "u8"), ("s32",)),
    "f64": ("f64",),
}
_ACCUMULATED: Final = {"f16": _K16, "f32": {**_K16, **_TF32}, "s32": _K16, "f64": _F64}
"""Shapes of each element type of C and D."""
_CODES: Final = {"f32": "f", "s32": "i", "f64": "d"}
_F16_REGISTERS: Final = 8
"""Registers of an f16 operand of any shape."""
_LINES: Final = {"a": "row", "b": "col", "c": "row", "d": "row"}
"""Memory order, by matrix, in which a line of memory is a line of the fragment."""
_SPACES: Final = {"shared": "shared", "shared::cta": "shared", "global": "global"}


def is_other_shape(ins: Instruction) -> bool:
    """Whether the tile is not 16x16x16, or of integers."""
    return "m16n16k16" not in ins.parts or not {"s8", "u8", "s32"}.isdisjoint(ins.parts)


def _shape(ins: Instruction) -> tuple[int, int, int]:
    found = next((_SHAPES[part] for part in ins.parts if part in _SHAPES), None)
    if found is None:
        raise Unsupported("form of wmma")
    return found


def _tile(matrix: str, shape: tuple[int, int, int]) -> tuple[int, int]:
    """Lines of a matrix, and elements of a line."""
    rows, columns, depth = shape
    return {"a": (rows, depth), "b": (columns, depth)}.get(matrix, (rows, columns))


def _count(matrix: str, kind: str, tile: tuple[int, int]) -> int:
    """Registers of a fragment."""
    if kind == "f16" and matrix in "ab":
        return _F16_REGISTERS
    return tile[0] * tile[1] * _SIZES[kind] // (32 * max(4, _SIZES[kind]))


def _items(operand: Operand, count: int) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    if len(items) != count:
        raise Unsupported("wmma fragment")
    return items


def access(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``wmma.load`` or ``wmma.store``."""
    loads, matrix, kind, shape = ins.parts[1] == "load", ins.parts[2], ins.parts[-1], _shape(ins)
    allow(ins, ("load", "store", "a", "b", "c", "d", "sync", "aligned", "row", "col"), _SHAPES, _SPACES, _SIZES)
    name = next(part for part in ins.parts if part in _SHAPES)
    shapes = _OPERANDS if matrix in "ab" else _ACCUMULATED
    if name not in shapes.get(kind, ()):
        raise Unsupported(f"element type .{kind} of wmma.{ins.parts[1]}.{matrix}")
    tile = _tile(matrix, shape)
    first, second, *pitch = ins.operands if loads else (ins.operands[1], ins.operands[0], *ins.operands[2:])
    space = next((_SPACES[part] for part in ins.parts if part in _SPACES), "generic")
    transpose = next(part for part in ins.parts if part in ("row", "col")) != _LINES[matrix]
    step = w.use(pitch[0] if pitch else Imm(str(tile[0] if transpose else tile[1])), "I")
    place = f"X, '{space}', {address(w, second, space)}, {step}, {tile}, {_SIZES[kind]}"
    rest = f"{transpose}, {w.mask()}, {w.site}"
    code = "Q" if kind == "f64" else "I"
    items = _items(first, _count(matrix, kind, tile))
    if loads:
        w.bind(items, code, w.temp(f"load_tile({place}, {len(items)}, {rest})"))
    else:
        w.emit(f"store_tile({place}, ({', '.join(w.use(item, code) for item in items)},), {rest})")


def multiply(w: BlockWriter, ins: Instruction) -> None:
    """Translates ``wmma.mma``, with two types for f16 and four for others."""
    shape, saturates = _shape(ins), "satfinite" in ins.parts
    parts = [part for part in ins.parts if part not in ("satfinite", "rn")]
    name, types = parts[6], parts[7:]
    left, right = types[1:3] if len(types) == 4 else ("f16", "f16")
    wanted = _ACCUMULATORS.get(left, ())
    if parts[2:4] != ["sync", "aligned"] or len(types) not in (2, 4) or left != right:
        raise Unsupported("form of wmma.mma")
    if name not in _OPERANDS.get(left, ()) or types[0] not in wanted or types[-1] not in wanted:
        raise Unsupported("element types of wmma.mma")
    if saturates and wanted != ("s32",):
        raise Unsupported("modifier .satfinite")
    code = "Q" if left == "f64" else "I"
    operands = []
    for matrix, operand in zip("ab", ins.operands[1:3], strict=True):
        items = _items(operand, _count(matrix, left, _tile(matrix, shape)))
        operands.append(", ".join(w.use(item, code) for item in items))
    value = w.temp(f"multiply_tiles({(left, right)}, ({operands[0]},), ({operands[1]},), {shape}, X.threads)")
    _accumulate(w, ins, (types[0], types[-1]), shape, value, saturates)


def _accumulate(
    w: BlockWriter,
    ins: Instruction,
    kinds: tuple[str, str],
    shape: tuple[int, int, int],
    value: str,
    saturates: bool,
) -> None:
    """Adds the product to C, and assigns the sums to D; ``kinds`` are the types of D and C."""
    tile = _tile("c", shape)
    count = tile[0] * tile[1] // 32
    addends = _items(ins.operands[3], _count("c", kinds[1], tile))
    if kinds[1] == "f16":
        packed = [w.use(item, "I") for item in addends]
        start = [f"widen_f16({packed[number // 2]}, {number % 2})" for number in range(count)]
    else:
        start = [w.use(item, _CODES[kinds[1]]) for item in addends]
    results = _items(ins.operands[0], _count("d", kinds[0], tile))
    if kinds[0] == "s32":
        sums = [w.temp(f"add_s32({value}[{number}], {start[number]}, {saturates})") for number in range(count)]
    else:
        sums = [w.temp(f"{value}[{number}] + {start[number]}") for number in range(count)]
    for number, item in enumerate(results):
        if kinds[0] == "f16":
            w.assign(item, "I", f"pack_f16_rn({sums[2 * number]}, {sums[2 * number + 1]})")
        else:
            w.assign(item, "I" if kinds[0] == "s32" else _CODES[kinds[0]], sums[number])
