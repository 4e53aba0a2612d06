"""One family's breeding: what was learned of it, its elites, and the most promising child of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.model import Config, Provenance, Status
from evoengine.search.strategies.family_bandit import running_shares
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.posterior import FamilyPosterior
from evoengine.search.strategies.strategy import Child, Pruner
from evoengine.space.diagram.decision_diagram import IndexRow, IndexRows
from evoengine.space.diagram.row_set import RowSet
from evoengine.space.moves.neighbourhood import Neighbourhood
from evoengine.space.valid_space import ValidSpace

ELITES: Final = 5
PRESSURE: Final = 0.6
"""Weight of each elite relative to the next better one."""
LINKED_MOVES: Final = 224
CROSSINGS: Final = 64
STRANGERS: Final = 64
MANY_STRANGERS: Final = 1024
"""Of a small space many strangers are looked at: in a sample of a larger space nobody has neighbours."""
LOOKED_AT: Final = 512
"""Most promising children of which one that is not hopeless is taken. What is hopeless is never measured, so it stays
promising: with 16, a search came to a standstill once all of them were hopeless (docs/results/screening.md)."""
PARENTS_OF_MORE: Final = 8
"""The most promising children, from which another round of moves starts."""
MORE_MOVES: Final = 96

STRANGER: Final = Provenance("stranger")
"""Of a config drawn from anywhere."""


@dataclass(frozen=True)
class _Brood:
    """What one move made."""

    move: str
    children: IndexRows
    parents: tuple[IndexRows, ...] = ()
    """``[children, tunables]`` each."""
    sure: bool = False
    """Whether all children are known to be valid."""
    later: bool = False
    """Whether the parents are children of an earlier move themselves, which nobody has evaluated."""


class OffspringGenerator:
    """Learns from the outcomes of one family and breeds its next candidate.

    Args:
        space: its valid configs.
    """

    def __init__(self, space: ValidSpace) -> None:
        self._space = space
        self._hood = Neighbourhood(space)
        self._belief = FamilyPosterior(space.tunables)
        self._rows_of: dict[Config, IndexRow] = {}

    def suits(self, config: Config) -> bool:
        """Whether a config is valid here; one of an earlier space may not be."""
        return config in self._rows_of or self._space.contains(config)

    def learn(self, outcome: Outcome) -> None:
        """One more outcome, in order."""
        if outcome.value_us is not None or outcome.status is not Status.PRUNED:
            self._belief.learn(self._row_of(outcome.config), outcome.value_us)

    def child(self, pending: Sequence[Config], seen: RowSet, rng: np.random.Generator, screen: Pruner) -> Child | None:
        """The most promising unseen child that is not hopeless; None if there is none."""
        belief = self._belief
        model = belief.conditioned([self._row_of(config) for config in pending])
        broods = list(self._pool(belief.fastest(ELITES), rng))
        chosen = seen.without(self._valid(broods))
        scores = belief.promise(model, chosen)
        parents = chosen[np.argsort(-scores, kind="stable")[:PARENTS_OF_MORE]]
        if len(parents):
            again = self._more(parents, rng)
            more = seen.without(self._valid(again))
            chosen = np.concatenate([chosen, more])
            scores = np.concatenate([scores, belief.promise(model, more)])
            broods += again
        best_first = chosen[np.argsort(-scores, kind="stable")[:LOOKED_AT]]
        place = screen.first_worthwhile(self._space, best_first)
        if place is None:
            return None
        row = best_first[place].copy()  # it is kept, the others are not
        config = self._space.config_of(row)
        self._rows_of[config] = row
        return Child(config, self._descent(row, broods))

    def _descent(self, row: IndexRow, broods: Sequence[_Brood]) -> Provenance:
        """The first move that made a row; of a move of the second round, the parents are those of the first."""
        for brood in broods:
            places = np.flatnonzero((brood.children == row).all(axis=1))
            if len(places):
                parents = [rows[places[0]] for rows in brood.parents]
                if brood.later:
                    first = self._descent(parents[0], broods)
                    return Provenance(f"{first.move}, then {brood.move}", first.parents)
                parents.sort(key=lambda parent: int((parent != row).sum()))
                return Provenance(brood.move, tuple(self._space.config_of(parent).key for parent in parents))
        raise AssertionError("a child that no move made")

    def _row_of(self, config: Config) -> IndexRow:
        row = self._rows_of.get(config)
        if row is None:
            row = self._space.row_of(config)
            assert row is not None, "only valid configs are proposed"
            self._rows_of[config] = row
        return row

    # -- moves --------------------------------------------------------------------------------------------------------

    def _valid(self, broods: Sequence[_Brood]) -> IndexRows:
        unsure = [brood.children for brood in broods if not brood.sure]
        return np.concatenate(
            [brood.children for brood in broods if brood.sure] + [self._hood.valid(np.concatenate(unsure))]
        )

    def _pool(self, elites: IndexRows, rng: np.random.Generator) -> Iterator[_Brood]:
        weights = PRESSURE ** np.arange(len(elites))
        ends = running_shares(weights)

        def parents(count: int) -> IndexRows:
            return elites.take(ends.searchsorted(rng.random(count), side="right"), axis=0)

        for elite in elites[:2]:
            yield self._sweep(elite)
        yield self._linked_moves(parents(LINKED_MOVES), rng)
        if len(elites) > 1:
            first, second = parents(CROSSINGS), parents(CROSSINGS)
            yield _Brood("crossover", self._hood.crossings(first, second, rng), (first, second))
        strangers = MANY_STRANGERS if self._hood.is_small else STRANGERS
        yield _Brood(STRANGER.move, self._hood.random_rows(strangers, rng), sure=not self._space.loose)

    def _more(self, parents: IndexRows, rng: np.random.Generator) -> list[_Brood]:
        """The second round, from children of the first."""
        moved = self._linked_moves(parents[rng.integers(len(parents), size=MORE_MOVES)], rng)
        return [replace(brood, later=True) for brood in (self._sweep(parents[0]), moved)]

    def _sweep(self, row: IndexRow) -> _Brood:
        children = self._hood.neighbours(row)
        return _Brood("one change", children, (np.broadcast_to(row, children.shape),), sure=True)

    def _linked_moves(self, parents: IndexRows, rng: np.random.Generator) -> _Brood:
        return _Brood("linked changes", self._hood.linked_moves(parents, rng), (parents,))
