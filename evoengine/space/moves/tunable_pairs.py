"""Pairs of valid configs that differ in one tunable, which show whether the tunable has an effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.errors import SearchSpaceError
from evoengine.model import Config, Problem, Value
from evoengine.space.index_rows import IndexRow, IndexRows
from evoengine.space.moves.neighbourhood import Neighbourhood
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

_SAMPLES: Final = 4096
"""Random configs among which bases are searched where the starts and their neighbours do not vary a tunable."""
_CLOSE: Final = 64
"""Candidates from which the most similar config with another value is searched."""


@dataclass(frozen=True)
class Pair:
    """Two valid configs with different values of a tunable."""

    tunable: str
    base: Config
    other: Config

    @property
    def values(self) -> tuple[Value, Value]:
        """Values of the tunable in the base and in the other config."""
        return self.base[self.tunable], self.other[self.tunable]

    @property
    def coupled(self) -> tuple[str, ...]:
        """Further tunables that differ, because constraints let the tunable change only together with them."""
        return tuple(name for name in self.base if name != self.tunable and self.base[name] != self.other[name])


class PairFinder:
    """Finds pairs in the space of one problem and target.

    Args:
        space: Search space.
        problem: Problem.
        target: Target.

    Raises:
        SearchSpaceError: The space has no valid config.
    """

    def __init__(self, space: SearchSpace, problem: Problem, target: Target) -> None:
        self._space = space
        self._problem = problem
        self._target = target
        self._valid = space.build(problem, target)
        self._neighbourhood = Neighbourhood(self._valid)

    def groups(self, tunable: str, most: int) -> Iterator[tuple[Pair, ...]]:
        """Yields the pairs of up to ``most`` base configs, one group per base; none if the tunable cannot vary.

        A group holds the base with every other value that is valid while nothing else changes, the most distant value
        first. Bases are the starts, then their neighbours, then random configs. Where no config allows that, the only
        pair is that of the two most similar configs that were found.

        Args:
            tunable: Name of a tunable.
            most: Maximum number of bases.
        """
        axis = [one.name for one in self._valid.tunables].index(tunable)
        found = 0
        for row in self._candidates:
            others = self._alternatives(row, axis)
            if len(others):
                yield tuple(self._pair(tunable, row, other) for other in others)
                found += 1
            if found >= most:
                return
        closest = None if found else self._closest(tunable, axis)
        if closest is not None:
            yield (closest,)

    @cached_property
    def _candidates(self) -> IndexRows:
        """Rows from which bases are taken, without repetition."""
        rows = [row for config in self._valid.starts() if (row := self._valid.row_of(config)) is not None]
        near = [self._neighbourhood.neighbours(row) for row in rows]
        drawn = self._valid.sample_rows(np.random.default_rng(0), _SAMPLES)
        stacked = np.concatenate([np.array(rows, np.uint8).reshape(-1, drawn.shape[1]), *near, drawn])
        _, first = np.unique(stacked, axis=0, return_index=True)
        return np.asarray(stacked[np.sort(first)])

    def _alternatives(self, row: IndexRow, axis: int) -> IndexRows:
        """Returns the valid rows that differ from a row in one tunable only, the most distant value first."""
        rows = row[None].repeat(len(self._valid.tunables[axis].values), axis=0)
        rows[:, axis] = np.arange(len(rows))
        rows = self._neighbourhood.valid(rows[rows[:, axis] != row[axis]])
        distance = np.abs(rows[:, axis].astype(np.int64) - int(row[axis]))
        return np.asarray(rows[np.argsort(-distance, kind="stable")])

    def _closest(self, tunable: str, axis: int) -> Pair | None:
        """Returns the two most similar configs with different values of a tunable; None if all have the same."""
        rows = self._candidates
        if (rows[:, axis] == rows[0, axis]).all():
            return self._from_restricted(tunable, axis)
        best: tuple[int, npt.NDArray[np.uint8], npt.NDArray[np.uint8]] | None = None
        for row in rows[:_CLOSE]:
            others = rows[rows[:, axis] != row[axis]]
            steps = (others != row).sum(axis=1)
            nearest = int(steps.argmin()) if len(others) else -1
            if nearest >= 0 and (best is None or steps[nearest] < best[0]):
                best = int(steps[nearest]), row, others[nearest]
        return None if best is None else self._pair(tunable, best[1], best[2])

    def _from_restricted(self, tunable: str, axis: int) -> Pair | None:
        """Returns a pair with a value that no candidate has; None if no valid config has one."""
        base = self._candidates[0]
        values = [value for at, value in enumerate(self._valid.tunables[axis].values) if at != base[axis]]
        try:
            rest = self._space.build(self._problem, self._target, overrides={tunable: values}) if values else None
        except SearchSpaceError:
            return None
        if rest is None:
            return None
        config = self._valid.config_of(base)
        return Pair(tunable, config, rest.repair(config.as_dict()))

    def _pair(self, tunable: str, base: IndexRow, other: IndexRow) -> Pair:
        return Pair(tunable, self._valid.config_of(base), self._valid.config_of(other))
