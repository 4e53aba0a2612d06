"""Pruning by forecast, on a space whose true times are known."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from evoengine.model import Config, Status
from evoengine.search.forecast.choice import ForecastChoice, fastest_by_forecast
from evoengine.search.strategies.forecast_pruning import FEWEST, MOST_SIMULATED, WIDE, ForecastPruner
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import STRATEGIES, make_strategy
from evoengine.search.strategies.strategy import Strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.index_rows import IndexRows, keys_of
from evoengine.space.valid_space import ValidSpace
from evoengine.system.futures import done_future
from tests.search.landscape import ForecastByConfig, NoisyForecast, build_space, noise, true_us
from tests.search.test_strategies import drive, drive_out_of_order


class Uncorrelated(ForecastByConfig):
    """A forecast without any correlation with the time."""

    def us(self, config: Config) -> float:
        return 10 * (1.5 + noise(config, "blind", 1.0))

    def kind(self, config: Config) -> Hashable:
        return config


class SlowForecast(NoisyForecast):
    """A forecast of which a regression is made, because each takes long."""

    is_quick = False
    at_once = 4


class CountedForecast(SlowForecast):
    """A slow forecast that keeps which rows it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bytes] = []

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        self.asked += keys_of(rows)
        return super().us_of_rows(space, rows)


def choice_by(forecast: NoisyForecast, space: ValidSpace) -> ForecastChoice:
    return fastest_by_forecast(FamilySpaces((space,)), {"synthetic": forecast}, seed=0)


@pytest.fixture(scope="module")
def some(space: ValidSpace) -> list[Config]:
    rng = np.random.default_rng(0)
    return list({space.sample(rng): None for _ in range(1500)})


def outcomes(configs: Sequence[Config]) -> list[Outcome]:
    return [Outcome(config, true_us(config), Status.OK, number) for number, config in enumerate(configs)]


def learned(forecast: NoisyForecast | Uncorrelated, configs: Sequence[Config]) -> ForecastPruner:
    pruner = ForecastPruner({"synthetic": forecast})
    pruner.learn(outcomes(configs))
    return pruner


def test_pruned_configs_are_slow_and_most_slow_configs_are_pruned(some: list[Config]) -> None:
    pruner = learned(NoisyForecast(), some[:40])
    best_us = min(map(true_us, some[:40]))
    found = [config for config in some[40:] if pruner.prunes(config)]
    slow = [config for config in some[40:] if true_us(config) > 2 * WIDE * best_us]
    assert len(slow) > 20
    assert set(slow) <= set(found)
    assert all(true_us(config) > WIDE * best_us for config in found)
    assert pruner.skipped == len(found)


def test_a_constant_factor_of_the_forecast_does_not_matter(some: list[Config]) -> None:
    answers = [
        [pruner.prunes(config) for config in some]
        for pruner in (learned(NoisyForecast(factor), some[:40]) for factor in (0.1, 1.0, 10.0))
    ]
    assert answers[0] == answers[1] == answers[2]
    assert any(answers[0])


def test_noisier_forecasts_prune_less(some: list[Config]) -> None:
    counts = [sum(map(learned(NoisyForecast(1.0, scale), some[:40]).prunes, some)) for scale in (0.05, 0.3, 0.6)]
    assert counts[0] > counts[1] > counts[2]


def test_nothing_is_pruned_with_few_measurements_or_without_correlation(some: list[Config]) -> None:
    assert not any(map(learned(NoisyForecast(), some[: FEWEST - 1]).prunes, some))
    assert not any(map(learned(Uncorrelated(), some[:40]).prunes, some))
    other = ForecastPruner({"another": NoisyForecast()})
    other.learn(outcomes(some[:40]))
    assert not any(map(other.prunes, some))


def test_outcomes_that_arrive_one_by_one_count_once(some: list[Config]) -> None:
    observed = outcomes(some[:40])
    slowest_first = sorted(observed, key=lambda outcome: -(outcome.value_us or 0))
    whole, parts = (ForecastPruner({"synthetic": NoisyForecast(1.0, 0.2)}) for _ in range(2))
    whole.learn(slowest_first)
    for count in (*range(6, 40), 40):
        parts.learn(slowest_first[:count])
    assert [whole.prunes(config) for config in some] == [parts.prunes(config) for config in some]


def rows_of(space: ValidSpace, configs: Sequence[Config]) -> IndexRows:
    rows = [space.row_of(config) for config in configs]
    return np.array([row for row in rows if row is not None])


@pytest.mark.parametrize("known", [FEWEST - 1, 40])
def test_the_first_of_many_that_is_not_pruned_is_found(space: ValidSpace, some: list[Config], known: int) -> None:
    alone, together = (learned(NoisyForecast(), some[:known]) for _ in range(2))
    asked = sorted(some[known:], key=true_us, reverse=True)
    expected = next(place for place, config in enumerate(asked) if not alone.prunes(config))
    assert together.first_kept(space, rows_of(space, asked)) == expected
    assert (expected > NoisyForecast.at_once) == (known > FEWEST)
    assert together.skipped == alone.skipped == expected
    assert together.first_kept(space, rows_of(space, asked)[:expected]) is None


def after_pruned(space: ValidSpace, some: list[Config], count: int) -> IndexRows:
    """Rows slowest first, of which so many and no more are pruned after the first 40 of ``some`` were measured."""
    slowest_first = rows_of(space, sorted(some[40:], key=true_us, reverse=True))
    first_kept = learned(NoisyForecast(), some[:40]).first_kept(space, slowest_first)
    assert first_kept is not None
    return slowest_first[first_kept - count :]


@pytest.mark.parametrize("count", [MOST_SIMULATED - 1, MOST_SIMULATED])
def test_after_many_simulated_configs_that_are_pruned_the_search_waits_for_no_more(
    space: ValidSpace, some: list[Config], count: int
) -> None:
    forecast, rows = CountedForecast(), after_pruned(space, some, count)
    pruner = learned(forecast, some[:40])
    assert pruner.first_kept(space, rows) == (count if count < MOST_SIMULATED else None)
    assert pruner.skipped == count
    assert set(keys_of(rows)).intersection(forecast.asked) == set(keys_of(rows[:MOST_SIMULATED]))
    assert learned(NoisyForecast(), some[:40]).first_kept(space, rows) == count, "a quick forecast examines all"


def test_a_slow_forecast_is_made_once_and_not_again_for_the_opening(space: ValidSpace, some: list[Config]) -> None:
    forecast = CountedForecast()
    choice = done_future(choice_by(forecast, space))
    pruner, alone = ForecastPruner({"synthetic": forecast}, choice), ForecastPruner({"synthetic": forecast})
    for one in (pruner, alone):
        one.learn(outcomes(some[:40]))
    rows = after_pruned(space, some, MOST_SIMULATED // 2)
    chosen, forecast.asked = set(forecast.asked), []
    expected = alone.first_kept(space, rows)
    assert expected is not None
    needed = keys_of(rows[: expected + 1])
    assert chosen.intersection(needed)
    assert forecast.asked[: expected + 1] == needed
    assert len(forecast.asked) < len(needed) + SlowForecast.at_once
    forecast.asked = []
    assert pruner.first_kept(space, rows) == expected
    new = [key for key in needed if key not in chosen]
    assert forecast.asked[: len(new)] == new
    assert len(forecast.asked) < len(new) + SlowForecast.at_once
    forecast.asked = []
    assert pruner.first_kept(space, rows[1:]) == expected - 1
    assert not forecast.asked


def test_a_config_that_is_pruned_twice_counts_once(space: ValidSpace, some: list[Config]) -> None:
    pruner = learned(NoisyForecast(), some[:40])
    pruned = list(filter(learned(NoisyForecast(), some[:40]).prunes, some[40:]))
    assert pruner.prunes(pruned[0])
    assert pruner.first_kept(space, rows_of(space, pruned[:3])) is None
    assert pruner.first_kept(space, rows_of(space, pruned[1:5])) is None
    assert all(map(pruner.prunes, pruned[3:6]))
    assert pruner.skipped == 6


def test_failures_do_not_count(some: list[Config]) -> None:
    failed = [Outcome(config, None, Status.PARITY_FAILED, number) for number, config in enumerate(some[:40])]
    pruner = ForecastPruner({"synthetic": NoisyForecast()})
    pruner.learn(failed)
    assert not any(map(pruner.prunes, some))


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.every(3)
def test_strategies_avoid_pruned_configs(space: ValidSpace, name: str) -> None:
    pruner = ForecastPruner({"synthetic": NoisyForecast()})
    asked = drive(make_strategy(name, space, seed=3, pruner=pruner), 80)
    plain = drive(make_strategy(name, space, seed=3), 80)
    assert len(set(asked)) == 80
    assert pruner.skipped
    assert np.mean(list(map(true_us, asked))) < np.mean(list(map(true_us, plain)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["evolution", "random", "optuna.samplers:NSGAIISampler"])
@pytest.mark.parametrize("forecast", [NoisyForecast(), SlowForecast()], ids=["quick", "slow"])
@pytest.mark.every(4)
def test_pruning_follows_from_the_outcomes(space: ValidSpace, name: str, forecast: NoisyForecast) -> None:
    def strategy(history: Sequence[Outcome] = ()) -> Strategy:
        pruner = ForecastPruner({"synthetic": forecast}, done_future(choice_by(forecast, space)))
        return make_strategy(name, space, seed=5, history=history, pruner=pruner)

    observed: list[Outcome] = []
    whole = drive_out_of_order(strategy(), 60, lag=8, order=0, observed=observed)
    assert drive_out_of_order(strategy(), 60, lag=8, order=1) == whole
    kept = [outcome for outcome in observed if outcome.number is not None and outcome.number < 35]
    assert drive_out_of_order(strategy(kept), 25, lag=8, order=2) == whole[35:]


def test_a_space_of_pruned_configs_is_still_exhausted(tmp_path: Path) -> None:
    space = build_space(tmp_path, {"TILE_M": (16, 128), "TILE_N": (64,), "WARPS": (1,), "STAGES": (2,), "CTAS": (1,)})
    pruner = ForecastPruner({"synthetic": NoisyForecast(1.0, 0.0)})
    assert len(drive(make_strategy("random", space, seed=0, pruner=pruner), 1000)) == space.size
