"""Worker processes: a candidate that hangs, crashes or wrecks its GPU context takes a worker with it, never the search.

Each worker builds one object from a picklable factory and then serves calls of its methods. Calls travel as pickles,
answers as data that is checked against the method's annotations (see :mod:`evoengine.device.workers.wire`). Nothing in this
module knows what the object is. It may have:

* ``open(note: str) -> str``: what is dear to do, called once before anything else. The note is what the ``open`` of an
  earlier worker of the same place returned, so that a replacement need not find it out again; at first it is empty.
* ``check() -> None``: called before a worker gets its first call; raises when the device is not sound.
* ``healthy: bool``: once it is False, the worker is replaced before the next call.
"""

from __future__ import annotations

import functools
import queue
import shutil
import tempfile
import typing
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from evoengine.device.workers.fork_server import ForkServer
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.task import Judge, Task
from evoengine.device.workers.worker_main import Factory
from evoengine.device.workers.worker_slot import Care, Roster, Slot
from evoengine.errors import WorkerCrashError

__all__ = ["Care", "Factory", "HeadStart", "WorkerPool"]


class HeadStart:
    """The imports of a pool's workers, begun before it is known what they serve. Close it if no pool took it over.

    Args:
        name: as for :class:`WorkerPool`.
        preload: likewise.
        start_timeout_s: how long the imports may take.
    """

    def __init__(self, name: str, preload: Sequence[str], start_timeout_s: float = Care.start_timeout_s) -> None:
        self.folder = tempfile.mkdtemp(prefix="evoengine-")  # workers that are killed leave their files in it
        self.nursery = ForkServer(name, preload, start_timeout_s, self.folder)

    def close(self) -> None:
        """Kills the nursery and its workers; harmless when called twice."""
        self.nursery.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class WorkerPool:
    """A fixed number of worker processes that serve one queue of calls.

    The thread that makes a pool must live until it is closed.

    Args:
        factory: builds the served object inside the worker.
        size: number of workers.
        timeout_s: deadline of one call, counted from when a worker begins it.
        name: for process lists and messages.
        preload: modules that the factory imports when it is called; they are imported once for all workers.
        care: how the workers are looked after.
        places: where each worker runs; as many as there are workers, or none where it does not matter.
        head_start: the imports, where they were begun before; the pool closes it.
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
        places: Sequence[GpuBinding] = (),
        head_start: HeadStart | None = None,
    ) -> None:
        care, places = care or Care(), places or (GpuBinding(),) * size
        self._kinds = _ResultKinds(factory)
        self._timeout_s = timeout_s
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._closed = False
        self._roster = Roster(size)
        self._start = head_start or HeadStart(name, preload, care.start_timeout_s)
        self._start.nursery.teach(factory)
        self._slots = [
            Slot(self._tasks, self._start.nursery, self._roster, f"{name} {number}", care, place)
            for number, place in zip(range(size), places, strict=True)
        ]

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._slots)

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each worker that does not come back; the others go on."""
        return self._roster.lost

    def submit(
        self,
        method: str,
        *args: object,
        timeout_s: float | None = None,
        tag: str = "",
        judge: Judge | None = None,
    ) -> Future[Any]:
        """Queues one call ``object.method(*args)``.

        A call whose worker dies is tried once more in a fresh one: it may have been killed from outside.

        Args:
            method: name of a public method of the served object; its annotation says what it returns.
            args: picklable.
            timeout_s: deadline of this call; None for the pool's.
            tag: what the call is about; stands in the worker's process name meanwhile, and comes back with the answer.
            judge: looks at the result when it has come, and says what about it cannot be.

        Returns:
            A future that holds the result, or one of

            * CandidateTimeoutError: the deadline passed; the worker was killed and replaced;
            * WorkerCrashError: two workers died of it, the answer was malformed, or the method raised something that
              is not an EvoEngineError;
            * WorkersLostError: no worker is left that could try it;
            * any EvoEngineError that the method, or the factory, raised.

        Raises:
            RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the worker pool is closed")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        task = Task(method, args, self._kinds.of(method), judge, tag, limit_s)
        self._tasks.put(task)
        return task.future

    def close(self) -> None:
        """Kills the workers, cancels what is queued and fails what runs; prompt, and harmless when called twice."""
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.stop()
        for _ in self._slots:
            self._tasks.put(None)
        self._start.nursery.close()
        for slot in self._slots:
            slot.join()
        self._start.close()  # the files, after the last worker
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
    """What the methods of the served object return, read off their annotations."""

    def __init__(self, factory: Factory) -> None:
        maker: Any = factory
        while isinstance(maker, functools.partial):
            maker = maker.func
        served = maker if isinstance(maker, type) else typing.get_type_hints(maker)["return"]
        self._served: tuple[Any, ...] = typing.get_args(served) or (served,)  # a factory may choose between classes
        self._known: dict[str, Any] = {}

    def of(self, method: str) -> Any:
        """The type of a method's result; ``object`` where it has no such method, so that the worker says so."""
        if method not in self._known:
            found = next((getattr(kind, method) for kind in self._served if hasattr(kind, method)), None)
            self._known[method] = object if found is None else typing.get_type_hints(found).get("return", object)
        return self._known[method]
