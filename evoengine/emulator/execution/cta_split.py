"""Splitting a batch of CTAs in two.

Where a branch sends some CTAs one way and the others the other way, the batch is split. Neither half then needs a mask:
the emulator computes no lanes that the branch excluded, and needs no masked versions of the blocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows

MAX_BATCHES: Final = 64
"""Most batches that one batch is split into; beyond that, diverging CTAs run under a mask."""

MIN_SPLIT_LANES: Final = 4096
"""Fewest lanes of a batch that is split. In smaller ones a NumPy call costs more than the lanes under its mask."""


def split_ctas(lanes: Array) -> tuple[CtaRows, CtaRows] | None:
    """Divides the CTAs of a batch by a branch predicate.

    Args:
        lanes: Branch predicate, bool ``[1 or ctas, 1 or threads]``.

    Returns:
        The CTAs with all lanes set and the CTAs with none set. None if either group is empty or a CTA has both.
    """
    if len(lanes) == 1:
        return None
    first = lanes[:, 0]
    if lanes.shape[1] > 1 and not (lanes == lanes[:, :1]).all():
        return None
    taken, not_taken = np.flatnonzero(first), np.flatnonzero(~first)
    return (_as_rows(taken), _as_rows(not_taken)) if taken.size and not_taken.size else None


def _as_rows(numbers: Array) -> CtaRows:
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == numbers.size else numbers
