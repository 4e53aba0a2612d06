"""Floating-point semantics of PTX, on NumPy arrays of any broadcastable shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from evoengine.emulator.arrays import Array

_U16 = np.uint32(16)


def bf16_to_f32(bits: Array) -> Array:
    """Converts bf16 bits (uint16) to float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array, toward_zero: bool = False) -> Array:
    """Converts float32 to bf16 bits (uint16), to nearest even or toward zero; NaN becomes 0x7FFF as on the GPU."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits if toward_zero else bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    out = (rounded >> np.uint32(16)).astype(np.uint16)
    if values.size and not np.isfinite(values.sum(dtype=np.float64)):
        out = np.where(np.isnan(values), np.uint16(0x7FFF), out)
    return out


def wide_to_bf16(values: Array, toward_zero: bool = False) -> Array:
    """Converts float64 or integers to bf16 bits with one rounding, like :func:`f32_to_bf16`.

    The intermediate float32 is rounded to odd, so that the second rounding gives the result of a single one.
    """
    below = narrow_toward_zero(values, "f")
    left, right = _comparable(below, values)
    odd = (below.view(np.uint32) | np.uint32(1)).view(np.float32)
    return f32_to_bf16(np.where((left != right) & ~np.isnan(below), odd, below), toward_zero)


def clamp_finite(values: Array, kind: str) -> Array:
    """Clamps floats to the finite range of ``f16`` or ``bf16``; NaN stays."""
    highest = {"f16": 65504.0, "bf16": 3.3895313892515355e38}[kind]
    return np.clip(values, -highest, highest).astype(values.dtype)


def larger(a: Array, b: Array) -> Array:
    """Executes ``max``: the operand that is not NaN, and +0 rather than -0. Source: PTX ISA 9.0, "max"."""
    out = np.fmax(a, b)
    return out if out.all() else np.where((a == 0) & (b == 0), a + b, out)


def smaller(a: Array, b: Array) -> Array:
    """Executes ``min``: the operand that is not NaN, and -0 rather than +0."""
    out = np.fmin(a, b)
    return out if out.all() else np.where((a == 0) & (b == 0), -(-a - b), out)


def larger_or_nan(a: Array, b: Array) -> Array:
    """Executes ``max.NaN``: as :func:`larger`, but NaN if one operand is."""
    return np.where(np.isnan(a) | np.isnan(b), a + b, larger(a, b))


def smaller_or_nan(a: Array, b: Array) -> Array:
    """Executes ``min.NaN``."""
    return np.where(np.isnan(a) | np.isnan(b), a + b, smaller(a, b))


def pack_bf16_rn(low: Array, high: Array) -> Array:
    """Converts two float32 to bf16x2 bits, to nearest even."""
    return f32_to_bf16(low).astype(np.uint32) | (f32_to_bf16(high).astype(np.uint32) << _U16)


def pack_bf16_rz(low: Array, high: Array) -> Array:
    """Converts two float32 to bf16x2 bits, toward zero."""
    return f32_to_bf16(low, True).astype(np.uint32) | (f32_to_bf16(high, True).astype(np.uint32) << _U16)


def _pair(low: Array, high: Array, dtype: str) -> Array:
    """Interleaves two arrays of 16-bit values into uint32."""
    shape = np.broadcast_shapes(low.shape, high.shape)
    out = np.empty((*shape, 2), dtype)
    out[..., 0] = low
    out[..., 1] = high
    return out.view(np.uint32)[..., 0]


def pack_f16_rn(low: Array, high: Array) -> Array:
    """Converts two float32 to f16x2 bits, to nearest even."""
    return _pair(low, high, "e")


def pack_f16_rz(low: Array, high: Array) -> Array:
    """Converts two float32 to f16x2 bits, toward zero."""
    return _pair(narrow_toward_zero(low, "e"), narrow_toward_zero(high, "e"), "e")


def _comparable(near: Array, values: Array) -> tuple[Array, Array]:
    """Two float64 arrays that compare as a rounded float and its unrounded float or integer do.

    Float64 cannot hold every 64-bit integer. There the upper half is subtracted from both sides, which is exact.
    """
    wide = near.astype(np.float64)
    if values.dtype.kind == "f" or values.dtype.itemsize < 8:
        return wide, values.astype(np.float64)
    low = np.array(0xFFFFFFFF, values.dtype)
    return wide - (values & ~low).astype(np.float64), (values & low).astype(np.float64)


def narrow_toward_zero(values: Array, code: str) -> Array:
    """Converts to a narrower float, rounding toward zero."""
    near = values.astype(code)
    left, right = _comparable(near, values)
    over = np.where(values < 0, left < right, left > right)
    return np.where(over, np.nextafter(near, np.zeros((), code)), near)


def narrow_directed(values: Array, code: str, mode: str) -> Array:
    """Converts to a float of another type, rounding to minus (``rm``) or plus infinity (``rp``)."""
    near = values.astype(code)
    left, right = _comparable(near, values)
    wrong, bound = (left > right, -np.inf) if mode == "rm" else (left < right, np.inf)
    return np.where(wrong, np.nextafter(near, np.array(bound, code)), near)


def relu(values: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    return np.maximum(values, np.zeros((), values.dtype))


def saturate(values: Array) -> Array:
    """Clamps to [0, 1]; NaN becomes 0."""
    return np.fmin(np.fmax(values, np.zeros((), values.dtype)), np.ones((), values.dtype))


def fma_f(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add in float32; the product is exact in f64, the sum is rounded to f64 and then to f32."""
    out: Array = a.astype(np.float64) * b.astype(np.float64)  # convert first: NumPy is slow on mixed dtypes
    wide = c.astype(np.float64)
    if wide.shape == out.shape or wide.size == 1:
        out += wide
    else:
        out = out + wide
    return out.astype(np.float32)


def fma_d(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add in float64, rounded once.

    Extended precision decides most lanes. Those in which its error may change the result, after cancellation above all,
    are computed as fractions.
    """
    product = a.astype(np.longdouble) * b
    total = product + c
    info = np.finfo(np.longdouble)
    error = info.eps * (np.abs(product) + np.abs(total)) + info.smallest_subnormal
    out: Array = total.astype(np.float64)
    lowest, highest = (total - error).astype(np.float64), (total + error).astype(np.float64)
    doubtful = np.isfinite(total) & (lowest != highest)
    columns = [np.broadcast_to(x, out.shape)[doubtful].tolist() for x in (a, b, c)]
    out[doubtful] = [_exact_fma(*operands) for operands in zip(*columns, strict=True)]
    return out


def _exact_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return float(exact) if exact else a * b + c  # a zero has the sign that a float sum gives it
    except OverflowError:
        return math.copysign(math.inf, exact)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Sum of two float64 and its rounding error (Knuth's two-sum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def fma_half(a: Array, b: Array, c: Array) -> Array:
    """Multiply-add of 16-bit floats in float64, rounded to odd, so that rounding it again to 16 bits is exact."""
    total, rest = _two_sum(a.astype(np.float64) * b, c.astype(np.float64))
    even = total.view(np.uint64) & np.uint64(1) == 0
    return np.where((np.abs(rest) > 0) & even, np.nextafter(total, np.copysign(np.inf, rest)), total)


def directed(operation: str, mode: str, *operands: Array) -> Array:
    """Arithmetic in float32 that rounds toward zero (``rz``), minus (``rm``) or plus infinity (``rp``).

    The result is computed in f64 together with its rounding error; products are exact. The nearest f32 is replaced by
    its neighbour if it is on the wrong side.
    """
    wide = [x.astype(np.float64) for x in operands]
    rest: Array = np.zeros((), np.float64)
    negative_zero: Array = np.zeros((), np.bool_)
    if operation in ("add", "sub", "fma"):
        a, b = (wide[0] * wide[1], wide[2]) if operation == "fma" else (wide[0], wide[1])
        b = -b if operation == "sub" else b
        exact, rest = _two_sum(a, b)
        negative_zero = (exact == 0) & (np.signbit(a) | np.signbit(b))
    else:
        exact = _UNROUNDED[operation](*wide)
    near = exact.astype(np.float32)
    over = near - exact - rest  # positive where the nearest f32 is too large
    down = np.nextafter(near, np.float32(-np.inf), dtype=np.float32)
    up = np.nextafter(near, np.float32(np.inf), dtype=np.float32)
    lower, upper = np.where(over > 0, down, near), np.where(over < 0, up, near)
    if mode == "rz":
        return np.where(exact > 0, lower, upper)
    return np.where(negative_zero, np.float32(-0.0), lower) if mode == "rm" else upper


_UNROUNDED: dict[str, Callable[..., Array]] = {
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
}


def reciprocal(values: Array) -> Array:
    """1/x in the array's dtype."""
    return np.ones((), values.dtype) / values


_TO_WIDE: dict[str, Callable[[Array], Array]] = {
    "f16": lambda bits: bits.view(np.float16).astype(np.float32),
    "bf16": bf16_to_f32,
}


def tanh_approx(x: Array) -> Array:
    """Executes ``tanh.approx.f32``, whose relative error is up to 2^-11 on a GPU: here by rounding to 11 bits."""
    bits = np.tanh(x).view(np.uint32)
    return np.asarray((bits + np.uint32(1 << 12) & np.uint32(0xFFFFE000)).view(np.float32))


def half_op(function: Callable[..., Array], kind: str, rectify: bool, sat: bool, *operands: Array) -> Array:
    """Applies a float function to f16 or bf16 bits, scalar (uint16) or packed in pairs (uint32), and rounds once."""
    base = kind.removesuffix("x2")
    widen = _TO_WIDE[base]

    def apply(parts: list[Array]) -> Array:
        """Applies the function to the bits of one half of each operand."""
        out = function(*[widen(part) for part in parts])
        if rectify:
            out = relu(out)
        if sat:
            out = saturate(out)
        if base == "f16":
            return out.astype(np.float16).view(np.uint16)
        return wide_to_bf16(out) if out.dtype == np.float64 else f32_to_bf16(out)

    if base == kind:
        return apply(list(operands))
    low = apply([x.astype(np.uint16) for x in operands])
    high = apply([(x >> _U16).astype(np.uint16) for x in operands])
    return low.astype(np.uint32) | (high.astype(np.uint32) << _U16)


def testp(values: Array, test: str) -> Array:
    """Tests the class of floating-point values, as ``testp``."""
    tiny = np.finfo(values.dtype).tiny
    finite = np.isfinite(values)
    out: Array = {
        "finite": finite,
        "infinite": np.isinf(values),
        "number": ~np.isnan(values),
        "notanumber": np.isnan(values),
        "normal": finite & (np.abs(values) >= tiny),
        "subnormal": finite & (np.abs(values) < tiny) & (values != 0),
    }[test]
    return out


def float_to_int(values: Array, code: str) -> Array:
    """Converts floats with integral values to integers, clamped to their range.

    NaN becomes 0, or the highest bit alone where the source or the integer has 64 bits. Source: PTX ISA 9.0, "cvt".
    """
    info = np.iinfo(code)
    instead = (1 << (info.bits - 1)) if 64 in (info.bits, 8 * values.itemsize) else 0
    wide = values.astype(np.float64)
    nan = np.isnan(wide)
    low, high = float(info.min), float(info.max)
    inside = np.where(nan | (wide >= high) | (wide <= low), 0.0, wide)
    out = inside.astype(code)
    out = np.where(wide >= high, np.array(info.max, code), out)
    out = np.where(wide <= low, np.array(info.min, code), out)
    return np.where(nan, np.array(instead - (1 << info.bits) if info.min and instead else instead, code), out)


def widen_half(bits: Array, half: int, kind: str) -> Array:
    """Lower (0) or upper (1) half of f16x2 or bf16x2 bits as float32."""
    return _TO_WIDE[kind.removesuffix("x2")]((bits >> np.uint32(16 * half)).astype(np.uint16))


def widen_f16(bits: Array, half: int) -> Array:
    """Lower (0) or upper (1) half of f16x2 bits as float32."""
    return (bits >> np.uint32(16 * half)).astype(np.uint16).view(np.float16).astype(np.float32)
