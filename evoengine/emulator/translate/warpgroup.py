"""Translation of ``wgmma``. Products are computed when they are issued; commits and waits end the use of operands."""

from __future__ import annotations

import re
from typing import Final

from evoengine.emulator.ptx.records import Imm, Instruction, Operand, Vec
from evoengine.emulator.translate.writer import BlockWriter, Handler, Unsupported, allow

_SHAPE: Final = re.compile(r"m64n(\d+)k16$")
_KINDS: Final = ("f16", "bf16")
_ORDERING: Final = ("fence", "commit_group", "wait_group")


def _wgmma(w: BlockWriter, ins: Instruction) -> None:
    if ins.parts[1] in _ORDERING:
        allow(ins, _ORDERING, ("sync", "aligned"))
        if ins.parts[1] == "commit_group":
            w.emit(f"X.operands.commit({w.mask()})")
        elif ins.parts[1] == "wait_group":
            w.emit(f"X.operands.wait({_literal(ins.operands[0])}, {w.mask()})")
        return
    shape = _SHAPE.match(ins.parts[4]) if len(ins.parts) == 8 else None
    if ins.parts[1:4] != ("mma_async", "sync", "aligned") or shape is None or ins.parts[5] != "f32":
        raise Unsupported("form of wgmma")
    kind, columns = ins.parts[6], int(shape.group(1))
    if kind not in _KINDS or ins.parts[7] != kind or columns % 8 or not 8 <= columns <= 256:
        raise Unsupported("form of wgmma")
    if ins.predicate is not None:
        raise Unsupported("a predicate on wgmma")
    d, a, b, keep, *numbers = ins.operands
    from_registers = isinstance(a, Vec)
    literals = [_literal(number) for number in numbers]
    if len(literals) != (3 if from_registers else 4) or literals[:2] != [1, 1]:
        raise Unsupported("factors or transposes of wgmma")
    transposed = (False, literals[2] == 1) if from_registers else (literals[2] == 1, literals[3] == 1)
    left = ", ".join(w.use(item, "I") for item in a.items) if isinstance(a, Vec) else w.use(a, "Q")
    if not isinstance(d, Vec) or len(d.items) != columns // 2:
        raise Unsupported("accumulators of wgmma")
    value = w.temp(
        f"multiply_async(X, '{kind}', ({left},), {w.use(b, 'Q')}, {columns}, {transposed}, {w.mask()}, {w.site})"
    )
    kept = w.temp(w.use(keep, "p"))
    for number, item in enumerate(d.items):
        w.assign(item, "f", f"{value}[{number}] + where({kept}, {w.use(item, 'f')}, np.float32(0))")


def _literal(operand: Operand) -> int:
    if not isinstance(operand, Imm):
        raise Unsupported("wgmma with a factor or transpose that is not a literal")
    return int(operand.text, 0)


HANDLERS: dict[str, Handler] = {"wgmma": _wgmma}
