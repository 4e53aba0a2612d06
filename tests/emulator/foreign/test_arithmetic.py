"""Arithmetic of CUDA C++ and its library functions, compiled by NVRTC, against Python and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evoengine.emulator import LaunchReport

Array = np.ndarray
Run = Callable[..., LaunchReport]


def random(shape: int | tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, shape: int | tuple[int, ...], dtype: Any = np.int32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape, dtype=dtype)


def c_division(a: int, b: int) -> tuple[int, int]:
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def bits_reversed(value: int, width: int) -> int:
    return int(f"{value:0{width}b}"[::-1], 2)


def int32_results(x: int, y: int) -> list[int]:
    u, v = x & 0xFFFFFFFF, y & 0xFFFFFFFF
    eight = (v << 32 | u).to_bytes(8, "little")
    bytes_of = [[(w >> 8 * i & 0xFF ^ 0x80) - 0x80 for i in range(4)] for w in (u, v)]
    low24 = [((w & 0xFFFFFF) ^ 0x800000) - 0x800000 for w in (u, v)]
    low16 = [((w & 0xFFFF) ^ 0x8000) - 0x8000 for w in (u, v)]
    turn = v & 31
    return [
        *c_division(x, y),
        u // v,
        u % v,
        u.bit_count(),
        32 - u.bit_length(),
        bits_reversed(u, 32),
        (u & -u).bit_length(),
        int.from_bytes(bytes(eight[i] for i in (5, 1, 7, 3)), "little"),
        x * y >> 32,
        u * v >> 32,
        abs(x - y) + 5,
        x + y >> 1,
        u + v + 1 >> 1,
        low24[0] * low24[1],
        (v << 32 | u) << turn >> 32,
        (v << 32 | u) >> turn,
        3 + sum(a * b for a, b in zip(*bytes_of, strict=True)),
        low16[0] * low16[1],
        u >> 5 & 0x3FF,
        abs(x) + min(x, y) - max(x, 17),
        x if x > y else ~y,
        c_division(x, 7)[0] + c_division(x, 10)[1],
        u // 641,
    ]


def int64_results(x: int, y: int) -> list[int]:
    mask = 2**64 - 1
    u, v = x & mask, y & mask
    low = ((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
    return [
        *c_division(x, y),
        u // v,
        u % v,
        u.bit_count(),
        64 - u.bit_length(),
        bits_reversed(u, 64),
        (u & -u).bit_length(),
        x * y >> 64,
        u * v >> 64,
        x << (y & 63),
        x >> (y & 63),
        u >> (y & 63),
        x * y + 12345678901,
        u >> 20 & 0xFFFFFFFFFF,
        abs(x) ^ y,
        int(float(x)),
        int(np.float32(low)),
    ]


@pytest.mark.parametrize(("bits", "results"), [(32, int32_results), (64, int64_results)])
def test_integer_operations(run: Run, bits: int, results: Callable[[int, int], list[int]]) -> None:
    kind, half = np.dtype(f"i{bits // 8}"), 2 ** (bits - 1)
    a, b = integers(-half, half - 1, 96, kind), integers(-half, half - 1, 96, kind, 1)
    a[:12], b[:12] = (
        [0, 1, -1, 7, half - 513, 5 - half, 100, 3, 64, -64, 17, 9],
        [1, -1, 2, 3, 5, 2, -7, 33, 63, 64, 31, 32],
    )
    count = len(results(1, 1))
    out = np.zeros((count, 96), kind)
    run(f"arithmetic.int{bits}_ops", 2, 64, [a, b, out, 96])
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        want = [value & (2**bits - 1) for value in results(x, y)]
        assert [value & (2**bits - 1) for value in out[:, i].tolist()] == want, (x, y)


def test_double_operations(run: Run) -> None:
    x, y = 10 * random(64).astype(np.float64), 3 * random(64, 1).astype(np.float64)
    x[:3] = [2e5, -40.25, 0.0]
    out = np.zeros((18, 64))
    run("arithmetic.double_ops", 1, 64, [x, y, out, 64])
    want = [
        x + y,
        x * y - 1,
        x / y,
        np.sqrt(np.abs(x)),
        x * y + 3,
        np.exp(x * 0.001),
        np.log(np.abs(x) + 1),
        np.sin(x),
        np.cos(x),
        (np.abs(x) + 0.5) ** 1.75,
        np.floor(x) + np.ceil(y) + np.trunc(x) + np.rint(y),
        np.fmod(x, 3),
        np.minimum(x, y) + np.maximum(x, 0),
        x.astype(np.float32).astype(np.float64) + np.trunc(y),
        np.tanh(x),
        np.cbrt(x),
        1 / np.sqrt(np.abs(x) + 1),
        np.copysign(x, y),
    ]
    for number, column in enumerate(want):
        np.testing.assert_allclose(out[number], column, rtol=1e-13, atol=1e-14, err_msg=f"operation {number}")


def test_float_operations(run: Run) -> None:
    from scipy.special import erf

    a, b = 3 * random(64), 2 * random(64, 1)
    x, y = a.astype(np.float64), b.astype(np.float64)
    out = np.zeros((20, 64), np.float32)
    run("arithmetic.float_ops", 1, 64, [a, b, out, 64])
    rounded = np.copysign(np.floor(np.abs(y) + 0.5), y)
    want = [
        x / y,
        np.sqrt(np.abs(x)),
        np.exp(x),
        np.log(np.abs(x) + 1),
        np.sin(x),
        np.cos(x),
        np.tanh(x),
        (np.abs(x) + 0.5) ** 1.5,
        erf(x),
        np.arctan2(x, y),
        np.floor(x) + rounded,
        np.fmod(x, 0.75),
        1 / y + np.sqrt(np.abs(y)),
        np.exp2(x) + np.log2(np.abs(y) + 1),
        np.clip(x, 0, 1) + np.minimum(x, y),
        np.trunc(x) + np.trunc(np.abs(y)),
        1 / np.sqrt(np.abs(x) + 1),
        np.sin(x) + np.cos(y),
        np.abs(x),
        np.hypot(x, y),
    ]
    for number, column in enumerate(want):
        np.testing.assert_allclose(out[number], column, rtol=2e-6, atol=2e-6, err_msg=f"operation {number}")


def test_half_operations(run: Run) -> None:
    a, b = 2 * random((40, 2)).astype(np.float16), random((40, 2), 1).astype(np.float16)
    out = np.zeros((14, 40, 2), np.float16)
    run("halves.half_ops", 2, 32, [a, b, out, 40])
    x, y = a.astype(np.float64), b.astype(np.float64)
    mixed = np.stack([np.float32(a[:, 0]) * 3, np.float32(b[:, 1]) * np.float32(0.5)], axis=1)
    want = [
        x + y,
        x * y,
        x * y + 0.5,
        x - y,
        x / (np.abs(y) + 1),
        np.maximum(x, y),
        np.minimum(x, -y),
        np.exp2(x),
        np.sqrt(np.abs(x)),
        x > y,
        x[:, ::-1],
        mixed,
        np.rint(x[:, :1]) + 0 * x,
        np.floor(x),
    ]
    for number, column in enumerate(want):
        got = out[number].astype(np.float64)
        np.testing.assert_allclose(got, column, rtol=2e-3, atol=1e-3, err_msg=f"operation {number}")


def test_bfloat_and_half_atomics(run: Run) -> None:
    x, y = random(64), random(64, 1)
    bits = [(v.view(np.uint32) >> 16).astype(np.uint16) for v in (x, y)]
    wide = [(v.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for v in bits]
    run("halves.bf16_axpy", 1, 32, [*bits, 1.5, 32])
    got = (bits[1].astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(got, 1.5 * wide[0] + wide[1], rtol=1e-2, atol=1e-2)
    values = np.ones(50, np.float16) * np.float16(0.25)
    out, total = np.zeros(4, np.float16), np.zeros(1, np.float32)
    run("halves.half_sum", 1, 64, [values, out, total, 50])
    np.testing.assert_array_equal(out, np.array([12.5, 0, 12.5, 12.5], np.float16))
    assert total[0] == 12.5
