"""Records of a parsed PTX entry: instructions, operands, variables. No behaviour.

An instruction is a named tuple, because an entry has thousands, and tuples are made faster than frozen dataclasses.
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
"""Bits of every fundamental PTX type that the emulator knows."""


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register; ``invert`` marks ``!%p`` used as an operand."""

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
    """The address of a variable, plus bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """``[base + offset]``."""

    base: Reg | Sym | Imm
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vec:
    """``{a, b, …}``; None stands for the sink ``_``."""

    items: tuple[Reg | Imm | Special | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: a value and a predicate destination; None stands for the sink ``_``."""

    first: Reg | None
    second: Reg | None


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target or other bare name."""

    name: str


Operand = Reg | Special | Imm | Sym | Mem | Vec | Pair | Label | None


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
    """(file number, line) of the nearest ``.loc``."""

    @property
    def name(self) -> str:
        """The opcode's first part."""
        return self.parts[0]

    @property
    def opcode(self) -> str:
        """The full opcode."""
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in some state space; ``data`` holds its initial bytes, zero-padded, or None where it has none."""

    space: str
    name: str
    align: int
    size: int
    data: bytes | None = None
    """None for shared and local variables and for extern arrays."""


@dataclass(frozen=True, slots=True)
class Param:
    """One kernel parameter at its offset in the parameter block."""

    name: str
    align: int
    size: int
    offset: int


@dataclass(frozen=True)
class Entry:
    """One ``.entry`` with everything that it refers to."""

    name: str
    params: tuple[Param, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    """Label to the index of the instruction that follows it."""
    branch_targets: dict[str, tuple[str, ...]]
    """Label of a ``.branchtargets`` list to its labels."""
    register_types: tuple[str, ...]
    variables: dict[str, Variable]
    referenced: frozenset[str]
    """Of variables and parameters: those that an instruction names."""
    files: dict[int, str]
    text_lines: tuple[str, ...] = field(repr=False)

    @property
    def param_bytes(self) -> int:
        """Size of the parameter block."""
        return max((p.offset + p.size for p in self.params), default=0)
