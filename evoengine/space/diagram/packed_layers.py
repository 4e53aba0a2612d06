"""Vectorised traversal of a decision diagram, several layers at a time and for many rows at once.

Consecutive layers are packed into one *segment* with a look-up table. NumPy's time depends on the number of segments
rather than rows; a diagram of 28 layers has about eight segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.space.index_rows import IndexRows

_MOST_ENTRIES: Final = 2**14
"""Maximum number of paths through a segment of several layers: tables of this size are built fast and fit a cache."""

Integers = npt.NDArray[np.int64]
Edges = npt.NDArray[np.int32]


def _spans(nodes: Sequence[int], widths: Sequence[int]) -> Iterator[slice]:
    """Yields the layers of each segment."""
    first, paths = 0, 0
    for layer, width in enumerate(widths):
        paths = paths * width if layer > first else nodes[layer] * width
        if layer > first and paths > _MOST_ENTRIES:
            yield slice(first, layer)
            first, paths = layer, nodes[layer] * width
    if widths:
        yield slice(first, len(widths))


@dataclass(frozen=True)
class MembershipTest:
    """Membership test and positions of rows."""

    axes: tuple[int, ...]
    widths: npt.NDArray[np.uint8]
    """``[layers]``: Number of values of a tunable; larger value indices share one more entry without an edge."""
    radix: npt.NDArray[np.float32]
    """``[layers, segments]``: Maps a row's value indices to the code of its path through each segment. Codes are below
    2**24, so float32 is exact."""
    tables: tuple[tuple[int, Integers, Integers], ...]
    """For each segment: number of codes; for each node and code, the node of the next segment; and the number of rows
    on the paths before. The last node has no edges."""

    @classmethod
    def of(cls, axes: Sequence[int], layers: Sequence[Edges], befores: Sequence[Integers]) -> MembershipTest:
        """Builds the test of a diagram that is not empty.

        Args:
            axes: Tunable of each layer.
            layers: Edges of each layer.
            befores: For each edge, the number of rows behind the edges before it.
        """
        sizes = [*map(len, layers[1:]), 1]
        closed = [_closed(np.where(edges < 0, size, edges), size) for edges, size in zip(layers, sizes, strict=True)]
        counts = [_closed(before, 0) for before in befores]
        widths = [edges.shape[1] for edges in closed]
        spans = list(_spans([*map(len, closed)], widths))
        radix = np.zeros((len(axes), len(spans)), np.float32)
        tables = []
        for segment, span in enumerate(spans):
            table, before = closed[span.start], counts[span.start]
            for layer in range(span.start + 1, span.stop):
                before = (before[:, :, None] + counts[layer][table]).reshape(len(table), -1)
                table = closed[layer][table].reshape(len(table), -1)
            radix[span, segment] = [
                int(np.prod(widths[layer + 1 : span.stop])) for layer in range(span.start, span.stop)
            ]
            tables.append((table.shape[1], table.ravel(), before.ravel()))
        known = np.array([min(width - 1, 255) for width in widths], np.uint8)
        return cls(tuple(axes), known, radix, tuple(tables))

    def contains(self, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Returns which rows are in the set."""
        node = np.zeros(len(rows), np.int64)
        for codes, (width, table, _) in zip(self._codes(rows), self.tables, strict=True):
            node *= width
            node += codes
            node = table.take(node)
        return np.asarray(node == 0)

    def positions(self, rows: IndexRows) -> Integers:
        """Returns ``[rows]``: the positions of rows that are in the set."""
        node, position = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for codes, (width, table, before) in zip(self._codes(rows), self.tables, strict=True):
            node *= width
            node += codes
            position += before.take(node)
            node = table.take(node)
        return position

    def _codes(self, rows: IndexRows) -> Integers:
        """Returns ``[segments, rows]`` path codes."""
        values = np.minimum(rows[:, self.axes], self.widths)
        return (values.astype(np.float32) @ self.radix).T.astype(np.int64, order="C")


def _closed(entries: npt.NDArray[np.integer[Any]], rest: int) -> Integers:
    """Adds one node and one value, filled with ``rest``, to the entries of a layer."""
    closed = np.full((len(entries) + 1, entries.shape[1] + 1), rest, np.int64)
    closed[:-1, :-1] = entries
    return closed


@dataclass(frozen=True)
class Segment:
    """All paths through consecutive layers, node by node, in the order of the rows."""

    axes: tuple[int, ...]
    starts: Integers
    """``[nodes]``: Number of rows behind the preceding nodes; below 2**62, because every node is reachable."""
    begins: Integers
    """``[paths]``: Number of rows behind the preceding paths."""
    ends: Integers
    """``[paths]``: Number of rows behind the preceding paths and the path itself."""
    targets: Integers
    """``[paths]``: Node of the next segment."""
    values: IndexRows
    """``[paths, layers]``: Value indices."""

    def walk(self, node: Integers, left: Integers, rows: IndexRows) -> tuple[Integers, Integers]:
        """Traverses the segment towards rows at given positions, for many rows at once.

        Args:
            node: ``[rows]``: Current nodes.
            left: ``[rows]``: Positions of the rows among those behind the nodes.
            rows: ``[rows, tunables]``: Receives the value indices of this segment.

        Returns:
            Nodes of the next segment, and positions behind them.
        """
        position = self.starts[node] + left
        path = self.ends.searchsorted(position, side="right")
        rows[:, self.axes] = self.values[path]
        return self.targets[path], position - self.begins[path]


def segments_of(axes: Sequence[int], layers: Sequence[Edges], paths: Sequence[Integers]) -> tuple[Segment, ...]:
    """Packs the layers of a diagram into segments.

    Args:
        axes: Tunable of each layer.
        layers: Edges of each layer.
        paths: For each edge, the number of rows behind it; 0 for a missing edge.
    """
    spans = _spans([*map(len, layers)], [edges.shape[1] for edges in layers])
    return tuple(_segment(axes[span], layers[span], paths[span]) for span in spans)


def _segment(axes: Sequence[int], layers: Sequence[Edges], paths: Sequence[Integers]) -> Segment:
    node = np.arange(len(layers[0]))
    values = np.zeros((len(node), 0), np.uint8)
    for edges, behind in zip(layers, paths, strict=True):
        position, value = np.nonzero(edges[node] >= 0)
        counts = behind[node[position], value]
        values = np.concatenate([values[position], value[:, None].astype(np.uint8)], axis=1)
        node = edges[node[position], value].astype(np.int64)
    ends = np.cumsum(counts)
    totals = paths[0].sum(axis=1)
    return Segment(tuple(axes), np.cumsum(totals) - totals, ends - counts, ends, node, values)
