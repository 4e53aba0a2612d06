"""How long an emulated launch may take, and which problems are small enough for the dearer checks."""

from __future__ import annotations

from typing import Final

from evoengine.model import Problem

PATIENCE_S: Final = 1.5
"""CPU seconds that any emulated launch gets; translating a kernel is a part of its first one."""

SLOWEST_S_PER_FLOP: Final = 1e-7
"""CPU seconds per FLOP besides: twenty times what a kernel without tensor cores needs."""

RACE_CHECK_FACTOR: Final = 10.0
"""Times as long where the race check is on, and launches are too small to fill NumPy's vectors."""

RACE_CHECK_FLOPS: Final = 4 * 10**7
"""Problems up to this size, the small parity cases, also run with the race check."""


def launch_limit_s(problem: Problem) -> float:
    """CPU seconds after which an emulated launch has hung."""
    pairs = sum(queries * keys for queries, keys in problem.sequences)  # masked ones too: a kernel need not skip them
    factor = RACE_CHECK_FACTOR if problem.flops <= RACE_CHECK_FLOPS else 1.0
    return PATIENCE_S + factor * SLOWEST_S_PER_FLOP * 4 * problem.heads * problem.head_dim * pairs
