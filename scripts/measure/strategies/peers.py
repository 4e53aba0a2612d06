"""Peers of EvoEngine's strategies: Optuna's samplers, and a plain Gaussian process with expected improvement.

``make_strategy`` constructs them by the path of their class, as it does for a user's sampler. All of them therefore get
the same treatment: a proposal that is not valid, or was made before, is repaired to the nearest unseen valid config,
and the sampler is given the config that was evaluated. A failed config counts as an evaluation.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import optuna
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import norm

from evoengine.model import Config
from evoengine.search.strategies.sampler import View
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.tunables import Ordinal

_Floats = npt.NDArray[np.float64]


class MultivariateTpe(optuna.samplers.TPESampler):
    """Optuna's TPE with ``multivariate`` and ``constant_liar``, which its documentation advises for parallel runs."""

    def __init__(self, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # both options are experimental
            super().__init__(seed=seed, multivariate=True, constant_liar=True, warn_independent_sampling=False)


class OptunaGp(optuna.samplers.GPSampler):
    """Optuna's Gaussian process with its defaults."""

    def __init__(self, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(seed=seed, warn_independent_sampling=False)


class OptunaCmaEs(optuna.samplers.CmaEsSampler):
    """Optuna's CMA-ES with its defaults: tunables with unevenly spaced values or names are drawn at random."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, warn_independent_sampling=False)


class PlainGp:
    """Expected improvement of a Gaussian process over all unseen configs.

    The model: logarithm of the time, standardised; Matérn 5/2 with one length scale for all features, chosen with the
    noise from a small grid by marginal likelihood. Features: the index of an ordinal value, scaled to 0 to 1, and
    indicators of the others. A failed config counts as the worst time so far, a pending one as the mean (a constant
    liar). The first proposals are random.

    Args:
        spaces: Valid configs, of one family.
    """

    WARM_UP: Final = 10
    _SCALES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
    _NOISES: Final = (1e-4, 1e-2)

    def __init__(self, spaces: FamilySpaces) -> None:
        (self._space,) = spaces.members
        self._rows = self._space.all_rows()
        self._position = {row.tobytes(): number for number, row in enumerate(self._rows)}
        columns = []
        for axis, tunable in enumerate(self._space.tunables):
            indices = self._rows[:, axis].astype(np.float64)
            if isinstance(tunable, Ordinal):
                columns.append(indices / max(1, len(tunable.values) - 1))
            else:
                columns.extend((indices == index) / np.sqrt(2) for index in range(len(tunable.values)))
        self._features: _Floats = np.stack([c for c in columns if np.ptp(c) > 0] or columns[:1], axis=1)

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        """Returns the config with the largest expected improvement, a random one of several."""
        times = [outcome.value_us for outcome in view.observed if outcome.value_us is not None]
        if len(times) < self.WARM_UP:
            return view.seen.random_unseen(rng)
        worst, mean = max(times), float(np.exp(np.mean(np.log(times))))
        told = [(outcome.config, outcome.value_us or worst) for outcome in view.observed]
        told += [(config, mean) for config in view.pending]
        places = np.array([self._place(config) for config, _ in told])
        logs = np.log([us for _, us in told])
        scores = self._improvement(places, (logs - logs.mean()) / (logs.std() or 1.0))
        scores[[self._place(trial.config) for trial in view.trials]] = -1.0
        ties = np.flatnonzero(scores == scores.max())
        return self._space.config_of(self._rows[ties[int(rng.integers(len(ties)))]])

    def _place(self, config: Config) -> int:
        row = self._space.row_of(config)
        assert row is not None, "proposals are valid"
        return self._position[row.tobytes()]

    def _improvement(self, places: npt.NDArray[np.int64], values: _Floats) -> _Floats:
        known = self._features[places]
        distances, best = _distances(known, known), (-np.inf, 1.0, 1e-2)
        for scale in self._SCALES:
            for noise in self._NOISES:
                factor = cho_factor(_matern(distances / scale) + noise * np.eye(len(values)), lower=True)
                fit = -values @ cho_solve(factor, values) / 2 - np.log(np.diag(factor[0])).sum()
                best = max(best, (float(fit), scale, noise))
        _, scale, noise = best
        factor = cho_factor(_matern(distances / scale) + noise * np.eye(len(values)), lower=True)
        covariance = _matern(_distances(known, self._features) / scale)
        mean: Any = cho_solve(factor, values) @ covariance
        variance = 1 - (covariance * cho_solve(factor, covariance)).sum(axis=0)
        deviation = np.sqrt(np.maximum(variance, 1e-12))
        gain = (values.min() - mean) / deviation
        improvement: _Floats = deviation * (gain * norm.cdf(gain) + norm.pdf(gain))
        return improvement


def _distances(a: _Floats, b: _Floats) -> _Floats:
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


def _matern(distances: _Floats) -> _Floats:
    scaled = np.sqrt(5) * distances
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
