"""The composition root of a search: plans a request, starts its services and runs it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from evoengine.costmodel.latency import METHOD
from evoengine.device.device_selfcheck import build_known_good
from evoengine.device.protocols import StopwatchOptions
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.device.workers.pool import HeadStart
from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.admitting_compiler import AdmittingCompiler, admission_workers
from evoengine.engine.devices import DeviceChoice, choose_device
from evoengine.engine.families import AUTO, Families, choose_families, own_spaces, serving_all, wanted_spaces
from evoengine.engine.forecast_workers import (
    ForecastSetup,
    ForecastWorkers,
    chosen_by_forecast,
    forecast_worker_count,
)
from evoengine.engine.job_services import DeferredService, IdleService, PrefetchingService
from evoengine.engine.memory_check import check_memory
from evoengine.engine.options import SearchOptions
from evoengine.engine.prefetch import EarlyImports, begin_imports, setup_request
from evoengine.engine.priors import Priors
from evoengine.engine.replay_device import Replay, open_replay
from evoengine.engine.worker_pools import (
    DeviceWorkers,
    compile_workers,
    describe_device,
    examination_jobs,
    known_gpu,
)
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import usable_cache_dir
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import ACCEPT_THRESHOLD, DEFAULT_PROBLEM, NAMED_PROBLEMS, Config, DeviceInfo, Problem, Variant
from evoengine.search.candidate.build import BuildSetup
from evoengine.search.candidate.examiner import warm_up
from evoengine.search.candidate.jobs import Compile, InspectAhead, JobService
from evoengine.search.candidate.setup import Setup
from evoengine.search.champion.energy import meter_elites
from evoengine.search.champion.overdue import overdue_rows
from evoengine.search.events import Observer
from evoengine.search.loop import Search
from evoengine.search.replay import ReplayService
from evoengine.search.settings import SearchResult, SearchSettings
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from evoengine.search.strategies.forecast_sampler import done_future
from evoengine.search.strategies.registry import check_strategy
from evoengine.search.warmstart.forecast import (
    Forecast,
    ForecastChoice,
    fastest_by_forecast,
    forecasts_for,
)
from evoengine.search.warmstart.resume import imported_starts, start_strategy
from evoengine.search.warmstart.transfer import Transferred, transferred
from evoengine.search.warmstart.warm_start_plan import WarmStartPlan
from evoengine.space.data_dirs import data_dirs
from evoengine.space.family_spaces import FamilySpaces
from evoengine.target import Target, target_for_gpu

if TYPE_CHECKING:
    from evoengine.engine.cluster import Cluster
    from evoengine.engine.cluster_search import ClusterDevices

_GPU_COMPILE_QUEUE: Final = 6
"""Candidates that may wait for a compiler where a GPU takes milliseconds for each."""


@dataclass(frozen=True)
class SearchPlan:
    """Everything that is known about a search before its first candidate."""

    request: SearchOptions
    choice: DeviceChoice
    device: DeviceInfo
    target: Target | None
    """The GPU and the architecture to compile for; None in a replay, where nothing is compiled."""
    families: Families
    replay: Replay | None = None
    cluster: ClusterDevices | None = None
    """Devices of a cluster; None for those of this machine."""
    starts: tuple[Config, ...] = ()
    """Configs that are tried before all others."""

    @property
    def problem(self) -> Problem:
        return self.request.problem

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems that each candidate is built for."""
        workload = self.request.workload
        return (self.problem,) if workload is None else workload.problems

    @property
    def priors(self) -> Priors:
        """Prior knowledge that the search uses."""
        return Priors.of(self.request, self.choice.spec.kind)

    @property
    def method(self) -> str:
        """Name of the objective."""
        if self.replay is not None:
            return self.replay.landscape.method
        if self.device.predicted:
            assert self.target is not None
            return METHOD
        return StopwatchOptions(cold=self.request.cold_l2, eager=self.request.eager).method

    @property
    def accept_threshold(self) -> float:
        """Minimum relative speed-up needed to replace the champion.

        The default guards against noise, so it is 0 where there is none to guard against: predictions do not vary, and
        a replay serves to compare strategies.
        """
        if self.request.accept is not None:
            return self.request.accept
        return 0.0 if self.device.predicted or self.replay is not None else ACCEPT_THRESHOLD

    @property
    def elects_first(self) -> bool:
        """Whether the first champion is chosen late.

        On a GPU the threshold would bar faster rows from replacing an early one. On the emulator each early one would
        be inspected, which takes as long as some candidates. A replay inspects nothing and has no threshold by default.
        """
        return self.replay is None

    @property
    def study_key(self) -> StudyKey:
        """Identity of the study: the same request resumes it."""
        return StudyKey(
            problem=self.problem,
            family=self.families.name,
            device=self.device,
            method=self.method,
            strategy=self.request.strategy,
            seed=self.request.seed,
            space_key=self.families.key,
            workload=self.request.workload,
            own_spaces=() if self.replay is not None else own_spaces(self.families),
        )

    @property
    def forecasts(self) -> Mapping[str, Forecast]:
        """Forecasts of the latency model by family; in a replay for the recorded GPU, if it has a data sheet."""
        spaces = [family.space for family in self.families.taken]
        target = self.target
        if self.replay is not None:
            recorded = self.replay.landscape.device
            target = target_for_gpu(recorded.name)
            target = target and target.compiled_for(recorded.arch)
            shipped = {space.family: space for space in wanted_spaces(AUTO, None)}
            spaces = [
                shipped[space.family]
                for space in spaces
                if space.family in shipped and space.by_name.keys() <= shipped[space.family].by_name.keys()
            ]
        return {} if target is None else forecasts_for(spaces, self.problem, target)

    @property
    def valid(self) -> FamilySpaces:
        """The valid configs of all families."""
        return FamilySpaces(tuple(family.valid for family in self.families.taken))


def make_plan(request: SearchOptions, cluster: Cluster | None = None, variants: Sequence[Variant] = ()) -> SearchPlan:
    """Describes the device and builds the valid spaces.

    Args:
        request: Options of the search.
        cluster: Cluster to run on; None for this machine.
        variants: Variants of families that ``request.family`` may name, besides those that it allows itself.

    Raises:
        UsageError: An option of the request is invalid, or options contradict each other.
        ProblemError: A problem does not fit in the memory of this machine or of its GPU.
        MissingDependencyError: The device needs a package or a driver that is missing.
    """
    check_strategy(request.strategy)
    choice, devices = _choose(request, cluster)
    if choice.spec.kind == "replay":
        replay = open_replay(choice.spec.replay)
        found = replace(request, problem=replay.problem(request.problem, NAMED_PROBLEMS[DEFAULT_PROBLEM]))
        device = replay.device_with(Priors.of(request, "replay").on)
        return SearchPlan(found, choice, device, None, replay.families(request.family), replay)
    variants = (*variants, *_stored_variants(request))
    spaces = wanted_spaces(request.family, request.space_file, variants)
    device, gpu = _describe(choice, devices)
    target = gpu.compiled_for(device.arch)
    families = choose_families(spaces, request.problem, target, variants)
    if request.workload is not None:
        families = serving_all(families, request.workload, target)
    plan = SearchPlan(request, choice, device, target, families, cluster=devices)
    check_memory(plan.problems, choice, target)
    return plan


def _stored_variants(request: SearchOptions) -> tuple[Variant, ...]:
    """Returns the variants in the leaderboard if the request allows them; their patches are from its author."""
    if not request.variants:
        return ()
    with Leaderboard(database_url(request.db), create=False) as board:
        return tuple(one.variant for one in board.variants.all())


def _choose(request: SearchOptions, cluster: Cluster | None) -> tuple[DeviceChoice, ClusterDevices | None]:
    if cluster is None:
        return choose_device(request), None
    from evoengine.engine.cluster_search import choose_on_cluster

    return choose_on_cluster(request, cluster)


def _describe(choice: DeviceChoice, devices: ClusterDevices | None) -> tuple[DeviceInfo, Target]:
    if devices is None or devices.gpu is None:
        return describe_device(choice)
    known = known_gpu(choice.spec, devices.gpu, here=False)
    if known is None:
        raise UsageError(f"{devices.gpu.name} is in no data sheet, or older than --arch: search on its own machine")
    info, target = known
    return replace(info, nvrtc=nvrtc_version(), pci_bus_id="", uuid=""), target


class Session:
    """An open leaderboard with the study of a plan. Use it in a ``with`` block.

    Args:
        plan: Plan of the search.
        imports: Imports of the workers that were started before.
        services: Services for compilations and for jobs on the device, which stay open; None to open some.
    """

    def __init__(
        self,
        plan: SearchPlan,
        imports: EarlyImports | None = None,
        services: tuple[JobService, JobService] | None = None,
    ) -> None:
        self._plan = plan
        self._imports = imports or EarlyImports()
        self._stack = ExitStack()
        self._services = services
        self._choice: Future[ForecastChoice] | None = None
        self.board = Leaderboard(database_url(plan.request.db))
        try:
            self.study: Study = self.board.open_study(plan.study_key)
        except BaseException:
            self.board.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing(self.board):
            self._stack.close()

    @property
    def evaluated(self) -> int:
        """Number of distinct candidates in the study."""
        return self.board.evaluated(self.study)

    @cached_property
    def imported(self) -> list[Config]:
        """Imported configs that are tried first."""
        return imported_starts(self.board, self.study, self._plan.valid)

    @cached_property
    def transferred(self) -> list[Transferred]:
        """Configs that were fast for a similar problem or on another GPU; they are tried first."""
        return transferred(self.board, self.study, self._plan.valid) if self._plan.priors.transfer else []

    @cached_property
    def expected_count(self) -> int:
        """Maximum number of configs in :attr:`expected`."""
        plan = self._plan
        if not plan.priors.forecast or self.evaluated >= plan.request.candidates or not self._forecasts:
            return 0
        return self._warm_start.expected

    @property
    def expected(self) -> list[Config]:
        """Configs that the latency model expects to be fastest. Waits for them."""
        return list(self.choice_by_forecast().result().opening)

    def choice_by_forecast(self) -> Future[ForecastChoice]:
        """Returns the choice of :attr:`expected`, which may still be computed; the first call begins it.

        It is under way in a process of its own where there is one, and made here otherwise.
        """
        if self._choice is None:
            self._choice = self._begun_choice()
        return self._choice

    def _begun_choice(self) -> Future[ForecastChoice]:
        plan, forecaster, count = self._plan, self._imports.forecaster, self.expected_count
        if not count:
            return done_future(ForecastChoice())
        seed = plan.request.seed
        if forecaster is None:
            return done_future(fastest_by_forecast(plan.valid, self._forecasts, seed, count))
        thread = ThreadPoolExecutor(1, "forecast")
        self._stack.callback(thread.shutdown)
        self._stack.enter_context(closing(forecaster))
        return thread.submit(forecaster.run, partial(chosen_by_forecast, self._forecast_setup, plan.valid, seed, count))

    @cached_property
    def _forecast_setup(self) -> ForecastSetup:
        """Inputs of the forecasts, for other processes."""
        plan = self._plan
        assert plan.target is not None, "a replay is forecast in this process"
        return ForecastSetup(tuple(family.space for family in plan.families.taken), plan.problem, plan.target)

    @cached_property
    def _forecasts(self) -> Mapping[str, Forecast]:
        """Forecasts by family; they remember what they have simulated."""
        return self._plan.forecasts

    def _shared_forecasts(self) -> Mapping[str, Forecast]:
        """The forecasts, by several processes where the loop must not keep a GPU waiting."""
        plan, count = self._plan, forecast_worker_count()
        if plan.device.kind != "cuda" or plan.target is None or count < 2:
            return self._forecasts
        setup = self._forecast_setup
        workers = self._stack.enter_context(closing(ForecastWorkers(setup, count)))
        return forecasts_for(setup.spaces, setup.problem, setup.target, workers)

    @cached_property
    def _warm_start(self) -> WarmStartPlan:
        """Numbers of configs that are tried first."""
        plan = self._plan
        return WarmStartPlan.of(
            budget=plan.request.candidates,
            named=len(self.starts),
            compilers=_compilers(plan),
            gets_ready=plan.device.kind == "cuda",
        )

    def begin(self) -> None:
        """Starts the workers; compilers prefetch the configs that are certain to be tried."""
        if self._services is not None or self.evaluated >= self._plan.request.candidates:
            return
        compiler, examiner = open_services(self._plan, self._stack, self.evaluated, imports=self._imports)
        if self._imports.forecaster is not None:
            self.choice_by_forecast()  # it is made while this process goes on
        starts, plan = self.starts, self._plan
        tried = len(starts) + self._warm_start.expected + len(self.transferred)
        if not self.evaluated and tried <= plan.request.candidates and not self._forecast_leads:
            compiler = PrefetchingService(compiler, map(Compile, starts))
        self._services = compiler, examiner

    @cached_property
    def starts(self) -> list[Config]:
        """Configs that were asked for, and the starts that the search spaces name."""
        return [*self._wanted, *self._named]

    @cached_property
    def _wanted(self) -> list[Config]:
        """Configs that were asked for; they are tried first."""
        return [*self._plan.starts, *(self.imported if self._plan.priors.starts else [])]

    @cached_property
    def _named(self) -> list[Config]:
        """Starts that the search spaces name."""
        return list(self._plan.valid.starts()) if self._plan.priors.starts else []

    @cached_property
    def _forecast_leads(self) -> bool:
        """Whether the forecast's configs are tried before the named starts.

        They are where no GPU waits for them: a candidate then takes seconds, of which many starts are not worth one.
        """
        return self._plan.device.predicted and self.expected_count > 0

    def _named_by_forecast(self) -> list[Config]:
        """The named starts that have a forecast, fastest first, and the others."""
        forecasts = self._forecasts
        known = {one: forecasts[one.family].us(one) for one in self._named if one.family in forecasts}
        return sorted(self._named, key=lambda one: known.get(one, math.inf))

    def _starts_around_forecast(self) -> tuple[list[Config], list[Config]]:
        """The starts that are tried before the forecast's configs, and those after them.

        A short search leaves out the last starts, not the forecast.
        """
        first = [*(entry.config for entry in self.transferred), *self._wanted]
        starts = [*first, *(self._named_by_forecast() if self._forecast_leads else self._named)]
        before = max(0, self._plan.request.candidates - min(self._warm_start.best, self.expected_count))
        if self._forecast_leads:
            before = min(before, len(first))
        return starts[:before], starts[before:]

    def run(self, observer: Observer) -> SearchResult:
        """Searches; starts the workers unless :meth:`begin` did.

        Raises:
            EvoEngineError: The search cannot go on.
        """
        plan, request = self._plan, self._plan.request
        self.begin()
        before, after = self._starts_around_forecast()
        settings = SearchSettings(
            budget=request.candidates,
            strategy=request.strategy,
            seed=request.seed,
            accept_threshold=plan.accept_threshold,
            elects_first=plan.elects_first,
            deadline_s=request.time_limit_s,
            compile_queue=SearchSettings.compile_queue if plan.device.predicted else _GPU_COMPILE_QUEUE,
            # never longer than what is known beforehand: random samples teach too late
            head=min(self._warm_start.head, len({*before, *after}) + self.expected_count),
        ).paced_for(plan.device)
        choice = self.choice_by_forecast() if self.expected_count else None
        pruner = ForecastPruner(self._shared_forecasts() if plan.priors.skip else {}, choice)
        strategy = start_strategy(
            *(settings, plan.valid, self.board, self.study, before, pruner), later=after, forecast=choice
        )
        pending = _sanitizer(plan) and self.board.pending(self.study.scope)
        overdue = overdue_rows(self.board, self.study, plan.accept_threshold, electing=plan.elects_first)
        if self.evaluated >= request.candidates and not (pending or overdue):
            idle = IdleService()
            return Search(settings, self.board, self.study, strategy, idle, idle, observer).run()
        compiler, examiner = self._services or open_services(plan, self._stack, self.evaluated, imports=self._imports)
        result = Search(settings, self.board, self.study, strategy, compiler, examiner, observer).run()
        result = replace(result, skipped=pruner.skipped)
        return meter_elites(self.board, result, compiler, examiner) if request.energy else result


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
        stack: Closes the services.
        evaluated: Candidates that earlier runs of the study have evaluated.
        change: Changes the setup of the examinations.
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
        _compilers(plan),
        request.compile_limit_s,
        gives_way=not plan.device.predicted,  # a GPU waits for its worker
        imports=imports.compilers,
    )
    stack.enter_context(closing(compiler))
    target, sanitizer, bindings = plan.target, _sanitizer(plan), plan.choice.bindings

    def make() -> DeviceWorkers:
        setup = _prepared(plan, imports.preparer, cache_dir)
        if change is not None:
            setup = change(setup)
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
    cache_dir, sanitizer = usable_cache_dir(), _sanitizer(plan)

    def prepared() -> Setup:
        return replace(_prepared(plan, None, cache_dir), sanitizer=sanitizer)

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


def _sanitizer(plan: SearchPlan) -> str:
    """Path of the compute-sanitizer that checks new champions; empty for none."""
    if not plan.request.sanitizer or plan.device.kind != "cuda":
        return ""
    return plan.cluster.sanitizer if plan.cluster is not None else str(find_sanitizer() or "")


def _compilers(plan: SearchPlan) -> int:
    """Number of compile workers: one for every core.

    A GPU's worker needs a core for two thirds of the time, and the compilers run at lower priority than it; the
    emulator's workers share the cores with them, since either may need more than half.
    """
    if plan.cluster is not None:
        return plan.cluster.workers("compile")
    return plan.request.workers or len(os.sched_getaffinity(0))
