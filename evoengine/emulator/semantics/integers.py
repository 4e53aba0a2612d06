"""Integer semantics of PTX, on NumPy arrays of any broadcastable shape."""

from __future__ import annotations

from typing import Any

import numpy as np

from evoengine.emulator.arrays import Array

_U64 = np.uint64(32)


def clamp_int(values: Array, code: str) -> Array:
    """Clamps integers to the range of another integer type."""
    info, own = np.iinfo(code), np.iinfo(values.dtype)
    out: Array = np.clip(values, max(info.min, own.min), min(info.max, own.max))
    return out


def mul_hi(a: Array, b: Array) -> Array:
    """Upper half of a product, as unsigned bits."""
    bits = a.dtype.itemsize * 8
    signed = a.dtype.kind == "i"
    if bits < 64:
        wide = f"{'i' if signed else 'u'}{bits // 4}"
        product: Array = (a.astype(wide) * b.astype(wide)) >> np.array(bits, wide)
        return product.astype(f"u{bits // 8}")
    ua, ub = a.view(np.uint64), b.view(np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = ua & mask, ua >> _U64, ub & mask, ub >> _U64
    middle = ((a0 * b0) >> _U64) + ((a1 * b0) & mask) + ((a0 * b1) & mask)
    high: Array = a1 * b1 + ((a1 * b0) >> _U64) + ((a0 * b1) >> _U64) + (middle >> _U64)
    if signed:
        zero = np.uint64(0)
        high = high - np.where(a < 0, ub, zero) - np.where(b < 0, ua, zero)
    return high


def mul24(a: Array, b: Array, high: bool) -> Array:
    """Multiplies 24-bit integers; returns the low 32 bits or bits 16-47 of the 48-bit product."""
    shift = np.array(8, a.dtype)
    wide = "q" if a.dtype.kind == "i" else "Q"
    product: Array = ((a << shift) >> shift).astype(wide) * ((b << shift) >> shift).astype(wide)
    if high:
        product = product >> np.array(16, wide)
    return product.astype(np.uint32)


def int_div(a: Array, b: Array) -> Array:
    """Truncating integer division; division by zero gives all ones, as on the hardware."""
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    if a.dtype.kind == "u":
        out = a // safe
    else:
        quotient = np.floor_divide(a, safe)
        inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
        out = quotient + inexact.astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), out)


def int_rem(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend; the dividend itself for a divisor of zero."""
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    out = a - int_div(a, safe) * safe
    return np.where(b == 0, a, out)


def clamp_count(count: Array, code: str) -> Array:
    """Shift counts in another dtype, at most 255."""
    return np.minimum(count, np.uint32(255)).astype(code)


def funnel(low: Array, high: Array, count: Array, left: bool, wrap: bool) -> Array:
    """Funnel shift ``shf``: shifts the 64 bits ``high:low`` and returns the upper (left) or lower (right) word."""
    amount = (count & np.uint32(31)) if wrap else np.minimum(count, np.uint32(32))
    value = (high.astype(np.uint64) << _U64) | low
    shift = amount.astype(np.uint64)
    if left:
        return ((value << shift) >> _U64).astype(np.uint32)
    return (value >> shift).astype(np.uint32)


def prmt(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """Byte permutation of ``b:a``; in the default mode a selector with its top bit set replicates the sign."""
    value = (b.astype(np.uint64) << _U64) | a
    out: Array = np.zeros((1, 1), np.uint32)
    first = (selector & np.uint32(3)).astype(np.int64)
    for byte in range(4):
        sign = None
        if mode == "":
            nibble = selector >> np.uint32(4 * byte)
            index: Array = (nibble & np.uint32(7)).astype(np.int64)
            sign = (nibble & np.uint32(8)) != 0
        elif mode == "f4e":
            index = first + byte
        elif mode == "b4e":
            index = (first - byte) & 7
        elif mode == "rc8":
            index = first
        elif mode == "ecl":
            index = np.maximum(first, byte)
        elif mode == "ecr":
            index = np.minimum(first, byte)
        else:
            index = (first & 1) * 2 + (byte & 1)
        picked = ((value >> (index * 8).astype(np.uint64)) & np.uint64(0xFF)).astype(np.uint32)
        if sign is not None and sign.any():
            picked = np.where(sign, np.where(picked & np.uint32(0x80), np.uint32(0xFF), np.uint32(0)), picked)
        out = out | (picked << np.uint32(8 * byte))
    return out


def _low_ones(count: Array, dtype: np.dtype[Any]) -> Array:
    """Words with the lowest ``count`` bits set; a count above the width sets all, because the shift gives 0."""
    one = np.ones((), dtype)
    out: Array = (one << np.minimum(count, 255).astype(dtype)) - one
    return out


def bfe(values: Array, start: Array, length: Array) -> Array:
    """Bit field extract, sign-extended for signed types."""
    bits = values.dtype.itemsize * 8
    unsigned = values.view(f"u{bits // 8}")
    pos = (start & np.uint32(255)).astype(np.int64)
    count = (length & np.uint32(255)).astype(np.int64)
    # A signed field that exceeds the top bit is filled with the sign, as by an arithmetic shift.
    field = (values >> np.minimum(pos, bits).astype(values.dtype)).view(unsigned.dtype)
    mask = _low_ones(count, unsigned.dtype)
    out: Array = field & mask
    if values.dtype.kind == "i":
        top = np.minimum(pos + count - 1, bits - 1).astype(unsigned.dtype)
        negative = ((unsigned >> top) & unsigned.dtype.type(1)).astype(bool) & (count > 0)
        out = np.where(negative, out | ~mask, out)
    return out.view(values.dtype)


def bfi(source: Array, target: Array, start: Array, length: Array) -> Array:
    """Bit field insert of ``source`` into ``target``."""
    dtype = source.dtype
    bits = dtype.itemsize * 8
    pos = np.minimum(start & np.uint32(255), np.uint32(bits)).astype(dtype)
    count = (length & np.uint32(255)).astype(np.int64)
    mask = _low_ones(count, dtype) << pos
    out: Array = (target & ~mask) | ((source << pos) & mask)
    return out


def bit_mask(start: Array, length: Array, *, clamp: bool) -> Array:
    """``length`` ones from bit ``start`` on, uint32; both are taken modulo 32 unless ``clamp`` is set."""
    if not clamp:
        start, length = start & np.uint32(31), length & np.uint32(31)
    first = np.minimum(start, np.uint32(32)).astype(np.int64)
    end = np.minimum(first + np.minimum(length, np.uint32(32)), 32)
    return np.asarray(_low_ones(end, np.dtype(np.uint32)) & ~_low_ones(first, np.dtype(np.uint32)))


def popcount(values: Array) -> Array:
    """Number of set bits."""
    return np.bitwise_count(values).astype(np.uint32)


def leading_zeros(values: Array) -> Array:
    """Number of leading zero bits."""
    bits = values.dtype.itemsize * 8
    smeared = values
    for shift in (1, 2, 4, 8, 16, 32):
        if shift < bits:
            smeared = smeared | (smeared >> values.dtype.type(shift))
    return np.uint32(bits) - np.bitwise_count(smeared).astype(np.uint32)


def bfind(values: Array, shift_amount: bool) -> Array:
    """Position of the most significant non-sign bit, or the shift to bring it to the top; all ones if there is none."""
    bits = values.dtype.itemsize * 8
    unsigned = values.view(f"u{bits // 8}")
    if values.dtype.kind == "i":
        unsigned = np.where(values < 0, ~unsigned, unsigned)
    zeros = leading_zeros(unsigned)
    found = zeros if shift_amount else np.uint32(bits - 1) - zeros
    return np.where(unsigned == 0, np.uint32(0xFFFFFFFF), found)


def bit_reverse(values: Array) -> Array:
    """Reverses the order of the bits."""
    dtype = values.dtype
    out = np.zeros((1, 1), dtype)
    for bit in range(dtype.itemsize * 8):
        out = (out << dtype.type(1)) | ((values >> dtype.type(bit)) & dtype.type(1))
    return out


def dp4a(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool) -> Array:
    """Dot product of four bytes, added to ``c``."""
    total = c.astype(np.int64)
    for byte in range(4):
        shift = np.uint32(8 * byte)
        x, y = ((v >> shift).astype(np.uint8) for v in (a, b))
        total = total + (x.view(np.int8) if a_signed else x).astype(np.int64) * (
            y.view(np.int8) if b_signed else y
        ).astype(np.int64)
    return total.astype(np.uint32)


def dp2a(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool, high: bool) -> Array:
    """Dot product of the halves of ``a`` with the two lower or upper bytes of ``b``, added to ``c``."""
    total = c.astype(np.int64)
    for half in range(2):
        x = (a >> np.uint32(16 * half)).astype(np.uint16)
        y = (b >> np.uint32(8 * half + (16 if high else 0))).astype(np.uint8)
        left = (x.view(np.int16) if a_signed else x).astype(np.int64)
        total = total + left * (y.view(np.int8) if b_signed else y).astype(np.int64)
    return total.astype(np.uint32)
