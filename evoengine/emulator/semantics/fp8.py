"""8-bit floats ``e4m3`` and ``e5m2`` of the OCP specification: decoding, and encoding like ``cvt.rn.satfinite``."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array

_FORMATS: Final = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}
"""Mantissa bits, exponent bias, and the encoding of the largest finite number."""
_NAN: Final = np.uint8(0x7F)


def _values(kind: str) -> Array:
    """Value of each of the 256 encodings; e4m3 has NaN but no infinity."""
    mantissa_bits, bias, _ = _FORMATS[kind]
    byte = np.arange(256)
    exponent, mantissa = (byte & 0x7F) >> mantissa_bits, byte & ((1 << mantissa_bits) - 1)
    scale = np.exp2(np.maximum(exponent, 1) - bias - mantissa_bits)
    value = scale * (mantissa + np.where(exponent > 0, 1 << mantissa_bits, 0))
    if kind == "e5m2":
        value = np.where(exponent == 31, np.where(mantissa == 0, np.inf, np.nan), value)
    else:
        value = np.where((byte & 0x7F) == 0x7F, np.nan, value)
    return np.where(byte & 0x80, -value, value)


FP8_VALUES: Final = {kind: _values(kind) for kind in _FORMATS}
"""Value of every encoding, float64 ``[256]``, by format."""


def _encode_fp8(values: Array, kind: str) -> Array:
    """Encodes float32, rounded to nearest even; larger values become the largest finite number, NaN stays NaN."""
    largest = _FORMATS[kind][2]
    table = FP8_VALUES[kind][: largest + 1]
    wide = values.astype(np.float64)
    size = np.minimum(np.abs(np.where(np.isnan(wide), 0.0, wide)), table[-1])
    above = np.minimum(np.searchsorted(table, size), largest)
    below = np.maximum(above - 1, 0)
    middle = (table[above] + table[below]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = np.where(up, above, below).astype(np.uint8)
    code = np.where(np.isnan(wide), _NAN, code)
    return np.where(np.signbit(wide), code | np.uint8(0x80), code).astype(np.uint8)


def pack_fp8(low: Array, high: Array, kind: str, rectify: bool) -> Array:
    """Packs two float32 as 8-bit floats into a uint16."""
    if rectify:
        low, high = (np.where(np.isnan(x), x, np.maximum(x, np.float32(0))) for x in (low, high))
    return _encode_fp8(low, kind).astype(np.uint16) | _encode_fp8(high, kind).astype(np.uint16) << np.uint16(8)


def unpack_fp8(bits: Array, kind: str, rectify: bool) -> Array:
    """Unpacks two 8-bit floats in a uint16 to f16x2 bits."""
    halves = []
    for shift in (0, 8):
        half = FP8_VALUES[kind][(bits >> np.uint16(shift)) & np.uint16(0xFF)].astype(np.float16)
        halves.append(np.where(half < 0, np.float16(0), half) if rectify else half)
    low, high = (np.asarray(half, np.float16).view(np.uint16).astype(np.uint32) for half in halves)
    return np.asarray(low | high << np.uint32(16))
