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
from evoengine.bench.floor import impossible
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.device.base import Device
from evoengine.device.health import check_device
from evoengine.errors import (
    CandidateError,
    CandidateTimeoutError,
    CompileError,
    LaunchError,
    RenderError,
    ResourceError,
    UsageError,
    WorkerCrashError,
)
from evoengine.kernel.artifact import Binary, Kernel, Source
from evoengine.kernel.call import AttentionOutput
from evoengine.kernel.compiler import Compiler
from evoengine.kernel.resources import resource_gate
from evoengine.kernel.template import Template, TemplateLibrary
from evoengine.model import Config, DeviceInfo, Duel, Evaluation, Problem, Status, Timing, Verdict
from evoengine.parity.gate import run_gate
from evoengine.parity.pool import CasePool, build_pool, fresh_seed
from evoengine.parity.sabotage import Saboteur
from evoengine.space.loader import find_space
from evoengine.space.space import SearchSpace
from evoengine.target import Target, get_target

DeviceKind = Literal["cuda", "emulator"]

EMULATED_FLOPS: Final = 2 * 10**9
"""The emulator runs problems up to this size whole (four times the mission problem); of larger ones, a slice."""

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
    spaces: tuple[SearchSpace, ...]
    """One per family."""
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
    pool: CasePool
    """The inputs of which each candidate draws its own."""
    plan: TimingPlan
    threshold: float = DEFAULT_THRESHOLD
    known_good: Kernel | None = None
    """Checks the device before a worker gets its first candidate; None checks nothing."""


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
    inputs_seed: int | None = None,
    cold: bool = False,
    threshold: float = DEFAULT_THRESHOLD,
) -> Setup:
    """Draws all inputs and computes their truths once, in the main process (it imports torch; the workers need not).

    Args:
        problem: what is searched for.
        device: where candidates run.
        inputs_seed: of the pool of inputs; None for a fresh one, so that no candidate can know them.
        cold: time with a flushed L2 cache.
        threshold: gain that a challenger needs.
    """
    max_flops = EMULATED_FLOPS if device.kind == "emulator" else None
    return Setup(
        problem=problem,
        device=device,
        pool=build_pool(problem, fresh_seed() if inputs_seed is None else inputs_seed, max_flops),
        plan=plan_for(problem, cold=cold),
        threshold=threshold,
    )


class Builder:
    """Renders and compiles candidates of one search; needs no device. Lives in a compile worker."""

    def __init__(self, setup: BuildSetup) -> None:
        self._setup = setup
        self._library = TemplateLibrary(setup.templates_dir)
        self._families = {space.family: (self._library.load(space.family), space) for space in setup.spaces}
        self._compiler = Compiler(setup.cache_dir)

    def build(self, config: Config) -> Compilation:
        """Walks a config up to the resource gate; never raises for a candidate's fault."""
        setup, clock = self._setup, _Clock()
        source: Source | None = None
        binary: Binary | None = None
        try:
            with clock.stage("render"):
                template, space = self._family(config.family)
                source = template.render(config, setup.problem, space, setup.target)
            with clock.stage("compile"):
                binary = self._compiler.compile(source, setup.arch)
            excess = resource_gate(binary, source.launch, setup.target)
            if excess is not None:
                raise ResourceError(excess)
        except CandidateError as error:
            return Compilation(config, status_of(error), str(error), source, binary, clock.seconds)
        return Compilation(config, Status.OK, "", source, binary, clock.seconds)

    def _family(self, name: str) -> tuple[Template, SearchSpace]:
        """Template and space of a family; one that is not searched may come too, with an older champion.

        Raises:
            RenderError: there is no such family any more.
        """
        if name not in self._families:
            try:
                self._families[name] = (self._library.load(name), find_space(name))
            except UsageError as error:
                raise RenderError(str(error)) from error
        return self._families[name]


class Examiner:
    """Judges and times kernels on one device. Lives in a device worker."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._device = open_device(setup.device)
        self._benchmark = Benchmark(setup.problem, setup.pool.problem.inputs, setup.plan)
        self._saboteur = Saboteur()

    def open(self, known_baseline: str) -> str:
        """Captures the baseline now, while candidates are still compiled, not within the first one's deadline.

        Args:
            known_baseline: the fastest backend, where another worker found it out; empty to find it out here.

        Returns:
            The backend; empty where nothing is measured.
        """
        return "" if self._device.info.predicted else self._benchmark.open(known_baseline)

    def check(self) -> None:
        """Runs the known-good kernel, if there is one.

        Raises:
            CandidateError: the device is not sound.
        """
        if self._setup.known_good is not None:
            check_device(self._device, self._setup.known_good)

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

        Which inputs it faces follows from its source and from the pool's seed, which stands in the verdict.
        Nothing is timed before it passed the gate. Afterwards the problem is checked once more on fresh inputs, also
        under the launch mode that is timed; a predicted kernel only when it could become champion, because emulating
        is dear and a prediction wears nothing. In the place of each that could, a no-op must fail.

        Args:
            kernel: the candidate.
            champion_us: best time so far; None rechecks in any case.

        Raises:
            DefectError: the gate passed a no-op.
        """
        clock, pool = _Clock(), self._setup.pool
        draw = pool.draw(kernel.source.source_hash)
        verdict: Verdict | None = None
        replays: list[AttentionOutput] = []
        try:
            with clock.stage("load"):
                loaded = self._device.load(kernel)
            with closing(loaded):
                with clock.stage("parity"):
                    verdict = run_gate(loaded, draw.gate, pool.seed)
                if not verdict.passed:
                    return Examination(Status.PARITY_FAILED, verdict.reason, verdict, None, clock.seconds)
                with clock.stage("bench"):
                    timing = self._benchmark.time(
                        loaded, lambda watch: replays.append(watch.replay(draw.recheck.inputs))
                    )
                wrong = impossible(timing, self._setup.problem, self._device.target)
                if wrong:
                    verdict = replace(verdict, passed=False, reason=wrong)
                could_win = champion_us is None or timing.median_us < champion_us
                if verdict.passed and (could_win or not timing.predicted):
                    with clock.stage("recheck"):
                        verdict = _joined(verdict, run_gate(loaded, (draw.recheck,), pool.seed, replays))
                if verdict.passed and could_win:
                    with clock.stage("control"):
                        self._saboteur.control(self._device, kernel, draw.gate)
        except CandidateError as error:
            return Examination(status_of(error), str(error), verdict, None, clock.seconds)
        except MemoryError as error:  # of this machine, for a workspace that no device has either
            return Examination(Status.LAUNCH_FAILED, f"out of memory: {error}", verdict, None, clock.seconds)
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


def _joined(first: Verdict, again: Verdict) -> Verdict:
    """One verdict of two runs of the gate; the later one decides."""
    return replace(first if again.passed else again, cases=first.cases + again.cases)


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
