"""Some CTAs of a batch as a batch of their own.

Where a branch sends whole CTAs two ways, neither way needs a mask any more if the two go on apart: what one part
executes is not computed for the lanes of the other, and blocks need not be translated for masks.
"""

from __future__ import annotations

import copy
from typing import Final, Protocol, TypeVar

import numpy as np

from evoengine.emulator.semantics.floats import Array

MOST_PARTS: Final = 64
"""Of a batch; from then on CTAs that go their own way run under a mask."""

FEWEST_LANES: Final = 4096
"""Of a batch that is parted: in smaller ones a call of NumPy costs more than the lanes under its mask."""

Rows = slice | Array
"""Numbers of CTAs within a batch, ascending; a slice where they are neighbours."""


def leaving(lanes: Array) -> tuple[Rows, Rows] | None:
    """The CTAs all of whose lanes are set, and those without any; None where there are not both, or others too.

    Args:
        lanes: bool ``[1 or ctas, 1 or threads]``.
    """
    if len(lanes) == 1:
        return None
    first = lanes[:, 0]
    if lanes.shape[1] > 1 and not (lanes == lanes[:, :1]).all():
        return None
    gone, left = np.flatnonzero(first), np.flatnonzero(~first)
    return (_rows(gone), _rows(left)) if gone.size and left.size else None


def _rows(numbers: Array) -> Rows:
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == numbers.size else numbers


def of_rows(values: Array, rows: Rows, ctas: int) -> Array:
    """The rows of some CTAs, where values differ between the several CTAs of a batch; maybe a view."""
    return np.asarray(values[rows]) if len(values) == ctas else values


def count(rows: Rows) -> int:
    """How many CTAs they are."""
    return int(rows.stop - rows.start) if isinstance(rows, slice) else rows.size


class Keeps(Protocol):
    """A state of the CTAs of a batch."""

    def keep(self, rows: Rows) -> None:
        """Goes on with some of the CTAs only."""


_State = TypeVar("_State", bound=Keeps)


def part(state: _State, rows: Rows) -> _State:
    """The state of some of the CTAs, for a batch of their own."""
    own = copy.copy(state)
    own.keep(rows)
    return own
