"""The ``random`` strategy: what every other strategy has to beat.

Each trial draws a family, all equally likely however large they are, then one of its unseen valid configs, all equally
likely. A family that is exhausted is not drawn any more.
"""

from __future__ import annotations

import numpy as np
from optuna.study import Study
from optuna.trial import FrozenTrial

from evoengine.model import Config
from evoengine.search.samplers import WholeConfigSampler


class UniformSampler(WholeConfigSampler):
    """Draws without replacement."""

    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """Any family, then any of its unseen configs."""
        return self.archive.random_unseen(rng)
