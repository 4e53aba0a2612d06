"""The surrogate model: a Gaussian process over configs.

The kernel is the sum of a linear part (main effects of single values) and an exponential of the weighted number of
steps between two configs (interactions and roughness): ``k(x, y) = a · <x, y>_w + b · exp(-|x - y|_w)``. Each tunable
has its own weight (automatic relevance determination), fitted by gradient ascent on the marginal likelihood with a
log-normal prior (Rasmussen & Williams 2006, chapter 5); all features of pairs share one weight. Both parts of the
kernel follow from one matrix product of the features (:mod:`evoengine.search.strategies.features`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.search.strategies.features import Encoding, Features, Matrix, times
from evoengine.statistics import normal_distribution

Floats = npt.NDArray[np.float64]

_PRIOR_WEIGHT: Final = 0.1
_PRIOR_LINEAR: Final = 0.3
_PRIOR_EXPONENTIAL: Final = 0.5
_PRIOR_NOISE: Final = 0.002
"""Modes of the hyperparameters' prior; docs/results/strategy-choices.md compares others."""
_PRIOR_SPREAD: Final = 1.0
"""Standard deviation of the logarithms of all hyperparameters."""
_STEPS: Final = 18
_RATE: Final = 0.25
"""Steps and learning rate of a fit."""


@dataclass(frozen=True)
class Hyper:
    """Logarithms of the hyperparameters."""

    weights: Floats
    """``[weights]`` of the encoding."""
    rest: Floats
    """Amplitudes of the linear and of the exponential part, and the variance of the noise."""

    @classmethod
    def prior(cls, weights: int) -> Hyper:
        """The mode of the prior."""
        rest = np.log([_PRIOR_LINEAR, _PRIOR_EXPONENTIAL, _PRIOR_NOISE])
        return cls(np.full(weights, math.log(_PRIOR_WEIGHT)), rest)


@dataclass(frozen=True)
class GaussianProcess:
    """A Gaussian process conditioned on data.

    It can be extended config by config, at a cost quadratic in the number of configs. Predictions are computed in the
    precision of their features: single where there are many of them, double where their order must not depend on
    rounding.
    """

    encoding: Encoding
    hyper: Hyper
    features: Features
    factor: Floats
    """Inverse of the Cholesky factor of the covariance."""
    alpha: Floats
    """Inverse of the covariance times the values; 0 where the value equals the prediction."""

    @classmethod
    def of(cls, encoding: Encoding, hyper: Hyper, features: Features, values: Floats) -> GaussianProcess:
        """Conditions the process on values.

        Args:
            encoding: Encoding of the configs.
            hyper: Hyperparameters.
            features: Encoded configs, ``[configs, features]``.
            values: Values ``[configs]``, centred and of unit scale.
        """
        factor = np.linalg.inv(np.linalg.cholesky(_covariance(encoding, hyper, features)))
        return cls(encoding, hyper, features, factor, np.zeros(0)).with_values(values)

    def with_values(self, values: Floats) -> GaussianProcess:
        """Returns the process with other values at the same configs."""
        return replace(self, alpha=self.factor.T @ (self.factor @ values))

    def with_predicted(self, features: Features) -> GaussianProcess:
        """Returns the process as if its mean had been observed at more configs: less variance, the same mean.

        Configs in flight are treated this way, so that similar ones are not proposed again ("kriging believer",
        Ginsbourger 2010).

        Args:
            features: Encoded configs, ``[configs, features]``.
        """
        among = _covariance(self.encoding, self.hyper, features)
        along = _kernel(self.encoding, self.hyper, features.astype(np.float64), self.features) @ self.factor.T
        corner = np.linalg.inv(np.linalg.cholesky(among - along @ along.T))
        known, more = len(self.features), len(features)
        factor = np.zeros((known + more, known + more))
        factor[:known, :known] = self.factor
        factor[known:, :known] = -corner @ along @ self.factor
        factor[known:, known:] = corner
        together = np.concatenate([self.features, features])
        return GaussianProcess(
            self.encoding, self.hyper, together, factor, np.concatenate([self.alpha, np.zeros(more)])
        )

    @cached_property
    def _weighted(self) -> tuple[Matrix, Matrix]:
        """The terms of the known configs that every prediction in single precision uses."""
        return _weigh(self.encoding, self.hyper, self.features, np.dtype(np.float32))

    @cached_property
    def _factor32(self) -> npt.NDArray[np.float32]:
        return self.factor.astype(np.float32)

    def predict(self, features: Matrix) -> tuple[Floats, Floats]:
        """Mean and standard deviation at other configs, ``[configs]`` each, computed in the features' precision."""
        single = features.dtype == np.float32
        cross = self._cross(features)
        along = cross @ (self._factor32 if single else self.factor).T
        variance = _variances(self.encoding, self.hyper, features) - np.einsum("ij,ij->i", along, along)
        return self._mean(cross), np.sqrt(np.maximum(variance, 1e-6))

    def mean(self, features: Matrix) -> Floats:
        """Mean at other configs, ``[configs]``, computed in the features' precision."""
        return self._mean(self._cross(features))

    def _cross(self, features: Matrix) -> Matrix:
        weighted = self._weighted if features.dtype == np.float32 else None
        return _kernel(self.encoding, self.hyper, features, self.features, weighted)

    def _mean(self, cross: Matrix) -> Floats:
        return np.asarray(times(cross, self.alpha.astype(cross.dtype)), np.float64)


def _weights(encoding: Encoding, hyper: Hyper) -> Floats:
    """Weight of a difference in each feature, ``[features]``."""
    return np.asarray(np.exp(hyper.weights)[encoding.owner] * encoding.scale)


def _weigh(
    encoding: Encoding, hyper: Hyper, features: Features, precision: np.dtype[np.floating[Any]]
) -> tuple[Matrix, Matrix]:
    """Features times their weights, and the sums of these products over each config."""
    weighted = features * _weights(encoding, hyper).astype(precision)
    return weighted, weighted.sum(axis=1)


def _kernel(
    encoding: Encoding, hyper: Hyper, first: Matrix, second: Features, weighed: tuple[Matrix, Matrix] | None = None
) -> Matrix:
    """Covariances ``[first, second]``, in the precision of ``first``; ``weighed`` is ``_weigh`` of ``second``."""
    weights = _weights(encoding, hyper).astype(first.dtype)
    linear, exponential = np.exp(hyper.rest[:2]).astype(first.dtype)
    weighted, sums = weighed or _weigh(encoding, hyper, second, first.dtype)
    products = first @ weighted.T
    covariance = 2 * products
    covariance -= times(first, weights)[:, None]
    covariance -= sums
    np.exp(covariance, out=covariance)
    covariance *= exponential
    products *= linear
    covariance += products
    return covariance


def _variances(encoding: Encoding, hyper: Hyper, features: Matrix) -> Floats:
    """Prior variances of configs, ``[configs]``."""
    linear, exponential, _ = np.exp(hyper.rest)
    return np.asarray(linear * times(features, _weights(encoding, hyper)) + exponential)


def _covariance(encoding: Encoding, hyper: Hyper, features: Features) -> Floats:
    """Covariances of noisy values, ``[configs, configs]``."""
    covariance = _kernel(encoding, hyper, features.astype(np.float64), features)
    covariance[np.diag_indices_from(covariance)] += math.exp(hyper.rest[2]) + 1e-6
    return np.asarray(covariance)


def fit(encoding: Encoding, features: Features, values: Floats) -> Hyper:
    """Fits the hyperparameters that maximise the marginal likelihood times the prior, by Adam from the prior's mode.

    Args:
        encoding: Encoding of the configs.
        features: Encoded configs, ``[configs, features]``.
        values: Values ``[configs]``, centred and of unit scale.
    """
    start = Hyper.prior(encoding.weights)
    prior = np.concatenate([start.weights, start.rest])
    theta = prior.copy()
    mean, square, x = np.zeros_like(theta), np.zeros_like(theta), features.astype(np.float64)
    for step in range(1, _STEPS + 1):
        hyper = Hyper(theta[:-3], theta[-3:])
        slope = _slope(encoding, hyper, x, values) - (theta - prior) / _PRIOR_SPREAD**2
        mean = 0.8 * mean + 0.2 * slope
        square = 0.9 * square + 0.1 * slope**2
        theta = theta + _RATE * (mean / (1 - 0.8**step)) / (np.sqrt(square / (1 - 0.9**step)) + 1e-6)
        theta = np.clip(theta, prior - 3, prior + 3)
    return Hyper(theta[:-3], theta[-3:])


def _slope(encoding: Encoding, hyper: Hyper, x: Floats, values: Floats) -> Floats:
    """Gradient of the log marginal likelihood with respect to the logarithms of the hyperparameters."""
    count = len(x)
    per_weight = np.exp(hyper.weights)
    weights = per_weight[encoding.owner] * encoding.scale
    linear, exponential, noise = np.exp(hyper.rest)
    weighted = x * weights
    products = weighted @ x.T
    own = weighted.sum(axis=1)
    near = exponential * np.exp(2 * products - own[:, None] - own[None, :])
    covariance = linear * products + near
    covariance[np.diag_indices(count)] += noise + 1e-6
    inverse = np.linalg.inv(covariance)
    alpha = inverse @ values
    pull = np.outer(alpha, alpha) - inverse
    pulled = pull * near
    by_linear = linear * ((pull @ x) * x).sum(axis=0)
    by_distance = 2 * (pulled.sum(axis=1) @ x - ((pulled @ x) * x).sum(axis=0))
    by_feature = 0.5 * weights * (by_linear - by_distance)
    by_weight = np.bincount(encoding.owner, by_feature, encoding.weights)
    by_rest = 0.5 * np.array(
        [linear * float((pull * products).sum()), float(pulled.sum()), noise * float(np.trace(pull))]
    )
    return np.concatenate([by_weight, by_rest])


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Expected improvement of a normal variable below ``best`` (Jones, Schonlau & Welch 1998).

    Args:
        mean: Predicted means.
        deviation: Predicted standard deviations.
        best: Lowest value observed.
    """
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray(deviation * (z * normal_distribution(z) + density))
