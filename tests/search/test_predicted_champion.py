"""Among predictions the champion is the row of rank 1; why a run's best row is not the champion."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.results import Inspection
from evoengine.search.loop import Search
from evoengine.search.settings import SearchResult, SearchSettings
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.valid_space import ValidSpace
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, study_key


class Runs:
    """Searches of one study that evaluate the first configs of a space with given times, in order."""

    def __init__(self, board: Leaderboard, space: ValidSpace, times_us: Sequence[float], *, predicted: bool = True):
        self.board, self.space = board, space
        self.configs = [space.config(index) for index in range(len(times_us))]
        times = dict(zip(self.configs, times_us, strict=True))
        self.refused: set[Config] = set()
        self.examiner = SyntheticExaminer(
            value_of=times.__getitem__,
            inspection_of=lambda config: Inspection(finding="a race" if config in self.refused else ""),
            duel_noise=0.0,
            predicted=predicted,
        )
        self.compiler = SyntheticCompiler(workers=1)
        key = study_key(SearchSettings(budget=1), space)
        self.study: Study = board.open_study(replace(key, device=replace(key.device, predicted=predicted)))

    def run(self, budget: int, threshold: float) -> SearchResult:
        """Searches until the study has ``budget`` rows."""
        settings = SearchSettings(budget=budget, accept_threshold=threshold)
        strategy = start_strategy(settings, self.space, self.board, self.study, starts=self.configs, log_trials=False)
        return Search(settings, self.board, self.study, strategy, self.compiler, self.examiner).run()

    def ranks(self) -> list[int]:
        """Ids by rank."""
        return [row.id for row in self.board.rows()]


def test_the_champion_of_predictions_is_rank_1(board: Leaderboard, space: ValidSpace) -> None:
    runs = Runs(board, space, [14.71, 14.8, 14.41, 14.42, 14.41, 14.41])
    result = runs.run(6, 0.0)
    assert result.champion is not None
    assert result.best is not None
    assert (result.champion.id, result.champion.rank, result.best.id) == (3, 1, 3), "of equal times the older"
    assert runs.ranks()[:3] == [3, 5, 6]
    assert result.difference == ""


def test_of_equal_challengers_that_wait_the_older_is_first(board: Leaderboard, space: ValidSpace) -> None:
    """Both wait while the first champion is inspected."""
    runs = Runs(board, space, [15.0, 14.41, 14.41])

    def until_all_wait(_config: Config) -> Inspection:
        with Leaderboard(board.url) as other:
            end_s = time.monotonic() + 60.0
            while other.evaluated(runs.study) < 3 and time.monotonic() < end_s:
                time.sleep(0.005)
        return Inspection()

    times = runs.examiner.value_of
    runs.examiner = SyntheticExaminer(workers=2, value_of=times, inspection_of=until_all_wait, predicted=True)
    champion = runs.run(3, 0.0).champion
    assert champion is not None
    assert champion.id == 2
    assert [one.evaluation_id for one in board.challenges(runs.study.scope)] == [1, 2]


def test_a_threshold_that_is_asked_for_counts(board: Leaderboard, space: ValidSpace) -> None:
    result = Runs(board, space, [14.71, 14.41]).run(2, 0.03)
    assert result.champion is not None
    assert result.best is not None
    assert (result.champion.id, result.best.id) == (1, 2)
    assert "2.0% faster" in result.difference
    assert "--accept asks for 3.0%" in result.difference


@pytest.mark.parametrize("budget", [3, 4])
def test_a_champion_of_an_older_threshold_is_replaced(board: Leaderboard, space: ValidSpace, budget: int) -> None:
    """The faster row never challenged again; a complete study (3) and one that goes on (4) make up for it."""
    runs = Runs(board, space, [14.71, 14.41, 14.6, 14.5])
    old = runs.run(3, 0.03)
    assert old.champion is not None
    assert old.champion.id == 1
    inspected = len(runs.examiner.inspected)
    new = runs.run(budget, 0.0)
    assert new.champion is not None
    assert (new.champion.id, new.champion.rank) == (2, 1)
    assert runs.examiner.inspected[inspected:].count(runs.configs[1].key) == 1, "it is inspected before it leads"
    assert new.best is None if budget == 3 else new.best is not None and new.best.id == 4
    assert runs.run(budget, 0.0).champion == new.champion


def test_a_refused_row_never_becomes_champion(board: Leaderboard, space: ValidSpace) -> None:
    runs = Runs(board, space, [14.71, 14.41])
    runs.refused.add(runs.configs[1])
    for new in (2, 0):
        result = runs.run(2, 0.0)
        assert result.progress.new == new
        assert result.champion is not None
        assert result.champion.id == 1
        assert re.fullmatch("row 2 .*: a race" if new else "", result.difference)
    assert len(runs.examiner.inspected) == 2, "a refused row is not inspected again"


def test_a_row_that_cannot_be_built_again_does_not_end_the_search(board: Leaderboard, space: ValidSpace) -> None:
    runs = Runs(board, space, [14.71, 14.41])
    runs.run(2, 0.03)
    runs.compiler.fault_of = lambda config: "raise compile"
    result = runs.run(2, 0.0)
    assert result.champion is not None
    assert result.champion.id == 1
    runs.compiler.fault_of = lambda config: ""
    healed = runs.run(2, 0.0).champion
    assert healed is not None
    assert healed.id == 2


def test_measured_rows_are_left_alone(board: Leaderboard, space: ValidSpace) -> None:
    runs = Runs(board, space, [14.71, 14.41], predicted=False)
    runs.run(2, 0.03)
    result = runs.run(2, 0.0)
    assert result.champion is not None
    assert result.champion.id == 1
    assert runs.examiner.duels == []


def test_a_run_says_why_its_best_row_is_not_the_champion(board: Leaderboard, space: ValidSpace) -> None:
    runs = Runs(board, space, [14.0, 15.4, 14.0, 13.0])
    first, slower, equal, faster = (runs.run(budget, 0.0).difference for budget in (1, 2, 3, 4))
    assert (first, faster) == ("", "")
    assert re.match(r"row 2 [^-]*\b10\.0% .*row 1 ", slower)
    assert re.match("row 3 .*row 1,", equal)


def test_a_lost_duel_is_the_reason(board: Leaderboard, space: ValidSpace) -> None:
    class Lucky(SyntheticExaminer):
        def _sample(self, config: Config, salt: str) -> float:
            return 100.0 * (1 + 0.001 * len(salt))  # in truth both take the same time

    runs = Runs(board, space, [100.0, 90.0], predicted=False)
    runs.examiner = Lucky(value_of=runs.examiner.value_of)
    result = runs.run(2, 0.03)
    assert result.best is not None
    assert result.best.id == 2
    assert result.difference.startswith("row 2 lost its duel: ")
