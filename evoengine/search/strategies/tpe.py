"""The ``tpe`` strategy: Optuna's Parzen estimator, its wishes moved to the nearest unseen valid config."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial

from evoengine.model import Config
from evoengine.search.strategies.distributions import FAMILY, Parameters
from evoengine.search.strategies.optuna_adapter import OptunaAdapter
from evoengine.search.strategies.strategy import View
from evoengine.space.family_spaces import FamilySpaces

STARTUP_TRIALS: Final = 20
"""Correct candidates drawn uniformly before the estimator has something to go by."""

_SEED_LIMIT: Final = 2**32


class RepairedTpeSampler:
    """Optuna proposes, the archive repairs; Optuna is told the config that was evaluated, not the one it wished for.

    Of several families, Optuna first wishes for one by the times of all trials, then for its tunables by the trials of
    that family: what its own sampler does with ``group=True``, without asking for families that are not wanted.
    """

    def __init__(self, spaces: FamilySpaces) -> None:
        self._parameters = Parameters(spaces)
        self._mirror = OptunaAdapter(self._parameters)
        self._tunables = {family: _several(group) for family, group in self._parameters.tunables.items()}

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        """Near what the estimator wishes."""
        trial, archive = self._mirror.trial_of(view), view.archive
        if view.seeds:
            return view.seeds[0]
        if sum(outcome.value_us is not None for outcome in view.observed) < STARTUP_TRIALS:
            return archive.random_unseen(rng)
        # A new estimator for each trial: it keeps nothing but its random generator, and so a resumed study goes on as
        # if it had never stopped.
        estimator = TPESampler(seed=int(rng.integers(_SEED_LIMIT)), n_startup_trials=STARTUP_TRIALS, multivariate=True)
        family = str(self._wish(estimator, trial, self._parameters.families).get(FAMILY, ""))
        families = archive.open_families()
        if family not in families:
            family = families[int(rng.integers(len(families)))]
        wish = self._wish(estimator, trial, self._tunables[family])
        values = self._parameters.values(family, wish)
        return archive.nearest_unseen(family, values, rng) if values else archive.random_unseen(rng, family)

    def _wish(self, estimator: TPESampler, trial: FrozenTrial, space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return estimator.sample_relative(self._mirror.study, trial, space) if space else {}


def _several(group: dict[str, BaseDistribution]) -> dict[str, BaseDistribution]:
    """The distributions that leave a choice."""
    return {name: distribution for name, distribution in group.items() if not distribution.single()}
