"""Key tiles of the query tiles of one head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from evoengine.model import Problem


def packed_heads(problem: Problem, names: Mapping[str, Any]) -> int:
    """Returns the number of query heads whose rows share a query tile, by a config's ``PACK_GQA``."""
    return problem.heads // problem.kv_heads if names.get("PACK_GQA") else 1


def is_bounded_right(problem: Problem) -> bool:
    """Returns whether keys after a row's diagonal can be hidden."""
    return problem.causal or problem.window_right is not None


def tile_counts(problem: Problem, tile_rows: int, block_m: int, block_n: int) -> npt.NDArray[np.float64]:
    """Computes the key tiles that a CTA computes, for each query tile of one head.

    Args:
        problem: Problem with lengths and mask.
        tile_rows: Rows that the query tiles of one head cover.
        block_m: Rows of a query tile.
        block_n: Keys of a key tile.
    """
    rows = np.arange(0, tile_rows, block_m)
    group = max(1, tile_rows // problem.seq_q)
    last = np.minimum(rows + block_m, tile_rows) - 1
    first, final = rows // group, last // group
    shift = problem.seq_kv - problem.seq_q
    ends = np.full(len(rows), problem.seq_kv)
    if is_bounded_right(problem):
        right = 0 if problem.causal else problem.window_right or 0
        ends = np.minimum(ends, final + 1 + shift + right)
    begins = np.zeros(len(rows), np.int64)
    if problem.window_left is not None:
        begins = np.maximum(0, first + shift - problem.window_left)
    return np.maximum(0.0, np.ceil((ends - begins) / block_n))


def masked_tiles(problem: Problem, block_n: int, warpgroups: int) -> tuple[int, ...]:
    """Computes the key tiles of a piece of work in which a mask or the end of the keys hides scores.

    Args:
        problem: Problem with lengths and mask.
        block_n: Keys of a key tile.
        warpgroups: Warpgroups of 64 rows that compute the piece.

    Returns:
        Number of tiles by warpgroup.
    """
    if not is_bounded_right(problem) and problem.window_left is None:
        return (int(problem.seq_kv % block_n > 0),) * warpgroups
    rows = [
        64 * (warpgroups - index) for index in range(warpgroups)
    ]  # from the first of a warpgroup to the last of the CTA
    sides = is_bounded_right(problem) + (problem.window_left is not None)
    return tuple(sides * -(-count // block_n) for count in rows)
