"""Row sample: the rows of an output that are compared with the reference.

All rows of a small problem are compared, and a seeded sample of a large one, so that a comparison takes the host a few
milliseconds. A sample consists of blocks: one K/V head of one sequence with all query heads that share it, so that K
and V are read once. It always contains the first and the last block, and the first and the last row of each block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.model import Problem

Rows = NDArray[np.int64]

FULL_FLOPS: Final = 2 * 10**9
"""Problems with more FLOPs are compared on a sample of rows."""

FULL_ELEMENTS: Final = 2**19
"""Problems with more elements of O are compared on a sample of rows, except for finalists."""

FULL_KV_ELEMENTS: Final = 2**23
"""Problems with more elements of K and V are compared on a sample of K/V heads and sequences."""

FULL_BLOCKS: Final = 256
"""Problems with more K/V heads in all sequences are compared on a sample of these, except for finalists: each takes the
host a millisecond for its reference results."""

UNLIMITED: Final = 2**62
MIN_ROWS: Final = 16
MIN_BLOCKS: Final = 4


@dataclass(frozen=True, eq=False)
class Block:
    """Query rows of all heads that share one K/V head, in one sequence."""

    sequence: int
    kv_head: int
    rows: Rows
    """Sorted row indices within the sequence, at least one."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Blocks, and the positions of their n rows in memory: block by block, head by head, row by row."""

    blocks: tuple[Block, ...]
    batch: Rows
    """Index on the batch axis in memory, ``[n]``."""
    head: Rows
    """Query head, ``[n]``."""
    row: Rows
    """Index on the row axis in memory, ``[n]``."""
    starts: Rows
    """First of the n rows of each head of each block; bounds apply per head."""


@dataclass(frozen=True)
class RowPosition:
    """Position of a sequence in memory."""

    batch: int
    first_row: int
    first_key: int


def place_of(problem: Problem, sequence: int) -> RowPosition:
    """Returns the position of one sequence: its own batch index, or after the previous packed sequences."""
    if not problem.packed:
        return RowPosition(sequence, 0, 0)
    return RowPosition(0, sum(problem.lengths_q[:sequence]), sum(problem.lengths_kv[:sequence]))


def spans(problem: Problem, queries: int, keys: int, rows: Rows) -> tuple[Rows, Rows]:
    """Computes the visible keys ``[first, end)`` of rows of one sequence; ``end == first`` if there are none.

    Args:
        problem: Problem that defines the mask.
        queries: Number of queries of the sequence.
        keys: Number of keys of the sequence.
        rows: Row indices within the sequence.
    """
    diagonal = rows + keys - queries
    right = 0 if problem.causal else problem.window_right
    first, end = np.zeros_like(rows), np.full_like(rows, keys)
    if problem.window_left is not None:
        first = np.maximum(first, diagonal - problem.window_left)
    if right is not None:
        end = np.minimum(end, diagonal + right + 1)
    return first, np.maximum(first, end)


def keyless_rows(problem: Problem) -> NDArray[np.bool_]:
    """Computes the mask of rows without visible keys, in memory order: ``[memory_batch, rows_q]``."""
    found = np.zeros((problem.memory_batch, problem.rows_q), np.bool_)
    for sequence, (queries, keys) in enumerate(problem.sequences):
        first, end = spans(problem, queries, keys, np.arange(queries, dtype=np.int64))
        place = place_of(problem, sequence)
        found[place.batch, place.first_row : place.first_row + queries] = first == end
    return found


def choose_sample(
    problem: Problem,
    seed: int,
    full_flops: int = FULL_FLOPS,
    full_kv_elements: int = FULL_KV_ELEMENTS,
    full_elements: int = FULL_ELEMENTS,
    full_blocks: int = FULL_BLOCKS,
) -> Sample:
    """Chooses the rows to compare.

    Args:
        problem: Problem with the shape.
        seed: Seed of the sample; the same seed and problem give the same sample.
        full_flops: Largest work, in FLOP, for which all rows of the chosen blocks are taken.
        full_kv_elements: Largest size of K and V together for which all blocks are taken.
        full_elements: Largest size of the output of the chosen blocks for which all rows are taken.
        full_blocks: Largest number of blocks for which all are taken.
    """
    rng = np.random.default_rng([seed, problem.rows_q, problem.rows_kv, problem.heads])
    there = [(s, head) for s, (n, _) in enumerate(problem.sequences) if n for head in range(problem.kv_heads)]
    kv_elements = 2 * problem.head_dim * sum(problem.sequences[sequence][1] for sequence, _ in there)
    count = min(full_blocks, max(MIN_BLOCKS, len(there) * full_kv_elements // max(1, kv_elements)))
    chosen = [there[index] for index in _some(rng, len(there), count)]
    row_elements = problem.head_dim * (problem.heads // problem.kv_heads)
    flops_per_row = 4 * row_elements * max(1, sum(problem.sequences[sequence][1] for sequence, _ in chosen))
    elements_per_row = row_elements * max(1, len(chosen))
    rows = max(MIN_ROWS, min(full_flops // flops_per_row, full_elements // elements_per_row))
    return sample_of(problem, tuple(Block(s, head, _some(rng, problem.sequences[s][0], rows)) for s, head in chosen))


def every_row(problem: Problem, seed: int) -> Sample:
    """Chooses the rows of :func:`choose_sample` without its limits on the output's size and the number of blocks."""
    return choose_sample(problem, seed, full_elements=UNLIMITED, full_blocks=UNLIMITED)


def whole(problem: Problem) -> Sample:
    """Returns the sample of all rows of all heads."""
    return choose_sample(problem, 0, UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED)


def sample_of(problem: Problem, blocks: tuple[Block, ...]) -> Sample:
    """Computes the memory positions of the rows of blocks."""
    group = problem.heads // problem.kv_heads
    batch, head, row = [], [], []
    for block in blocks:
        place = place_of(problem, block.sequence)
        heads = np.arange(block.kv_head * group, (block.kv_head + 1) * group)
        batch.append(np.full(group * len(block.rows), place.batch))
        head.append(np.repeat(heads, len(block.rows)))
        row.append(np.tile(place.first_row + block.rows, group))
    lengths = np.repeat([len(block.rows) for block in blocks], group)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    return Sample(blocks, np.concatenate(batch), np.concatenate(head), np.concatenate(row), starts)


def _some(rng: np.random.Generator, size: int, count: int) -> Rows:
    """Draws ``count`` sorted indices below ``size``, including the first and the last; all if there are no more."""
    if count >= size:
        return np.arange(size, dtype=np.int64)
    inner = rng.choice(np.arange(1, size - 1), size=count - 2, replace=False)
    return np.sort(np.concatenate([inner, [0, size - 1]])).astype(np.int64)
