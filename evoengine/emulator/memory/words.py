"""Words of memory: their NumPy type by size, and operations on the words that the lanes of a batch access."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.faults import FaultKind, SiteFault

WORD: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
"""NumPy type that moves words unchanged, by word size in bytes."""
SHIFT: Final = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}
"""Binary logarithm of the word size."""


def require_stored(
    index: Array, stored: Array, words: Array, size: int, mask: Array | None, site: int, base: int = 0
) -> None:
    """Checks that no two lanes of one instruction have stored different words to one address.

    Args:
        index: Word index per lane.
        stored: Words there after the instruction.
        words: Words that the lanes have stored.
        size: Bytes per word.
        mask: Active lanes; None for all.
        site: Index of the instruction.
        base: Address of the first word.

    Raises:
        SiteFault: Lanes have stored different words to one address.
    """
    shape = np.broadcast_shapes(stored.shape, words.shape)
    one, other = (np.ascontiguousarray(np.broadcast_to(part, shape)).view(np.uint8) for part in (stored, words))
    bad = (one != other).reshape(*shape, size).any(axis=2)
    if mask is not None:
        bad = bad & mask
    if bad.any():
        cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
        where = base + int(np.broadcast_to(index, bad.shape)[cta, lane]) * size
        detail = "two lanes store different values to one address with the same instruction, in no fixed order"
        raise SiteFault(FaultKind.DATA_RACE, detail, site, int(cta), int(lane), where)


def differ(one: Array, other: Array) -> Array:
    """Whether words have different bits; words of 16 bytes are complex numbers, which may be NaN."""
    if one.itemsize < 16:
        return np.asarray(one != other)
    return np.asarray((one.view(np.uint64).reshape(-1, 2) != other.view(np.uint64).reshape(-1, 2)).any(axis=1))


def select(index: Array, words: Array, mask: Array | None) -> tuple[Array, Array]:
    """Indices and words of the active lanes, flattened if there is a mask."""
    if mask is None:
        if index.shape == words.shape:
            return index, words
        shape = (max(len(index), len(words)), max(index.shape[1], words.shape[1]))
        return spread(index, shape), spread(words, shape)
    shape = (max(len(index), len(words), len(mask)), max(index.shape[1], words.shape[1], mask.shape[1]))
    active = spread(mask, shape)
    return spread(index, shape)[active], spread(words, shape)[active]


def spread(values: Array, shape: tuple[int, int]) -> Array:
    """Broadcasts values to a shape; faster than NumPy where they already have it."""
    return values if values.shape == shape else np.broadcast_to(values, shape)


def collapse_equal_rows(words: Array) -> Array:
    """One row of words if all CTAs have the same bits, else all rows."""
    if len(words) == 1:
        return words
    bits = words.view(np.uint64) if words.dtype.kind == "c" else words  # NaN is not equal to itself
    if bits[0, 0] != bits[-1, 0] or bits[0, -1] != bits[-1, -1] or not (bits == bits[0]).all():
        return words
    return words[:1]
