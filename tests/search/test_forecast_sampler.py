"""Candidates by forecast after the opening, on a space whose true times and forecast errors are known."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from evoengine.model import Config, Status
from evoengine.search.forecast.choice import fastest_by_forecast
from evoengine.search.strategies.forecast_sampler import FORECAST, FURTHER
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import make_strategy
from evoengine.search.strategies.strategy import Proposal, Strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.valid_space import ValidSpace
from evoengine.system.futures import done_future, mapped_future
from tests.search.landscape import ForecastByConfig, true_us

OPENING = 6
TRIALS = 80


class WrongForOneKind(ForecastByConfig):
    """A forecast that is exact but for one kind, which it takes to be three times as fast as it is.

    Args:
        kind_error: Standard deviation of the error that all configs of a kind share, as the forecast states it.
        own_error: Standard deviation of the error of each config.
        factor: Factor on the times of the wrong kind.
    """

    wrong = 16

    def __init__(self, kind_error: float = 0.3, own_error: float = 0.03, factor: float = 1 / 3) -> None:
        self._kind_error, self._own_error, self._factor = kind_error, own_error, factor

    def us(self, config: Config) -> float:
        return true_us(config) * (self._factor if self.kind(config) == self.wrong else 1.0)

    def kind(self, config: Config) -> Hashable:
        return config["TILE_M"]

    def error_covariance(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        kinds = np.array([config["TILE_M"] for config in configs])
        same: npt.NDArray[np.float64] = self._kind_error**2 * (kinds[:, None] == kinds[None, :])
        return same + self._own_error**2 * np.eye(len(configs))


def started(space: ValidSpace, forecast: WrongForOneKind, history: Sequence[Outcome] = ()) -> Strategy:
    """Starts a strategy that is random but for the forecast."""
    choice = done_future(fastest_by_forecast(FamilySpaces((space,)), {"synthetic": forecast}, 0, OPENING))
    strategy = make_strategy("random", space, 5, history=history, forecast=choice)
    strategy.enqueue_later(mapped_future(choice, lambda done: list(done.opening)))
    return strategy


def outcome_of(proposal: Proposal, every: int = 7) -> tuple[float | None, Status]:
    """Time and status of a candidate; one of ``every`` fails."""
    fails = proposal.number % every == every - 1
    return (None, Status.PARITY_FAILED) if fails else (true_us(proposal.config), Status.OK)


def proposals(strategy: Strategy, trials: int, lag: int = 0, every: int = 7) -> list[Proposal]:
    """Runs a search."""
    made = []
    for _ in range(trials):
        proposal = strategy.ask(lag)
        assert proposal is not None
        made.append(proposal)
        strategy.tell(proposal, *outcome_of(proposal, every))
    return made


def by_forecast(made: Sequence[Proposal]) -> list[Proposal]:
    return [proposal for proposal in made if proposal.provenance == FORECAST]


@pytest.mark.parametrize("lag", [0, 20])
def test_measured_errors_of_a_kind_correct_the_forecasts_of_all_its_configs(space: ValidSpace, lag: int) -> None:
    forecast = WrongForOneKind()
    made = proposals(started(space, forecast), TRIALS, lag)
    chosen = by_forecast(made)
    fastest = sorted(space, key=forecast.us)[: OPENING + FURTHER]
    assert {forecast.kind(config) for config in fastest} == {forecast.wrong}, "uncorrected, it has no others"
    assert 0 < len(chosen) <= FURTHER
    assert all(proposal.number % 2 == 0 and proposal.number >= OPENING for proposal in chosen)
    assert all(forecast.kind(proposal.config) != forecast.wrong for proposal in chosen[:6])
    best_us = min(true_us(config) for config in space)
    assert min(true_us(proposal.config) for proposal in chosen) <= 1.02 * best_us
    others = [proposal for proposal in made if proposal not in chosen]
    assert min(true_us(proposal.config) for proposal in others) > 1.05 * best_us, "the opening and random configs"


def test_nothing_is_proposed_that_cannot_be_faster(space: ValidSpace) -> None:
    exact = WrongForOneKind(kind_error=1e-4, own_error=1e-4, factor=1.0)
    made = proposals(started(space, exact), TRIALS)
    assert by_forecast(made) == []


def test_at_most_some_candidates_are_tried(space: ValidSpace) -> None:
    doubtful = WrongForOneKind(kind_error=2.0, own_error=2.0)
    assert len(by_forecast(proposals(started(space, doubtful), TRIALS))) == FURTHER


@pytest.mark.parametrize(
    ("forecast", "every"),
    [(WrongForOneKind(), 7), (WrongForOneKind(kind_error=1.0, own_error=0.3), 3)],
    ids=["few failures", "candidates by forecast fail"],
)
@pytest.mark.parametrize("kept", [OPENING - 2, OPENING + 9, OPENING + 30])
def test_a_resumed_search_proposes_the_same(
    space: ValidSpace, kept: int, forecast: WrongForOneKind, every: int
) -> None:
    """Others are chosen beside a candidate in flight as if it had a time, which it then may not get."""
    made = proposals(started(space, forecast), TRIALS, 6, every)
    if every == 3:
        assert any(outcome_of(one, every)[0] is None for one in by_forecast(made))
    whole = [proposal.config for proposal in made]
    first = proposals(started(space, forecast), kept, 6, every)
    history = [Outcome(one.config, *outcome_of(one, every), one.number) for one in first]
    resumed = started(space, forecast, history)
    assert [one.config for one in proposals(resumed, TRIALS - kept, 6, every)] == whole[kept:]
