"""Job services that start another one later, submit jobs to it ahead of time, or stand for none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

from evoengine.engine.workers.pools import WorkerService
from evoengine.errors import CandidateError, DefectError, EvoEngineError, WorkerCrashError
from evoengine.search.candidate.jobs import Job, JobService, ResultT
from evoengine.system.machine_faults import machine_fault


class DeferredService:
    """A :class:`~evoengine.search.candidate.jobs.JobService` that a thread prepares; jobs submitted before that wait.

    Compilations can thus begin while inputs are drawn and their reference results computed. Waiting jobs can be
    cancelled.

    Args:
        make: Function that prepares the service; every waiting future gets the error that it raises.
        workers: Number of workers that the service will have.
        supported: Kinds of jobs that it will run.
    """

    def __init__(self, make: Callable[[], WorkerService], workers: int, supported: Collection[type[Job[Any]]]) -> None:
        self.workers = workers
        self._supported = frozenset(supported)
        self._thread = ThreadPoolExecutor(1, "prepare")
        self._service: Future[WorkerService] = self._thread.submit(make)

    @property
    def lost(self) -> tuple[str, ...]:
        return self._service.result().lost if self._is_ready else ()

    def supports(self, kind: type[Job[Any]]) -> bool:
        return kind in self._supported

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        """Starts a job, or queues it until the service is ready."""
        if self._is_ready:
            return self._service.result().submit(job)
        waiting: Future[ResultT] = Future()
        self._service.add_done_callback(partial(_start, job, waiting))
        return waiting

    def close(self) -> None:
        """Waits for the preparation, which cannot be stopped, and kills the workers."""
        self._thread.shutdown(wait=True)
        if self._is_ready:
            self._service.result().close()

    @property
    def _is_ready(self) -> bool:
        return self._service.done() and self._service.exception() is None


def _start(job: Job[ResultT], waiting: Future[ResultT], service: Future[WorkerService]) -> None:
    """Starts a job that waited for its service, unless it was cancelled."""
    if not waiting.set_running_or_notify_cancel():
        return
    failure = service.exception()
    if failure is not None:
        waiting.set_exception(as_engine_error(failure))
        return
    try:
        service.result().submit(job).add_done_callback(partial(_copy_outcome, waiting))
    except Exception as error:  # noqa: BLE001 - whatever it is, the caller must get it
        waiting.set_exception(error)


def as_engine_error(error: BaseException) -> EvoEngineError:
    """Converts the error of a preparation: no candidate is at fault, so none may be recorded for it."""
    fault = machine_fault(error)
    if fault is not None:
        return fault
    if isinstance(error, EvoEngineError) and not isinstance(error, CandidateError):
        return error
    return DefectError(f"the device was not prepared: {type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _copy_outcome(waiting: Future[ResultT], done: Future[ResultT]) -> None:
    if done.cancelled():
        waiting.set_exception(WorkerCrashError("the search was stopped"))
    elif (error := done.exception()) is not None:
        waiting.set_exception(error)
    else:
        waiting.set_result(done.result())


class PrefetchingService:
    """A :class:`~evoengine.search.candidate.jobs.JobService` that starts some jobs before they are submitted.

    Args:
        service: Service that runs all jobs.
        jobs: Jobs that will be submitted in any case.
    """

    def __init__(self, service: JobService, jobs: Iterable[Job[Any]]) -> None:
        self._service = service
        self._started: dict[Job[Any], Future[Any]] = {job: service.submit(job) for job in jobs}

    @property
    def workers(self) -> int:
        return self._service.workers

    @property
    def lost(self) -> tuple[str, ...]:
        return self._service.lost

    def supports(self, kind: type[Job[Any]]) -> bool:
        return self._service.supports(kind)

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        """Returns the future of a prefetched job, once; starts any other job."""
        return self._started.pop(job, None) or self._service.submit(job)


class IdleService:
    """A :class:`~evoengine.search.candidate.jobs.JobService` without workers, for a study that is complete."""

    workers = 0
    lost: tuple[str, ...] = ()

    def supports(self, kind: type[Job[Any]]) -> bool:
        return False

    def submit(self, job: Job[Any]) -> NoReturn:
        raise RuntimeError(f"a complete study has no workers for {type(job).__name__}")
