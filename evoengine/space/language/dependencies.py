"""What an expression reads, directly and through derived names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evoengine.space.language.expression import names_in
from evoengine.space.language.rules import Derived


@dataclass(frozen=True)
class Support:
    """Everything behind one expression."""

    names: frozenset[str]
    """Tunables and names of the problem and the target."""
    derived: tuple[Derived, ...]
    """The derived values that it needs, in file order."""


def support_of(text: str, derived: Sequence[Derived]) -> Support:
    """What is behind an expression.

    Args:
        text: the expression.
        derived: all derived values; each reads only those before it.

    Raises:
        ExpressionError: the text is not a valid expression.
    """
    names = set(names_in(text))
    needed: list[Derived] = []
    for item in reversed(derived):
        if item.name in names:
            names.remove(item.name)
            names |= names_in(item.expr)
            needed.append(item)
    return Support(frozenset(names), tuple(reversed(needed)))
