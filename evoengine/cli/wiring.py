"""Where concretes meet: from a request to a search that is ready to run."""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from evoengine.cli.doctor import cupy_version, cupy_wheel
from evoengine.cli.families import Families, choose_families, wanted_spaces
from evoengine.cli.gpu import find_gpu
from evoengine.cli.options import database_url
from evoengine.cli.pools import CompilePool, ExaminePool, NoWorkers, describe_device
from evoengine.cli.request import SearchRequest
from evoengine.device.base import StopwatchOptions
from evoengine.device.health import build_known_good
from evoengine.emulator.latency import METHOD as PREDICTION_METHOD
from evoengine.errors import UsageError
from evoengine.kernel.cache import default_cache_dir
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo, Problem
from evoengine.search.evaluate import BuildSetup, DeviceKind, DeviceSpec, prepare
from evoengine.search.events import Observer
from evoengine.search.loop import Search
from evoengine.search.registry import STRATEGIES
from evoengine.search.session import SearchResult, SearchSettings
from evoengine.search.start import start_strategy
from evoengine.space.families import FamilySpaces
from evoengine.space.locate import data_dir
from evoengine.target import Target


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
        case other:
            raise UsageError(f"unknown device '{other}': choose auto, cuda or emulator")
    if request.cold_l2 and kind != "cuda":
        raise UsageError("--cold-l2 times on a GPU: the emulator predicts with warm caches only")
    return DeviceChoice(DeviceSpec(kind, request.target, request.arch), reason)


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
    target: Target
    """The GPU, with the architecture that is compiled for."""
    families: Families

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.request.problem

    @property
    def method(self) -> str:
        """Name of the objective."""
        return PREDICTION_METHOD if self.device.predicted else StopwatchOptions(cold=self.request.cold_l2).method

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
        )

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
    spaces = wanted_spaces(request.family, request.space_file)
    choice = choose_device(request)
    device, gpu = describe_device(choice.spec)
    target = gpu.compiled_for(device.arch)
    return Plan(request, choice, device, target, choose_families(spaces, request.problem, target))


class Session:
    """An open leaderboard with the study of a plan. Use it in a ``with`` block."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
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
        starts = plan.valid.starts() if request.starts else []
        strategy = start_strategy(settings, plan.valid, self.board, self.study, starts)
        if self.evaluated >= request.budget:
            nobody = NoWorkers()
            return Search(settings, self.board, self.study, strategy, nobody, nobody, observer).run()
        compilers, examiners = _worker_counts(plan)
        with ExitStack() as stack:
            spaces = tuple(family.space for family in plan.families.taken)
            builds = BuildSetup(
                plan.problem, plan.target, plan.device.arch, spaces, data_dir("templates"), default_cache_dir()
            )
            compiler = stack.enter_context(closing(CompilePool(builds, compilers, request.compile_limit_s)))
            setup = prepare(
                plan.problem,
                plan.choice.spec,
                inputs_seed=request.inputs_seed,
                cold=request.cold_l2,
                threshold=request.accept,
            )
            setup = replace(setup, known_good=build_known_good(plan.device.arch, builds.cache_dir))
            examiner = stack.enter_context(closing(ExaminePool(setup, examiners, plan.target)))
            return Search(settings, self.board, self.study, strategy, compiler, examiner, observer).run()


def _worker_counts(plan: Plan) -> tuple[int, int]:
    """Compile and device workers: one GPU takes one worker; the emulator shares the cores with the compiler."""
    cores = len(os.sched_getaffinity(0))
    if plan.device.predicted:
        return plan.request.workers or max(1, cores // 2), cores
    return plan.request.workers or max(1, cores - 1), 1
