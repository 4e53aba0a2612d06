"""A lower bound on the time of any kernel; a measurement below it is rejected as a defect."""

from __future__ import annotations

from evoengine.model import Problem, Timing
from evoengine.target import Target


def floor_us(problem: Problem, target: Target) -> float:
    """Returns the time that the tensor cores need at their peak for the unmasked (query, key) pairs.

    Memory traffic is left out: with warm caches the tensors need not come from DRAM.
    """
    flops = 4 * problem.heads * problem.head_dim * problem.seen_pairs
    return flops / (target.fp16_tensor_tflops * 1e6)


def impossible(timing: Timing, problem: Problem, target: Target) -> str:
    """Returns the reason why a measured time is impossible; empty if it is possible."""
    floor = floor_us(problem, target)
    if timing.predicted or timing.median_us >= floor:
        return ""
    return (
        f"{timing.median_us:.3g} us is below the {floor:.3g} us that the tensor cores of {target.marketing_name} "
        "need at their peak: not all of it was computed"
    )
