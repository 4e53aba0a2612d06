"""Records of the PTX screen: its rules, its findings, and the signature of the kernels that it reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Rule(enum.Enum):
    """Rule that a line of PTX violates."""

    TEXT = "text"
    """A character or directive that the screen and the assembler could read differently."""
    MODULE = "module"
    """A declaration outside of entries that no kernel needs: an external name, another entry, a function."""
    VARIABLE = "variable"
    """A module variable that is written, or whose address is taken: it would keep state between calls."""
    INSTRUCTION = "instruction"
    """An instruction or a modifier that is not on the list of allowed ones."""
    REGISTER = "register"
    """A special register that reveals time, place or number of calls."""
    ADDRESS = "address"
    """An address without exactly one base: a pointer argument, shared memory or local memory."""
    ACCESS = "access"
    """An access that the buffer is not for: a load of the output, a store to an input."""
    POINTER = "pointer"
    """The value of a pointer is compared, stored or computed with, other than to address memory."""
    DATA = "data"
    """A global address depends on the contents of a tensor."""
    UNINITIALISED = "uninitialised"
    """A register may be read before it is written."""


@dataclass(frozen=True)
class Finding:
    """One violation."""

    rule: Rule
    line: int
    """PTX line, from 1."""
    instruction: str
    """Text of the instruction or declaration, as one line."""
    reason: str

    def __str__(self) -> str:
        return f"{self.rule.value}: PTX line {self.line}: {self.reason}: {self.instruction}"


class Access(enum.Flag):
    """Kinds of access to a buffer."""

    READ = enum.auto()
    WRITE = enum.auto()
    ATOMIC = enum.auto()


@dataclass(frozen=True)
class PointerField:
    """Pointer in the first argument of a kernel."""

    name: str
    offset: int
    """Position in the argument, in bytes."""
    access: Access
    indexes: bool = False
    """Whether addresses may depend on the contents of the buffer."""


@dataclass(frozen=True)
class Signature:
    """Entries of a module, and the meaning of their arguments."""

    entries: tuple[str, ...]
    argument_bytes: int
    """Size of the first argument."""
    pointers: tuple[PointerField, ...]
    maps: tuple[Access, ...] = ()
    """Permitted access through each tensor map of the second argument; no second argument if empty."""
    map_bytes: int = 128
    """Size of a tensor map."""
