"""The ``tpe`` strategy: Optuna's Parzen estimator, its wishes moved to the nearest unseen valid config."""

from __future__ import annotations

from typing import Final

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from evoengine.model import Config
from evoengine.search.archive import Archive
from evoengine.search.distributions import distributions_of
from evoengine.search.samplers import WholeConfigSampler

STARTUP_TRIALS: Final = 20
"""Correct candidates drawn uniformly before the estimator has something to go by."""

_SEED_LIMIT: Final = 2**32


class RepairedTpeSampler(WholeConfigSampler):
    """Optuna proposes, the archive repairs; Optuna is told the config that was evaluated, not the one it wished for."""

    def __init__(self, archive: Archive, seed: int) -> None:
        super().__init__(archive, seed)
        self._space: dict[str, BaseDistribution] = {
            name: distribution
            for name, distribution in distributions_of(archive.space).items()
            if not distribution.single()
        }

    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """Near what the estimator wishes."""
        correct = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(correct) < STARTUP_TRIALS or not self._space:
            return self.archive.random_unseen(rng)
        # A new estimator for each trial: it keeps nothing but its random generator, and so a resumed study goes on as
        # if it had never stopped.
        estimator = TPESampler(seed=int(rng.integers(_SEED_LIMIT)), n_startup_trials=STARTUP_TRIALS, multivariate=True)
        wish = estimator.sample_relative(study, trial, self._space)
        return self.archive.nearest_unseen(wish, rng) if wish else self.archive.random_unseen(rng)
