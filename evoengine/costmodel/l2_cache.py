"""L2: its rate to an SM, the bytes that it does not hold from one call to the next, and what reading them takes."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from evoengine.model import Problem
from evoengine.target import Target

Keys = TypeVar("Keys", float, npt.NDArray[np.float64])

SM_BYTES_PER_CLK: Final = 64
"""Bytes per clock between L2 and the L1 of one SM: CUDA's tuning guides and Jia et al., "Dissecting the NVIDIA Volta
GPU Architecture via Microbenchmarking" (arXiv 1804.06826)."""
_HELD: Final = 0.6
"""Share of L2 up to which the bytes of a call are all held for the next one."""
_LOST: Final = 0.9
"""Share of L2 from which none are. Both from kernels with one copy under way, on growing batches on an H200: constant
up to 35 MiB, 2 to 17 % slower at 38, 7 to 49 % at 46 (docs/results/l2-batches-h200.md). Its L2 has two halves, which
may each hold a copy of a line; on GPUs of another kind nothing was measured."""
MISS_CLOCKS: Final = 800.0
"""Time that a copy takes longer from DRAM than from L2; from the same kernels."""


def missed_share(unique_bytes: int | None, target: Target) -> float:
    """Estimates the share of the bytes that each call reads from DRAM, though the call before it has read them too.

    Args:
        unique_bytes: Bytes that a call reads or writes at least once; None if L2 holds them.
        target: Data sheet of the GPU.
    """
    if unique_bytes is None:
        return 0.0
    return min(1.0, max(0.0, (unique_bytes / target.l2_bytes - _HELD) / (_LOST - _HELD)))


def miss_clocks(problem: Problem, target: Target, copied_keys: Keys) -> Keys:
    """Estimates the clocks that a copy of keys or values takes longer because L2 does not hold them.

    Of several copies of the same keys only the first comes from DRAM.

    Args:
        problem: Problem to be computed.
        target: Data sheet of the GPU.
        copied_keys: Keys of all tiles that all CTAs copy.
    """
    copies = np.maximum(1.0, copied_keys / (problem.batch * problem.kv_heads * problem.seq_kv))
    clocks: Keys = MISS_CLOCKS * missed_share(problem.min_bytes, target) / copies
    return clocks
