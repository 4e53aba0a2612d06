"""The champion rule: which candidates may challenge, one duel at a time, and what a champion must have proven."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future
from typing import Any, Final

from evoengine.bench.acceptance import judge_predictions
from evoengine.errors import DefectError
from evoengine.leaderboard.records import Row, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Duel, Timing
from evoengine.search.candidate.jobs import Challenge, Compile, Inspect, InspectAhead, JobService
from evoengine.search.candidate.results import Candidate, Compilation, Inspection
from evoengine.search.champion.challenger import Challenger, is_fast_enough
from evoengine.search.champion.overdue import OverdueChallenges
from evoengine.search.champion.refusal import store_inspection
from evoengine.search.champion.sanitizer_promotion import SanitizerPromotion
from evoengine.search.events import ChallengeRejected, ChampionAccepted, Observer
from evoengine.system.machine_faults import machine_fault

_REMEMBERED: Final = 8
"""Number of the fastest challengers that may challenge again when a leader is refused."""
_ATTEMPTS: Final = 3
"""Attempts of one challenge that a fault of the machine may interrupt before the search ends."""


class Championship:
    """Holds the champion of a scope and runs challenges, one at a time, fastest challenger first.

    Measured challengers are timed against the champion in a duel on the device, for which the champion of an earlier
    run is compiled again; predictions do not vary, so two predictions are compared as they are. A champion that no
    longer compiles to the same machine code (another template, another NVRTC) cannot be timed: it is replaced only if
    the stored confidence intervals alone prove the gain, and the evidence then holds one pair.

    The first champion of a scope can be elected: challengers then wait until :meth:`elect` or :meth:`conclude`, and the
    fastest of them, or of what a killed search left, needs no duel. If the first correct row were champion at once, a
    row that is faster by less than the threshold could never replace it.

    A challenger that has proven its gain is inspected before it is accepted, the first champion of a scope too. The
    findings are stored with the row. Where compute-sanitizer's check is required (see
    :mod:`evoengine.search.champion.sanitizer_promotion`), the winner leads from now on, but is champion only after that
    check, which :meth:`conclude` makes when all challenges are over, and :meth:`check_early` before that. If the check
    finds something, the previous leader leads again, and the challengers that were too slow for the refused one, or
    were in a duel with it, challenge the previous leader.

    Among predictions the champion ends as the fastest row of the study that no inspection refused, if the threshold is
    0: :meth:`conclude` also makes the challenges that an earlier search of the study left out.
    """

    def __init__(
        self,
        board: Leaderboard,
        study: Study,
        threshold: float,
        compiler: JobService,
        examiner: JobService,
        observer: Observer,
        *,
        elects_first: bool = False,
    ) -> None:
        self._board = board
        self._study = study
        self._threshold = threshold
        self._compiler = compiler
        self._examiner = examiner
        self._observer = observer
        self._promotion = SanitizerPromotion(board, study.scope, compiler, examiner, observer)
        self._overdue = OverdueChallenges(board, study, threshold, compiler)
        self._leader: Row | None = board.leader(study.scope)
        self._leading: Candidate | None = None
        self._electing = elects_first and self._leader is None
        self._electable: list[Challenger] = []
        self._waiting: list[Challenger] = []
        self._challenger: Challenger | None = None
        self._rebuild: Future[Compilation] | None = None
        self._duel: Future[Duel] | None = None
        self._evidence: Duel | None = None
        self._inspection: Future[Inspection] | None = None
        self._ahead: Future[Inspection] | None = None
        self._seen_ahead: int | None = None
        """Row that was inspected ahead last."""
        self._too_slow: list[Challenger] = []
        self._inspect_s = 0.0
        self._checked_early = False
        self._interrupted: Counter[int] = Counter()

    @property
    def median_us(self) -> float | None:
        """Time to beat: that of the champion, of the pending leader, or of the fastest row that may become it."""
        if self._leader is not None:
            return self._leader.median_us
        judged = [] if self._challenger is None else [self._challenger]
        return min((one.median_us for one in (*self._electable, *self._waiting, *judged)), default=None)

    @property
    def futures(self) -> list[Future[Any]]:
        """Jobs under way; :meth:`step` takes the finished ones."""
        each = (self._duel, self._rebuild, self._inspection, self._promotion.future, self._overdue.future)
        return [future for future in each if future is not None]

    @property
    def idle(self) -> bool:
        """Whether no challenge or inspection is under way or waiting."""
        under_way = (self._challenger, self._promotion.future, self._overdue.future)
        return not self._waiting and all(one is None for one in under_way)

    @property
    def inspect_seconds(self) -> float:
        """Time for which a device was busy with inspections."""
        return self._inspect_s + self._promotion.seconds

    def may_challenge(self, median_us: float) -> bool:
        """Whether a time is better than the leader's by the threshold."""
        leader_us = None if self._leader is None else self._leader.median_us
        return is_fast_enough(median_us, leader_us, self._threshold)

    def enter(self, challenger: Challenger) -> None:
        """Queues the challenge of a stored correct candidate, if it is fast enough."""
        if self._electing:
            self._electable = sorted((*self._electable, challenger), key=_time_and_age)[:_REMEMBERED]
        elif self.may_challenge(challenger.median_us):
            self._waiting.append(challenger)
            self.step()
        else:
            self._keep_too_slow(challenger)

    def elect(self) -> None:
        """Ends the wait for the first champion, if there is one: the fastest row so far is inspected without a duel."""
        if not self._electing:
            return
        self._electing = False
        self._waiting, self._electable = self._electable, []
        self._overdue.begin({challenger.row_id for challenger in self._waiting})
        self.step()

    def inspect_ahead(self) -> None:
        """Submits the fastest row that may be elected for inspection on the emulator, if that occupies no device.

        The election would otherwise wait for seconds until a long kernel is emulated.
        """
        if not self._electable or not self._examiner.supports(InspectAhead):
            return
        fastest, *_ = self._electable
        if (self._ahead is None or self._ahead.done()) and fastest.row_id != self._seen_ahead:
            self._seen_ahead = fastest.row_id
            self._ahead = self._examiner.submit(InspectAhead(fastest.candidate))

    def start_sanitizer(self) -> None:
        """Starts the sanitizer ahead of the check of the leader, if that is still to come."""
        if self._electable or (self._leader is not None and self._leader.pending):
            self._promotion.start_sanitizer()

    def check_early(self) -> None:
        """Has the sanitizer check the leader while the search goes on; at most once."""
        if self.idle and not self._checked_early:
            self._checked_early = True
            self._promotion.begin(early=True)

    def conclude(self, *, overdue: bool = True) -> bool:
        """Elects the first champion, makes overdue challenges and has the sanitizer check the leader.

        Call it when no further challenger will enter.

        Args:
            overdue: Whether there is time for overdue challenges.

        Returns:
            Whether something is under way; call it again until nothing is.
        """
        self.elect()
        return not self.idle or (overdue and self._overdue.begin()) or self._promotion.begin()

    def cancel(self) -> None:
        """Drops unfinished challenges. Their rows stay in the ranking; leader and election are unchanged."""
        self._waiting.clear()
        self._drop_challenge()
        self._promotion.cancel()
        self._overdue.cancel()

    def step(self) -> None:
        """Takes finished jobs and starts the next challenge.

        Raises:
            DefectError: The gate passed a kernel that does nothing.
        """
        if self._rebuild is not None and self._rebuild.done():
            self._take_rebuild(self._rebuild)
        if self._duel is not None and self._duel.done():
            self._take_duel(self._duel)
        if self._inspection is not None and self._inspection.done():
            self._take_inspection(self._inspection)
        if self._promotion.step():
            self._reload_leader()
        overdue = self._overdue.step()
        if overdue is not None:
            self._waiting.append(overdue)
        while self._challenger is None and self._waiting and self._overdue.future is None:
            challenger = min(self._waiting, key=_time_and_age)
            self._waiting.remove(challenger)
            if self.may_challenge(challenger.median_us):
                self._begin(challenger)
            else:
                self._keep_too_slow(challenger)

    def _keep_too_slow(self, challenger: Challenger) -> None:
        """Keeps a challenger that is too slow for the leader, as long as the leader may yet be refused."""
        if self._leader is not None and self._leader.pending:
            self._too_slow = sorted((*self._too_slow, challenger), key=_time_and_age)[:_REMEMBERED]

    def _reload_leader(self) -> None:
        """Reads the leader after a check. If it was refused, the previous one leads again and can be challenged."""
        leader = self._board.leader(self._study.scope)
        refused = (leader and leader.id) != (self._leader and self._leader.id)
        self._leader = leader
        if not refused:
            return
        if self._challenger is not None:  # its opponent does not lead any more
            self._waiting.append(self._challenger)
            self._drop_challenge()
        self._leading = None if leader is None else self._promotion.candidate_of(leader.id)
        self._waiting, self._too_slow = [*self._waiting, *self._too_slow], []

    def _drop_challenge(self) -> None:
        for future in (self._duel, self._rebuild, self._inspection):
            if future is not None:
                future.cancel()
        self._rebuild = self._duel = self._inspection = self._challenger = None

    def _begin(self, challenger: Challenger) -> None:
        leader = self._leader
        if leader is None or leader.median_us is None:
            self._judge(challenger, None)
        elif leader.predicted:
            self._judge(challenger, judge_predictions(challenger.median_us, leader.median_us, self._threshold))
        elif self._leading is not None:
            self._challenger = challenger
            self._duel = self._examiner.submit(Challenge(challenger.candidate, self._leading))
        else:
            self._challenger = challenger
            self._rebuild = self._compiler.submit(Compile(leader.full_config))

    def _take_rebuild(self, done: Future[Compilation]) -> None:
        self._rebuild = None
        challenger, leader = self._challenger, self._leader
        if challenger is None or leader is None:
            return
        try:
            compilation = done.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            if self._challenges_again(challenger, error):
                return
            self._give_up(challenger, f"the champion, row {leader.id}, could not be built again: {error}")
            return
        candidate = compilation.candidate
        if candidate is None or candidate.code_hash != leader.code_hash:
            self._challenger = None
            self._judge(challenger, _duel_by_record(challenger.timing, leader, self._threshold))
        else:
            self._leading = candidate
            self._promotion.remember(leader.id, candidate)
            self._duel = self._examiner.submit(Challenge(challenger.candidate, candidate))

    def _take_duel(self, done: Future[Duel]) -> None:
        self._duel = None
        challenger = self._challenger
        if challenger is None:
            return
        try:
            duel = done.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            if not self._challenges_again(challenger, error):
                self._give_up(challenger, f"the duel was not finished: {error}")
            return
        self._challenger = None
        self._judge(challenger, duel)

    def _judge(self, challenger: Challenger, duel: Duel | None) -> None:
        """Starts the inspection of a challenger that won its duel, or that has no opponent."""
        if duel is not None and not duel.accepted:
            self._settle(challenger, duel)
            return
        self._challenger, self._evidence = challenger, duel
        self._inspection = self._examiner.submit(Inspect(challenger.candidate))

    def _take_inspection(self, done: Future[Inspection]) -> None:
        self._inspection = None
        challenger, duel = self._challenger, self._evidence
        if challenger is None:
            return
        try:
            inspection = done.result()
        except DefectError:
            raise
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            if not self._challenges_again(challenger, error):
                self._give_up(challenger, f"it was not inspected: {error}")
            return
        self._inspect_s += inspection.seconds
        store_inspection(self._board, challenger.row_id, inspection)
        self._challenger = None
        if inspection.finding:
            self._observer.notify(ChallengeRejected(challenger.row_id, duel, inspection.finding))
        else:
            self._settle(challenger, duel)

    def _challenges_again(self, challenger: Challenger, error: Exception) -> bool:
        """Whether the machine interrupted a challenge, which then starts over.

        Raises:
            MachineError: The machine does not recover.
        """
        fault = machine_fault(error)
        if fault is None:
            return False
        self._interrupted[challenger.row_id] += 1
        if self._interrupted[challenger.row_id] == _ATTEMPTS:
            raise fault
        self._challenger = None
        self._waiting.append(challenger)
        return True

    def _give_up(self, challenger: Challenger, reason: str) -> None:
        self._challenger = None
        self._observer.notify(ChallengeRejected(challenger.row_id, None, reason))

    def _settle(self, challenger: Challenger, duel: Duel | None) -> None:
        """Stores the outcome of a challenge, unless another search has replaced the leader meanwhile."""
        scope, pending = self._study.scope, self._promotion.required
        known = None if self._leader is None else self._leader.id
        if self._board.record_challenge(scope, challenger.row_id, known, duel, pending=pending):
            self._leader = self._board.leader(scope)
            self._leading = challenger.candidate
            if pending:
                self._promotion.remember(challenger.row_id, challenger.candidate)
            self._observer.notify(ChampionAccepted(challenger.row_id, challenger.median_us, duel, pending))
            return
        now = self._board.leader(scope)
        if (now and now.id) != known:  # the challenge starts over, against the new leader if there is one
            self._leader, self._leading = now, None
            self._waiting.append(challenger)
        else:
            self._keep_too_slow(challenger)
            self._observer.notify(ChallengeRejected(challenger.row_id, duel, ""))


def _time_and_age(challenger: Challenger) -> tuple[float, int]:
    """Sort key of challengers: the fastest first, of equal ones the oldest."""
    return challenger.median_us, challenger.row_id


def _duel_by_record(challenger: Timing, champion: Row, threshold: float) -> Duel:
    """Judges a challenge by stored times, where the champion cannot run again.

    Stored times are not interleaved pairs, so the requirement is stricter: even the worst case of both confidence
    intervals must be a gain of the threshold.

    Args:
        challenger: Time of the challenger.
        champion: Stored row of the champion.
        threshold: Minimum relative speed-up needed to replace the champion.
    """
    champion_us = champion.median_us or challenger.median_us
    champion_low_us = champion.low_us or champion_us
    gain = 1 - challenger.median_us / champion_us
    low_gain = 1 - challenger.high_us / champion_low_us
    return Duel((challenger.median_us,), (champion_us,), gain, low_gain, threshold, low_gain >= threshold)
