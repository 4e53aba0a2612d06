"""The ``tpe`` strategy: Optuna's tree-structured Parzen estimator; samples are repaired to unseen valid configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial

from evoengine.model import Config
from evoengine.search.strategies.distributions import FAMILY, Parameters
from evoengine.search.strategies.optuna_adapter import ObservedStudy
from evoengine.search.strategies.sampler import View
from evoengine.search.strategies.spec import StrategySpec, require
from evoengine.space.family_spaces import FamilySpaces

_SEED_LIMIT: Final = 2**32


@dataclass(frozen=True)
class TpeOptions:
    """Options of the ``tpe`` strategy."""

    warm_up: int = 20
    """Correct candidates drawn uniformly before the estimator is used."""

    def __post_init__(self) -> None:
        require(self.warm_up >= 1, "warm_up must be at least 1")


class RepairedTpeSampler:
    """Optuna samples, :class:`SeenConfigs` repairs; Optuna is given the config that was evaluated, not its own sample.

    With several families, the estimator first samples a family from the times of all trials, then its tunables from the
    trials of that family. Optuna's sampler does the same with ``group=True``, but also samples the other families.

    Args:
        spaces: Valid configs, by family.
        options: Options of the strategy.
    """

    def __init__(self, spaces: FamilySpaces, options: TpeOptions) -> None:
        self._warm_up = options.warm_up
        self._parameters = Parameters(spaces)
        self._study = ObservedStudy(self._parameters)
        self._tunables = {family: _undecided(group) for family, group in self._parameters.tunables.items()}

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        """Returns the unseen config nearest to a sample of the estimator."""
        trial, seen = self._study.trial_for(view), view.seen
        if view.deferred:
            return view.deferred[0]
        if sum(outcome.value_us is not None for outcome in view.observed) < self._warm_up:
            return seen.random_unseen(rng)
        # A new estimator for each trial has no state but its generator, so a resumed study makes the same proposals.
        estimator = TPESampler(seed=int(rng.integers(_SEED_LIMIT)), n_startup_trials=self._warm_up, multivariate=True)
        family = str(self._sample(estimator, trial, self._parameters.families).get(FAMILY, ""))
        families = seen.open_families()
        if family not in families:
            family = families[int(rng.integers(len(families)))]
        sample = self._sample(estimator, trial, self._tunables[family])
        values = self._parameters.values(family, sample)
        return seen.nearest_unseen(family, values, rng) if values else seen.random_unseen(rng, family)

    def _sample(self, estimator: TPESampler, trial: FrozenTrial, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return estimator.sample_relative(self._study.study, trial, space) if space else {}


def _undecided(group: dict[str, BaseDistribution]) -> dict[str, BaseDistribution]:
    """The distributions with more than one value."""
    return {name: distribution for name, distribution in group.items() if not distribution.single()}


STRATEGY = StrategySpec("Optuna's tree-structured Parzen estimator with repair", TpeOptions, RepairedTpeSampler)
