"""Arrays that hold the values of all lanes of a batch of CTAs, and rows of them.

Every array broadcasts to ``[ctas, threads]``: uniform values are ``[1, 1]``, values per CTA are ``[ctas, 1]``, values
that are equal in all CTAs are ``[1, threads]``.

Dtype codes are NumPy's type characters (``I`` uint32, ``i`` int32, ``f`` float32, ``e`` float16 …), and ``p`` for
predicates.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol, TypeVar

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of any shape and type."""
CODE_BITS = {"B": 8, "b": 8, "H": 16, "h": 16, "e": 16, "I": 32, "i": 32, "f": 32, "Q": 64, "q": 64, "d": 64, "p": 1}
"""Width of each dtype code in bits."""
UNSIGNED = {1: "p", 8: "B", 16: "H", 32: "I", 64: "Q"}
"""Dtype code of unsigned integers, by width in bits; that of predicates for one bit."""
SIGNED = {8: "b", 16: "h", 32: "i", 64: "q"}
"""The same for signed integers."""
CtaRows = slice | Array
"""Indices of CTAs within a batch, ascending; a slice if they are contiguous."""


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
