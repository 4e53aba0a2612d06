"""Instructions that few kernels use, against exact numbers: integers in lanes of a word, directed rounding, tf32."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

Run = Callable[..., np.ndarray]
RNG = np.random.default_rng(0)
EDGES = (0, 0xFFFFFFFF, 0x80008000, 0x7FFF7FFF, 0x80007FFF, 0x00010001, 0x80808080, 0x01FF01FF)
WORDS = RNG.integers(0, 1 << 32, (3, 128), dtype=np.uint32)
WORDS[0, :64], WORDS[1, :64] = np.repeat(EDGES, 8), np.tile(EDGES, 8)
WORDS[2, :64] = WORDS[0, :64][::-1]


def lanes(words: np.ndarray, count: int, signed: bool) -> np.ndarray:
    """Lanes of words as int64, ``[n, count]``."""
    code = {(2, 0): "H", (2, 1): "h", (4, 0): "B", (4, 1): "b"}[count, signed]
    return words.view(code).reshape(-1, count).astype(np.int64)


def packed(values: np.ndarray, count: int) -> np.ndarray:
    """Words with the low bits of the lanes."""
    bits = 32 // count
    return np.asarray((values & ((1 << bits) - 1)).astype(f"u{bits // 8}").view(np.uint32).reshape(-1))


def clamped(values: np.ndarray, bits: int, signed: bool) -> np.ndarray:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return np.asarray(np.clip(values, low, high))


@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
@pytest.mark.parametrize(("name", "function"), [("add", np.add), ("min", np.minimum), ("max", np.maximum)])
def test_pairs_of_16_bit_integers(run_elementwise: Run, name: str, function: np.ufunc, kind: str) -> None:
    a, b = (lanes(words, 2, kind[0] == "s") for words in WORDS[:2])
    got = run_elementwise(f"{name}.{kind} %d, %a0, %a1;", list(WORDS[:2]), np.uint32)
    np.testing.assert_array_equal(got, packed(function(a, b), 2))
    if kind == "s16x2" and name != "add":
        got = run_elementwise(f"{name}.s16x2.relu %d, %a0, %a1;", list(WORDS[:2]), np.uint32)
        np.testing.assert_array_equal(got, packed(np.maximum(function(a, b), 0), 2))
        got = run_elementwise(f"{name}.s32.relu %d, %a0, %a1;", list(WORDS[:2]), np.uint32)
        whole = np.maximum(function(*WORDS[:2].view(np.int32)), 0)
        np.testing.assert_array_equal(got, whole.view(np.uint32))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("vabsdiff", lambda a, b: abs(a - b)),
        ("vadd", np.add),
        ("vsub", np.subtract),
        ("vmin", np.minimum),
        ("vmax", np.maximum),
        ("vavrg", lambda a, b: np.trunc((a + b + np.sign(a + b)) / 2).astype(np.int64)),
    ],
)
@pytest.mark.parametrize("types", ["u32.u32.u32", "s32.s32.s32", "u32.s32.u32"])
def test_video_instructions(
    run_elementwise: Run, name: str, function: Callable[..., np.ndarray], count: int, types: str
) -> None:
    result, left, right = (kind == "s32" for kind in types.split("."))
    exact = function(lanes(WORDS[0], count, left), lanes(WORDS[1], count, right))
    limited = clamped(exact, 32 // count, result)
    wanted = {"": packed(exact, count), ".sat": packed(limited, count)}
    wanted[".sat.add"] = (WORDS[2] + limited.sum(axis=1)).astype(np.uint32)
    for modifiers, want in wanted.items():
        text = f"{name}{count}.{types}{modifiers} %d, %a0, %a1, %a2;"
        np.testing.assert_array_equal(run_elementwise(text, list(WORDS), np.uint32), want)


def test_saturating_sums_and_predicates_of_lop3(run_elementwise: Run) -> None:
    a, b, c = WORDS
    for name, function in (("add", np.add), ("sub", np.subtract)):
        got = run_elementwise(f"{name}.sat.s32 %d, %a0, %a1;", [a.view(np.int32), b.view(np.int32)], np.int32)
        exact = function(a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64))
        np.testing.assert_array_equal(got, clamped(exact, 32, True))
    text = "setp.lt.u32 %q1, %a0, %a1; lop3.{}.b32 %x0|%q0, %a0, %a1, %a2, 0x80, {}; selp.b32 %d, 1, 0, %q0;"
    found, less = (a & b & c) != 0, a < b
    got = run_elementwise(text.format("and", "!%q1"), [a, b, c], np.uint32)
    np.testing.assert_array_equal(got, found & ~less)
    got = run_elementwise(text.format("or", "%q1").replace("%x0|", "_|"), [a, b, c], np.uint32)
    np.testing.assert_array_equal(got, found | less)


def nth_set(mask: int, base: int, offset: int) -> int:
    """``fns`` as the PTX ISA writes it."""
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    step, left = (1, offset) if offset > 0 else (-1, -offset)
    while 0 <= base < 32:
        left -= mask >> base & 1
        if not left:
            return base
        base += step
    return 0xFFFFFFFF


def test_the_nth_set_bit(run_elementwise: Run) -> None:
    base, offset = RNG.integers(0, 32, 128).astype(np.uint32), RNG.integers(-12, 13, 128).astype(np.int32)
    got = run_elementwise("fns.b32 %d, %a0, %a1, %a2;", [WORDS[0], base, offset], np.uint32)
    want = [nth_set(*(int(value) for value in row)) for row in zip(WORDS[0], base, offset, strict=True)]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16"])
def test_packing_of_clamped_integers(run_elementwise: Run, kind: str) -> None:
    signed, bits = kind[0] == "s", int(kind[1:])
    a, b = (RNG.integers(-3 << bits - 1, 3 << bits - 1, 128).astype(np.int32) for _ in range(2))
    text = f"cvt.pack.sat.{kind}.s32{'.b32' if bits == 8 else ''} %d, %a0, %a1{', %a2' if bits == 8 else ''};"
    got = run_elementwise(text, [a, b, WORDS[2]], np.uint32)
    high, low = (clamped(x.astype(np.int64), bits, signed) & ((1 << bits) - 1) for x in (a, b))
    kept = WORDS[2].astype(np.int64) << 16 if bits == 8 else 0
    np.testing.assert_array_equal(got, (kept | high << bits | low).astype(np.uint32))


@pytest.mark.parametrize("name", ["%envreg2", "%aggr_smem_size"])
def test_special_registers_that_hold_zero(run_elementwise: Run, name: str) -> None:
    got = run_elementwise(f"mov.u32 %d, {name}; or.b32 %d, %d, %a0;", [WORDS[0]], np.uint32)
    np.testing.assert_array_equal(got, WORDS[0])


def test_the_low_word_of_the_timer_grows(run_elementwise: Run) -> None:
    text = "mov.u32 %x0, %globaltimer_lo; mov.u32 %x1, %globaltimer_lo; sub.u32 %d, %x1, %x0; min.u32 %d, %d, %a0;"
    assert (run_elementwise(text, [np.ones(64, np.uint32)], np.uint32) == 1).all()


def test_the_time_differs_between_warps_and_launches_with_other_arguments(run_elementwise: Run) -> None:
    text = "mov.u32 %d, {}; add.u32 %d, %d, %a0;"
    low, again, other = (
        run_elementwise(text.format("%clock"), [np.zeros(n, np.uint32)], np.uint32) for n in (64, 64, 128)
    )
    assert len(set(low.tolist())) == 2, "one time for each warp"
    np.testing.assert_array_equal(low, again)
    assert not np.isin(other, low).any()
    assert run_elementwise(text.format("%clock_hi"), [np.zeros(64, np.uint32)], np.uint32).all()


# --- directed rounding ------------------------------------------------------------------------------------------------


def directed(exact: Fraction, mode: str) -> float:
    """Rounds to float64 toward zero, minus or plus infinity."""
    largest = Fraction(float(np.finfo(np.float64).max))
    near = float(min(max(exact, -largest), largest))
    if mode == "rz":
        mode = "rm" if exact > 0 else "rp"
    if mode == "rm":
        return math.nextafter(near, -math.inf) if Fraction(near) > exact else near
    return math.nextafter(near, math.inf) if Fraction(near) < exact else near


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("name", "count", "function"),
    [
        ("add", 2, lambda a, b, _: a + b),
        ("sub", 2, lambda a, b, _: a - b),
        ("mul", 2, lambda a, b, _: a * b),
        ("fma", 3, lambda a, b, c: a * b + c),
        ("div", 2, lambda a, b, _: a / b),
        ("rcp", 1, lambda a, *_: 1 / a),
    ],
)
def test_doubles_with_directed_rounding(
    run_elementwise: Run, name: str, count: int, function: Callable[..., Fraction], mode: str
) -> None:
    values = RNG.standard_normal((3, 64)) * 2.0 ** RNG.integers(-20, 20, (3, 64))
    values[:2, :4] = [[1e308, -1e308, 1.5, 5e-324], [-1e308, -1e308, 2.0, 0.5]]
    operands = ", ".join(f"%a{number}" for number in range(count))
    got = run_elementwise(f"{name}.{mode}.f64 %d, {operands};", list(values[:count]), np.float64)
    want = [directed(function(*map(Fraction, row)), mode) for row in values.T.tolist()]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_square_roots_of_doubles_with_directed_rounding(run_elementwise: Run, mode: str) -> None:
    values: np.ndarray = np.concatenate([RNG.uniform(0, 100, 60), [0, 4, 2, 1e-310]])
    got = run_elementwise(f"sqrt.{mode}.f64 %d, %a0;", [values], np.float64)
    for value, root in zip(values.tolist(), got.tolist(), strict=True):
        beyond = math.nextafter(root, math.inf if mode != "rp" else -math.inf)
        low, high = sorted((Fraction(root), Fraction(beyond)))
        assert low**2 <= Fraction(value) <= high**2 or value == 0
        assert Fraction(value) != Fraction(beyond) ** 2 or value == 0
    special = np.array([np.inf, -np.inf, np.nan, 0, -1, 1, np.inf, 0] * 8)
    other = np.array([-np.inf, 1, 1, 0, 0, 0, 0, -5] * 8)
    got = run_elementwise(f"div.{mode}.f64 %d, %a0, %a1;", [special, other], np.float64)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, special / other)


@pytest.mark.parametrize("mode", ["rm", "rp"])
@pytest.mark.parametrize("source", [np.float32, np.float64, np.int32, np.uint64])
def test_conversions_to_bf16_with_directed_rounding(run_elementwise: Run, source: type, mode: str) -> None:
    values: np.ndarray = (RNG.standard_normal(64) * 1e6).astype(source)
    if source is np.uint64:
        values = RNG.integers(0, 1 << 62, 64, dtype=np.uint64)
    kind = {"f": "f", "i": "s", "u": "u"}[np.dtype(source).kind] + str(8 * np.dtype(source).itemsize)
    got = run_elementwise(f"cvt.{mode}.bf16.{kind} %d, %a0;", [values], np.uint16)
    for value, bits in zip(values.tolist(), got.tolist(), strict=True):
        exact, found = Fraction(value), Fraction(float(np.uint32(bits << 16).view(np.float32)))
        step = Fraction(2) ** (math.frexp(float(found))[1] - 8)
        assert 0 <= (exact - found if mode == "rm" else found - exact) < step


@pytest.mark.parametrize("mode", ["rn", "rna", "rz"])
def test_conversions_to_tf32(run_elementwise: Run, mode: str) -> None:
    bits = RNG.integers(0, 1 << 32, 128, dtype=np.uint32)
    bits[:64] &= np.uint32(0xFFFFF000)  # halves between two tf32 among them
    values = bits.view(np.float32)
    values[:4] = [np.inf, -np.inf, 0, -3.5]
    values = np.where(np.isfinite(values) | (np.arange(128) < 4), values, np.float32(1))
    _, exponent = np.frexp(values)
    step = np.ldexp(1.0, np.maximum(exponent, -125) - 11)
    scaled = np.where(np.isfinite(values), values.astype(np.float64), 0) / step
    away = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    rounded = {"rn": np.rint(scaled), "rz": np.trunc(scaled), "rna": away}[mode]
    want = np.where(np.isinf(values), values, rounded * step).astype(np.float32)
    for modifiers in ("", ".satfinite", ".relu"):
        got = run_elementwise(f"cvt.{mode}{modifiers}.tf32.f32 %d, %a0;", [values], np.uint32).view(np.float32)
        highest = np.float32(np.ldexp(2047.0, 117))
        limited = {"": want, ".satfinite": np.clip(want, -highest, highest), ".relu": np.maximum(want, 0)}[modifiers]
        np.testing.assert_array_equal(got, limited)
