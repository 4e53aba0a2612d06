"""What our Optuna samplers have in common: they hand out whole, valid, unseen configs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from evoengine.model import Config
from evoengine.search.archive import Archive
from evoengine.search.distributions import Parameters


class WholeConfigSampler(BaseSampler):
    """An Optuna sampler that draws the family and all its tunables at once, from the unseen valid configs.

    Args:
        archive: what has been seen.
        seed: randomness derives from it and the trial number, so that a resumed study needs no stored generator.
    """

    def __init__(self, archive: Archive, seed: int) -> None:
        self.archive = archive
        self.seed = seed
        self.parameters = Parameters(archive.spaces)

    @abstractmethod
    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """An unseen valid config for a trial; never called once the space is exhausted."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All tunables of all families, always."""
        return self.parameters.all

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of :meth:`propose`: those of one family."""
        return self.parameters.params(self.propose(study, trial, np.random.default_rng([self.seed, trial.number])))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never reached: every tunable belongs to the relative search space.

        Raises:
            ValueError: it was reached, so the trial asks for something that is no tunable.
        """
        raise ValueError(f"{param_name} is no tunable of this search space")
