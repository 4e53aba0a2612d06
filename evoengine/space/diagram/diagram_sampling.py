"""Uniform sampling and nearest-row search in a decision diagram, both with exact exclusion of given rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import Counts, Diagram
from evoengine.space.index_rows import IndexRow, IndexRows

Steps = npt.NDArray[np.int64]

_FAR: Final = 2**40
"""Exceeds the distance of any two rows."""


def draw(diagram: Diagram, rng: np.random.Generator, without: IndexRows) -> IndexRow | None:
    """Draws a row of the set uniformly, without the excluded ones; None if no row is left.

    Args:
        diagram: Set of rows.
        rng: Random generator.
        without: Excluded rows, distinct and in the set.
    """
    free = diagram.count - len(without)
    if free < 1:
        return None
    position = int(rng.integers(free))
    taken = np.sort(diagram.positions(without)) if len(without) else np.zeros(0, np.int64)
    free_before = taken - np.arange(len(taken))  # number of free rows before each excluded one
    return diagram.row(position + int(free_before.searchsorted(position, side="right")))


def _choose(paths: Counts, left_out: npt.NDArray[np.uint8], position: int) -> tuple[int, int]:
    """Returns the value whose edge leads to the ``position``-th free row, and the row's position behind that edge."""
    if len(left_out):
        paths = paths - np.bincount(left_out, minlength=len(paths))
    ends = np.cumsum(paths)
    value = int(np.searchsorted(ends, position, side="right"))
    return value, position - int(ends[value] - paths[value])


def nearest(
    diagram: Diagram, steps: Sequence[Steps], rng: np.random.Generator | None, without: IndexRows
) -> IndexRow | None:
    """Returns a row with the fewest steps, without the excluded ones; None if no row is left.

    Args:
        diagram: Set of rows.
        steps: For each tunable, the steps that each of its values costs.
        rng: Breaks ties uniformly; None selects the first row.
        without: Excluded rows, distinct and in the set.
    """
    if diagram.count - len(without) < 1:
        return None
    least = _least_steps(diagram, steps)
    total = np.sum([steps[axis][without[:, axis]] for axis in diagram.axes], axis=0, dtype=np.int64)
    extra = total - least[0][0]
    window = 2 if (extra == 0).any() else 1
    while True:
        paths = _paths_within(diagram, steps, least, window)
        free = paths[0][0] - np.bincount(extra[extra < window], minlength=window)
        if free.any():
            slack = int(np.flatnonzero(free)[0])
            position = 0 if rng is None else int(rng.integers(int(free[slack])))
            return _Descent(diagram, steps, least, paths).row(slack, position, without[extra == slack])
        window *= 4


def _least_steps(diagram: Diagram, steps: Sequence[Steps]) -> list[Steps]:
    """Returns, for each layer and node, the fewest steps to the end of the diagram.

    The last list entry is the end itself. The last array entry of each layer stands for a missing edge.
    """
    least: list[Steps] = [np.array([0, _FAR])]
    for axis, edges in zip(reversed(diagram.axes), reversed(diagram.layers), strict=True):
        cost = least[-1][edges]
        cost += steps[axis][: edges.shape[1]]
        least.append(np.append(cost.min(axis=1), _FAR))
    return least[::-1]


def _paths_within(diagram: Diagram, steps: Sequence[Steps], least: Sequence[Steps], window: int) -> list[Counts]:
    """Returns, per layer, ``[nodes + 1, window]``: the number of paths to the end by their excess steps."""
    end = np.zeros((2, window), np.int64)
    end[0, 0] = 1
    paths = [end]
    for layer in reversed(range(len(diagram.layers))):
        edges, below = diagram.layers[layer], paths[-1]
        detours = least[layer + 1][edges]
        detours += steps[diagram.axes[layer]][: edges.shape[1]] - least[layer][:-1, None]
        here = np.zeros((len(edges) + 1, window), np.int64)
        for extra in range(window):
            behind = below[edges, : window - extra]
            behind[detours != extra] = 0
            here[:-1, extra:] += behind.sum(axis=1)
        paths.append(here)
    return paths[::-1]


@dataclass(frozen=True)
class _Descent:
    """Descent to one row among those at equal distance."""

    diagram: Diagram
    steps: Sequence[Steps]
    least: Sequence[Steps]
    paths: Sequence[Counts]

    def row(self, slack: int, position: int, without: IndexRows) -> IndexRow:
        """Returns the ``position``-th row with ``slack`` excess steps that is not in ``without``."""
        row = np.zeros(len(self.diagram.axes), np.uint8)
        node = 0
        for layer, (axis, edges) in enumerate(zip(self.diagram.axes, self.diagram.layers, strict=True)):
            here = edges[node]
            detours = self.least[layer + 1][here] + self.steps[axis][: len(here)] - self.least[layer][node]
            fits = detours <= slack
            paths = np.where(fits, self.paths[layer + 1][here, np.where(fits, slack - detours, 0)], 0)
            value, position = _choose(paths, without[:, axis], position)
            without = without[without[:, axis] == value]
            row[axis] = value
            slack -= int(detours[value])
            node = here[value]
        return row
