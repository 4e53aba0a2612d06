"""Deadlines of jobs in worker processes, in seconds, derived from the work to do.

On a device each kernel has a deadline of its own (see :mod:`evoengine.device.cuda.deadline`), which reports one that
hangs. These deadlines are for a driver or a process that stops answering, so they are generous. The search loop
(:mod:`evoengine.search.loop`) decides the status of a candidate whose job exceeds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.bench.sampling import BLOCK, RETRIES
from evoengine.costmodel.emulation.limits import launch_limit_s
from evoengine.device.cuda.deadline import slowest_s
from evoengine.device.tools.sanitizer import TOOL_LIMIT_S
from evoengine.model import Problem
from evoengine.search.candidate.admission import AdmissionSetup
from evoengine.search.candidate.sanitizing import is_sanitized_whole
from evoengine.search.candidate.setup import ProblemSetup, Setup
from evoengine.target import Target

COMPILE_LIMIT_S: Final = 120.0
"""Above the slowest valid compilation on a busy machine."""

DEVICE_CHECK_LIMIT_S: Final = 10.0
"""For the known-good kernel, which takes a GPU microseconds; a driver that needs longer does not answer."""
EMULATOR_CHECK_LIMIT_S: Final = 120.0
"""For the known-good kernel on the emulator, which takes a fraction of a second of CPU time, but longer on a busy
machine."""

_HOST_S: Final = 5.0
"""Loading, comparing and raising the clocks, which do not depend on the kernel; many times the usual."""
_HOST_S_PER_BYTE: Final = 2e-8
"""Preparing, copying and comparing tensors; ten times what one slow core needs."""
_SHARED_CORE: Final = 4
"""Number of emulator processes that may share one core."""


def examination_limit_s(setup: Setup, target: Target, baseline_us: float | None = None) -> float:
    """Returns the deadline of an examination, on all problems.

    Args:
        setup: Inputs and timing plans.
        target: GPU that runs or is predicted.
        baseline_us: The baseline's time, where there is a single problem; None where it is not known.
    """
    known_us = baseline_us if len(setup.parts) == 1 else None
    return sum(_part_limit_s(part, target, known_us, emulated=_is_emulated(setup)) for part in setup.parts)


def sanitizing_limit_s(setup: Setup, target: Target) -> float:
    """Returns the deadline of compute-sanitizer's check of a new champion, with its verification on the emulator."""
    emulated_s = sum(max(map(launch_limit_s, _sanitized(part))) for part in setup.parts)
    return examination_limit_s(setup, target) + 2 * TOOL_LIMIT_S * len(setup.parts) + emulated_s


def emulated_inspection_limit_s(setup: Setup) -> float:
    """Returns the deadline of an inspection on the emulator, where the small cases run."""
    return _emulated_s([cases[0].inputs.problem for part in setup.parts for cases in part.pool.shapes])


def duel_limit_s(setup: Setup, target: Target) -> float:
    """Returns the deadline of a duel, in which two kernels take part."""
    return 2 * examination_limit_s(setup, target)


def admission_limit_s(setup: AdmissionSetup) -> float:
    """Returns the deadline of an admission, on all problems."""
    return _emulated_s([case.inputs.problem for cases in setup.cases for case in cases])


def fresh_inputs_limit_s(setup: Setup) -> float:
    """Returns the additional time for an untrusted kernel, whose timed calls each have inputs of their own."""
    if _is_emulated(setup):
        return 0.0
    copied = 0
    for part in setup.parts:
        rounds = part.plan.warmup + max(part.plan.samples, part.plan.pairs) + RETRIES * BLOCK
        copied += rounds * part.plan.stopwatch.calls * part.pool.problem.inputs.problem.min_bytes
    return _HOST_S_PER_BYTE * copied


def _is_emulated(setup: Setup) -> bool:
    return setup.device.kind == "emulator"


def _part_limit_s(part: ProblemSetup, target: Target, baseline_us: float | None, *, emulated: bool) -> float:
    case_problems = [cases[0].inputs.problem for cases in part.pool.shapes]
    problem = part.pool.problem.inputs.problem
    runs = [*case_problems, problem, part.pool.rechecks[0].inputs.problem]
    if emulated:
        return _emulated_s(runs)
    host_s = _HOST_S + _HOST_S_PER_BYTE * sum(run.min_bytes for run in runs)
    rounds = part.plan.warmup + part.plan.samples + RETRIES * BLOCK
    calls = rounds * (part.plan.stopwatch.calls + part.plan.stopwatch.lead_calls) + 2 * len(runs)
    return host_s + calls * slowest_s(problem, target, baseline_us)


def _sanitized(part: ProblemSetup) -> list[Problem]:
    """Problems that compute-sanitizer may have to run."""
    small = [cases[0].inputs.problem for cases in part.pool.shapes]
    problem = part.pool.problem.inputs.problem
    return [*small, problem] if is_sanitized_whole(problem) or not small else small


def _emulated_s(runs: Sequence[Problem]) -> float:
    """Deadline of runs on the emulator; to name the source line of a fault, it compiles the kernel once more."""
    return _HOST_S + COMPILE_LIMIT_S + _SHARED_CORE * sum(launch_limit_s(run, lanes=True) for run in runs)
