"""A regression of forecasts: estimates those of many further configs in the time of one that is simulated.

The logarithms of the forecasts that were made to choose the opening of a search, of random configs and of fast ones,
are regressed on the features of the surrogate model, single values and products of pairs, with a penalty on the squared
weights (ridge regression, Hoerl & Kennard 1970). How far an estimate is off follows from the residuals of
cross-validation. The estimates only order configs, so that a search examines the likely ones first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.search.forecast.choice import ForecastTable
from evoengine.search.strategies.features import Encoding
from evoengine.search.strategies.surrogate import Floats
from evoengine.space.index_rows import IndexRows
from evoengine.space.tunables import Tunable
from evoengine.statistics import normal_distribution

FEWEST: Final = 100
"""Forecasts from which there is a regression."""
_PENALTY: Final = 1.0
"""Weight of the penalty, for features that are 0 or 1."""
_FOLDS: Final = 5
"""Parts of the forecasts in cross-validation."""
_LEAST_SPREAD: Final = 0.01
"""Lower limit of an estimate's standard deviation."""


@dataclass(frozen=True, eq=False)
class ForecastRegression:
    """A linear model of the logarithms of one family's forecasts."""

    encoding: Encoding
    weights: Floats
    """``[features + 1]``; the last one is the constant."""
    spread: float
    """Standard deviation of an estimate's error."""

    @classmethod
    def of(cls, tunables: Sequence[Tunable], table: ForecastTable) -> ForecastRegression | None:
        """Fits the model; None where there are fewer than :data:`FEWEST` finite forecasts.

        Args:
            tunables: Tunables of the family.
            table: Forecasts.
        """
        finite = np.isfinite(table.us)
        if int(finite.sum()) < FEWEST:
            return None
        encoding, log_us = Encoding(tunables), np.log(table.us[finite])
        features = _with_constant(encoding, table.rows[finite])
        fold = np.arange(len(log_us)) % _FOLDS
        errors = [
            log_us[fold == one] - features[fold == one] @ _ridge(features[fold != one], log_us[fold != one])
            for one in range(_FOLDS)
        ]
        spread = max(float(np.concatenate(errors).std()), _LEAST_SPREAD)
        return cls(encoding, _ridge(features, log_us), spread)

    def probability_below(self, rows: IndexRows, limit_us: float) -> Floats:
        """Probability that the forecasts of configs are below a limit, ``[configs]``.

        Args:
            rows: Configs ``[configs, tunables]``.
            limit_us: Microseconds.
        """
        estimates = _with_constant(self.encoding, rows) @ self.weights
        return normal_distribution((math.log(limit_us) - estimates) / self.spread)


def _with_constant(encoding: Encoding, rows: IndexRows) -> Floats:
    features = encoding.features(rows)
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


def _ridge(features: Floats, values: Floats) -> Floats:
    """Weights of the least squares with a penalty, which does not count for the constant."""
    penalty = np.diag(np.append(np.full(features.shape[1] - 1, _PENALTY), 0.0))
    return np.asarray(np.linalg.solve(features.T @ features + penalty, features.T @ values))
