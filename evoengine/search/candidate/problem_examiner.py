"""Examination of kernels for one problem on one device: parity gate, timing, recheck, duels and inspections."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

from evoengine.bench.baseline import BaselineRow
from evoengine.bench.benchmark import Benchmark
from evoengine.bench.gpu_monitor import open_monitor
from evoengine.bench.roofline_floor import impossible
from evoengine.costmodel.representative import is_fast_on_emulator
from evoengine.device.protocols import Device, LoadedKernel, PacedDevice, PredictedKernel
from evoengine.device.tools.sanitizer import Sanitizers
from evoengine.errors import CandidateError, DeviceMemoryError
from evoengine.kernel.records import Kernel
from evoengine.model import Duel, Status, Timing, Verdict
from evoengine.parity.controls.noop_control import NoOpControl
from evoengine.parity.gate import REPEATED, run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.search.candidate.examination_recorder import ExaminationRecorder
from evoengine.search.candidate.inspection import inspect_on_device
from evoengine.search.candidate.results import Examination, Inspection, WorkEstimate
from evoengine.search.candidate.sanitizing import inspect_by_sanitizer
from evoengine.search.candidate.setup import ProblemSetup
from evoengine.search.candidate.stage_timer import StageClock
from evoengine.system.machine_faults import machine_fault_in

_SAMPLED: Final = 1
"""Index of the parity case from which the work of an examination is estimated: the first of several rows and keys."""
_CHECKED_CASES: Final = 2
"""Maximum number of cases on which the emulator makes the checks of a first call."""
_LARGE_OWN_BYTES: Final = 2**30
"""Size of a kernel's workspace and stacks from which exhausted memory is the kernel's fault, not the machine's."""


class ProblemExaminer:
    """Checks and times kernels for one problem. The device belongs to the caller."""

    def __init__(self, setup: ProblemSetup, device: Device, threshold: float) -> None:
        self._setup = setup
        self._device = device
        self._threshold = threshold
        info = device.info
        monitor = None if info.predicted else open_monitor(info.pci_bus_id, info.uuid)
        self._benchmark = Benchmark(setup.problem, setup.pool.problem.inputs, setup.plan, monitor)
        self._noop_control = NoOpControl()

    def open(self, known_baseline: str) -> str:
        """Captures the baseline while candidates are still compiling, outside the deadline of the first one.

        Args:
            known_baseline: Fastest backend, if another worker determined it; empty to determine it here.

        Returns:
            The backend; empty where nothing is measured.
        """
        if self._device.info.predicted:
            return ""
        backend = self._benchmark.open(known_baseline)
        baseline_us = self._benchmark.baseline_us()
        if baseline_us is not None and isinstance(self._device, PacedDevice):
            self._device.learn_pace(self._setup.problem, baseline_us)
        return backend

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Times every SDPA backend on the problem's inputs; empty where nothing is measured."""
        return () if self._device.info.predicted else self._benchmark.baselines()

    def examine(self, kernel: Kernel, champion_us: float | None = None) -> Examination:
        """Runs parity gate, timing and recheck; a fault of the candidate is a status of the result.

        The inputs follow from the kernel's source and from the pool's seed, which the verdict stores. Only a kernel
        that passed the gate is timed. Afterwards it is checked on fresh inputs, also in the launch mode that is timed.
        The recheck uses the module that was timed, so it comes after all timed calls, and its outputs hold the results
        of other inputs before the call. A kernel that racing drops (PRUNED) is not rechecked, because it is never
        ranked.

        Args:
            kernel: Candidate for this problem.
            champion_us: Best time so far; None times in full.
        """
        clock, pool = StageClock(), self._setup.pool
        draw = pool.draw(kernel.source.source_hash, slow=not is_fast_on_emulator(kernel.binary.ptx))
        verdict: Verdict | None = None
        recorder = ExaminationRecorder(pool.problem, draw.recheck.inputs)
        try:
            with ExitStack() as stack:
                with clock.stage("load"):
                    loaded = stack.enter_context(closing(self._device.load(kernel)))
                with clock.stage("parity"):
                    verdict = run_gate(loaded, draw.gate, pool.seed, saw=recorder.saw)
                if not verdict.passed:
                    return Examination(Status.PARITY_FAILED, verdict.reason, verdict, None, clock.seconds)
                loaded = self._to_time(loaded, kernel, stack)
                with clock.stage("bench"):
                    measured = self._benchmark.measure(loaded, champion_us, recorder.timed)
                timing = measured.timing
                if measured.drop is not None:
                    return Examination(Status.PRUNED, str(measured.drop), verdict, timing, clock.seconds)
                wrong = self._timing_objection(loaded, kernel, recorder, timing)
                if wrong:
                    verdict = replace(verdict, passed=False, reason=wrong)
                if verdict.passed:
                    with clock.stage("recheck"):
                        replays, before = recorder.replays, recorder.before
                        again = run_gate(loaded, (draw.recheck,), pool.seed, replays, before=before)
                        verdict = _joined(verdict, again)
        except (DeviceMemoryError, MemoryError) as error:
            if self._own_bytes(kernel) < _LARGE_OWN_BYTES:  # no kernel would have had the memory
                raise machine_fault_in(f"out of memory: {error}") or error from error
            return Examination(Status.LAUNCH_FAILED, f"out of memory: {error}", verdict, None, clock.seconds)
        except CandidateError as error:
            return Examination(error.status, str(error), verdict, None, clock.seconds)
        if not verdict.passed:
            return Examination(Status.PARITY_FAILED, f"after timing: {verdict.reason}", verdict, None, clock.seconds)
        notes = recorder.notes(None if timing.predicted else self._benchmark.baseline_output())
        return Examination(Status.OK, "", verdict, timing, clock.seconds, notes)

    def estimate_work(self, kernel: Kernel) -> WorkEstimate | None:
        """Runs one small parity case and extrapolates its instructions and CPU time to the whole examination.

        The work of a slow kernel grows with the floating-point operations of a case once it fills some CTAs; the first
        case, of one key, does not. The checks of a first call, with tensors whose rows are far apart, are made on two
        cases at most.

        Returns:
            The estimate; None for a device that measures, and for kernels that are fast on the emulator.

        Raises:
            CandidateError: The kernel faulted.
        """
        draw = self._setup.pool.draw(kernel.source.source_hash, slow=True)
        if is_fast_on_emulator(kernel.binary.ptx) or len(draw.gate) <= REPEATED:
            return None
        cases = (*draw.gate, draw.gate[REPEATED], draw.recheck)
        sample = draw.gate[_SAMPLED]
        with closing(self._device.load(kernel)) as loaded:
            if not isinstance(loaded, PredictedKernel):
                return None
            loaded.attention(draw.gate[0].inputs)  # translates the kernel
            checked_s, run_s = (_cpu_s(loaded, sample) for _ in range(2))  # the same inputs are not checked again
            instructions = loaded.executed(sample.inputs.problem)
        flops = sum(case.inputs.problem.flops for case in cases)
        factor = flops / sample.inputs.problem.flops
        own = draw.gate[-1].inputs.problem.flops + draw.recheck.inputs.problem.flops
        seconds = run_s * factor + _CHECKED_CASES * max(0.0, checked_s - run_s)
        return WorkEstimate(round(instructions * factor), seconds, own / flops)

    def challenge(self, challenger: Kernel, champion: Kernel) -> Duel:
        """Times fresh interleaved pairs of two kernels that were examined before.

        Raises:
            CandidateError: One of them failed this time.
        """
        with ExitStack() as stack:
            loads = (closing(self._device.load(kernel)) for kernel in (challenger, champion))
            ours, theirs = (stack.enter_context(load) for load in loads)
            fresh = challenger.source.untrusted or champion.source.untrusted
            return self._benchmark.duel(ours, theirs, self._threshold, fresh=fresh)

    def inspect(self, kernel: Kernel) -> Inspection:
        """Makes the checks of a finalist that its own device can make at once.

        Raises:
            DefectError: The gate passed a kernel that does nothing.
            CandidateError: The kernel failed this time.
        """
        return inspect_on_device(self._device, kernel, self._setup.pool, self._noop_control)

    def sanitize(self, kernel: Kernel, sanitizers: Sanitizers) -> Inspection:
        """Checks a finalist with compute-sanitizer."""
        return inspect_by_sanitizer(kernel, self._setup.pool, sanitizers, self._device.target)

    def energy_uj(self, kernel: Kernel) -> float | None:
        """Measures the microjoules per call of a kernel that was examined before; None where they are not reported.

        Raises:
            CandidateError: The kernel failed this time.
        """
        with closing(self._device.load(kernel)) as loaded:
            return self._benchmark.energy_uj(loaded)

    def close(self) -> None:
        self._benchmark.close()

    def _to_time(self, loaded: LoadedKernel, kernel: Kernel, stack: ExitStack) -> LoadedKernel:
        """Returns the kernel to time: if its source is untrusted, in a module that the gate has not run."""
        if self._device.info.predicted or not kernel.source.untrusted:
            return loaded
        return stack.enter_context(closing(self._device.load(kernel)))

    def _own_bytes(self, kernel: Kernel) -> int:
        """Returns the memory that a kernel chooses to use besides its tensors: workspace, and stacks of all threads."""
        target, resources = self._device.target, kernel.binary.resources
        workspace = kernel.source.launch.workspace(self._setup.problem)
        return workspace.bytes + resources.stack_bytes * target.sms * target.max_threads_per_sm

    def _timing_objection(
        self, loaded: LoadedKernel, kernel: Kernel, recorder: ExaminationRecorder, timing: Timing
    ) -> str:
        """Returns why a time cannot be that of the kernel; empty when nothing contradicts it."""
        objection = recorder.launch_objection(loaded, kernel.source.launch)
        objection = objection or recorder.output_objection()
        return objection or impossible(timing, self._setup.problem, self._device.target)


def _cpu_s(loaded: LoadedKernel, case: ParityCase) -> float:
    """Runs a kernel on the inputs of a case and returns the CPU seconds."""
    start_s = time.process_time()
    loaded.attention(case.inputs)
    return time.process_time() - start_s


def _joined(first: Verdict, again: Verdict) -> Verdict:
    """One verdict of two runs of the gate; the later one decides."""
    return replace(first if again.passed else again, cases=first.cases + again.cases)
