"""The regression of forecasts, against simulated forecasts that it has not seen."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.model import Status, parse_problem
from evoengine.search.forecast.choice import ForecastChoice, ForecastTable, fastest_by_forecast, forecasts_for
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from evoengine.search.strategies.forecast_regression import FEWEST, ForecastRegression
from evoengine.search.strategies.registry import make_strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space
from evoengine.system.futures import done_future
from evoengine.target import get_target
from tests.search.landscape import noise

PROBLEM, TARGET = parse_problem("16x12x197x64"), get_target("h200")


@functools.cache
def simulated(family: str) -> tuple[FamilySpaces, dict[str, AnalyticForecast], ForecastChoice]:
    """A family's space, its forecasts, and what a search learns from them before it starts."""
    space = find_space(family)
    spaces, forecasts = FamilySpaces((space.build(PROBLEM, TARGET),)), forecasts_for([space], PROBLEM, TARGET)
    return spaces, forecasts, fastest_by_forecast(spaces, forecasts, seed=0)


@pytest.mark.parametrize("family", ["hopper", "wgmma"])
@pytest.mark.thorough
def test_probabilities_agree_with_simulated_forecasts(family: str) -> None:
    spaces, forecasts, choice = simulated(family)
    (valid,), table = spaces.members, choice.tables[family]
    assert len(table.us) >= 200
    regression = ForecastRegression.of(valid.tunables, table)
    assert regression is not None
    rows = valid.sample_rows(np.random.default_rng(1), 120)
    us = forecasts[family].us_of_rows(valid, rows)
    limit_us = float(np.quantile(us, 0.3))
    probability = regression.probability_below(rows, limit_us)
    assert (us[probability > 0.8] < limit_us).mean() > 0.8
    assert (us[probability < 0.2] > limit_us).mean() > 0.9
    assert ((probability > 0.8) | (probability < 0.2)).mean() > 0.6
    assert np.all(regression.probability_below(rows, 2 * limit_us) > probability)


@pytest.mark.thorough
def test_a_search_by_regression_skips_fewer_configs_for_as_fast_ones() -> None:
    """Each skipped config was simulated for nothing. Times are the forecasts, varied by up to 10 %."""
    spaces, forecasts, choice = simulated("hopper")
    skipped, fastest_us = [], []
    for known in (ForecastChoice(), choice):
        pruner = ForecastPruner(forecasts, done_future(known))
        strategy = make_strategy("evolution", spaces, seed=2, pruner=pruner)
        strategy.enqueue(choice.opening)
        times = []
        for _ in range(45):
            proposal = strategy.ask()
            assert proposal is not None
            times.append(forecasts["hopper"].us(proposal.config) * (1 + noise(proposal.config, "true", 0.1)))
            strategy.tell(proposal, times[-1], Status.OK)
        skipped.append(pruner.skipped)
        fastest_us.append(min(times))
    assert skipped[1] < 0.4 * skipped[0]
    assert fastest_us[1] < 1.02 * fastest_us[0]


def test_few_forecasts_or_none_that_is_finite_give_no_regression() -> None:
    valid = find_space("hopper").build(PROBLEM, TARGET)
    rows = valid.sample_rows(np.random.default_rng(0), FEWEST)
    assert ForecastRegression.of(valid.tunables, ForecastTable(rows[1:], np.ones(FEWEST - 1))) is None
    assert ForecastRegression.of(valid.tunables, ForecastTable(rows, np.full(FEWEST, np.inf))) is None
    assert ForecastRegression.of(valid.tunables, ForecastTable(rows, np.arange(1.0, FEWEST + 1))) is not None
