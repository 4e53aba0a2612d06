"""Cost of bulk copies (TMA) of tiles: what a row takes on the path from L2, by where it lies in the lines of L2."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

_LINE_BYTES: Final = 128
"""Bytes of a line of L2, and of a row of a box: a panel of 64 columns."""
_SECTOR_BYTES: Final = 32
_CHUNK_BYTES: Final = 16
"""Rows of a tensor that is copied in bulk begin at a multiple of this."""
_UNFILLED: Final = 6.5
"""Further cost of a row of more than a chunk in a tensor whose rows do not all begin at a sector, times the square of
the share of its boxes that lies past its end: see below."""
_EMPTIEST: Final = 1 - 144 / 256
"""Largest such share that was measured. Emptier boxes count as this one: else a short row would cost more than a long
one."""


@lru_cache
def box_row_bytes(row_bytes: int) -> float:
    """Computes the bytes that a row of a tile counts for on the path from L2 to the SM.

    A box is requested line by line, and a row that crosses from one line of L2 to the next takes two requests: the
    rows of a contiguous tensor begin anywhere in a line unless their length is a multiple of one. Fastest rows of
    uniform samples on an H100 and an H200, in clocks: 9.3 for 160 bytes, 14.2 for 320, 6.8 for 256, or about 3.4
    for each line counted here. Rows that do not all begin at a 32-byte sector take longer the emptier their boxes
    are: 10 clocks for 80 bytes and 16 for 144, twice and 1.6 times as long as their lines imply, but hardly more
    than that for 112 and 208 bytes. The formula for them is fitted to these four lengths; its cause is not known.

    Args:
        row_bytes: Bytes of a row of a contiguous tensor.

    Returns:
        Bytes of all lines that its panels touch, with that further cost: a mean over the places at which rows begin.
    """
    starts = range(0, math.lcm(row_bytes, _LINE_BYTES), row_bytes)
    empty = min(_EMPTIEST, 1 - row_bytes / (math.ceil(row_bytes / _LINE_BYTES) * _LINE_BYTES))
    slow = 1 + (_UNFILLED * empty**2 if row_bytes % _SECTOR_BYTES else 0.0)
    lines = 0.0
    for start in starts:
        for first in range(start, start + row_bytes, _LINE_BYTES):
            last = min(first + _LINE_BYTES, start + row_bytes) - 1
            touched = last // _LINE_BYTES - first // _LINE_BYTES + 1
            lines += touched * (slow if last - first >= _CHUNK_BYTES else 1)
    return lines * _LINE_BYTES / len(starts)
