"""Key tiles of the query tiles of one head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Problem

_EIGHT: Final = 8
"""Keys that a mask examines together."""


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
    keys = _end_keys(problem, last // group) - _first_keys(problem, rows // group)
    return np.maximum(0.0, np.ceil(keys / block_n))


def tiles_in_order(tiles: npt.NDArray[np.float64], heads: int, order: str) -> npt.NDArray[np.float64]:
    """Returns the key tiles of all pieces of work in the order of their numbers.

    Args:
        tiles: Key tiles of the query tiles of one head.
        heads: Heads, or splits of heads, of all sequences.
        order: Value of ``TILE_ORDER``.
    """
    if order == "natural":
        return np.tile(tiles, heads)
    longer = (len(tiles) + 1) // 2 if order == "folded" else len(tiles)
    return np.repeat(np.concatenate([tiles[::-1][:longer], tiles[: len(tiles) - longer]]), heads)


def passed_tiles(
    problem: Problem, packed: int, block_n: int, warpgroups: int, warpgroup_rows: int
) -> tuple[tuple[int, int], ...]:
    """Computes the key tiles of a piece of work that the rows of one warpgroup do not see, but those of others do.

    Args:
        problem: Problem with lengths and mask.
        packed: Query heads that share a query tile.
        block_n: Keys of a key tile.
        warpgroups: Warpgroups that compute the piece.
        warpgroup_rows: Rows of each.

    Returns:
        For each warpgroup the number of tiles at the end of the keys, which come first, and at their beginning: means
        of the pieces in which it has rows, rounded.
    """
    total = problem.seq_q * packed
    starts = np.arange(0, total, warpgroups * warpgroup_rows)
    final = np.minimum(starts + warpgroups * warpgroup_rows, total) - 1
    begin = _first_keys(problem, starts // packed)
    tiles = np.maximum(0, -((begin - _end_keys(problem, final // packed)) // block_n))
    passed = []
    for index in range(warpgroups):
        first = starts + index * warpgroup_rows
        last = np.minimum(first + warpgroup_rows, total) - 1
        here = (first < total) & (tiles > 0)
        seen = np.maximum(0, -((begin - _end_keys(problem, last // packed)) // block_n))
        hidden = (_first_keys(problem, first // packed) - begin) // block_n
        sides = np.stack([tiles - seen, np.minimum(hidden, seen)])[:, here]
        passed.append(tuple(round(float(side.mean())) if here.any() else 0 for side in sides))
    return tuple((front, back) for front, back in passed)


def _first_keys(problem: Problem, queries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """First visible key of each query, or the key after the last if there is none."""
    if problem.window_left is None:
        return np.zeros(len(queries), np.int64)
    begins: npt.NDArray[np.int64] = np.maximum(0, queries + problem.seq_kv - problem.seq_q - problem.window_left)
    return begins


def _end_keys(problem: Problem, queries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Key after the last visible one of each query."""
    ends = np.full(len(queries), problem.seq_kv)
    if not is_bounded_right(problem):
        return ends
    right = 0 if problem.causal else problem.window_right or 0
    bounded: npt.NDArray[np.int64] = np.minimum(ends, queries + 1 + problem.seq_kv - problem.seq_q + right)
    return bounded


def masked_tiles(problem: Problem, block_n: int, warpgroups: int, packed: int = 1) -> tuple[int, ...]:
    """Computes the key tiles of a piece of work in which a mask or the end of the keys hides scores.

    Args:
        problem: Problem with lengths and mask.
        block_n: Keys of a key tile.
        warpgroups: Warpgroups of 64 rows that compute the piece.
        packed: Query heads that share a query tile.

    Returns:
        Number of tiles by warpgroup.
    """
    sides = _masked_sides(problem)
    if sides == 0:
        return (int(problem.seq_kv % block_n > 0),) * warpgroups
    # From the first query of a warpgroup to the last of the CTA.
    queries = [-(-64 * (warpgroups - index) // packed) for index in range(warpgroups)]
    return tuple(sides * -(-count // block_n) for count in queries)


def masked_share(problem: Problem, block_n: int | npt.NDArray[np.int64]) -> float | npt.NDArray[np.float64]:
    """Computes the share of a tile's scores that a mask examines, in the tiles that it crosses; 0 if there are none.

    A causal mask or a window examines all; where only the keys end, the eights before the end are left out.

    Args:
        problem: Problem with lengths and mask.
        block_n: Keys of a key tile, also for several configs.
    """
    if _masked_sides(problem) > 0:
        return 1.0
    last_keys = problem.seq_kv % block_n
    return np.where(last_keys > 0, 1 - last_keys // _EIGHT * _EIGHT / block_n, 0.0)


def _masked_sides(problem: Problem) -> int:
    """Counts the sides, left and right, on which keys can be hidden from some rows only."""
    return is_bounded_right(problem) + (problem.window_left is not None)
