"""Decision sets: a few configs that are likely to include the fastest one, chosen from predictions.

The configs with the fastest predictions are often near twins, whose predictions err together: where one is wrong, all
are. So a set is chosen for the fastest of its members: from the predictions and the covariance of their errors, joint
times of all candidates are drawn many times, and each member is the candidate that lowers the mean over the draws of
the fastest time of the set the most. Candidates that the model cannot tell apart have nearly equal draws, so a second
one adds nothing. The choice is within 1 - 1/e of the best possible gain, because the gain is submodular.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.forecast_error import own_covariance
from evoengine.errors import UsageError
from evoengine.model import Config

POOL: Final = 400
"""Number of candidates with the fastest predictions from which a set is chosen."""
_DRAWS: Final = 512
_SEED: Final = 0
_JITTER: Final = 1e-6
"""Variance that every error has of its own, for numerical stability: a tenth of a percent."""


class PredictionErrors(Protocol):
    """Provides the covariance of the errors of predictions for one family's configs."""

    def error_covariance(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        """Covariance of the logarithms of measured over predicted times, ``[configs, configs]``."""


def decision_set(
    configs: Sequence[Config],
    predicted_us: Sequence[float] | npt.NDArray[np.float64],
    errors: Mapping[str, PredictionErrors],
    count: int,
) -> list[int]:
    """Chooses candidates that are likely to include the fastest one.

    Args:
        configs: Candidates, each machine code once.
        predicted_us: Predicted time of each.
        errors: Errors of the predictions by family; families without any have errors of their own.
        count: Maximum size of the set.

    Returns:
        Indices of the chosen candidates, in the order of the choice: the first is expected to be the fastest.
    """
    us = np.asarray(predicted_us, np.float64)
    order = np.argsort(us, kind="stable")
    order = order[np.isfinite(us[order])][:POOL]
    if len(order) <= count:
        return [int(index) for index in order]
    expected = np.log(us[order])
    spread = _spread([configs[index] for index in order], errors)
    errors_drawn = spread @ np.random.default_rng(_SEED).standard_normal((len(order), _DRAWS))
    draws = expected[:, None] + errors_drawn - errors_drawn.mean(axis=1, keepdims=True)  # the fastest is chosen first
    return [int(order[place]) for place in _chosen(draws, count)]


def _chosen(draws: npt.NDArray[np.float64], count: int) -> list[int]:
    """Chooses rows of ``draws``, ``[candidates, draws]``, greedily for the mean of their least values."""
    least: npt.NDArray[np.float64] = np.full(draws.shape[1], np.inf)
    found: list[int] = []
    for _ in range(count):
        means = np.minimum(draws, least).mean(axis=1).round(9)  # the rounding of sums differs between machines
        means[found] = np.inf
        found.append(int(means.argmin()))
        least = np.minimum(least, draws[found[-1]])
    return found


def _spread(configs: Sequence[Config], errors: Mapping[str, PredictionErrors]) -> npt.NDArray[np.float64]:
    """Computes a root of the covariance of the errors; families err independently of each other."""
    root: npt.NDArray[np.float64] = np.zeros((len(configs), len(configs)))
    for family in dict.fromkeys(config.family for config in configs):
        places = np.array([index for index, config in enumerate(configs) if config.family == family])
        covariance = _covariance([configs[index] for index in places], errors.get(family))
        covariance[np.diag_indices(len(places))] += _JITTER
        root[np.ix_(places, places)] = np.linalg.cholesky(covariance)
    return root


def _covariance(configs: Sequence[Config], errors: PredictionErrors | None) -> npt.NDArray[np.float64]:
    if errors is not None:
        try:
            return errors.error_covariance(configs)
        except UsageError:  # configs of an older search space
            pass
    return own_covariance(configs)
