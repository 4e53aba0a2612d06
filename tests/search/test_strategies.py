"""What every strategy promises, and that the default one is worth its name."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import optuna
import pytest

from evoengine.errors import UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import STRATEGIES, make_strategy
from evoengine.search.strategies.strategy import Proposal, Strategy
from evoengine.search.trial_log import TrialWriter
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space, true_us
from tests.search.synthetic import study_key


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    """About ten thousand configs."""
    return build_space(tmp_path_factory.mktemp("space"))


@pytest.fixture(scope="module")
def tiny_space(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    """A few dozen configs."""
    overrides = {
        "TILE_M": (16, 64),
        "TILE_N": (32, 64),
        "WARPS": (1, 4),
        "STAGES": (2,),
        "PAD": (0, 8),
        "CTAS": (1,),
    }
    return build_space(tmp_path_factory.mktemp("tiny"), overrides)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Leaderboard]:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as opened:
        yield opened


def drive(strategy: Strategy, trials: int, fail_every: int = 0) -> list[Config]:
    """Asks and tells; with ``fail_every`` each so-many-th candidate fails."""
    asked = []
    for number in range(trials):
        proposal = strategy.ask()
        if proposal is None:
            break
        asked.append(proposal.config)
        if fail_every and number % fail_every == 0:
            strategy.tell(proposal, None, Status.PARITY_FAILED)
        else:
            strategy.tell(proposal, true_us(proposal.config), Status.OK)
    return asked


def drive_out_of_order(
    strategy: Strategy, trials: int, *, lag: int, order: int, observed: list[Outcome] | None = None
) -> list[Config]:
    """Keeps some proposals under way, and tells their outcomes in an order of its own; every seventh fails."""
    rng = np.random.default_rng(order)
    asked: list[Config] = []
    under_way: list[Proposal] = []
    while len(asked) < trials or under_way:
        proposal = strategy.ask(lag) if len(asked) < trials and len(under_way) < 5 else None
        if proposal is not None:
            asked.append(proposal.config)
            under_way.append(proposal)
            continue
        done = under_way.pop(int(rng.integers(len(under_way))))
        us = None if done.number % 7 == 0 else true_us(done.config)
        status = Status.PARITY_FAILED if us is None else Status.OK
        strategy.tell(done, us, status)
        if observed is not None:
            observed.append(Outcome(done.config, us, status, done.number))
    return asked


class StrategyContract:
    """Each strategy inherits these tests by naming itself."""

    name: ClassVar[str]

    def test_asks_for_valid_and_distinct_configs(self, space: ValidSpace) -> None:
        asked = drive(make_strategy(self.name, space, seed=3), 120)
        assert len(set(asked)) == 120
        assert all(space.contains(config) for config in asked)

    def test_a_seed_says_it_all(self, space: ValidSpace) -> None:
        runs = [drive(make_strategy(self.name, space, seed=seed), 60) for seed in (3, 3, 4)]
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]

    def test_many_proposals_may_be_under_way(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=0)
        drive(strategy, 30)
        proposals = [strategy.ask(lag=23) for _ in range(24)]
        assert len({proposal.config for proposal in proposals if proposal}) == 24
        assert strategy.ask(lag=23) is None, "the oldest must be observed first"
        assert not strategy.exhausted
        for proposal in reversed(proposals):
            assert proposal is not None
            strategy.tell(proposal, 5.0, Status.OK)
        assert len(drive(strategy, 10)) == 10

    def test_the_order_in_which_outcomes_arrive_does_not_matter(self, space: ValidSpace) -> None:
        runs = [drive_out_of_order(make_strategy(self.name, space, seed=5), 60, lag=6, order=seed) for seed in range(3)]
        assert runs[0] == runs[1] == runs[2]

    @pytest.mark.parametrize("lost", [(), (31,), (24, 27, 28, 33)])
    def test_a_resumed_study_goes_on_as_if_it_had_never_stopped(self, space: ValidSpace, lost: tuple[int, ...]) -> None:
        """``lost`` are trials that were under way: some of them known to be, the rest asked for anew."""
        outcomes: list[Outcome] = []
        whole = drive_out_of_order(make_strategy(self.name, space, seed=5), 60, lag=8, order=0, observed=outcomes)
        kept = [one for one in outcomes if one.number is not None and one.number < 35 and one.number not in lost]
        resumed = make_strategy(self.name, space, seed=5, history=kept)
        resumed.resume({number: whole[number] for number in lost[:2]})
        again = drive_out_of_order(resumed, 60 - len(kept), lag=8, order=1)
        assert again == [whole[number] for number in (*lost, *range(35, 60))]

    def test_the_first_trials_wait_for_no_outcome_and_do_not_depend_on_any(self, space: ValidSpace) -> None:
        waiting, hearing = (make_strategy(self.name, space, seed=3) for _ in range(2))
        blind = [waiting.ask(lag=2, head=12) for _ in range(12)]
        assert waiting.ask(lag=2, head=12) is None
        for expected in blind:
            proposal = hearing.ask(lag=2, head=12)
            assert proposal == expected
            assert proposal is not None
            hearing.tell(proposal, 10.0 + proposal.number, Status.OK)

    def test_trials_after_the_head_miss_less_and_less_until_it_is_the_lag(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=3)
        proposals = [proposal for _ in range(15) if (proposal := strategy.ask(lag=4, head=15))]
        under_way = []
        for observed in range(90):
            while (proposal := strategy.ask(lag=4, head=15)) is not None:
                proposals.append(proposal)
            under_way.append(len(proposals) - observed)
            strategy.tell(proposals[observed], 10.0 + observed, Status.OK)
        assert under_way[:14] == [15, 15, 15, 15, 15, 14, 14, 14, 14, 14, 14, 13, 13, 13]
        assert under_way == sorted(under_way, reverse=True)
        assert under_way[60:] == [5] * 30

    @pytest.mark.parametrize("fail_every", [1, 2])
    def test_survives_failures(self, space: ValidSpace, fail_every: int) -> None:
        assert len(set(drive(make_strategy(self.name, space, seed=0), 60, fail_every))) == 60

    def test_ends_when_the_space_is_exhausted(self, tiny_space: ValidSpace) -> None:
        strategy = make_strategy(self.name, tiny_space, seed=0)
        asked = drive(strategy, tiny_space.size + 10, fail_every=5)
        assert set(asked) == set(tiny_space)
        assert len(asked) == tiny_space.size
        assert strategy.ask() is None

    def test_queued_configs_come_first_and_once(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=0)
        first, second = space.config(5), space.config(500)
        invalid = Config.of("synthetic", first.as_dict() | {"TILE_M": 17})
        strategy.enqueue([first, invalid, first, second])
        asked = drive(strategy, 40)
        assert asked[:2] == [first, second]
        assert len(set(asked)) == 40

    def test_a_failure_that_is_not_stored_yet_counts_already(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=0)
        first = strategy.ask()
        assert first is not None
        assert strategy.ask() is None
        strategy.tell_provisional(first, None, Status.CRASHED)
        assert strategy.ask() is not None
        strategy.tell(first, None, Status.CRASHED)

    def test_trials_that_were_not_logged_are_rebuilt_from_the_evaluations(
        self, space: ValidSpace, board: Leaderboard
    ) -> None:
        study = board.open_study(study_key(SearchSettings(strategy=self.name), space))
        history = [
            Outcome(space.config(1), 5.0, Status.OK),
            Outcome(space.config(2), None, Status.TIMEOUT),
            Outcome(space.config(3), 5.0, Status.DUPLICATE),
        ]
        for _ in range(2):
            make_strategy(self.name, space, 0, TrialWriter(board, study), history).close()
        trials = optuna.load_study(study_name=study.title, storage=board.url).get_trials()
        assert [trial.params for trial in trials] == [outcome.config.as_dict() for outcome in history]
        assert [trial.value for trial in trials] == [5.0, None, 5.0]
        asked = drive(make_strategy(self.name, space, 0, TrialWriter(board, study), history), 30)
        assert not set(asked) & {outcome.config for outcome in history}


class TestEvolution(StrategyContract):
    name = "evolution"


class TestTpe(StrategyContract):
    name = "tpe"


class TestCmaEs(StrategyContract):
    name = "cmaes"


class TestRandom(StrategyContract):
    name = "random"


def test_every_registered_strategy_keeps_the_contract() -> None:
    assert {cls.name for cls in StrategyContract.__subclasses__()} == set(STRATEGIES)


def test_an_unknown_strategy_is_told(space: ValidSpace) -> None:
    with pytest.raises(UsageError, match="choose one of evolution, tpe, cmaes, random"):
        make_strategy("magic", space, 0)


def test_evolution_beats_random_search(space: ValidSpace) -> None:
    """Eight landscapes: evaluations until within 5 % of the optimum, of at most 300."""
    limit, seeds = 300, range(8)
    needed: dict[str, list[int]] = {"evolution": [], "random": []}
    for seed in seeds:
        times = {config: true_us(config, seed) for config in space}
        goal = 1.05 * min(times.values())
        for name, counts in needed.items():
            strategy = make_strategy(name, space, seed)
            asked = 0
            best_us = float("inf")
            while best_us > goal and asked < limit:
                proposal = strategy.ask()
                assert proposal is not None
                strategy.tell(proposal, times[proposal.config], Status.OK)
                best_us = min(best_us, times[proposal.config])
                asked += 1
            counts.append(asked)
    medians = {name: statistics.median(counts) for name, counts in needed.items()}
    assert medians["evolution"] <= medians["random"] / 2, needed
