"""Rounding of arithmetic and conversions, in every direction, against exact rational numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind

Run = Callable[..., np.ndarray]
_FORMATS: Final = {
    "f16": (11, -14, 65504.0),
    "bf16": (8, -126, 3.3895313892515355e38),
    "f32": (24, -126, float(np.finfo(np.float32).max)),
    "f64": (53, -1022, float(np.finfo(np.float64).max)),
}
"""Significant bits, smallest normal exponent and largest number of each type."""
_DTYPES: Final = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
_MODES: Final = ("rn", "rz", "rm", "rp")
_OPERATIONS: Final[dict[str, Callable[..., Fraction]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": lambda a, b, c: a * b + c,
}


def rounded(exact: Fraction, kind: str, mode: str) -> float:
    """The number of a type that an exact, non-zero number is rounded to."""
    bits, lowest, largest = _FORMATS[kind]
    size, sign = abs(exact), 1 if exact > 0 else -1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, lowest) - bits + 1)
    down, rest = divmod(size, unit)
    away = {
        "rn": 2 * rest > unit or (2 * rest == unit and down % 2 == 1),
        "rz": False,
        "rm": sign < 0 and rest > 0,
        "rp": sign > 0 and rest > 0,
    }[mode]
    value = (down + away) * unit
    if value > Fraction(largest):
        to_infinity = mode == "rn" or mode == ("rp" if sign > 0 else "rm")
        return sign * (math.inf if to_infinity else largest)
    return sign * float(value)


def encoded(values: np.ndarray, kind: str) -> np.ndarray:
    """float64 in a type, as inputs of a kernel; bf16 is cut to its bits."""
    with np.errstate(over="ignore"):
        if kind == "bf16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(_DTYPES[kind])


def decoded(values: np.ndarray, kind: str) -> np.ndarray:
    """Inputs or results of a kernel as float64."""
    if kind == "bf16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)


def samples(rng: np.random.Generator, kind: str, count: int) -> np.ndarray:
    """Finite, non-zero numbers of a type: subnormal, huge, and of moderate size."""
    _, lowest, largest = _FORMATS[kind]
    widest = min(1000, int(math.log2(largest)))
    exponents = np.where(rng.random(count) < 0.5, rng.integers(-9, 9, count), rng.integers(lowest - 4, widest, count))
    values = decoded(encoded(rng.standard_normal(count) * np.exp2(exponents.astype(np.float64)), kind), kind)
    return np.where(np.isfinite(values) & (values != 0), values, 1.0)


@pytest.mark.parametrize(("to", "source"), [*itertools.permutations(_FORMATS, 2)])
def test_conversions_round_once_in_every_direction(run_elementwise: Run, to: str, source: str) -> None:
    values = samples(np.random.default_rng(1), source, 256)
    near = decoded(encoded(values[:64], to), to)  # halves between two numbers of the new type
    values[:64] = np.where(np.isfinite(near), near * (1 + 2.0 ** -_FORMATS[to][0]), 1.0)
    given = encoded(values, source)
    exact = decoded(given, source).tolist()
    for mode in _MODES:
        got = decoded(run_elementwise(f"cvt.{mode}.{to}.{source} %d, %a0;", [given], _DTYPES[to]), to)
        assert got.tolist() == [rounded(Fraction(value), to, mode) if value else value for value in exact], mode


@pytest.mark.parametrize("kind", _FORMATS)
@pytest.mark.parametrize("name", _OPERATIONS)
def test_arithmetic_rounds_once_in_every_direction(run_elementwise: Run, name: str, kind: str) -> None:
    rng = np.random.default_rng(2)
    operands = [samples(rng, kind, 256) for _ in range(3)]
    near = 1 + rng.integers(-2, 3, 128) * 2.0 ** -_FORMATS[kind][0]
    with np.errstate(all="ignore"):  # most of a product is cancelled, or all of a sum
        product = -operands[0][:128] * operands[1][:128]
        operands[2][:128] = np.where(abs(product) < _FORMATS[kind][2], product, 1.0) * near
    operands[1][-32:] = -operands[0][-32:] if name == "add" else operands[0][-32:]
    if kind == "bf16":  # 7 · 37 is half between two numbers, so a tiny addend decides
        operands[0][:2], operands[1][:2], operands[2][:2] = 7, (37, -37), -(2.0**-99)
    count = 3 if name == "fma" else 2
    given = [encoded(operand, kind) for operand in operands[:count]]
    rows = list(zip(*(decoded(operand, kind).tolist() for operand in given), strict=True))
    sources = ", ".join(f"%a{number}" for number in range(count))
    for mode in _MODES if kind in ("f32", "f64") else ("rn",):
        got = decoded(run_elementwise(f"{name}.{mode}.{kind} %d, {sources};", given, _DTYPES[kind]), kind)
        exact = [_OPERATIONS[name](*map(Fraction, row)) for row in rows]
        want = [rounded(one, kind, mode) if one else (-0.0 if mode == "rm" else 0.0) for one in exact]
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_the_sign_of_a_sum_of_zeros(run_elementwise: Run) -> None:
    a = np.tile(np.array([0.0, 0.0, -0.0, -0.0], np.float32), 16)
    b = np.tile(np.array([0.0, -0.0, 0.0, -0.0], np.float32), 16)
    for dtype, kind in ((np.float32, "f32"), (np.float64, "f64")):
        for mode in _MODES:
            got = run_elementwise(f"add.{mode}.{kind} %d, %a0, %a1;", [a.astype(dtype), b.astype(dtype)], dtype)
            assert np.signbit(got[:4]).tolist() == [False, mode == "rm", mode == "rm", True], (kind, mode)


def test_mixed_precision_is_unsupported() -> None:
    text = """.version 9.0
.target sm_100
.address_size 64
.visible .entry k()
{
.reg .b16 %h<2>;
.reg .f32 %f<2>;
    add.f32.f16 %f1, %h1, %f1;
    ret;
}
"""
    with pytest.raises(EmulatorError) as caught:
        Emulator(text).check()
    assert caught.value.kind is FaultKind.UNSUPPORTED_INSTRUCTION
