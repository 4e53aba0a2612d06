"""A Gaussian process over configs: what a search may expect of a config that it has not tried.

The kernel adds a linear part (main effects of single values) to an exponential of the weighted number of steps between
two configs (interactions, and the rough rest): ``k(x, y) = a · <x, y>_w + b · exp(-|x - y|_w)``. Each tunable has a
weight of its own (automatic relevance determination), found by gradient ascent on the marginal likelihood with a
log-normal prior (Rasmussen & Williams 2006, chapter 5). Ordinal tunables are encoded as thermometers, categorical ones
one-hot, so that both parts come out of one matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.space.diagram import Rows
from evoengine.space.tunables import Ordinal, Tunable

Floats = npt.NDArray[np.float64]

_PRIOR_WEIGHT: Final = 0.22
_PRIOR_LINEAR: Final = 0.3
_PRIOR_ROUGH: Final = 0.5
_PRIOR_NOISE: Final = 0.01
_PRIOR_SPREAD: Final = 1.0
"""Standard deviation of the logarithms of all hyperparameters."""
_STEPS: Final = 18
_RATE: Final = 0.25


class Encoding:
    """Rows of value indices as 0/1 features, some for each tunable."""

    def __init__(self, tunables: Sequence[Tunable]) -> None:
        tables = [_features(tunable) for tunable in tunables]
        self._tables = tables
        self.owner = np.repeat(np.arange(len(tables)), [table.shape[1] for table in tables])
        """``[features]``: the tunable that a feature belongs to."""
        self.scale = np.concatenate([_scales(tunable) for tunable in tunables])
        """``[features]``: how far apart two configs are that differ in it."""
        self.tunables = len(tables)

    def features(self, rows: Rows) -> Floats:
        """``[configs, features]``."""
        return np.concatenate([table[rows[:, place]] for place, table in enumerate(self._tables)], axis=1)


def _features(tunable: Tunable) -> Floats:
    count = len(tunable.values)
    if isinstance(tunable, Ordinal):
        return np.tril(np.ones((count, count)), -1)[:, : count - 1]
    return np.eye(count)


def _scales(tunable: Tunable) -> Floats:
    count = len(tunable.values)
    if isinstance(tunable, Ordinal):
        return np.full(count - 1, 1 / math.sqrt(max(count - 1, 1)))
    return np.full(count, 0.5)


@dataclass(frozen=True)
class Hyper:
    """Logarithms of the hyperparameters."""

    weights: Floats
    """``[tunables]``."""
    rest: Floats
    """Amplitudes of the linear and the rough part, and the noise's variance."""

    @classmethod
    def prior(cls, tunables: int) -> Hyper:
        """What is believed before anything is known."""
        rest = np.log([_PRIOR_LINEAR, _PRIOR_ROUGH, _PRIOR_NOISE])
        return cls(np.full(tunables, math.log(_PRIOR_WEIGHT)), rest)


@dataclass(frozen=True)
class Posterior:
    """A process that has seen data."""

    encoding: Encoding
    hyper: Hyper
    features: Floats
    factor: Floats
    """Inverse of the Cholesky factor of the covariance."""
    alpha: Floats

    @classmethod
    def of(cls, encoding: Encoding, hyper: Hyper, features: Floats, values: Floats) -> Posterior:
        """Conditions on values, which should be centred and of unit scale."""
        covariance = _kernel(encoding, hyper, features, features)[0]
        covariance[np.diag_indices_from(covariance)] += math.exp(hyper.rest[2]) + 1e-6
        factor = np.linalg.inv(np.linalg.cholesky(covariance))
        return cls(encoding, hyper, features, factor, factor.T @ (factor @ values))

    def believing(self, features: Floats) -> Posterior:
        """As if the mean had been observed at some more configs: surer there, expecting the same everywhere.

        What is under way is treated so, or its like would be proposed again ("kriging believer", Ginsbourger 2010).
        """
        between = _kernel(self.encoding, self.hyper, features, self.features)[0]
        among = _kernel(self.encoding, self.hyper, features, features)[0]
        among[np.diag_indices_from(among)] += math.exp(self.hyper.rest[2]) + 1e-6
        along = between @ self.factor.T
        corner = np.linalg.inv(np.linalg.cholesky(among - along @ along.T))
        known, more = len(self.features), len(features)
        factor = np.zeros((known + more, known + more))
        factor[:known, :known] = self.factor
        factor[known:, :known] = -corner @ along @ self.factor
        factor[known:, known:] = corner
        together = np.concatenate([self.features, features])
        return Posterior(self.encoding, self.hyper, together, factor, np.concatenate([self.alpha, np.zeros(more)]))

    def predict(self, features: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation at other configs."""
        cross, own = _kernel(self.encoding, self.hyper, features, self.features, diagonal=True)
        mean = cross @ self.alpha
        variance = own - ((cross @ self.factor.T) ** 2).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, 1e-8))


def _kernel(
    encoding: Encoding, hyper: Hyper, first: Floats, second: Floats, *, diagonal: bool = False
) -> tuple[Floats, Floats]:
    """Covariances ``[first, second]``, and on request the variances of the first."""
    weights = np.exp(hyper.weights)[encoding.owner] * encoding.scale
    linear, rough = np.exp(hyper.rest[:2])
    weighted = first * weights
    products = weighted @ second.T
    own, other = weighted.sum(axis=1), second @ weights
    covariance = products * -2
    covariance += own[:, None]
    covariance += other[None, :]
    np.negative(covariance, out=covariance)
    np.exp(covariance, out=covariance)
    covariance *= rough
    products *= linear
    covariance += products
    return covariance, own * linear + rough if diagonal else own


def fit(encoding: Encoding, features: Floats, values: Floats) -> Hyper:
    """Hyperparameters that maximise the marginal likelihood times the prior, by Adam from the prior's mode.

    Args:
        encoding: of the features.
        features: ``[configs, features]``.
        values: ``[configs]``, centred and of unit scale.
    """
    start = Hyper.prior(encoding.tunables)
    prior = np.concatenate([start.weights, start.rest])
    theta = prior.copy()
    mean, square = np.zeros_like(theta), np.zeros_like(theta)
    for step in range(1, _STEPS + 1):
        hyper = Hyper(theta[:-3], theta[-3:])
        slope = _slope(encoding, hyper, features, values) - (theta - prior) / _PRIOR_SPREAD**2
        mean = 0.8 * mean + 0.2 * slope
        square = 0.9 * square + 0.1 * slope**2
        theta = theta + _RATE * (mean / (1 - 0.8**step)) / (np.sqrt(square / (1 - 0.9**step)) + 1e-6)
        theta = np.clip(theta, prior - 3, prior + 3)
    return Hyper(theta[:-3], theta[-3:])


def _slope(encoding: Encoding, hyper: Hyper, x: Floats, values: Floats) -> Floats:
    """Gradient of the log marginal likelihood with respect to the logarithms of the hyperparameters."""
    count = len(x)
    per_tunable = np.exp(hyper.weights)
    weights = per_tunable[encoding.owner] * encoding.scale
    linear, rough, noise = np.exp(hyper.rest)
    weighted = x * weights
    products = weighted @ x.T
    own = weighted.sum(axis=1)
    near = rough * np.exp(2 * products - own[:, None] - own[None, :])
    covariance = linear * products + near
    covariance[np.diag_indices(count)] += noise + 1e-6
    inverse = np.linalg.inv(covariance)
    alpha = inverse @ values
    pull = np.outer(alpha, alpha) - inverse
    pulled = pull * near
    by_linear = linear * ((pull @ x) * x).sum(axis=0)
    by_distance = 2 * (pulled.sum(axis=1) @ x - ((pulled @ x) * x).sum(axis=0))
    by_feature = 0.5 * weights * (by_linear - by_distance)
    by_weight = np.bincount(encoding.owner, by_feature, encoding.tunables)
    by_rest = 0.5 * np.array(
        [linear * float((pull * products).sum()), float(pulled.sum()), noise * float(np.trace(pull))]
    )
    return np.concatenate([by_weight, by_rest])


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """How much below ``best`` a value may be expected to fall (Jones, Schonlau & Welch 1998)."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + _erf(z / math.sqrt(2)))
    return np.asarray(deviation * (z * below + density))


def _erf(x: Floats) -> Floats:
    """Error function, within 1.5e-7 (Abramowitz & Stegun 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(np.sign(x) * (1 - poly * np.exp(-(x**2))))
