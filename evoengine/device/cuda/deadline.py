"""How long a kernel may run before it counts as hung."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from evoengine.model import Problem
from evoengine.target import Target

PATIENCE_S: Final = 0.25
"""What any wait gets, however little there is to do: a GPU may have to raise its clocks first."""

SLOWEST_COMPUTE: Final = 2000.0
"""Times what the tensor cores need that an honest kernel may take. Without tensor cores, with one warp, it is 500."""

SLOWEST_MEMORY: Final = 500.0
"""Times what the memory needs at its peak that an honest kernel may take. One CTA on its own gets a 200th of it."""

SLOWEST_BASELINES: Final = 500.0
"""Times what the fastest of PyTorch's attention backends takes that an honest kernel may take, where that was measured.
Of some 15,000 configs that were timed on an H200 the slowest one took 55 times as long."""


def slowest_s(problem: Problem, target: Target, baseline_us: float | None = None) -> float:
    """Seconds that the slowest honest kernel takes, if the problem is large.

    Args:
        problem: what it computes.
        target: the GPU, whose roofline bounds it.
        baseline_us: the baseline's time for the same; None where it is not known.
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
    """Seconds after which that many calls have hung.

    Args:
        problem: what each call computes.
        target: the GPU.
        calls: in a row, without a pause.
        patience_s: what a wait gets besides.
        baseline_us: see :func:`slowest_s`.
    """
    return patience_s + calls * slowest_s(problem, target, baseline_us)


def done_within(is_done: Callable[[], bool], limit_s: float) -> bool:
    """Asks again and again until something is done, or the time is up.

    After the time it asks once more: perhaps it was this process that did not run, while the device did.
    """
    end_s = time.perf_counter() + limit_s
    late = False
    while not is_done():
        if late:
            return False
        late = time.perf_counter() > end_s
    return True
