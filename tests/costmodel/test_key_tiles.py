"""Key tiles of query tiles against a mask that is written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evoengine.costmodel.key_tiles import masked_share, masked_tiles, passed_tiles, tile_counts, tiles_in_order
from evoengine.model import Problem

PROBLEMS = [
    Problem(1, 1, 512, 64, causal=True),
    Problem(1, 1, 700, 64, seq_kv=300, causal=True),  # rows that see no key
    Problem(1, 4, 90, 64, kv_heads=1, seq_kv=256, causal=True),
    Problem(1, 1, 600, 64, window_left=100, window_right=30),
    Problem(1, 1, 300, 64, seq_kv=200),
]


def visible(problem: Problem, packed: int) -> np.ndarray:
    """Which keys each row sees, ``[rows, keys]``."""
    query = np.repeat(np.arange(problem.seq_q), packed)[:, None] + problem.seq_kv - problem.seq_q
    key = np.arange(problem.seq_kv)[None]
    left = math.inf if problem.window_left is None else problem.window_left
    right = 0 if problem.causal else math.inf if problem.window_right is None else problem.window_right
    return (key >= query - left) & (key <= query + right)


@pytest.mark.parametrize("block_n", [48, 64, 128])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.key)
def test_tiles_of_a_warpgroup_are_those_in_which_a_row_sees_a_key(problem: Problem, block_n: int) -> None:
    packed, warpgroups, rows = problem.heads // problem.kv_heads, 3, 64
    mask = visible(problem, packed)
    counts: list[int] = []
    passed: list[list[tuple[int, int]]] = [[] for _ in range(warpgroups)]
    for start in range(0, len(mask), warpgroups * rows):
        keys = np.flatnonzero(mask[start : start + warpgroups * rows].any(axis=0))
        begin, end = (int(keys[0]), int(keys[-1]) + 1) if len(keys) else (0, 0)
        tiles = [slice(first, first + block_n) for first in range(begin, end, block_n)][::-1]  # the last keys first
        counts.append(len(tiles))
        for index in range(warpgroups):
            own = mask[start + index * rows : start + (index + 1) * rows]
            if len(own) == 0 or not tiles:
                continue
            sees = [bool(own[:, tile].any()) for tile in tiles]
            front = sees.index(True) if any(sees) else len(tiles)
            passed[index].append((front, sees[::-1].index(True) if any(sees) else 0))
    assert tile_counts(problem, len(mask), warpgroups * rows, block_n).tolist() == counts
    means = [tuple(round(float(np.mean(side))) for side in zip(*pairs, strict=True)) for pairs in passed]
    assert passed_tiles(problem, packed, block_n, warpgroups, rows) == tuple(means)


@pytest.mark.parametrize("block_n", [48, 64, 128])
@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 1, 512, 64, causal=True),
        Problem(1, 1, 600, 64, window_left=100, window_right=30),
        Problem(1, 8, 600, 64, kv_heads=1, window_left=127, window_right=0),
        Problem(1, 8, 600, 64, kv_heads=1, seq_kv=900, causal=True),
        Problem(1, 1, 300, 64, seq_kv=200),
    ],
    ids=lambda problem: problem.key,
)
def test_masked_tiles_are_those_in_which_a_row_misses_a_key(problem: Problem, block_n: int) -> None:
    packed, rows = problem.heads // problem.kv_heads, 64
    mask = visible(problem, packed)
    masked = []
    for start in range(0, len(mask) - rows + 1, rows):
        own = mask[start : start + rows]
        keys = np.flatnonzero(own.any(axis=0))
        begin, end = int(keys[0]), int(keys[-1]) + 1
        tiles = [own[:, first : first + block_n] for first in range(begin, end, block_n)]
        masked.append(sum(tile.shape[1] < block_n or not tile.all() for tile in tiles))
    (count,) = masked_tiles(problem, block_n, 1, packed)
    assert abs(count - np.median(masked)) <= (0 if packed > 1 else 1), masked


@pytest.mark.parametrize("block_n", [48, 64, 128])
@pytest.mark.parametrize("seq_kv", [200, 203, 250])
def test_the_end_of_the_keys_is_examined_from_its_eight_on(seq_kv: int, block_n: int) -> None:
    last_tile = np.arange(seq_kv // block_n * block_n, seq_kv // block_n * block_n + block_n)
    eights = (last_tile >= seq_kv).reshape(-1, 8).any(axis=1)  # those with a key past the end
    assert masked_share(Problem(1, 1, 300, 64, seq_kv=seq_kv), block_n) == pytest.approx(eights.mean())
    assert masked_share(Problem(1, 1, 300, 64, seq_kv=seq_kv, causal=True), block_n) == 1
    assert masked_share(Problem(1, 1, 300, 64, seq_kv=2 * block_n), block_n) == 0


def test_folded_tiles_of_two_rounds_see_as_many_keys_together() -> None:
    tiles = np.arange(1.0, 9.0)
    assert tiles_in_order(tiles, 2, "natural").tolist() == [*range(1, 9), *range(1, 9)]
    assert tiles_in_order(tiles, 2, "longest_first").tolist() == [8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]
    folded = tiles_in_order(tiles, 2, "folded")
    assert (folded[:8] + folded[8:]).tolist() == [9.0] * 8
