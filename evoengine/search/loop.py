"""The search loop: ask, compile, examine, record, challenge, tell; compilations run ahead of the device.

The loop also decides the status of a candidate whose worker died or exceeded its deadline.

One thread, no locks: it submits jobs to two services and reacts to the futures that they return. A candidate is leased
in the leaderboard before it is compiled, and recorded before it is reported to the strategy, so that a killed search
loses only what was under way. The next search proposes that again and ends with the same set of evaluations (see
:mod:`evoengine.search.strategies.strategy`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from evoengine.errors import CandidateError, EvoEngineError, StoreError, WorkerCrashError
from evoengine.leaderboard.records import LeaseStatus, Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Evaluation, Status
from evoengine.search.candidate.crash_attribution import CrashWatch
from evoengine.search.candidate.jobs import Compile, Examine, JobService
from evoengine.search.candidate.machine_retry import MachineRetries
from evoengine.search.candidate.results import Compilation, Examination, conclude
from evoengine.search.champion.challenger import Challenger
from evoengine.search.champion.championship import Championship
from evoengine.search.champion.standing import standing_of
from evoengine.search.events import (
    Compiled,
    Examined,
    Finished,
    Observer,
    Postponed,
    Proposed,
    Recorded,
    SilentObserver,
    Started,
    Stopping,
    WorkerLost,
)
from evoengine.search.scheduling import Schedule
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.strategies.strategy import Proposal, Strategy
from evoengine.search.study_state import StudyState
from evoengine.search.work_estimates import WorkEstimates
from evoengine.system.machine_faults import machine_fault
from evoengine.system.stop_signals import on_stop_signal

_TICK_S: Final = 0.2
"""Longest wait between checks of the clock, of Ctrl-C and of other processes."""


@dataclass(frozen=True)
class _Trial:
    """A proposal and its compilation."""

    proposal: Proposal
    compilation: Compilation

    @property
    def code_hash(self) -> str:
        return self.compilation.code_hash


class Search:
    """One search on one study; :meth:`run` it once.

    Args:
        settings: Budget and other settings.
        board: Leaderboard that records everything.
        study: Study that this search begins or resumes.
        strategy: Source of proposals, made with the study's history
            (see :func:`evoengine.search.warmstart.resume.start_strategy`).
        compiler: Service for compilations.
        examiner: Service for all jobs on the device.
        observer: Receiver of all events.
        clock: Monotonic clock in seconds, for the time limit.
    """

    def __init__(
        self,
        settings: SearchSettings,
        board: Leaderboard,
        study: Study,
        strategy: Strategy,
        compiler: JobService,
        examiner: JobService,
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
        self._state = StudyState(board, study, settings.budget, clock)
        self._championship = Championship(
            board,
            study,
            settings.accept_threshold,
            compiler,
            examiner,
            self._observer,
            elects_first=settings.elects_first,
        )
        self._estimates = WorkEstimates(examiner, self._observer)
        self._compiling: dict[Future[Compilation], Proposal] = {}
        self._ready: list[tuple[int, _Trial]] = []
        self._examining: dict[Future[Examination], _Trial] = {}
        self._awaiting_twin: dict[str, list[_Trial]] = {}
        self._held: Proposal | None = None
        self._last_proposed = sys.maxsize
        self._schedule = Schedule.of(settings, compiler.workers, examiner.workers)
        self._compiler_crashes = CrashWatch("the compiler")
        self._device_crashes = CrashWatch("candidates")
        self._retries = MachineRetries()
        self._reported_losses: set[str] = set()
        self._exhausted = False
        self._interrupted = False
        self._cpu_start_s = time.thread_time()

    def request_stop(self) -> None:
        """Makes the loop end soon and begin nothing new; safe to call from a signal handler."""
        self._interrupted = True

    def run(self) -> SearchResult:
        """Searches until the budget is reached, the space is exhausted, time is up, or a stop is requested.

        When an error ends the search, the leases of what was under way are released: the next search on the study tries
        it again.

        Raises:
            StoreError: The leaderboard cannot be written any more; what was recorded stays.
            WorkersLostError: No device, or no compiler, comes back.
            DefectError: All candidates crash with the same reason.
            MachineError: Memory, disk or another resource of this machine stays short.
            EvoEngineError: The device or the compiler cannot work at all.
        """
        try:
            with on_stop_signal(self.request_stop, once=True):
                stop = self._search()
        finally:
            self._abandon()
            with suppress(StoreError):  # an error that is being raised matters more; the next search repairs the rest
                self._board.release_leases(self._study)
            with suppress(StoreError):
                self._strategy.close()
        result = self._result(stop)
        self._observer.notify(Finished(result))
        return result

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _search(self) -> StopReason:
        self._observer.notify(Started(self._state.progress(0), self._adopt()))
        while True:
            stop = self._stop_reason()
            if stop in (StopReason.INTERRUPTED, StopReason.TIME_LIMIT):
                self._drain(stop)
                return stop
            if stop is not None and not self._busy:
                self._settle_crashes()
                if not self._championship.conclude():
                    return stop
            self._retries.run_due()
            self._start_examinations()
            if stop is None:
                self._propose()
            self._await_something()

    def _adopt(self) -> int:
        """Takes over the leases of dead searches; returns their number."""
        self._board.adopt_orphans(self._study)
        undone = self._board.leased(self._study)
        self._strategy.resume(undone)
        return len(undone)

    def _stop_reason(self) -> StopReason | None:
        deadline_s = self._settings.deadline_s
        if self._interrupted:
            return StopReason.INTERRUPTED
        if deadline_s is not None and self._state.elapsed_s >= deadline_s:
            return StopReason.TIME_LIMIT
        if self._state.evaluated >= self._settings.budget:
            return StopReason.BUDGET_REACHED
        return StopReason.SPACE_EXHAUSTED if self._exhausted else None

    @property
    def _in_flight(self) -> int:
        under_way = len(self._compiling) + len(self._ready) + len(self._examining) + len(self._retries)
        return under_way + sum(map(len, self._awaiting_twin.values()))

    @property
    def _busy(self) -> bool:
        return self._in_flight > 0 or not self._championship.idle

    def _propose(self) -> None:
        """Keeps the compiler busy, but asks no further ahead than needed: later proposals can use more outcomes.

        Proposals that cannot depend on any outcome are made at once: they are compiled while the device starts. Another
        one can take a tenth of a second, so the results that wait are taken after each.
        """
        schedule = self._schedule
        while self._has_place(self._last_proposed + 1):
            proposal = self._held or self._strategy.ask(schedule.lag, schedule.head)
            self._held = None
            if proposal is None:
                self._exhausted = self._strategy.exhausted
                return
            self._last_proposed = proposal.number
            lease = self._board.acquire_lease(
                self._study, proposal.config, self._settings.budget, proposal.number, proposal.provenance
            )
            if lease is LeaseStatus.BUDGET_FULL:
                self._held = proposal  # a duplicate under way may free its place again
                return
            if lease is LeaseStatus.TAKEN:
                self._strategy.discard(proposal)
                continue
            self._observer.notify(Proposed(proposal.config, proposal.number))
            self._compile(proposal)
            if proposal.number >= schedule.head and any(future.done() for future in self._jobs()):
                return

    def _has_place(self, number: int) -> bool:
        """Whether the proposal of a trial may be made now."""
        schedule = self._schedule
        if self._in_flight >= schedule.in_flight(number):
            return False
        return number < schedule.head or len(self._compiling) < schedule.compiling

    def _compile(self, proposal: Proposal) -> None:
        self._compiling[self._compiler.submit(Compile(proposal.config))] = proposal

    def _examine(self, trial: _Trial) -> None:
        candidate = trial.compilation.candidate
        assert candidate is not None, "only a candidate that compiled is examined"
        self._estimates.begin(candidate)
        self._examining[self._examiner.submit(Examine(candidate, self._championship.median_us))] = trial

    def _start_examinations(self) -> None:
        """Keeps some candidates per device worker submitted, so that no worker waits for this thread.

        The oldest proposal comes first: what may be proposed next depends on all outcomes up to a number.
        """
        while self._ready and len(self._examining) < self._settings.submitted * self._examiner.workers:
            _, trial = heappop(self._ready)
            candidate = trial.compilation.candidate
            twin, crash_reason = self._state.twin_of(trial.code_hash), self._state.crash_reason(trial.code_hash)
            if twin is not None:
                self._finish_duplicate(trial, twin)
            elif crash_reason:
                refused = Examination(Status.CRASHED, crash_reason)
                self._finish(trial.proposal, conclude(trial.compilation, refused))
            elif trial.code_hash and trial.code_hash in self._awaiting_twin:
                self._awaiting_twin[trial.code_hash].append(trial)
            elif candidate is not None:
                self._awaiting_twin[trial.code_hash] = []
                self._examine(trial)

    def _await_something(self) -> None:
        futures = {*self._jobs(), *self._strategy.awaited}
        done = {future for future in futures if future.done()}
        if not done:
            self._strategy.flush()  # there is time for it now
            done = wait(futures, _TICK_S, FIRST_COMPLETED).done
        if not futures and len(self._retries):
            time.sleep(_TICK_S)
        elif not futures:
            self._settle_crashes()  # no outcome can follow that would change their attribution
            if self._held is not None:
                self._wait_for_others()
        self._take(done)
        self._report_losses()

    def _report_losses(self) -> None:
        """Reports each worker that was given up, once; the search continues with the others."""
        for reason in (*self._compiler.lost, *self._examiner.lost):
            if reason not in self._reported_losses:
                self._reported_losses.add(reason)
                self._observer.notify(WorkerLost(reason))

    def _jobs(self) -> set[Future[Any]]:
        return {*self._compiling, *self._watched()}

    def _watched(self) -> set[Future[Any]]:
        """Jobs of the examiner."""
        return {*self._examining, *self._estimates.futures, *self._championship.futures}

    def _wait_for_others(self) -> None:
        """Waits while other searches on this study hold the rest of the budget; adopts the leases of dead ones."""
        self._board.release_leases(
            self._study
        )  # nothing is under way here, so no lease of this search may block another
        if self._state.evaluated_now() < self._settings.budget:
            self._adopt()
            time.sleep(_TICK_S)

    def _take(self, done: set[Future[Any]]) -> None:
        self._estimates.step()  # a slow family is reported before its first candidates are
        for future in [future for future in (*self._compiling, *self._examining) if future in done]:  # oldest first
            if future in self._compiling:
                self._take_compilation(future, self._compiling.pop(future))
            elif future in self._examining:
                self._take_examination(future, self._examining.pop(future))
        if self._schedule.inspect_ahead_after <= self._state.evaluated:
            self._championship.inspect_ahead()
        if self._schedule.start_sanitizer_after <= self._state.evaluated:
            self._championship.start_sanitizer()
        if self._schedule.elect_after <= self._state.evaluated < self._settings.budget:
            self._championship.elect()
            self._championship.check_early()
        self._championship.step()

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _take_compilation(self, future: Future[Compilation], proposal: Proposal) -> None:
        """Takes a compilation; a compiler that died or exceeded its deadline makes the candidate COMPILE_FAILED."""
        key = proposal.config.key
        try:
            compilation = future.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            if self._postponed(key, error, partial(self._compile, proposal)):
                return
            self._retries.succeeded(key)
            reason = f"the compiler was lost: {_candidates_fault(error)}"
            self._observer.notify(Compiled(proposal.config, Status.COMPILE_FAILED))
            failed = conclude(Compilation(proposal.config, Status.COMPILE_FAILED, reason))
            self._strategy.tell_provisional(proposal, failed.status)
            self._compiler_crashes.crashed(reason, partial(self._finish, proposal, failed))
            return
        self._retries.succeeded(key)
        self._compiler_crashes.worked()
        self._observer.notify(Compiled(proposal.config, compilation.status))
        trial = _Trial(proposal, compilation)
        if compilation.candidate is not None:
            heappush(self._ready, (proposal.number, trial))
            return
        twin = self._state.twin_of(trial.code_hash, fits=compilation.status is not Status.RESOURCE_LIMIT)
        if twin is not None:
            self._finish_duplicate(trial, twin)
        else:
            self._finish(proposal, conclude(compilation))

    def _take_examination(self, future: Future[Examination], trial: _Trial) -> None:
        """Takes an examination; a device worker that died or exceeded its deadline gives the status of its error."""
        key = trial.proposal.config.key
        try:
            examination = future.result()
        except Exception as error:  # noqa: BLE001 - a worker may die of anything
            if self._postponed(key, error, partial(self._examine, trial)):
                return
            fault = _candidates_fault(error)
            examination = Examination(fault.status, str(fault))
        self._retries.succeeded(key)
        self._observer.notify(Examined(trial.proposal.config, examination.status))
        evaluation = conclude(trial.compilation, examination)
        if evaluation.status is Status.CRASHED:
            self._strategy.tell_provisional(trial.proposal, evaluation.status)
            self._device_crashes.crashed(evaluation.reason, partial(self._finish_examined, trial, evaluation))
        else:
            self._device_crashes.worked()
            self._finish_examined(trial, evaluation)

    def _postponed(self, key: str, error: Exception, retry: Callable[[], object]) -> bool:
        """Whether the machine failed, so that the candidate is tried again later.

        Raises:
            MachineError: The machine does not recover.
        """
        fault = machine_fault(error)
        if fault is None:
            return False
        pause_s = self._retries.postpone(key, fault, retry)
        self._observer.notify(Postponed(key, str(fault), pause_s))
        return True

    def _finish_examined(self, trial: _Trial, evaluation: Evaluation) -> None:
        row_id = self._finish(trial.proposal, evaluation)
        for duplicate in self._awaiting_twin.pop(trial.code_hash, []):
            self._finish_duplicate(duplicate, evaluation)
        candidate, timing = trial.compilation.candidate, evaluation.timing
        if evaluation.ok and candidate is not None and timing is not None:
            self._championship.enter(Challenger(row_id, timing, candidate))

    def _settle_crashes(self) -> None:
        self._compiler_crashes.settle()
        self._device_crashes.settle()

    def _finish_duplicate(self, trial: _Trial, first: Evaluation) -> None:
        evaluation = replace(
            conclude(replace(trial.compilation, status=Status.DUPLICATE)),
            reason=f"same machine code as config {first.config.key}",
            duplicate_of=first.config.key,
        )
        self._finish(trial.proposal, evaluation, value_of=first)

    def _finish(self, proposal: Proposal, evaluation: Evaluation, value_of: Evaluation | None = None) -> int:
        """Records an evaluation, then reports it to the strategy, which thus uses only outcomes in the leaderboard."""
        row_id = self._state.record(evaluation, proposal.number)
        self._strategy.tell(proposal, (value_of or evaluation).value_us, evaluation.status, row_id)
        self._observer.notify(Recorded(row_id, evaluation, self._state.progress(self._in_flight)))
        return row_id

    # -- the end ------------------------------------------------------------------------------------------------------

    def _drain(self, reason: StopReason) -> None:
        """Drops what no device has begun; the rest, and the check of the leader, get a little time to finish."""
        self._observer.notify(Stopping(reason.value, len(self._examining)))
        self._ready.clear()
        self._retries.clear()
        for future in list(self._compiling):
            future.cancel()
        self._compiling.clear()
        for waiting in [future for future in self._examining if future.cancel()]:
            del self._examining[waiting]
        deadline_s = time.monotonic() + self._settings.drain_s
        while self._examining or self._championship.futures:
            late = time.monotonic() >= deadline_s  # then one last look: finished jobs are kept
            self._take(wait(self._watched(), _TICK_S, FIRST_COMPLETED).done)
            self._retries.clear()
            if late:
                break
        self._compiler_crashes.stop()
        self._device_crashes.stop()
        self._championship.cancel()
        patient = reason is StopReason.TIME_LIMIT  # after Ctrl-C the user does not want to wait
        if patient:
            deadline_s = time.monotonic() + self._settings.confirm_s
        while time.monotonic() < deadline_s and self._championship.conclude(overdue=patient):
            self._take(wait(self._watched(), _TICK_S, FIRST_COMPLETED).done)
        self._championship.cancel()

    def _abandon(self) -> None:
        """Cancels what an error left under way."""
        for future in self._jobs():
            future.cancel()
        self._championship.cancel()

    def _result(self, stop: StopReason) -> SearchResult:
        progress = self._state.progress(0)
        stage_seconds, inspect_s = dict(self._state.stage_seconds), self._championship.inspect_seconds
        leader = self._board.leader(self._study.scope)
        standing = standing_of(self._board, self._study.scope, self._state.best_new_id, self._settings.accept_threshold)
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
            measurements=self._state.measurements,
            best=standing.best,
            difference=standing.difference,
            accept_threshold=self._settings.accept_threshold,
        )


def _candidates_fault(error: Exception) -> CandidateError:
    """Returns the error of a candidate that crashed its worker.

    Raises:
        EvoEngineError: The error is not a candidate's: no device, no compiler, no leaderboard.
    """
    if isinstance(error, CandidateError):
        return error
    if isinstance(error, EvoEngineError):
        raise error
    return WorkerCrashError(str(error))
