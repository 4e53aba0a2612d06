"""The loop: ask, compile, examine, record, crown, tell; compiling runs ahead of the device.

One thread, no locks: it hands work to two services and reacts to the futures that they return. A candidate is leased
in the store before it is compiled and recorded before the strategy hears of it, so that a killed search loses only
what was under way, and that is proposed again by the next one, which ends with the same set of evaluations (see
:mod:`evoengine.search.strategies.strategy`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from evoengine.errors import CandidateError, EvoEngineError, StoreError, WorkerCrashError
from evoengine.leaderboard.records import LeaseStatus, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Evaluation, Status
from evoengine.search.candidate.crashes import CrashWatch
from evoengine.search.candidate.evaluate import Compilation, Examination, conclude, status_of
from evoengine.search.candidate.services import CompileService, ExamineService
from evoengine.search.candidate.worker_loss import WorkerLossReporter
from evoengine.search.champion.championship import Challenger, Championship
from evoengine.search.events import (
    Compiled,
    Examined,
    Finished,
    Observer,
    Proposed,
    Recorded,
    SilentObserver,
    Started,
    Stopping,
)
from evoengine.search.interrupt import on_first_interrupt
from evoengine.search.scheduling import Schedule
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.strategies.strategy import Proposal, Strategy
from evoengine.search.study_state import StudyState
from evoengine.search.wait_first import FirstCompleted

_TICK_S: Final = 0.2
"""How often the loop looks up from waiting: at the clock, at Ctrl-C, at what other processes did."""


@dataclass(frozen=True)
class _Candidate:
    """A proposal that came through the compiler."""

    proposal: Proposal
    compilation: Compilation

    @property
    def code_hash(self) -> str:
        binary = self.compilation.binary
        return binary.code_hash if binary else ""


class Search:
    """One search on one study. Build it, :meth:`run` it once.

    Args:
        settings: budget and the rest.
        board: where everything is recorded.
        study: the study that this search begins or resumes.
        strategy: proposes configs; made with the study's history (see :func:`evoengine.search.warmstart.resume.start_strategy`).
        compiler: compiles configs.
        examiner: judges and times kernels.
        observer: hears of everything.
        clock: seconds that only grow; the time limit is counted on it.
    """

    def __init__(
        self,
        settings: SearchSettings,
        board: Leaderboard,
        study: Study,
        strategy: Strategy,
        compiler: CompileService,
        examiner: ExamineService,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._board = board
        self._study = study
        self._strategy = strategy
        self._compiler = compiler
        self._examiner = examiner
        self._observer: Observer = observer or SilentObserver()
        self._ledger = StudyState(board, study, settings.budget, clock)
        self._championship = Championship(board, study, settings.accept_threshold, compiler, examiner, self._observer)
        self._compiling: dict[Future[Compilation], Proposal] = {}
        self._ready: list[tuple[int, _Candidate]] = []
        self._examining: dict[Future[Examination], _Candidate] = {}
        self._twins: dict[str, list[_Candidate]] = {}
        self._held: Proposal | None = None
        self._waiting = FirstCompleted()
        self._last_number = sys.maxsize
        self._pace = Schedule.of(settings, compiler.workers, examiner.workers)
        self._compiler_crashes = CrashWatch("the compiler")
        self._device_crashes = CrashWatch("candidates")
        self._losses = WorkerLossReporter(compiler, examiner, self._observer)
        self._exhausted = False
        self._interrupted = False
        self._cpu_start_s = time.thread_time()

    def request_stop(self) -> None:
        """Asks the loop to begin nothing new and to end soon; safe to call from a signal handler."""
        self._interrupted = True

    def run(self) -> SearchResult:
        """Searches until the budget is reached, the space is exhausted, time is up, or someone asks it to stop.

        What was under way when an error ends it is given back: the next search on the study tries it again.

        Raises:
            StoreError: the leaderboard cannot be written any more; what was recorded stays.
            WorkersLostError: no device, or no compiler, comes back.
            DefectError: all candidates crash alike.
            EvoEngineError: the device or the compiler cannot work at all.
        """
        try:
            with on_first_interrupt(self.request_stop):
                stop = self._search()
        finally:
            self._abandon()
            with suppress(StoreError):  # an error that is under way says more; the next search repairs what is left
                self._board.release_leases(self._study)
                self._strategy.close()
        result = self._result(stop)
        self._observer.notify(Finished(result))
        return result

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _search(self) -> StopReason:
        self._observer.notify(Started(self._ledger.progress(0), self._adopt()))
        while True:
            stop = self._stop_reason()
            if stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT):
                self._drain(stop)
                return stop
            if stop is not None and not self._busy:
                self._settle_crashes()
                if not self._championship.conclude():
                    return stop
            if stop is None:
                self._propose()
            self._start_examinations()
            self._await_something()

    def _adopt(self) -> int:
        """Takes over what searches that died have left undone; returns how much that is."""
        self._board.adopt_orphans(self._study)
        undone = self._board.leased(self._study)
        self._strategy.resume(undone)
        return len(undone)

    def _stop_reason(self) -> StopReason | None:
        deadline_s = self._settings.deadline_s
        if self._interrupted:
            return StopReason.INTERRUPTED
        if deadline_s is not None and self._ledger.elapsed_s >= deadline_s:
            return StopReason.TIME_LIMIT
        if self._ledger.evaluated >= self._settings.budget:
            return StopReason.BUDGET_REACHED
        return StopReason.SPACE_EXHAUSTED if self._exhausted else None

    @property
    def _in_flight(self) -> int:
        return len(self._compiling) + len(self._ready) + len(self._examining) + sum(map(len, self._twins.values()))

    @property
    def _busy(self) -> bool:
        return self._in_flight > 0 or not self._championship.idle

    def _propose(self) -> None:
        """Keeps the compiler busy, but asks no further ahead than needed: a later proposal is a wiser one.

        Proposals that can know of no outcome are made at once: they are compiled while the device gets ready.
        """
        pace = self._pace
        while self._in_flight < pace.limit or self._last_number < pace.at_once - 1:
            proposal = self._held or self._strategy.ask(pace.lag, pace.head)
            self._held = None
            if proposal is None:
                self._exhausted = self._strategy.exhausted
                return
            self._last_number = proposal.number
            lease = self._board.acquire_lease(
                self._study, proposal.config, self._settings.budget, proposal.number, proposal.descent
            )
            if lease is LeaseStatus.BUDGET_FULL:
                self._held = proposal  # a duplicate under way may free its place again
                return
            if lease is LeaseStatus.TAKEN:
                self._strategy.discard(proposal)
                continue
            self._observer.notify(Proposed(proposal.config, proposal.number))
            self._compiling[self._compiler.submit(proposal.config)] = proposal

    def _start_examinations(self) -> None:
        """As many kernels as there are workers wait for one, so that none of these ever waits for this thread.

        The oldest proposal comes first: what may be proposed next depends on all outcomes up to a number.
        """
        while self._ready and len(self._examining) < 2 * self._examiner.workers:
            _, candidate = heappop(self._ready)
            kernel = candidate.compilation.kernel
            twin, killer = self._ledger.twin_of(candidate.code_hash), self._ledger.killer(candidate.code_hash)
            if twin is not None:
                self._finish_duplicate(candidate, twin)
            elif killer:
                refused = Examination(Status.CRASHED, killer)
                self._finish(candidate.proposal, conclude(candidate.compilation, refused))
            elif candidate.code_hash and candidate.code_hash in self._twins:
                self._twins[candidate.code_hash].append(candidate)
            elif kernel is not None:
                self._twins[candidate.code_hash] = []
                self._examining[self._examiner.submit(kernel, self._championship.median_us)] = candidate

    def _await_something(self) -> None:
        futures = {*self._compiling, *self._watched()}
        done = {future for future in futures if future.done()}
        if not done:
            self._strategy.flush()  # there is time for it now
            done = self._wait(futures, _TICK_S)
        if not futures:
            self._settle_crashes()  # nothing can come that would tell more about them
            if self._held is not None:
                self._wait_for_others()
        self._take(done)
        self._losses.tell()

    def _watched(self) -> set[Future[Any]]:
        """What the device works on."""
        return {*self._examining, *self._championship.futures}

    def _wait(self, futures: set[Future[Any]], timeout_s: float) -> set[Future[Any]]:
        return self._waiting.first(futures, timeout_s) if futures else set()

    def _wait_for_others(self) -> None:
        """Other searches on this study hold the rest of the budget: looks whether they finished, or died."""
        self._board.release_leases(self._study)  # nothing is under way: own leases only block the budget
        if self._ledger.evaluated_now() < self._settings.budget:
            self._adopt()
            time.sleep(_TICK_S)

    def _take(self, done: set[Future[Any]]) -> None:
        for future in [future for future in (*self._compiling, *self._examining) if future in done]:  # oldest first
            if future in self._compiling:
                self._take_compilation(future, self._compiling.pop(future))
            elif future in self._examining:
                self._take_examination(future, self._examining.pop(future))
        if self._pace.stand_by <= self._ledger.evaluated:
            self._championship.stand_by()
        if self._pace.early_look <= self._ledger.evaluated < self._settings.budget:
            self._championship.look_early()
        self._championship.step()

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _take_compilation(self, future: Future[Compilation], proposal: Proposal) -> None:
        try:
            compilation = future.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            reason = f"the compiler was lost: {_candidates_fault(error)}"
            self._observer.notify(Compiled(proposal.config, Status.COMPILE_FAILED))
            failed = conclude(Compilation(proposal.config, Status.COMPILE_FAILED, reason))
            self._strategy.tell_provisional(proposal, None, failed.status)
            self._compiler_crashes.crashed(reason, partial(self._finish, proposal, failed))
            return
        self._compiler_crashes.worked()
        self._observer.notify(Compiled(proposal.config, compilation.status))
        candidate = _Candidate(proposal, compilation)
        if compilation.kernel is not None:
            heappush(self._ready, (proposal.number, candidate))
            return
        twin = self._ledger.twin_of(candidate.code_hash, fits=False)
        if twin is not None:
            self._finish_duplicate(candidate, twin)
        else:
            self._finish(proposal, conclude(compilation))

    def _take_examination(self, future: Future[Examination], candidate: _Candidate) -> None:
        try:
            examination = future.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            fault = _candidates_fault(error)
            examination = Examination(status_of(fault), str(fault))
        self._observer.notify(Examined(candidate.proposal.config, examination.status))
        evaluation = conclude(candidate.compilation, examination)
        if evaluation.status is Status.CRASHED:
            self._strategy.tell_provisional(candidate.proposal, None, evaluation.status)
            self._device_crashes.crashed(evaluation.reason, partial(self._finish_examined, candidate, evaluation))
        else:
            self._device_crashes.worked()
            self._finish_examined(candidate, evaluation)

    def _finish_examined(self, candidate: _Candidate, evaluation: Evaluation) -> None:
        row_id = self._finish(candidate.proposal, evaluation)
        for twin in self._twins.pop(candidate.code_hash, []):
            self._finish_duplicate(twin, evaluation)
        kernel, timing = candidate.compilation.kernel, evaluation.timing
        if evaluation.ok and kernel is not None and timing is not None:
            self._championship.enter(Challenger(row_id, timing, kernel))

    def _settle_crashes(self) -> None:
        self._compiler_crashes.settle()
        self._device_crashes.settle()

    def _finish_duplicate(self, candidate: _Candidate, first: Evaluation) -> None:
        evaluation = replace(
            conclude(replace(candidate.compilation, status=Status.DUPLICATE)),
            reason=f"same machine code as config {first.config.key}",
            duplicate_of=first.config.key,
        )
        self._finish(candidate.proposal, evaluation, value_of=first)

    def _finish(self, proposal: Proposal, evaluation: Evaluation, value_of: Evaluation | None = None) -> int:
        """Records first, tells afterwards: what the strategy knows is always in the store."""
        row_id = self._ledger.record(evaluation, proposal.number)
        self._strategy.tell(proposal, (value_of or evaluation).value_us, evaluation.status, row_id)
        self._observer.notify(Recorded(row_id, evaluation, self._ledger.progress(self._in_flight)))
        return row_id

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self, reason: StopReason) -> None:
        """Drops what no device has begun, and gives the rest, and the inspection of who leads, a little time."""
        self._observer.notify(Stopping(reason.value, len(self._examining)))
        self._ready.clear()
        for future in list(self._compiling):
            future.cancel()
        self._compiling.clear()
        for waiting in [future for future in self._examining if future.cancel()]:
            del self._examining[waiting]
        deadline_s = time.monotonic() + self._settings.drain_s
        while self._examining or self._championship.futures:
            late = time.monotonic() >= deadline_s  # then it looks once more: what is done is kept
            self._take(self._wait(self._watched(), _TICK_S))
            if late:
                break
        self._settle_crashes()
        self._championship.cancel()
        if reason is StopReason.TIME_LIMIT:  # somebody who waits; after Ctrl-C somebody who wants to go
            deadline_s = time.monotonic() + self._settings.confirm_s
        while time.monotonic() < deadline_s and self._championship.conclude():
            self._take(self._wait(self._watched(), _TICK_S))
        self._championship.cancel()

    def _abandon(self) -> None:
        """Cancels whatever an error left under way."""
        for future in {*self._compiling, *self._watched()}:
            future.cancel()
        self._championship.cancel()

    def _result(self, stop: StopReason) -> SearchResult:
        progress = self._ledger.progress(0)
        stage_seconds, inspect_s = dict(self._ledger.stage_seconds), self._championship.inspect_seconds
        leader = self._board.leader(self._study.scope)
        return SearchResult(
            stop=stop,
            progress=progress,
            champion=self._board.champion(self._study.scope),
            leader=leader if leader is not None and leader.pending else None,
            elites=tuple(self._board.elites(self._study, self._settings.elite_k)),
            stage_seconds=stage_seconds | ({"inspect": inspect_s} if inspect_s else {}),
            overhead_s=time.thread_time() - self._cpu_start_s,
            devices=self._examiner.workers,
            lost=self._examiner.lost,
            measurements=self._ledger.measurements,
        )


def _candidates_fault(error: Exception) -> CandidateError:
    """The error of a candidate that took its worker down.

    Raises:
        EvoEngineError: the error is not about a candidate: no device, no compiler, no store.
    """
    if isinstance(error, CandidateError):
        return error
    if isinstance(error, EvoEngineError):
        raise error
    return WorkerCrashError(str(error))
