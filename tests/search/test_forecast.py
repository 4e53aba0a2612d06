"""Starts by forecast, on spaces whose true times are known."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from evoengine.model import Config, Problem
from evoengine.search.forecast.choice import (
    COUNT,
    LONG,
    SET,
    ForecastChoice,
    fastest_by_forecast,
    forecasts_for,
)
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.search.landscape import ForecastByConfig

PROBLEM, TARGET = Problem(1, 8, 512, 64), get_target("h200")
MMA, SCALAR, WMMA = find_space("mma"), find_space("scalar"), find_space("wmma")
SMALL = MMA.build(
    PROBLEM,
    TARGET,
    overrides={tunable.name: tunable.values[:2] for tunable in MMA.tunables if len(tunable.values) > 2},
)
LARGE = MMA.build(PROBLEM, TARGET)


class Counting(ForecastByConfig):
    """A simple forecast, by which fewer threads and smaller tiles are faster; it records its calls."""

    def __init__(self) -> None:
        self.asked: list[Config] = []

    def us(self, config: Config) -> float:
        self.asked.append(config)
        return float(config["WARPS_M"]) * float(config["BLOCK_N"]) + float(config["STAGES_K"])

    def kind(self, config: Config) -> Hashable:
        return config["WARPS_M"], config["BLOCK_N"]


def test_the_fastest_comes_first() -> None:
    forecast = Counting()
    chosen = fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": forecast}, seed=0).opening
    assert len(chosen) == len(set(chosen)) == COUNT
    assert forecast.us(chosen[0]) == 17.0, "one warp, 16 keys, one stage: found by local search"
    assert all(LARGE.contains(config) for config in chosen)


def test_further_configs_are_of_further_kinds_with_the_best_values_elsewhere() -> None:
    class Partition(Counting):
        partition = ("WARPS_M", "BLOCK_N")

        def us(self, config: Config) -> float:
            return super().us(config) + 10.0 * float(config["STAGES_V"]) + (5.0 if config["PEEL_FIRST"] else 0.0)

    forecast = Partition()
    chosen = fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": forecast}, seed=0, count=SET + 6).opening
    first, further = chosen[:SET], chosen[SET:]
    assert len({forecast.kind(config) for config in further} - {forecast.kind(config) for config in first}) == 6
    assert {(config["STAGES_K"], config["STAGES_V"], config["PEEL_FIRST"]) for config in further} == {(1, 1, False)}


def test_a_fast_kind_is_forecast_with_the_values_that_suit_it_best() -> None:
    class OwnValues(Counting):
        """Each kind is fastest with values of its own, so that those of the fastest kind suit few others."""

        partition = ("WARPS_M", "BLOCK_N")
        free = ("L2_PREFETCH_BYTES", "LDMATRIX_BATCH", "STORE_OP", "CACHE_OP", "PEEL_FIRST", "EXP_WITH_PV", "ROW_SUM")

        def us(self, config: Config) -> float:
            wanted = int(config["BLOCK_N"]) // 16 + int(config["WARPS_M"])
            places = [MMA.by_name[name].values.index(config[name]) for name in self.free]
            wrong = sum((place + wanted + number) % 2 for number, place in enumerate(places))
            return float(config["WARPS_M"]) * float(config["BLOCK_N"]) + 2.0 * wrong

    forecast = OwnValues()
    chosen = fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": forecast}, seed=0, count=24)
    best: dict[Hashable, Config] = {}
    for config in chosen.candidates:
        best.setdefault(forecast.kind(config), config)
    fastest = [*best.values()][:12]
    assert [forecast.us(config) for config in fastest] == [
        float(config["WARPS_M"]) * float(config["BLOCK_N"]) for config in fastest
    ]


def test_few_configs_are_forecast_and_none_twice() -> None:
    forecast = Counting()
    fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": forecast}, seed=0)
    assert len(forecast.asked) == len(set(forecast.asked)) < 10_000 < LARGE.size


def test_local_search_ends_at_an_optimum_and_forecasts_no_config_twice() -> None:
    class Steps(Counting):
        """Every step from the first values costs time, so that no draw is near the best."""

        def us(self, config: Config) -> float:
            super().us(config)
            return 10.0 + sum(tunable.values.index(config[tunable.name]) for tunable in MMA.tunables)

    forecast = Steps()
    best = fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": forecast}, seed=0).opening[0]
    assert len(forecast.asked) == len(set(forecast.asked)) > 2500
    assert forecast.us(best) <= min(map(forecast.us, LARGE.neighbours(best)))


def test_a_long_opening_finds_what_local_searches_from_few_draws_miss() -> None:
    class Rugged(Counting):
        """Configs of one tile and rings have a time of their own, so that a step to others seldom helps."""

        is_quick = False

        def us(self, config: Config) -> float:
            steps = super().us(config)
            own = config["WARPS_M"], config["BLOCK_N"], config["STAGES_K"], config["STAGES_V"]
            return 100.0 + zlib.crc32(repr(own).encode()) % 97 + steps / 1000

    found: dict[int, list[float]] = {}
    for seed, count in itertools.product(range(6), (LONG - 1, LONG)):
        choice = fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": Rugged()}, seed, count)
        found.setdefault(count, []).append(choice.candidate_us[0])
    assert sum(found[LONG]) < sum(found[LONG - 1])
    assert min(found[LONG]) <= min(found[LONG - 1])


def test_a_family_that_stays_behind_has_few_local_searches() -> None:
    """With another family, also of mma's configs, that is 1.5 times as fast or as slow."""

    class Wide(Counting):
        is_quick = False

        def __init__(self, factor: float) -> None:
            super().__init__()
            self._factor = factor

        def us(self, config: Config) -> float:
            steps = sum(tunable.values.index(config[tunable.name]) for tunable in MMA.tunables)
            super().us(config)
            return self._factor * (100.0 + steps)

    other = replace(MMA, family="other").build(PROBLEM, TARGET)
    asked = {}
    for factor in (1.0, 1.5):
        forecasts = {"mma": Wide(factor), "other": Wide(1.0)}
        fastest_by_forecast(FamilySpaces((LARGE, other)), forecasts, 0, LONG)
        asked[factor] = [len(forecast.asked) for forecast in forecasts.values()]
    assert asked[1.5][0] < 0.7 * asked[1.0][0]
    assert asked[1.5][1] == asked[1.0][1]


def test_the_seed_decides_the_draw() -> None:
    spaces = FamilySpaces((LARGE,))
    runs = [fastest_by_forecast(spaces, {"mma": Counting()}, seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_family_without_a_forecast_is_left_out() -> None:
    own = replace(SCALAR, family="own")
    space = own.build(PROBLEM, TARGET)
    forecasts = forecasts_for((MMA, own), PROBLEM, TARGET)
    assert list(forecasts) == ["mma"]
    assert fastest_by_forecast(FamilySpaces((space,)), forecasts, seed=0) == ForecastChoice()
    chosen = fastest_by_forecast(FamilySpaces((space, SMALL)), forecasts, seed=0, count=3)
    assert {one.family for one in (*chosen.opening, *chosen.candidates)} == {"mma"}


def test_all_families_are_ordered_as_one() -> None:
    families = (MMA, SCALAR, WMMA)
    forecasts = forecasts_for(families, PROBLEM, TARGET)
    spaces = FamilySpaces(tuple(family.build(PROBLEM, TARGET) for family in families))
    chosen = fastest_by_forecast(spaces, forecasts, seed=0, count=200).opening
    times = [forecasts[config.family].us(config) for config in chosen]
    assert times[0] == min(times)
    assert {config.family for config in chosen[:5]} == {"mma"}
    assert "wmma" in {config.family for config in chosen}


def test_configs_with_an_infinite_forecast_are_not_proposed() -> None:
    class NeverRuns(Counting):
        def us(self, config: Config) -> float:
            return np.inf if config["WARPS_M"] == 1 else super().us(config)

    chosen = fastest_by_forecast(FamilySpaces((LARGE,)), {"mma": NeverRuns()}, seed=0).opening
    assert chosen
    assert all(config["WARPS_M"] != 1 for config in chosen)
