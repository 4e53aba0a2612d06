"""The ``random`` strategy: uniform over the unseen valid configs. What every other strategy has to beat."""

from __future__ import annotations

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial

from evoengine.model import Config
from evoengine.search.samplers import WholeConfigSampler


class UniformSampler(WholeConfigSampler):
    """Draws without replacement."""

    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """Any unseen config."""
        return self.archive.random_unseen(rng)
