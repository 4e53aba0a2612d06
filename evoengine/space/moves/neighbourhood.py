"""Structure-aware moves between valid configs, many at once, on rows of value indices.

Tunables are not independent: those that one constraint names are *linked* (a wider key tile needs a shallower ring),
those whose ``when`` reads another one *depend* on it (the padding on the layout). The moves follow that structure:

- :meth:`Neighbourhood.sweep`: every config that differs in one tunable, its dependents following along; the first
  neighbourhood of a variable neighbourhood search (Mladenović & Hansen 1997);
- :meth:`Neighbourhood.linked_moves`: several linked tunables at once, since one of them alone would break a constraint;
- :meth:`Neighbourhood.crossings`: each linked group from either parent (uniform crossover by building blocks).

No row is repaired. The moves give rows to try; :meth:`Neighbourhood.valid` tells which are valid, for many at once and
at the cost of a look-up instead of a walk.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import IndexRow, IndexRows, true_in_rows
from evoengine.space.diagram.row_set import RowSet
from evoengine.space.language.dependencies import support_of
from evoengine.space.tunables import Ordinal
from evoengine.space.valid_space import ValidSpace

_STEP_PROBABILITY: Final = 0.7
"""How often an ordinal tunable moves by one step instead of jumping."""
_MORE_PROBABILITY: Final = 0.45
"""How often a linked move takes one more tunable along."""
_MOST_CHANGED: Final = 5
_SMALL: Final = 2**13
"""A space of so few configs is kept as a table."""

Places = npt.NDArray[np.int64]


class Neighbourhood:
    """The moves in one valid space."""

    def __init__(self, space: ValidSpace) -> None:
        self.space = space
        self.sizes = np.array([len(tunable.values) for tunable in space.tunables])
        self._last = self.sizes - 1
        self._nothing = RowSet(len(self.sizes))
        self._neighbours: dict[bytes, IndexRows] = {}
        self._ordinal = np.array([isinstance(tunable, Ordinal) for tunable in space.tunables])

    def valid(self, rows: IndexRows) -> IndexRows:
        """The rows among these that are valid."""
        inside = rows[self.space.diagram.contains(rows)]
        return inside[self.space.obeys(inside)] if self.space.loose else inside

    def sweep(self, row: IndexRow) -> IndexRows:
        """Every row that differs in one tunable, with any values of the tunables that depend on it.

        Args:
            row: where to start; it need not be valid.
        """
        tried = [row[None].repeat(len(self._single), axis=0)]
        tried[0][np.arange(len(self._single)), self._single[:, 0]] = self._single[:, 1]
        if len(self._followed):
            both = row[None].repeat(len(self._followed), axis=0)
            places = np.arange(len(self._followed))
            both[places, self._followed[:, 0]] = self._followed[:, 1]
            both[places, self._followed[:, 2]] = self._followed[:, 3]
            tried.append(both)
        tried.extend(self._reset(row))
        rows = np.concatenate(tried)
        return np.asarray(rows[(rows != row).any(axis=1)])

    def neighbours(self, row: IndexRow) -> IndexRows:
        """The valid rows of a sweep, each once; remembered, since the best ones are asked for again and again."""
        key = row.tobytes()
        if key not in self._neighbours:
            self._neighbours[key] = self._nothing.without(self.valid(self.sweep(row)))
        return self._neighbours[key]

    def linked_moves(self, parents: IndexRows, rng: np.random.Generator) -> IndexRows:
        """One row per parent that differs in some linked tunables."""
        children = parents.copy()
        count, tunables = children.shape
        chosen: Places = np.asarray(rng.integers(tunables, size=count))
        self._change(children, np.arange(count), chosen, rng)
        active = np.arange(count)
        for _ in range(_MOST_CHANGED - 1):
            chosen = self._linked_to(chosen, rng)
            self._change(children, active, chosen, rng)
            going_on = rng.random(len(active)) < _MORE_PROBABILITY
            active, chosen = active[going_on], chosen[going_on]
            if not len(active):
                break
        return children

    def crossings(self, first: IndexRows, second: IndexRows, rng: np.random.Generator) -> IndexRows:
        """One row per pair: tunables linked to a random one come from the second parent, the rest from the first."""
        centre = rng.integers(first.shape[1], size=len(first))
        keep = rng.random((len(first), 1))
        taken = rng.random(first.shape) < np.where(self._links[centre] > 0, 0.9, keep)
        return np.where(taken, second, first).astype(np.uint8)

    def random_rows(self, count: int, rng: np.random.Generator) -> IndexRows:
        """Rows from anywhere, all valid ones equally likely; of a loose space some may not be valid."""
        places = rng.integers(self.space.diagram.count, size=count)
        return np.asarray(self._all[places]) if self.is_small else self.space.diagram.rows(places)

    @property
    def is_small(self) -> bool:
        """Whether the space has so few configs that all of them are kept at hand."""
        return self.space.diagram.count <= _SMALL

    @cached_property
    def _all(self) -> IndexRows:
        return self.space.diagram.rows(np.arange(self.space.diagram.count))

    # -- structure ----------------------------------------------------------------------------------------------------

    @cached_property
    def _links(self) -> npt.NDArray[np.float64]:
        """``[tunables, tunables]``: how closely two are linked; a constraint that names few counts for more."""
        count = len(self.sizes)
        links = np.zeros((count, count))
        for constraint in self.space.constraints:
            axes = self.space.book.axes(constraint)
            if len(axes) > 1:
                links[np.ix_(axes, axes)] += 1 / len(axes)
        np.fill_diagonal(links, 0)
        return links

    @cached_property
    def _link_ends(self) -> npt.NDArray[np.float64]:
        """Running sums of each row of the links, to draw from; a tunable without links is linked to all alike."""
        links = self._links + np.where(self._links.any(axis=1, keepdims=True), 0.05, 1.0)
        np.fill_diagonal(links, 0)
        ends = np.cumsum(links, axis=1)
        return np.asarray(ends / np.maximum(ends[:, -1:], 1e-12))

    @cached_property
    def _dependents(self) -> tuple[tuple[int, ...], ...]:
        """For each tunable, those whose condition reads it."""
        tunables = self.space.tunables
        reads = [
            support_of(tunable.when, self.space.book.definition.derived).names if tunable.when else frozenset()
            for tunable in tunables
        ]
        return tuple(tuple(place for place, names in enumerate(reads) if tunable.name in names) for tunable in tunables)

    @cached_property
    def _single(self) -> npt.NDArray[np.int64]:
        """``[changes, 2]``: every (tunable, value)."""
        return np.array([(place, value) for place, size in enumerate(self.sizes) for value in range(size)])

    @cached_property
    def _followed(self) -> npt.NDArray[np.int64]:
        """``[changes, 4]``: every (tunable, value, dependent, value)."""
        return np.array(
            [
                (place, value, follower, own)
                for place, value in self._single.tolist()
                for follower in self._dependents[place]
                for own in range(self.sizes[follower])
            ],
            np.int64,
        ).reshape(-1, 4)

    def _reset(self, row: IndexRow) -> list[IndexRows]:
        """Changes of one tunable with all its dependents back at their first values."""
        rows = []
        for place, followers in enumerate(self._dependents):
            if len(followers) > 1:
                changed = row[None].repeat(self.sizes[place], axis=0)
                changed[:, place] = np.arange(self.sizes[place])
                changed[:, list(followers)] = 0
                rows.append(changed)
        return rows

    def _linked_to(self, places: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
        draws = rng.random((len(places), 1))
        return np.minimum(true_in_rows(self._link_ends.take(places, axis=0) < draws), len(self.sizes) - 1)

    def _change(
        self, rows: IndexRows, which: npt.NDArray[np.int64], places: npt.NDArray[np.int64], rng: np.random.Generator
    ) -> None:
        """Gives one tunable of each of some rows another value, in place."""
        last, old = self._last.take(places), rows[which, places].astype(np.int64)
        jump = (old + 1 + rng.integers(np.maximum(last, 1))) % (last + 1)
        step = np.minimum(np.maximum(old + 2 * rng.integers(2, size=len(which)) - 1, 0), last)
        steps = self._ordinal.take(places) & (rng.random(len(which)) < _STEP_PROBABILITY)
        rows[which, places] = np.where(steps, step, jump)
