"""Deadlines of the work that is handed to other processes: seconds, derived from what there is to do.

On a device a kernel has a deadline of its own (see :mod:`evoengine.device.cuda.deadline`), and one that hangs is told there.
These deadlines are the second net, for a driver or a process that stops answering, so they may be generous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.bench.sampling import BLOCK, RETRIES
from evoengine.costmodel.emulation_limits import launch_limit_s
from evoengine.device.cuda.deadline import slowest_s
from evoengine.device.tools.sanitizer import TOOL_LIMIT_S
from evoengine.model import Problem
from evoengine.search.candidate.evaluate import Setup
from evoengine.search.candidate.sanitizing import SANITIZED_FLOPS
from evoengine.target import Target

COMPILE_LIMIT_S: Final = 120.0
"""Above the slowest honest compilation on a busy machine."""

DEVICE_CHECK_LIMIT_S: Final = 10.0
"""For the known-good kernel, which a GPU needs microseconds for; what is longer is a driver that does not answer."""
EMULATOR_CHECK_LIMIT_S: Final = 120.0
"""Likewise on the emulator, which takes a fraction of a second of CPU time; a busy machine may have little to give."""

_HOST_S: Final = 5.0
"""Loading, judging, raising the clocks: what no kernel has a part in, many times over."""
_HOST_S_PER_BYTE: Final = 2e-8
"""Preparing, copying and judging tensors; ten times what one slow core needs."""
_SHARED_CORE: Final = 4
"""Emulators that may have to share a core."""


def examination_limit_s(setup: Setup, target: Target, baseline_us: float | None = None) -> float:
    """Seconds after which the process that examines a candidate is given up, on all problems of a workload.

    Args:
        setup: what an examination consists of.
        target: the GPU.
        baseline_us: the baseline's time on the one problem; None where it is not known.
    """
    return _one_limit_s(setup, target, baseline_us) + sum(_one_limit_s(other, target) for other in setup.others)


def _one_limit_s(setup: Setup, target: Target, baseline_us: float | None = None) -> float:
    case_problems = [cases[0].inputs.problem for cases in setup.pool.shapes]
    problem = setup.pool.problem.inputs.problem
    runs = [*case_problems, problem, setup.pool.rechecks[0].inputs.problem]
    if setup.device.kind == "emulator":
        return _emulated_s(runs)
    host_s = _HOST_S + _HOST_S_PER_BYTE * sum(run.min_bytes for run in runs)
    rounds = setup.plan.warmup + setup.plan.samples + RETRIES * BLOCK
    calls = rounds * (setup.plan.stopwatch.calls + setup.plan.stopwatch.lead_calls) + 2 * len(runs)
    return host_s + calls * slowest_s(problem, target, baseline_us)


def sanitizing_limit_s(setup: Setup, target: Target) -> float:
    """Seconds after which compute-sanitizer's look at a new champion is given up, with its check on the emulator."""
    both = (setup, *setup.others)
    emulated_s = sum(max(map(launch_limit_s, _sanitized(one))) for one in both)
    return examination_limit_s(setup, target) + 2 * TOOL_LIMIT_S * len(both) + emulated_s


def _sanitized(setup: Setup) -> list[Problem]:
    """What compute-sanitizer may have to run."""
    small = [cases[0].inputs.problem for cases in setup.pool.shapes]
    problem = setup.pool.problem.inputs.problem
    return [*small, problem] if problem.flops <= SANITIZED_FLOPS or not small else small


def emulated_inspection_limit_s(setup: Setup) -> float:
    """Likewise on the emulator, where small cases run."""
    runs = [cases[0].inputs.problem for one in (setup, *setup.others) for cases in one.pool.shapes]
    return _emulated_s(runs)


def _emulated_s(runs: Sequence[Problem]) -> float:
    """Of some runs on the emulator; to tell the source line of a fault, it compiles the kernel once more."""
    return _HOST_S + COMPILE_LIMIT_S + _SHARED_CORE * sum(map(launch_limit_s, runs))


def duel_limit_s(setup: Setup, target: Target) -> float:
    """Seconds after which a duel is given up; two kernels take part in it."""
    return 2 * examination_limit_s(setup, target)
