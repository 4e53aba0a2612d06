"""Time limits of emulated launches, and the sizes of problems that are checked for races or count bank conflicts."""

from __future__ import annotations

from typing import Final

from evoengine.model import Problem

BASE_LIMIT_S: Final = 4.0
"""CPU seconds allowed for any emulated launch; the first launch of a kernel includes its translation."""

THREAD_S: Final = 1e-4
"""Additional CPU seconds per thread of the grid: all of a persistent grid start, however small the problem is."""

MOST_THREADS_S: Final = 10.0
"""Largest limit that follows from :data:`THREAD_S`; enough for two CTAs of 384 threads on each SM of an H200."""

SLOWEST_S_PER_FLOP: Final = 1e-7
"""Additional CPU seconds per FLOP: twenty times the need of a kernel without tensor cores."""

RACE_CHECK_FACTOR: Final = 10.0
"""Factor on the time per FLOP with the race check on, where launches are also too small to fill NumPy vectors."""

LANE_CHECK_FACTOR: Final = 3.0
"""Further factor on this time where the order of lanes is checked, and on tensors whose rows are far apart."""

SERIAL_S: Final = 3e-4
"""CPU seconds per key and column, if a thread computes a whole row: fewer rows save nothing."""

MOST_SERIAL_S: Final = 40.0
"""Largest limit that follows from :data:`SERIAL_S`; enough for the keys of any parity case and a head_dim of 64."""

RACE_CHECK_FLOPS: Final = 4 * 10**7
"""Largest problem that runs with the race check; includes the small parity cases."""

CONFLICT_COUNT_FLOPS: Final = 10**7
"""Problems of more FLOPs count bank conflicts for the prediction: slices are larger, most parity cases smaller.

The prediction of a smaller problem ignores conflicts even if a profile counts them, so that it is the same with and
without a profile."""


def launch_limit_s(problem: Problem, threads: int = 0, *, lanes: bool = False) -> float:
    """Computes the CPU seconds after which an emulated launch counts as hung.

    Args:
        problem: Problem of the launch.
        threads: Threads of the whole grid.
        lanes: Whether the order of lanes is checked.
    """
    factor = (RACE_CHECK_FACTOR if problem.flops <= RACE_CHECK_FLOPS else 1.0) * (LANE_CHECK_FACTOR if lanes else 1.0)
    # Masked pairs count too: a kernel need not skip them.
    by_work_s = factor * SLOWEST_S_PER_FLOP * 4 * problem.heads * problem.head_dim * problem.pairs
    started_s = min(MOST_THREADS_S, THREAD_S * threads)
    return BASE_LIMIT_S + started_s + max(by_work_s, min(MOST_SERIAL_S, SERIAL_S * problem.head_dim * problem.seq_kv))
