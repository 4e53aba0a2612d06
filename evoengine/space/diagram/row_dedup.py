"""Grouping of equal entries, which merges equal nodes of a diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.integer]
"""``[entries]``: Small integers, at least 0."""
Indices = npt.NDArray[np.intp]

_WIDEST_KEY: Final = 2**62
"""Limit of a combined key of several columns."""
_DENSE: Final = 2**16
"""Number of possible keys up to which a table is used instead of sorting; or four times the entries, if larger."""


def group(columns: Sequence[tuple[Codes, int]], entries: int) -> tuple[Indices, Indices]:
    """Groups entries that are equal in all columns.

    Args:
        columns: Codes, one per entry, and their exclusive upper bound.
        entries: Number of entries.

    Returns:
        First entry of each group, and the group of each entry.
    """
    keys = np.zeros(entries, np.int64)
    span = 1
    for codes, size in columns:
        if span * size >= _WIDEST_KEY:
            first, keys = _positions(keys, span)
            span = len(first)
        keys = keys * size + codes
        span *= size
    return _positions(keys, span)


def _positions(keys: npt.NDArray[np.int64], span: int) -> tuple[Indices, Indices]:
    if span > max(_DENSE, 4 * len(keys)):
        _, first, alike = np.unique(keys, return_index=True, return_inverse=True)
        return first, alike
    first_at = np.full(span, -1, np.intp)
    first_at[keys[::-1]] = np.arange(len(keys))[::-1]
    present = np.flatnonzero(first_at >= 0)
    numbers = np.empty(span, np.intp)
    numbers[present] = np.arange(len(present))
    return first_at[present], numbers[keys]


def distinct_rows(matrix: npt.NDArray[np.int32]) -> tuple[Indices, Indices]:
    """Groups equal rows of a matrix; returns the same as :func:`group`.

    Rows are compared by a 64-bit hash, which is much faster; a collision is detected and handled.
    """
    factors = np.random.default_rng(len(matrix)).integers(1, 2**63, matrix.shape[1], np.uint64) | np.uint64(1)
    hashes = ((matrix + 2).astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    _, first, alike = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(matrix[first][alike], matrix):
        _, first, alike = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    return first, alike.ravel()
