"""What names stand for in many configs at once: looked up, not computed.

A tunable, or a derived value that follows from some of them, is a table over their values, which is filled once. The
place of a config in each table is a sum over its value indices, so that one product of matrices finds all places.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.language.expression import names_in
from evoengine.space.language.rules import Derived
from evoengine.space.language.vectorized import Array
from evoengine.space.rulebook import RuleBook

_MOST_ENTRIES: Final = 2**21
"""Of a table: filled within some ten milliseconds, and its places are exact in single precision."""


class Columns:
    """Values of some names, for rows of one space.

    Args:
        book: the space's tunables, derived values and constants.
        names: tunables, derived values and constants.

    Raises:
        SearchSpaceError: a derived value cannot be computed.
    """

    def __init__(self, book: RuleBook, names: Iterable[str]) -> None:
        self._book = book
        wanted, self._computed = _parted(book, set(names))
        self._tables = {name: book.table(name).ravel() for name in sorted(wanted)}
        self._radix = np.array([_radix(book, name) for name in self._tables], np.float32)

    def of(self, rows: IndexRows) -> dict[str, Array]:
        """``[configs]`` each, by name.

        Raises:
            SearchSpaceError: a derived value cannot be computed for one of them.
        """
        places: npt.NDArray[np.intp] = (self._radix @ rows.T.astype(np.float32)).astype(np.intp)
        columns = {name: table.take(own) for (name, table), own in zip(self._tables.items(), places, strict=True)}
        for item in self._computed:
            columns[item.name] = np.broadcast_to(self._book.derive(item, columns), len(rows))
        return columns


def _parted(book: RuleBook, names: set[str]) -> tuple[set[str], list[Derived]]:
    """What is looked up, and the derived values whose tables would be too large, which are computed from it."""
    computed: list[Derived] = []
    for item in reversed(book.definition.derived):
        if item.name in names and _entries(book, item.name) > _MOST_ENTRIES:
            names = names - {item.name} | names_in(item.expr)
            computed.insert(0, item)
    return names, computed


def _entries(book: RuleBook, name: str) -> int:
    size = 1
    for axis in book.axes_behind(name):
        size *= len(book.tunables[axis].values)
    return size


def _radix(book: RuleBook, name: str) -> npt.NDArray[np.float32]:
    """``[tunables]``: by how much a step of each moves the place in the name's table."""
    radix, place = np.zeros(len(book.tunables), np.float32), 1
    for axis in reversed(book.axes_behind(name)):
        radix[axis], place = place, place * len(book.tunables[axis].values)
    return radix
