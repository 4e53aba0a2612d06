"""Directed rounding: float64 arithmetic, and conversions to bf16 and tf32.

``rz`` rounds toward zero, ``rm`` to minus and ``rp`` to plus infinity. Source: PTX ISA 9.0, "Floating Point
Instructions".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.semantics.floats import fma_d, narrow_directed

_NEAREST: Final[dict[str, Callable[..., Array]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "fma": fma_d,
    "div": lambda a, b: a / b,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
}
_TERMS: Final[dict[str, Callable[..., tuple[float, float]]]] = {
    "add": lambda a, b: (a, b),
    "sub": lambda a, b: (a, -b),
    "fma": lambda a, b, c: (a * b, c),
}
_LARGEST: Final = float(np.finfo(np.float64).max)
_TF32_STEP: Final = 13
"""Mantissa bits of float32 that tf32 does not have."""
_TF32_MASK: Final = np.uint32(0xFFFFE000)
_TF32_HIGHEST: Final = np.uint32(0x7F7FE000)


def _compare(operation: str, near: float, *operands: float) -> int:
    """Sign of the exact result minus ``near``; all numbers are finite."""
    a, *rest = (Fraction(value) for value in operands)
    result = Fraction(near)
    if operation in ("div", "rcp", "sqrt"):
        if operation == "sqrt":
            left, right, divisor = a, result * result, Fraction(1)
        else:
            divisor = rest[0] if rest else a
            left, right = (a if rest else Fraction(1)), result * divisor
        return ((left > right) - (left < right)) * (1 if divisor > 0 else -1)
    exact = {
        "add": lambda: a + rest[0],
        "sub": lambda: a - rest[0],
        "mul": lambda: a * rest[0],
        "fma": lambda: a * rest[0] + rest[1],
    }[operation]()
    return (exact > result) - (exact < result)


def directed_f64(operation: str, mode: str, *operands: Array) -> Array:
    """Arithmetic in float64 with directed rounding, by comparison of the nearest float64 with the exact result.

    Args:
        operation: ``add``, ``sub``, ``mul``, ``fma``, ``div``, ``rcp`` or ``sqrt``.
        mode: ``rz``, ``rm`` or ``rp``.
        operands: float64 operands.
    """
    with np.errstate(over="ignore"):
        near = np.asarray(_NEAREST[operation](*operands))
    columns = [np.broadcast_to(x, near.shape).reshape(-1).tolist() for x in operands]
    out: Array = near.reshape(-1).copy()
    for lane, (value, *given) in enumerate(zip(out.tolist(), *columns, strict=True)):
        exact = math.isinf(value) and operation in ("div", "rcp") and given[-1] == 0
        if not math.isnan(value) and all(map(math.isfinite, given)) and not exact:
            out[lane] = _rounded(operation, mode, value, given)
    return out.reshape(near.shape)


def _rounded(operation: str, mode: str, near: float, operands: list[float]) -> float:
    """The directed result next to the nearest float64, which is infinite where the exact result is too large."""
    value = math.copysign(_LARGEST, near) if math.isinf(near) else near
    sign = _compare(operation, value, *operands)
    if mode == "rm" and sign == value == 0 and operation in _TERMS:  # a sum is +0 only if both of its terms are
        return -0.0 if any(math.copysign(1, term) < 0 for term in _TERMS[operation](*operands)) else 0.0
    if mode == "rz":
        return math.nextafter(value, 0.0) if sign * value < 0 else value
    if (mode == "rm" and sign < 0) or (mode == "rp" and sign > 0):
        return math.nextafter(value, math.copysign(math.inf, sign))
    return value


def directed_bf16(values: Array, mode: str) -> Array:
    """Converts floats or integers to bf16 bits, uint16, rounding to minus (``rm``) or plus infinity (``rp``)."""
    narrow = values if values.dtype == np.float32 else narrow_directed(values, "f", mode)
    bits = np.ascontiguousarray(narrow).view(np.uint32)
    negative = (bits >> np.uint32(31)) != 0
    away = (bits & np.uint32(0xFFFF) != 0) & (negative if mode == "rm" else ~negative)
    out = (bits >> np.uint32(16)) + away.astype(np.uint32)
    return np.where(np.isnan(narrow), np.uint32(0x7FFF), out).astype(np.uint16)


def to_tf32(values: Array, mode: str, *, relu: bool, finite: bool) -> Array:
    """Converts float32 to tf32 bits, uint32.

    Args:
        values: float32 values.
        mode: ``rn`` (nearest even), ``rna`` (nearest, halves away from zero) or ``rz``.
        relu: Whether negative values become zero.
        finite: Whether infinities become the largest finite number.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = np.uint32(1 << (_TF32_STEP - 1))
    if mode == "rn":
        bits = bits + (half - np.uint32(1)) + ((bits >> np.uint32(_TF32_STEP)) & np.uint32(1))
    elif mode == "rna":
        bits = bits + half
    out = np.where(np.isinf(values), np.ascontiguousarray(values).view(np.uint32), bits & _TF32_MASK)
    sign = out & np.uint32(1 << 31)
    if finite:
        out = np.where(out ^ sign >= np.uint32(0x7F800000), _TF32_HIGHEST | sign, out)
    if relu:
        out = np.where(sign != 0, np.uint32(0), out)
    return np.where(np.isnan(values), np.uint32(0x7FFFE000), out)
