"""The ``evolution`` strategy: a memetic evolutionary algorithm whose offspring are preselected by a surrogate model.

Each trial generates some hundred offspring of the fastest candidates: every neighbour of the best two (one tunable
changed), linked tunables changed together, crossover of linked groups, and random samples. A Gaussian process over all
earlier outcomes predicts their times, and the one with the largest expected improvement is evaluated ("evolution
control by pre-selection", Jin 2011). Mutations of tunables that paid off are thereby chosen more often, as in adaptive
operator selection (Fialho 2010), but without state of their own: everything follows from the outcomes. A second round
of mutations, without crossover, starts from the best offspring (variable depth). The longer the best candidate stays
unbeaten, the larger the model's deviations are taken to be, so that candidates far from all others gain expected
improvement. A small share of the trials are random samples regardless of the model.

Candidates in flight count as if the model's prediction had been observed. The expected improvement is multiplied by the
probability that a config works, which a second model learns from failures. The trials of the warm-up, which depend on
few outcomes or none, are spread over the space: each is the random sample most distant from the latest configs, where
distance counts less the more likely a sample fails. With several families, each has its own model, and a bandit
allocates trials to the families whose best candidate is closest to the best of all, with an optimistic bonus for
families with few trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evoengine.search.strategies.family_bandit import FamilyBandit, choose_family
from evoengine.search.strategies.offspring import RANDOM_SAMPLE, OffspringGenerator
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.sampler import START, Offspring, View
from evoengine.search.strategies.spec import StrategySpec, require
from evoengine.space.family_spaces import FamilySpaces


@dataclass(frozen=True)
class EvolutionOptions:
    """Options of the ``evolution`` strategy."""

    elites: int = 5
    """Fastest candidates of a family that are parents."""
    warm_up: int = 4
    """Correct candidates of a family before its surrogate model is used."""
    random_share: float = 0.03
    """Share of the trials that are random samples regardless of the model."""

    def __post_init__(self) -> None:
        require(self.elites >= 1, "elites must be at least 1")
        require(self.warm_up >= 1, "warm_up must be at least 1")
        require(0 <= self.random_share <= 1, "random_share must be from 0 to 1")


class EvolutionSampler:
    """Proposes preselected offspring.

    Args:
        spaces: Valid configs, by family.
        options: Options of the strategy.
    """

    def __init__(self, spaces: FamilySpaces, options: EvolutionOptions) -> None:
        self._options = options
        self._generators = {member.family: OffspringGenerator(member, options.elites) for member in spaces.members}
        self._bandit = FamilyBandit()
        self._observed = 0

    def propose(self, view: View, rng: np.random.Generator) -> Offspring:
        """Returns the best offspring of the elites, or a random sample.

        Where the pruner rejects all offspring of a family, another family is drawn.
        """
        self._learn(view.observed)
        left, drawn = list(view.seen.open_families()), []
        while left:
            family = choose_family(left, self._bandit.by_family, view.seen.count, rng)
            made = self._of_family(family, view, rng)
            if made is not None:
                return made
            left.remove(family)
            drawn.append(family)
        return _random_sample(view, drawn[0], rng)

    def _of_family(self, family: str, view: View, rng: np.random.Generator) -> Offspring | None:
        """Proposes a config of one family; None if the pruner rejects all offspring of its elites."""
        for start in view.deferred:
            if start.family == family:
                return Offspring(start, START)
        standing, seen = self._bandit.by_family.get(family), view.seen
        generator = self._generators[family]
        if standing is None or standing.correct < self._options.warm_up:
            taken = [trial.config for trial in view.trials if generator.accepts(trial.config)]
            return generator.space_filling(taken, seen.rows(family), rng) or _random_sample(view, family, rng)
        if rng.random() < self._options.random_share:
            return _random_sample(view, family, rng)
        pending = [config for config in view.pending if config.family == family]
        return generator.best_offspring(pending, seen.rows(family), rng, view.pruner)

    def _learn(self, observed: Sequence[Outcome]) -> None:
        for outcome in observed[self._observed :]:
            generator = self._generators.get(outcome.config.family)
            if generator is not None and generator.accepts(outcome.config):
                generator.learn(outcome)
        self._bandit.update(observed)
        self._observed = len(observed)


def _random_sample(view: View, family: str, rng: np.random.Generator) -> Offspring:
    return Offspring(view.seen.random_unseen(rng, family), RANDOM_SAMPLE)


STRATEGY = StrategySpec("evolutionary search with a Gaussian-process surrogate", EvolutionOptions, EvolutionSampler)
