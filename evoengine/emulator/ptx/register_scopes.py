"""Name lookup in a PTX body: registers in nested scopes, variables, and the parameters of an inlined call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from evoengine.emulator.ptx.label_scopes import LabelScopes
from evoengine.emulator.ptx.records import Operand, Reg

Binding = Reg | str
"""Meaning of a name: a register, or the unique name of a variable."""
_DIGITS: Final = "0123456789"


class _Range(NamedTuple):
    """Registers that are declared as a range."""

    kind: str
    size: int


class Frame:
    """Names of one body: the entry's, or that of one inlined call to a device function.

    Args:
        types: Types of all registers of the entry; new registers are appended.
        function: Name of the called function; empty for the entry.
        prefix: Prefix of the labels and variables of the body, unique for each call.
        bindings: Bindings of the function's parameters and results.
        unique_labels: Whether no two scopes may have the same label.
    """

    def __init__(
        self,
        types: list[str],
        function: str = "",
        prefix: str = "",
        bindings: Mapping[str, Binding] | None = None,
        *,
        unique_labels: bool = False,
    ) -> None:
        self.function = function
        self.prefix = prefix
        self.operands: dict[str, Operand] = {}
        """Cache of parsed operands; cleared when a name changes its meaning."""
        self.labels = LabelScopes(unique=unique_labels)
        self.last_label = ""
        self._types = types
        self._scopes: list[dict[str, Binding]] = [dict(bindings or {})]
        self._ranges: list[dict[str, _Range]] = [{}]

    def enter(self) -> None:
        """Opens a scope."""
        self._scopes.append({})
        self._ranges.append({})
        self.operands = {}

    def leave(self) -> None:
        """Closes the innermost scope."""
        if len(self._scopes) > 1:
            self._scopes.pop()
            self._ranges.pop()
        self.operands = {}

    def declare_range(self, stem: str, kind: str, count: int) -> None:
        """Declares ``stem0`` to ``stem(count - 1)`` in the innermost scope; each becomes a register on first use."""
        self._ranges[-1][stem] = _Range(kind, count)
        self.operands = {}

    def declare(self, name: str, kind: str) -> Reg:
        """Declares one register in the innermost scope."""
        register = self._new(kind)
        self.bind(name, register)
        return register

    def bind(self, name: str, binding: Binding) -> None:
        """Binds a name in the innermost scope."""
        self._scopes[-1][name] = binding
        self.operands = {}

    def find(self, name: str) -> Binding | None:
        """Binding of a name in the innermost scope that has one; None if there is none."""
        stem = name.rstrip(_DIGITS)
        number = name[len(stem) :]
        for scope, ranges in zip(reversed(self._scopes), reversed(self._ranges), strict=True):
            if name in scope:
                return scope[name]
            declared = ranges.get(stem) if number else None
            if declared is not None:
                if str(int(number)) != number or int(number) >= declared.size:
                    return None  # ptxas reads %r01 as %r1, and %r9 of .reg .b32 %r<5> as a register of an outer scope
                register = scope[name] = self._new(declared.kind)
                return register
        return None

    def register(self, name: str) -> Reg | None:
        found = self.find(name)
        return found if isinstance(found, Reg) else None

    def _new(self, kind: str) -> Reg:
        self._types.append(kind)
        return Reg(len(self._types) - 1)
