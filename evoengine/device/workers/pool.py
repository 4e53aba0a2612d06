"""Worker processes: a candidate that hangs, crashes or corrupts its GPU context ends a worker, never the search.

Each worker builds one object from a picklable factory and then executes calls of its methods. Calls are sent as
pickles, answers as data that is checked against the method's annotations (see :mod:`evoengine.device.workers.wire`).
This module does not depend on the object's type. The object may have:

* ``open(note: str) -> str``: expensive initialisation, called once before anything else. The note is the return value
  of ``open`` in an earlier worker of the same slot, so that a replacement can reuse it; at first it is empty.
* ``check() -> None``: called before a worker receives its first call; raises if the device does not work correctly.
* ``healthy: bool``: once it is False, the worker is replaced before the next call.
"""

from __future__ import annotations

import functools
import queue
import typing
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from evoengine.device.workers.fork_server import ForkServer, Worker
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.task import Judge, Task
from evoengine.device.workers.worker_main import WARM_UP, Factory, MethodCall
from evoengine.device.workers.worker_slot import Care, Slot, SlotRegistry
from evoengine.errors import WorkerCrashError
from evoengine.system.temporary import TemporaryFolder

__all__ = ["Care", "Factory", "HeadStart", "WorkerPool"]


class HeadStart:
    """Work of a pool's workers before the factory is known: imports, and then a warm-up of the first workers.

    Close it unless a pool takes it over.

    Args:
        name: Name for process lists and messages.
        preload: Modules to import.
        start_timeout_s: Time limit of the imports.
    """

    def __init__(self, name: str, preload: Sequence[str], start_timeout_s: float = Care.start_timeout_s) -> None:
        self._folder = TemporaryFolder()  # also holds the temporary files of killed workers
        self.fork_server = ForkServer(name, preload, start_timeout_s, str(self._folder.path))
        self.warming: list[Future[Worker]] = []
        """Futures of the warmed-up workers, one per binding; empty without a warm-up."""
        self._name = name
        self._threads: ThreadPoolExecutor | None = None

    def warm_up(self, bindings: Sequence[GpuBinding], call: Callable[[], None]) -> None:
        """Forks one worker per binding after the imports and runs a call in each.

        A pool that takes this over opens these workers first. Errors of the call are ignored, because they recur when
        the workers are opened.

        Args:
            bindings: GPU of each worker of the pool.
            call: Picklable function that loads what the workers need in any case.
        """
        self._threads = ThreadPoolExecutor(len(bindings), "warm-up")
        self.warming = [
            self._threads.submit(self._warm, f"{self._name} {number}", binding, call)
            for number, binding in enumerate(bindings)
        ]

    def _warm(self, name: str, binding: GpuBinding, call: Callable[[], None]) -> Worker:
        worker = self.fork_server.fork(name)
        worker.send(MethodCall(0, WARM_UP, (call,), environment=binding.environment))
        return worker

    @property
    def folder(self) -> str:
        """Folder of the temporary files of all workers."""
        return str(self._folder.path)

    def close(self) -> None:
        """Kills the fork server and its workers; may be called twice."""
        self.fork_server.close()
        if self._threads is not None:
            self._threads.shutdown()
        self._folder.close()


class WorkerPool:
    """A fixed number of worker processes that serve one queue of calls.

    The thread that creates a pool must live until the pool is closed.

    Args:
        factory: Factory of the served object, called inside the worker.
        size: Number of workers.
        timeout_s: Deadline of one call, counted from the moment a worker starts it.
        name: Name for process lists and messages.
        preload: Modules that the factory imports; they are imported once for all workers.
        care: Start-up, check and replacement policy.
        bindings: GPU of each worker, as many as there are workers; empty if it does not matter.
        head_start: Imports that were started before; the pool closes it.
    """

    def __init__(
        self,
        factory: Factory,
        size: int,
        timeout_s: float,
        *,
        name: str = "worker",
        preload: Sequence[str] = (),
        care: Care | None = None,
        bindings: Sequence[GpuBinding] = (),
        head_start: HeadStart | None = None,
    ) -> None:
        care, bindings = care or Care(), bindings or (GpuBinding(),) * size
        self._kinds = _ResultKinds(factory)
        self._timeout_s = timeout_s
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._closed = False
        self._registry = SlotRegistry(size)
        self._start = head_start or HeadStart(name, preload, care.start_timeout_s)
        self._start.fork_server.set_factory(factory)
        warming: Sequence[Future[Worker] | None] = self._start.warming or (None,) * size
        self._slots = [
            Slot(self._tasks, self._start.fork_server, self._registry, f"{name} {number}", care, binding, warm)
            for number, binding, warm in zip(range(size), bindings, warming, strict=True)
        ]

    @property
    def size(self) -> int:
        return len(self._slots)

    @property
    def lost(self) -> tuple[str, ...]:
        """One message for each slot that was given up; the others continue."""
        return self._registry.lost

    def submit(
        self,
        method: str,
        *args: object,
        timeout_s: float | None = None,
        tag: str = "",
        judge: Judge | None = None,
        short: bool = False,
    ) -> Future[Any]:
        """Queues one call ``object.method(*args)``.

        A call whose worker dies is repeated once in a fresh one, because the worker may have been killed from outside.

        Args:
            method: Name of a public method of the served object; its return annotation is the type of the result.
            args: Picklable arguments.
            timeout_s: Deadline of this call; None for the pool's.
            tag: Subject of the call. It is the worker's process name meanwhile and is returned with the answer.
            judge: Validator of the result; returns the reason why it is impossible.
            short: Whether the call is brief, so that its worker is sent the next one, which can then no longer be
                cancelled, before this one ends: the worker does not wait for this process between the two.

        Returns:
            A future with the result, or with one of these errors:

            * CandidateTimeoutError: The deadline passed; the worker was killed and replaced.
            * WorkerCrashError: Two workers died, the answer was malformed, or the method raised an error that is not an
              EvoEngineError.
            * WorkersLostError: No worker is left to try the call.
            * Any EvoEngineError of the method or the factory.

        Raises:
            RuntimeError: The pool is closed.
        """
        if self._closed:
            raise RuntimeError("the worker pool is closed")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        task = Task(method, args, self._kinds.of(method), judge, tag, limit_s, short=short)
        self._tasks.put(task)
        return task.future

    def close(self) -> None:
        """Kills the workers, cancels queued calls and fails running ones; prompt, and may be called twice."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.stop()
        for _ in self._slots:
            self._tasks.put(None)
        self._start.fork_server.close()
        for slot in self._slots:
            slot.join()
        self._start.close()  # removes the temporary files, after the last worker has ended
        while not self._tasks.empty():
            task = self._tasks.get()
            if task is not None and not task.future.cancel():
                task.future.set_exception(WorkerCrashError("the search was stopped"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ResultKinds:
    """Return types of the served object's methods, from their annotations."""

    def __init__(self, factory: Factory) -> None:
        maker: Any = factory
        while isinstance(maker, functools.partial):
            maker = maker.func
        served = maker if isinstance(maker, type) else typing.get_type_hints(maker)["return"]
        self._served: tuple[Any, ...] = typing.get_args(served) or (served,)  # a factory may choose between classes
        self._known: dict[str, Any] = {}

    def of(self, method: str) -> Any:
        """Returns the type of a method's result; ``object`` for an unknown method, which the worker reports."""
        if method not in self._known:
            found = next((getattr(kind, method) for kind in self._served if hasattr(kind, method)), None)
            self._known[method] = object if found is None else typing.get_type_hints(found).get("return", object)
        return self._known[method]
