"""Integer arithmetic on the 16-bit or 8-bit lanes of 32-bit words, and other operations on bits that few kernels use.

Source: PTX ISA 9.0, "SIMD Video Instructions" and "Integer Arithmetic Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array

_OPERATIONS: Final[dict[str, Callable[[Array, Array], Array]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": np.minimum,
    "max": np.maximum,
    "absdiff": lambda a, b: abs(a - b),
    "avrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,  # halves are rounded away from zero
}
_UNSIGNED: Final = {2: "H", 4: "B"}
_SIGNED: Final = {2: "h", 4: "b"}


def _lanes(words: Array, count: int, signed: bool) -> Array:
    """The lanes of words, int64 ``[..., count]``."""
    code = _SIGNED[count] if signed else _UNSIGNED[count]
    return np.asarray(np.ascontiguousarray(words)[..., None].view(code).astype(np.int64))


def by_lane(
    operation: str,
    count: int,
    signs: tuple[bool, bool, bool],
    a: Array,
    b: Array,
    *,
    sat: bool = False,
    relu: bool = False,
    addend: Array | None = None,
) -> Array:
    """Applies an operation to each lane of two words.

    Args:
        operation: ``add``, ``sub``, ``min``, ``max``, ``absdiff`` or ``avrg``.
        count: Lanes per word, 2 or 4.
        signs: Whether the lanes of the result, of ``a`` and of ``b`` are signed.
        a: First operand, uint32.
        b: Second operand, uint32.
        sat: Whether results are clamped to the range of a lane; else they wrap.
        relu: Whether negative results become zero.
        addend: Word to which the results of all lanes are added; None to return the lanes.

    Returns:
        uint32: the packed lanes, or the sum.
    """
    found = _OPERATIONS[operation](_lanes(a, count, signs[1]), _lanes(b, count, signs[2]))
    limits = np.iinfo(_SIGNED[count] if signs[0] else _UNSIGNED[count])
    if sat:
        found = np.clip(found, limits.min, limits.max)
    if relu:
        found = np.maximum(found, 0)
    if addend is not None:
        return np.asarray(addend + found.sum(axis=-1).astype(np.uint32))
    return np.ascontiguousarray(found.astype(_UNSIGNED[count])).view(np.uint32)[..., 0]


def saturated(operation: str, a: Array, b: Array) -> Array:
    """Executes ``add.sat.s32`` or ``sub.sat.s32`` on int32."""
    wide = _OPERATIONS[operation](a.astype(np.int64), b.astype(np.int64))
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32)


def find_nth_set(mask: Array, base: Array, offset: Array) -> Array:
    """Executes ``fns.b32``: position of a set bit, counted from bit ``base`` on; all ones without such a bit.

    Args:
        mask: Words.
        base: First position, uint32.
        offset: int32 number of the bit: 1 is the first one from ``base`` upwards, -1 downwards, 0 bit ``base`` itself.
    """
    place = np.arange(32, dtype=np.int64)
    start, wanted = base.astype(np.int64)[..., None], offset.astype(np.int64)[..., None]
    bits = (mask.astype(np.int64)[..., None] >> place) & 1
    up = np.cumsum(bits * (place >= start), axis=-1)
    down = np.cumsum((bits * (place <= start))[..., ::-1], axis=-1)[..., ::-1]
    rank = np.where(wanted > 0, up, np.where(wanted < 0, -down, 0))
    reached = np.where(wanted > 0, place >= start, np.where(wanted < 0, place <= start, place == start))
    hit = (bits == 1) & reached & (rank == wanted)
    return np.where(hit.any(axis=-1), hit.argmax(axis=-1), 0xFFFFFFFF).astype(np.uint32)


def pack_saturated(high: Array, low: Array, kind: str, rest: Array | None) -> Array:
    """Executes ``cvt.pack.sat``: two clamped int32 side by side, below the 16 low bits of ``rest``.

    Args:
        high: int32 that becomes the upper element.
        low: int32 that becomes the lower element.
        kind: PTX type of the elements, 8 or 16 bits wide.
        rest: uint32 to shift up by two elements; None for none.
    """
    bits = int(kind[1:])
    lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    parts = [np.clip(x.astype(np.int64), lowest, highest) & ((1 << bits) - 1) for x in (low, high)]
    both = (parts[0] | parts[1] << bits).astype(np.uint32)
    return both if rest is None else both | (rest << np.uint32(2 * bits))
