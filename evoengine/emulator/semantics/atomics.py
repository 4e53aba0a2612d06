"""Atomic operations. Lanes with the same address are serialised, in lane order or, with ``backwards``, in reverse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from evoengine.emulator.arrays import CODE_BITS, Array
from evoengine.emulator.semantics.floats import half_op, larger, smaller

_Operation = Callable[[Array, Sequence[Array]], Array]


def _increment(old: Array, values: Sequence[Array]) -> Array:
    return np.where(old >= values[0], np.zeros((), old.dtype), old + old.dtype.type(1))


def _decrement(old: Array, values: Sequence[Array]) -> Array:
    return np.where((old == 0) | (old > values[0]), values[0], old - old.dtype.type(1))


_OPERATIONS: Final[dict[str, _Operation]] = {
    "add": lambda old, v: old + v[0],
    "min": lambda old, v: np.fmin(old, v[0]),
    "max": lambda old, v: np.fmax(old, v[0]),
    "and": lambda old, v: old & v[0],
    "or": lambda old, v: old | v[0],
    "xor": lambda old, v: old ^ v[0],
    "exch": lambda _, v: v[0],
    "cas": lambda old, v: np.where(old == v[0], v[1], old),
    "inc": _increment,
    "dec": _decrement,
}


_HALVES: Final = frozenset(("f16", "bf16", "f16x2", "bf16x2"))
_FLOAT_OPERATIONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": lambda x, y: x + y,
    "min": smaller,
    "max": larger,
}


def _turns(shape: tuple[int, ...], mask: Array | None, *, backwards: bool) -> Array:
    """Flat numbers of the active lanes, in the order in which they take their turns."""
    lanes = np.arange(math.prod(shape)) if mask is None else np.flatnonzero(np.broadcast_to(mask, shape))
    if not backwards:
        return lanes
    cta, lane = np.divmod(lanes, shape[1])
    return lanes[np.lexsort((-lane, cta))]


def _rounds(words: Array) -> Iterator[Array]:
    """Yields the indices of the first use of each word, then those of the second uses, and so on."""
    order = np.argsort(words, kind="stable")
    ordered = words[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1])) if ordered.size else np.zeros(0, np.bool_)
    starts = np.flatnonzero(first)
    rank = np.arange(ordered.size) - np.repeat(starts, np.diff(np.append(starts, ordered.size)))
    by_rank = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[by_rank], np.arange(rank.max(initial=-1) + 2))
    for begin, end in pairwise(bounds.tolist()):
        yield order[by_rank[begin:end]]


@dataclass(frozen=True)
class Atomic:
    """Operation of an atomic instruction and the operands of all lanes."""

    operation: str
    """``add``, ``cas`` …"""
    kind: str
    """PTX type."""
    code: str
    """Dtype code of the type; 16-bit floats are passed as bits."""
    values: Sequence[Array]
    """One or two operands per lane."""

    @property
    def size(self) -> int:
        """Bytes of a word."""
        return CODE_BITS[self.code] // 8

    def changes(self, found: Array) -> Array | None:
        """Lanes that may have changed the word, from the old word of each lane; None for all."""
        if self.operation == "cas":
            return np.asarray(found == self.values[0])
        return np.asarray(self.values[0] != 0) if self.operation in ("add", "or", "xor") else None

    def apply(self, words: Array, index: Array, mask: Array | None, *, backwards: bool = False) -> Array:
        """Updates words in place.

        Args:
            words: All words of the memory, with the size of the operation.
            index: Flat word index per lane, ``[ctas, threads]``.
            mask: Active lanes; None for all.
            backwards: Whether the lanes of a CTA take their turns from the last to the first.

        Returns:
            The old word that each active lane read, ``[ctas, threads]``; zero for inactive lanes.
        """
        shape = index.shape
        lanes = _turns(shape, mask, backwards=backwards)
        flat = index.reshape(-1)[lanes]
        operands = [np.broadcast_to(v, shape).reshape(-1)[lanes] for v in self.values]
        typed = words if self.kind in _HALVES else words.view(self.code)
        found = np.zeros(index.size, typed.dtype)
        for lane_indices in _rounds(flat):
            at = flat[lane_indices]
            old = typed[at]
            found[lanes[lane_indices]] = old
            typed[at] = _combined(self.operation, self.kind, old, [v[lane_indices] for v in operands])
        return found.reshape(shape)


def _combined(operation: str, kind: str, old: Array, values: Sequence[Array]) -> Array:
    """New words of an operation, from old words and operands in the dtype of its type; 16-bit floats are bits."""
    if kind in _HALVES:
        return half_op(_FLOAT_OPERATIONS[operation], kind, False, False, old, values[0].view(old.dtype))
    return _OPERATIONS[operation](old, values)


def reduce_words(operation: str, kind: str, code: str, old: Array, new: Array) -> Array:
    """Combines words of equal shape with an atomic operation on the elements that they contain.

    Args:
        operation: Operation of one operand: ``add``, ``max``, ``inc`` …
        kind: PTX type of the elements.
        code: Dtype code of the elements; 16-bit floats are passed as bits.
        old: Words in memory.
        new: Operands, of the same dtype.
    """
    before, given = (np.ascontiguousarray(words)[..., None].view(code) for words in (old, new))
    found = _combined(operation, kind, before, [given])
    return np.ascontiguousarray(found.astype(code)).view(old.dtype)[..., 0]
