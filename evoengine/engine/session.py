"""Where concretes meet: from a request to a search that is ready to run."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import TracebackType
from typing import Final, Self

from evoengine.costmodel.latency import METHOD as PREDICTION_METHOD
from evoengine.device.device_selfcheck import build_known_good
from evoengine.device.protocols import StopwatchOptions
from evoengine.device.tools.sanitizer import find_sanitizer
from evoengine.engine.deferred_examiner import DeferredExaminer
from evoengine.engine.devices import DeviceChoice, choose_device
from evoengine.engine.families import AUTO, Families, choose_families, own_spaces, serving_all, wanted_spaces
from evoengine.engine.options import SearchOptions
from evoengine.engine.prefetch import EarlyImports, begin_imports
from evoengine.engine.prefetching_compiler import PrefetchingCompiler
from evoengine.engine.replay_device import Replay, open_replay
from evoengine.engine.worker_pools import CompilePool, ExaminePool, NoWorkers, describe_device
from evoengine.errors import UsageError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.leaderboard.connection import database_url
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DEFAULT_PROBLEM, NAMED_PROBLEMS, Config, DeviceInfo, Problem
from evoengine.parity.inputs.pool import fresh_seed
from evoengine.search.candidate.evaluate import BuildSetup, Setup, prepare
from evoengine.search.candidate.services import CompileService, ExamineService
from evoengine.search.candidate.workload_examiner import prepare_workload
from evoengine.search.champion.energy import meter_elites
from evoengine.search.events import Observer
from evoengine.search.loop import Search
from evoengine.search.replay import ReplayCompiler, ReplayExaminer
from evoengine.search.settings import SearchResult, SearchSettings
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from evoengine.search.strategies.registry import STRATEGIES
from evoengine.search.warmstart.forecast import Forecast, forecasts_for, promising
from evoengine.search.warmstart.resume import imported_seeds, start_strategy
from evoengine.search.warmstart.transfer import Transferred, transferred
from evoengine.search.warmstart.warm_start_plan import WarmStartPlan
from evoengine.space.data_dirs import data_dir
from evoengine.space.family_spaces import FamilySpaces
from evoengine.target import Target, target_for_gpu

_GPU_LOOKAHEAD: Final = 6
"""Candidates that wait for a compiler or a GPU: with 15 compilers each has the next one at hand, which saves 3 %."""


@dataclass(frozen=True)
class SearchPlan:
    """Everything that is known before the first candidate: what the search will do."""

    request: SearchOptions
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
            own_spaces=() if self.replay is not None else own_spaces(self.families),
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
                if space.family in shipped and space.by_name.keys() <= shipped[space.family].by_name.keys()
            ]
        return {} if target is None else forecasts_for(spaces, self.problem, target)

    @property
    def valid(self) -> FamilySpaces:
        """The valid configs of all families."""
        return FamilySpaces(tuple(family.valid for family in self.families.taken))


def make_plan(request: SearchOptions) -> SearchPlan:
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
        return SearchPlan(found, choice, replay.device, None, replay.families(request.family), replay)
    spaces = wanted_spaces(request.family, request.space_file)
    device, gpu = describe_device(choice)
    target = gpu.compiled_for(device.arch)
    families = choose_families(spaces, request.problem, target)
    if request.workload is not None:
        families = serving_all(families, request.workload, target)
    return SearchPlan(request, choice, device, target, families)


class Session:
    """An open leaderboard with the study of a plan. Use it in a ``with`` block."""

    def __init__(self, plan: SearchPlan, imports: EarlyImports | None = None) -> None:
        self._plan = plan
        self._imports = imports or EarlyImports()
        self._stack = ExitStack()
        self._services: tuple[CompileService, ExamineService] | None = None
        self.board = Leaderboard(database_url(plan.request.db))
        self.study: Study = self.board.open_study(plan.study_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing(self.board):
            self._stack.close()

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
        return promising(plan.valid, plan.forecasts, plan.request.seed, self._opening.expected)

    @cached_property
    def _opening(self) -> WarmStartPlan:
        """How many configs are tried first."""
        plan = self._plan
        return WarmStartPlan.of(
            budget=plan.request.budget,
            named=len(self._starts),
            compilers=_compilers(plan),
            predicted=plan.device.predicted,
            gets_ready=plan.device.kind == "cuda",
        )

    def begin(self) -> None:
        """Starts the workers; compilers begin with what is tried in any case, while the rest is still to be chosen."""
        if self._services is not None or self.evaluated >= self._plan.request.budget:
            return
        compiler, examiner = open_services(self._plan, self._stack, self.evaluated, imports=self._imports)
        starts = self._starts
        tried = len(starts) + self._opening.expected + len(self.transferred)
        if not self.evaluated and tried <= self._plan.request.budget:
            compiler = PrefetchingCompiler(compiler, starts)
        self._services = compiler, examiner

    @cached_property
    def _starts(self) -> list[Config]:
        """Configs of others and of the search spaces."""
        return [*self.imported, *self._plan.valid.starts()] if self._plan.request.starts else []

    def run(self, observer: Observer) -> SearchResult:
        """Searches, with workers that are started unless they were before.

        Raises:
            EvoEngineError: the search cannot go on.
        """
        plan, request = self._plan, self._plan.request
        self.begin()
        best, next_best = self.expected[: self._opening.best], self.expected[self._opening.best :]
        starts = [*(entry.config for entry in self.transferred), *best, *self._starts, *next_best]
        settings = SearchSettings(
            budget=request.budget,
            strategy=request.strategy,
            seed=request.seed,
            accept_threshold=request.accept,
            deadline_s=request.time_limit_s,
            lookahead=SearchSettings.lookahead if plan.device.predicted else _GPU_LOOKAHEAD,
            head=min(self._opening.head, len(set(starts))),  # strangers would fill the rest, and teach too late
        )
        screen = ForecastPruner(plan.forecasts if request.skip else {})
        strategy = start_strategy(settings, plan.valid, self.board, self.study, starts, screen)
        waits = _sanitizer(plan) and self.board.pending(self.study.scope)
        if self.evaluated >= request.budget and not waits:
            nobody = NoWorkers()
            return Search(settings, self.board, self.study, strategy, nobody, nobody, observer).run()
        compiler, examiner = self._services or open_services(plan, self._stack, self.evaluated, imports=self._imports)
        result = Search(settings, self.board, self.study, strategy, compiler, examiner, observer).run()
        result = replace(result, skipped=screen.skipped)
        return meter_elites(self.board, result, compiler, examiner) if request.energy else result


def open_services(
    plan: SearchPlan,
    stack: ExitStack,
    evaluated: int = 0,
    change: Callable[[Setup], Setup] | None = None,
    imports: EarlyImports | None = None,
) -> tuple[CompileService, ExamineService]:
    """Starts what a search hands its work to; what is to be examined is prepared while the first of it is compiled.

    Args:
        plan: what is searched.
        stack: closes it all.
        evaluated: candidates that earlier runs of the study have evaluated.
        change: changes what an examination consists of.
        imports: of the workers, where they were begun before.
    """
    request, imports = plan.request, imports or EarlyImports()
    if plan.replay is not None:
        landscape, noise = plan.replay.landscape, plan.replay.noise
        return ReplayCompiler(landscape), ReplayExaminer(landscape, noise, request.accept, evaluated)
    assert plan.target is not None, "only a replay has no target"
    devices = imports.devices or stack.enter_context(closing(begin_imports(plan.choice.spec.kind)))
    spaces = tuple(family.space for family in plan.families.taken)
    builds = BuildSetup(plan.problem, plan.target, plan.device.arch, spaces, data_dir("templates"), default_cache_dir())
    further = () if request.workload is None else request.workload.problems[1:]
    on_gpu = not plan.device.predicted  # it waits for its worker
    builds = replace(builds, others=further, spill_limit_bytes=request.spill_limit_bytes)
    pool = CompilePool(builds, _compilers(plan), request.compile_limit_s, gives_way=on_gpu, imports=imports.compilers)
    compiler = stack.enter_context(closing(pool))
    prepare_one = partial(
        prepare,
        device=plan.choice.spec,
        inputs_seed=fresh_seed() if request.inputs_seed is None else request.inputs_seed,
        cold=request.cold_l2,
        eager=request.eager,
        racing=request.racing,
        threshold=request.accept,
    )
    target, tool, places = plan.target, _sanitizer(plan), plan.choice.places

    whole, preparer = request.workload, imports.preparer
    prepare_all: Callable[[], Setup] = (
        partial(prepare_one, plan.problem) if whole is None else partial(prepare_workload, whole, prepare_one)
    )

    def make() -> ExaminePool:
        if preparer is None:
            setup = prepare_all()
        else:
            with closing(preparer):
                setup = preparer.run(prepare_all)
        if change is not None:
            setup = change(setup)
        known_good = build_known_good(plan.device.arch, builds.cache_dir)
        others = tuple(replace(other, sanitizer=tool) for other in setup.others)
        setup = replace(setup, known_good=known_good, sanitizer=tool, others=others)
        return ExaminePool(setup, places, target, devices)

    return compiler, stack.enter_context(closing(DeferredExaminer(make, len(places), sanitizes=bool(tool))))


def _sanitizer(plan: SearchPlan) -> str:
    """The compute-sanitizer that looks at new champions; empty for none."""
    return str(find_sanitizer() or "") if plan.request.sanitizer and plan.device.kind == "cuda" else ""


def _compilers(plan: SearchPlan) -> int:
    """Compile workers: one for every core.

    A GPU's worker needs a core for two thirds of the time, and the compilers beside it give way; the emulator's workers
    share the cores with them, since either may need more than half.
    """
    return plan.request.workers or len(os.sched_getaffinity(0))
