"""Values of tunables and derived names for many configs at once, by table look-up.

Each name has a table over all values of the tunables on which it depends, filled once. The table index of a config is
a weighted sum of its value indices, so one matrix product yields the indices of all configs in all tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.index_rows import IndexRows
from evoengine.space.language.expression import names_in
from evoengine.space.language.rules import Derived
from evoengine.space.language.vectorized import Array
from evoengine.space.rulebook import RuleBook

_MOST_ENTRIES: Final = 2**21
"""Maximum size of a table: it is filled within some ten milliseconds, and its indices are exact in float32."""


class Columns:
    """Values of some names for rows of one space.

    Args:
        book: Tunables, derived values and constants of the space.
        names: Names of tunables, derived values and constants.

    Raises:
        SearchSpaceError: A derived value cannot be computed.
    """

    def __init__(self, book: RuleBook, names: Iterable[str]) -> None:
        self._book = book
        wanted, self._computed = _split(book, set(names))
        self._tables = {name: book.table(name).ravel() for name in sorted(wanted)}
        self._radix = np.array([_radix(book, name) for name in self._tables], np.float32)

    def of(self, rows: IndexRows) -> dict[str, Array]:
        """Returns an array ``[configs]`` by name.

        Raises:
            SearchSpaceError: A derived value cannot be computed for a row.
        """
        indices: npt.NDArray[np.intp] = (self._radix @ rows.T.astype(np.float32)).astype(np.intp)
        columns = {name: table.take(own) for (name, table), own in zip(self._tables.items(), indices, strict=True)}
        for item in self._computed:
            columns[item.name] = np.broadcast_to(self._book.derive(item, columns), len(rows))
        return columns


def _split(book: RuleBook, names: set[str]) -> tuple[set[str], list[Derived]]:
    """Splits names into those with tables, and derived values with too large tables, computed from the others."""
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
    """Returns ``[tunables]``: the stride of each tunable in the name's table, 0 if the name does not depend on it."""
    radix, stride = np.zeros(len(book.tunables), np.float32), 1
    for axis in reversed(book.axes_behind(name)):
        radix[axis], stride = stride, stride * len(book.tunables[axis].values)
    return radix
