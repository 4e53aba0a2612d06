"""Admission of generated kernels to a GPU: screened PTX, and a pass of the parity gate on the emulator.

The emulator bounds every access of the small parity cases to the call's own buffers, refuses reads of memory that the
call has not written, and detects races. A kernel that it cannot execute is refused.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from evoengine.costmodel.emulation_limits import RACE_CHECK_FLOPS
from evoengine.errors import LaunchError
from evoengine.kernel.records import Kernel
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.pool import CasePool
from evoengine.search.candidate.screening import screen_kernel
from evoengine.target import Target


class Admission:
    """Admits untrusted kernels of one problem; remembers those that passed.

    Args:
        pool: Inputs of the search; the small cases of a kernel's draw run on the emulator.
        target: GPU that the kernels are for.
    """

    def __init__(self, pool: CasePool, target: Target) -> None:
        self._pool = pool
        self._target = target
        self._admitted: set[tuple[str, str]] = set()

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

        draw = self._pool.draw(kernel.source.source_hash, slow=True)
        cases = tuple(case for case in draw.gate if case.inputs.problem.flops <= RACE_CHECK_FLOPS)
        if not cases:
            raise LaunchError("on the emulator: no case is small enough to be emulated")
        try:
            with closing(EmulatorDevice(self._target, kernel.binary.arch).load(kernel)) as loaded:
                verdict = run_gate(loaded, cases, self._pool.seed)
        except LaunchError as error:
            raise LaunchError(f"on the emulator: {error}") from error
        if not verdict.passed:
            raise LaunchError(f"on the emulator: {verdict.reason}")
