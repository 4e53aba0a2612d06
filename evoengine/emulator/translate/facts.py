"""What the translators of single instructions may ask of the program that they are part of."""

from __future__ import annotations

from typing import Protocol

from evoengine.emulator.ptx.control_flow import ControlFlow
from evoengine.emulator.ptx.records import Entry, Sym


class ProgramFacts(Protocol):
    """The side of a program that a block's translation sees."""

    entry: Entry
    flow: ControlFlow
    canonical: list[str]
    """By register: the dtype code that it is kept in."""
    uses: list[int]
    """By register: how many operands read it."""

    def constant(self, value: int, code: str) -> str:
        """Name of a ``[1, 1]`` array that holds these bits."""

    def numbers(self, registers: tuple[int, ...]) -> str:
        """Name of a tuple of the numbers of registers."""

    def reader(self, registers: tuple[int, ...]) -> str:
        """Name of a function that takes the values of several registers from the register file."""

    def symbol_address(self, symbol: Sym, code: str) -> str:
        """Expression for a variable's address."""

    def address_of(self, symbol: Sym) -> int:
        """Offset of a shared, local or param symbol within its space."""

    def special_attribute(self, name: str) -> str:
        """Name of the batch's attribute that holds a special register."""

    def is_shared(self, index: int) -> bool:
        """Whether a register's value must outlive its block."""
