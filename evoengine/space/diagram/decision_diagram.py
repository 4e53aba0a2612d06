"""Multi-valued decision diagram of a set of configs: an exact representation, compact for sets defined by rules.

A config is a row of value indices, one per tunable. Each layer of the diagram branches on one tunable; a node stands
for the set of suffixes that complete the prefixes leading to it, and prefixes with the same suffixes share a node.
Edges exist only where a config completes the prefix, so no path is a dead end. Two reduced diagrams with the same order
of tunables are equal exactly if their sets are equal (Bryant 1986, generalised to more than two values).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.packed_layers import MembershipTest, Segment, segments_of
from evoengine.space.diagram.row_dedup import distinct_rows
from evoengine.space.index_rows import IndexRow, IndexRows

Edges = npt.NDArray[np.int32]
"""``[nodes, values]``: Node of the next layer for each value of a layer's tunable, or :data:`NO_EDGE`."""
Counts = npt.NDArray[np.int64]

NO_EDGE: Final = -1
"""Marks a missing edge."""
MOST_CONFIGS: Final = 2**62
"""Exclusive limit of the size of a set whose positions are computed with 64 bits."""


def true_in_rows(table: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Counts the true entries of each row of a table with less than 256 columns; faster than a sum."""
    return (table.view(np.uint8) @ np.ones(table.shape[1], np.uint8)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Diagram:
    """Set of rows. The first layer has one node, or none if the set is empty."""

    axes: tuple[int, ...]
    """Tunable of each layer."""
    layers: tuple[Edges, ...]

    @classmethod
    def reduced(cls, axes: Sequence[int], layers: Sequence[Edges]) -> Diagram:
        """Reduces a diagram; the edges of its last layer are 0 (the row is in the set) or :data:`NO_EDGE`."""
        small: list[Edges] = []
        names = np.zeros(1, np.int32)
        for edges in reversed(layers):
            renamed = np.where(edges < 0, NO_EDGE, names[edges]).astype(np.int32)
            first, alike = distinct_rows(renamed)
            kept = renamed[first]
            alive = (kept >= 0).any(axis=1)
            names = np.where(alive, np.cumsum(alive) - 1, NO_EDGE).astype(np.int32)[alike]
            small.append(kept[alive])
        return cls(tuple(axes), tuple(reversed(small)))

    @classmethod
    def of_rows(cls, axes: Sequence[int], rows: IndexRows) -> Diagram:
        """Builds the diagram of distinct rows, from the last tunable to the first."""
        order = np.lexsort([rows[:, axis] for axis in reversed(axes)])
        prefixes = rows[order][:, list(axes)]
        names = np.zeros(len(prefixes), np.int32)
        layers: list[Edges] = []
        for position in reversed(range(len(axes))):
            changed = (prefixes[1:, :position] != prefixes[:-1, :position]).any(axis=1)
            starts = np.flatnonzero(np.concatenate(([True], changed)))
            group = np.cumsum(np.concatenate(([0], changed)))
            edges = np.full((len(starts), int(prefixes[:, position].max()) + 1), NO_EDGE, np.int32)
            edges[group, prefixes[:, position]] = names
            first, alike = distinct_rows(edges)
            layers.append(edges[first])
            prefixes, names = prefixes[starts], alike.astype(np.int32)
        return cls(tuple(axes), tuple(reversed(layers)))

    @property
    def empty(self) -> bool:
        return len(self.layers[0]) == 0 if self.layers else False

    @property
    def nodes(self) -> int:
        """Number of nodes in all layers."""
        return sum(map(len, self.layers))

    @cached_property
    def count(self) -> int:
        """Exact number of rows in the set."""
        below = [1]
        for edges in reversed(self.layers):
            below = [sum(below[child] for child in node if child >= 0) for node in edges.tolist()]
        return below[0] if below else 0

    @cached_property
    def paths(self) -> tuple[Counts, ...]:
        """Number of suffixes behind each edge, ``[nodes, values]`` per layer; 0 for a missing edge.

        The set must be smaller than :data:`MOST_CONFIGS`.
        """
        below = np.ones(1, np.int64)
        paths: list[Counts] = []
        for edges in reversed(self.layers):
            paths.append(np.where(edges < 0, 0, below[edges]))
            below = paths[-1].sum(axis=1)
        return tuple(reversed(paths))

    @cached_property
    def _before(self) -> tuple[Counts, ...]:
        """Number of suffixes behind the edges of lower values of the same node, ``[nodes, values]`` per layer."""
        return tuple(np.cumsum(paths, axis=1) - paths for paths in self.paths)

    @cached_property
    def _test(self) -> MembershipTest:
        return MembershipTest.of(self.axes, self.layers, self._before)

    @cached_property
    def _segments(self) -> tuple[Segment, ...]:
        return segments_of(self.axes, self.layers, self.paths)

    def position(self, row: IndexRow) -> int | None:
        """Returns the position of a row in the order of the set; None if it is not in the set."""
        node, position = 0, 0
        if self.empty:
            return None
        for axis, edges, before in zip(self.axes, self.layers, self._before, strict=True):
            value = row[axis]
            if value >= edges.shape[1] or edges[node, value] < 0:
                return None
            position += int(before[node, value])
            node = edges[node, value]
        return position

    def positions(self, rows: IndexRows) -> Counts:
        """Returns the positions of rows that are in the set."""
        return self._test.positions(rows)

    def contains(self, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Returns which rows are in the set."""
        return np.zeros(len(rows), np.bool_) if self.empty else self._test.contains(rows)

    def row(self, position: int) -> IndexRow:
        """Returns the row at a position.

        Raises:
            IndexError: The position does not exist.
        """
        if not 0 <= position < self.count:
            raise IndexError(f"there are {self.count:,} configs, none at {position:,}")
        row: IndexRow = self.rows(np.array([position]))[0]
        return row

    def rows(self, positions: npt.NDArray[np.int64]) -> IndexRows:
        """Returns the rows at existing positions."""
        rows = np.zeros((len(positions), len(self.axes)), np.uint8)
        node, left = np.zeros(len(positions), np.int64), positions.astype(np.int64)
        for segment in self._segments:
            node, left = segment.walk(node, left, rows)
        return rows
