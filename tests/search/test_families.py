"""Studies over several families: strategies, stored trials, and champions of different families."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Status
from evoengine.search.events import Finished
from evoengine.search.loop import Search
from evoengine.search.settings import SearchSettings, StopReason
from evoengine.search.strategies.builtin.evolution import EvolutionOptions
from evoengine.search.strategies.family_bandit import PATIENCE, PRESSURE, FamilyBandit, FamilyStanding, choose_family
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.registry import STRATEGIES, make_strategy
from evoengine.search.strategies.sampler import NoPruner
from evoengine.search.strategies.strategy import Strategy
from evoengine.search.trial_log import TrialWriter, open_optuna_study
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.index_rows import IndexRows
from evoengine.space.valid_space import ValidSpace
from tests.search.families import FACTORS, build_families, build_family, family_us
from tests.search.synthetic import Listener, SyntheticCompiler, SyntheticExaminer, study_key

pytestmark = pytest.mark.slow

TINY = {"TILE_M": (16, 64), "TILE_N": (64,), "WARPS": (1, 4), "STAGES": (2,), "PAD": (0,), "CTAS": (1,)}


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> FamilySpaces:
    return build_families(tmp_path_factory.mktemp("spaces"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    return build_family(tmp_path_factory.mktemp("alone"), "alpha")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> FamilySpaces:
    return build_families(tmp_path_factory.mktemp("tiny"), TINY)


def drive(strategy: Strategy, trials: int, seed: int = 0, fail_every: int = 0) -> list[Config]:
    """Runs a sequential search."""
    asked = []
    for number in range(trials):
        proposal = strategy.ask()
        if proposal is None:
            break
        asked.append(proposal.config)
        failed = bool(fail_every) and number % fail_every == 0
        us = None if failed else family_us(proposal.config, seed)
        strategy.tell(proposal, us, Status.PARITY_FAILED if failed else Status.OK)
    return asked


@pytest.mark.parametrize("name", [*STRATEGIES, "optuna.samplers:NSGAIISampler"])
class TestEveryStrategy:
    def test_asks_for_valid_and_distinct_configs_of_all_families(self, spaces: FamilySpaces, name: str) -> None:
        asked = drive(make_strategy(name, spaces, seed=3), 90, fail_every=9)
        assert len(set(asked)) == 90
        assert all(config in spaces for config in asked)
        assert {config.family for config in asked} == set(FACTORS)

    def test_the_seed_determines_all_proposals(self, spaces: FamilySpaces, name: str) -> None:
        runs = [drive(make_strategy(name, spaces, seed=seed), 50) for seed in (3, 3, 4)]
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]

    def test_ends_when_every_family_is_exhausted(self, tiny: FamilySpaces, name: str) -> None:
        strategy = make_strategy(name, tiny, seed=0)
        asked = drive(strategy, tiny.size + 10, fail_every=5)
        assert set(asked) == set(tiny)
        assert len(asked) == tiny.size
        assert strategy.ask() is None

    def test_queued_configs_come_first_whatever_their_family(self, spaces: FamilySpaces, name: str) -> None:
        strategy = make_strategy(name, spaces, seed=0)
        queued = [spaces.of(family).config(9) for family in ("gamma", "alpha", "beta")]
        unknown = Config.of("delta", queued[0].as_dict())
        strategy.enqueue([queued[0], unknown, *queued])
        assert drive(strategy, 30)[:3] == queued

    def test_a_resumed_study_continues_where_it_stopped(
        self, spaces: FamilySpaces, board: Leaderboard, name: str
    ) -> None:
        study = board.open_study(
            replace(study_key(SearchSettings(budget=1, strategy=name), spaces.members[0]), family="a,b,c")
        )
        before = drive(make_strategy(name, spaces, 0), 45, fail_every=7)
        strategy = make_strategy(name, spaces, 0, TrialWriter(board, study))
        assert drive(strategy, 30, fail_every=7) == before[:30]
        strategy.close()
        values = [(None if n % 7 == 0 else family_us(config), config) for n, config in enumerate(before[:30])]
        history = [Outcome(config, us, Status.OK, number) for number, (us, config) in enumerate(values)]
        resumed = make_strategy(name, spaces, 0, TrialWriter(board, study), history)
        after = [config for number in range(30, 45) for config in drive(resumed, 1, fail_every=0 if number % 7 else 1)]
        resumed.close()
        assert after == before[30:]
        trials = open_optuna_study(board, study).get_trials()
        for trial, config in zip(trials, before[:30] + after, strict=True):
            own = {f"{config.family}.{tunable}": value for tunable, value in config.values}
            assert trial.params == {"family": config.family, **own}

    def test_trials_that_were_not_logged_are_rebuilt(self, spaces: FamilySpaces, board: Leaderboard, name: str) -> None:
        study = board.open_study(
            replace(study_key(SearchSettings(budget=1, strategy=name), spaces.members[0]), family="a,b,c")
        )
        history = [Outcome(spaces.of(family).config(5), 5.0, Status.OK) for family in FACTORS]
        make_strategy(name, spaces, 0, TrialWriter(board, study), history).close()
        asked = drive(make_strategy(name, spaces, 0, TrialWriter(board, study), history), 30)
        assert not set(asked) & {outcome.config for outcome in history}


class WithoutFamily(NoPruner):
    """A pruner that keeps no config of one family."""

    def __init__(self, family: str) -> None:
        self._family = family

    def prunes(self, config: Config) -> bool:
        return config.family == self._family

    def first_kept(self, space: ValidSpace, rows: IndexRows) -> int | None:
        return None if space.family == self._family else super().first_kept(space, rows)


def test_where_all_offspring_of_the_best_family_are_pruned_another_family_is_drawn(spaces: FamilySpaces) -> None:
    best = min(FACTORS, key=lambda family: FACTORS[family])
    warm_up, share = EvolutionOptions().warm_up, EvolutionOptions().random_share
    for seed in range(3):
        asked = drive(make_strategy("evolution", spaces, seed, pruner=WithoutFamily(best)), 100, seed)
        drawn = Counter(config.family for config in asked)
        assert warm_up <= drawn[best] <= warm_up + 3 * share * len(asked)
        assert set(drawn) == set(FACTORS)


# -- allocation of the budget ----------------------------------------------------------------------------------------

TRIALS = 150


def best_us(strategy: Strategy, trials: int, seed: int) -> float:
    """Best time that a strategy finds."""
    return min(family_us(config, seed) for config in drive(strategy, trials, seed))


@pytest.fixture(scope="module")
def evolved(spaces: FamilySpaces) -> list[list[Config]]:
    """Candidates of two searches over all families by evolution, with seeds 0 and 1."""
    return [drive(make_strategy("evolution", spaces, seed), TRIALS, seed) for seed in range(2)]


@pytest.mark.parametrize("name", ["evolution", "tpe"])
@pytest.mark.thorough
def test_all_families_together_find_what_the_best_one_finds_alone(
    spaces: FamilySpaces, alone: ValidSpace, evolved: list[list[Config]], name: str
) -> None:
    """Three families, of which two are two and nine times as slow as the third, share the budget of one."""
    ratios = []
    for seed in range(2):
        asked = evolved[seed] if name == "evolution" else drive(make_strategy(name, spaces, seed), TRIALS, seed)
        together = min(family_us(config, seed) for config in asked)
        ratios.append(together / best_us(make_strategy(name, alone, seed), TRIALS, seed))
    assert statistics.mean(ratios) < 1.02, ratios
    assert max(ratios) < 1.05, ratios


def test_evolution_tries_every_family_and_few_trials_of_slow_ones(evolved: list[list[Config]]) -> None:
    for configs in evolved:
        asked = [config.family for config in configs]
        assert set(asked[:12]) == set(FACTORS)
        spent = Counter(asked)
        assert spent["alpha"] > 0.8 * TRIALS
        assert 1 <= spent["gamma"] < 8


def test_a_slow_family_is_not_tried_again_before_its_first_time_is_known(spaces: FamilySpaces) -> None:
    """Starts of the families alternate; once a family is known to be slower, its remaining starts are deferred."""
    starts = [spaces.of(family).config(index) for index in (9, 99, 999) for family in ("alpha", "beta", "gamma")]
    strategy = make_strategy("evolution", spaces, 0)
    strategy.enqueue(starts)
    asked = [config.family for config in drive(strategy, 60)]
    assert asked[:3] == ["alpha", "beta", "gamma"]
    assert asked[3:].count("gamma") < 4


@pytest.mark.thorough
def test_evolution_finds_the_family_whose_few_good_configs_are_rare(spaces: FamilySpaces) -> None:
    """Random configs of beta are faster, the best of alpha are fastest: alpha must not be dropped too early."""

    def us(config: Config, seed: int) -> float:
        plain_us = family_us(config, seed) / FACTORS[config.family]
        spread, factor = {"alpha": (2.0, 1.0), "beta": (0.5, 1.3), "gamma": (1.0, 9.0)}[config.family]
        return float(factor * 5 * (plain_us / 5) ** spread)

    won = 0
    for seed in range(3):
        strategy = make_strategy("evolution", spaces, seed)
        found: dict[str, float] = {}
        for _ in range(200):
            proposal = strategy.ask()
            assert proposal is not None
            time_us = us(proposal.config, seed)
            found[proposal.config.family] = min(time_us, found.get(proposal.config.family, time_us))
            strategy.tell(proposal, time_us, Status.OK)
        won += found["alpha"] < found["beta"]
        if won == 2:
            return
    raise AssertionError(f"found in {won} of 3 searches")


def test_a_family_without_correct_candidates_gets_few_trials(spaces: FamilySpaces) -> None:
    strategy = make_strategy("evolution", spaces, 0)
    asked: Counter[str] = Counter()
    for _ in range(200):
        proposal = strategy.ask()
        assert proposal is not None
        family = proposal.config.family
        asked[family] += 1
        broken = family == "alpha"
        strategy.tell(
            proposal, None if broken else family_us(proposal.config), Status.COMPILE_FAILED if broken else Status.OK
        )
    assert 4 <= asked["alpha"] < 40
    assert asked["beta"] > 140


def test_random_draws_families_uniformly_whatever_their_size(spaces: FamilySpaces) -> None:
    asked = Counter(config.family for config in drive(make_strategy("random", spaces, 0), 300))
    assert all(abs(count - 100) < 5 * 67**0.5 for count in asked.values())


def test_standings_count_correct_candidates_in_order() -> None:
    config = {family: Config.of(family, {"TILE": 1}) for family in "ab"}
    times = [("a", 5.0), ("b", 9.0), ("a", 4.0), ("a", None), ("a", 6.0), ("b", 9.0)]
    observed = [Outcome(config[family], us, Status.OK) for family, us in times]
    known = FamilyBandit()
    for seen in (1, 4, 6):
        known.update(observed[:seen])
    assert known.by_family == {"a": FamilyStanding(4.0, 3), "b": FamilyStanding(9.0, 2)}
    assert known.is_behind("b")
    assert not known.is_behind("a")
    assert not known.is_behind("never seen")


def test_families_are_drawn_by_their_optimistic_time() -> None:
    rng = np.random.default_rng(0)
    known = {"a": FamilyStanding(4.0, 100), "b": FamilyStanding(8.0, 100), "c": FamilyStanding(8.0, 1)}
    picked = Counter(choose_family(("a", "b", "c", "d"), known, lambda family: 9, rng) for _ in range(4000))
    expected = {"a": 1.0, "b": 2.0**-PRESSURE, "c": (4 / 1.1 / (8 / 2)) ** PRESSURE, "d": 1 / 10**PATIENCE}
    for family, weight in expected.items():
        share = weight / sum(expected.values())
        assert abs(picked[family] - 4000 * share) < 5 * (4000 * share) ** 0.5, (family, picked)
    assert choose_family(("b",), known, lambda family: 0, rng) == "b"


# -- one study, several families --------------------------------------------------------------------------------------


def run(
    board: Leaderboard,
    spaces: FamilySpaces,
    settings: SearchSettings,
    listener: Listener | None = None,
    *,
    log_trials: bool = False,
) -> Search:
    """Runs a search over several families to its end."""
    key = replace(study_key(settings, spaces.members[0]), family=",".join(spaces.families))
    study = board.open_study(key)
    strategy = start_strategy(settings, spaces, board, study, log_trials=log_trials)
    examiner = SyntheticExaminer(value_of=family_us)
    search = Search(settings, board, study, strategy, SyntheticCompiler(), examiner, listener)
    search.run()
    return search


def test_one_study_holds_rows_and_champions_of_several_families(board: Leaderboard, spaces: FamilySpaces) -> None:
    run(board, spaces, SearchSettings(budget=60), log_trials=True)
    (study,) = board.studies()
    assert study.key.family == "alpha,beta,gamma"
    stored = board.evaluations(study)
    assert len(stored) == 60
    for entry in stored:
        config = entry.evaluation.config
        assert config in spaces
        assert entry.evaluation.timing is not None
        assert entry.evaluation.timing.median_us == family_us(config)
    families = Counter(entry.evaluation.config.family for entry in stored)
    assert set(families) == set(FACTORS)
    for family, count in families.items():
        assert {row.family for row in board.rows(RowFilter(family=family))} == {family}
        assert len(board.rows(RowFilter(family=family))) == count
    champion = board.champion(study.scope)
    assert champion is not None
    assert champion.family == "alpha"
    record = board.get(champion.id)
    assert record.evaluation.config == Config.of("alpha", dict(champion.config))


def test_a_champion_of_another_family_is_challenged(board: Leaderboard, spaces: FamilySpaces) -> None:
    """First gamma alone, then all families: the champion of the first search is rebuilt, whatever its family."""
    settings = SearchSettings(budget=12)
    run(board, FamilySpaces((spaces.of("gamma"),)), settings)
    (study,) = board.studies()
    first = board.champion(study.scope)
    assert first is not None
    run(board, spaces, SearchSettings(budget=40))
    champion = board.champion(study.scope)
    assert champion is not None
    assert (first.family, champion.family) == ("gamma", "alpha")
    assert [entry.champion_id for entry in board.challenges(study.scope)].count(first.id) >= 1
    assert all(entry.duel is not None for entry in board.challenges(study.scope)[1:])


def test_a_larger_budget_goes_on_until_the_union_is_exhausted(board: Leaderboard, tiny: FamilySpaces) -> None:
    listener = Listener()
    for budget in (5, 11, 10_000):
        run(board, tiny, SearchSettings(budget=budget), listener)
    (study,) = board.studies()
    assert {entry.evaluation.config for entry in board.evaluations(study)} == set(tiny)
    results = [event.result for event in listener.events if isinstance(event, Finished)]
    assert [result.progress.new for result in results] == [5, 6, tiny.size - 11]
    assert results[-1].stop is StopReason.SPACE_EXHAUSTED
