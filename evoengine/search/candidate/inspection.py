"""Inspection of a finalist: checks that every candidate must pass to become champion, however fast it is.

The quick part: on the candidate's own device, a no-op in its place must fail the gate, and the kernel must pass the
small cases that its draw lacked, which have all other lengths, large and expanded tensors, and the problem with more
rows compared. On a GPU, thousands of calls on the same inputs must give the same bits: a race that one call in ten
thousand loses passes all other checks. The emulator, with all its checks on, must run its PTX to the same verdict; late
in a search that is done ahead for the fastest candidate. Where the search runs on the emulator, the gate has done it.

The slow part: compute-sanitizer must find nothing, where it is installed. It takes seconds in which the GPU can time
nothing else, so it is left to the end of a search and to the candidate that leads then (see
:mod:`evoengine.search.candidate.sanitizing` and :mod:`evoengine.search.champion.sanitizer_promotion`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Final

from evoengine.costmodel.emulation.limits import RACE_CHECK_FLOPS
from evoengine.device.protocols import Device, LoadedKernel, RepeatableKernel
from evoengine.emulator.faults import EmulatorError, FaultKind
from evoengine.errors import CandidateTimeoutError, LaunchError, WorkerCrashError
from evoengine.kernel.records import Kernel
from evoengine.parity.controls.noop_control import NoOpControl
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.pool import CasePool
from evoengine.search.candidate.results import Candidate, Inspection
from evoengine.system.processes import give_way
from evoengine.target import Target

INSPECTED_ORDERS: Final = 3
"""Random orders of the CTAs in which each case of a finalist is repeated."""

REPEATED_S: Final = 0.2
"""Seconds of calls on the same inputs: about 4,000 of a kernel that takes 40 µs."""

_KEYS_PER_ROW: Final = 256
"""Keys whose emulation takes about as long as what a query row takes beside its keys."""

_UNSUPPORTED: Final = (FaultKind.UNSUPPORTED_INSTRUCTION, FaultKind.MALFORMED_PTX)
"""Faults that are limits of the emulator, not errors of the kernel."""


def inspect_on_device(device: Device, kernel: Kernel, pool: CasePool, noop_control: NoOpControl) -> Inspection:
    """Runs the remaining cases of a pool on a kernel's own device, and a no-op in its place, which must fail.

    On the emulator, the cases of the gate are repeated with all checks, too.

    Args:
        device: Device on which the kernel passed the gate.
        kernel: Finalist.
        pool: Inputs of the search.
        noop_control: Control that builds and runs the no-op.

    Raises:
        DefectError: The gate passed the no-op, so no verdict of this search can be trusted.
        CandidateError: The device does not accept the launch this time.
    """
    start_s = time.perf_counter()
    source_hash = kernel.source.source_hash
    noop_control.control(device, kernel, pool.draw(source_hash).gate)
    try:
        with closing(device.load(kernel)) as loaded:
            cases = (*pool.others(source_hash), *pool.large, *pool.expanded_for(kernel.source.launch), *pool.all_rows)
            verdict = run_gate(loaded, cases, pool.seed)
            reason = verdict.reason or _unsteady(loaded, pool)
    except LaunchError as error:
        reason = str(error)
    found = Inspection(reason)
    if not reason and device.info.predicted:  # beside a GPU, other processes do this
        found = EmulatedInspector((pool,), device.target).inspect(Candidate((kernel,)))
    return replace(found, seconds=time.perf_counter() - start_s)


def _unsteady(loaded: LoadedKernel, pool: CasePool) -> str:
    """Describes the first of many equal calls that gave other bits; empty if none did, or without a GPU."""
    if not isinstance(loaded, RepeatableKernel):
        return ""
    number = loaded.first_unequal(pool.problem.inputs, REPEATED_S)
    return "" if number is None else f"{pool.problem.name}: call {number} of the same inputs gave other bits"


class EmulatedInspector:
    """Runs finalists on the emulator. Lives in a process of its own, beside the one that times.

    Args:
        pools: Inputs of the search, one pool per problem. Only small cases run, because the checks are slow.
        target: Any GPU: nothing is predicted here.
    """

    def __init__(self, pools: Sequence[CasePool], target: Target) -> None:
        from evoengine.costmodel.device import EmulatorDevice  # lazily: most processes that import this never inspect

        self._pools = tuple(pools)
        self._all = EmulatorDevice(target, cta_orders=INSPECTED_ORDERS, thorough=True)
        self._orders = EmulatorDevice(target, cta_orders=INSPECTED_ORDERS, thorough=True, orders_only=True)
        self._others = EmulatorDevice(target, cta_orders=0, thorough=True)

    def inspect(self, candidate: Candidate, part: int = 0, parts: int = 1) -> Inspection:
        """Runs a finalist with all checks of the emulator, also in random orders of the CTAs, and judges its output.

        Args:
            candidate: Finalist.
            part: Number of the part of the checks that is made, from 0; other processes make the others.
            parts: Number of parts.
        """
        found = Inspection()
        for pool, kernel in zip(self._pools, candidate.kernels, strict=True):
            gate = pool.draw(kernel.source.source_hash).gate
            cases = (*gate, pool.grouped, pool.tall)
            small = tuple(case for case in cases if case.inputs.problem.flops <= RACE_CHECK_FLOPS)
            found = found.joined(self._run(kernel, small, part, parts))
        return found

    def _synchronises(self, kernel: Kernel) -> bool:
        with closing(self._all.load(kernel)) as loaded:
            return loaded.synchronises

    def _run(self, kernel: Kernel, cases: tuple[ParityCase, ...], part: int, parts: int) -> Inspection:
        """Runs one part of the cases; where CTAs synchronise, every second part makes only the random orders of all."""
        device = self._all
        try:
            if parts > 1 and self._synchronises(kernel):
                device = self._orders if part % 2 else self._others
                part, parts = part // 2, (parts + 1 - part % 2) // 2
            mine = _dealt(cases, part, parts)
            if not mine:
                return Inspection()
            with closing(device.load(kernel)) as loaded:
                verdict = run_gate(loaded, mine)
        except LaunchError as error:
            fault = error if isinstance(error, EmulatorError) else error.__cause__
            if isinstance(fault, EmulatorError) and fault.kind in _UNSUPPORTED:
                return Inspection(notes=(f"not checked on the emulator: {fault}",))
            return Inspection(_with_place(str(error)))
        except CandidateTimeoutError as error:
            return Inspection(notes=(f"not checked on the emulator: {error}",))
        return Inspection("" if verdict.passed else _with_place(verdict.reason))


def _dealt(cases: tuple[ParityCase, ...], part: int, parts: int) -> tuple[ParityCase, ...]:
    """Returns one part of the cases, in their own order; they are dealt in turns, those that take longest first."""
    longest_first = sorted(range(len(cases)), key=lambda index: -_work(cases[index]))
    return tuple(cases[index] for index in sorted(longest_first[part::parts]))


def _work(case: ParityCase) -> int:
    """Estimates how long the emulator takes for a case, in keys that a query row sees."""
    problem = case.inputs.problem
    return problem.batch * problem.heads * problem.seq_q * (problem.seq_kv + _KEYS_PER_ROW)


def inspector_service(pools: Sequence[CasePool], target: Target) -> EmulatedInspector:
    """Makes an inspector in a process beside a GPU's worker, to which it gives way."""
    give_way()
    return EmulatedInspector(pools, target)


def joint_inspection(parts: Sequence[Future[Inspection]]) -> Future[Inspection]:
    """Returns one inspection for several that run in parallel; done when all are, and failed when one is.

    Args:
        parts: At least one; the first finding, in this order, is kept.
    """
    whole: Future[Inspection] = Future()
    whole.set_running_or_notify_cancel()
    left = threading.Semaphore(len(parts) - 1)

    def _complete(_: Future[Inspection]) -> None:
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
        part.add_done_callback(_complete)
    return whole


def _with_place(reason: str) -> str:
    return reason if "emulator" in reason else f"on the emulator: {reason}"
