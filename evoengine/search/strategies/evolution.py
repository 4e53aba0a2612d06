"""The ``evolution`` strategy: elites bred by structure-aware moves, their children judged by a model before they live.

A memetic, surrogate-assisted evolutionary algorithm. Each trial breeds some hundred children of the fastest candidates:
every neighbour of the best two (a change of one tunable), linked tunables moved together, crossover by linked groups,
and strangers. A Gaussian process over all earlier outcomes foretells their times, and the child with the largest
expected improvement is evaluated ("evolution control by pre-selection", Jin 2011). So the moves of tunables that have
paid are taken more often, and none is wasted on tunables that do not matter: the model's weights do what an adaptive
operator selection does (Fialho 2010), need no bookkeeping, and follow from the outcomes alone. A second round of moves
starts from the best children (variable depth). The longer the best candidate stands, the more the model is doubted: its
deviations grow, so that candidates far from all others gain promise. A small share of strangers is evaluated whatever
the model says.

Candidates under way count as if the model were right about them. Failures teach where not to go: children near many
failed candidates are expected to fail. Of several families, each has a model of its own, and is bred the more often the
closer its best candidate comes to the best of all, with hope for those that were tried little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evoengine.search.strategies.family_bandit import FamilyBandit, choose_family
from evoengine.search.strategies.offspring import RANDOM_SAMPLE, OffspringGenerator
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.strategy import START, Child, View
from evoengine.space.family_spaces import FamilySpaces

FIRST: Final = 6
"""Correct candidates of a family before its model is asked."""

IMMIGRANTS: Final = 0.03
"""Share of trials that are strangers whatever the model says."""


class EvolutionSampler:
    """Breeds whole configs.

    Args:
        spaces: the valid configs, family by family.
    """

    def __init__(self, spaces: FamilySpaces) -> None:
        self._breeders = {member.family: OffspringGenerator(member) for member in spaces.members}
        self._bandit = FamilyBandit()
        self._taken = 0

    def propose(self, view: View, rng: np.random.Generator) -> Child:
        """A promising child of elites, or a stranger."""
        self._learn(view.observed)
        known, archive = self._bandit.by_family, view.archive
        family = choose_family(archive.open_families(), known, archive.seen, rng)
        for seed in view.seeds:
            if seed.family == family:
                return Child(seed, START)
        standing = known.get(family)
        if standing is None or standing.correct < FIRST or rng.random() < IMMIGRANTS:
            return self._stranger(view, family, rng)
        pending = [config for config in view.pending if config.family == family]
        child = self._breeders[family].child(pending, archive.rows(family), rng, view.pruner)
        return child or self._stranger(view, family, rng)

    @staticmethod
    def _stranger(view: View, family: str, rng: np.random.Generator) -> Child:
        return Child(view.archive.random_unseen(rng, family), RANDOM_SAMPLE)

    def _learn(self, observed: Sequence[Outcome]) -> None:
        for outcome in observed[self._taken :]:
            breeder = self._breeders.get(outcome.config.family)
            if breeder is not None and breeder.suits(outcome.config):
                breeder.learn(outcome)
        self._bandit.update(observed)
        self._taken = len(observed)
