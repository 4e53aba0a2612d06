"""The device worker's part of the pipeline: parity gate, timing and recheck of candidates.

The pipeline of every candidate is render, compile, resource gate, parity gate, timing, recheck. It is split where the
processes are. A :class:`~evoengine.search.candidate.build.Builder` (compile worker, no device) turns a config into a
compilation; an :class:`Examiner` (one per device worker) turns a compiled candidate into an examination;
:func:`~evoengine.search.candidate.results.conclude` joins both into the evaluation that is stored.

Within a worker, every error of a candidate becomes a status in these two classes. A candidate whose worker died or
exceeded its deadline receives its status in :mod:`evoengine.search.loop`.
"""

from __future__ import annotations

import functools
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from evoengine.bench.baseline import BaselineRow, open_baseline
from evoengine.bench.timer import TimingPlan, spin_up
from evoengine.device.device_selfcheck import check_device
from evoengine.device.protocols import Device, StopwatchOptions
from evoengine.device.tools.sanitizer import Sanitizers
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.compile.malloc_tuning import keep_freed_memory
from evoengine.kernel.records import Kernel
from evoengine.model import DeviceInfo, Duel, Problem, Status
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.search.candidate.joint_result import joint_duel, joint_examination, weighted_mean
from evoengine.search.candidate.problem_examiner import ProblemExaminer
from evoengine.search.candidate.results import Candidate, Examination, Inspection, WorkEstimate
from evoengine.search.candidate.setup import Setup

_WARM_UP_ROWS: Final = 64


class Examiner:
    """Examines candidates on one device, for every problem of a search. Lives in a device worker.

    Its methods answer the jobs of :mod:`evoengine.search.candidate.jobs`.

    Args:
        setup: Problems, inputs and device.
        device: Open device to use instead of the setup's; it is closed with the examiner.
    """

    def __init__(self, setup: Setup, device: Device | None = None) -> None:
        self._setup = setup
        self._device = device or open_device(setup.device)
        self._parts = tuple(ProblemExaminer(part, self._device, setup.threshold) for part in setup.parts)
        self._problems = tuple(part.problem for part in setup.parts)
        self._shares = tuple(part.share for part in setup.parts)
        self._sanitizers: Sanitizers | None = None

    @property
    def info(self) -> DeviceInfo:
        return self._device.info

    @property
    def healthy(self) -> bool:
        """False once the device is lost to this process; the worker is then replaced."""
        return self._device.healthy

    def open(self, known_baseline: str) -> str:
        """Captures the baseline of each problem; see :meth:`ProblemExaminer.open`.

        Args:
            known_baseline: Backends that another worker determined, one per problem, separated by commas; may be empty.

        Returns:
            The backends in the same form; empty where one is not measured.
        """
        known = known_baseline.split(",") if known_baseline else [""] * len(self._parts)
        names = [part.open(name) for part, name in zip(self._parts, known, strict=True)]
        return ",".join(names) if all(names) else ""

    def check(self) -> None:
        """Runs the known-good kernel, if there is one.

        Raises:
            CandidateError: The device does not work correctly.
        """
        if self._setup.known_good is not None:
            check_device(self._device, self._setup.known_good)

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Times every SDPA backend on the first problem's inputs; empty where nothing is measured."""
        return self._parts[0].baselines()

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        """Runs parity gate, timing and recheck on every problem; see :meth:`ProblemExaminer.examine`.

        With several problems, the first that fails ends the examination, and nothing is pruned: the time on one
        problem says too little about the others.

        Args:
            candidate: Kernels, one per problem.
            champion_us: Best time so far; ignored with several problems.
        """
        pairs = self._pairs(candidate)
        if len(pairs) == 1:
            return pairs[0][0].examine(pairs[0][1], champion_us)
        examinations: list[Examination] = []
        for part, kernel in pairs:
            examinations.append(part.examine(kernel))
            if examinations[-1].status is not Status.OK:
                break
        return joint_examination(self._problems, self._shares, examinations)

    def estimate_work(self, candidate: Candidate) -> WorkEstimate | None:
        """Estimates the work of :meth:`examine` on a device that predicts; see :meth:`ProblemExaminer.estimate_work`.

        Raises:
            CandidateError: The kernel faulted.
        """
        found = [part.estimate_work(kernel) for part, kernel in self._pairs(candidate)]
        known = [estimate for estimate in found if estimate is not None]
        return functools.reduce(WorkEstimate.plus, known) if known else None

    def challenge(self, challenger: Candidate, champion: Candidate) -> Duel:
        """Times fresh interleaved pairs of two candidates on every problem.

        Raises:
            CandidateError: One of them failed this time.
        """
        pairs = zip(self._pairs(challenger), self._pairs(champion), strict=True)
        duels = [part.challenge(ours, theirs) for (part, ours), (_, theirs) in pairs]
        if len(duels) == 1:
            return duels[0]
        return joint_duel(self._shares, duels, self._setup.threshold, predicted=self.info.predicted)

    def inspect(self, candidate: Candidate) -> Inspection:
        """Makes the checks of a finalist that its own device can make at once, for every problem.

        Raises:
            DefectError: The gate passed a kernel that does nothing.
            CandidateError: The candidate failed this time.
        """
        found = Inspection()
        for part, kernel in self._pairs(candidate):
            found = found.joined(part.inspect(kernel))
        return found

    def start_sanitizer(self) -> None:
        """Starts compute-sanitizer for the next finalist, where it is installed; examinations go on meanwhile."""
        if self._sanitizers is None and self._setup.sanitizer and not self._device.info.predicted:
            self._sanitizers = Sanitizers(Path(self._setup.sanitizer))

    def sanitize(self, candidate: Candidate) -> Inspection:
        """Checks a finalist with compute-sanitizer for every problem; finds nothing where that is not installed."""
        found = Inspection()
        for part, kernel in self._pairs(candidate):
            self.start_sanitizer()
            sanitizers, self._sanitizers = self._sanitizers, None
            if sanitizers is not None:
                with closing(sanitizers):
                    found = found.joined(part.sanitize(kernel, sanitizers))
        return found

    def measure_energy(self, candidate: Candidate) -> float | None:
        """Measures the weighted mean of the microjoules per call; None where one of them is not reported.

        Raises:
            CandidateError: The candidate failed this time.
        """
        each = [part.energy_uj(kernel) for part, kernel in self._pairs(candidate)]
        known = [energy_uj for energy_uj in each if energy_uj is not None]
        return weighted_mean(self._shares, known) if len(known) == len(each) else None

    def close(self) -> None:
        """Releases sanitizer, baselines and device."""
        if self._sanitizers is not None:
            self._sanitizers.close()
        for part in self._parts:
            part.close()
        self._device.close()

    def _pairs(self, candidate: Candidate) -> list[tuple[ProblemExaminer, Kernel]]:
        if len(candidate.kernels) != len(self._parts):
            raise LaunchError(f"a kernel for {len(candidate.kernels)} problems, not for {len(self._parts)}")
        return list(zip(self._parts, candidate.kernels, strict=True))


def warm_up(spec: DeviceSpec, problem: Problem) -> None:
    """Opens a GPU and its baseline on a small problem, and closes both: a context and libraries stay in the process.

    The baseline runs for a while, so that the GPU's clocks are up when the first candidate is timed.

    Args:
        spec: Device of the worker.
        problem: Problem of the search, whose element type and head dimension select the libraries' kernels.

    Raises:
        EvoEngineError: The device cannot be opened.
    """
    small = Problem(1, 1, _WARM_UP_ROWS, problem.head_dim, dtype=problem.dtype)
    zeros = np.zeros((1, 1, _WARM_UP_ROWS, problem.head_dim), np.uint16)
    with closing(open_device(spec)):
        baseline = open_baseline(AttentionInputs.of(small, zeros, zeros, zeros), StopwatchOptions())
        if baseline is not None:
            with closing(baseline):
                spin_up(baseline.stopwatch, TimingPlan.spin_up_s)


def examine_service(setup: Setup) -> Examiner:
    """Returns the examiner of a device worker; the process does nothing else."""
    keep_freed_memory()  # the arrays of the gate and of an emulator are megabytes, and live for milliseconds
    return Examiner(setup)
