"""One worker's place in a pool, and the thread that keeps it filled: feeds the worker, watches it, replaces it."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from evoengine.device.workers.fork_server import ForkServer, StalledError, Worker
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.task import Task, TaskOutcome, believed, settle
from evoengine.device.workers.wire import WireError
from evoengine.device.workers.worker_main import CHECK, OPEN, MethodCall
from evoengine.errors import (
    CandidateError,
    CandidateTimeoutError,
    EvoEngineError,
    WorkerCrashError,
    WorkersLostError,
)

MAX_DEATHS: Final = 2
"""Workers that one call may cost. The first may have died of something else; nobody dies twice by chance."""

KILLER: Final = "killed its worker twice"
"""Begins what is told of a call that cost so many."""
_JOIN_S: Final = 30.0
_STOPPED: Final = "the search was stopped"


@dataclass(frozen=True)
class Care:
    """How a pool looks after its workers."""

    spares: int = 0
    """1 keeps a worker ready beside each one that works, so that a loss costs no start."""
    attempts: int = 4
    """Fresh workers that may fail one after the other before their place is given up."""
    pause_s: float = 0.5
    """Before the second attempt; twice as long before each further one."""
    start_timeout_s: float = 180.0
    """A worker that is not ready by then (imports, GPU context) has failed."""
    check_timeout_s: float = 120.0
    """Likewise one whose check of the device takes longer."""


class Roster:
    """The slots of a pool that are still in use. Safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()
        self._lost: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """Of each slot that was given up: which, and why."""
        return self._lost

    def leave(self, reason: str) -> bool:
        """A slot is given up; says whether it was the last one."""
        with self._lock:
            self._left -= 1
            self._lost += (reason,)
            return self._left == 0


class Slot:
    """A worker and its thread.

    Args:
        tasks: what the pool has to do; None for each slot at its end.
        nursery: makes workers.
        roster: told when the slot is given up.
        name: of its workers.
        care: how it looks after them.
        place: where they run.
    """

    def __init__(
        self,
        tasks: queue.SimpleQueue[Task | None],
        nursery: ForkServer,
        roster: Roster,
        name: str,
        care: Care,
        place: GpuBinding,
    ) -> None:
        self._tasks = tasks
        self._nursery = nursery
        self._roster = roster
        self._name = name
        self._care = care
        self._place = place
        self._stop = threading.Event()
        self._worker: Worker | None = None
        self._spare: Worker | None = None
        self._note = ""
        self._proven = False
        self._calls = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; the pool kills the workers."""
        self._stop.set()

    def join(self) -> None:
        """Waits for the thread."""
        self._thread.join(_JOIN_S)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failure = self._fill()
        if failure is not None and not self._give_up(failure):
            return
        while not self._stop.is_set():
            task = self._tasks.get()
            if task is None:
                break
            if not task.future.running() and not task.future.set_running_or_notify_cancel():
                continue
            if self._stop.is_set():
                task.future.set_exception(WorkerCrashError(_STOPPED))
            elif failure is not None:
                task.future.set_exception(failure)
            else:
                failure = self._work(task)
                if failure is not None and not self._give_up(failure):
                    return

    def _give_up(self, failure: EvoEngineError) -> bool:
        """Leaves the work to the other slots; True when there are none, so that somebody must tell the callers."""
        told = str(failure) if isinstance(failure, WorkersLostError) else self._place.lost(str(failure))
        if self._stop.is_set() or self._roster.leave(told):
            return True
        self._stop.wait()  # the thread that started the nursery must not end before the pool does
        return False

    def _work(self, task: Task) -> EvoEngineError | None:
        """Does one task, if need be in a second worker; says why the slot cannot go on."""
        deaths = list(task.deaths)
        while True:
            outcome = self._call(task)
            if outcome.died:
                deaths.append(outcome.died)
                if len(deaths) == MAX_DEATHS:
                    how = " and then ".join(dict.fromkeys(deaths))
                    outcome = replace(outcome, error=WorkerCrashError(f"{KILLER}: {how}"))
            final = not outcome.died or len(deaths) == MAX_DEATHS or self._stop.is_set()
            if final:
                settle(task.future, outcome)
            if outcome.keep:
                return None
            failure = self._fill()
            if failure is not None and not final:
                again = replace(task, deaths=tuple(deaths))
                self._tasks.put(again)  # nobody knows whether it was to blame: another slot may try it, or none
            if failure is not None or final:
                return failure

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, task: Task) -> TaskOutcome:
        """One call in the worker that is there."""
        assert self._worker is not None
        self._calls += 1
        call = MethodCall(self._calls, task.method, task.args, task.tag)
        try:
            self._worker.send(call)
        except OSError:
            return self._death()
        except StalledError:
            return TaskOutcome(error=CandidateTimeoutError("its worker does not take calls any more"), keep=False)
        except Exception as error:  # noqa: BLE001 - pickling runs code of what is pickled; nothing was sent
            return TaskOutcome(error=WorkerCrashError(f"cannot send the call to a worker: {error}"))
        return self._answer(call, task)

    def _answer(self, call: MethodCall, task: Task) -> TaskOutcome:
        """What the worker says to a call that was sent."""
        assert self._worker is not None
        try:
            data = self._worker.receive(task.timeout_s)
        except (EOFError, OSError):
            return self._death()
        except StalledError:
            data = None
        if data is None:
            return TaskOutcome(error=CandidateTimeoutError(f"not finished after {task.timeout_s:.3g} s"), keep=False)
        try:
            return believed(data, call, task)
        except WireError as error:
            return TaskOutcome(error=WorkerCrashError(f"its worker gave a malformed answer: {error}"), keep=False)

    def _death(self) -> TaskOutcome:
        how = self._empty()
        if self._stop.is_set():
            return TaskOutcome(error=WorkerCrashError(_STOPPED), keep=False, died=_STOPPED)
        how = how or "an unknown cause"
        return TaskOutcome(error=WorkerCrashError(f"{self._name} died of {how}"), keep=False, died=how)

    # -- workers ------------------------------------------------------------------------------------------------------

    def _fill(self) -> EvoEngineError | None:
        """Puts a worker in place that answers and whose device is sound; says why there is none."""
        pause_s, attempts = self._care.pause_s, 0
        while not self._stop.is_set():
            self._empty()
            fresh = self._spare is None
            failure = self._take_over()
            if failure is None:
                self._proven = True
                self._prepare_spare()
                return None
            if not self._proven and not isinstance(failure, CandidateError):
                break  # it never worked here: what it says is for the user to mend
            if not fresh:
                continue  # a spare may have been lost together with the worker
            attempts += 1
            if attempts == self._care.attempts:
                told = f"{self._name} failed in {attempts} fresh processes: {failure}"
                failure = WorkersLostError(self._place.lost(told))
                break
            self._stop.wait(pause_s)
            pause_s *= 2
        else:
            failure = WorkersLostError(_STOPPED)
        self._empty()
        return failure

    def _take_over(self) -> EvoEngineError | None:
        """Waits for the spare or for a fresh worker, and has it check its device; says what went wrong."""
        try:
            self._worker, self._spare = self._spare or self._begin(), None
        except WorkerCrashError as error:
            return error
        opening = Task(OPEN, (), str, None, "", self._care.start_timeout_s)
        opened = self._answer(MethodCall(0, OPEN, ()), opening)
        if opened.error is not None:
            return opened.error
        self._note = self._note or opened.result
        checked = self._call(Task(CHECK, (), None, None, "", self._care.check_timeout_s))
        return checked.error

    def _prepare_spare(self) -> None:
        """Starts the next worker; it gets ready while this one works."""
        if self._care.spares and self._spare is None:
            with suppress(WorkerCrashError):  # then the next loss costs a start
                self._spare = self._begin()

    def _begin(self) -> Worker:
        """A worker that was told to open.

        Raises:
            WorkerCrashError: none can be started.
        """
        worker = self._nursery.fork(self._name)
        try:
            worker.send(MethodCall(0, OPEN, (self._note,), environment=self._place.environment))
        except (OSError, StalledError) as error:
            raise WorkerCrashError(f"{self._name} died of {worker.kill()}") from error
        return worker

    def _empty(self) -> str:
        """Kills the worker, if any; says how it died, which may be of itself."""
        worker, self._worker = self._worker, None
        return worker.kill() if worker is not None else ""
