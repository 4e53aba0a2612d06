"""Decision sets: chosen for the best of their members, where predictions err together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.model import Config, Problem
from evoengine.search.forecast.decision_set import decision_set
from evoengine.space.loader import find_space
from evoengine.target import get_target

GROUPS, MEMBERS, COUNT = 10, 8, 6
GROUP_ERROR, OWN_ERROR = 0.15, 0.01


class GroupErrors:
    """Errors that configs with equal TILE share, up to a small one of their own."""

    def error_covariance(self, configs: Sequence[Config]) -> np.ndarray:
        tiles = np.array([int(config["TILE"]) for config in configs])
        covariance: np.ndarray = GROUP_ERROR**2 * (tiles[:, None] == tiles) + OWN_ERROR**2 * np.eye(len(tiles))
        return covariance


@pytest.fixture(scope="module")
def configs() -> list[Config]:
    return [Config.of("own", {"TILE": tile, "KNOB": knob}) for tile in range(GROUPS) for knob in range(MEMBERS)]


@pytest.fixture(scope="module")
def predicted_us(configs: list[Config]) -> np.ndarray:
    """Near twins: each tile is 3 % slower than the one before, its members are equal within 0.1 %."""
    return np.array([5.0 * 1.03 ** int(one["TILE"]) * (1 + 1e-4 * int(one["KNOB"])) for one in configs])


def test_twins_count_once_and_the_fastest_is_first(configs: list[Config], predicted_us: np.ndarray) -> None:
    chosen = decision_set(configs, predicted_us, {"own": GroupErrors()}, COUNT)
    assert chosen[0] == int(predicted_us.argmin())
    assert len({configs[place]["TILE"] for place in chosen}) == COUNT
    assert {configs[place]["TILE"] for place in np.argsort(predicted_us)[:COUNT]} == {0}
    assert chosen == decision_set(configs, predicted_us, {"own": GroupErrors()}, COUNT)


def test_its_best_is_nearer_to_the_optimum_than_that_of_the_fastest_predictions(
    configs: list[Config], predicted_us: np.ndarray
) -> None:
    chosen = decision_set(configs, predicted_us, {"own": GroupErrors()}, COUNT)
    plain = np.argsort(predicted_us)[:COUNT]
    rng, losses = np.random.default_rng(7), []
    tiles = [int(config["TILE"]) for config in configs]
    for _ in range(200):
        errors = rng.normal(0, GROUP_ERROR, GROUPS)[tiles] + rng.normal(0, OWN_ERROR, len(configs))
        true_us = predicted_us * np.exp(errors)
        losses.append([true_us[places].min() / true_us.min() - 1 for places in (chosen, plain)])
    of_set, of_plain = np.mean(losses, axis=0)
    assert of_set < of_plain / 4


def test_certain_predictions_are_taken_in_order_and_infinite_ones_never(configs: list[Config]) -> None:
    predicted_us = np.arange(1.0, len(configs) + 1)  # 100 % apart at the beginning, far above the errors
    assert decision_set(configs[:8], predicted_us[:8] * 4, {"own": GroupErrors()}, 3)[0] == 0
    predicted_us[:5] = np.inf
    chosen = decision_set(configs, predicted_us, {}, 200)
    assert chosen == list(range(5, len(configs)))


def test_configs_of_another_space_are_chosen_too() -> None:
    problem, target = Problem(1, 8, 512, 64), get_target("h200")
    forecast = AnalyticForecast(find_space("mma"), problem, target)
    old = [Config.of("mma", {"BLOCK_N": 17 + number}) for number in range(6)]
    chosen = decision_set(old, [5.0 + number for number in range(6)], {"mma": forecast}, 3)
    assert len(chosen) == len(set(chosen)) == 3
