"""The one road that every candidate walks: render, compile, resource gate, parity gate, timing, recheck.

It is cut where the processes are cut. A :class:`Builder` (compile pool, no device) turns a config into a
:class:`Compilation`; an :class:`Examiner` (one per device worker) turns a kernel into an :class:`Examination`;
:func:`conclude` joins both into the row that is stored. :func:`evaluate` walks the whole road in this process.
Every candidate error becomes a status here, and only here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from evoengine.bench.acceptance import DEFAULT_THRESHOLD
from evoengine.bench.baseline import BaselineRow
from evoengine.bench.benchmark import Benchmark
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.device.base import Device
from evoengine.errors import (
    CandidateError,
    CandidateTimeoutError,
    CompileError,
    LaunchError,
    RenderError,
    ResourceError,
    WorkerCrashError,
)
from evoengine.kernel.artifact import Binary, Kernel, Source
from evoengine.kernel.compiler import Compiler
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.template import TemplateLibrary
from evoengine.model import Config, DeviceInfo, Duel, Evaluation, Problem, Status, Timing, Verdict
from evoengine.parity.cases import build_cases, problem_case
from evoengine.parity.gate import ParityCase, run_gate
from evoengine.space.space import SearchSpace
from evoengine.target import Target, get_target

DeviceKind = Literal["cuda", "emulator"]

EMULATED_FLOPS: Final = 2 * 10**9
"""The emulator runs problems up to this size whole (four times the mission problem); of larger ones, a slice."""

_RECHECK_SEED: Final = 1_000_003
"""Added to the seed for the inputs that no candidate has seen before it was timed."""

_STATUS_OF: Final[Mapping[type[CandidateError], Status]] = {
    RenderError: Status.RENDER_FAILED,
    CompileError: Status.COMPILE_FAILED,
    ResourceError: Status.RESOURCE_LIMIT,
    LaunchError: Status.LAUNCH_FAILED,
    CandidateTimeoutError: Status.TIMEOUT,
    WorkerCrashError: Status.CRASHED,
}


def status_of(error: CandidateError) -> Status:
    """The status that a candidate error stands for."""
    for kind, status in _STATUS_OF.items():
        if isinstance(error, kind):
            return status
    return Status.CRASHED


@dataclass(frozen=True)
class DeviceSpec:
    """Which device to open; picklable, so that each worker opens its own."""

    kind: DeviceKind
    target: str = "l4"
    """Name of the GPU to predict for; the emulator only."""
    arch: str = ""
    """Architecture to compile for; empty for the device's own."""


def open_device(spec: DeviceSpec) -> Device:
    """Opens a device in this process.

    Raises:
        UsageError: no such target, or the device cannot run the architecture.
        MissingDependencyError: no GPU, no driver or no CuPy.
    """
    if spec.kind == "cuda":
        from evoengine.device.cuda import CudaDevice  # lazily: CuPy takes seconds and needs a driver

        return CudaDevice(spec.arch or None)
    from evoengine.emulator.device import EmulatorDevice

    return EmulatorDevice(get_target(spec.target), spec.arch or None)


@dataclass(frozen=True)
class BuildSetup:
    """What a compile worker needs to build candidates."""

    problem: Problem
    target: Target
    arch: str
    space: SearchSpace
    templates_dir: Path
    cache_dir: Path | None


@dataclass(frozen=True)
class Compilation:
    """How far a config came without a device: a binary that fits, or a status."""

    config: Config
    status: Status
    """OK only means "go on": nothing has run yet."""
    reason: str = ""
    source: Source | None = None
    binary: Binary | None = None
    """Also there when it failed the resource gate."""
    stage_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def kernel(self) -> Kernel | None:
        """What to examine; None when the walk has ended."""
        if self.status is not Status.OK or self.source is None or self.binary is None:
            return None
        return Kernel(self.source, self.binary)


@dataclass(frozen=True)
class Setup:
    """What a device worker needs to examine candidates; picklable. :func:`prepare` makes it once per search."""

    problem: Problem
    device: DeviceSpec
    cases: tuple[ParityCase, ...]
    recheck: ParityCase
    """The problem on inputs that are looked at only after timing."""
    plan: TimingPlan
    threshold: float = DEFAULT_THRESHOLD


@dataclass(frozen=True)
class Examination:
    """What a device said about one kernel."""

    status: Status
    reason: str = ""
    verdict: Verdict | None = None
    timing: Timing | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)


class _Clock:
    """Wall seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def prepare(
    problem: Problem,
    device: DeviceSpec,
    *,
    seeds: tuple[int, ...] = (0,),
    cold: bool = False,
    threshold: float = DEFAULT_THRESHOLD,
) -> Setup:
    """Computes references and tolerances once, in the main process (it imports torch; the workers need not).

    Args:
        problem: what is searched for.
        device: where candidates run.
        seeds: of the parity inputs.
        cold: time with a flushed L2 cache.
        threshold: gain that a challenger needs.
    """
    max_flops = EMULATED_FLOPS if device.kind == "emulator" else None
    return Setup(
        problem=problem,
        device=device,
        cases=build_cases(problem, seeds, max_flops),
        recheck=problem_case(problem, seeds[0] + _RECHECK_SEED, max_flops),
        plan=plan_for(problem, cold=cold),
        threshold=threshold,
    )


class Builder:
    """Renders and compiles candidates of one search; needs no device. Lives in a compile worker."""

    def __init__(self, setup: BuildSetup) -> None:
        self._setup = setup
        self._template = TemplateLibrary(setup.templates_dir).load(setup.space.family)
        self._compiler = Compiler(setup.cache_dir)

    def build(self, config: Config) -> Compilation:
        """Walks a config up to the resource gate; never raises for a candidate's fault."""
        setup, clock = self._setup, _Clock()
        source: Source | None = None
        binary: Binary | None = None
        try:
            with clock.stage("render"):
                source = self._template.render(config, setup.problem, setup.space, setup.target)
            with clock.stage("compile"):
                binary = self._compiler.compile(source, setup.arch)
            excess = resource_gate(binary, source.launch, setup.target)
            if excess is not None:
                raise ResourceError(excess)
        except CandidateError as error:
            return Compilation(config, status_of(error), str(error), source, binary, clock.seconds)
        return Compilation(config, Status.OK, "", source, binary, clock.seconds)


class Examiner:
    """Judges and times kernels on one device. Lives in a device worker."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._device = open_device(setup.device)
        self._benchmark = Benchmark(setup.problem, _timing_case(setup).inputs, setup.plan)
        if not self._device.info.predicted:
            self._benchmark.baselines()  # now, while candidates are still compiled, not within the first one's deadline

    @property
    def info(self) -> DeviceInfo:
        """The device that is examined on."""
        return self._device.info

    @property
    def healthy(self) -> bool:
        """False once the device is lost to this process; the worker is then replaced."""
        return self._device.healthy

    def describe(self) -> tuple[DeviceInfo, Target]:
        """Facts about the device, as a job that a worker can answer."""
        return self._device.info, self._device.target

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Every SDPA backend on the problem's inputs, for reports; empty where nothing is measured."""
        return () if self._device.info.predicted else self._benchmark.baselines()

    def examine(self, kernel: Kernel, champion_us: float | None = None) -> Examination:
        """Parity gate, timing, recheck; never raises for a candidate's fault.

        Nothing is timed before it passed the gate. Afterwards the problem is checked once more on fresh inputs; a
        predicted kernel only when it could become champion, because emulating is dear and a prediction wears nothing.

        Args:
            kernel: the candidate.
            champion_us: best time so far; None rechecks in any case.
        """
        clock = _Clock()
        verdict: Verdict | None = None
        try:
            with clock.stage("load"):
                loaded = self._device.load(kernel)
            with closing(loaded):
                with clock.stage("parity"):
                    verdict = run_gate(loaded, self._setup.cases)
                if not verdict.passed:
                    return Examination(Status.PARITY_FAILED, verdict.reason, verdict, None, clock.seconds)
                with clock.stage("bench"):
                    timing = self._benchmark.time(loaded)
                hopeless = timing.predicted and champion_us is not None and timing.median_us >= champion_us
                if not hopeless:
                    with clock.stage("recheck"):
                        verdict = _joined(verdict, run_gate(loaded, (self._setup.recheck,)))
        except CandidateError as error:
            return Examination(status_of(error), str(error), verdict, None, clock.seconds)
        if not verdict.passed:
            return Examination(Status.PARITY_FAILED, f"after timing: {verdict.reason}", verdict, None, clock.seconds)
        return Examination(Status.OK, "", verdict, timing, clock.seconds)

    def challenge(self, challenger: Kernel, champion: Kernel) -> Duel:
        """Fresh interleaved pairs of two kernels that were examined before.

        Raises:
            CandidateError: one of them failed this time.
        """
        with ExitStack() as stack:
            ours, theirs = (
                stack.enter_context(closing(self._device.load(kernel))) for kernel in (challenger, champion)
            )
            return self._benchmark.duel(ours, theirs, self._setup.threshold)

    def close(self) -> None:
        """Releases baseline and device."""
        self._benchmark.close()
        self._device.close()


def _timing_case(setup: Setup) -> ParityCase:
    """The case whose inputs are timed: the problem itself, which is always the last."""
    return setup.cases[-1]


def _joined(first: Verdict, again: Verdict) -> Verdict:
    """One verdict of two runs of the gate; the later one decides."""
    worse = not again.passed or _ratio(again) > _ratio(first)
    return replace(
        again if worse else first,
        passed=again.passed,
        relative_l2=max(first.relative_l2, again.relative_l2),
        cases=first.cases + again.cases,
        reason=again.reason,
    )


def _ratio(verdict: Verdict) -> float:
    return verdict.max_error / verdict.tolerance if verdict.tolerance > 0 else verdict.max_error


def conclude(compilation: Compilation, examination: Examination | None = None) -> Evaluation:
    """The row to store for a candidate.

    Args:
        compilation: how far it came without a device.
        examination: what the device said; None when the walk ended before, or has not come there.

    Raises:
        ValueError: the compilation succeeded, but there is no examination.
    """
    if examination is None and compilation.status is Status.OK:
        raise ValueError("a compiled candidate must be examined before it is concluded")
    source, binary = compilation.source, compilation.binary
    seconds = dict(compilation.stage_seconds) | dict(examination.stage_seconds if examination else {})
    return Evaluation(
        config=compilation.config,
        status=examination.status if examination else compilation.status,
        reason=examination.reason if examination else compilation.reason,
        source_hash=source.source_hash if source else "",
        code_hash=binary.code_hash if binary else "",
        template_hash=source.template_hash if source else "",
        source=source.text if source else "",
        resources=binary.resources if binary else None,
        verdict=examination.verdict if examination else None,
        timing=examination.timing if examination else None,
        stage_seconds=seconds,
    )


def evaluate(config: Config, builder: Builder, examiner: Examiner) -> Evaluation:
    """Walks the whole road for one config in this process."""
    compilation = builder.build(config)
    kernel = compilation.kernel
    return conclude(compilation, examiner.examine(kernel) if kernel is not None else None)
