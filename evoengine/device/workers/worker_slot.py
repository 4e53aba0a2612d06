"""A slot of a worker pool: a thread that starts a worker, sends it calls, watches it and replaces it."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from evoengine.device.workers.fork_server import ForkServer, StalledError, Worker
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.task import Task, TaskOutcome, complete, validated
from evoengine.device.workers.wire import WireError
from evoengine.device.workers.worker_main import CHECK, OPEN, MethodCall
from evoengine.errors import (
    CandidateError,
    CandidateTimeoutError,
    EvoEngineError,
    MachineError,
    MachineMemoryError,
    WorkerCrashError,
    WorkersLostError,
)
from evoengine.system.memory import memory_death, oom_kills

MAX_DEATHS: Final = 2
"""Deaths of workers during one call that make it fail. The first may have another cause; two are no coincidence."""

KILLER: Final = "killed its worker twice"
"""Beginning of the message about a call during which that many workers died."""
_JOIN_S: Final = 30.0
_STOPPED: Final = "the search was stopped"


@dataclass(frozen=True)
class Care:
    """Start-up, check and replacement policy of a pool's workers."""

    spares: int = 0
    """1 keeps a spare worker ready beside each one that has worked, so that replacing it takes no start-up time."""
    attempts: int = 4
    """Consecutive fresh workers that may fail before their slot is given up."""
    pause_s: float = 0.5
    """Pause before the second attempt; it doubles before each further one."""
    start_timeout_s: float = 180.0
    """Time limit until a worker is ready (imports, GPU context)."""
    check_timeout_s: float = 120.0
    """Time limit of a worker's device check."""


class SlotRegistry:
    """The slots of a pool that are still in use. Safe to use from several threads."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()
        self._lost: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """One message for each slot that was given up."""
        return self._lost

    def remove(self, reason: str) -> bool:
        """Removes a slot that is given up; returns whether it was the last one."""
        with self._lock:
            self._left -= 1
            self._lost += (reason,)
            return self._left == 0

    def retire(self, reason: str) -> bool:
        """Removes a slot unless it is the last one; returns whether it was removed."""
        with self._lock:
            if self._left < 2:
                return False
            self._left -= 1
            self._lost += (reason,)
            return True


class Slot:
    """A worker and the thread that manages it.

    Args:
        tasks: Queue of the pool's tasks; None ends one slot.
        fork_server: Process that forks workers.
        registry: Registry from which the slot removes itself when it is given up.
        name: Name of the workers.
        care: Start-up and replacement policy.
        place: GPU that the workers run on.
        warming: First worker, which was forked before the factory was known and warms up; None for none.
    """

    def __init__(
        self,
        tasks: queue.SimpleQueue[Task | None],
        fork_server: ForkServer,
        registry: SlotRegistry,
        name: str,
        care: Care,
        place: GpuBinding,
        warming: Future[Worker] | None = None,
    ) -> None:
        self._tasks = tasks
        self._fork_server = fork_server
        self._registry = registry
        self._name = name
        self._care = care
        self._place = place
        self._warming = warming
        self._stop = threading.Event()
        self._worker: Worker | None = None
        self._next: Task | None = None
        self._sent: MethodCall | None = None
        """Call of the next task, if the worker has it already."""
        self._spare: Worker | None = None
        self._note = ""
        self._proven = False
        self._worked = False
        self._calls = 0
        self._oom_kills = oom_kills()
        self._retired = False
        self._is_last = False
        """Whether this slot was given up as the last one; it goes on, to fail the queued tasks or to recover."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; the pool kills the workers."""
        self._stop.set()

    def join(self) -> None:
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        failure = self._fill()
        if failure is not None and not self._give_up(failure):
            self._stop.wait()
            return
        while not self._stop.is_set():
            task = self._take()
            if task is None:
                break
            if isinstance(failure, MachineError):
                failure = self._fill()  # the machine may have recovered since
            if self._stop.is_set():
                task.future.set_exception(WorkerCrashError(_STOPPED))
            elif failure is not None:
                task.future.set_exception(failure)
            else:
                failure = self._work(task)
                if self._retired or (failure is not None and not self._give_up(failure)):
                    self._hand_back()
                    self._stop.wait()  # a thread that starts a fork server must not end before the pool does
                    return
                if failure is None:
                    self._prepare_spare()
        self._hand_back()

    def _take(self) -> Task | None:
        """Returns the task that was chosen while the last one ran, or waits for one; None ends the slot."""
        task, self._next = self._next, None
        while task is None:
            task = self._tasks.get()
            if task is None:
                return None
            task = task if _begins(task) else None
        return task

    def _hand_back(self) -> None:
        """Leaves the task that was chosen to the other slots, or to the pool, which fails it."""
        if self._next is not None:
            self._tasks.put(self._next)
            self._next = None

    def _give_up(self, failure: EvoEngineError) -> bool:
        """Leaves the work to the other slots; True if there are none and this thread must fail the queued tasks."""
        reason = str(failure) if isinstance(failure, WorkersLostError) else self._place.lost(str(failure))
        if not self._is_last:
            self._is_last = self._stop.is_set() or self._registry.remove(reason)
        return self._is_last

    def _work(self, task: Task) -> EvoEngineError | None:
        """Executes one task, in a second worker if the first dies; returns the reason if the slot cannot go on."""
        self._worked = True
        deaths = list(task.deaths)
        while True:
            outcome = self._call(task)
            if outcome.died:
                deaths.append(outcome.died)
                if len(deaths) == MAX_DEATHS:
                    how = " and then ".join(dict.fromkeys(deaths))
                    outcome = replace(outcome, error=WorkerCrashError(f"{KILLER}: {how}"))
            final = not outcome.died or len(deaths) == MAX_DEATHS or self._stop.is_set()
            self._retired = isinstance(outcome.error, MachineMemoryError) and self._make_room(outcome.error)
            if final:
                complete(task.future, outcome)
            if outcome.keep or self._retired:
                return None
            failure = self._fill()
            if failure is not None and not final:
                again = replace(task, deaths=tuple(deaths))
                self._tasks.put(again)  # the call may not be at fault: another slot tries it, if there is one
            if failure is not None or final:
                return failure

    def _make_room(self, error: MachineMemoryError) -> bool:
        """Ends this slot for good while others are left, so that fewer workers share the memory."""
        if not self._registry.retire(f"{self._name} is not used any more: {error}"):
            return False
        self._discard_workers()
        return True

    def _discard_workers(self) -> None:
        self._empty()
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.kill()

    def _call(self, task: Task) -> TaskOutcome:
        """Makes one call in the current worker unless it was sent already; beside a short one it sends the next."""
        call, self._sent = self._sent, None
        if call is None:
            self._oom_kills = oom_kills()
            try:
                call = self._send(task)
            except OSError:
                return self._death()
            except StalledError:
                return TaskOutcome(error=CandidateTimeoutError("its worker no longer accepts calls"), keep=False)
            except Exception as error:  # noqa: BLE001 - pickling executes code of the pickled object; nothing was sent
                return TaskOutcome(error=WorkerCrashError(f"cannot send the call to a worker: {error}"))
        if task.short:
            self._send_ahead()
        return self._answer(call, task)

    def _send(self, task: Task) -> MethodCall:
        """Sends a task to the current worker; see :meth:`Worker.send` for the errors."""
        assert self._worker is not None
        self._calls += 1
        call = MethodCall(self._calls, task.method, task.args, task.tag)
        self._worker.send(call)
        return call

    def _send_ahead(self) -> None:
        """Sends the next task, if there is one. What goes wrong shows when its turn comes, and it is sent again."""
        if self._next is None:
            with suppress(queue.Empty):
                task = self._tasks.get_nowait()
                if task is None:
                    self._tasks.put(None)  # for the loop of this slot
                elif _begins(task):
                    self._next = task
        if self._next is not None:
            with suppress(Exception):
                self._sent = self._send(self._next)

    def _answer(self, call: MethodCall, task: Task) -> TaskOutcome:
        """Waits for the worker's answer to a call that was sent."""
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
            outcome = validated(data, call, task)
        except WireError as error:
            return TaskOutcome(error=WorkerCrashError(f"its worker gave a malformed answer: {error}"), keep=False)
        return replace(outcome, keep=False) if isinstance(outcome.error, MachineError) else outcome

    def _death(self) -> TaskOutcome:
        how = self._empty()
        if self._stop.is_set():
            return TaskOutcome(error=WorkerCrashError(_STOPPED), keep=False, died=_STOPPED)
        fault = memory_death(how, self._oom_kills, self._fork_server.pid)
        if fault is not None:
            return TaskOutcome(error=fault, keep=False)
        how = how or "an unknown cause"
        return TaskOutcome(error=WorkerCrashError(f"{self._name} died of {how}"), keep=False, died=how)

    def _fill(self) -> EvoEngineError | None:
        """Starts a worker that answers and whose device passes its check; returns the reason if there is none."""
        pause_s, attempts = self._care.pause_s, 0
        while not self._stop.is_set():
            self._empty()
            fresh = self._spare is None
            failure = self._take_over()
            if failure is None:
                self._proven = True
                if self._worked:  # the first call matters more than a spare
                    self._prepare_spare()
                return None
            if not self._proven and not isinstance(failure, CandidateError):
                break  # no worker ever ran here, so the user must fix the reported problem
            if not fresh:
                continue  # a spare may have been lost together with the worker
            attempts += 1
            if attempts == self._care.attempts:
                if not isinstance(failure, MachineError):  # otherwise the search pauses, and the last slot tries again
                    reason = f"{self._name} failed in {attempts} fresh processes: {failure}"
                    failure = WorkersLostError(self._place.lost(reason))
                break
            self._stop.wait(pause_s)
            pause_s *= 2
        else:
            failure = WorkersLostError(_STOPPED)
        self._empty()
        return failure

    def _take_over(self) -> EvoEngineError | None:
        """Waits for the spare or a fresh worker and runs its device check; returns the error if one of them fails."""
        try:
            self._worker, self._spare = self._spare or self._begin(), None
        except EvoEngineError as error:
            return error
        opening = Task(OPEN, (), str, None, "", self._care.start_timeout_s)
        opened = self._answer(MethodCall(0, OPEN, ()), opening)
        if opened.error is not None:
            return opened.error
        self._note = self._note or opened.result
        checked = self._call(Task(CHECK, (), None, None, "", self._care.check_timeout_s))
        return checked.error

    def _prepare_spare(self) -> None:
        """Starts the next worker, which gets ready while this one works."""
        if self._care.spares and self._spare is None:
            with suppress(EvoEngineError):  # without a spare the next replacement only takes longer
                self._spare = self._begin()

    def _begin(self) -> Worker:
        """Starts a worker and sends it the ``open`` call.

        Raises:
            WorkerCrashError: No worker can be started.
            MachineError: Memory, processes or open files are exhausted.
        """
        warm = self._take_warm()
        worker = warm or self._fork_server.fork(self._name)
        factory = b"" if warm is None else self._fork_server.pickled_factory
        try:
            worker.send(MethodCall(0, OPEN, (self._note,), environment=self._place.environment, factory=factory))
        except (OSError, StalledError) as error:
            raise WorkerCrashError(f"{self._name} died of {worker.kill()}") from error
        return worker

    def _take_warm(self) -> Worker | None:
        """Returns the worker that warmed up, once; None if there is none or it failed, which a fresh one reports."""
        warming, self._warming = self._warming, None
        if warming is None:
            return None
        try:
            worker = warming.result()
        except (EvoEngineError, OSError, StalledError):
            return None
        try:
            if worker.receive(self._care.start_timeout_s) is not None:
                return worker
        except (EOFError, OSError, StalledError):
            pass
        worker.kill()
        return None

    def _empty(self) -> str:
        """Kills the worker, if there is one; returns how it died, possibly before the kill."""
        worker, self._worker = self._worker, None
        self._sent = None
        return worker.kill() if worker is not None else ""


def _begins(task: Task) -> bool:
    """Marks a task as begun; False for one that was cancelled."""
    return task.future.running() or task.future.set_running_or_notify_cancel()
