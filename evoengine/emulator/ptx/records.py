"""Records of a parsed PTX entry: instructions, operands, variables.

An instruction is a named tuple, because an entry has thousands, and creating a frozen dataclass is slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

TYPE_BITS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bsu" for bits in (8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "b128": 128,
}
"""Bits of every fundamental PTX type that the emulator supports."""


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register; ``invert`` is set for an operand ``!%p``."""

    index: int
    invert: bool = False


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal, kept as text until an instruction gives it a type."""

    text: str


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable plus an offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """A memory operand ``[base + offset]``."""

    base: Reg | Sym | Imm
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a tensor, ``[map, {coordinates}]``."""

    map: Mem
    coordinates: tuple[Reg | Imm | Special | None, ...]


@dataclass(frozen=True, slots=True)
class Vec:
    """A vector operand ``{a, b, …}``; None is the sink ``_``."""

    items: tuple[Reg | Imm | Special | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair of destinations ``d|p``, a value and a predicate; None is the sink ``_``."""

    first: Reg | None
    second: Reg | None


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target or other bare name."""

    name: str


Operand = Reg | Special | Imm | Sym | Mem | Box | Vec | Pair | Label | None


class Instruction(NamedTuple):
    """One PTX instruction."""

    parts: tuple[str, ...]
    """The opcode split at dots: ``("add", "s32")``."""
    operands: tuple[Operand, ...]
    predicate: Reg | None
    """Guard register; ``invert`` is set for ``@!p``."""
    line: int
    """PTX line, from 1."""
    source: tuple[int, int] | None
    """(file number, line) of the preceding ``.loc``."""

    @property
    def name(self) -> str:
        """First part of the opcode."""
        return self.parts[0]

    @property
    def opcode(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in a state space."""

    space: str
    name: str
    align: int
    size: int
    data: bytes | None = None
    """Initial bytes, padded with zeros; None for shared and local variables and for extern arrays."""


@dataclass(frozen=True, slots=True)
class Param:
    """A kernel parameter and its offset in the parameter block."""

    name: str
    align: int
    size: int
    offset: int
    kind: str = ""
    """PTX type of a single value, such as ``f32``; empty for an array of bytes, as which structures are passed."""


@dataclass(frozen=True)
class Entry:
    """A parsed ``.entry``."""

    name: str
    params: tuple[Param, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    """Index of the instruction after each label."""
    branch_targets: dict[str, tuple[str, ...]]
    """Labels in each ``.branchtargets`` list, by the label of the list."""
    register_types: tuple[str, ...]
    variables: dict[str, Variable]
    referenced: frozenset[str]
    """Names of the variables and parameters that instructions use."""
    files: dict[int, str]
    """Source files by number."""
    text_lines: tuple[str, ...] = field(repr=False)
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Performance directives with their numbers: ``maxnreg``, ``maxntid``, ``minnctapersm`` and others."""
