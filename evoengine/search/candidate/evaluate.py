"""The one road that every candidate walks: render, compile, resource gate, parity gate, timing, recheck.

It is cut where the processes are cut. A :class:`Builder` (compile pool, no device) turns a config into a
:class:`Compilation`; an :class:`Examiner` (one per device worker) turns a kernel into an :class:`Examination`;
:func:`conclude` joins both into the row that is stored. :func:`evaluate` walks the whole road in this process.
Every candidate error becomes a status here, and only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from evoengine.bench.acceptance import DEFAULT_THRESHOLD
from evoengine.bench.baseline import BaselineRow
from evoengine.bench.benchmark import Benchmark
from evoengine.bench.roofline_floor import impossible
from evoengine.bench.telemetry import open_monitor
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.costmodel.representative import SCALAR_FLOPS, on_tensor_cores, representative
from evoengine.device.device_selfcheck import check_device
from evoengine.device.protocols import Device, PacedDevice
from evoengine.device.tools.sanitizer import Sanitizers
from evoengine.errors import CandidateError, UsageError
from evoengine.kernel.records import Kernel
from evoengine.model import Config, DeviceInfo, Duel, Evaluation, Problem, Status, Timing, Verdict
from evoengine.parity.controls.noop_control import NoOpControl
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.pool import CasePool, build_pool, fresh_seed
from evoengine.search.candidate.build import Builder, BuildSetup, Compilation
from evoengine.search.candidate.inspection import Inspection, inspect_on_device
from evoengine.search.candidate.launch_checks import ExaminationRecorder
from evoengine.search.candidate.sanitizing import inspect_by_sanitizer
from evoengine.search.candidate.stage_timer import StageClock
from evoengine.target import Target, get_target

__all__ = [
    "EMULATED_FLOPS",
    "BuildSetup",
    "Builder",
    "Compilation",
    "DeviceKind",
    "DeviceSpec",
    "Examination",
    "Examiner",
    "Setup",
    "conclude",
    "evaluate",
    "open_device",
    "prepare",
]

DeviceKind = Literal["cuda", "emulator", "replay"]

EMULATED_FLOPS: Final = 2 * 10**9
"""The emulator runs problems up to this size whole (four times the mission problem); of larger ones, a slice."""


@dataclass(frozen=True)
class DeviceSpec:
    """Which device to open; picklable, so that each worker opens its own."""

    kind: DeviceKind
    target: str = "l4"
    """Name of the GPU to predict for; the emulator only."""
    arch: str = ""
    """Architecture to compile for; empty for the device's own."""
    replay: str = ""
    """Which landscape, and with what noise; a replay only."""


def open_device(spec: DeviceSpec) -> Device:
    """Opens a device in this process.

    Raises:
        UsageError: no such target, the device cannot run the architecture, or it is a replay, which runs no kernels.
        MissingDependencyError: no GPU, no driver or no CuPy.
    """
    if spec.kind == "replay":
        raise UsageError("a replay runs no kernels: only 'search' can use it")
    if spec.kind == "cuda":
        from evoengine.device.cuda.device import CudaDevice  # lazily: CuPy takes seconds and needs a driver

        return CudaDevice(spec.arch or None)
    from evoengine.costmodel.device import EmulatorDevice

    return EmulatorDevice(get_target(spec.target), spec.arch or None)


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
    sanitizer: str = ""
    """The compute-sanitizer that looks at new champions on a GPU; empty for none."""
    share: float = 1.0
    """Weight of this problem's time among those of a workload."""
    others: tuple[Setup, ...] = ()
    """Of a workload: the same for each further problem."""


@dataclass(frozen=True)
class Examination:
    """What a device said about one kernel."""

    status: Status
    reason: str = ""
    verdict: Verdict | None = None
    timing: Timing | None = None
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What a reader should know of it that decided nothing."""


def prepare(
    problem: Problem,
    device: DeviceSpec,
    *,
    inputs_seed: int | None = None,
    cold: bool = False,
    eager: bool = False,
    racing: bool = True,
    threshold: float = DEFAULT_THRESHOLD,
) -> Setup:
    """Draws all inputs and computes their truths once, in the main process (it imports torch; the workers need not).

    Args:
        problem: what is searched for.
        device: where candidates run.
        inputs_seed: of the pool of inputs; None for a fresh one, so that no candidate can know them.
        cold: time with a flushed L2 cache.
        eager: time call by call instead of in a graph.
        racing: drop hopeless candidates after a few samples.
        threshold: gain that a challenger needs.
    """
    emulated = device.kind == "emulator"
    max_flops = EMULATED_FLOPS if emulated else None
    slow_part = representative(problem, SCALAR_FLOPS) if emulated else None
    return Setup(
        problem=problem,
        device=device,
        pool=build_pool(problem, fresh_seed() if inputs_seed is None else inputs_seed, max_flops, slow_part),
        plan=plan_for(problem, cold=cold, eager=eager, racing=racing),
        threshold=threshold,
    )


class Examiner:
    """Judges and times kernels on one device. Lives in a device worker."""

    def __init__(self, setup: Setup, device: Device | None = None) -> None:
        self._setup = setup
        self._device = device or open_device(setup.device)
        info = self._device.info
        monitor = None if info.predicted else open_monitor(info.pci_bus_id, info.uuid)
        self._benchmark = Benchmark(setup.problem, setup.pool.problem.inputs, setup.plan, monitor)
        self._saboteur = NoOpControl()
        self._sanitizers: Sanitizers | None = None

    def open(self, known_baseline: str) -> str:
        """Captures the baseline now, while candidates are still compiled, not within the first one's deadline.

        Args:
            known_baseline: the fastest backend, where another worker found it out; empty to find it out here.

        Returns:
            The backend; empty where nothing is measured.
        """
        if self._device.info.predicted:
            return ""
        backend = self._benchmark.open(known_baseline)
        pace_us = self._benchmark.baseline_us()
        if pace_us is not None and isinstance(self._device, PacedDevice):
            self._device.learn_pace(self._setup.problem, pace_us)
        return backend

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
        is dear and a prediction wears nothing. One that is hopeless beside the best time is dropped while it is timed
        (PRUNED), and not checked again: it is never ranked.

        Args:
            kernel: the candidate.
            champion_us: best time so far; None rechecks, and times in full, in any case.
        """
        clock, pool = StageClock(), self._setup.pool
        draw = pool.draw(kernel.source.source_hash, slow=not on_tensor_cores(kernel.binary.ptx))
        verdict: Verdict | None = None
        witness = ExaminationRecorder(pool.problem, draw.recheck.inputs)
        try:
            with clock.stage("load"):
                loaded = self._device.load(kernel)
            with closing(loaded):
                with clock.stage("parity"):
                    verdict = run_gate(loaded, draw.gate, pool.seed, saw=witness.saw)
                if not verdict.passed:
                    return Examination(Status.PARITY_FAILED, verdict.reason, verdict, None, clock.seconds)
                with clock.stage("bench"):
                    measured = self._benchmark.measure(loaded, champion_us, witness.timed)
                timing = measured.timing
                if measured.drop is not None:
                    return Examination(Status.PRUNED, str(measured.drop), verdict, timing, clock.seconds)
                calls = self._setup.plan.stopwatch.calls
                wrong = witness.launch_objection(loaded, kernel.source.launch, calls)
                wrong = wrong or impossible(timing, self._setup.problem, self._device.target)
                if wrong:
                    verdict = replace(verdict, passed=False, reason=wrong)
                could_win = champion_us is None or timing.median_us < champion_us
                if verdict.passed and (could_win or not timing.predicted):
                    with clock.stage("recheck"):
                        verdict = _joined(verdict, run_gate(loaded, (draw.recheck,), pool.seed, witness.replays))
        except CandidateError as error:
            return Examination(error.status, str(error), verdict, None, clock.seconds)
        except MemoryError as error:  # of this machine, for a workspace that no device has either
            return Examination(Status.LAUNCH_FAILED, f"out of memory: {error}", verdict, None, clock.seconds)
        if not verdict.passed:
            return Examination(Status.PARITY_FAILED, f"after timing: {verdict.reason}", verdict, None, clock.seconds)
        notes = witness.notes(None if timing.predicted else self._benchmark.baseline_output())
        return Examination(Status.OK, "", verdict, timing, clock.seconds, notes)

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

    def inspect(self, kernel: Kernel) -> Inspection:
        """Looks at a kernel that is to be champion, as far as its own device can at once.

        Raises:
            DefectError: the gate passed a no-op in its place.
            CandidateError: it failed this time.
        """
        return inspect_on_device(self._device, kernel, self._setup.pool, self._saboteur)

    def stand_by(self) -> None:
        """Starts compute-sanitizer for the next finalist, where there is one; what is examined meanwhile goes on."""
        if self._sanitizers is None and self._setup.sanitizer and not self._device.info.predicted:
            self._sanitizers = Sanitizers(Path(self._setup.sanitizer))

    def sanitize(self, kernel: Kernel) -> Inspection:
        """Has compute-sanitizer look at it; seconds, unless it stands by. Finds nothing where there is none."""
        self.stand_by()
        sanitizers, self._sanitizers = self._sanitizers, None
        if sanitizers is None:
            return Inspection()
        with closing(sanitizers):
            return inspect_by_sanitizer(kernel, self._setup.pool, sanitizers, self._device.target)

    def energy(self, kernel: Kernel) -> float | None:
        """Microjoules per call of a kernel that was examined before; None where they cannot be known.

        Raises:
            CandidateError: it failed this time.
        """
        with closing(self._device.load(kernel)) as loaded:
            return self._benchmark.energy_uj(loaded)

    def close(self) -> None:
        """Releases baseline and device."""
        if self._sanitizers is not None:
            self._sanitizers.close()
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
        notes=examination.notes if examination else (),
    )


def evaluate(config: Config, builder: Builder, examiner: Examiner) -> Evaluation:
    """Walks the whole road for one config in this process."""
    compilation = builder.build(config)
    kernel = compilation.kernel
    return conclude(compilation, examiner.examine(kernel) if kernel is not None else None)
