"""Admission of generated candidates to a GPU: screened PTX, and a pass of the parity gate on the emulator.

The emulator bounds every access of the small parity cases to the call's own buffers, refuses reads of memory that the
call has not written, and detects races. A kernel that it cannot execute is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from evoengine.errors import CandidateError, LaunchError
from evoengine.kernel.records import Kernel
from evoengine.model import Problem, Status
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import draw_cases
from evoengine.search.candidate.results import Admission, Candidate
from evoengine.search.candidate.screening import screen_kernel
from evoengine.system.processes import give_way
from evoengine.target import Target

ADMISSION_FLOPS: Final = 10**8
"""Largest work of the problem's own case, in FLOP; of a larger problem a slice runs."""


@dataclass(frozen=True)
class AdmissionSetup:
    """Inputs of the admission of all candidates of a search; picklable."""

    seed: int
    cases: tuple[tuple[ParityCase, ...], ...]
    """Cases by problem: one of each small shape, then the problem or a slice of it."""


def draw_admission(problems: Sequence[Problem], seed: int) -> AdmissionSetup:
    """Draws the inputs and computes their reference results.

    All candidates use the same inputs; the gate on the GPU draws other ones for each candidate.
    """
    return AdmissionSetup(seed, tuple(draw_cases(problem, seed, ADMISSION_FLOPS) for problem in problems))


class Admitter:
    """Admits candidates of one search. Lives in a worker process without a GPU.

    Args:
        setup: Inputs of the search.
        target: GPU that the kernels are for.
    """

    def __init__(self, setup: AdmissionSetup, target: Target) -> None:
        self._setup = setup
        self._target = target

    def admit(self, candidate: Candidate) -> Admission:
        """Screens and emulates the kernel of every problem whose source is untrusted; the first failure decides."""
        start_s = time.perf_counter()
        try:
            for kernel, cases in zip(candidate.kernels, self._setup.cases, strict=True):
                if kernel.source.untrusted:
                    screen_kernel(kernel)
                    self._emulate(kernel, cases)
        except CandidateError as error:
            return Admission(error.status, str(error), time.perf_counter() - start_s)
        return Admission(Status.OK, seconds=time.perf_counter() - start_s)

    def _emulate(self, kernel: Kernel, cases: Sequence[ParityCase]) -> None:
        """Runs the gate on the emulator.

        Raises:
            LaunchError: The kernel faulted, gave wrong results, or cannot be emulated.
            CandidateTimeoutError: It did not end in time.
        """
        from evoengine.costmodel.device import EmulatorDevice  # lazily: slow to import, and only needed for variants

        try:
            device = EmulatorDevice(self._target, kernel.binary.arch, thorough=True)
            with closing(device.load(kernel)) as loaded:
                verdict = run_gate(loaded, cases, self._setup.seed)
        except LaunchError as error:
            raise LaunchError(f"on the emulator: {error}") from error
        if not verdict.passed:
            raise LaunchError(f"on the emulator: {verdict.reason}")


def admission_service(setup: AdmissionSetup, target: Target) -> Admitter:
    """Returns the admitter of a worker process, which does nothing else and gives way to a GPU's worker."""
    give_way()
    return Admitter(setup, target)
