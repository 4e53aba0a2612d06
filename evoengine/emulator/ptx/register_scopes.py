"""The names that a body of PTX may use: registers in nested scopes, and where a call's parameters live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.emulator.ptx.records import Operand, Reg

Place = Reg | str
"""A register, or the unique name of a variable."""
_DIGITS: Final = "0123456789"


class Frame:
    """Names of one body: that of the entry, or that of one call to a device function.

    Args:
        types: the type of every register of the entry; new registers are added to it.
        function: the function that is called, empty for the entry.
        prefix: put before the labels and variables of the body, so that two calls do not share them.
        places: what the function's parameters and results stand for.
    """

    def __init__(
        self, types: list[str], function: str = "", prefix: str = "", places: Mapping[str, Place] | None = None
    ) -> None:
        self.function = function
        self.prefix = prefix
        self.operands: dict[str, Operand] = {}
        """Operands parsed before, valid until a name changes its meaning."""
        self.last_label = ""
        self._types = types
        self._scopes: list[dict[str, Place]] = [dict(places or {})]
        self._ranges: dict[str, str] = {}

    def enter(self) -> None:
        """Opens a scope."""
        self._scopes.append({})
        self.operands = {}

    def leave(self) -> None:
        """Closes the innermost scope."""
        if len(self._scopes) > 1:
            self._scopes.pop()
        self.operands = {}

    def declare_range(self, stem: str, kind: str) -> None:
        """Declares ``stem0, stem1 …``; each becomes a register when it is first named."""
        self._ranges[stem] = kind
        self.operands = {}

    def declare(self, name: str, kind: str) -> Reg:
        """Declares one register in the innermost scope."""
        register = self._new(kind)
        self.bind(name, register)
        return register

    def bind(self, name: str, place: Place) -> None:
        """Gives a name a meaning in the innermost scope."""
        self._scopes[-1][name] = place
        self.operands = {}

    def find(self, name: str) -> Place | None:
        """What a name stands for here, or None where this body does not know it."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        stem = name.rstrip(_DIGITS)
        if stem in self._ranges and stem != name:
            register = self._scopes[0][name] = self._new(self._ranges[stem])
            return register
        return None

    def register(self, name: str) -> Reg | None:
        """The register of that name."""
        found = self.find(name)
        return found if isinstance(found, Reg) else None

    def _new(self, kind: str) -> Reg:
        self._types.append(kind)
        return Reg(len(self._types) - 1)
