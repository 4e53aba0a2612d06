"""The services of a search: compilers, device workers, and the preparation of their inputs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from evoengine.device.device_selfcheck import build_known_good
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.device.workers.pool import HeadStart
from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.prefetch import EarlyImports, begin_imports, setup_request
from evoengine.engine.search_plan import SearchPlan
from evoengine.engine.workers.admitting_compiler import AdmittingCompiler, admission_workers
from evoengine.engine.workers.job_services import DeferredService
from evoengine.engine.workers.pools import DeviceWorkers, compile_workers, examination_jobs
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.search.candidate.build import BuildSetup
from evoengine.search.candidate.examiner import warm_up
from evoengine.search.candidate.jobs import InspectAhead, JobService
from evoengine.search.candidate.setup import Setup
from evoengine.search.replay import ReplayService
from evoengine.space.data_dirs import data_dirs
from evoengine.target import Target

if TYPE_CHECKING:
    from evoengine.engine.cluster.search import ClusterDevices


def open_services(
    plan: SearchPlan,
    stack: ExitStack,
    evaluated: int = 0,
    change: Callable[[Setup], Setup] | None = None,
    imports: EarlyImports | None = None,
) -> tuple[JobService, JobService]:
    """Starts the services of a search; inputs are prepared while the first candidates are compiled.

    Args:
        plan: Plan of the search.
        stack: Stack that closes the services.
        evaluated: Candidates that earlier runs of the study have evaluated.
        change: Function that changes the setup of the examinations of a recording, which inspects nothing; else None.
        imports: Imports of the workers that were started before.

    Returns:
        The service for compilations and the service for all jobs on the device.
    """
    request, imports = plan.request, imports or EarlyImports()
    if plan.replay is not None:
        replay = ReplayService(plan.replay.landscape, plan.replay.noise, plan.accept_threshold, evaluated)
        return replay, replay
    assert plan.target is not None, "only a replay has no target"
    if plan.cluster is not None:
        return _cluster_services(plan, plan.cluster, plan.target, stack)
    devices = _begin_devices(plan, imports, stack)
    cache_dir = usable_cache_dir()
    compiler = compile_workers(
        _build_setup(plan, plan.target, cache_dir),
        compiler_count(plan),
        request.compile_limit_s,
        gives_way=not plan.device.predicted,  # a GPU waits for its worker
        imports=imports.compilers,
    )
    stack.enter_context(closing(compiler))
    target, sanitizer, bindings = plan.target, sanitizer_path(plan), plan.choice.bindings

    def make() -> DeviceWorkers:
        setup = _prepared(plan, imports.preparer, cache_dir)
        setup = _complete(setup) if change is None else change(setup)
        return DeviceWorkers(replace(setup, sanitizer=sanitizer), bindings, target, devices)

    kinds = examination_jobs(sanitizer=bool(sanitizer), predicted=plan.device.predicted)
    ahead = () if plan.device.predicted else (InspectAhead,)
    examiner = stack.enter_context(closing(DeferredService(make, len(bindings), (*kinds, *ahead))))
    return _admitting(plan, compiler, target, stack), examiner


def _admitting(plan: SearchPlan, compiler: JobService, target: Target, stack: ExitStack) -> JobService:
    """Returns a compiler that also admits generated candidates; the emulator, as a device, needs no admission."""
    if plan.device.predicted:
        return compiler
    workers = plan.request.workers or len(os.sched_getaffinity(0))
    open_admission = partial(admission_workers, plan.problems, target, workers)
    return stack.enter_context(closing(AdmittingCompiler(compiler, open_admission)))


def _begin_devices(plan: SearchPlan, imports: EarlyImports, stack: ExitStack) -> HeadStart:
    """Returns the imports of the device workers, after which workers on a GPU warm up until the inputs are there."""
    spec = plan.choice.spec
    devices = imports.devices or stack.enter_context(closing(begin_imports(spec.kind)))
    if spec.kind == "cuda":
        devices.warm_up(plan.choice.bindings, partial(warm_up, spec, plan.problem))
    return devices


def _cluster_services(
    plan: SearchPlan, devices: ClusterDevices, target: Target, stack: ExitStack
) -> tuple[JobService, JobService]:
    cache_dir, sanitizer = usable_cache_dir(), sanitizer_path(plan)

    def prepared() -> Setup:
        return replace(_complete(_prepared(plan, None, cache_dir)), sanitizer=sanitizer)

    setup = _build_setup(plan, target, cache_dir)
    compiler = stack.enter_context(closing(devices.compiler(setup, plan.request.compile_limit_s)))
    examiner = stack.enter_context(closing(devices.examiner(prepared, target, sanitizer=bool(sanitizer))))
    return _admitting(plan, compiler, target, stack), examiner


def _build_setup(plan: SearchPlan, target: Target, cache_dir: Path | None) -> BuildSetup:
    return BuildSetup(
        problems=plan.problems,
        target=target,
        arch=plan.device.arch,
        spaces=tuple(family.space for family in plan.families.taken),
        templates_dirs=data_dirs("templates"),
        cache_dir=cache_dir,
        variants=plan.families.variants,
        spill_limit_bytes=plan.request.spill_limit_bytes,
    )


def _prepared(plan: SearchPlan, preparer: SidecarProcess | None, cache_dir: Path | None) -> Setup:
    """Builds the known-good kernel; the inputs are drawn meanwhile if there is a process for them, or afterwards."""
    wanted = setup_request(plan.request, plan.choice.spec, plan.accept_threshold)
    if preparer is not None:
        preparer.begin(wanted)
    known_good = build_known_good(plan.device.arch, cache_dir)
    if preparer is None:
        return replace(wanted(), known_good=known_good)
    with closing(preparer):
        return replace(preparer.run(wanted), known_good=known_good)


def _complete(setup: Setup) -> Setup:
    """Makes the emulator's cases for finalists once, instead of in each device worker; a GPU would wait for them."""
    if setup.device.kind == "emulator":
        for part in setup.parts:
            part.pool.complete()
    return setup


def sanitizer_path(plan: SearchPlan) -> str:
    """Path of the compute-sanitizer that checks new champions; empty for none."""
    if not plan.request.sanitizer or plan.device.kind != "cuda":
        return ""
    return plan.cluster.sanitizer if plan.cluster is not None else str(find_sanitizer() or "")


def compiler_count(plan: SearchPlan) -> int:
    """Number of compile workers: one for every core.

    A GPU's worker needs a core for two thirds of the time, and the compilers run at lower priority than it; the
    emulator's workers share the cores with them, since either may need more than half.
    """
    if plan.cluster is not None:
        return plan.cluster.workers("compile")
    return plan.request.workers or len(os.sched_getaffinity(0))
