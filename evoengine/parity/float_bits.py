"""fp16 and bf16 as uint16 bit patterns, because NumPy has no bf16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.model import DType

Bits = NDArray[np.uint16]
Real = NDArray[np.float64]

_PART_ELEMENTS: Final = 2**16


def to_bits(values: NDArray[np.floating], dtype: DType) -> Bits:
    """Rounds to the nearest value of the dtype, ties to even; overflow gives infinity."""
    if dtype is DType.FP16:
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(np.float16).view(np.uint16)
    words = _f32_words(np.asarray(values))
    rounded = words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))
    bits = (rounded >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), bits)


def _f32_words(values: NDArray[np.floating]) -> NDArray[np.uint32]:
    """Returns the bits of values in f32; of inexact ones, the nearer to zero with its last bit set (rounding to odd).

    Such a value lies on the same side of every tie of bf16 as before, so that rounding it again rounds only once.
    """
    with np.errstate(over="ignore"):
        near = np.ascontiguousarray(values, np.float32)
    words = near.view(np.uint32)
    if values.dtype != np.float64:
        return words
    away, inexact = np.abs(near) > np.abs(values), (near != values) & ~np.isnan(values)
    return np.where(inexact, (words - away) | np.uint32(1), words).astype(np.uint32)


def from_bits(bits: Bits, dtype: DType) -> Real:
    """Converts bit patterns to their exact values."""
    if dtype is DType.FP16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def round_to(values: NDArray[np.floating], dtype: DType) -> Real:
    """Rounds to the nearest value of the dtype."""
    return from_bits(to_bits(values, dtype), dtype)


def is_finite(bits: Bits, dtype: DType) -> NDArray[np.bool_]:
    """Returns, elementwise, whether the exponent is not all ones: neither NaN nor infinity."""
    exponent = np.uint16(0x7C00 if dtype is DType.FP16 else 0x7F80)
    finite: NDArray[np.bool_] = (bits & exponent) != exponent
    return finite


def all_finite(bits: Bits, dtype: DType) -> bool:
    """Returns whether an output ``[batch, heads, ...]`` is finite; works by parts, which stay in the CPU cache."""
    top = largest_finite(dtype)
    return all(
        int(part.view(np.int16).max(initial=0)) <= top and int(part.max(initial=0)) <= 0x8000 | top
        for (part,) in _parts(bits)
    )


def same_bits(first: Bits, again: Bits) -> bool:
    """Returns whether two outputs ``[batch, heads, ...]`` have equal bits; works by parts, as above."""
    return first.shape == again.shape and all(np.array_equal(one, other) for one, other in _parts(first, again))


def _parts(*outputs: Bits) -> Iterator[tuple[Bits, ...]]:
    """Cuts outputs of one shape: dense ones by number of elements, others by heads, of which there may be many."""
    if all(output.flags.c_contiguous for output in outputs):
        flat = [output.reshape(-1) for output in outputs]
        for start in range(0, flat[0].size, _PART_ELEMENTS):
            yield tuple(output[start : start + _PART_ELEMENTS] for output in flat)
    else:
        for head in np.ndindex(outputs[0].shape[:2]):
            yield tuple(output[head] for output in outputs)


def epsilon(dtype: DType) -> float:
    """Returns the distance from 1 to the next larger value of the dtype."""
    return 2.0**-10 if dtype is DType.FP16 else 2.0**-7


def smallest(dtype: DType) -> float:
    """Returns the smallest positive number, which is subnormal."""
    return 2.0**-24 if dtype is DType.FP16 else 2.0**-133


def largest_finite(dtype: DType) -> int:
    """Returns the bits of the largest finite number."""
    return 0x7BFF if dtype is DType.FP16 else 0x7F7F


def rounding_rms(dtype: DType) -> float:
    """Returns the RMS relative rounding error: half a step over √3, averaged over a binade, is 0.212 eps."""
    return 0.212 * epsilon(dtype)
