"""Where concretes meet: from a request to a search that is ready to run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import TracebackType
from typing import Self

from evoengine.cli.doctor import cupy_version, cupy_wheel
from evoengine.cli.early import begin_imports
from evoengine.cli.families import AUTO, Families, choose_families, serving_all, wanted_spaces
from evoengine.cli.gpu import find_gpu
from evoengine.cli.late import LateExaminer
from evoengine.cli.options import DEFAULT_PROBLEM, database_url
from evoengine.cli.pools import CompilePool, ExaminePool, NoWorkers, describe_device
from evoengine.cli.replaying import PREFIX, Replay, open_replay
from evoengine.cli.request import SearchRequest
from evoengine.device.base import StopwatchOptions
from evoengine.device.health import build_known_good
from evoengine.device.sanitizer import find_sanitizer
from evoengine.device.worker import HeadStart
from evoengine.emulator.latency import METHOD as PREDICTION_METHOD
from evoengine.errors import UsageError
from evoengine.kernel.cache import default_cache_dir
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import NAMED_PROBLEMS, Config, DeviceInfo, Problem
from evoengine.parity.pool import fresh_seed
from evoengine.search.energy import meter_elites
from evoengine.search.evaluate import BuildSetup, DeviceKind, DeviceSpec, Setup, prepare
from evoengine.search.events import Observer
from evoengine.search.joint import prepare_workload
from evoengine.search.loop import Search
from evoengine.search.registry import STRATEGIES
from evoengine.search.replay import ReplayCompiler, ReplayExaminer
from evoengine.search.screening import COUNT, Forecast, forecasts_for, promising
from evoengine.search.services import CompileService, ExamineService
from evoengine.search.session import SearchResult, SearchSettings
from evoengine.search.start import imported_seeds, start_strategy
from evoengine.search.transfer import Transferred, transferred
from evoengine.space.families import FamilySpaces
from evoengine.space.locate import data_dir
from evoengine.target import Target, target_for_gpu


@dataclass(frozen=True)
class DeviceChoice:
    """Which device a search uses, and why."""

    spec: DeviceSpec
    reason: str
    """Empty when the user named it."""


def choose_device(request: SearchRequest) -> DeviceChoice:
    """Resolves ``--device auto``.

    Raises:
        UsageError: no such device.
    """
    kind: DeviceKind
    match request.device:
        case "cuda":
            kind, reason = "cuda", ""
        case "emulator":
            kind, reason = "emulator", ""
        case "auto":
            kind, reason = _detect()
        case other if other.startswith(PREFIX):
            kind, reason = "replay", ""
        case other:
            raise UsageError(f"unknown device '{other}': choose auto, cuda, emulator or {PREFIX}FILE")
    if request.cold_l2 and kind != "cuda":
        raise UsageError("--cold-l2 times on a GPU: the emulator predicts with warm caches only")
    if request.eager and kind != "cuda":
        raise UsageError("--eager times launches on a GPU: the emulator predicts what a graph of them takes")
    if request.workload is not None and kind == "replay":
        raise UsageError("a replay knows one problem: leave --workload out")
    if kind == "replay" and (request.arch or request.space_file is not None):
        raise UsageError("a replay searches what was recorded: leave --arch and --space out")
    replay = request.device.removeprefix(PREFIX) if kind == "replay" else ""
    return DeviceChoice(DeviceSpec(kind, request.target, request.arch, replay), reason)


def _detect() -> tuple[DeviceKind, str]:
    gpu = find_gpu()
    if gpu is None:
        return "emulator", "no GPU is visible"
    if cupy_version() is None:
        return "emulator", f"{gpu.name} is there but CuPy is not: python -m pip install {cupy_wheel(gpu)}"
    return "cuda", ""


@dataclass(frozen=True)
class Plan:
    """Everything that is known before the first candidate: what the search will do."""

    request: SearchRequest
    choice: DeviceChoice
    device: DeviceInfo
    target: Target | None
    """The GPU, with the architecture that is compiled for; None in a replay, where nothing is compiled."""
    families: Families
    replay: Replay | None = None

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.request.problem

    @property
    def method(self) -> str:
        """Name of the objective."""
        if self.replay is not None:
            return self.replay.landscape.method
        if self.device.predicted:
            return PREDICTION_METHOD
        return StopwatchOptions(cold=self.request.cold_l2, eager=self.request.eager).method

    @property
    def study_key(self) -> StudyKey:
        """Identity of the study: the same request finds it again."""
        return StudyKey(
            problem=self.problem,
            family=self.families.name,
            device=self.device,
            method=self.method,
            strategy=self.request.strategy,
            seed=self.request.seed,
            space_key=self.families.key,
            workload=self.request.workload,
        )

    @property
    def forecasts(self) -> dict[str, Forecast]:
        """What the latency model can forecast, by family; in a replay for the GPU that was recorded, if it is known."""
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
                if space.family in shipped and shipped[space.family].by_name.keys() == space.by_name.keys()
            ]
        return {} if target is None else forecasts_for(spaces, self.problem, target)

    @property
    def valid(self) -> FamilySpaces:
        """The valid configs of all families."""
        return FamilySpaces(tuple(family.valid for family in self.families.taken))


def make_plan(request: SearchRequest) -> Plan:
    """Looks at the device and builds the valid spaces.

    Raises:
        UsageError: something in the request cannot be.
        MissingDependencyError: the device lacks something.
    """
    if request.strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy '{request.strategy}': choose one of {', '.join(STRATEGIES)}")
    choice = choose_device(request)
    if choice.spec.kind == "replay":
        replay = open_replay(choice.spec.replay)
        found = replace(request, problem=replay.problem(request.problem, NAMED_PROBLEMS[DEFAULT_PROBLEM]))
        return Plan(found, choice, replay.device, None, replay.families(request.family), replay)
    spaces = wanted_spaces(request.family, request.space_file)
    device, gpu = describe_device(choice.spec)
    target = gpu.compiled_for(device.arch)
    families = choose_families(spaces, request.problem, target)
    if request.workload is not None:
        families = serving_all(families, request.workload, target)
    return Plan(request, choice, device, target, families)


class Session:
    """An open leaderboard with the study of a plan. Use it in a ``with`` block."""

    def __init__(self, plan: Plan, imports: HeadStart | None = None) -> None:
        self._plan = plan
        self._imports = imports
        self.board = Leaderboard(database_url(plan.request.db))
        self.study: Study = self.board.open_study(plan.study_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.board.close()

    @property
    def evaluated(self) -> int:
        """Distinct candidates that the study holds already."""
        return self.board.evaluated(self.study)

    @cached_property
    def imported(self) -> list[Config]:
        """Configs of others that are tried first."""
        return imported_seeds(self.board, self.study, self._plan.valid)

    @cached_property
    def transferred(self) -> list[Transferred]:
        """What was fast for a near problem, or on another GPU, and is tried first."""
        return transferred(self.board, self.study, self._plan.valid) if self._plan.request.transfer else []

    @cached_property
    def expected(self) -> list[Config]:
        """What the latency model expects to be fastest, and is tried first."""
        plan = self._plan
        if not plan.request.forecast or self.evaluated >= plan.request.budget:
            return []
        return promising(plan.valid, plan.forecasts, plan.request.seed, min(COUNT, plan.request.budget // 4))

    def run(self, observer: Observer) -> SearchResult:
        """Starts the workers and searches.

        Raises:
            EvoEngineError: the search cannot go on.
        """
        plan, request = self._plan, self._plan.request
        settings = SearchSettings(
            budget=request.budget,
            strategy=request.strategy,
            seed=request.seed,
            accept_threshold=request.accept,
            deadline_s=request.time_limit_s,
        )
        starts = [*self.imported, *plan.valid.starts()] if request.starts else []
        starts[:0] = [*(entry.config for entry in self.transferred), *self.expected]
        strategy = start_strategy(settings, plan.valid, self.board, self.study, starts)
        waits = _sanitizer(plan) and self.board.pending(self.study.scope)
        if self.evaluated >= request.budget and not waits:
            nobody = NoWorkers()
            return Search(settings, self.board, self.study, strategy, nobody, nobody, observer).run()
        with ExitStack() as stack:
            compiler, examiner = open_services(plan, stack, self.evaluated, imports=self._imports)
            result = Search(settings, self.board, self.study, strategy, compiler, examiner, observer).run()
            return meter_elites(self.board, result, compiler, examiner) if request.energy else result


def open_services(
    plan: Plan,
    stack: ExitStack,
    evaluated: int = 0,
    change: Callable[[Setup], Setup] | None = None,
    imports: HeadStart | None = None,
) -> tuple[CompileService, ExamineService]:
    """Starts what a search hands its work to; what is to be examined is prepared while the first of it is compiled.

    Args:
        plan: what is searched.
        stack: closes it all.
        evaluated: candidates that earlier runs of the study have evaluated.
        change: changes what an examination consists of.
        imports: of the device workers, where they were begun before.
    """
    request = plan.request
    if plan.replay is not None:
        landscape, noise = plan.replay.landscape, plan.replay.noise
        return ReplayCompiler(landscape), ReplayExaminer(landscape, noise, request.accept, evaluated)
    assert plan.target is not None, "only a replay has no target"
    compilers, examiners = _worker_counts(plan)
    imports = imports or stack.enter_context(closing(begin_imports(plan.choice.spec.kind)))
    spaces = tuple(family.space for family in plan.families.taken)
    builds = BuildSetup(plan.problem, plan.target, plan.device.arch, spaces, data_dir("templates"), default_cache_dir())
    further = () if request.workload is None else request.workload.problems[1:]
    builds = replace(builds, others=further, spill_limit_bytes=request.spill_limit_bytes)
    compiler = stack.enter_context(closing(CompilePool(builds, compilers, request.compile_limit_s)))
    prepare_one = partial(
        prepare,
        device=plan.choice.spec,
        inputs_seed=fresh_seed() if request.inputs_seed is None else request.inputs_seed,
        cold=request.cold_l2,
        eager=request.eager,
        racing=request.racing,
        threshold=request.accept,
    )
    target, tool = plan.target, _sanitizer(plan)

    def make() -> ExaminePool:
        whole = request.workload
        setup = prepare_one(plan.problem) if whole is None else prepare_workload(whole, prepare_one)
        if change is not None:
            setup = change(setup)
        known_good = build_known_good(plan.device.arch, builds.cache_dir)
        others = tuple(replace(other, sanitizer=tool) for other in setup.others)
        setup = replace(setup, known_good=known_good, sanitizer=tool, others=others)
        return ExaminePool(setup, examiners, target, imports)

    return compiler, stack.enter_context(closing(LateExaminer(make, examiners, sanitizes=bool(tool))))


def _sanitizer(plan: Plan) -> str:
    """The compute-sanitizer that looks at new champions; empty for none."""
    return str(find_sanitizer() or "") if plan.request.sanitizer and plan.device.kind == "cuda" else ""


def _worker_counts(plan: Plan) -> tuple[int, int]:
    """Compile and device workers: one GPU takes one worker; the emulator shares the cores with the compiler."""
    cores = len(os.sched_getaffinity(0))
    if plan.device.predicted:
        return plan.request.workers or max(1, cores // 2), cores
    return plan.request.workers or max(1, cores - 1), 1
