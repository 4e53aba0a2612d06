"""Which rows of an output are compared with the truth: all of a small problem, a seeded sample of a large one.

The sample is made of blocks: one K/V head of one sequence, with all query heads that share it, so that K and V are read
once for all of them. It always holds the first and the last block, and of each block the first and the last row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.model import Problem

Rows = NDArray[np.int64]

FULL_FLOPS: Final = 2 * 10**9
"""Attention with more multiply-adds (times two) than this is compared on a sample of rows."""

FULL_KV_ELEMENTS: Final = 2**23
"""Attention with more elements of K and V than this is compared on a sample of K/V heads and sequences."""

MIN_ROWS: Final = 16
MIN_BLOCKS: Final = 4


@dataclass(frozen=True, eq=False)
class Block:
    """Query rows of all heads that share one K/V head, in one sequence."""

    sequence: int
    kv_head: int
    rows: Rows
    """Sorted, counted from the sequence's first query; at least one."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The blocks, and where their rows lie in memory: block by block, head by head, row by row."""

    blocks: tuple[Block, ...]
    batch: Rows
    """Index on the batch axis in memory, ``[n]``."""
    head: Rows
    """Query head, ``[n]``."""
    row: Rows
    """Index on the row axis in memory, ``[n]``."""
    starts: Rows
    """Where each head of each block begins among the n rows: what is judged per head."""


@dataclass(frozen=True)
class RowPosition:
    """Where a sequence lies in memory."""

    batch: int
    first_row: int
    first_key: int


def place_of(problem: Problem, sequence: int) -> RowPosition:
    """The place of one sequence: a batch of its own, or behind those that are packed before it."""
    if not problem.packed:
        return RowPosition(sequence, 0, 0)
    return RowPosition(0, sum(problem.lengths_q[:sequence]), sum(problem.lengths_kv[:sequence]))


def spans(problem: Problem, queries: int, keys: int, rows: Rows) -> tuple[Rows, Rows]:
    """The keys ``[first, end)`` that rows of one sequence see; ``end == first`` where there are none.

    Args:
        problem: says which mask.
        queries: of the sequence.
        keys: of the sequence.
        rows: counted from its first query.
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
    """Rows that see no key, as they lie in memory: ``[memory_batch, rows_q]``."""
    found = np.zeros((problem.memory_batch, problem.rows_q), np.bool_)
    for sequence, (queries, keys) in enumerate(problem.sequences):
        first, end = spans(problem, queries, keys, np.arange(queries, dtype=np.int64))
        place = place_of(problem, sequence)
        found[place.batch, place.first_row : place.first_row + queries] = first == end
    return found


def choose_sample(
    problem: Problem, seed: int, full_flops: int = FULL_FLOPS, full_kv_elements: int = FULL_KV_ELEMENTS
) -> Sample:
    """Chooses what is compared.

    Args:
        problem: the shape.
        seed: of the sample; the same seed and problem give the same one.
        full_flops: the work up to which all rows of the chosen blocks are taken.
        full_kv_elements: the size of K and V together up to which all blocks are taken.
    """
    rng = np.random.default_rng([seed, problem.rows_q, problem.rows_kv, problem.heads])
    there = [(s, head) for s, (n, _) in enumerate(problem.sequences) if n for head in range(problem.kv_heads)]
    kv_elements = 2 * problem.head_dim * sum(problem.sequences[sequence][1] for sequence, _ in there)
    count = max(MIN_BLOCKS, len(there) * full_kv_elements // max(1, kv_elements))
    chosen = [there[index] for index in _some(rng, len(there), count)]
    flops_per_row = 4 * problem.head_dim * (problem.heads // problem.kv_heads)
    flops_per_row *= max(1, sum(problem.sequences[sequence][1] for sequence, _ in chosen))
    rows = max(MIN_ROWS, full_flops // flops_per_row)
    return sample_of(problem, tuple(Block(s, head, _some(rng, problem.sequences[s][0], rows)) for s, head in chosen))


def whole(problem: Problem) -> Sample:
    """All rows of all heads."""
    return choose_sample(problem, 0, 2**62, 2**62)


def sample_of(problem: Problem, blocks: tuple[Block, ...]) -> Sample:
    """Finds the rows of blocks in memory."""
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
    """``count`` sorted indices below ``size``, the first and the last among them; all where they are no more."""
    if count >= size:
        return np.arange(size, dtype=np.int64)
    inner = rng.choice(np.arange(1, size - 1), size=count - 2, replace=False)
    return np.sort(np.concatenate([inner, [0, size - 1]])).astype(np.int64)
