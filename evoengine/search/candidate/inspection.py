"""The inspection of a finalist: what nobody becomes champion without, however fast.

The quick part: on its own device a no-op in its place must fail, and the emulator, with all its checks on, must run its
PTX to the same verdict. On the emulator itself the gate has seen to the latter already.

The slow part: compute-sanitizer must find nothing, where it is installed. It takes seconds in which the GPU can time
nothing else, so that it is left to the end of a search, and to who leads then (see
:mod:`evoengine.search.candidate.sanitizing` and :mod:`evoengine.search.champion.sanitizer_promotion`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from evoengine.costmodel.emulation_limits import RACE_CHECK_FLOPS
from evoengine.device.protocols import Device
from evoengine.emulator.checks.faults import EmulatorError, FaultKind
from evoengine.errors import CandidateTimeoutError, LaunchError, WorkerCrashError
from evoengine.kernel.records import Kernel
from evoengine.parity.controls.noop_control import NoOpControl
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import CasePool
from evoengine.target import Target

_NOT_OURS: Final = (FaultKind.UNSUPPORTED_INSTRUCTION, FaultKind.MALFORMED_PTX)
"""What the emulator cannot run is no fault of the kernel."""


@dataclass(frozen=True)
class Inspection:
    """What was found out about a finalist."""

    finding: str = ""
    """Why it must not be champion; empty when nothing was found."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""
    seconds: float = field(default=0.0, compare=False)
    """For which its own device was taken."""

    def joined(self, other: Inspection) -> Inspection:
        """Both; the finding of the first that has one."""
        seconds = self.seconds + other.seconds
        return Inspection(self.finding or other.finding, (*self.notes, *other.notes), seconds)


def inspect_on_device(device: Device, kernel: Kernel, pool: CasePool, saboteur: NoOpControl) -> Inspection:
    """What its own device says.

    Args:
        device: where it ran and passed the gate.
        kernel: the finalist.
        pool: of the search.
        saboteur: puts a no-op in its place.

    Raises:
        DefectError: the gate passed the no-op: no verdict of this search can be believed.
        CandidateError: the device does not take the launch this time.
    """
    start_s = time.perf_counter()
    saboteur.control(device, kernel, pool.draw(kernel.source.source_hash).gate)
    return Inspection(seconds=time.perf_counter() - start_s)


class EmulatedInspector:
    """Runs finalists on the emulator. Lives in a process of its own, beside that which times.

    Args:
        pools: of the search, one per problem; their small cases are run, each with the checks that only they are cheap
            enough for.
        target: any GPU: nothing is predicted here.
    """

    def __init__(self, pools: Sequence[CasePool], target: Target) -> None:
        from evoengine.costmodel.device import EmulatorDevice  # lazily: who does not inspect does without

        self._pools = tuple(pools)
        self._device = EmulatorDevice(target)

    def inspect(self, kernel: Kernel) -> Inspection:
        """Races, uninitialised and stray accesses, barriers, and the numbers once more."""
        found = Inspection()
        for pool, one in zip(self._pools, (kernel, *kernel.others), strict=True):
            gate = pool.draw(one.source.source_hash).gate
            cases = tuple(case for case in gate if case.inputs.problem.flops <= RACE_CHECK_FLOPS)
            found = found.joined(self._run(one, cases))
        return found

    def _run(self, kernel: Kernel, cases: tuple[ParityCase, ...]) -> Inspection:
        try:
            with closing(self._device.load(kernel)) as loaded:
                verdict = run_gate(loaded, cases)
        except LaunchError as error:
            fault = error if isinstance(error, EmulatorError) else error.__cause__
            if isinstance(fault, EmulatorError) and fault.kind in _NOT_OURS:
                return Inspection(notes=(f"not checked on the emulator: {fault}",))
            return Inspection(_told(str(error)))
        except CandidateTimeoutError as error:
            return Inspection(notes=(f"not checked on the emulator: {error}",))
        return Inspection("" if verdict.passed else _told(verdict.reason))


def joined(parts: Sequence[Future[Inspection]]) -> Future[Inspection]:
    """One inspection of several that run side by side; done when all are, and failed when one is.

    Args:
        parts: at least one; the finding of the first that has one is told.
    """
    whole: Future[Inspection] = Future()
    whole.set_running_or_notify_cancel()
    left = threading.Semaphore(len(parts) - 1)

    def done(_: Future[Inspection]) -> None:
        if left.acquire(blocking=False):
            return
        errors = [error for part in parts if not part.cancelled() and (error := part.exception()) is not None]
        if errors:
            whole.set_exception(errors[0])
        elif any(part.cancelled() for part in parts):
            whole.set_exception(WorkerCrashError("the search was stopped"))
        else:
            whole.set_result(functools.reduce(Inspection.joined, (part.result() for part in parts)))

    for part in parts:
        part.add_done_callback(done)
    return whole


def _told(reason: str) -> str:
    return reason if "emulator" in reason else f"on the emulator: {reason}"
