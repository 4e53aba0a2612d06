"""Cost of bulk copies (TMA) of tiles: what a row takes on the path from L2, by where it lies in the lines of L2."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

LINE_BYTES: Final = 128
"""Bytes of a line of L2, and of a row of a box: a panel of 64 columns."""
_SECTOR_BYTES: Final = 32
_CHUNK_BYTES: Final = 16
"""Rows of a tensor that is copied in bulk begin at a multiple of this."""
_UNALIGNED: Final = 2
"""Factor on rows of more than a chunk in tensors whose rows do not all begin at a sector: measured, see below."""


@lru_cache
def box_row_bytes(row_bytes: int) -> float:
    """Computes the bytes that a row of a tile counts for on the path from L2 to the SM.

    A box is requested line by line, and a row that crosses from one line of L2 to the next takes two requests: the rows
    of a contiguous tensor begin anywhere in a line unless their length is a multiple of one. Fastest rows of uniform
    samples on an H100 and an H200, in clocks: 10 for 80 bytes, 16 for 144, 9.3 for 160, 14.2 for 320, 6.8 for 256, or
    about 3.4 for each line counted here. Only at 80 and 144 bytes do most kernels of 64 query rows take that time: the
    factor of unaligned rows rests on these two lengths, and its cause was inferred, not measured by counters.

    Args:
        row_bytes: Bytes of a row of a contiguous tensor.

    Returns:
        Bytes of all lines that its panels touch, a mean over the places at which rows begin.
    """
    starts = range(0, math.lcm(row_bytes, LINE_BYTES), row_bytes)
    slow = _UNALIGNED if row_bytes % _SECTOR_BYTES else 1
    lines = 0
    for start in starts:
        for first in range(start, start + row_bytes, LINE_BYTES):
            last = min(first + LINE_BYTES, start + row_bytes) - 1
            touched = last // LINE_BYTES - first // LINE_BYTES + 1
            lines += touched * (slow if last - first >= _CHUNK_BYTES else 1)
    return lines * LINE_BYTES / len(starts)
