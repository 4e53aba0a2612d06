"""Offspring of one family: mutations and crossover of its elites, ranked by expected improvement.

The moves themselves are in :mod:`evoengine.space.moves.neighbourhood`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.model import Config, Provenance, Status
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.posterior import FamilyPosterior
from evoengine.search.strategies.sampler import Offspring, Pruner
from evoengine.space.index_rows import IndexRow, IndexRows, RowSet
from evoengine.space.moves.neighbourhood import Neighbourhood
from evoengine.space.valid_space import ValidSpace

RANK_DECAY: Final = 0.6
"""Weight of each elite as a parent, relative to the next faster one."""
SWEPT_ELITES: Final = 2
"""Fastest elites all of whose neighbours are offspring."""
LINKED_MOVES: Final = 224
"""Offspring of the first round by linked changes of one parent."""
CROSSOVERS: Final = 64
"""Offspring of two parents."""
RANDOM_SAMPLES: Final = 64
"""Random samples among the offspring, which no elite attracts."""
RANDOM_SAMPLES_OF_SMALL: Final = 1024
"""Random samples of a small space. In a large space even this many are unlikely to contain a neighbour of an elite."""
FILLING_SAMPLES: Final = 256
"""Random samples from which the warm-up takes one that is distant from all earlier configs."""
FIRST_SAMPLES: Final = 8
"""The same for the first :data:`FIRST_CONFIGS`: the most distant of many is likely to have extreme values of all
tunables, and a model that begins with these learns little of the fast ones."""
FIRST_CONFIGS: Final = 4
MOST_AVOIDED: Final = 128
"""Latest configs from which that distance is taken."""
RANKED: Final = 512
"""Offspring with the largest expected improvement among which the pruner finds the first that it keeps. Pruned configs
are never measured, so their expected improvement stays high: with 16, a search stalled once all of them were pruned
(docs/results/screening.md)."""
SECOND_ROUND_PARENTS: Final = 8
"""Offspring with the largest expected improvement, which are parents of the second round."""
SECOND_ROUND_MOVES: Final = 96
"""Offspring of the second round by linked changes."""

RANDOM_SAMPLE: Final = Provenance("random sample")
"""Provenance of a config that was drawn uniformly; the word is stored in leaderboards."""


@dataclass(frozen=True)
class _MoveResult:
    """Offspring made by one kind of move."""

    move: str
    children: IndexRows
    parents: tuple[IndexRows, ...] = ()
    """One array ``[children, tunables]`` for each parent of a child."""
    valid: bool = False
    """Whether all children are known to be valid."""
    second_round: bool = False
    """Whether the parents are themselves offspring of the first round, which have not been evaluated."""


class OffspringGenerator:
    """Learns from the outcomes of one family and generates its next candidate.

    Args:
        space: Valid configs of the family.
        elites: Number of fastest candidates that are parents.
    """

    def __init__(self, space: ValidSpace, elites: int) -> None:
        self._space = space
        self._elites = elites
        self._neighbourhood = Neighbourhood(space)
        self._posterior = FamilyPosterior(space.tunables)
        self._rows_of: dict[Config, IndexRow] = {}

    def accepts(self, config: Config) -> bool:
        """Whether a config is valid here; a config that was recorded for an earlier space may not be."""
        return config in self._rows_of or self._space.contains(config)

    def learn(self, outcome: Outcome) -> None:
        """Adds the next outcome of the family."""
        if outcome.value_us is not None or outcome.status is not Status.PRUNED:
            self._posterior.learn(self._row_of(outcome.config), outcome.value_us)

    def best_offspring(
        self, pending: Sequence[Config], seen: RowSet, rng: np.random.Generator, pruner: Pruner
    ) -> Offspring | None:
        """Generates offspring and returns the unseen one with the largest expected improvement that is not pruned.

        Those that the pruner is likely to reject come later, so that few have to be examined.

        Args:
            pending: Configs in flight.
            seen: Rows that must not be proposed again.
            rng: Random generator.
            pruner: Pruner that rejects configs that are not worth a measurement.

        Returns:
            None if the pruner keeps none of them.
        """
        posterior = self._posterior
        model = posterior.conditioned([self._row_of(config) for config in pending])

        def ranked(rows: IndexRows) -> IndexRows:
            return posterior.best_first(model, rows, RANKED, pruner.kept_probability(self._space, rows))

        results = list(self._first_round(posterior.fastest(self._elites), rng))
        best_first = ranked(seen.without(self._valid(results)))
        if len(best_first):
            second = self._second_round(best_first[:SECOND_ROUND_PARENTS], rng)
            best_first = ranked(np.concatenate([best_first, seen.without(self._valid(second))]))
            results += second
        index = pruner.first_kept(self._space, best_first)
        if index is None:
            return None
        row = best_first[index].copy()  # the cache below would otherwise keep the whole array alive
        config = self._space.config_of(row)
        self._rows_of[config] = row
        return Offspring(config, self._provenance(row, results))

    def space_filling(self, taken: Sequence[Config], seen: RowSet, rng: np.random.Generator) -> Offspring | None:
        """Returns the random sample with the largest distance from the latest configs times probability of success.

        Args:
            taken: Earlier configs of the family, evaluated or in flight.
            seen: Rows that must not be proposed again.
            rng: Random generator.

        Returns:
            None if all samples were seen.
        """
        samples = FIRST_SAMPLES if len(taken) < FIRST_CONFIGS else FILLING_SAMPLES
        rows = seen.without(self._neighbourhood.valid(self._neighbourhood.random_rows(samples, rng)))
        if not len(rows):
            return None
        index = self._posterior.most_distant(rows, [self._row_of(config) for config in taken[-MOST_AVOIDED:]])
        return Offspring(self._space.config_of(rows[index]), RANDOM_SAMPLE)

    def _provenance(self, row: IndexRow, results: Sequence[_MoveResult]) -> Provenance:
        """The first move that made a row; for a move of the second round, with the parents of the first."""
        for result in results:
            indices = np.flatnonzero((result.children == row).all(axis=1))
            if len(indices):
                parents = [rows[indices[0]] for rows in result.parents]
                if result.second_round:
                    first = self._provenance(parents[0], results)
                    return Provenance(f"{first.move}, then {result.move}", first.parents)
                parents.sort(key=lambda parent: int((parent != row).sum()))
                return Provenance(result.move, tuple(self._space.config_of(parent).key for parent in parents))
        raise AssertionError("no move made this row")

    def _row_of(self, config: Config) -> IndexRow:
        row = self._rows_of.get(config)
        if row is None:
            row = self._space.row_of(config)
            assert row is not None, "only valid configs are proposed"
            self._rows_of[config] = row
        return row

    # -- moves --------------------------------------------------------------------------------------------------------

    def _valid(self, results: Sequence[_MoveResult]) -> IndexRows:
        unchecked = [result.children for result in results if not result.valid]
        return np.concatenate(
            [result.children for result in results if result.valid]
            + [self._neighbourhood.valid(np.concatenate(unchecked))]
        )

    def _first_round(self, elites: IndexRows, rng: np.random.Generator) -> Iterator[_MoveResult]:
        weights = RANK_DECAY ** np.arange(len(elites))
        shares = weights / weights.sum()

        def parents(count: int) -> IndexRows:
            return elites.take(rng.choice(len(elites), count, p=shares), axis=0)

        for elite in elites[:SWEPT_ELITES]:
            yield self._sweep(elite)
        yield self._linked_moves(parents(LINKED_MOVES), rng)
        if len(elites) > 1:
            first, second = parents(CROSSOVERS), parents(CROSSOVERS)
            yield _MoveResult("crossover", self._neighbourhood.crossings(first, second, rng), (first, second))
        samples = RANDOM_SAMPLES_OF_SMALL if self._neighbourhood.is_small else RANDOM_SAMPLES
        drawn = self._neighbourhood.random_rows(samples, rng)
        yield _MoveResult(RANDOM_SAMPLE.move, drawn, valid=not self._space.loose)

    def _second_round(self, parents: IndexRows, rng: np.random.Generator) -> list[_MoveResult]:
        moved = self._linked_moves(parents[rng.integers(len(parents), size=SECOND_ROUND_MOVES)], rng)
        return [replace(result, second_round=True) for result in (self._sweep(parents[0]), moved)]

    def _sweep(self, row: IndexRow) -> _MoveResult:
        """Every neighbour of a row: one tunable changed by one step, or to another choice."""
        children = self._neighbourhood.neighbours(row)
        return _MoveResult("one change", children, (np.broadcast_to(row, children.shape),), valid=True)

    def _linked_moves(self, parents: IndexRows, rng: np.random.Generator) -> _MoveResult:
        return _MoveResult("linked changes", self._neighbourhood.linked_moves(parents, rng), (parents,))
