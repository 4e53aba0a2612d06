"""Labels of nested scopes.

A label is visible in its own scope and in those inside it. Inline assembly in braces that is expanded several times,
such as a loop around ``mbarrier.try_wait``, repeats its labels in scopes that lie beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.emulator.ptx.records import Instruction, Label

_TOP: Final = (0,)


class LabelScopes:
    """Open scopes of one body, and the labels that were declared in its scopes.

    Args:
        unique: Whether no two scopes may have the same label.
    """

    def __init__(self, *, unique: bool = False) -> None:
        self._unique = unique
        self._entered = 0
        self._path: tuple[int, ...] = _TOP
        self._paths: dict[str, list[tuple[int, ...]]] = {}
        """Scopes of each label; a scope is given by the numbers of all that enclose it, and its own."""
        self._open: list[tuple[int, dict[str, str]]] = []

    def enter(self, at: int) -> None:
        """Opens a scope that begins with instruction number ``at``."""
        self._entered += 1
        self._path = (*self._path, self._entered)
        self._open.append((at, {}))

    def leave(self) -> tuple[int, Mapping[str, str]]:
        """Closes the innermost scope; returns its first instruction, and the unique names of its labels."""
        if not self._open:
            return 0, {}
        self._path = self._path[:-1]
        return self._open.pop()

    def declare(self, name: str) -> str:
        """Declares a label in the innermost scope; returns its unique name.

        Raises:
            ValueError: The same scope, one around it or one inside it has the label too.
        """
        for other in (paths := self._paths.setdefault(name, [])):
            shared = min(len(other), len(self._path))
            if self._unique or other[:shared] == self._path[:shared]:
                raise ValueError(name)
        paths.append(self._path)
        if not self._open:
            return name
        bound = self._open[-1][1][name] = f"{name}@{len(paths)}"
        return bound


def renamed(ins: Instruction, names: Mapping[str, str]) -> Instruction:
    """Returns an instruction whose labels have the unique names of their scope."""
    if not any(isinstance(operand, Label) and operand.name in names for operand in ins.operands):
        return ins
    operands = (Label(names.get(op.name, op.name)) if isinstance(op, Label) else op for op in ins.operands)
    return ins._replace(operands=tuple(operands))
