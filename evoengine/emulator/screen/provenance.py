"""Provenance of values: from which pointers, memory and address bits each register of an entry may be computed.

A forward dataflow analysis, which joins by union where paths meet (Aho, Lam, Sethi, Ullman, "Compilers", 2nd edition,
section 9.3). It follows the order of instructions, because NVRTC uses one register for unrelated values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from evoengine.emulator.ptx.control_flow import build, successors
from evoengine.emulator.ptx.declarations import parse_int
from evoengine.emulator.ptx.records import Box, Entry, Imm, Instruction, Mem, Operand, Pair, Reg, Sym, Vec
from evoengine.emulator.screen.records import Signature

Kind = Literal[
    "pointer", "argument", "map", "shared", "generic", "local", "constant", "variable", "bits", "data", "plain"
]


class Source(NamedTuple):
    """One origin of a value.

    The kinds ``pointer``, ``argument``, ``map``, ``shared``, ``generic``, ``local``, ``constant`` and ``variable`` are
    bases of addresses; ``generic`` is the generic address of a variable in shared memory. ``bits`` stands for an
    integer computed from an address, ``data`` for contents of a tensor, and ``plain`` for a value without a base that a
    register holds on other paths than an address.
    """

    kind: Kind
    name: str = ""
    """Name of a pointer or variable; empty for an address in shared memory that is not a variable plus a number."""
    offset: int | None = None
    """Distance from the start of an argument, in bytes; None if it is not known, and for other kinds."""


Sources = frozenset[Source]

BITS: Final = Source("bits")
DATA: Final = Source("data")
PLAIN: Final = Source("plain")
_NONE: Final[Sources] = frozenset()
_BASES: Final = frozenset(("pointer", "argument", "map", "shared", "generic", "local", "constant", "variable"))
_MOST_OFFSETS: Final = 64
"""Number of offsets into an argument that one register may have before they count as unknown."""
_COPIES: Final = frozenset(("mov", "selp", "slct", "cvta", "shfl"))
_CHOOSING: Final = frozenset(("selp", "slct"))
_SPACES: Final[dict[str, Kind]] = {
    "shared": "shared",
    "local": "local",
    "const": "constant",
    "global": "variable",
}
_LOADED: Final = frozenset(("ld", "ldmatrix", "atom", "wmma"))


Registers = dict[int, Sources]
"""Origins by register; registers without any are left out."""


@dataclass
class _State:
    """Knowledge about the registers at one place."""

    registers: Registers
    written: int = 0
    """Registers that some path to this place writes, as a bit set."""

    def copy(self) -> _State:
        return _State(dict(self.registers), self.written)


@dataclass(frozen=True)
class Provenance:
    """Provenance of all registers just before one instruction."""

    entry: Entry
    signature: Signature
    registers: Registers

    def of(self, operand: Operand) -> Sources:
        """Returns the origins of an operand's value; of a memory operand, those of its address."""
        return _of(self.registers, self.entry, operand)


def bases(sources: Sources) -> Sources:
    """Returns the origins that are bases of addresses."""
    return frozenset(source for source in sources if source.kind in _BASES) if sources else sources


def trace(entry: Entry, signature: Signature) -> Iterator[tuple[Instruction, Provenance]]:
    """Yields every instruction with the provenance of all registers before it; none where no path leads to it.

    Each yielded provenance is valid until the next one.
    """
    blocks = build(entry).blocks
    known: dict[int, _State] = {0: _State({})} if blocks else {}
    pending = [0] if blocks else []
    followers = [sorted(successors(entry, blocks, block)) for block in blocks]
    plans = [_Plan.of(ins) for ins in entry.instructions]
    while pending:
        block = blocks[pending.pop()]
        after = known[block.index].copy()
        provenance = Provenance(entry, signature, after.registers)
        for plan in plans[block.start : block.end]:
            _step(plan, provenance, after)
        for follower in followers[block.index]:
            before = known.get(follower)
            if before is None:
                known[follower] = after.copy()
            elif not _join(before, after):
                continue
            if follower not in pending:
                pending.append(follower)
    for block in blocks:
        state = known.get(block.index, _State({})).copy()
        provenance = Provenance(entry, signature, state.registers)
        for plan in plans[block.start : block.end]:
            yield plan.instruction, provenance
            _step(plan, provenance, state)


def _join(before: _State, after: _State) -> bool:
    """Adds the origins of a predecessor to those at the start of a block; returns whether that adds any."""
    grew = after.written | before.written != before.written
    for index, sources in after.registers.items():
        old = before.registers.get(index, _NONE)
        if old is not sources and not sources <= old:
            mixed = not old and before.written >> index & 1
            joined = _widened(old | _mixed(sources) if mixed else old | sources)
            before.registers[index] = joined
            grew = grew or joined != old
    for index in before.registers.keys() - after.registers.keys():
        if after.written >> index & 1:
            old = before.registers[index]
            before.registers[index] = _mixed(old)
            grew = grew or before.registers[index] != old
    before.written |= after.written
    return grew


def _mixed(sources: Sources) -> Sources:
    """Origins of a register that holds a value with these origins on some paths, and one without any on others."""
    if PLAIN in sources or all(source.kind in ("shared", "bits", "data") for source in sources):
        return _confined(sources)
    return sources | {PLAIN}


def _confined(sources: Sources) -> Sources:
    """Origins of an address that may leave its variable in shared memory, where only the hardware checks bounds."""
    return frozenset(source._replace(name="") if source.kind == "shared" else source for source in sources)


class _Plan(NamedTuple):
    """The operands of an instruction that the analysis reads."""

    instruction: Instruction
    targets: tuple[int, ...]
    sources: tuple[Operand, ...]
    reads: frozenset[int]
    bits: int
    """The targets as a bit set."""
    plain: bool
    """Whether only registers decide the result: it neither loads nor names a variable."""

    @classmethod
    def of(cls, ins: Instruction) -> _Plan:
        sources = sources_of(ins)
        symbols = any(isinstance(operand, Sym | Mem) for operand in ins.operands)
        targets = tuple(register.index for register in written(ins))
        bits = sum(1 << target for target in set(targets))
        return cls(ins, targets, sources, read_registers(ins), bits, not symbols)


def _step(plan: _Plan, provenance: Provenance, state: _State) -> None:
    """Updates the provenance by one instruction; a write under a guard may leave the old value."""
    registers, before = state.registers, state.written
    state.written |= plan.bits
    ins, guard = plan.instruction, plan.instruction.predicate
    if plan.plain and registers.keys().isdisjoint(plan.reads):
        results: Iterable[tuple[int, Sources]] = ((target, _NONE) for target in plan.targets)
    else:
        results = list(_results(ins, plan, provenance))
    for target, found in results:
        kept = found
        if guard is not None:
            old = registers.get(target, _NONE)
            kept = found | old
            if (old and not found) or (found and not old and before >> target & 1):
                kept = _mixed(kept)
        if kept:
            registers[target] = kept
        else:
            registers.pop(target, None)


def written(ins: Instruction) -> Iterator[Reg]:
    """Yields the registers that an instruction writes."""
    if ins.name in ("st", "red", "bra", "brx", "ret", "bar", "barrier", "stmatrix", "barrier_note", "nanosleep"):
        return
    if ins.parts[:2] in (("wmma", "store"), ("mbarrier", "init"), ("mbarrier", "inval"), ("mbarrier", "expect_tx")):
        return
    if ins.name in ("cp", "prefetch", "fence", "membar", "setmaxnreg") or not ins.operands:
        return
    yield from _registers(ins.operands[0])


def sources_of(ins: Instruction) -> tuple[Operand, ...]:
    """Returns the operands that an instruction reads, those of addresses included."""
    if ins.parts[:2] == ("wgmma", "mma_async"):
        return ins.operands[1:]  # accumulators are read only if scale-d is true
    if any(True for _ in written(ins)) or (ins.operands and ins.operands[0] is None):
        return ins.operands[1:]
    return ins.operands


def _registers(operand: Operand) -> Iterator[Reg]:
    if isinstance(operand, Reg):
        yield operand
    elif isinstance(operand, Vec):
        yield from (item for item in operand.items if isinstance(item, Reg))
    elif isinstance(operand, Pair):
        yield from (item for item in (operand.first, operand.second) if item is not None)
    elif isinstance(operand, Mem) and isinstance(operand.base, Reg):
        yield operand.base
    elif isinstance(operand, Box):
        yield from _registers(operand.map)
        yield from (item for item in operand.coordinates if isinstance(item, Reg))


def _read(ins: Instruction) -> Iterator[int]:
    """Yields the indices of the registers that an instruction reads, its guard included."""
    for operand in sources_of(ins):
        yield from (register.index for register in _registers(operand))
    if ins.predicate is not None:
        yield ins.predicate.index


def read_registers(ins: Instruction) -> frozenset[int]:
    """Returns the indices of the registers that an instruction reads, its guard included."""
    return frozenset(_read(ins))


def _of(registers: Registers, entry: Entry, operand: Operand) -> Sources:
    if isinstance(operand, Reg):
        return registers.get(operand.index, _NONE)
    if isinstance(operand, Mem):
        return _moved(_of(registers, entry, operand.base), operand.offset)
    if isinstance(operand, Sym):
        return frozenset((_symbol(entry, operand),))
    found = _NONE
    for register in _registers(operand):
        found |= registers.get(register.index, _NONE)
    return found


def _symbol(entry: Entry, symbol: Sym) -> Source:
    for number, param in enumerate(entry.params):
        if param.name == symbol.name:
            return Source("argument", str(number), symbol.offset) if number == 0 else Source("map", "", symbol.offset)
    variable = entry.variables.get(symbol.name)
    kind = _SPACES.get(variable.space) if variable is not None else None
    return BITS if kind is None else Source(kind, symbol.name)


def _moved(sources: Sources, distance: int | None) -> Sources:
    """Origins of an address that is moved by a distance; None for an unknown one."""
    if distance == 0:
        return sources
    return frozenset(
        source
        if source.offset is None
        else source._replace(offset=None if distance is None else source.offset + distance)
        for source in sources
    )


def _widened(sources: Sources) -> Sources:
    if len(sources) <= _MOST_OFFSETS:
        return sources
    return frozenset(source._replace(offset=None) for source in sources)


def _results(ins: Instruction, plan: _Plan, provenance: Provenance) -> Iterator[tuple[int, Sources]]:
    """Yields the provenance of each register that an instruction writes."""
    targets = plan.targets
    if not targets:
        return
    if ins.name in _LOADED and any(isinstance(operand, Mem) for operand in ins.operands):
        yield from _loaded(ins, targets, provenance)
        return
    found = _computed(ins, plan.sources, provenance)
    yield from ((target, found) for target in targets)


def _computed(ins: Instruction, operands: tuple[Operand, ...], provenance: Provenance) -> Sources:
    """Provenance of the result of an instruction that does not access memory."""
    each = [provenance.of(operand) for operand in operands]
    together = frozenset[Source]().union(*each)
    found = bases(together)
    if not found:
        return together
    if ins.parts[:2] == ("cvta", "shared"):
        known = all(source.kind == "shared" and source.name for source in together)
        return frozenset((Source("generic"),)) if known else (together - found) | {BITS}
    packs = any(isinstance(operand, Vec) for operand in ins.operands)
    if ins.name in _COPIES and not packs:
        chosen = each[:2] if ins.name in _CHOOSING else each[:1]
        return together if all(chosen) else _mixed(together)
    if ins.parts[0] == "cvt" and all(base.kind == "shared" for base in found):
        return together  # addresses of shared memory have 32 bits
    with_base = [number for number, sources in enumerate(each) if bases(sources)]
    if len(with_base) == 1 and _adds(ins, with_base[0]):
        return _moved(together, _distance(ins, operands, with_base[0]))
    if all(base.kind in ("shared", "local") for base in found):
        return _confined(together)
    return (together - found) | {BITS}


def _adds(ins: Instruction, number: int) -> bool:
    """Whether an instruction adds an integer to its operand with this number."""
    floating = any(part in ("f16", "f16x2", "bf16", "bf16x2", "f32", "f64") for part in ins.parts)
    if floating or "cc" in ins.parts or "sat" in ins.parts:
        return False
    return ins.name == "add" or (ins.name == "sub" and number == 0) or (ins.name == "mad" and number == 2)


def _distance(ins: Instruction, operands: tuple[Operand, ...], number: int) -> int | None:
    if ins.name not in ("add", "sub"):
        return None
    other = operands[1 - number]
    if not isinstance(other, Imm):
        return None
    value = parse_int(other.text)
    return -value if ins.name == "sub" else value


def _loaded(ins: Instruction, targets: tuple[int, ...], provenance: Provenance) -> Iterator[tuple[int, Sources]]:
    """Provenance of what a load or an atomic returns."""
    address = next(operand for operand in ins.operands if isinstance(operand, Mem))
    sources, signature = provenance.of(address), provenance.signature
    if "param" in ins.parts:
        width = int(ins.parts[-1].lstrip("bsuf")) // 8
        for number, target in enumerate(targets):
            yield target, frozenset().union(*(_field(s, number * width, width, signature) for s in sources))
        return
    inexact = {BITS} & sources
    kinds = {source.kind for source in sources}
    names = {source.name for source in sources if source.kind == "pointer"}
    indexes = {field.name for field in signature.pointers if field.indexes}
    plain = bool(kinds) and kinds <= {"pointer", "constant", "variable"} and names <= indexes
    for target in targets:
        yield target, frozenset(inexact if plain else inexact | {DATA})


def _field(source: Source, distance: int, width: int, signature: Signature) -> Sources:
    """Provenance of an element of an argument."""
    if source.kind != "argument" or source.offset is None:
        return frozenset((BITS,))
    start = source.offset + distance
    for field in signature.pointers:
        if start < field.offset + 8 and start + width > field.offset:
            whole = start == field.offset and width == 8
            return frozenset((Source("pointer", field.name) if whole else BITS,))
    return _NONE
