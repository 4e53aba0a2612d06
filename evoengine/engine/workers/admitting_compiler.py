"""Compilations whose candidates are admitted to the GPU before the search receives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, Final, cast

from evoengine.device.workers.pool import WorkerPool
from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.workers.job_services import DeferredService
from evoengine.engine.workers.modules import device_modules
from evoengine.engine.workers.pools import JobRule, WorkerService
from evoengine.errors import CandidateError
from evoengine.model import Problem, Status
from evoengine.parity.inputs.pool import fresh_seed
from evoengine.search.candidate.admission import admission_service, draw_admission
from evoengine.search.candidate.deadlines import admission_limit_s
from evoengine.search.candidate.jobs import Admit, Compile, Job, JobService, ResultT
from evoengine.search.candidate.result_validation import admission_objection
from evoengine.search.candidate.results import Admission, Compilation
from evoengine.target import Target

_NAME: Final = "admission worker"

_Key = tuple[tuple[str, str], ...]
"""Source hash and code hash of every kernel of a candidate."""


def admission_workers(problems: Sequence[Problem], target: Target, workers: int) -> DeferredService:
    """Starts admission workers; their inputs are drawn in another process meanwhile.

    Args:
        problems: Problems of the search.
        target: GPU that the kernels are for.
        workers: Number of workers.
    """

    def make() -> WorkerService:
        """Draws the inputs and starts the processes."""
        with closing(SidecarProcess(f"{_NAME}s' inputs", ())) as process:
            setup = process.run(partial(draw_admission, tuple(problems), fresh_seed()))
        pool = WorkerPool(
            partial(admission_service, setup, target),
            workers,
            admission_limit_s(setup),
            name=_NAME,
            preload=device_modules("emulator"),
        )
        rule = JobRule(admission_limit_s(setup), lambda _job, admission: admission_objection(admission))
        return WorkerService(pool, {Admit: rule})

    return DeferredService(make, workers, (Admit,))


class AdmittingCompiler:
    """A :class:`~evoengine.search.candidate.jobs.JobService` that admits each candidate that it has compiled.

    Candidates are thus emulated on all cores, while the GPU's worker times others. One that is refused has the status
    and the reason of its admission. Trusted sources need none, so that most searches never start an admission worker.

    Args:
        compiler: Service for compilations; its owner closes it.
        open_admission: Function that starts the service for admissions; called with the first candidate that needs one.
    """

    def __init__(self, compiler: JobService, open_admission: Callable[[], DeferredService]) -> None:
        self._compiler = compiler
        self._open_admission = open_admission
        self._admission: DeferredService | None = None
        self._opening = Lock()
        self._admitted: set[_Key] = set()

    @property
    def workers(self) -> int:
        return self._compiler.workers

    @property
    def lost(self) -> tuple[str, ...]:
        return self._compiler.lost + (self._admission.lost if self._admission is not None else ())

    def supports(self, kind: type[Job[Any]]) -> bool:
        return self._compiler.supports(kind)

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        """Starts a compilation, and then its admission if it needs one. Both can be cancelled together."""
        compiling = self._compiler.submit(job)
        if not isinstance(job, Compile):
            return compiling
        whole: Future[ResultT] = Future()
        _cancel_with(whole, compiling)
        compiling.add_done_callback(partial(self._compiled, cast("Future[Compilation]", whole)))
        return whole

    def close(self) -> None:
        """Ends the admission workers."""
        if self._admission is not None:
            self._admission.close()

    def _compiled(self, whole: Future[Compilation], compiling: Future[Any]) -> None:
        """Starts the admission of a candidate, or passes the compilation on."""
        if compiling.cancelled():
            whole.cancel()
        elif (error := compiling.exception()) is not None:
            _fail(whole, error)
        else:
            compilation: Compilation = compiling.result()
            key = _untrusted(compilation)
            if not key or whole.cancelled():
                _deliver(whole, compilation)
            elif key in self._admitted:
                _deliver(whole, replace(compilation, admitted=True))
            else:
                self._admit(whole, compilation, key)

    def _admit(self, whole: Future[Compilation], compilation: Compilation, key: _Key) -> None:
        candidate = compilation.candidate
        assert candidate is not None, "only a candidate has a key"
        try:
            with self._opening:
                self._admission = self._admission or self._open_admission()
            admission = self._admission.submit(Admit(candidate))
        except Exception as error:  # noqa: BLE001 - whatever it is, the search must get it
            _fail(whole, error)
            return
        _cancel_with(whole, admission)
        admission.add_done_callback(partial(self._decided, whole, compilation, key))

    def _decided(
        self, whole: Future[Compilation], compilation: Compilation, key: _Key, done: Future[Admission]
    ) -> None:
        if done.cancelled():
            whole.cancel()
            return
        error = done.exception()
        if isinstance(error, CandidateError):  # its emulation ended the worker
            admission = Admission(error.status, f"on the emulator: {error}")
        elif error is not None:
            _fail(whole, error)
            return
        else:
            admission = done.result()
        admitted = admission.status is Status.OK
        if admitted:
            self._admitted.add(key)
        seconds = {**compilation.stage_seconds, "admit": admission.seconds}
        outcome = replace(compilation, status=admission.status, reason=admission.reason, stage_seconds=seconds)
        _deliver(whole, replace(outcome, admitted=admitted))


def _untrusted(compilation: Compilation) -> _Key:
    """Returns the key of a candidate that needs admission; empty for others."""
    candidate = compilation.candidate
    if candidate is None or not any(kernel.source.untrusted for kernel in candidate.kernels):
        return ()
    return tuple((kernel.source.source_hash, kernel.binary.code_hash) for kernel in candidate.kernels)


def _cancel_with(whole: Future[Any], part: Future[Any]) -> None:
    """Cancels a part as soon as the whole is cancelled."""
    whole.add_done_callback(lambda done: part.cancel() if done.cancelled() else None)


def _deliver(whole: Future[Compilation], compilation: Compilation) -> None:
    if whole.set_running_or_notify_cancel():
        whole.set_result(compilation)


def _fail(whole: Future[Compilation], error: BaseException) -> None:
    if whole.set_running_or_notify_cancel():
        whole.set_exception(error)
