"""Ways through a diagram: a uniform draw, and the rows nearest to a wish. Both can leave rows out, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import Counts, Diagram, IndexRow, IndexRows

Steps = npt.NDArray[np.int64]

_FAR: Final = 2**40
"""More steps than any two rows are apart."""


def draw(diagram: Diagram, rng: np.random.Generator, without: IndexRows) -> IndexRow | None:
    """A row of the set that is not in ``without``, all equally likely; None if there is none.

    Args:
        diagram: the set.
        rng: of the draw.
        without: distinct rows of the set.
    """
    free = diagram.count - len(without)
    if free < 1:
        return None
    place = int(rng.integers(free))
    taken = np.sort(diagram.places(without)) if len(without) else np.zeros(0, np.int64)
    free_before = taken - np.arange(len(taken))  # each of them
    return diagram.row(place + int(free_before.searchsorted(place, side="right")))


def _choose(ways: Counts, left_out: npt.NDArray[np.uint8], place: int) -> tuple[int, int]:
    """The arrow behind which the ``place``-th free row lies, and its place among those there."""
    if len(left_out):
        ways = ways - np.bincount(left_out, minlength=len(ways))
    ends = np.cumsum(ways)
    value = int(np.searchsorted(ends, place, side="right"))
    return value, place - int(ends[value] - ways[value])


def nearest(
    diagram: Diagram, steps: Sequence[Steps], rng: np.random.Generator | None, without: IndexRows
) -> IndexRow | None:
    """The row that is the fewest steps away and not in ``without``; None if there is none.

    Args:
        diagram: the set.
        steps: for each tunable, how many steps each of its values costs.
        rng: breaks ties, all equally likely; None takes the first.
        without: distinct rows of the set.
    """
    if diagram.count - len(without) < 1:
        return None
    least = _least_steps(diagram, steps)
    total = np.sum([steps[axis][without[:, axis]] for axis in diagram.axes], axis=0, dtype=np.int64)
    extra = total - least[0][0]
    window = 2 if (extra == 0).any() else 1
    while True:
        ways = _ways_within(diagram, steps, least, window)
        free = ways[0][0] - np.bincount(extra[extra < window], minlength=window)
        if free.any():
            slack = int(np.flatnonzero(free)[0])
            place = 0 if rng is None else int(rng.integers(int(free[slack])))
            return _Descent(diagram, steps, least, ways).row(slack, place, without[extra == slack])
        window *= 4


def _least_steps(diagram: Diagram, steps: Sequence[Steps]) -> list[Steps]:
    """For each node, the fewest steps from it to the end; one entry more, the last, is what a dead arrow finds.

    The last layer of the list is the end itself.
    """
    least: list[Steps] = [np.array([0, _FAR])]
    for axis, arrows in zip(reversed(diagram.axes), reversed(diagram.layers), strict=True):
        cost = least[-1][arrows]
        cost += steps[axis][: arrows.shape[1]]
        least.append(np.append(cost.min(axis=1), _FAR))
    return least[::-1]


def _ways_within(diagram: Diagram, steps: Sequence[Steps], least: Sequence[Steps], window: int) -> list[Counts]:
    """For each node, ``[nodes + 1, window]``: how many ways to the end take so many steps more than necessary."""
    end = np.zeros((2, window), np.int64)
    end[0, 0] = 1
    ways = [end]
    for layer in reversed(range(len(diagram.layers))):
        arrows, below = diagram.layers[layer], ways[-1]
        detours = least[layer + 1][arrows]
        detours += steps[diagram.axes[layer]][: arrows.shape[1]] - least[layer][:-1, None]
        here = np.zeros((len(arrows) + 1, window), np.int64)
        for extra in range(window):
            behind = below[arrows, : window - extra]
            behind[detours != extra] = 0
            here[:-1, extra:] += behind.sum(axis=1)
        ways.append(here)
    return ways[::-1]


@dataclass(frozen=True)
class _Descent:
    """Walks down to one row among those that are equally far."""

    diagram: Diagram
    steps: Sequence[Steps]
    least: Sequence[Steps]
    ways: Sequence[Counts]

    def row(self, slack: int, place: int, without: IndexRows) -> IndexRow:
        """The ``place``-th row that takes ``slack`` steps more than necessary and is not in ``without``."""
        row = np.zeros(len(self.diagram.axes), np.uint8)
        node = 0
        for layer, (axis, arrows) in enumerate(zip(self.diagram.axes, self.diagram.layers, strict=True)):
            here = arrows[node]
            detours = self.least[layer + 1][here] + self.steps[axis][: len(here)] - self.least[layer][node]
            fits = detours <= slack
            ways = np.where(fits, self.ways[layer + 1][here, np.where(fits, slack - detours, 0)], 0)
            value, place = _choose(ways, without[:, axis], place)
            without = without[without[:, axis] == value]
            row[axis] = value
            slack -= int(detours[value])
            node = here[value]
        return row
