"""Inputs, truths and timing plans of a search, prepared once in the main process and sent to the device workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.costmodel.representative import SLOW_FLOPS, representative
from evoengine.kernel.records import Kernel
from evoengine.model import ACCEPT_THRESHOLD, Problem, Workload
from evoengine.parity.inputs.pool import CasePool, build_pool, fresh_seed
from evoengine.search.candidate.device_spec import DeviceSpec

EMULATED_FLOPS: Final = 2 * 10**9
"""Largest problem that the emulator runs whole (four times the default problem); of larger ones it runs a slice."""


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
    """Arguments of :func:`prepare`; a call with the request makes the setup. Picklable and comparable."""

    problem: Problem | Workload
    device: DeviceSpec
    inputs_seed: int | None
    cold: bool
    eager: bool
    racing: bool
    threshold: float

    def __call__(self) -> Setup:
        return prepare(
            self.problem,
            self.device,
            inputs_seed=self.inputs_seed,
            cold=self.cold,
            eager=self.eager,
            racing=self.racing,
            threshold=self.threshold,
        )


def prepare(
    problem: Problem | Workload,
    device: DeviceSpec,
    *,
    inputs_seed: int | None = None,
    cold: bool = False,
    eager: bool = False,
    racing: bool = True,
    threshold: float = ACCEPT_THRESHOLD,
) -> Setup:
    """Draws all inputs and computes their truths, in the main process (it imports torch; the workers need not).

    Args:
        problem: Problem to search, or workload of several problems, which all use the same inputs seed.
        device: Device that candidates run on.
        inputs_seed: Seed for the inputs used by the parity gate; None for a fresh one, which no candidate can predict.
        cold: Whether to time with a flushed L2 cache.
        eager: Whether to time call by call instead of in a CUDA graph.
        racing: Whether to prune slow candidates after a few samples.
        threshold: Minimum relative speed-up needed to replace the champion.
    """
    seed = fresh_seed() if inputs_seed is None else inputs_seed
    emulated = device.kind == "emulator"
    max_flops = EMULATED_FLOPS if emulated else None
    weighted = ((problem, 1.0),) if isinstance(problem, Problem) else zip(problem.problems, problem.shares, strict=True)
    parts = tuple(
        ProblemSetup(
            problem=one,
            pool=build_pool(one, seed, max_flops, representative(one, SLOW_FLOPS) if emulated else None),
            plan=plan_for(one, cold=cold, eager=eager, racing=racing),
            share=share,
        )
        for one, share in weighted
    )
    return Setup(parts, device, threshold)
