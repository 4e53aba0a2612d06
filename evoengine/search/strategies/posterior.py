"""What the outcomes of one family let a search believe of its other configs.

A Gaussian process foretells times. It is made of a part of the outcomes, half of them the fastest and half the latest,
and grows with each new one; now and then it is made anew from another part and with other weights. When, follows from
the number of outcomes alone, and every answer from the outcomes in their order, so a resumed search believes the same.
The chance that a config works at all comes from how near failures and successes are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from evoengine.search.strategies.surrogate import (
    Encoding,
    Features,
    Floats,
    Hyper,
    Posterior,
    expected_improvement,
    fit,
)
from evoengine.space.diagram.decision_diagram import IndexRow, IndexRows
from evoengine.space.tunables import Tunable

WINDOW: Final = 128
"""Outcomes that the model is made of when there are more."""
REACH: Final = 32
"""Outcomes by which it may grow before it is made anew."""
UNSUITED_SHARE: Final = 0.8
"""Times above this quantile count as equally bad: how bad a cliff is says nothing about the plateau."""
DOUBT_PER_TRIAL: Final = 0.1
"""How much the model's deviations grow with each candidate since the fastest one, as a share of themselves. A model
that has seen one basin is too sure that there is no other: while what it promises does not come, it is doubted."""
MOST_DOUBT: Final = 3.0
_FIRST_FIT: Final = 10
_NEXT_FIT: Final = 1.3
"""The model's weights are fitted anew when the outcomes have grown by this factor."""
_FAILURE_REACH: Final = 0.6
"""Steps of the encoding over which a failure makes another one likely."""


class FamilyPosterior:
    """Grows with the outcomes of one family.

    Args:
        tunables: of its configs.
    """

    def __init__(self, tunables: Sequence[Tunable]) -> None:
        self._encoding = Encoding(tunables)
        self._rows: list[IndexRow] = []
        self._features: list[Features] = []
        self._log_us: list[float] = []
        self._best_at = 0
        self._failed: list[IndexRow] = []
        self._hyper = Hyper.prior(len(tunables))
        self._fitted_at = 0
        self._made_at = 0
        self._kept: list[int] = []
        self._posterior: Posterior | None = None
        self._standardised: Floats = np.zeros(0)
        self._asked: tuple[tuple[int, int, bytes], Posterior] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def learn(self, row: IndexRow, us: float | None) -> None:
        """One more outcome, in order; without a time, a failure."""
        if us is None:
            self._failed.append(row)
            return
        self._rows.append(row)
        self._features.append(self._encoding.features(row[None])[0])
        self._log_us.append(math.log(us))
        if self._log_us[-1] < self._log_us[self._best_at]:
            self._best_at = len(self) - 1
        if len(self) >= max(_FIRST_FIT, math.ceil(self._fitted_at * _NEXT_FIT)):
            self._fitted_at = len(self)
            self._renew()
            values = self._standardise()
            self._hyper = fit(self._encoding, self._matrix(self._kept), values)
        elif len(self) > WINDOW and len(self) - self._made_at >= REACH:
            self._renew()

    def fastest(self, count: int) -> IndexRows:
        """The fastest candidates; of several with the very same time, which are one kernel, only the first."""
        fastest: dict[float, IndexRow] = {}
        for place in np.argsort(np.array(self._log_us), kind="stable"):
            fastest.setdefault(self._log_us[place], self._rows[place])
            if len(fastest) == count:
                break
        return np.array(list(fastest.values()))

    def conditioned(self, pending: Sequence[IndexRow]) -> Posterior:
        """The model of all outcomes so far, with what is under way as the model expects it."""
        key = (len(self), self._made_at, b"".join(row.tobytes() for row in pending))
        if self._asked is None or self._asked[0] != key:  # it is asked again when a proposal was turned down
            self._asked = key, self._conditioned(pending)
        return self._asked[1]

    def _conditioned(self, pending: Sequence[IndexRow]) -> Posterior:
        grown = self._posterior
        if grown is None:
            grown = Posterior.of(self._encoding, self._hyper, self._matrix(self._kept), np.zeros(len(self._kept)))
        for place in range(self._made_at + len(grown.features) - len(self._kept), len(self)):
            grown = grown.believing(self._features[place][None])
        self._posterior = grown
        model = grown.observed(self._standardise())
        return model.believing(self._encoding.features(np.array(pending))) if len(pending) else model

    def promise(self, model: Posterior, rows: IndexRows) -> Floats:
        """Expected improvement on the fastest candidate, as far as a candidate is expected to work at all."""
        if not len(rows):
            return np.zeros(0)
        features = self._encoding.features(rows)
        mean, deviation = model.predict(features)
        best = float(self._standardised.min())
        return expected_improvement(mean, deviation * self._doubt, best) * self._chance(features)

    @property
    def _doubt(self) -> float:
        stalled = len(self) - 1 - self._best_at
        return 1 + min(DOUBT_PER_TRIAL * stalled, MOST_DOUBT)

    # -- model --------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Chooses what the model is made of; it is made when it is asked for."""
        self._made_at = len(self)
        kept = np.arange(len(self))
        if len(self) > WINDOW:
            fastest = np.argsort(np.array(self._log_us), kind="stable")[: WINDOW // 2]
            kept = np.union1d(fastest, kept[-WINDOW // 2 :])
        self._kept = kept.tolist()
        self._posterior = None

    def _standardise(self) -> Floats:
        """Values of what the model has seen, centred and of unit scale; all others are put on the same scale."""
        log_us, seen = np.array(self._log_us), [*self._kept, *range(self._made_at, len(self))]
        bound = np.quantile(log_us[seen], UNSUITED_SHARE)
        values = np.minimum(log_us[seen], bound)
        self._standardised = (np.minimum(log_us, bound) - values.mean()) / (values.std() + 1e-9)
        return self._standardised[seen]

    def _matrix(self, places: Sequence[int]) -> Features:
        return np.array([self._features[place] for place in places], np.float32).reshape(
            len(places), len(self._encoding.owner)
        )

    # -- failures -----------------------------------------------------------------------------------------------------

    def _chance(self, features: Features) -> Floats:
        """Chance that configs work, from how near the failures and the successes are."""
        if not self._failed:
            return np.ones(len(features))
        failed = self._nearness(features, self._encoding.features(np.array(self._failed[-WINDOW:])))
        worked = self._nearness(features, self._matrix(range(max(0, len(self) - WINDOW), len(self))))
        return (worked + 1.0) / (worked + failed + 1.0)

    def _nearness(self, features: Features, others: Features) -> Floats:
        weighted = features * self._encoding.scale.astype(np.float32)
        scaled = others @ self._encoding.scale.astype(np.float32)
        steps = weighted.sum(axis=1)[:, None] + scaled - 2 * weighted @ others.T
        return np.asarray(np.exp(-steps / np.float32(_FAILURE_REACH)).sum(axis=1), np.float64)
