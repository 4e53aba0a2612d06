"""Bit patterns of whole outputs: finiteness and equality in every head and layout."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.model import DType
from evoengine.parity.float_bits import all_finite, epsilon, is_finite, largest_finite, round_to, same_bits, to_bits

SHAPE = (2, 3, 5, 8)
LARGE = (2, 3, 1500, 8)
"""More elements than are examined at once."""
EVIL = {
    DType.FP16: (0x7C00, 0xFC00, 0x7C01, 0xFFFF, 0x7FED),
    DType.BF16: (0x7F80, 0xFF80, 0x7F81, 0xFFFF, 0x7FED),
}


def output(dtype: DType) -> np.ndarray:
    return to_bits(np.random.default_rng(3).standard_normal(SHAPE), dtype)


@pytest.mark.parametrize("dtype", DType)
def test_one_non_finite_value_is_found_anywhere(dtype: DType) -> None:
    top = largest_finite(dtype)
    for place in ((0, 0, 0, 0), (1, 2, 4, 7), (0, 1, 3, 5)):
        for bits in (*EVIL[dtype], top, 0x8000 | top, 0x8000, 0):
            o = output(dtype)
            o[place] = bits
            assert all_finite(o, dtype) == bool(is_finite(o, dtype).all()) == (bits not in EVIL[dtype])
            other_layout = np.ascontiguousarray(o.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
            assert all_finite(other_layout, dtype) == (bits not in EVIL[dtype])


@pytest.mark.parametrize("dtype", DType)
def test_one_different_bit_is_found_anywhere(dtype: DType) -> None:
    o = output(dtype)
    assert same_bits(o, o.copy())
    assert same_bits(o, np.ascontiguousarray(o.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3))
    assert not same_bits(o, o[:1])
    for place in ((0, 0, 0, 0), (1, 2, 4, 7), (0, 1, 3, 5)):
        changed = o.copy()
        changed[place] ^= 1
        assert not same_bits(o, changed)


def test_the_parts_of_a_large_output_leave_nothing_out() -> None:
    zeros = np.zeros(LARGE, np.uint16)
    for place in (0, 2**16 - 1, 2**16, zeros.size - 1):
        changed = zeros.copy()
        changed.reshape(-1)[place] = 0x7C00
        assert not all_finite(changed, DType.FP16)
        assert not same_bits(zeros, changed)


@pytest.mark.parametrize("dtype", DType)
def test_float64_is_rounded_once(dtype: DType) -> None:
    """Next to a tie: f32 would round these values onto it."""
    half, tiny = epsilon(dtype) / 2, 2.0**-40
    values = np.array([1 + half - tiny, 1 + half, 1 + half + tiny, 1 + 3 * half - tiny, 1 + 3 * half, 1e-300, 1e300])
    want = np.array([1, 1, 1 + 2 * half, 1 + 2 * half, 1 + 4 * half, 0, np.inf])
    assert round_to(values, dtype).tolist() == want.tolist()
    assert round_to(-values, dtype).tolist() == (-want).tolist()
    assert np.isnan(round_to(np.array([np.nan]), dtype)).all()


def test_an_empty_output_is_finite_and_equal() -> None:
    nothing = np.empty((1, 2, 0, 8), np.uint16)
    assert all_finite(nothing, DType.FP16)
    assert same_bits(nothing, nothing)
