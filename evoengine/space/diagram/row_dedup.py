"""Which entries of some columns are alike: the step that keeps diagrams small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.integer]
"""``[entries]``: small numbers, 0 or more."""
Places = npt.NDArray[np.intp]

_WIDEST_KEY: Final = 2**62
_DENSE: Final = 2**16
"""Up to so many possible keys are looked up in a table; of more, up to four times the entries."""


def group(columns: Sequence[tuple[Codes, int]], entries: int) -> tuple[Places, Places]:
    """Groups entries that are alike in all columns.

    Args:
        columns: codes, one per entry, and a bound that they stay below.
        entries: their number.

    Returns:
        The first entry of each group, and for each entry its group.
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


def _positions(keys: npt.NDArray[np.int64], span: int) -> tuple[Places, Places]:
    if span > max(_DENSE, 4 * len(keys)):
        _, first, alike = np.unique(keys, return_index=True, return_inverse=True)
        return first, alike
    first_at = np.full(span, -1, np.intp)
    first_at[keys[::-1]] = np.arange(len(keys))[::-1]
    present = np.flatnonzero(first_at >= 0)
    numbers = np.empty(span, np.intp)
    numbers[present] = np.arange(len(present))
    return first_at[present], numbers[keys]


def distinct_rows(matrix: npt.NDArray[np.int32]) -> tuple[Places, Places]:
    """Groups the rows of a matrix that are alike; the same answer as :func:`group`.

    Rows are told apart by a 64-bit hash, much faster than comparing them; that no two were confused is checked.
    """
    factors = np.random.default_rng(len(matrix)).integers(1, 2**63, matrix.shape[1], np.uint64) | np.uint64(1)
    hashes = ((matrix + 2).astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    _, first, alike = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(matrix[first][alike], matrix):
        _, first, alike = np.unique(matrix, axis=0, return_index=True, return_inverse=True)
    return first, alike.ravel()
