"""Worker processes: a candidate that hangs, crashes or wrecks its GPU context takes a worker with it, never the search.

Each worker builds one object from a picklable factory and then serves calls of its methods; arguments and results
travel as pickles over a pipe. Each worker has one thread here that feeds it, watches the deadline, kills and replaces
it. Nothing in this module knows what the object is.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from evoengine.errors import CandidateTimeoutError, EvoEngineError, WorkerCrashError

Factory = Callable[[], object]
"""Builds the object that a worker serves; picklable, for example ``functools.partial(Examiner, setup)``."""

START_TIMEOUT_S: Final = 180.0
"""A worker that is not ready by then (imports, GPU context) is given up."""

_PR_SET_PDEATHSIG: Final = 1
_JOIN_S: Final = 10.0


@dataclass(frozen=True)
class _Call:
    """One call that travels to a worker."""

    method: str
    args: tuple[object, ...]


@dataclass(frozen=True)
class _Reply:
    """What comes back: a result, or an error made on purpose."""

    result: Any = None
    error: BaseException | None = None
    healthy: bool = True
    """False asks for the worker to be replaced."""


@dataclass(frozen=True)
class _Task:
    """One call that waits for a worker."""

    call: _Call
    timeout_s: float
    future: Future[Any] = field(default_factory=Future)


class WorkerPool:
    """A fixed number of worker processes that serve one queue of calls.

    The object may have a ``healthy`` property; once it is False, its worker is replaced before the next call.

    Args:
        factory: builds the served object inside the worker.
        size: number of workers.
        timeout_s: deadline of one call, counted from when a worker begins it.
        name: for process lists and messages.
        start_timeout_s: deadline of the factory.
    """

    def __init__(
        self,
        factory: Factory,
        size: int,
        timeout_s: float,
        *,
        name: str = "worker",
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closed = False
        self._slots = [_Slot(self._tasks, factory, f"{name}-{index}", start_timeout_s) for index in range(size)]

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._slots)

    def submit(self, method: str, *args: object, timeout_s: float | None = None) -> Future[Any]:
        """Queues one call ``object.method(*args)``.

        Args:
            method: name of a public method of the served object.
            args: picklable.
            timeout_s: deadline of this call; None for the pool's.

        Returns:
            A future that holds the result, or one of

            * CandidateTimeoutError: the deadline passed; the worker was killed and replaced;
            * WorkerCrashError: the worker died, or the method raised something that is not an EvoEngineError;
            * any EvoEngineError that the method, or the factory, raised.

        Raises:
            RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the worker pool is closed")
        task = _Task(_Call(method, args), self._timeout_s if timeout_s is None else timeout_s)
        self._tasks.put(task)
        return task.future

    def close(self) -> None:
        """Kills the workers, cancels what is queued and fails what runs; prompt, and harmless when called twice."""
        self._closed = True
        for slot in self._slots:
            slot.stop()
        for _ in self._slots:
            self._tasks.put(None)
        for slot in self._slots:
            slot.join()
        while not self._tasks.empty():
            task = self._tasks.get()
            if task is not None:
                task.future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Slot:
    """One worker and the thread that owns it: starts it, feeds it, kills and replaces it."""

    def __init__(
        self, tasks: queue.SimpleQueue[_Task | None], factory: Factory, name: str, start_timeout_s: float
    ) -> None:
        self._tasks = tasks
        self._factory = factory
        self._name = name
        self._start_timeout_s = start_timeout_s
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards _process against stop() from another thread
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kills the worker now; the thread ends by itself."""
        with self._lock:
            self._stop.set()
            if self._process is not None:
                self._process.kill()

    def join(self) -> None:
        """Waits for the thread."""
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        failure = self._start()
        while not self._stop.is_set():
            task = self._tasks.get()
            if task is None:
                break
            if not task.future.set_running_or_notify_cancel():
                continue
            if self._stop.is_set():
                task.future.set_exception(WorkerCrashError("the search was stopped"))
                break
            if not self._ready():  # the last start failed: this call pays for another try
                failure = self._start()
            if not self._ready():
                task.future.set_exception(failure or WorkerCrashError(f"{self._name} did not start"))
                continue
            reply = self._serve(task)
            if not reply.healthy:
                self._discard()
                failure = self._start()  # before the answer is out, so that the next call finds a fresh worker
            _settle(task.future, reply)
        self._discard()

    def _ready(self) -> bool:
        return self._pipe is not None

    def _serve(self, task: _Task) -> _Reply:
        """Runs one call in the worker; a worker that is lost is reported as unhealthy."""
        pipe = self._pipe
        assert pipe is not None
        try:
            pipe.send(task.call)
            if not pipe.poll(task.timeout_s):
                reason = f"not finished after {task.timeout_s:g} s"
                return _Reply(error=CandidateTimeoutError(reason), healthy=False)
            reply = pipe.recv()
        except (EOFError, OSError):
            return _Reply(error=WorkerCrashError(self._epitaph()), healthy=False)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return _Reply(error=WorkerCrashError(f"cannot send the call to a worker: {error}"), healthy=False)
        assert isinstance(reply, _Reply)
        return reply

    def _start(self) -> EvoEngineError | None:
        """Starts a worker and waits until it is ready; returns why not."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_worker_main, args=(theirs, pickle.dumps(self._factory), os.getpid()), name=self._name, daemon=True
        )
        with self._lock:
            if self._stop.is_set():
                return WorkerCrashError("the search was stopped")
            # The child inherits the mask, so that Ctrl-C cannot hit it before it ignores the signal.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            except OSError as error:
                return WorkerCrashError(f"cannot start {self._name}: {error}")
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._process, self._pipe = process, ours
        theirs.close()
        failure: BaseException | None
        try:
            ready = ours.recv() if ours.poll(self._start_timeout_s) else None
            failure = ready.error if ready else WorkerCrashError(f"{self._name} was not ready in time")
        except (EOFError, OSError):
            failure = WorkerCrashError(self._epitaph())
        if failure is None:
            return None
        self._discard()
        return failure if isinstance(failure, EvoEngineError) else WorkerCrashError(str(failure))

    def _discard(self) -> None:
        """Kills the worker, if any, and reaps it."""
        with self._lock:
            process, self._process = self._process, None
            pipe, self._pipe = self._pipe, None
        if process is not None:
            process.kill()
            process.join(_JOIN_S)
            process.close()
        if pipe is not None:
            pipe.close()

    def _epitaph(self) -> str:
        """How the worker died."""
        if self._stop.is_set():
            return "the search was stopped"
        process = self._process
        if process is None:
            return f"{self._name} died"
        process.join(_JOIN_S)
        code = process.exitcode
        if code is None:
            return f"{self._name} closed its pipe"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"{self._name} died with {how}"


def _settle(future: Future[Any], reply: _Reply) -> None:
    if reply.error is None:
        future.set_result(reply.result)
    else:
        future.set_exception(reply.error)


def _worker_main(pipe: Connection, pickled_factory: bytes, parent_pid: int) -> None:
    """Runs in the worker: builds the object, then serves calls until the pipe closes.

    The factory comes pickled, so that what it imports (NumPy) sees the environment that is set here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _die_with_parent(parent_pid)
    for library in ("OPENBLAS", "OMP", "MKL"):  # there is a worker per core already
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    try:
        factory: Factory = pickle.loads(pickled_factory)  # noqa: S301 - our own parent pickled it
        served = factory()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
        pipe.send(_failure(error))
        return
    pipe.send(_Reply())
    while True:
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            return
        _send(pipe, _answer(served, call))


def _answer(served: object, call: _Call) -> _Reply:
    try:
        result = getattr(served, call.method)(*call.args)
    except BaseException as error:  # noqa: BLE001 - one call's fault must not end the worker
        return _failure(error, healthy=_healthy(served))
    return _Reply(result, healthy=_healthy(served))


def _healthy(served: object) -> bool:
    return bool(getattr(served, "healthy", True))


def _failure(error: BaseException, healthy: bool = True) -> _Reply:
    """Errors made on purpose travel as they are; anything else is a crash, told in one line with its place."""
    if isinstance(error, EvoEngineError):
        return _Reply(error=error, healthy=healthy)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return _Reply(error=WorkerCrashError(f"{type(error).__name__}: {text}{place}"), healthy=healthy)


def _send(pipe: Connection, reply: _Reply) -> None:
    try:
        pipe.send(reply)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        pipe.send(_Reply(error=WorkerCrashError(f"the result cannot be sent: {error}"), healthy=reply.healthy))


def _die_with_parent(parent_pid: int) -> None:
    """Asks Linux to kill this process when the thread that started it ends, however it ends."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the request was in
        os._exit(1)
