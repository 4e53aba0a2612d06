"""Configs as rows of value indices, one index for each tunable, and sets of such rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import filterfalse

import numpy as np
import numpy.typing as npt

IndexRow = npt.NDArray[np.uint8]
"""``[tunables]``: Value indices of one config, in the order of the search-space file."""
IndexRows = npt.NDArray[np.uint8]
"""``[configs, tunables]`` value indices."""


def keys_of(rows: IndexRows) -> list[bytes]:
    """Returns a hashable key for each row."""
    keys: list[bytes] = np.ascontiguousarray(rows).view(f"V{rows.shape[1]}").ravel().tolist()
    return keys


def rows_of(keys: Iterable[bytes], tunables: int) -> IndexRows:
    """Returns the rows with these keys."""
    return np.frombuffer(bytearray().join(keys), np.uint8).reshape(-1, tunables)


class RowSet:
    """Distinct rows, such as the configs that a search has seen: a set for look-ups, and a matrix to compute with."""

    def __init__(self, tunables: int) -> None:
        self._known: set[bytes] = set()
        self._rows: IndexRows = np.zeros((64, tunables), np.uint8)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, row: IndexRow) -> bool:
        return row.tobytes() in self._known

    def without(self, rows: IndexRows) -> IndexRows:
        """Returns the rows that are not in the set, without repetition and in order."""
        return rows_of(filterfalse(self._known.__contains__, dict.fromkeys(keys_of(rows))), rows.shape[1])

    def add(self, row: IndexRow) -> None:
        """Adds a row, unless it is in the set."""
        key = row.tobytes()
        if key in self._known:
            return
        if len(self._known) == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[len(self._known)] = row
        self._known.add(key)

    @property
    def rows(self) -> IndexRows:
        """``[configs, tunables]``, in the order of addition."""
        return self._rows[: len(self._known)]

    def with_rows(self, more: Sequence[IndexRow]) -> IndexRows:
        """Returns the matrix, extended by rows that are not in the set."""
        return np.concatenate([self.rows, np.array(more, np.uint8).reshape(-1, self._rows.shape[1])])
