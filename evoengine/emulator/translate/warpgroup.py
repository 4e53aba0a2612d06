"""Translation of ``wgmma``. Products are computed when they are issued; commits and waits end the use of operands."""

from __future__ import annotations

import re
from typing import Final

from evoengine.emulator.ptx.records import Imm, Instruction, Operand, Vec
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

_SHAPE: Final = re.compile(r"m64n(\d+)k(\d+)$")
_DEPTHS: Final = {"f16": 16, "bf16": 16, "tf32": 8, **dict.fromkeys(("e4m3", "e5m2", "s8", "u8"), 32)}
"""K of each element type: 32 bytes of a row."""
_FP8: Final = ("e4m3", "e5m2")
_INT8: Final = ("s8", "u8")
_NARROW: Final = 32
"""Largest N of integers up to which all multiples of 8 are valid; above it, only multiples of 16."""
_ORDERING: Final = ("fence", "commit_group", "wait_group")


def _wgmma(w: BlockWriter, ins: Instruction) -> None:
    if ins.parts[1] in _ORDERING:
        allow(ins, _ORDERING, ("sync", "aligned"))
        if ins.parts[1] == "commit_group":
            w.emit(f"X.operands.commit({w.mask()})")
        elif ins.parts[1] == "wait_group":
            w.emit(f"X.operands.wait({_literal(ins.operands[0])}, {w.mask()})")
        return
    columns, kinds = _form(ins)
    if ins.predicate is not None:
        raise Unsupported("a predicate on wgmma")
    d, a, b, keep, *numbers = ins.operands
    from_registers = isinstance(a, Vec)
    sign, transposed = _factors(numbers, kinds[0], from_registers)
    left = ", ".join(w.use(item, "I") for item in a.items) if isinstance(a, Vec) else w.use(a, "Q")
    count = columns // 4 if ins.parts[5] == "f16" else columns // 2
    if not isinstance(d, Vec) or len(d.items) != count:
        raise Unsupported("accumulators of wgmma")
    value = w.temp(
        f"multiply_async(X, {kinds}, ({left},), {w.use(b, 'Q')}, {columns}, {transposed}, {w.mask()}, {w.site})"
    )
    _accumulate(w, ins, d, value if sign > 0 else w.temp(f"-{value}"), w.temp(w.use(keep, "p")))


def _form(ins: Instruction) -> tuple[int, tuple[str, str]]:
    """Checks the modifiers of ``mma_async``; returns N and the element types of A and B."""
    shape = _SHAPE.match(ins.parts[4]) if len(ins.parts) in (8, 9) else None
    if ins.parts[1:4] != ("mma_async", "sync", "aligned") or shape is None:
        raise Unsupported("form of wgmma")
    columns, depth = (int(size) for size in shape.groups())
    accumulator, left, right = ins.parts[5:8]
    integer = left in _INT8
    family = _INT8 if integer else _FP8 if left in _FP8 else (left,)
    accumulators = ("s32",) if integer else ("f32",) if left in ("bf16", "tf32") else ("f32", "f16")
    rest = ins.parts[8:]
    if (
        _DEPTHS.get(left) != depth
        or right not in family
        or accumulator not in accumulators
        or rest not in ((), ("satfinite",) if integer else ())
        or columns % 8
        or not 8 <= columns <= 256
        or (integer and columns > _NARROW and columns % 16)
    ):
        raise Unsupported("form of wgmma")
    return columns, (left, right)


def _factors(numbers: list[Operand], kind: str, from_registers: bool) -> tuple[int, tuple[bool, bool]]:
    """The sign of the product, and whether A and B are transposed, from the literals after ``scale-d``."""
    literals = [_literal(number) for number in numbers]
    halves = kind in ("f16", "bf16")
    transposes = (1 if from_registers else 2) if halves else 0
    factors = literals[:2] if kind not in _INT8 else [1, 1]
    if len(literals) != transposes + (0 if kind in _INT8 else 2) or not {*factors} <= {1, -1}:
        raise Unsupported("factors or transposes of wgmma")
    flags = [flag == 1 for flag in literals[2:]]
    return factors[0] * factors[1], (flags[-2] if len(flags) > 1 else False, flags[-1] if flags else False)


def _accumulate(w: BlockWriter, ins: Instruction, d: Vec, value: str, kept: str) -> None:
    """Adds the product to the accumulators, or replaces them by it where ``kept`` is false."""
    kind = ins.parts[5]
    for number, item in enumerate(d.items):
        if kind == "f32":
            w.assign(item, "f", f"{value}[{number}] + where({kept}, {w.use(item, 'f')}, np.float32(0))")
        elif kind == "s32":
            addend = f"where({kept}, {w.use(item, 'i')}, np.int32(0))"
            w.assign(item, "I", f"add_s32({value}[{number}], {addend}, {'satfinite' in ins.parts})")
        else:
            bits = w.temp(f"where({kept}, {w.use(item, 'I')}, np.uint32(0))")
            sums = [f"{value}[{2 * number + half}] + widen_f16({bits}, {half})" for half in (0, 1)]
            w.assign(item, "I", f"pack_f16_rn({sums[0]}, {sums[1]})")


def _literal(operand: Operand) -> int:
    if not isinstance(operand, Imm):
        raise Unsupported("wgmma with a factor or transpose that is not a literal")
    return int(operand.text, 0)


HANDLERS: dict[str, Handler] = {"wgmma": _wgmma}
