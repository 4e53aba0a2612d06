"""Walks through a decision diagram several layers at a time, for many rows at once.

A stride stands for some layers that follow each other. What NumPy takes for a walk hardly depends on the number of
rows, but on that of the steps: a diagram of 28 layers is eight strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_MOST_ENTRIES: Final = 2**14
"""Ways through the layers of a stride, from all of its nodes, as far as more than one layer makes it: tables of this
size are made in a millisecond, and stay in a cache."""

Integers = npt.NDArray[np.int64]
IndexRows = npt.NDArray[np.uint8]
Arrows = npt.NDArray[np.int32]


def _spans(nodes: Sequence[int], widths: Sequence[int]) -> Iterator[slice]:
    """Layers that make a stride each."""
    first, ways = 0, 0
    for layer, width in enumerate(widths):
        ways = ways * width if layer > first else nodes[layer] * width
        if layer > first and ways > _MOST_ENTRIES:
            yield slice(first, layer)
            first, ways = layer, nodes[layer] * width
    if widths:
        yield slice(first, len(widths))


@dataclass(frozen=True)
class StridedTest:
    """Tells which rows lie in a diagram."""

    axes: tuple[int, ...]
    widths: IndexRows
    """Values of each layer's tunable. All others stand for one more, which leads nowhere."""
    radix: npt.NDArray[np.float32]
    """``[layers, strides]``: a row's values times this are the codes of its way through each stride. They are below
    2**24, so that this is exact."""
    tables: tuple[tuple[int, Integers, Integers], ...]
    """Of each stride, its codes; for each node and code, where that way leads, and how many rows lie along those before
    it. The last node leads nowhere."""

    @classmethod
    def of(cls, axes: Sequence[int], layers: Sequence[Arrows], befores: Sequence[Integers]) -> StridedTest:
        """Of a diagram, which is not empty.

        Args:
            axes: which tunable each layer asks for.
            layers: its arrows.
            befores: for each arrow, how many rows lie along those before it.
        """
        sizes = [*map(len, layers[1:]), 1]
        closed = [_closed(np.where(arrows < 0, size, arrows), size) for arrows, size in zip(layers, sizes, strict=True)]
        counts = [_closed(before, 0) for before in befores]
        widths = [arrows.shape[1] for arrows in closed]
        spans = list(_spans([*map(len, closed)], widths))
        radix = np.zeros((len(axes), len(spans)), np.float32)
        tables = []
        for stride, span in enumerate(spans):
            table, before = closed[span.start], counts[span.start]
            for layer in range(span.start + 1, span.stop):
                before = (before[:, :, None] + counts[layer][table]).reshape(len(table), -1)
                table = closed[layer][table].reshape(len(table), -1)
            radix[span, stride] = [
                int(np.prod(widths[layer + 1 : span.stop])) for layer in range(span.start, span.stop)
            ]
            tables.append((table.shape[1], table.ravel(), before.ravel()))
        known = np.array([min(width - 1, 255) for width in widths], np.uint8)
        return cls(tuple(axes), known, radix, tuple(tables))

    def passes(self, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Which rows do."""
        node = np.zeros(len(rows), np.int64)
        for codes, (width, table, _) in zip(self._codes(rows), self.tables, strict=True):
            node *= width
            node += codes
            node = table.take(node)
        return np.asarray(node == 0)

    def places(self, rows: IndexRows) -> Integers:
        """``[rows]``: the place of each among the rows of the diagram, in which all of them are."""
        node, place = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        for codes, (width, table, before) in zip(self._codes(rows), self.tables, strict=True):
            node *= width
            node += codes
            place += before.take(node)
            node = table.take(node)
        return place

    def _codes(self, rows: IndexRows) -> Integers:
        """``[strides, rows]``."""
        values = np.minimum(rows[:, self.axes], self.widths)
        return (values.astype(np.float32) @ self.radix).T.astype(np.int64, order="C")


def _closed(entries: npt.NDArray[np.integer[Any]], rest: int) -> Integers:
    """What is known of the arrows of a layer, with one node and one value more."""
    closed = np.full((len(entries) + 1, entries.shape[1] + 1), rest, np.int64)
    closed[:-1, :-1] = entries
    return closed


@dataclass(frozen=True)
class Stride:
    """All ways through some layers that lead to rows, node by node, in the order of the rows."""

    axes: tuple[int, ...]
    starts: Integers
    """``[nodes]``: how many rows lie behind the nodes before one. Their sum is less than all rows of the diagram, since
    each node can be reached."""
    begins: Integers
    """``[ways]``: how many rows lie behind the ways before one."""
    ends: Integers
    """``[ways]``: with its own."""
    targets: Integers
    """``[ways]``: the node of the next stride."""
    values: IndexRows
    """``[ways, layers]``."""

    def walk(self, node: Integers, left: Integers, rows: IndexRows) -> tuple[Integers, Integers]:
        """Goes on from a node of this stride to the row at a place behind it, for many.

        Args:
            node: ``[walks]``.
            left: ``[walks]``: the place.
            rows: ``[walks, tunables]``; takes the values of the way.

        Returns:
            Node and place in the next stride.
        """
        place = self.starts[node] + left
        way = self.ends.searchsorted(place, side="right")
        rows[:, self.axes] = self.values[way]
        return self.targets[way], place - self.begins[way]


def strides_of(axes: Sequence[int], layers: Sequence[Arrows], ways: Sequence[Integers]) -> tuple[Stride, ...]:
    """The strides of a diagram.

    Args:
        axes: which tunable each layer asks for.
        layers: its arrows.
        ways: for each arrow, how many rows lie behind it; 0 for a dead one.
    """
    spans = _spans([*map(len, layers)], [arrows.shape[1] for arrows in layers])
    return tuple(_stride(axes[span], layers[span], ways[span]) for span in spans)


def _stride(axes: Sequence[int], layers: Sequence[Arrows], ways: Sequence[Integers]) -> Stride:
    node = np.arange(len(layers[0]))
    values = np.zeros((len(node), 0), np.uint8)
    for arrows, behind in zip(layers, ways, strict=True):
        place, value = np.nonzero(arrows[node] >= 0)
        counts = behind[node[place], value]
        values = np.concatenate([values[place], value[:, None].astype(np.uint8)], axis=1)
        node = arrows[node[place], value].astype(np.int64)
    ends = np.cumsum(counts)
    totals = ways[0].sum(axis=1)
    return Stride(tuple(axes), np.cumsum(totals) - totals, ends - counts, ends, node, values)
