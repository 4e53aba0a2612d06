"""The election of the first champion: the fastest row of a measured search, not the first correct one."""

from __future__ import annotations

import math
import os
import signal
import threading
from dataclasses import dataclass, field

import pytest

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.results import Candidate, Examination, Inspection
from evoengine.search.events import ChampionAccepted, Event, Recorded
from evoengine.search.settings import SearchSettings, StopReason
from evoengine.space.valid_space import ValidSpace
from tests.search.sanitizing import SanitizingExaminer, run_on, study_of
from tests.search.synthetic import Listener, nothing_found

NEAR = [100.0, 99.0, 98.0, 99.5]
"""No time is 3 % below another one."""


def electing(budget: int) -> SearchSettings:
    return SearchSettings(budget=budget, elects_first=True)


def crowned(board: Leaderboard, space: ValidSpace) -> list[tuple[int, int | None]]:
    """All challenges that were won: row and predecessor."""
    challenges = board.challenges(study_of(board, space).scope)
    return [(one.evaluation_id, one.champion_id) for one in challenges if one.accepted]


@pytest.mark.parametrize("sanitizes", [False, True])
def test_the_fastest_row_is_the_first_champion(board: Leaderboard, space: ValidSpace, sanitizes: bool) -> None:
    examiner = SanitizingExaminer(sanitizes=sanitizes)
    result = run_on(board, space, NEAR, examiner, electing(len(NEAR)))
    assert result.champion is not None
    assert (result.champion.id, result.difference) == (3, "")
    assert crowned(board, space) == [(3, None)]
    assert examiner.inspected == [space.config(2).key]
    assert examiner.sanitized == ([3] if sanitizes else [])
    assert examiner.readied == ([0] if sanitizes else []), "while the search goes on"


def test_without_an_election_the_first_row_keeps_its_place(board: Leaderboard, space: ValidSpace) -> None:
    run_on(board, space, NEAR, SanitizingExaminer(sanitizes=False), SearchSettings(budget=len(NEAR)))
    assert crowned(board, space) == [(1, None)]


def test_a_study_without_champion_inspects_nothing(board: Leaderboard, space: ValidSpace) -> None:
    """As a recording, also if its command is repeated."""
    for budget in (3, len(NEAR)):
        examiner = SanitizingExaminer()
        settings = SearchSettings(budget=budget, accept_threshold=math.inf)
        result = run_on(board, space, NEAR[:budget], examiner, settings)
        assert (result.champion, result.leader, result.progress.evaluated) == (None, None, budget)
        assert (examiner.inspected, examiner.sanitized, examiner.readied) == ([], [], [])
    assert board.challenges(study_of(board, space).scope) == []


def test_a_champion_is_replaced_only_by_a_gain(board: Leaderboard, space: ValidSpace) -> None:
    times = [*NEAR, 97.0, 90.0]
    run_on(board, space, times[:4], SanitizingExaminer(), electing(4))
    run_on(board, space, times[:5], SanitizingExaminer(), electing(5))
    assert crowned(board, space) == [(3, None)], "1 % is too little"
    run_on(board, space, times, SanitizingExaminer(), electing(6))
    assert crowned(board, space) == [(3, None), (6, 3)]


def test_a_long_search_elects_before_its_end(board: Leaderboard, space: ValidSpace) -> None:
    budget = 60
    times = [{5: 98.0, 58: 97.0, 59: 70.0}.get(place, 100.0) for place in range(1, budget + 1)]
    listener, examiner = Listener(), SanitizingExaminer()
    settings = SearchSettings(budget=budget, compile_queue=11, elect_early_from=budget, elects_first=True)
    run_on(board, space, times, examiner, settings, listener)
    assert crowned(board, space) == [(5, None), (59, 5)]
    order = [event for event in listener.events if isinstance(event, ChampionAccepted | Recorded)]
    first = next(place for place, event in enumerate(order) if isinstance(event, ChampionAccepted))
    assert 40 <= first < budget, "two thirds"
    assert examiner.readied[0] == 0, "started before the first check"
    assert examiner.sanitized == [5, 59]


def test_the_fastest_row_is_inspected_ahead(board: Leaderboard, space: ValidSpace) -> None:
    @dataclass
    class LookingAhead(SanitizingExaminer):
        ahead: list[int] = field(default_factory=list)

        def inspect_ahead(self, candidate: Candidate) -> Inspection:
            self.ahead.append(self.place_of[candidate.config])
            assert not self.inspected
            return nothing_found(candidate.config)

    budget, examiner = 60, LookingAhead()
    times = [{5: 98.0, 50: 95.0}.get(place, 100.0) for place in range(1, budget + 1)]
    run_on(board, space, times, examiner, electing(budget))
    assert crowned(board, space) == [(50, None)]
    assert examiner.ahead == [5, 50]
    assert examiner.inspected == [space.config(49).key], "the device makes its own part in any case"


def test_candidates_race_against_a_row_that_is_being_inspected(board: Leaderboard, space: ValidSpace) -> None:
    budget, started = 60, threading.Event()
    limits: list[float | None] = []

    @dataclass
    class Parallel(SanitizingExaminer):
        """Inspects beside the device, and not before it has got another candidate."""

        def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
            if inspecting.is_set():
                limits.append(champion_us)
                started.set()
            return super().examine(candidate, champion_us)

    inspecting = threading.Event()

    def wait(config: Config) -> Inspection:
        inspecting.set()
        return nothing_found(config) if started.wait(60.0) else Inspection("no candidate was examined")

    examiner = Parallel(workers=2, sanitizes=False, inspection_of=wait)
    times = [{5: 98.0}.get(place, 100.0) for place in range(1, budget + 1)]
    settings = SearchSettings(budget=budget, compile_queue=11, elect_early_from=budget, elects_first=True)
    run_on(board, space, times, examiner, settings)
    assert crowned(board, space) == [(5, None)]
    assert limits
    assert set(limits) == {98.0}


def test_a_refused_row_leaves_the_election_to_the_next(board: Leaderboard, space: ValidSpace) -> None:
    guilty = space.config(2)

    def racy(config: object) -> Inspection:
        return Inspection("a data race") if config == guilty else nothing_found(space.config(0))

    run_on(board, space, NEAR, SanitizingExaminer(sanitizes=False, inspection_of=racy), electing(len(NEAR)))
    assert crowned(board, space) == [(2, None)]


@pytest.mark.parametrize("further", [0, 1], ids=["complete", "one more"])
def test_rows_of_a_stopped_search_take_part(board: Leaderboard, space: ValidSpace, further: int) -> None:
    """A second Ctrl-C leaves at once: its four rows have no champion."""
    times = [*NEAR, 99.0]

    class Leaving(Listener):
        def notify(self, event: Event) -> None:
            super().notify(event)
            if isinstance(event, Recorded) and len(self.of(Recorded)) == len(NEAR):
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_on(board, space, times, SanitizingExaminer(), electing(5), Leaving())
    assert crowned(board, space) == []
    run_on(board, space, times, SanitizingExaminer(), electing(len(NEAR) + further))
    assert crowned(board, space) == [(3, None)]


def test_ctrl_c_elects(board: Leaderboard, space: ValidSpace) -> None:
    class Stopping(Listener):
        def notify(self, event: Event) -> None:
            super().notify(event)
            if isinstance(event, Recorded) and len(self.of(Recorded)) == 3:
                os.kill(os.getpid(), signal.SIGINT)

    result = run_on(board, space, [*NEAR, *[100.0] * 30], SanitizingExaminer(), electing(34), Stopping())
    assert result.stop is StopReason.INTERRUPTED
    assert crowned(board, space) == [(3, None)]
