"""Admission of generated kernels to a GPU: screened PTX, and a pass of the parity gate on the emulator.

The emulator bounds every access of the small parity cases to the call's own buffers, refuses reads of memory that the
call has not written, and detects races. A kernel that it cannot execute is refused.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Final

from evoengine.errors import LaunchError
from evoengine.kernel.records import Kernel
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import problem_case
from evoengine.parity.inputs.pool import CasePool
from evoengine.search.candidate.screening import screen_kernel
from evoengine.target import Target

EMULATED_FLOPS: Final = 10**8
"""Largest work of the case of the problem itself, of which a slice runs if it has more."""


class Admission:
    """Admits untrusted kernels of one problem; remembers those that passed.

    Args:
        pool: Inputs of the search; the cases of a kernel's draw run on the emulator, of a large problem a slice.
        target: GPU that the kernels are for.
    """

    def __init__(self, pool: CasePool, target: Target) -> None:
        self._pool = pool
        self._target = target
        self._admitted: set[tuple[str, str]] = set()
        self._slice: ParityCase | None = None

    def admitted(self, kernel: Kernel) -> Kernel:
        """Returns the kernel as one that a GPU may run; a trusted one is returned unchanged, without a check.

        Raises:
            ScreenError: Its PTX contains what generated code must not contain.
            LaunchError: It faulted on the emulator, gave wrong results there, or cannot be emulated.
            CandidateTimeoutError: It did not end in time on the emulator.
        """
        if not kernel.source.untrusted or kernel.admitted:
            return kernel
        key = (kernel.source.source_hash, kernel.binary.code_hash)
        if key not in self._admitted:
            screen_kernel(kernel)
            self._emulate(kernel)
            self._admitted.add(key)
        return replace(kernel, admitted=True)

    def _emulate(self, kernel: Kernel) -> None:
        from evoengine.costmodel.device import EmulatorDevice  # lazily: slow to import, and only needed for variants

        *small, _ = self._pool.draw(kernel.source.source_hash).gate
        cases = (*small, self._problem())
        try:
            with closing(EmulatorDevice(self._target, kernel.binary.arch).load(kernel)) as loaded:
                verdict = run_gate(loaded, cases, self._pool.seed)
        except LaunchError as error:
            raise LaunchError(f"on the emulator: {error}") from error
        if not verdict.passed:
            raise LaunchError(f"on the emulator: {verdict.reason}")

    def _problem(self) -> ParityCase:
        """Returns the case of the problem, or of a slice of it."""
        own = self._pool.problem
        if own.inputs.problem.flops <= EMULATED_FLOPS:
            return own
        if self._slice is None:
            self._slice = problem_case(own.inputs.problem, self._pool.seed, EMULATED_FLOPS)
        return self._slice
