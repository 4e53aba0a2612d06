"""Translation of ``mma.sync`` on f16 and bf16, with fusion of instructions into larger matrix products.

Instructions are deferred until a result is read or a source is overwritten. Instructions that accumulate into the same
registers form a chain along K; chains with equal A fragments become the columns of one batched matrix product. Since
registers are immutable arrays, deferring does not change results.
"""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.emulator.ptx.records import Instruction, Operand, Reg, Vec
from evoengine.emulator.translate.writer import BlockWriter, Unsupported, allow

_SHAPES = {"m16n8k16": 2, "m16n8k8": 1}
"""Steps of 8 along K, by shape."""


@dataclass
class _Chain:
    """Instructions that accumulate into the same registers."""

    kind: str
    halves: int
    """Steps of 8 along K per instruction."""
    outputs: tuple[int, ...]
    start: tuple[str, ...]
    """Names of the accumulators before the first instruction."""
    a: list[tuple[str, ...]]
    """Names of the A registers, by instruction."""
    b: list[tuple[str, ...]]


def _registers(operand: Operand) -> tuple[Reg, ...]:
    items = operand.items if isinstance(operand, Vec) else (operand,)
    out: list[Reg] = []
    for item in items:
        if not isinstance(item, Reg):
            raise Unsupported("mma operand that is not a register")
        out.append(item)
    return tuple(out)


class MmaFuser:
    """Defers and fuses the ``mma`` instructions of one block."""

    def __init__(self, writer: BlockWriter) -> None:
        self._w = writer
        self._chains: list[_Chain] = []
        self._outputs: dict[int, _Chain] = {}
        self._sources: set[int] = set()

    def before_use(self, index: int) -> None:
        """Emits deferred instructions before a read of one of their results."""
        if index in self._outputs:
            self.flush()

    def before_write(self, index: int) -> None:
        """Emits deferred instructions before a write to one of their registers."""
        if index in self._outputs or index in self._sources:
            self.flush()

    def add(self, ins: Instruction) -> None:
        """Adds one ``mma.sync.aligned.m16n8k*.row.col.dtype.atype.btype.ctype``."""
        w = self._w
        allow(ins, ("sync", "aligned", "row", "col", "f32", "f16", "bf16"), _SHAPES)
        if len(ins.parts) != 10 or ins.parts[4:6] != ("row", "col") or ins.parts[7] != ins.parts[8]:
            raise Unsupported("form of mma")
        halves, kind = _SHAPES[ins.parts[3]], ins.parts[7]
        d, a, b, c = ins.operands
        w.require_warps()
        if (
            ins.parts[6] == "f16"
            or ins.parts[9] == "f16"
            or ins.predicate is not None
            or not isinstance(c, Vec)
            or not all(isinstance(item, Reg) for item in c.items)
        ):
            self._immediate(ins, halves, kind)
            return
        outputs = tuple(reg.index for reg in _registers(d))
        inputs = tuple(reg.index for reg in _registers(c))
        left = tuple(w.use(reg, "I") for reg in _registers(a))
        right = tuple(w.use(reg, "I") for reg in _registers(b))
        chain = self._outputs.get(inputs[0])
        fits = chain is not None and chain.outputs == inputs and (chain.kind, chain.halves) == (kind, halves)
        if not (fits and (outputs == inputs or all(w.program.uses[i] == 1 for i in inputs))):
            chain = None
            start = tuple(w.use(Reg(i), "f") for i in inputs)
        if any((i in self._outputs and i not in inputs) or i in self._sources for i in outputs):
            self.flush()
            if chain is not None:
                chain, start = None, tuple(w.use(Reg(i), "f") for i in inputs)
        if chain is None:
            chain = _Chain(kind, halves, outputs, start, [], [])
            self._chains.append(chain)
        else:
            for i in inputs:
                del self._outputs[i]
            chain.outputs = outputs
        chain.a.append(left)
        chain.b.append(right)
        for i in outputs:
            self._outputs[i] = chain
        self._sources.update(reg.index for operand in (a, b) for reg in _registers(operand))
        self._sources.update(i for i in inputs if i not in outputs)

    def flush(self) -> None:
        """Emits all deferred instructions."""
        chains, self._chains, self._outputs, self._sources = self._chains, [], {}, set()
        groups: dict[tuple[object, ...], list[_Chain]] = {}
        for chain in chains:
            groups.setdefault((chain.kind, chain.halves, tuple(chain.a)), []).append(chain)
        for group in groups.values():
            self._emit(group)

    def _emit(self, group: list[_Chain]) -> None:
        w = self._w
        first = group[0]
        left = ", ".join(name for step in first.a for name in step)
        right = ", ".join(name for chain in group for step in chain.b for name in step)
        steps = len(first.a)
        start = ", ".join(name for chain in group for name in chain.start)
        value = w.temp(f"multiply('{first.kind}', ({left},), ({right},), {steps}, {first.halves}, X.threads)")
        value = w.temp(f"add_each({value}, ({start},))")
        for number, chain in enumerate(group):
            for part, index in enumerate(chain.outputs):
                w.known[index] = {"f": f"{value}[{4 * number + part}]"}
                w.written[index] = None

    def _immediate(self, ins: Instruction, halves: int, kind: str) -> None:
        """Emits one instruction without fusion: one with f16 or literal accumulators, or a guard."""
        w = self._w
        d, a, b, c = ins.operands
        left = ", ".join(w.use(reg, "I") for reg in _registers(a))
        right = ", ".join(w.use(reg, "I") for reg in _registers(b))
        outputs = _registers(d)
        c_items: tuple[Operand, ...] = c.items if isinstance(c, Vec) else (c,)
        value = w.temp(f"multiply('{kind}', ({left},), ({right},), 1, {halves}, X.threads)")
        if ins.parts[9] == "f16":
            start = [w.use(item, "I") for item in c_items]
            parts = [f"widen_f16({start[i // 2]}, {i % 2})" for i in range(4)]
        else:
            parts = [w.use(item, "f") for item in c_items]
        sums = [w.temp(f"{value}[{i}] + {parts[i]}") for i in range(4)]
        if ins.parts[6] == "f16":
            for i, reg in enumerate(outputs):
                w.assign(reg, "I", f"pack_f16_rn({sums[2 * i]}, {sums[2 * i + 1]})")
        else:
            for i, reg in enumerate(outputs):
                w.assign(reg, "f", sums[i])
