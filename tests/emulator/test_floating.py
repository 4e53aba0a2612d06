"""Floating-point instructions and conversions against NumPy and exact rational numbers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

Run = Callable[..., np.ndarray]
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.5, 3.14159, 1e-30, -1e30, np.inf, -np.inf, np.nan, 65504.0, 70000.0, 6e-8, -2.5, 0.5, 1 / 3],
    np.float32,
)


def floats(seed: int = 0) -> np.ndarray:
    """256 float32 values: special values and random magnitudes."""
    generator = np.random.default_rng(seed)
    scale = np.exp2(generator.uniform(-20, 20, 240)).astype(np.float32)
    return np.concatenate([np.roll(SPECIAL, seed), generator.standard_normal(240).astype(np.float32) * scale])


def bf16(values: np.ndarray) -> np.ndarray:
    """Values rounded to nearest even in bf16 by torch, as float32."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(torch.bfloat16).to(torch.float32).numpy()


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """bf16 bits of values that are representable in bf16."""
    return (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize(
    ("opcode", "reference"), [("add.f32", np.add), ("sub.ftz.f32", np.subtract), ("mul.rn.f32", np.multiply)]
)
def test_f32(run_elementwise: Run, opcode: str, reference: Callable[..., np.ndarray]) -> None:
    a, b = floats(), floats(1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_elementwise(f"{opcode} %d, %a0, %a1;", [a, b], np.float32), reference(a, b))


def test_f32_fma_is_fused(run_elementwise: Run) -> None:
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal(1024).astype(np.float32) for _ in range(2))
    c = (-(a.astype(np.float64) * b) * (1 + generator.uniform(-1e-6, 1e-6, 1024))).astype(np.float32)
    got = run_elementwise("fma.rn.f32 %d, %a0, %a1, %a2;", [a, b, c], np.float32)
    exact = [
        float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)
    ]
    np.testing.assert_array_equal(got, np.array(exact).astype(np.float32))
    assert (got != a * b + c).any()


def test_f32_division_and_roots(run_elementwise: Run) -> None:
    a, b = np.abs(floats()), floats(1)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_elementwise("div.rn.f32 %d, %a0, %a1;", [a, b], np.float32), a / b)
        np.testing.assert_array_equal(run_elementwise("rcp.rn.f32 %d, %a0;", [b], np.float32), 1 / b)
        np.testing.assert_array_equal(run_elementwise("sqrt.rn.f32 %d, %a0;", [a], np.float32), np.sqrt(a))


@pytest.mark.parametrize(("opcode", "reference"), [
    ("ex2.approx.ftz.f32", np.exp2), ("lg2.approx.f32", np.log2), ("rcp.approx.ftz.f32", np.reciprocal),
    ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x)), ("sin.approx.f32", np.sin),
    ("cos.approx.f32", np.cos), ("sqrt.approx.f32", np.sqrt),
])  # fmt: skip
def test_special_functions_within_4_ulp(
    run_elementwise: Run, opcode: str, reference: Callable[..., np.ndarray]
) -> None:
    x = np.random.default_rng(6).uniform(0.01, 6, 512).astype(np.float32)
    got = run_elementwise(f"{opcode} %d, %a0;", [x], np.float32)
    np.testing.assert_allclose(got, reference(x.astype(np.float64)), rtol=4 * 2.0**-23, atol=1e-7)


def test_tanh_is_as_inexact_as_on_a_gpu(run_elementwise: Run) -> None:
    x = np.concatenate([np.random.default_rng(6).uniform(-6, 6, 509), [0, np.inf, -np.inf]]).astype(np.float32)
    error = np.abs(run_elementwise("tanh.approx.f32 %d, %a0;", [x], np.float32) - np.tanh(x.astype(np.float64)))
    assert 2**-11.2 < np.max(error[:-3] / np.abs(np.tanh(x[:-3]))) <= 2**-11 + 2**-22
    assert not error[-3:].any()


def test_ex2_of_extremes(run_elementwise: Run) -> None:
    x = np.tile(np.array([-np.inf, np.inf, np.nan, -200.0, 200.0, 0.0, -1e30, 127.0], np.float32), 8)
    got = run_elementwise("ex2.approx.ftz.f32 %d, %a0;", [x], np.float32)
    np.testing.assert_allclose(
        got[:8], np.array([0, np.inf, np.nan, 0, np.inf, 1, 0, 2.0**127], np.float32), rtol=2.0**-22
    )


def test_min_max_prefer_numbers(run_elementwise: Run) -> None:
    a, b = floats(), floats(1)
    np.testing.assert_array_equal(run_elementwise("max.f32 %d, %a0, %a1;", [a, b], np.float32), np.fmax(a, b))
    np.testing.assert_array_equal(run_elementwise("min.NaN.f32 %d, %a0, %a1;", [a, b], np.float32), np.minimum(a, b))


@pytest.mark.parametrize(
    "operator", ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
)
def test_comparisons_with_nan(run_elementwise: Run, operator: str) -> None:
    a, b = (v.ravel().copy() for v in np.meshgrid(SPECIAL, SPECIAL))
    got = run_elementwise(f"setp.{operator}.f32 %q0, %a0, %a1; selp.b32 %d, 1, 0, %q0;", [a, b], np.uint32).astype(bool)
    nan = np.isnan(a) | np.isnan(b)
    ordered = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    want = {"num": ~nan, "nan": nan}.get(operator)
    if want is None:
        want = ordered[operator[:2]] | nan if len(operator) == 3 else ordered[operator] & ~nan
    np.testing.assert_array_equal(got, want)


def test_f16x2(run_elementwise: Run) -> None:
    with np.errstate(over="ignore"):
        a, b, c = (floats(s).repeat(2)[:512].astype(np.float16) for s in range(3))
    packed = [v.view(np.uint32) for v in (a, b, c)]
    with np.errstate(all="ignore"):
        want = (a + b).astype(np.float16)
        np.testing.assert_array_equal(
            run_elementwise("add.rn.f16x2 %d, %a0, %a1;", packed[:2], np.uint32).view(np.float16), want
        )
        want = (a * b).astype(np.float16)
        np.testing.assert_array_equal(
            run_elementwise("mul.f16x2 %d, %a0, %a1;", packed[:2], np.uint32).view(np.float16), want
        )
        want = (a.astype(np.float64) * b + c).astype(np.float16)
        np.testing.assert_array_equal(
            run_elementwise("fma.rn.f16x2 %d, %a0, %a1, %a2;", packed, np.uint32).view(np.float16), want
        )
        want = np.fmax(a, b)
        np.testing.assert_array_equal(
            run_elementwise("max.f16x2 %d, %a0, %a1;", packed[:2], np.uint32).view(np.float16), want
        )


def test_bf16x2(run_elementwise: Run) -> None:
    a, b = (bf16(floats(s)) for s in range(2))
    packed = [bf16_bits(v).view(np.uint32) for v in (a, b)]
    got = (
        run_elementwise("fma.rn.bf16x2 %d, %a0, %a1, %a0;", packed, np.uint32, threads=32)
        .view(np.uint16)
        .astype(np.uint32)
        << 16
    )
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got.view(np.float32), bf16((a.astype(np.float64) * b + a).astype(np.float32)))


def test_f32_to_halves(run_elementwise: Run) -> None:
    a, b = floats(), floats(1)
    with np.errstate(all="ignore"):
        got = run_elementwise("cvt.rn.f16x2.f32 %d, %a0, %a1;", [a, b], np.uint32).view(np.float16).reshape(-1, 2)
        np.testing.assert_array_equal(got[:, 1], a.astype(np.float16))  # the first source is the upper half
        np.testing.assert_array_equal(got[:, 0], b.astype(np.float16))
    bits = run_elementwise("cvt.rn.bf16x2.f32 %d, %a0, %a1;", [a, b], np.uint32).view(np.uint16).reshape(-1, 2)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(wide[:, 1], bf16(a))
    np.testing.assert_array_equal(wide[:, 0], bf16(b))


def test_half_to_f32(run_elementwise: Run) -> None:
    bits = np.arange(65536, dtype=np.uint16).view(np.float16)
    got = run_elementwise("cvt.f32.f16 %d, %a0;", [bits], np.float32)
    np.testing.assert_array_equal(got, bits.astype(np.float32))


@pytest.mark.parametrize(
    ("mode", "rounding"), [("rzi", np.trunc), ("rni", np.rint), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_f32_to_int_saturates(run_elementwise: Run, mode: str, rounding: Callable[..., np.ndarray]) -> None:
    x = floats()
    got = run_elementwise(f"cvt.{mode}.s32.f32 %d, %a0;", [x], np.int32)
    want = np.clip(rounding(x.astype(np.float64)), -(2.0**31), 2.0**31 - 1)
    np.testing.assert_array_equal(got, np.where(np.isnan(x), 0, want).astype(np.int64))
    got = run_elementwise(f"cvt.{mode}.u32.f32 %d, %a0;", [x], np.uint32)
    want = np.clip(rounding(x.astype(np.float64)), 0, 2.0**32 - 1)
    np.testing.assert_array_equal(got, np.where(np.isnan(x), 0, want).astype(np.int64))


def test_int_to_float(run_elementwise: Run) -> None:
    x = np.random.default_rng(8).integers(-(1 << 31), 1 << 31, 256).astype(np.int32)
    np.testing.assert_array_equal(run_elementwise("cvt.rn.f32.s32 %d, %a0;", [x], np.float32), x.astype(np.float32))
    toward_zero = run_elementwise("cvt.rz.f32.s32 %d, %a0;", [x], np.float32)
    assert (np.abs(toward_zero.astype(np.float64)) <= np.abs(x.astype(np.float64))).all()
    assert (np.abs(toward_zero.astype(np.float64) - x) < 256).all()


def test_saturation_sign_and_relu(run_elementwise: Run) -> None:
    a, b = floats(), floats(1)
    with np.errstate(all="ignore"):
        want = np.where(np.isnan(a + b), 0, np.clip(a + b, 0, 1))
        np.testing.assert_array_equal(run_elementwise("add.sat.f32 %d, %a0, %a1;", [a, b], np.float32), want)
    np.testing.assert_array_equal(run_elementwise("neg.f32 %d, %a0;", [a], np.float32), -a)
    np.testing.assert_array_equal(run_elementwise("abs.f32 %d, %a0;", [a], np.float32), np.abs(a))
    np.testing.assert_array_equal(run_elementwise("copysign.f32 %d, %a0, %a1;", [a, b], np.float32), np.copysign(b, a))


def test_f64(run_elementwise: Run) -> None:
    a, b = (floats(s).astype(np.float64) for s in range(2))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run_elementwise("mul.f64 %d, %a0, %a1;", [a, b], np.float64), a * b)
        np.testing.assert_array_equal(
            run_elementwise("cvt.rn.f32.f64 %d, %a0;", [a / 3], np.float32), (a / 3).astype(np.float32)
        )


def test_nan_becomes_zero_or_the_highest_bit(run_elementwise: Run) -> None:
    nan = np.full(64, np.nan)
    for code, kind, source, expected in (
        ("cvt.rzi.s32.f32", np.int32, np.float32, 0),
        ("cvt.rzi.u32.f32", np.uint32, np.float32, 0),
        ("cvt.rzi.s64.f32", np.int64, np.float32, -(2**63)),
        ("cvt.rzi.u64.f32", np.uint64, np.float32, 2**63),
        ("cvt.rzi.s32.f64", np.int32, np.float64, -(2**31)),
        ("cvt.rzi.u32.f64", np.uint32, np.float64, 2**31),
    ):
        got = run_elementwise(f"{code} %d, %a0;", [nan.astype(source)], kind)
        assert (got == np.array(expected, kind)).all(), code


def test_finite_saturation(run_elementwise: Run) -> None:
    a = floats()
    with np.errstate(over="ignore"):
        half = np.clip(a, -65504, 65504).astype(np.float16)
    np.testing.assert_array_equal(run_elementwise("cvt.rn.satfinite.f16.f32 %d, %a0;", [a], np.float16), half)
    packed = run_elementwise("cvt.rn.satfinite.f16x2.f32 %d, %a0, %a1;", [a, -a], np.uint32)
    np.testing.assert_array_equal(packed.view(np.float16).reshape(-1, 2), np.stack([-half, half], axis=1))


def test_tf32_of_nan_is_nan(run_elementwise: Run) -> None:
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000] * 16, np.uint32)
    got = run_elementwise("cvt.rna.tf32.f32 %d, %a0;", [bits.view(np.float32)], np.uint32)
    assert np.isnan(got.view(np.float32)).all()


@pytest.mark.parametrize("modifier", ["", ".NaN"])
def test_signs_of_zeros_in_min_and_max(run_elementwise: Run, modifier: str) -> None:
    zeros = np.tile(np.array([0.0, -0.0, 0.0, -0.0], np.float32), 16)
    other = np.tile(np.array([0.0, 0.0, -0.0, -0.0], np.float32), 16)
    most = run_elementwise(f"max{modifier}.f32 %d, %a0, %a1;", [zeros, other], np.float32)
    least = run_elementwise(f"min{modifier}.f32 %d, %a0, %a1;", [zeros, other], np.float32)
    np.testing.assert_array_equal(np.signbit(most), np.signbit(zeros) & np.signbit(other))
    np.testing.assert_array_equal(np.signbit(least), np.signbit(zeros) | np.signbit(other))


def test_integers_and_doubles_are_rounded_once_to_bf16(run_elementwise: Run) -> None:
    whole = np.random.default_rng(0).integers(2**24, 2**31, 240).astype(np.int32)
    ties = np.array([16842753, 16842751, 16842752, 16908288, -16842753, 2**31 - 1, -(2**31), 0] * 2, np.int32)
    values = np.concatenate([whole, ties])
    expected = [_nearest_bf16(int(value)) for value in values]
    got = run_elementwise("cvt.rn.bf16.s32 %d, %a0;", [values], np.uint16)
    np.testing.assert_array_equal((got.astype(np.uint32) << 16).view(np.float32), np.array(expected, np.float32))
    long = np.array([2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, 2**60 + 2**52, 2**60 - 1] * 16, np.int64)
    got = run_elementwise("cvt.rn.bf16.s64 %d, %a0;", [long], np.uint16)
    expected = [_nearest_bf16(value) for value in long.tolist()]
    np.testing.assert_array_equal((got.astype(np.uint32) << 16).view(np.float32), np.array(expected, np.float32))
    cut = run_elementwise("cvt.rz.bf16.s64 %d, %a0;", [long], np.uint16)
    assert cut[3] == 0x5D7F, "2^60 - 2^52"


def _nearest_bf16(value: int) -> float:
    """The nearest number with eight significant bits, by exact arithmetic; the even one of two."""
    if value == 0:
        return 0.0
    unit = Fraction(2) ** (abs(value).bit_length() - 8)
    return float(round(Fraction(value) / unit) * unit)
