"""Where concretes meet: from a request to a search that is ready to run."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from evoengine.cli.doctor import cupy_version, cupy_wheel
from evoengine.cli.gpu import find_gpu
from evoengine.cli.options import database_url
from evoengine.cli.pools import CompilePool, ExaminePool, NoWorkers, describe_device
from evoengine.cli.request import SearchRequest
from evoengine.device.base import StopwatchOptions
from evoengine.emulator.latency import METHOD as PREDICTION_METHOD
from evoengine.errors import ProblemError, UsageError
from evoengine.kernel.cache import default_cache_dir
from evoengine.kernel.template import Template, TemplateLibrary
from evoengine.leaderboard.records import Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DeviceInfo, Problem
from evoengine.search.evaluate import BuildSetup, DeviceKind, DeviceSpec, prepare
from evoengine.search.events import Observer
from evoengine.search.loop import Search
from evoengine.search.registry import STRATEGIES
from evoengine.search.session import SearchResult, SearchSettings
from evoengine.search.start import start_strategy
from evoengine.space.loader import find_space
from evoengine.space.locate import data_dir
from evoengine.space.space import SearchSpace
from evoengine.space.valid import ValidSpace
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
    space: SearchSpace
    template: Template
    valid: ValidSpace

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
            family=self.space.family,
            device=self.device,
            method=self.method,
            strategy=self.request.strategy,
            seed=self.request.seed,
            space_key=_space_key(self.space, self.template),
        )


def make_plan(request: SearchRequest) -> Plan:
    """Looks at the device and builds the valid space.

    Raises:
        UsageError: something in the request cannot be.
        MissingDependencyError: the device lacks something.
    """
    if request.strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy '{request.strategy}': choose one of {', '.join(STRATEGIES)}")
    space = find_space(str(request.space_file) if request.space_file else request.family)
    template = TemplateLibrary(data_dir("templates")).load(space.family)
    choice = choose_device(request)
    device, target = describe_device(choice.spec)
    objection = template.supports(request.problem, device.arch)
    if objection is not None:
        raise ProblemError(objection)
    valid = space.build(request.problem, target)
    if valid.size == 0:
        raise UsageError(f"no config of {space.family} is valid for {request.problem.key} on {target.marketing_name}")
    return Plan(request, choice, device, target, space, template, valid)


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
        strategy = start_strategy(settings, plan.valid, self.board, self.study)
        if self.evaluated >= request.budget:
            nobody = NoWorkers()
            return Search(settings, self.board, self.study, strategy, nobody, nobody, observer).run()
        compilers, examiners = _worker_counts(plan)
        with ExitStack() as stack:
            builds = BuildSetup(
                plan.problem, plan.target, plan.device.arch, plan.space, data_dir("templates"), default_cache_dir()
            )
            compiler = stack.enter_context(closing(CompilePool(builds, compilers)))
            setup = prepare(plan.problem, plan.choice.spec, cold=request.cold_l2, threshold=request.accept)
            examiner = stack.enter_context(closing(ExaminePool(setup, examiners)))
            return Search(settings, self.board, self.study, strategy, compiler, examiner, observer).run()


def _worker_counts(plan: Plan) -> tuple[int, int]:
    """Compile and device workers: one GPU takes one worker; the emulator shares the cores with the compiler."""
    cores = len(os.sched_getaffinity(0))
    if plan.device.predicted:
        return plan.request.workers or max(1, cores // 2), cores
    return plan.request.workers or max(1, cores - 1), 1


def _space_key(space: SearchSpace, template: Template) -> str:
    """Changes whenever a config would mean another kernel."""
    facts = repr((template.template_hash, space.tunables, space.derived, space.constraints))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]
