"""A set of configs as a decision diagram: exact however many they are, and small where rules leave much alike.

A config is a row of value indices, one per tunable. The diagram asks for one tunable after the other; a node stands for
everything that the answers so far leave open, so that prefixes that leave the same open share a node. An arrow that
leads to no config is missing: whoever follows arrows never has to turn back. Two diagrams of one order of tunables are
equal exactly when their sets are (Bryant 1986, with more than two values).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.packed_layers import Stride, StridedTest, strides_of
from evoengine.space.diagram.row_dedup import distinct_rows

IndexRow = npt.NDArray[np.uint8]
"""``[tunables]``: value indices of one config, in the order of the search-space file."""
IndexRows = npt.NDArray[np.uint8]
"""``[configs, tunables]``."""
Arrows = npt.NDArray[np.int32]
"""``[nodes, values]``: the node of the next layer for each value of a layer's tunable, or :data:`DEAD`."""
Counts = npt.NDArray[np.int64]

DEAD: Final = -1
"""No config lies that way."""
MOST_CONFIGS: Final = 2**62
"""A set that is walked must be smaller, so that its places fit 64 bits."""


def true_in_rows(table: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How many entries of each row of a table are true; of rows below 256 entries, for which a sum takes longer."""
    return (table.view(np.uint8) @ np.ones(table.shape[1], np.uint8)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Diagram:
    """A set of rows. The first layer has one node; a set without rows has none."""

    axes: tuple[int, ...]
    """Which tunable each layer asks for."""
    layers: tuple[Arrows, ...]

    @classmethod
    def reduced(cls, axes: Sequence[int], layers: Sequence[Arrows]) -> Diagram:
        """The smallest diagram of a set, from any whose last arrows are 0 (taken) or :data:`DEAD`."""
        small: list[Arrows] = []
        names = np.zeros(1, np.int32)
        for arrows in reversed(layers):
            renamed = np.where(arrows < 0, DEAD, names[arrows]).astype(np.int32)
            first, alike = distinct_rows(renamed)
            kept = renamed[first]
            alive = (kept >= 0).any(axis=1)
            names = np.where(alive, np.cumsum(alive) - 1, DEAD).astype(np.int32)[alike]
            small.append(kept[alive])
        return cls(tuple(axes), tuple(reversed(small)))

    @classmethod
    def of_rows(cls, axes: Sequence[int], rows: IndexRows) -> Diagram:
        """The diagram of given rows, all distinct; built from the last tunable to the first."""
        order = np.lexsort([rows[:, axis] for axis in reversed(axes)])
        prefixes = rows[order][:, list(axes)]
        names = np.zeros(len(prefixes), np.int32)
        layers: list[Arrows] = []
        for place in reversed(range(len(axes))):
            changed = (prefixes[1:, :place] != prefixes[:-1, :place]).any(axis=1)
            starts = np.flatnonzero(np.concatenate(([True], changed)))
            group = np.cumsum(np.concatenate(([0], changed)))
            arrows = np.full((len(starts), int(prefixes[:, place].max()) + 1), DEAD, np.int32)
            arrows[group, prefixes[:, place]] = names
            first, alike = distinct_rows(arrows)
            layers.append(arrows[first])
            prefixes, names = prefixes[starts], alike.astype(np.int32)
        return cls(tuple(axes), tuple(reversed(layers)))

    @property
    def empty(self) -> bool:
        """Whether no row is in the set."""
        return len(self.layers[0]) == 0 if self.layers else False

    @property
    def nodes(self) -> int:
        """Size of the diagram."""
        return sum(map(len, self.layers))

    @cached_property
    def count(self) -> int:
        """Rows in the set, exactly, whatever their number."""
        below = [1]
        for arrows in reversed(self.layers):
            below = [sum(below[child] for child in node if child >= 0) for node in arrows.tolist()]
        return below[0] if below else 0

    @cached_property
    def ways(self) -> tuple[Counts, ...]:
        """For each arrow, ``[nodes, values]`` per layer, how many rows lie that way; 0 for a dead one.

        The set must be smaller than :data:`MOST_CONFIGS`.
        """
        below = np.ones(1, np.int64)
        ways: list[Counts] = []
        for arrows in reversed(self.layers):
            ways.append(np.where(arrows < 0, 0, below[arrows]))
            below = ways[-1].sum(axis=1)
        return tuple(reversed(ways))

    @cached_property
    def _before(self) -> tuple[Counts, ...]:
        """For each arrow, how many rows lie along the arrows before it."""
        return tuple(np.cumsum(ways, axis=1) - ways for ways in self.ways)

    @cached_property
    def _test(self) -> StridedTest:
        return StridedTest.of(self.axes, self.layers, self._before)

    @cached_property
    def _strides(self) -> tuple[Stride, ...]:
        return strides_of(self.axes, self.layers, self.ways)

    def place(self, row: IndexRow) -> int | None:
        """Position of a row, counted along the arrows; None if it is not in the set."""
        node, place = 0, 0
        if self.empty:
            return None
        for axis, arrows, before in zip(self.axes, self.layers, self._before, strict=True):
            value = row[axis]
            if value >= arrows.shape[1] or arrows[node, value] < 0:
                return None
            place += int(before[node, value])
            node = arrows[node, value]
        return place

    def places(self, rows: IndexRows) -> Counts:
        """Positions of many rows, all of which are in the set."""
        return self._test.places(rows)

    def contains(self, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Which of many rows are in the set."""
        return np.zeros(len(rows), np.bool_) if self.empty else self._test.passes(rows)

    def row(self, place: int) -> IndexRow:
        """The row at a position.

        Raises:
            IndexError: there is no such position.
        """
        if not 0 <= place < self.count:
            raise IndexError(f"there are {self.count:,} configs, none at {place:,}")
        row: IndexRow = self.rows(np.array([place]))[0]
        return row

    def rows(self, places: npt.NDArray[np.int64]) -> IndexRows:
        """The rows at many positions, all of which exist."""
        rows = np.zeros((len(places), len(self.axes)), np.uint8)
        node, left = np.zeros(len(places), np.int64), places.astype(np.int64)
        for stride in self._strides:
            node, left = stride.walk(node, left, rows)
        return rows
