"""The early check: in a long search, compute-sanitizer checks the leader before the end, which is then short."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from evoengine.errors import MachineError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Duel
from evoengine.search.candidate.results import Candidate, Inspection
from evoengine.search.events import ChallengeRejected, Event, PromotionConfirmed, Recorded
from evoengine.search.settings import SearchSettings
from evoengine.space.valid_space import ValidSpace
from tests.search.sanitizing import GUILTY, SanitizingExaminer, run_on, study_of
from tests.search.synthetic import Listener

pytestmark = pytest.mark.slow

BUDGET = 60
SETTINGS = SearchSettings(budget=BUDGET, compile_queue=11, elect_early_from=BUDGET)
"""With one worker each, 19 may be in flight: the last ones begin after 41 evaluations."""
LONG_BUDGET = 210
PATIENCE_S = 600.0


def times(fast: dict[int, float], budget: int = BUDGET) -> list[float]:
    """Times by place: all equal except those in `fast`."""
    return [fast.get(place, 100.0) for place in range(1, budget + 1)]


def test_a_leader_that_stays_is_checked_once_while_the_search_goes_on(board: Leaderboard, space: ValidSpace) -> None:
    stored: list[int] = []

    class Counting(SanitizingExaminer):
        def sanitize(self, candidate: Candidate) -> Inspection:
            with Leaderboard(board.url, create=False) as other:
                stored.append(other.evaluated(study_of(other, space)))
            return super().sanitize(candidate)

    examiner, listener = Counting(), Listener()
    settings = SearchSettings(budget=LONG_BUDGET, compile_queue=33)
    result = run_on(board, space, times({5: 80.0}, LONG_BUDGET), examiner, settings, listener=listener)
    assert (examiner.sanitized, result.progress.evaluated) == ([5], LONG_BUDGET)
    assert examiner.readied == [0], "once, before the check"
    assert 140 <= stored[0] < LONG_BUDGET
    assert (getattr(result.champion, "id", None), result.leader) == (5, None)
    assert result.stage_seconds["inspect"] == 2.0
    kinds = [type(event) for event in listener.events if isinstance(event, PromotionConfirmed | Recorded)]
    assert kinds.count(PromotionConfirmed) == 1
    assert kinds.index(PromotionConfirmed) < LONG_BUDGET


def test_only_a_later_leader_is_checked_at_the_end(board: Leaderboard, space: ValidSpace) -> None:
    examiner, listener = SanitizingExaminer(), Listener()
    result = run_on(board, space, times({5: 80.0, 50: 60.0}), examiner, SETTINGS, listener=listener)
    assert examiner.sanitized == [5, 50]
    assert examiner.readied == [0, 1], "for the later one as soon as it led"
    assert getattr(result.champion, "id", None) == 50
    assert listener.of(PromotionConfirmed) == [PromotionConfirmed(5), PromotionConfirmed(50)]
    met = [(one.evaluation_id, one.champion_id, one.pending) for one in board.challenges(study_of(board, space).scope)]
    assert met == [(1, None, True), (5, 1, False), (50, 5, False)]


def test_a_refused_early_leader_is_replaced_by_the_previous_one(board: Leaderboard, space: ValidSpace) -> None:
    """The row at 60 us was too slow for the refused leader, and the one at 55 us need not beat that leader."""
    examiner, listener = SanitizingExaminer(guilty=frozenset({5})), Listener()
    result = run_on(board, space, times({5: 50.0, 25: 60.0, 50: 55.0}), examiner, SETTINGS, listener=listener)
    assert examiner.sanitized == [5, 50]
    assert getattr(result.champion, "id", None) == 50
    assert listener.of(ChallengeRejected) == [ChallengeRejected(5, None, GUILTY.finding)]
    won = [(one.evaluation_id, one.champion_id) for one in board.challenges(study_of(board, space).scope)]
    assert won == [(1, None), (5, 1), (25, 1), (50, 25)]


@dataclass
class Entangled(SanitizingExaminer):
    """While the sanitizer checks the leader, a duel with it runs, and ends after the leader was refused."""

    workers: int = 2
    meets: threading.Event = field(default_factory=threading.Event)
    refused: threading.Event = field(default_factory=threading.Event)

    def sanitize(self, candidate: Candidate) -> Inspection:
        found = super().sanitize(candidate)
        if found.finding:
            assert self.meets.wait(PATIENCE_S)
        return found

    def challenge(self, challenger: Candidate, champion: Candidate) -> Duel:
        if self.place_of[champion.config] == 5:
            self.meets.set()
            assert self.refused.wait(PATIENCE_S)
        return super().challenge(challenger, champion)

    def notify(self, event: Event) -> None:
        if isinstance(event, ChallengeRejected) and event.reason == GUILTY.finding:
            self.refused.set()


def test_a_duel_with_a_refused_leader_is_repeated_with_the_previous_one(board: Leaderboard, space: ValidSpace) -> None:
    examiner = Entangled(guilty=frozenset({5}))

    class Telling(Listener):
        def notify(self, event: Event) -> None:
            super().notify(event)
            examiner.notify(event)

    run_on(board, space, times({5: 50.0, 48: 40.0}), examiner, SETTINGS, listener=Telling())
    place_of = {
        entry.id: examiner.place_of[entry.evaluation.config] for entry in board.evaluations(study_of(board, space))
    }
    *_, last = board.challenges(study_of(board, space).scope)
    assert (place_of[last.evaluation_id], last.accepted, last.pending) == (48, True, False)
    assert last.champion_id is not None
    assert place_of[last.champion_id] not in (5, 48)
    assert last.duel is not None
    assert min(last.duel.champion_us) > 90.0, "the evidence is a duel with the one that it replaced"
    assert examiner.sanitized == [5, 48]


class Failing(SanitizingExaminer):
    """The sanitizer cannot be run at first."""

    error: Exception = RuntimeError("the worker died")
    fails = 1

    def sanitize(self, candidate: Candidate) -> Inspection:
        super().sanitize(candidate)
        if len(self.sanitized) <= self.fails:
            raise self.error
        return Inspection()


def test_a_failed_early_check_is_repeated_at_the_end(board: Leaderboard, space: ValidSpace) -> None:
    examiner, listener = Failing(), Listener()
    result = run_on(board, space, times({5: 80.0}), examiner, SETTINGS, listener=listener)
    assert examiner.sanitized == [5, 5]
    assert getattr(result.champion, "id", None) == 5
    assert listener.of(ChallengeRejected) == []


def test_a_fault_of_the_machine_ends_a_search_only_when_all_is_evaluated(board: Leaderboard, space: ValidSpace) -> None:
    examiner = Failing()
    examiner.error, examiner.fails = MachineError("/tmp: No space left on device"), 2
    with pytest.raises(MachineError, match="No space"):
        run_on(board, space, times({5: 80.0}), examiner, SETTINGS)
    assert examiner.sanitized == [5, 5]
    study = study_of(board, space)
    assert board.evaluated(study) == BUDGET
    assert board.pending(study.scope)[0].id == 5


def test_the_sanitizer_is_not_started_for_a_checked_champion(board: Leaderboard, space: ValidSpace) -> None:
    run_on(board, space, times({5: 80.0})[:20], SanitizingExaminer())
    examiner = SanitizingExaminer()
    result = run_on(board, space, times({5: 80.0})[:40], examiner)
    assert (getattr(result.champion, "id", None), result.progress.new) == (5, 20)
    assert (examiner.readied, examiner.sanitized) == ([], [])


def test_a_short_search_checks_at_its_end_only(board: Leaderboard, space: ValidSpace) -> None:
    examiner = Failing()
    result = run_on(board, space, times({5: 80.0})[:20], examiner)
    assert examiner.sanitized == [5, 1], "no second try after a failed check at the end"
    assert examiner.readied == [0]
    assert (getattr(result.leader, "id", None), getattr(result.champion, "id", None)) == (5, 1)
