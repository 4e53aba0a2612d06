"""Worker processes as job services: compile workers, and device workers with emulators beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.device.workers.pool import Care, HeadStart, WorkerPool
from evoengine.engine.workers.modules import COMPILE_WORKER_NAME, COMPILER_MODULES, DEVICE_WORKER_NAME, device_modules
from evoengine.search.candidate.build import BuildSetup, build_service
from evoengine.search.candidate.deadlines import (
    COMPILE_LIMIT_S,
    DEVICE_CHECK_LIMIT_S,
    EMULATOR_CHECK_LIMIT_S,
    duel_limit_s,
    emulated_inspection_limit_s,
    examination_limit_s,
    fresh_inputs_limit_s,
    sanitizing_limit_s,
)
from evoengine.search.candidate.examiner import examine_service
from evoengine.search.candidate.inspection import inspector_service, joint_inspection
from evoengine.search.candidate.jobs import (
    Challenge,
    Compile,
    CompileVariant,
    EstimateWork,
    Examine,
    Inspect,
    InspectAhead,
    Job,
    MeasureEnergy,
    ResultT,
    Sanitize,
    StartSanitizer,
)
from evoengine.search.candidate.result_validation import (
    compilation_objection,
    duel_objection,
    energy_objection,
    examination_objection,
)
from evoengine.search.candidate.results import Candidate, Examination, Inspection
from evoengine.search.candidate.setup import Setup
from evoengine.target import Target

_INSPECTORS: Final = 2, 8
"""Fewest and most emulators beside a GPU, which share the cases of an inspection. Two run on few cores, too, most of
which are idle when the search ends with an inspection; of more than eight, some would have no case."""
_SPARE_BYTES: Final = 2**28
"""Largest tensors with which a spare worker is kept: it holds those of its baseline, and a candidate needs memory
too."""


@dataclass(frozen=True)
class JobRule:
    """How worker processes run one kind of job."""

    limit_s: float
    """Deadline."""
    objection: Callable[[Any, Any], str] = lambda *_: ""
    """Takes a job and its result; returns what is impossible about the result, or an empty text."""
    short: bool = False
    """Whether the worker gets its next job meanwhile."""


class WorkerService:
    """A :class:`~evoengine.search.candidate.jobs.JobService` of worker processes.

    Args:
        pool: Workers; closed with the service.
        rules: Rules by kind of job; other kinds are not supported.
    """

    def __init__(self, pool: WorkerPool, rules: Mapping[type[Job[Any]], JobRule]) -> None:
        self._pool = pool
        self._rules = dict(rules)

    @property
    def workers(self) -> int:
        return self._pool.size

    @property
    def lost(self) -> tuple[str, ...]:
        return self._pool.lost

    def supports(self, kind: type[Job[Any]]) -> bool:
        return kind in self._rules

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        rule = self._rules[type(job)]
        judge = partial(rule.objection, job)
        limit_s = rule.limit_s + self._further_s(job)
        return self._pool.submit(
            job.method, *job.arguments, timeout_s=limit_s, tag=job.tag, judge=judge, short=rule.short
        )

    def _further_s(self, job: Job[Any]) -> float:
        """Returns the time that a job may take beyond the deadline of its kind."""
        return 0.0

    def close(self) -> None:
        self._pool.close()


def compile_workers(
    setup: BuildSetup,
    workers: int,
    limit_s: float = COMPILE_LIMIT_S,
    *,
    gives_way: bool = False,
    imports: HeadStart | None = None,
) -> WorkerService:
    """Starts compile workers.

    Args:
        setup: Problems and families to build for.
        workers: Number of workers.
        limit_s: Deadline of one compilation.
        gives_way: Whether they run at low priority.
        imports: Imports of the workers that were started before (see :mod:`evoengine.engine.prefetch`).
    """
    pool = WorkerPool(
        partial(build_service, setup, gives_way=gives_way),
        workers,
        limit_s,
        name=COMPILE_WORKER_NAME,
        preload=COMPILER_MODULES,
        head_start=imports,
    )

    def objection(job: Compile, compilation: Any) -> str:
        return compilation_objection(job.config, setup.arch, compilation)

    return WorkerService(pool, dict.fromkeys((Compile, CompileVariant), JobRule(limit_s, objection)))


def examination_jobs(*, sanitizer: bool, predicted: bool = False) -> frozenset[type[Job[Any]]]:
    """Returns the kinds of jobs that device workers run.

    Args:
        sanitizer: Whether compute-sanitizer is used.
        predicted: Whether the device predicts times.
    """
    kinds: tuple[type[Job[Any]], ...] = (Examine, Challenge, Inspect, MeasureEnergy)
    if sanitizer:
        kinds = (*kinds, StartSanitizer, Sanitize)
    return frozenset((*kinds, EstimateWork) if predicted else kinds)


class DeviceWorkers(WorkerService):
    """Device workers, each with a device of its own, and where that is a GPU an emulator beside them for inspections.

    Args:
        setup: Inputs and timing plans.
        bindings: GPU binding of each worker; on a GPU a spare worker stands ready beside each, unless memory is short.
        target: GPU that runs or is predicted.
        imports: Imports of the workers that were started before (see :mod:`evoengine.engine.prefetch`).
    """

    def __init__(
        self, setup: Setup, bindings: Sequence[GpuBinding], target: Target, imports: HeadStart | None = None
    ) -> None:
        on_gpu = setup.device.kind == "cuda"
        tensor_bytes = sum(part.problem.min_bytes for part in setup.parts)
        pool = WorkerPool(
            partial(examine_service, setup),
            len(bindings),
            examination_limit_s(setup, target),
            name=DEVICE_WORKER_NAME,
            preload=device_modules(setup.device.kind),
            care=Care(
                spares=1 if on_gpu and tensor_bytes <= _SPARE_BYTES else 0,
                check_timeout_s=DEVICE_CHECK_LIMIT_S if on_gpu else EMULATOR_CHECK_LIMIT_S,
            ),
            bindings=bindings,
            head_start=imports,
        )
        super().__init__(pool, _examination_rules(setup, target))
        self._setup = setup
        self._target = target
        self._inspector: WorkerPool | None = None
        self._emulated: dict[str, Future[Inspection]] = {}
        """Inspections on the emulator by the kernels' code; one that failed is made again."""

    @property
    def lost(self) -> tuple[str, ...]:
        return super().lost + (self._inspector.lost if self._inspector is not None else ())

    def _further_s(self, job: Job[Any]) -> float:
        candidates = [item for item in job.arguments if isinstance(item, Candidate)]
        untrusted = sum(any(kernel.source.untrusted for kernel in item.kernels) for item in candidates)
        return untrusted * fresh_inputs_limit_s(self._setup) if untrusted else 0.0

    def supports(self, kind: type[Job[Any]]) -> bool:
        return super().supports(kind) or (kind is InspectAhead and self._setup.device.kind != "emulator")

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        """Starts a job; on a GPU an inspection has a part on the emulator, which may have been made ahead."""
        if isinstance(job, InspectAhead):
            return cast("Future[ResultT]", self._inspect_on_emulator(job.candidate))
        future = super().submit(job)
        if isinstance(job, Examine):
            future.add_done_callback(self._shorten_limit)
        if isinstance(job, Inspect) and self._setup.device.kind != "emulator":
            own = cast("Future[Inspection]", future)
            future = cast("Future[ResultT]", joint_inspection([own, self._inspect_on_emulator(job.candidate)]))
        return future

    def close(self) -> None:
        super().close()
        if self._inspector is not None:
            self._inspector.close()

    def _shorten_limit(self, done: Future[Any]) -> None:
        """Derives the deadline of later examinations from the first known baseline time; single problems only."""
        if done.cancelled() or done.exception() is not None or len(self._setup.parts) > 1:
            return
        examination: Examination = done.result()
        timing = examination.timing
        if timing is not None and timing.baseline_us is not None:
            limit_s = examination_limit_s(self._setup, self._target, timing.baseline_us)
            self._rules[Examine] = replace(self._rules[Examine], limit_s=limit_s)

    def _inspect_on_emulator(self, candidate: Candidate) -> Future[Inspection]:
        if self._inspector is None:  # started late, because a search may never have a new champion
            make = partial(inspector_service, tuple(part.pool for part in self._setup.parts), self._target)
            limit_s = emulated_inspection_limit_s(self._setup)
            fewest, most = _INSPECTORS
            count = max(fewest, min(most, len(os.sched_getaffinity(0)) // 2))
            modules = device_modules("emulator")
            self._inspector = WorkerPool(make, count, limit_s, name="inspector", preload=modules)
        known = self._emulated.get(candidate.code_hash)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            submit, parts = self._inspector.submit, self._inspector.size
            known = joint_inspection([submit(Inspect.method, candidate, part, parts) for part in range(parts)])
            self._emulated[candidate.code_hash] = known
        return known


def _examination_rules(setup: Setup, target: Target) -> dict[type[Job[Any]], JobRule]:
    examination_s, duel_s = examination_limit_s(setup, target), duel_limit_s(setup, target)
    sanitizing_s = sanitizing_limit_s(setup, target) if setup.sanitizer else 0.0
    rules: dict[type[Job[Any]], JobRule] = {
        Examine: JobRule(
            examination_s,
            lambda _job, result: examination_objection(setup, result),
            short=setup.device.kind == "cuda",  # the emulator takes seconds, and waiting jobs must stay cancellable
        ),
        Challenge: JobRule(duel_s, lambda _job, result: duel_objection(setup, result)),
        Inspect: JobRule(examination_s),
        MeasureEnergy: JobRule(duel_s, lambda _job, result: energy_objection(result)),
        StartSanitizer: JobRule(examination_s),
        Sanitize: JobRule(sanitizing_s),
        EstimateWork: JobRule(examination_s),
    }
    kinds = examination_jobs(sanitizer=bool(setup.sanitizer), predicted=setup.device.kind == "emulator")
    return {kind: rules[kind] for kind in kinds}
