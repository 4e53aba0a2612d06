"""Structure-aware moves between valid configs, many at once, on rows of value indices.

Tunables are *linked* if a constraint reads both (a wider key tile needs a shallower ring buffer). A tunable *depends*
on another one that its ``when`` reads (the padding on the layout). The moves follow that structure:

- :meth:`Neighbourhood.sweep`: every config that differs in one tunable and any of its dependents; the first
  neighbourhood of a variable neighbourhood search (Mladenović & Hansen 1997);
- :meth:`Neighbourhood.linked_moves`: mutation of several linked tunables, because one alone may violate a constraint;
- :meth:`Neighbourhood.crossings`: crossover that takes linked tunables from the same parent (building blocks).

The moves return candidate rows without repairing them; :meth:`Neighbourhood.valid` selects the valid ones with a table
look-up for all rows at once.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram.decision_diagram import true_in_rows
from evoengine.space.index_rows import IndexRow, IndexRows, RowSet
from evoengine.space.language.rules import support_of
from evoengine.space.moves.mutation import Indices, mutate_rows
from evoengine.space.tunables import Ordinal
from evoengine.space.valid_space import ValidSpace

_MORE_PROBABILITY: Final = 0.45
"""Probability that a linked move, after its first two tunables, changes one more."""
_MOST_CHANGED: Final = 5
"""Maximum number of tunables changed by a linked move."""
_SMALL: Final = 2**13
"""Maximum number of configs of a space that is kept as a table."""


class Neighbourhood:
    """Moves in one valid space."""

    def __init__(self, space: ValidSpace) -> None:
        self.space = space
        self.sizes = np.array([len(tunable.values) for tunable in space.tunables])
        self._last = self.sizes - 1
        self._no_rows = RowSet(len(self.sizes))
        self._neighbours: dict[bytes, IndexRows] = {}
        self._ordinal = np.array([isinstance(tunable, Ordinal) for tunable in space.tunables])

    def valid(self, rows: IndexRows) -> IndexRows:
        """Returns the valid rows."""
        inside = rows[self.space.diagram.contains(rows)]
        return inside[self.space.obeys(inside)] if self.space.loose and len(inside) else inside

    def sweep(self, row: IndexRow) -> IndexRows:
        """Returns every row that differs in one tunable, alone and together with each value of one of its dependents.

        Args:
            row: Start row, which may be invalid.
        """
        tried = [row[None].repeat(len(self._single), axis=0)]
        tried[0][np.arange(len(self._single)), self._single[:, 0]] = self._single[:, 1]
        if len(self._pairs):
            both = row[None].repeat(len(self._pairs), axis=0)
            changes = np.arange(len(self._pairs))
            both[changes, self._pairs[:, 0]] = self._pairs[:, 1]
            both[changes, self._pairs[:, 2]] = self._pairs[:, 3]
            tried.append(both)
        tried.extend(self._dependents_reset(row))
        rows = np.concatenate(tried)
        return np.asarray(rows[(rows != row).any(axis=1)])

    def neighbours(self, row: IndexRow) -> IndexRows:
        """Returns the valid rows of a sweep without repetition; cached, because the best rows are swept repeatedly."""
        key = row.tobytes()
        if key not in self._neighbours:
            self._neighbours[key] = self._no_rows.without(self.valid(self.sweep(row)))
        return self._neighbours[key]

    def linked_moves(self, parents: IndexRows, rng: np.random.Generator) -> IndexRows:
        """Returns one row per parent, with mutations of a random tunable and of others, each linked to the last."""
        children = parents.copy()
        count, tunables = children.shape
        chosen: Indices = np.asarray(rng.integers(tunables, size=count))
        mutate_rows(children, np.arange(count), chosen, self._last, self._ordinal, rng)
        active = np.arange(count)
        for _ in range(_MOST_CHANGED - 1):
            chosen = self._linked_to(chosen, rng)
            mutate_rows(children, active, chosen, self._last, self._ordinal, rng)
            continues = rng.random(len(active)) < _MORE_PROBABILITY
            active, chosen = active[continues], chosen[continues]
            if not len(active):
                break
        return children

    def crossings(self, first: IndexRows, second: IndexRows, rng: np.random.Generator) -> IndexRows:
        """Returns one row per pair: tunables linked to a random one mostly come from the second parent."""
        centre = rng.integers(first.shape[1], size=len(first))
        keep = rng.random((len(first), 1))
        taken = rng.random(first.shape) < np.where(self._links[centre] > 0, 0.9, keep)
        return np.where(taken, second, first).astype(np.uint8)

    def random_rows(self, count: int, rng: np.random.Generator) -> IndexRows:
        """Draws rows uniformly from the diagram; those of a loose space may be invalid."""
        positions = rng.integers(self.space.diagram.count, size=count)
        return np.asarray(self._all[positions]) if self.is_small else self.space.diagram.rows(positions)

    @property
    def is_small(self) -> bool:
        """Whether all configs are kept as a table."""
        return self.space.diagram.count <= _SMALL

    @cached_property
    def _all(self) -> IndexRows:
        return self.space.diagram.rows(np.arange(self.space.diagram.count))

    # -- structure ----------------------------------------------------------------------------------------------------

    @cached_property
    def _links(self) -> npt.NDArray[np.float64]:
        """``[tunables, tunables]``: strength of links; a constraint over fewer tunables contributes more."""
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
        """Cumulative link probabilities of each tunable; a tunable without links is linked to all others equally."""
        links = self._links + np.where(self._links.any(axis=1, keepdims=True), 0.05, 1.0)
        np.fill_diagonal(links, 0)
        ends = np.cumsum(links, axis=1)
        return np.asarray(ends / np.maximum(ends[:, -1:], 1e-12))

    @cached_property
    def _dependents(self) -> tuple[tuple[int, ...], ...]:
        """For each tunable, the tunables whose conditions read it."""
        tunables = self.space.tunables
        reads = [
            support_of(tunable.when, self.space.book.definition.derived).names if tunable.when else frozenset()
            for tunable in tunables
        ]
        return tuple(tuple(axis for axis, names in enumerate(reads) if tunable.name in names) for tunable in tunables)

    @cached_property
    def _single(self) -> npt.NDArray[np.int64]:
        """``[changes, 2]``: All pairs (tunable, value)."""
        return np.array([(axis, value) for axis, size in enumerate(self.sizes) for value in range(size)])

    @cached_property
    def _pairs(self) -> npt.NDArray[np.int64]:
        """``[changes, 4]``: All combinations (tunable, value, dependent, value of the dependent)."""
        return np.array(
            [
                (axis, value, dependent, own)
                for axis, value in self._single.tolist()
                for dependent in self._dependents[axis]
                for own in range(self.sizes[dependent])
            ],
            np.int64,
        ).reshape(-1, 4)

    def _dependents_reset(self, row: IndexRow) -> list[IndexRows]:
        """Returns changes of one tunable with all its dependents reset to their first values."""
        rows = []
        for axis, dependents in enumerate(self._dependents):
            if len(dependents) > 1:
                changed = row[None].repeat(self.sizes[axis], axis=0)
                changed[:, axis] = np.arange(self.sizes[axis])
                changed[:, list(dependents)] = 0
                rows.append(changed)
        return rows

    def _linked_to(self, axes: Indices, rng: np.random.Generator) -> Indices:
        draws = rng.random((len(axes), 1))
        return np.minimum(true_in_rows(self._link_ends.take(axes, axis=0) < draws), len(self.sizes) - 1)
