"""Services that wrap another one, the jobs' contract with the workers, and what is known of an unopened device."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, get_args, get_type_hints

import pytest

from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.devices.facts import DeviceDescriber, known_gpu
from evoengine.engine.devices.gpus import find_gpu
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.prefetch import begin_imports, early_imports
from evoengine.engine.workers.job_services import DeferredService, IdleService, PrefetchingService
from evoengine.engine.workers.pools import DeviceWorkers, examination_jobs
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.landscape.synthetic import null_landscape
from evoengine.model import Config, Problem, Status
from evoengine.search.candidate.build import Builder
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner, warm_up
from evoengine.search.candidate.jobs import (
    Compile,
    EstimateWork,
    Examine,
    Inspect,
    InspectAhead,
    Job,
    ResultT,
    Sanitize,
    StartSanitizer,
)
from evoengine.search.candidate.results import Candidate
from evoengine.search.candidate.setup import SetupRequest, prepare
from evoengine.search.replay import ReplayService
from evoengine.space.data_dirs import data_dir
from evoengine.space.loader import find_space
from evoengine.target import get_target

PROBLEM = Problem(1, 1, 16, 16)
L4 = get_target("l4")
JOBS = examination_jobs(sanitizer=False)
ALL_JOBS = examination_jobs(sanitizer=True, predicted=True)
LONG_S = 300.0
"""Longer than any wait here takes on a slow machine; a wait that reaches it has hung."""


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    space = find_space("mma")
    config = next(iter(space.build(PROBLEM, L4).starts()))
    source = TemplateLibrary(data_dir("templates")).load("mma").render(config, PROBLEM, space, L4)
    return Candidate((Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89")),))


# -- the jobs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Compile, *sorted(ALL_JOBS, key=lambda kind: kind.method)])
def test_every_job_has_a_worker_method_with_its_arguments_and_its_result(kind: type[Job[Any]]) -> None:
    worker = Builder if kind is Compile else Examiner
    hints = get_type_hints(getattr(worker, kind.method))
    (result,) = (get_args(base)[0] for base in kind.__orig_bases__)  # type: ignore[attr-defined]
    assert hints.pop("return") == (type(None) if result is None else result)
    assert list(hints.items()) == [(name, hint) for name, hint in get_type_hints(kind).items() if name != "method"]


def test_only_a_sanitizer_makes_its_jobs_possible() -> None:
    assert examination_jobs(sanitizer=True) - JOBS == {StartSanitizer, Sanitize}


def test_only_a_device_that_predicts_estimates_its_work() -> None:
    assert examination_jobs(sanitizer=False, predicted=True) - JOBS == {EstimateWork}


# -- deferred ---------------------------------------------------------------------------------------------------------


def test_jobs_wait_until_the_service_is_ready(candidate: Candidate) -> None:
    may_begin = threading.Event()

    def make() -> DeviceWorkers:
        assert may_begin.wait(LONG_S)
        spec = DeviceSpec("emulator")
        return DeviceWorkers(
            prepare(SetupRequest(PROBLEM, spec, inputs_seed=7)), (GpuBinding(),), L4, begin_imports(spec.kind)
        )

    with closing(DeferredService(make, 1, JOBS)) as service:
        assert (service.workers, service.lost, service.supports(Sanitize)) == (1, (), False)
        early, unwanted = service.submit(Examine(candidate)), service.submit(Examine(candidate))
        assert unwanted.cancel()
        assert not early.done()
        may_begin.set()
        assert early.result(LONG_S).status is Status.OK
        assert service.submit(Examine(candidate)).result(LONG_S).timing == early.result().timing
        assert service.submit(Inspect(candidate)).result(LONG_S).finding == ""
        assert service.lost == ()


def test_every_waiting_job_fails_with_the_error_of_the_preparation(candidate: Candidate) -> None:
    def make() -> DeviceWorkers:
        raise UsageError("no such device")

    with closing(DeferredService(make, 1, JOBS)) as service:
        with pytest.raises(UsageError, match="no such device"):
            service.submit(Examine(candidate)).result(LONG_S)
        assert service.lost == ()


# -- prefetching ------------------------------------------------------------------------------------------------------


class RecordingService(ReplayService):
    """A replay that records which configs it compiled."""

    def __init__(self) -> None:
        landscape = null_landscape(16)
        super().__init__(landscape)
        self.jobs = [Compile(evaluation.config) for evaluation in landscape.evaluations]
        self.submitted: list[Job[Any]] = []

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        self.submitted.append(job)
        return super().submit(job)


def test_a_prefetched_job_runs_once_and_its_result_goes_to_the_same_job() -> None:
    inner = RecordingService()
    first, second, third, *_ = inner.jobs
    service = PrefetchingService(inner, (first, second))
    assert inner.submitted == [first, second]
    configs: list[Config] = [service.submit(job).result().config for job in (third, second, first)]
    assert configs == [third.config, second.config, first.config]
    assert inner.submitted == [first, second, third]
    assert (service.workers, service.lost, service.supports(Compile)) == (inner.workers, inner.lost, True)


def test_a_job_submitted_again_runs_again() -> None:
    inner = RecordingService()
    service = PrefetchingService(inner, inner.jobs[:1])
    first, again = (service.submit(inner.jobs[0]) for _ in range(2))
    assert first is not again
    assert inner.submitted == inner.jobs[:1] * 2


def test_a_complete_study_has_no_workers() -> None:
    service = IdleService()
    assert (service.workers, service.lost, service.supports(Compile)) == (0, (), False)
    with pytest.raises(RuntimeError, match="Compile"):
        service.submit(Compile(Config.of("mma", {})))


@pytest.mark.thorough
@pytest.mark.slow
def test_what_is_inspected_ahead_is_inspected_once(candidate: Candidate) -> None:
    """The emulator beside a GPU, which need not be there."""
    setup = prepare(SetupRequest(PROBLEM, DeviceSpec("cuda"), inputs_seed=7))
    with closing(DeviceWorkers(setup, (GpuBinding(),), get_target("h200"))) as service:
        assert service.supports(InspectAhead)
        ahead = service.submit(InspectAhead(candidate))
        assert service.submit(InspectAhead(candidate)) is ahead
        assert ahead.result(LONG_S).finding == ""
        assert service.submit(InspectAhead(candidate)) is ahead
    with closing(DeviceWorkers(replace(setup, device=DeviceSpec("emulator")), (GpuBinding(),), L4)) as service:
        assert not service.supports(InspectAhead)


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU")
def test_without_a_gpu_only_compilers_are_begun_and_for_a_replay_nothing() -> None:
    for device in ("auto", "cuda", "emulator", "replay:some.file"):
        with early_imports(SearchOptions(device=device)) as imports:
            assert imports.devices is None
            assert imports.preparer is None
            assert (imports.compilers is None) == device.startswith("replay")
    assert known_gpu(DeviceSpec("cuda")) is None


@pytest.mark.gpu
def test_the_driver_says_of_a_gpu_what_the_open_device_says() -> None:
    for arch in ("", "sm_80"):
        known = known_gpu(DeviceSpec("cuda", arch=arch))
        assert known is not None, "only of a GPU without a data sheet"
        assert known == DeviceDescriber(DeviceSpec("cuda", arch=arch)).describe()


@pytest.mark.gpu
def test_a_worker_that_warmed_up_examines_like_any_other(candidate: Candidate) -> None:
    spec, bindings = DeviceSpec("cuda", arch="sm_89"), (GpuBinding(),)
    known = known_gpu(spec)
    assert known is not None, "only of a GPU without a data sheet"
    start = begin_imports("cuda")
    start.warm_up(bindings, partial(warm_up, spec, PROBLEM))
    with closing(
        DeviceWorkers(prepare(SetupRequest(PROBLEM, spec, inputs_seed=7)), bindings, known[1], start)
    ) as service:
        found = service.submit(Examine(candidate)).result(LONG_S)
        assert (found.status, found.reason) == (Status.OK, "")
        assert found.timing is not None
        assert found.timing.baseline_us is not None
