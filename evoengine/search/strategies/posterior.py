"""The posterior over one family's configs: expected improvement and probability that one works.

A Gaussian process predicts the logarithms of times, warped so that differences between fast configs count more than
those between slow ones. It is conditioned on a subset of the outcomes, one half the fastest and one half the latest,
and is extended by each new outcome. From time to time the subset is selected anew and the hyperparameters are fitted
again; when this happens follows from the number of outcomes alone, and every answer from the outcomes in order, so a
resumed search computes the same. The probability that a config works comes from
:mod:`evoengine.search.strategies.feasibility`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from evoengine.search.strategies.feasibility import Feasibility
from evoengine.search.strategies.features import Encoding, Features, Matrix
from evoengine.search.strategies.surrogate import (
    Floats,
    GaussianProcess,
    Hyper,
    expected_improvement,
    fit,
)
from evoengine.space.index_rows import IndexRow, IndexRows
from evoengine.space.tunables import Tunable

WINDOW: Final = 128
"""Maximum number of outcomes in the subset."""
EXTENSION: Final = 32
"""Number of outcomes by which the model is extended before a new subset is selected."""
CLIP_QUANTILE: Final = 0.8
"""Times above this quantile are clipped to it: how slow the slowest configs are says little about the fast ones."""
WARP: Final = 0.3
"""The model's value of a config is ``log(WARP + log(us / fastest us))``: near the fastest config a difference of 3 %
counts as much as one of 10 % where the time is twice as long."""
WIDENING_PER_TRIAL: Final = 0.1
"""Relative growth of the predicted standard deviations per candidate since the fastest one. A model that has seen one
basin underestimates the uncertainty elsewhere; it is widened while its predicted improvements do not materialise."""
MOST_WIDENING: Final = 3.0
"""Largest relative growth: deviations are at most four times as large."""
_FIRST_FIT: Final = 10
_NEXT_FIT: Final = 1.3
"""The hyperparameters are fitted again when the number of outcomes has grown by this factor."""

COMPARED_EXACTLY: Final = 64
"""Number of configs with the largest expected improvement that are compared in double precision."""
_SCORE_DIGITS: Final = 6
"""Digits to which expected improvements are compared, relative to the largest."""
_LEAST_IMPROVEMENT: Final = 1e-12
_STEP_DIGITS: Final = 3
"""Digits to which distances are compared, so that rounding does not depend on the platform."""


class FamilyPosterior:
    """The model of one family, updated outcome by outcome.

    Args:
        tunables: Tunables of its configs.
    """

    def __init__(self, tunables: Sequence[Tunable]) -> None:
        self._encoding = Encoding(tunables)
        self._rows: list[IndexRow] = []
        self._features: list[Features] = []
        self._log_us: list[float] = []
        self._best_index = 0
        self._feasibility = Feasibility(self._encoding)
        self._hyper = Hyper.prior(self._encoding.weights)
        self._fitted_at = 0
        self._selected_at = 0
        self._subset: list[int] = []
        self._posterior: GaussianProcess | None = None
        self._standardised: Floats = np.zeros(0)
        self._cached: tuple[tuple[int, int, bytes], GaussianProcess] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def learn(self, row: IndexRow, us: float | None) -> None:
        """Adds the next outcome; without a time, a failure."""
        features = self._encoding.features(row[None])[0]
        self._feasibility.learn(features, works=us is not None)
        if us is None:
            return
        self._rows.append(row)
        self._features.append(features)
        self._log_us.append(math.log(us))
        if self._log_us[-1] < self._log_us[self._best_index]:
            self._best_index = len(self) - 1
        if len(self) >= max(_FIRST_FIT, math.ceil(self._fitted_at * _NEXT_FIT)):
            self._fitted_at = len(self)
            self._select_subset()
            values = self._standardise()
            self._hyper = fit(self._encoding, self._matrix(self._subset), values)
        elif len(self) > WINDOW and len(self) - self._selected_at >= EXTENSION:
            self._select_subset()

    def fastest(self, count: int) -> IndexRows:
        """The fastest candidates; of several with exactly the same time, which share one kernel, only the first."""
        fastest: dict[float, IndexRow] = {}
        for index in np.argsort(np.array(self._log_us), kind="stable"):
            fastest.setdefault(self._log_us[index], self._rows[index])
            if len(fastest) == count:
                break
        return np.array(list(fastest.values()))

    def conditioned(self, pending: Sequence[IndexRow]) -> GaussianProcess:
        """The model of all outcomes so far, with the configs in flight at their predicted means.

        Args:
            pending: Rows of the configs in flight.
        """
        key = (len(self), self._selected_at, b"".join(row.tobytes() for row in pending))
        if self._cached is None or self._cached[0] != key:  # used again when a proposal was pruned
            self._cached = key, self._conditioned(pending)
        return self._cached[1]

    def _conditioned(self, pending: Sequence[IndexRow]) -> GaussianProcess:
        grown = self._posterior
        if grown is None:
            grown = GaussianProcess.of(
                self._encoding, self._hyper, self._matrix(self._subset), np.zeros(len(self._subset))
            )
        for index in range(self._selected_at + len(grown.features) - len(self._subset), len(self)):
            grown = grown.with_predicted(self._features[index][None])
        self._posterior = grown
        model = grown.with_values(self._standardise())
        return model.with_predicted(self._encoding.features(np.array(pending))) if len(pending) else model

    def most_distant(self, rows: IndexRows, taken: Sequence[IndexRow]) -> int:
        """Index of the row that is most steps from the nearest of the taken ones (maximin design, Johnson 1990).

        The steps are multiplied by the probability that the config works: the most distant configs have extreme tiles
        and pipelines, which fail more often than others.

        Args:
            rows: Candidates ``[configs, tunables]``, at least one; ties go to the first.
            taken: Configs that are evaluated or in flight.
        """
        if not len(taken):
            return 0
        features = self._encoding.features(rows)
        steps = self._encoding.steps(features, self._encoding.features(np.array(taken))).min(axis=1)
        return int(np.argmax(np.round(steps * self._feasibility.probability(features), _STEP_DIGITS)))

    def best_first(
        self, model: GaussianProcess, rows: IndexRows, count: int, likely: Floats | None = None
    ) -> IndexRows:
        """The rows with the largest expected improvement, at most ``count``, largest first.

        The expected improvement is over the fastest candidate, and is multiplied by the probability that the config
        works, and by the probabilities that the caller gives. The first rows are compared in double precision and
        rounded, ties in the order of ``rows``, so that the order does not depend on how a platform's linear algebra
        rounds.

        Args:
            model: Result of :meth:`conditioned`.
            rows: Configs ``[configs, tunables]``.
            count: Maximum number of rows.
            likely: Probabilities of further conditions, ``[configs]``; None for 1.
        """
        if not len(rows):
            return rows
        features, factors = self._encoding.features(rows), np.ones(len(rows)) if likely is None else likely
        order = np.argsort(-self._acquisition(model, features) * factors, kind="stable")
        first = np.sort(order[:COMPARED_EXACTLY])
        exact = self._acquisition(model, features[first].astype(np.float64)) * factors[first]
        rounded = np.round(exact / max(float(exact.max()), _LEAST_IMPROVEMENT), _SCORE_DIGITS)
        order = np.concatenate([first[np.argsort(-rounded, kind="stable")], order[COMPARED_EXACTLY:]])
        return np.asarray(rows[order[:count]])

    def _acquisition(self, model: GaussianProcess, features: Matrix) -> Floats:
        mean, deviation = model.predict(features)
        best = float(self._standardised.min())
        return expected_improvement(mean, deviation * self._widening, best) * self._feasibility.probability(features)

    @property
    def _widening(self) -> float:
        stalled = len(self) - 1 - self._best_index
        return 1 + min(WIDENING_PER_TRIAL * stalled, MOST_WIDENING)

    # -- model --------------------------------------------------------------------------------------------------------

    def _select_subset(self) -> None:
        """Selects the outcomes of the model, which is built on its next use."""
        self._selected_at = len(self)
        kept = np.arange(len(self))
        if len(self) > WINDOW:
            fastest = np.argsort(np.array(self._log_us), kind="stable")[: WINDOW // 2]
            kept = np.union1d(fastest, kept[-WINDOW // 2 :])
        self._subset = kept.tolist()
        self._posterior = None

    def _standardise(self) -> Floats:
        """Values of the model's outcomes, centred and of unit scale; ``_standardised`` has all on the same scale."""
        log_us, seen = np.array(self._log_us), [*self._subset, *range(self._selected_at, len(self))]
        warped = np.log(WARP + log_us - log_us.min())
        bound = np.quantile(warped[seen], CLIP_QUANTILE)
        values = np.minimum(warped[seen], bound)
        self._standardised = (np.minimum(warped, bound) - values.mean()) / (values.std() + 1e-9)
        return self._standardised[seen]

    def _matrix(self, indices: Sequence[int]) -> Features:
        return np.array([self._features[index] for index in indices], np.float32).reshape(
            len(indices), len(self._encoding.owner)
        )
