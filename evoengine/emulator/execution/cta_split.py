"""Splitting a batch of CTAs in two.

Where a branch sends some CTAs one way and the others the other way, the batch is split. Neither half then needs a mask:
the emulator computes no lanes that the branch excluded, and needs no masked versions of the blocks.
"""

from __future__ import annotations

import copy
from typing import Final, Protocol, TypeVar

import numpy as np

from evoengine.emulator.semantics.floats import Array

MAX_BATCHES: Final = 64
"""Most batches that one batch is split into; beyond that, diverging CTAs run under a mask."""

MIN_SPLIT_LANES: Final = 4096
"""Fewest lanes of a batch that is split. In smaller ones a NumPy call costs more than the lanes under its mask."""

CtaRows = slice | Array
"""Indices of CTAs within a batch, ascending; a slice if they are contiguous."""


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


def select_rows(values: Array, rows: CtaRows, ctas: int) -> Array:
    """The rows of some CTAs; ``values`` itself if one row stands for all ``ctas``. The result may be a view."""
    return np.asarray(values[rows]) if len(values) == ctas else values


def row_count(rows: CtaRows) -> int:
    """Number of CTAs."""
    return int(rows.stop - rows.start) if isinstance(rows, slice) else rows.size


class _CtaState(Protocol):
    """State of the CTAs of a batch."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the state to some of the CTAs."""


_State = TypeVar("_State", bound=_CtaState)


def restricted(state: _State, rows: CtaRows) -> _State:
    """A copy of the state that holds only some of the CTAs."""
    own = copy.copy(state)
    own.restrict(rows)
    return own
