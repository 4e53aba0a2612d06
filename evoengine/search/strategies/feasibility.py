"""The probability that a config works, learned from failures.

A Gaussian process over the same features as the surrogate regresses the outcomes, 1 for a failure and 0 for a correct
config ("least-squares classification", Rasmussen & Williams 2006, section 6.5). It has hyperparameters of its own:
configs fail because of resources, such as a product of two tile sizes, and are slow because of other properties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.search.strategies.features import Encoding, Features, Matrix
from evoengine.search.strategies.surrogate import Floats, GaussianProcess, Hyper, fit

WINDOW: Final = 128
"""Maximum number of outcomes in the model: up to half of them the latest failures, the rest the latest successes."""
LEAST: Final = 0.02
"""Lower bound of the probability, so that no config is excluded for good."""
_FIRST_FIT: Final = 10
_NEXT_FIT: Final = 1.3
"""The hyperparameters are fitted again when the number of outcomes has grown by this factor."""
_FEWEST_FAILURES: Final = 2
"""Failures before hyperparameters are fitted."""


@dataclass(frozen=True)
class _Data:
    """The outcomes of the model, standardised."""

    features: Features
    values: Floats
    share: float
    """Share of failures."""
    scale: float
    """Standard deviation of the outcomes."""


class Feasibility:
    """The model of one family, updated outcome by outcome.

    Args:
        encoding: Encoding of its configs.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._features: list[Features] = []
        self._failed: list[bool] = []
        self._fitted_at = 0
        self._hyper = Hyper.prior(encoding.weights)
        self._model: tuple[_Data, GaussianProcess] | None = None

    def learn(self, features: Features, *, works: bool) -> None:
        """Adds the next outcome.

        Args:
            features: Encoded config, ``[features]``.
            works: Whether it had a time.
        """
        self._features.append(features)
        self._failed.append(not works)
        self._model = None
        if sum(self._failed) >= _FEWEST_FAILURES and len(self._failed) >= max(_FIRST_FIT, _NEXT_FIT * self._fitted_at):
            self._fitted_at = len(self._failed)
            data = self._data()
            self._hyper = fit(self._encoding, data.features, data.values)

    def probability(self, features: Matrix) -> Floats:
        """Probability that configs work, ``[configs]``; 1 until one has failed and one has worked.

        Args:
            features: Encoded configs, ``[configs, features]``.
        """
        if len(set(self._failed)) < 2:
            return np.ones(len(features))
        if self._model is None:
            data = self._data()
            self._model = data, GaussianProcess.of(self._encoding, self._hyper, data.features, data.values)
        data, model = self._model
        return np.clip(1 - data.share - data.scale * model.mean(features), LEAST, 1)

    def _data(self) -> _Data:
        failed = np.array(self._failed, np.float64)
        failures = np.flatnonzero(failed)[-WINDOW // 2 :]
        kept = np.union1d(failures, np.flatnonzero(failed == 0)[-(WINDOW - len(failures)) :])
        share, scale = float(failed[kept].mean()), float(failed[kept].std()) + 1e-9
        features = np.array([self._features[index] for index in kept], np.float32)
        return _Data(features, (failed[kept] - share) / scale, share, scale)
