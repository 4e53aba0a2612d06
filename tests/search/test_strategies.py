"""The contract of every strategy, strategies by name and by class path, and the default one against random search."""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from evoengine.errors import UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import STRATEGIES, check_strategy, make_strategy
from evoengine.search.strategies.sampler import View
from evoengine.search.strategies.strategy import Proposal, Strategy
from evoengine.search.trial_log import TrialWriter, open_optuna_study
from evoengine.space.family_spaces import FamilySpaces
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


def drive(strategy: Strategy, trials: int, fail_every: int = 0) -> list[Config]:
    """Runs a sequential search; with ``fail_every`` every n-th candidate fails."""
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
    """Runs a search with up to five trials in flight, which finish in random order; every seventh fails."""
    rng = np.random.default_rng(order)
    asked: list[Config] = []
    in_flight: list[Proposal] = []
    while len(asked) < trials or in_flight:
        proposal = strategy.ask(lag) if len(asked) < trials and len(in_flight) < 5 else None
        if proposal is not None:
            asked.append(proposal.config)
            in_flight.append(proposal)
            continue
        done = in_flight.pop(int(rng.integers(len(in_flight))))
        us = None if done.number % 7 == 0 else true_us(done.config)
        status = Status.PARITY_FAILED if us is None else Status.OK
        strategy.tell(done, us, status)
        if observed is not None:
            observed.append(Outcome(done.config, us, status, done.number))
    return asked


class Witness:
    """A sampler that remembers what it was shown."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        self.views.append(view)
        return view.seen.random_unseen(rng)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_proposal_knows_the_outcomes_of_early_trials_or_all_that_arrived(space: ValidSpace, in_order: bool) -> None:
    witness = Witness()
    strategy = Strategy(FamilySpaces.around(space), witness, seed=0, in_order=in_order)
    trials = [strategy.ask(lag=5) for _ in range(6)]
    assert len(trials) == 6
    proposals = [trial for trial in trials if trial is not None]
    for number in (4, 0, 2):
        strategy.tell(proposals[number], 10.0 + number, Status.OK)
    strategy.discard(proposals[3])
    assert strategy.ask(lag=5) is not None
    shown = witness.views[-1]
    assert [outcome.number for outcome in shown.observed] == ([0] if in_order else [4, 0, 2])
    hidden = [1, 2, 3, 4, 5] if in_order else [1, 5]
    assert list(shown.pending) == [proposals[number].config for number in hidden]
    assert [trial.known for trial in shown.trials] == [0] * 6 + [len(shown.observed)]


@pytest.mark.parametrize("in_order", [True, False])
def test_an_outcome_that_was_provisional_counts_once(space: ValidSpace, in_order: bool) -> None:
    witness = Witness()
    strategy = Strategy(FamilySpaces.around(space), witness, seed=0, in_order=in_order)
    first, second = strategy.ask(lag=1), strategy.ask(lag=1)
    assert first is not None
    assert second is not None
    for proposal in (second, first, second, first):
        strategy.tell_provisional(proposal, Status.CRASHED)
        strategy.tell(proposal, None, Status.CRASHED)
    assert strategy.ask() is not None
    assert sorted(outcome.number or 0 for outcome in witness.views[-1].observed) == [0, 1]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_resumed_study_shows_the_stored_outcomes_and_asks_for_the_others(space: ValidSpace, in_order: bool) -> None:
    configs = [space.config(index) for index in range(6)]
    stored = [Outcome(configs[number], 10.0, Status.OK, number) for number in (0, 1, 3, 4)]
    witness = Witness()
    strategy = Strategy(FamilySpaces.around(space), witness, seed=0, history=stored, in_order=in_order)
    strategy.resume({2: configs[2], 5: configs[5]})
    resumed = [strategy.ask(lag=9) for _ in range(2)]
    assert [one and (one.number, one.config) for one in resumed] == [(2, configs[2]), (5, configs[5])]
    if not in_order:
        assert strategy.ask(lag=9) is not None
        assert [outcome.number for outcome in witness.views[-1].observed] == [0, 1, 3, 4]
        assert list(witness.views[-1].pending) == [configs[2], configs[5]]
        assert [trial.known for trial in witness.views[-1].trials] == [0, 1, 2, 2, 3, 4, 4]


class StrategyContract:
    """Tests of one strategy; a subclass names it."""

    name: ClassVar[str]

    def test_asks_for_valid_and_distinct_configs(self, space: ValidSpace) -> None:
        asked = drive(make_strategy(self.name, space, seed=3), 80)
        assert len(set(asked)) == 80
        assert all(space.contains(config) for config in asked)

    def test_the_seed_determines_all_proposals(self, space: ValidSpace) -> None:
        runs = [drive(make_strategy(self.name, space, seed=seed), 40) for seed in (3, 3, 4)]
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]

    def test_many_proposals_may_be_in_flight(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=0)
        drive(strategy, 30)
        proposals = [strategy.ask(lag=23) for _ in range(24)]
        assert len({proposal.config for proposal in proposals if proposal}) == 24
        assert strategy.ask(lag=23) is None, "the outcome of the oldest trial is missing"
        assert not strategy.exhausted
        for proposal in reversed(proposals):
            assert proposal is not None
            strategy.tell(proposal, 5.0, Status.OK)
        assert len(drive(strategy, 10)) == 10

    def test_the_order_in_which_outcomes_arrive_does_not_matter(self, space: ValidSpace) -> None:
        runs = [drive_out_of_order(make_strategy(self.name, space, seed=5), 60, lag=6, order=seed) for seed in range(2)]
        assert runs[0] == runs[1]

    @pytest.mark.parametrize("lost", [(), (31,), (24, 27, 28, 33)])
    def test_a_resumed_study_goes_on_as_if_it_had_never_stopped(self, space: ValidSpace, lost: tuple[int, ...]) -> None:
        """``lost`` are trials that were in flight: the first two are resumed, the rest are proposed again."""
        outcomes: list[Outcome] = []
        whole = drive_out_of_order(make_strategy(self.name, space, seed=5), 60, lag=8, order=0, observed=outcomes)
        kept = [one for one in outcomes if one.number is not None and one.number < 35 and one.number not in lost]
        resumed = make_strategy(self.name, space, seed=5, history=kept)
        resumed.resume({number: whole[number] for number in lost[:2]})
        again = drive_out_of_order(resumed, 60 - len(kept), lag=8, order=1)
        assert again == [whole[number] for number in (*lost, *range(35, 60))]

    def test_without_an_order_no_proposal_waits(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=5, in_order=False)
        oldest = strategy.ask()
        assert oldest is not None
        assert len({oldest.config, *drive(strategy, 40)}) == 41
        strategy.tell(oldest, 1.0, Status.OK)
        assert len(drive_out_of_order(strategy, 30, lag=0, order=1)) == 30

    def test_the_head_needs_no_outcome_and_depends_on_none(self, space: ValidSpace) -> None:
        without, informed = (make_strategy(self.name, space, seed=3) for _ in range(2))
        blind = [without.ask(lag=2, head=12) for _ in range(12)]
        assert without.ask(lag=2, head=12) is None
        for expected in blind:
            proposal = informed.ask(lag=2, head=12)
            assert proposal == expected
            assert proposal is not None
            informed.tell(proposal, 10.0 + proposal.number, Status.OK)

    def test_after_the_head_fewer_outcomes_are_missing_until_the_lag_is_left(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=3)
        proposals = [proposal for _ in range(15) if (proposal := strategy.ask(lag=4, head=15))]
        in_flight = []
        for observed in range(90):
            while (proposal := strategy.ask(lag=4, head=15)) is not None:
                proposals.append(proposal)
            in_flight.append(len(proposals) - observed)
            strategy.tell(proposals[observed], 10.0 + observed, Status.OK)
        assert in_flight[:14] == [15, 15, 15, 15, 15, 14, 14, 14, 14, 14, 14, 13, 13, 13]
        assert in_flight == sorted(in_flight, reverse=True)
        assert in_flight[60:] == [5] * 30

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

    def test_configs_that_are_still_computed_follow_the_queue_whenever_they_are_known(self, space: ValidSpace) -> None:
        first, second, third = (space.config(number) for number in (5, 500, 50))
        early, late = (make_strategy(self.name, space, seed=0) for _ in range(2))
        parts: tuple[Future[list[Config]], Future[list[Config]]] = Future(), Future()
        for strategy in (early, late):
            strategy.enqueue([first])
        early.enqueue([second, third])
        for part in parts:
            late.enqueue_later(part)
        assert [proposal and proposal.config for proposal in (late.ask(9, 9), late.ask(9, 9))] == [first, None]
        assert list(late.awaited) == [parts[0]]
        parts[1].set_result([third, second])
        assert late.ask(9, 9) is None, "the part before it is not known"
        parts[0].set_result([first, second])
        assert list(late.awaited) == []
        asked = [
            [proposal.config for _ in range(9 - known) if (proposal := strategy.ask(9, 9))]
            for strategy, known in ((early, 0), (late, 1))
        ]
        assert asked[0] == [first, *asked[1]]
        assert asked[1][:2] == [second, third]

    def test_a_provisional_outcome_counts(self, space: ValidSpace) -> None:
        strategy = make_strategy(self.name, space, seed=0)
        first = strategy.ask()
        assert first is not None
        assert strategy.ask() is None
        strategy.tell_provisional(first, Status.CRASHED)
        assert strategy.ask() is not None
        strategy.tell(first, None, Status.CRASHED)

    def test_trials_that_were_not_logged_are_rebuilt_from_the_evaluations(
        self, space: ValidSpace, board: Leaderboard
    ) -> None:
        study = board.open_study(study_key(SearchSettings(budget=1, strategy=self.name), space))
        history = [
            Outcome(space.config(1), 5.0, Status.OK),
            Outcome(space.config(2), None, Status.TIMEOUT),
            Outcome(space.config(3), 5.0, Status.DUPLICATE),
        ]
        for _ in range(2):
            make_strategy(self.name, space, 0, TrialWriter(board, study), history).close()
        trials = open_optuna_study(board, study).get_trials()
        assert [trial.params for trial in trials] == [outcome.config.as_dict() for outcome in history]
        assert [trial.value for trial in trials] == [5.0, None, 5.0]
        asked = drive(make_strategy(self.name, space, 0, TrialWriter(board, study), history), 30)
        assert not set(asked) & {outcome.config for outcome in history}


class TestEvolution(StrategyContract):
    name = "evolution"


@pytest.mark.slow
class TestTpe(StrategyContract):
    name = "tpe"


@pytest.mark.slow
class TestCmaEs(StrategyContract):
    name = "cmaes"


class TestRandom(StrategyContract):
    name = "random"


@pytest.mark.thorough
class TestEvolutionWithOptions(StrategyContract):
    name = "evolution:elites=2,warm_up=12,random_share=0.5"


def test_options_of_a_strategy_change_its_proposals(space: ValidSpace) -> None:
    names = ("evolution", TestEvolutionWithOptions.name)
    plain, changed = (drive(make_strategy(name, space, seed=3), 40) for name in names)
    assert len(set(changed)) == 40
    assert plain != changed


@pytest.mark.slow
class TestQuasiMonteCarlo(StrategyContract):
    """A sampler of Optuna that numbers its samples in attributes of the study."""

    name = "optuna.samplers:QMCSampler"


@pytest.mark.slow
class TestGeneticAlgorithm(StrategyContract):
    """A sampler of Optuna that stores generations in attributes of trials, and has a random generator of its own."""

    name = "optuna.samplers:NSGAIISampler"


@pytest.mark.slow
class TestOwnSampler(StrategyContract):
    name = "tests.search.custom_samplers:LocalSearch"


def test_every_built_in_strategy_is_under_contract() -> None:
    assert {cls.name for cls in StrategyContract.__subclasses__()} >= set(STRATEGIES)
    assert STRATEGIES[0] == SearchSettings.strategy


OWN = "tests.search.custom_samplers"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("magic", ("'magic'", *STRATEGIES)),
        ("magic:elites=8", ("'magic'", *STRATEGIES)),
        ("evolution:elite=8", ("'evolution'", "'elite'", "elites=5")),
        ("evolution:elites", ("'evolution'", "'elites'")),
        ("evolution:elites=few", ("'evolution'", "elites=few", "int")),
        *((f"evolution:elites={text}", ("not of type int",)) for text in ("1_0", "\uff15", "+5", "1" * 5000)),
        *((f"evolution:random_share={text}", ("not of type float",)) for text in ("0.0_1", "\uff10", "+0.1")),
        ("evolution:elites=5,elites=6", ("'evolution'", "'elites' is given twice")),
        ("evolution:elites=0", ("'evolution'", "elites must be at least 1")),
        ("evolution:random_share=nan", ("'evolution'", "random_share must be")),
        ("random:elites=8", ("'random'", "none")),
        ("no.such.package:Sampler", ("'no.such.package'", "No module named")),
        ("optuna.samplers:NoSuchSampler", ("'optuna.samplers'", "'NoSuchSampler'")),
        (f"{OWN}:NOT_A_CLASS", ("'NOT_A_CLASS' is not a class",)),
        ("optuna.trial:FrozenTrial", ("'FrozenTrial' is no sampler", "propose(view, rng)")),
    ],
)
def test_unusable_strategies_are_named_before_a_search(space: ValidSpace, text: str, named: tuple[str, ...]) -> None:
    for use in (check_strategy, lambda text: make_strategy(text, space, 0)):
        with pytest.raises(UsageError) as caught:
            use(text)
        assert all(part in str(caught.value) for part in named), caught.value
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["optuna.samplers:GridSampler", f"{OWN}:WithoutConstructor"])
def test_a_class_with_other_arguments_is_named(space: ValidSpace, text: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be made: .*argument"):
        make_strategy(text, space, 0)


def test_an_error_of_a_constructor_is_named(space: ValidSpace) -> None:
    with pytest.raises(UsageError, match=r"Unlicensed .*RuntimeError: no licence"):
        make_strategy(f"{OWN}:Unlicensed", space, 0)


@pytest.mark.parametrize(("name", "reason"), [("Failing", "no elites"), ("Repeating", "not an unseen valid config")])
def test_faults_of_a_class_are_reported_as_its_own(space: ValidSpace, name: str, reason: str) -> None:
    strategy = make_strategy(f"{OWN}:{name}", space, 0)
    with pytest.raises(UsageError, match=rf"{OWN}:{name}.*{reason}"):
        drive(strategy, 2)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sampler_of_optuna_learns_from_what_was_evaluated(space: ValidSpace) -> None:
    """The genetic algorithm beats random search only if its generations survive the repair of its samples."""
    best = {
        name: statistics.median(min(map(true_us, drive(make_strategy(name, space, seed), 250))) for seed in range(3))
        for name in ("optuna.samplers:NSGAIISampler", "random")
    }
    assert best["optuna.samplers:NSGAIISampler"] < best["random"], best


def test_a_module_in_the_working_directory_is_found(
    space: ValidSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parent / "custom_samplers.py").read_text("utf-8")
    (tmp_path / "my_own_sampler.py").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert len(set(drive(make_strategy("my_own_sampler:LocalSearch", space, 0), 20))) == 20


@pytest.mark.slow
def test_the_step_size_of_cmaes_stays_bounded(space: ValidSpace) -> None:
    """Where the nearest unseen configs are far from the distribution, it must not widen to the corners of the space."""
    times = [*map(true_us, drive(make_strategy("cmaes", space, 0), 700))]
    assert statistics.median(times[500:]) < 1.25 * statistics.median(times[:200])


@pytest.mark.slow
def test_evolution_beats_random_search(space: ValidSpace) -> None:
    """Evaluations until within 5 % of the optimum, at most 300, on five landscapes."""
    limit, seeds = 300, range(5)
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
