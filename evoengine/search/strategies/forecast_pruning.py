"""Hopeless configs: so slow by the latency model's forecast, as it fared in this study, that nobody need measure them.

The logarithm of measured over forecast time, over the correct candidates of a family in this study, says how far the
forecast is off and how much it scatters. From these residuals follows, for a config that was not tried, a time that it
stays above with :data:`CONFIDENCE` (the lower bound of a prediction interval for normal residuals; Hahn & Meeker,
"Statistical Intervals", 1991, section 4.7). A config whose bound is more than :data:`WIDE` times the best time of the
study is not proposed. It uses up no budget, and may be proposed later if the residuals come to say otherwise.

Nothing is skipped before a family has :data:`FEWEST` measured candidates, nor where their order shows that the forecast
tells nothing here. The answers follow from the outcomes in their order, so a resumed search skips the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.latency import Numbers
from evoengine.model import Config
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.warmstart.forecast import Forecast
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.diagram.row_set import keys_of
from evoengine.space.valid_space import ValidSpace
from evoengine.statistics import rank_correlation, t_quantile

CONFIDENCE: Final = 0.995
"""That a skipped config is slower than the bound, as far as its residual is one of those seen."""
WIDE: Final = 1.25
"""The bound over the best time, above which a config is hopeless."""
FEWEST: Final = 6
"""Measured candidates of a family before its forecast is trusted."""
LEAST_SPREAD: Final = 0.1
"""The residuals are taken to scatter at least so much: those of a few like kernels say little of others."""
TOGETHER: Final = 128
"""Configs of a list that are looked at at a time: the forecast of a hundred takes little longer than that of one."""
LEAST_CORRELATION: Final = 0.5
"""Rank correlation below which a forecast is refuted, where what was measured is spread enough to tell."""


class ForecastPruner:
    """Learns how a forecast fares and says which configs are not worth a measurement.

    Args:
        forecasts: by family; of a family without one, nothing is hopeless.
    """

    def __init__(self, forecasts: Mapping[str, Forecast]) -> None:
        self._forecasts = forecasts
        self._records = {family: _Record() for family in forecasts}
        self._best_us = math.inf
        self._taken = 0
        self._skipped: set[Config] = set()
        self._skipped_rows: dict[ValidSpace, set[bytes]] = {}
        self._expected_us: dict[Config, float] = {}

    @property
    def best_us(self) -> float:
        """The fastest outcome so far; infinite before there is one."""
        return self._best_us

    @property
    def skipped(self) -> int:
        """Configs that were found hopeless so far."""
        others = sum(not self._is_among_rows(config) for config in self._skipped)
        return sum(map(len, self._skipped_rows.values())) + others

    def learn(self, observed: Sequence[Outcome]) -> None:
        """Outcomes in order; they begin with those of the call before."""
        # A duplicate counts like its twin: which of the two is one depends on who was first.
        new = [(outcome.config, outcome.value_us) for outcome in observed[self._taken :] if outcome.value_us]
        expected = self._expected([config for config, _ in new])
        for config, measured_us in new:
            self._best_us = min(self._best_us, measured_us)
            if config in expected:
                self._records[config.family].add(expected[config], measured_us)
        self._taken = len(observed)

    def hopeless(self, config: Config) -> bool:
        """Whether a config is expected to be far slower than the best one, surely enough."""
        factor = self._factor(config.family)
        if factor is None:
            return False
        found = bool(self._is_hopeless(self._expected([config])[config], factor))
        if found:
            self._skipped.add(config)
        return found

    def first_worthwhile(self, space: ValidSpace, rows: IndexRows) -> int | None:
        """Place of the first config that is not hopeless, of many of one family; None if there is none.

        What comes before it counts as skipped, what comes after it does not.
        """
        factor, skipped = self._factor(space.family), self._skipped_rows.setdefault(space, set())
        if factor is None:
            return 0 if len(rows) else None
        for start in range(0, len(rows), TOGETHER):
            some = rows[start : start + TOGETHER]
            expected_us = self._forecasts[space.family].us_of_rows(space, some)
            worthwhile = np.flatnonzero(~self._is_hopeless(expected_us, factor))
            first = int(worthwhile[0]) if len(worthwhile) else len(some)
            skipped.update(keys_of(some[:first]))
            if first < len(some):
                self._expected_us[space.config_of(some[first])] = float(expected_us[first])
                return start + first
        return None

    def _factor(self, family: str) -> float | None:
        record = self._records.get(family)
        return None if record is None else record.factor

    def _is_hopeless(self, expected_us: Numbers, factor: float) -> np.bool_ | npt.NDArray[np.bool_]:
        return np.isfinite(expected_us) & (expected_us * factor > WIDE * self._best_us)

    def _is_among_rows(self, config: Config) -> bool:
        rows = ((space.row_of(config), keys) for space, keys in self._skipped_rows.items())
        return any(row is not None and row.tobytes() in keys for row, keys in rows)

    def _expected(self, configs: Sequence[Config]) -> Mapping[Config, float]:
        """The forecasts of configs, remembered: what is proposed is asked about again when its outcome is known."""
        known = self._expected_us
        for family, forecast in self._forecasts.items():
            new = [config for config in configs if config.family == family and config not in known]
            if new:
                known.update(zip(new, forecast.us_of(new).tolist(), strict=True))
        return known


class _Record:
    """How the forecast of one family fared."""

    def __init__(self) -> None:
        self._log_expected: list[float] = []
        self._log_residuals: list[float] = []
        self._factor: float | None = None
        self._counted = 0

    def add(self, expected_us: float, measured_us: float) -> None:
        """One more measured candidate."""
        if math.isfinite(expected_us):
            self._log_expected.append(math.log(expected_us))
            self._log_residuals.append(math.log(measured_us / expected_us))

    @property
    def factor(self) -> float | None:
        """What a forecast is to be multiplied by for the lower bound of the time; None where it is not trusted."""
        if len(self._log_residuals) > self._counted:
            self._counted = len(self._log_residuals)
            self._factor = _bound(np.array(self._log_expected), np.array(self._log_residuals))
        return self._factor


def _bound(log_expected: np.ndarray, log_residuals: np.ndarray) -> float | None:
    count = len(log_residuals)
    if count < FEWEST:
        return None
    if float(log_expected.std()) > LEAST_SPREAD:
        correlation = rank_correlation(log_expected, log_expected + log_residuals)
        if correlation is None or correlation < LEAST_CORRELATION:
            return None
    spread = max(float(log_residuals.std(ddof=1)), LEAST_SPREAD)
    reach = t_quantile(CONFIDENCE, count - 1) * spread * math.sqrt(1 + 1 / count)
    return math.exp(float(log_residuals.mean()) - reach)
