"""Tensor-core semantics: ``mma.sync.m16n8k16`` and ``m16n8k8`` on f16 and bf16.

Fragment layouts are those of the PTX ISA ("Matrix Fragments for mma.m16n8k16"), with ``g = lane / 4`` and
``t = lane % 4``: A holds rows ``g`` and ``g + 8``, columns ``2t, 2t + 1`` of each eight-column half; B holds the same
with its column ``g``; C and D hold rows ``g`` and ``g + 8``, columns ``2t, 2t + 1``.

Products are exact and sums are float32. A run of instructions along K becomes one matrix product, so the order of the
additions differs from the hardware's, which is itself unspecified.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evoengine.emulator.numerics import Array

_HALF_SCALE = np.float32(2.0**112)
_HALF_OVER = np.float32(65536.0)


def half_to_float(bits: Array) -> Array:
    """f16 bits (any unsigned dtype, contiguous) to float32, exact; faster than NumPy's conversion."""
    wide = bits.view(np.int16).astype(np.int32)
    wide <<= 13
    wide &= np.int32(-0x70000001)  # keeps the sign and drops its copies above the exponent
    out = wide.view(np.float32)
    out *= _HALF_SCALE
    if out.size and (out.max() >= _HALF_OVER or out.min() <= -_HALF_OVER):  # infinities and NaN need the slow way
        return bits.view(np.float16).astype(np.float32)
    return out


def bfloat_to_float(bits: Array) -> Array:
    """bf16 bits (contiguous) to float32, exact."""
    wide = bits.view(np.uint16).astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _stack(registers: Sequence[Array], ctas: int, threads: int) -> Array:
    out = np.empty((len(registers), ctas, threads), np.uint32)
    for number, register in enumerate(registers):
        out[number] = register
    return out


def multiply(
    kind: str, a: Sequence[Array], b: Sequence[Array], steps: int, halves: int, ctas: int, threads: int
) -> Array:
    """Multiplies A fragments by several columns of B fragments.

    Args:
        kind: ``f16`` or ``bf16``.
        a: ``steps * halves * 2`` registers: per K step the fragment's registers in PTX order.
        b: ``columns * steps * halves`` registers: per 16x8 output tile, per K step.
        steps: K steps.
        halves: 2 for k16, 1 for k8.
        ctas: CTAs in the batch.
        threads: Threads per CTA, a multiple of 32.

    Returns:
        float32 ``[columns * 4, ctas, threads]``: the D fragments without C.
    """
    widen = half_to_float if kind == "f16" else bfloat_to_float
    warps = ctas * threads // 32
    columns = len(b) // (steps * halves)
    depth = steps * halves * 8
    raw = _stack(a, ctas, threads).reshape(steps, halves, 2, warps, 8, 4)
    left = widen(np.ascontiguousarray(raw.transpose(3, 2, 4, 0, 1, 5))).reshape(warps, 16, depth)
    raw = _stack(b, ctas, threads).reshape(columns, steps, halves, warps, 8, 4)
    right = widen(np.ascontiguousarray(raw.transpose(3, 0, 4, 1, 2, 5))).reshape(warps, columns * 8, depth)
    product = np.matmul(left, right.transpose(0, 2, 1)).reshape(warps, 2, 8, columns, 4, 2)
    return np.ascontiguousarray(product.transpose(3, 1, 5, 0, 2, 4)).reshape(columns * 4, ctas, threads)
