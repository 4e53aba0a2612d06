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
from evoengine.search.distributions import distributions_of


class WholeConfigSampler(BaseSampler):
    """An Optuna sampler that draws all tunables at once, from the unseen valid configs.

    Args:
        archive: what has been seen.
        seed: randomness derives from it and the trial number, so that a resumed study needs no stored generator.
    """

    def __init__(self, archive: Archive, seed: int) -> None:
        self.archive = archive
        self.seed = seed

    @abstractmethod
    def propose(self, study: Study, trial: FrozenTrial, rng: np.random.Generator) -> Config:
        """An unseen valid config for a trial; never called once the space is exhausted."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All tunables, always."""
        return distributions_of(self.archive.space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The values of :meth:`propose`."""
        return self.propose(study, trial, np.random.default_rng([self.seed, trial.number])).as_dict()

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never reached: every tunable belongs to the relative search space.

        Raises:
            ValueError: it was reached, so the trial asks for something that is no tunable.
        """
        raise ValueError(f"{param_name} is no tunable of this search space")
