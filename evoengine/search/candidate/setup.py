"""Inputs, reference results and timing plans of a search, prepared once and sent to all device workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.costmodel.representative import SLOW_FLOPS, representative
from evoengine.kernel.records import Kernel
from evoengine.model import ACCEPT_THRESHOLD, Problem, Workload
from evoengine.parity.inputs.pool import CasePool, build_pool, fresh_seed
from evoengine.search.candidate.device_spec import DeviceSpec

WHOLE_PROBLEM_FLOPS: Final = 2 * 10**9
"""Largest problem that the emulator runs whole, nearly four times the default one; of larger ones it runs a slice."""

_SPIN_UP_S: Final = 0.1
"""Seconds of load before a worker's first sample: the warm-up, and the choice of the baseline, have loaded the GPU."""


@dataclass(frozen=True)
class ProblemSetup:
    """Inputs and timing plan for the examinations on one problem; picklable."""

    problem: Problem
    pool: CasePool
    """Inputs from which the parity gate draws a sample for each candidate."""
    plan: TimingPlan
    share: float = 1.0
    """Weight of this problem's time in the objective; the shares of a workload sum to 1."""


@dataclass(frozen=True)
class Setup:
    """Setup of a device worker; picklable. :func:`prepare` makes it once per search."""

    parts: tuple[ProblemSetup, ...]
    """One per problem; a single problem is a workload of one."""
    device: DeviceSpec
    threshold: float = ACCEPT_THRESHOLD
    """Minimum relative speed-up needed to replace the champion."""
    known_good: Kernel | None = None
    """Kernel that checks the device before a worker gets its first candidate; None skips the check."""
    sanitizer: str = ""
    """Path of compute-sanitizer, which checks new champions on a GPU; empty for none."""


@dataclass(frozen=True)
class SetupRequest:
    """Settings from which :func:`prepare`, or a call of the request, makes a setup; picklable and comparable."""

    problem: Problem | Workload
    """Problem to search, or workload of several problems, which all use the same inputs seed."""
    device: DeviceSpec
    """Device that candidates run on."""
    inputs_seed: int | None = None
    """Seed for the inputs used by the parity gate; None for a fresh one, which no candidate can predict."""
    cold: bool = False
    """Whether to time with a flushed L2 cache."""
    eager: bool = False
    """Whether to time call by call instead of in a CUDA graph."""
    racing: bool = True
    """Whether to prune slow candidates after a few samples."""
    threshold: float = ACCEPT_THRESHOLD
    """Minimum relative speed-up needed to replace the champion."""

    def __call__(self) -> Setup:
        return prepare(self)


def prepare(request: SetupRequest) -> Setup:
    """Draws all inputs and computes their reference results with torch, outside the device workers."""
    problem, seed = request.problem, request.inputs_seed
    if seed is None:
        seed = fresh_seed()
    emulated = request.device.kind == "emulator"
    max_flops = WHOLE_PROBLEM_FLOPS if emulated else None
    weighted = ((problem, 1.0),) if isinstance(problem, Problem) else zip(problem.problems, problem.shares, strict=True)
    parts = tuple(
        ProblemSetup(
            problem=one,
            pool=build_pool(one, seed, max_flops, representative(one, SLOW_FLOPS) if emulated else None),
            plan=replace(
                plan_for(one, cold=request.cold, eager=request.eager, racing=request.racing), spin_up_s=_SPIN_UP_S
            ),
            share=share,
        )
        for one, share in weighted
    )
    return Setup(parts, request.device, request.threshold)
