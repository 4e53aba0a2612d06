"""Deadlines: the time after which a running kernel counts as hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from evoengine.model import Problem
from evoengine.target import Target

PATIENCE_S: Final = 0.75
"""Minimum limit of any wait: a GPU may have to raise its clocks first, and one that several processes share takes more
than 0.25 s to report an illegal access."""

SLOWEST_COMPUTE: Final = 2000.0
"""Largest plausible ratio of a valid kernel's time to the tensor cores' time at their peak. One warp without tensor
cores reaches 500."""

SLOWEST_MEMORY: Final = 500.0
"""Largest plausible ratio of a valid kernel's time to the memory's time at its peak. A single CTA reaches 200."""

SLOWEST_BASELINES: Final = 500.0
"""Largest plausible ratio of a valid kernel's time to the baseline's. Among some 15,000 configs timed on an H200 the
largest was 55."""


def slowest_s(problem: Problem, target: Target, baseline_us: float | None = None) -> float:
    """Returns the seconds that the slowest valid kernel takes on a large problem.

    Args:
        problem: Problem that the kernel computes.
        target: GPU, whose roofline gives the bound.
        baseline_us: Baseline's time for the same problem; None if it is unknown.
    """
    compute_s = problem.flops / (target.fp16_tensor_tflops * 1e12)
    memory_s = problem.min_bytes / (target.dram_gbps * 1e9)
    by_roofline_s = max(SLOWEST_COMPUTE * compute_s, SLOWEST_MEMORY * memory_s)
    return by_roofline_s if baseline_us is None else min(by_roofline_s, SLOWEST_BASELINES * baseline_us * 1e-6)


def call_limit_s(
    problem: Problem,
    target: Target,
    calls: int = 1,
    patience_s: float = PATIENCE_S,
    baseline_us: float | None = None,
) -> float:
    """Returns the seconds after which a number of calls counts as hung.

    Args:
        problem: Problem of each call.
        target: GPU.
        calls: Number of consecutive calls.
        patience_s: Additional time of any wait.
        baseline_us: See :func:`slowest_s`.
    """
    return patience_s + calls * slowest_s(problem, target, baseline_us)


def done_within(is_done: Callable[[], bool], limit_s: float) -> bool:
    """Polls until ``is_done`` returns True or the limit has passed.

    It polls once more after the limit, because this process may have been suspended while the device was running.
    """
    end_s = time.perf_counter() + limit_s
    late = False
    while not is_done():
        if late:
            return False
        late = time.perf_counter() > end_s
    return True
