"""The ``tpe`` strategy: Optuna's Parzen estimator, its wishes moved to the nearest unseen valid config."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from evoengine.model import Config
from evoengine.search.archive import Archive
from evoengine.search.distributions import FAMILY
from evoengine.search.samplers import WholeConfigSampler

STARTUP_TRIALS: Final = 20
"""Correct candidates drawn uniformly before the estimator has something to go by."""

_SEED_LIMIT: Final = 2**32


class RepairedTpeSampler(WholeConfigSampler):
    """Optuna proposes, the archive repairs; Optuna is told the config that was evaluated, not the one it wished for.

    Of several families, Optuna first wishes for one by the times of all trials, then for its tunables by the trials of
    that family: what its own sampler does with ``group=True``, without asking for families that are not wanted.
    """

    def __init__(self, archive: Archive, seed: int) -> None:
        super().__init__(archive, seed)
        self._tunables = {family: _several(group) for family, group in self.parameters.tunables.items()}

    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """Near what the estimator wishes."""
        correct = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(correct) < STARTUP_TRIALS:
            return self.archive.random_unseen(rng)
        # A new estimator for each trial: it keeps nothing but its random generator, and so a resumed study goes on as
        # if it had never stopped.
        estimator = TPESampler(seed=int(rng.integers(_SEED_LIMIT)), n_startup_trials=STARTUP_TRIALS, multivariate=True)
        family = str(self._wish(estimator, study, trial, self.parameters.families).get(FAMILY, ""))
        families = self.archive.open_families()
        if family not in families:
            family = families[int(rng.integers(len(families)))]
        wish = self._wish(estimator, study, trial, self._tunables[family])
        values = self.parameters.values(family, wish)
        return self.archive.nearest_unseen(family, values, rng) if values else self.archive.random_unseen(rng, family)

    def _wish(
        self, estimator: TPESampler, study: Study, trial: FrozenTrial, space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return estimator.sample_relative(study, trial, space) if space else {}


def _several(group: dict[str, BaseDistribution]) -> dict[str, BaseDistribution]:
    """The distributions that leave a choice."""
    return {name: distribution for name, distribution in group.items() if not distribution.single()}
