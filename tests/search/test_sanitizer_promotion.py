"""compute-sanitizer checks the leader at the end of a search; only checked rows become champion."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import MachineError
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.candidate.jobs import Job, ResultT, Sanitize
from evoengine.search.candidate.results import Candidate, Examination, Inspection
from evoengine.search.events import ChallengeRejected, ChampionAccepted, Event, PromotionConfirmed, Stopping
from evoengine.search.settings import SearchSettings, StopReason
from evoengine.space.valid_space import ValidSpace
from tests.search.killable import server
from tests.search.landscape import build_space
from tests.search.sanitizing import GUILTY, SanitizingExaminer, run_on, study_of
from tests.search.synthetic import Listener

pytestmark = pytest.mark.slow

FALLING = [100.0, 80.0, 60.0, 40.0]


class DiskFull(SanitizingExaminer):
    """The sanitizer cannot write its report."""

    def sanitize(self, candidate: Candidate) -> Inspection:
        raise MachineError("/tmp: No space left on device")


def champion_of(board: Leaderboard, space: ValidSpace) -> int | None:
    row = board.champion(study_of(board, space).scope)
    return None if row is None else row.id


def waiting_on(board: Leaderboard, space: ValidSpace) -> list[int]:
    return [row.id for row in board.pending(study_of(board, space).scope)]


def test_the_leader_is_checked_once_at_the_end_and_then_becomes_champion(board: Leaderboard, space: ValidSpace) -> None:
    champions: list[int | None] = []

    class Curious(SanitizingExaminer):
        def sanitize(self, candidate: Candidate) -> Inspection:
            with Leaderboard(board.url, create=False) as other:
                champions.append(champion_of(other, space))
                assert len(other.evaluations(study_of(other, space))) == len(FALLING)
            return super().sanitize(candidate)

    examiner, listener = Curious(), Listener()
    result = run_on(board, space, FALLING, examiner, listener=listener)
    assert (examiner.sanitized, champions) == ([4], [None])
    assert result.champion is not None
    assert (result.champion.id, result.leader) == (4, None)
    assert result.stage_seconds["inspect"] == 2.0
    assert [event.row_id for event in listener.events if isinstance(event, ChampionAccepted) and event.pending][-1] == 4
    assert listener.of(PromotionConfirmed) == [PromotionConfirmed(4)]
    history = board.challenges(study_of(board, space).scope)
    assert (history[-1].evaluation_id, history[-1].pending) == (4, False)
    assert all(challenge.pending and challenge.accepted for challenge in history[:-1]), "they led, and were replaced"
    assert waiting_on(board, space) == []


def test_after_a_refused_leader_those_too_slow_for_it_may_challenge(board: Leaderboard, space: ValidSpace) -> None:
    """The second one is refused; the third and the fourth were compared with its time until then."""
    examiner, listener = SanitizingExaminer(guilty=frozenset({2})), Listener()
    result = run_on(board, space, [100.0, 50.0, 80.0, 60.0], examiner, listener=listener)
    assert examiner.sanitized == [2, 4]
    assert result.champion is not None
    assert result.champion.id == 4
    assert ChallengeRejected(2, None, GUILTY.finding) in listener.events
    assert board.get(2).evaluation.notes == (f"refused as champion: {GUILTY.finding}",)
    assert [c.evaluation_id for c in board.challenges(study_of(board, space).scope) if not c.accepted] == [2]
    assert result.progress.best_id == 2, "its row stays in the ranking"


def test_after_another_search_refused_the_only_leader_the_next_one_leads(board: Leaderboard, space: ValidSpace) -> None:
    refused: list[int] = []

    class Beside(SanitizingExaminer):
        def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
            with Leaderboard(board.url, create=False) as other:
                for row in [] if refused else other.pending(study_of(other, space).scope):
                    other.settle(study_of(other, space).scope, row.id, accepted=False)
                    refused.append(row.id)
            return super().examine(candidate, champion_us)

    examiner = Beside()
    result = run_on(board, space, FALLING, examiner)
    assert refused
    assert (getattr(result.champion, "id", None), examiner.sanitized) == (4, [4])


def test_pending_rows_are_checked_until_one_passes(board: Leaderboard, space: ValidSpace) -> None:
    examiner = SanitizingExaminer(guilty=frozenset({3, 4}))
    assert getattr(run_on(board, space, FALLING, examiner).champion, "id", None) == 2
    assert examiner.sanitized == [4, 3, 2]


def test_there_is_no_champion_when_all_are_refused(board: Leaderboard, space: ValidSpace) -> None:
    examiner = SanitizingExaminer(guilty=frozenset({1, 2, 3, 4}))
    result = run_on(board, space, FALLING, examiner)
    assert (result.champion, result.leader, examiner.sanitized) == (None, None, [4, 3, 2, 1])
    assert result.progress.evaluated == 4


def test_after_ctrl_c_the_next_search_checks(board: Leaderboard, space: ValidSpace) -> None:
    settings = SearchSettings(budget=1, drain_s=0.0)
    cut_short = run_on(board, space, [100.0], Impatient(), settings)
    assert (cut_short.stop, cut_short.champion) == (StopReason.INTERRUPTED, None)
    assert getattr(cut_short.leader, "id", None) == 1
    assert waiting_on(board, space) == [1]
    examiner = SanitizingExaminer()
    whole = run_on(board, space, [100.0], examiner)
    assert (whole.stop, whole.progress.new, whole.leader) == (StopReason.BUDGET_REACHED, 0, None)
    assert getattr(whole.champion, "id", None) == 1
    assert examiner.sanitized == [1]


class Impatient(SanitizingExaminer):
    """Receives a Ctrl-C as soon as the sanitizer starts."""

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        if not isinstance(job, Sanitize):
            return super().submit(job)
        signal.raise_signal(signal.SIGINT)
        return Future()


def test_a_time_limit_leaves_time_for_the_check(board: Leaderboard, space: ValidSpace) -> None:
    with pytest.raises(MachineError):
        run_on(board, space, FALLING[:1], DiskFull())
    examiner = SanitizingExaminer()
    settings = SearchSettings(budget=4, deadline_s=0.0, drain_s=0.0, confirm_s=600.0)
    result = run_on(board, space, FALLING, examiner, settings)
    assert (result.stop, result.progress.evaluated) == (StopReason.TIME_LIMIT, 1)
    assert (examiner.sanitized, getattr(result.champion, "id", None)) == ([1], 1)


@pytest.mark.parametrize("begun", [True, False])
def test_a_time_limit_during_the_check_leaves_time_for_it(board: Leaderboard, space: ValidSpace, begun: bool) -> None:
    """A check that a worker has begun is finished, and one that has not begun is begun again; no other row is."""
    submitted, stopping = threading.Event(), threading.Event()

    class Slow(SanitizingExaminer):
        def submit(self, job: Job[ResultT]) -> Future[ResultT]:
            is_first = isinstance(job, Sanitize) and not submitted.is_set()
            if is_first:
                submitted.set()
            return Future() if is_first and not begun else super().submit(job)

        def sanitize(self, candidate: Candidate) -> Inspection:
            stopping.wait(600)
            time.sleep(0.3)  # longer than the search waits when there is no time to drain
            return super().sanitize(candidate)

    class Watch(Listener):
        def notify(self, event: Event) -> None:
            if isinstance(event, Stopping):
                stopping.set()

    def clock() -> float:
        return 61.0 if submitted.is_set() else 0.0

    examiner = Slow()
    settings = SearchSettings(budget=4, deadline_s=60.0, drain_s=0.0, confirm_s=600.0)
    result = run_on(board, space, FALLING, examiner, settings, Watch(), clock)
    assert (result.stop, examiner.sanitized) == (StopReason.TIME_LIMIT, [4])
    assert (getattr(result.champion, "id", None), result.leader) == (4, None)


def _die_during_the_check(database: str, folder: str) -> None:
    class Fatal(SanitizingExaminer):
        def sanitize(self, candidate: Candidate) -> Inspection:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    with Leaderboard(database) as board:
        run_on(board, build_space(Path(folder)), FALLING, Fatal())


def test_a_search_killed_during_the_check_loses_nothing(tmp_path: Path) -> None:
    database, undisturbed = (f"sqlite:///{tmp_path / name}.db" for name in ("killed", "undisturbed"))
    process = server().Process(target=_die_during_the_check, args=(database, str(tmp_path)))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    space, ends = build_space(tmp_path), []
    for url in (database, undisturbed):
        with Leaderboard(url) as board:
            before = board.evaluations(study_of(board, space))
            assert champion_of(board, space) is None
            examiner = SanitizingExaminer()
            run_on(board, space, FALLING, examiner)
            after = board.evaluations(study_of(board, space))
            assert after[: len(before)] == before
            assert examiner.sanitized == [4]
            timings = [(entry.evaluation.config, entry.evaluation.timing) for entry in after]
            ends.append((timings, champion_of(board, space), waiting_on(board, space)))
    assert ends[0] == ends[1]


def test_a_row_that_cannot_be_checked_stays_pending_and_the_previous_one_is_champion(
    board: Leaderboard, space: ValidSpace
) -> None:
    class Fragile(SanitizingExaminer):
        def sanitize(self, candidate: Candidate) -> Inspection:
            super().sanitize(candidate)
            if self.place_of[candidate.config] == 4:
                raise RuntimeError("the worker died")
            return Inspection()

    listener = Listener()
    result = run_on(board, space, FALLING, Fragile(), listener=listener)
    assert getattr(result.leader, "id", None) == 4
    assert result.champion is not None
    assert listener.of(PromotionConfirmed) == [PromotionConfirmed(result.champion.id)]
    (refused,) = (event for event in listener.events if isinstance(event, ChallengeRejected))
    assert refused.reason.endswith(": the worker died")
    assert getattr(run_on(board, space, FALLING, SanitizingExaminer()).champion, "id", None) == 4


def test_a_fault_of_the_machine_ends_the_search_with_the_row_pending(board: Leaderboard, space: ValidSpace) -> None:
    with pytest.raises(MachineError, match="No space"):
        run_on(board, space, FALLING, DiskFull())
    assert (champion_of(board, space), waiting_on(board, space)[0]) == (None, 4)


def test_a_search_without_a_sanitizer_leaves_rows_pending_and_accepts_a_faster_one(
    board: Leaderboard, space: ValidSpace
) -> None:
    with pytest.raises(MachineError):
        run_on(board, space, [100.0], DiskFull())
    run_on(board, space, [100.0, 99.5], SanitizingExaminer(sanitizes=False))
    assert (champion_of(board, space), waiting_on(board, space)) == (None, [1])
    run_on(board, space, [100.0, 99.5, 80.0], SanitizingExaminer(sanitizes=False))
    assert (champion_of(board, space), waiting_on(board, space)) == (3, [])


def test_a_tool_that_could_not_run_is_noted(board: Leaderboard, space: ValidSpace) -> None:
    class Partial(SanitizingExaminer):
        def sanitize(self, candidate: Candidate) -> Inspection:
            return replace(super().sanitize(candidate), notes=("not checked: compute-sanitizer racecheck: not done",))

    listener = Listener()
    run_on(board, space, FALLING[:1], Partial(), listener=listener)
    assert board.get(1).evaluation.notes == ("not checked: compute-sanitizer racecheck: not done",)
    assert listener.of(PromotionConfirmed) == [PromotionConfirmed(1, board.get(1).evaluation.notes)]
