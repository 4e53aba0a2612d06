"""Pruning by forecast: configs that the latency model predicts to be far too slow are not measured.

The residuals, the logarithms of measured over predicted time of a family's correct candidates in this study, give the
bias and the spread of the forecast. From them follows a lower bound of the time of an untried config at level
:data:`CONFIDENCE` (lower limit of a prediction interval for normal residuals; Hahn & Meeker, "Statistical Intervals",
1991, section 4.7). A config whose bound is more than :data:`WIDE` times the best time of the study is not proposed. It
uses no budget, and it may be proposed later if further residuals lower its bound.

Forecasts that are simulated take milliseconds each. Where many were made to choose the opening, a regression of them
estimates which further configs will be kept (:mod:`.forecast_regression`).

Nothing is pruned before a family has :data:`FEWEST` measured candidates, nor where the rank correlation of predicted
and measured times is low. The answers follow from the outcomes in order, so a resumed search prunes the same configs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Config
from evoengine.search.forecast.choice import Forecast, ForecastChoice, ForecastTable
from evoengine.search.strategies.forecast_regression import ForecastRegression
from evoengine.search.strategies.outcome import Outcome
from evoengine.space.index_rows import IndexRows, keys_of
from evoengine.space.valid_space import ValidSpace
from evoengine.statistics import rank_correlation, t_quantile

CONFIDENCE: Final = 0.995
"""Confidence that a pruned config is slower than its bound, if its residual is distributed like the observed ones."""
WIDE: Final = 1.25
"""Ratio of bound to best time above which a config is pruned."""
FEWEST: Final = 6
"""Measured candidates of a family before its forecast is used."""
LEAST_SPREAD: Final = 0.1
"""Lower limit of the residuals' standard deviation: a few similar kernels underestimate it."""
LEAST_PROBABILITY: Final = 0.02
"""Lower bound of the estimated probability that a config is kept: the estimate orders configs, it rejects none."""
MOST_SIMULATED: Final = 64
"""Configs of a simulated family that are examined for one proposal, the most promising first. Where all of so many are
pruned, so are nearly always the hundreds after them, for which the search would wait (docs/results/search-time.md)."""
LEAST_CORRELATION: Final = 0.5
"""Rank correlation below which a forecast is ignored, if the predicted times differ enough to compute one."""


class ForecastPruner:
    """A :class:`~evoengine.search.strategies.sampler.Pruner` that calibrates forecasts with the study's outcomes.

    Args:
        forecasts: Forecast of each family; configs of a family without one are never pruned.
        choice: Choice of the opening, which is made before the first config is pruned; None for none.
    """

    def __init__(self, forecasts: Mapping[str, Forecast], choice: Future[ForecastChoice] | None = None) -> None:
        self._forecasts = forecasts
        self._choice = choice
        self._regressions: dict[ValidSpace, ForecastRegression | None] = {}
        self._calibrations = {family: _Calibration() for family in forecasts}
        self._best_us = math.inf
        self._taken = 0
        self._skipped: set[Config] = set()
        self._skipped_rows: dict[ValidSpace, set[bytes]] = {}
        self._expected_us: dict[Config, float] = {}
        self._row_us: dict[ValidSpace, dict[bytes, float]] = {}

    @property
    def best_us(self) -> float:
        """The fastest time so far; infinite before the first."""
        return self._best_us

    @property
    def skipped(self) -> int:
        """Number of distinct configs that were pruned so far."""
        others = sum(not self._is_among_rows(config) for config in self._skipped)
        return sum(map(len, self._skipped_rows.values())) + others

    def learn(self, observed: Sequence[Outcome]) -> None:
        """Adds the new outcomes; ``observed`` starts with those of the previous call."""
        # A duplicate counts like the kernel that it repeats: which of the two is the duplicate depends on timing.
        new = [(outcome.config, outcome.value_us) for outcome in observed[self._taken :] if outcome.value_us]
        expected = self._expected([config for config, _ in new])
        for config, measured_us in new:
            self._best_us = min(self._best_us, measured_us)
            if config in expected:
                self._calibrations[config.family].add(expected[config], measured_us)
        self._taken = len(observed)

    def prunes(self, config: Config) -> bool:
        """Whether the lower bound of a config's time is far above the best time."""
        factor = self._factor(config.family)
        if factor is None:
            return False
        found = self._is_too_slow(self._expected([config])[config], factor)
        if found:
            self._skipped.add(config)
        return found

    def first_kept(self, space: ValidSpace, rows: IndexRows) -> int | None:
        """Index of the first of many configs of one family that is not pruned; None if all are.

        Configs before it count as skipped, those after it do not. Simulated forecasts are kept, so that a config that
        was forecast before, for the opening or for another proposal, is not waited for. Where they are simulated, those
        after the first :data:`MOST_SIMULATED` count as pruned.
        """
        factor, skipped = self._factor(space.family), self._skipped_rows.setdefault(space, set())
        if factor is None:
            return 0 if len(rows) else None
        forecast, known_us = self._forecasts[space.family], self._known_us(space)
        rows = rows if forecast.is_quick else rows[:MOST_SIMULATED]
        keys = keys_of(rows)
        for index, key in enumerate(keys):
            if key not in known_us:
                new = [place for place in range(index, len(keys)) if keys[place] not in known_us][: forecast.at_once]
                found = forecast.us_of_rows(space, rows[new])
                known_us.update(zip((keys[place] for place in new), found.tolist(), strict=True))
            if not self._is_too_slow(known_us[key], factor):
                self._expected_us[space.config_of(rows[index])] = known_us[key]
                return index
            skipped.add(key)
        return None

    def kept_probability(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        factor, regression = self._factor(space.family), self._regression(space)
        if factor is None or regression is None:
            return np.ones(len(rows))
        return np.maximum(LEAST_PROBABILITY, regression.probability_below(rows, WIDE * self._best_us / factor))

    def _regression(self, space: ValidSpace) -> ForecastRegression | None:
        """The regression of a family's forecasts; None where too few are known."""
        if space not in self._regressions:
            table = self._table(space)
            self._regressions[space] = None if table is None else ForecastRegression.of(space.tunables, table)
        return self._regressions[space]

    def _known_us(self, space: ValidSpace) -> dict[bytes, float]:
        """Forecasts of a space so far, by row key; a new mapping where a forecast takes no time."""
        if self._forecasts[space.family].is_quick:
            return {}
        if space not in self._row_us:
            table = self._table(space)
            pairs = () if table is None else zip(keys_of(table.rows), table.us.tolist(), strict=True)
            self._row_us[space] = dict(pairs)
        return self._row_us[space]

    def _table(self, space: ValidSpace) -> ForecastTable | None:
        """The forecasts from which the opening was chosen; None where they take no time."""
        return None if self._choice is None else self._choice.result().tables.get(space.family)

    def _factor(self, family: str) -> float | None:
        calibration = self._calibrations.get(family)
        return None if calibration is None else calibration.factor

    def _is_too_slow(self, expected_us: float, factor: float) -> bool:
        return math.isfinite(expected_us) and expected_us * factor > WIDE * self._best_us

    def _is_among_rows(self, config: Config) -> bool:
        rows = ((space.row_of(config), keys) for space, keys in self._skipped_rows.items())
        return any(row is not None and row.tobytes() in keys for row, keys in rows)

    def _expected(self, configs: Sequence[Config]) -> Mapping[Config, float]:
        """The forecasts of configs, cached: a proposed config is needed again when its outcome is known."""
        known = self._expected_us
        for family, forecast in self._forecasts.items():
            new = [config for config in configs if config.family == family and config not in known]
            if new:
                known.update(zip(new, forecast.us_of(new).tolist(), strict=True))
        return known


class _Calibration:
    """Predicted times and residuals of one family."""

    def __init__(self) -> None:
        self._log_expected: list[float] = []
        self._log_residuals: list[float] = []
        self._factor: float | None = None
        self._counted = 0

    def add(self, expected_us: float, measured_us: float) -> None:
        if math.isfinite(expected_us):
            self._log_expected.append(math.log(expected_us))
            self._log_residuals.append(math.log(measured_us / expected_us))

    @property
    def factor(self) -> float | None:
        """Ratio of a config's lower bound to its forecast; None where the forecast is not used."""
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
