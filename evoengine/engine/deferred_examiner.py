"""An examine service that is not ready yet: compiling begins while inputs are drawn and their truths computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from evoengine.engine.worker_pools import ExaminePool
from evoengine.errors import WorkerCrashError
from evoengine.kernel.records import Kernel
from evoengine.model import Duel
from evoengine.search.candidate.inspection import Inspection

_T = TypeVar("_T")


class DeferredExaminer:
    """An :class:`ExaminePool` that a thread prepares; what is handed to it before waits. Its futures can be cancelled.

    Args:
        make: prepares the pool; what it raises is told by every future.
        workers: that the pool will have.
        sanitizes: whether it will have compute-sanitizer.
    """

    def __init__(self, make: Callable[[], ExaminePool], workers: int, *, sanitizes: bool) -> None:
        self._workers = workers
        self._sanitizes = sanitizes
        self._thread = ThreadPoolExecutor(1, "prepare")
        self._pool: Future[ExaminePool] = self._thread.submit(make)

    @property
    def workers(self) -> int:
        """Kernels that it works on at the same time."""
        return self._workers

    @property
    def lost(self) -> tuple[str, ...]:
        """One line for each device that does not come back."""
        return self._pool.result().lost if self._is_ready else ()

    @property
    def sanitizes(self) -> bool:
        """Whether compute-sanitizer looks at new champions."""
        return self._sanitizes

    def submit(self, kernel: Kernel, champion_us: float | None) -> Future[Any]:
        """Starts on a kernel."""
        return self._then(lambda pool: pool.submit(kernel, champion_us))

    def challenge(self, challenger: Kernel, champion: Kernel) -> Future[Duel]:
        """Starts a duel."""
        return self._then(lambda pool: pool.challenge(challenger, champion))

    def inspect(self, kernel: Kernel) -> Future[Inspection]:
        """Starts to look at a finalist."""
        return self._then(lambda pool: pool.inspect(kernel))

    def stand_by(self) -> Future[None]:
        """Starts compute-sanitizer for whoever is looked at next."""
        return self._then(lambda pool: pool.stand_by())

    def sanitize(self, kernel: Kernel) -> Future[Inspection]:
        """Runs compute-sanitizer over a new champion."""
        return self._then(lambda pool: pool.sanitize(kernel))

    def energy(self, kernel: Kernel) -> Future[float | None]:
        """Starts to measure the energy per call."""
        return self._then(lambda pool: pool.energy(kernel))

    def close(self) -> None:
        """Waits for the preparation, which cannot be stopped, and kills the workers."""
        self._thread.shutdown(wait=True)
        if self._is_ready:
            self._pool.result().close()

    @property
    def _is_ready(self) -> bool:
        return self._pool.done() and self._pool.exception() is None

    def _then(self, call: Callable[[ExaminePool], Future[_T]]) -> Future[_T]:
        if self._is_ready:
            return call(self._pool.result())
        waiting: Future[_T] = Future()
        self._pool.add_done_callback(partial(_begin, call, waiting))
        return waiting


def _begin(call: Callable[[ExaminePool], Future[_T]], waiting: Future[_T], pool: Future[ExaminePool]) -> None:
    """Makes the call that waited for the pool, unless it was cancelled."""
    if not waiting.set_running_or_notify_cancel():
        return
    try:
        call(pool.result()).add_done_callback(partial(_hand_on, waiting))
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
        waiting.set_exception(error)


def _hand_on(waiting: Future[_T], done: Future[_T]) -> None:
    if done.cancelled():
        waiting.set_exception(WorkerCrashError("the search was stopped"))
    elif (error := done.exception()) is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(done.result())
