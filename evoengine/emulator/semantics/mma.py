"""Tensor-core semantics: ``mma.sync.m16n8k16`` and ``m16n8k8`` on f16 and bf16.

Fragment layouts are those of the PTX ISA ("Matrix Fragments for mma.m16n8k16"), with ``g = lane / 4`` and
``t = lane % 4``: A holds rows ``g`` and ``g + 8``, columns ``2t, 2t + 1`` of each eight-column half; B holds the same
with its column ``g``; C and D hold rows ``g`` and ``g + 8``, columns ``2t, 2t + 1``.

Products are exact and sums are float32. A chain of instructions along K becomes one matrix product, so the order of
additions differs from the hardware's, which is unspecified.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evoengine.emulator.arrays import Array

_HALF_SCALE = np.float32(2.0**112)
_HALF_MAGNITUDE, _HALF_INFINITY = np.uint16(0x7FFF), np.uint16(0x7C00)
_CACHED_BYTES = 2**18
"""Bytes of B, as float32, that are processed at a time, so that they stay in the cache of a core."""


def half_to_float(bits: Array) -> Array:
    """Converts f16 bits (any unsigned dtype, contiguous) to float32, exactly; faster than NumPy's conversion."""
    if bits.size and np.maximum.reduce(bits.view(np.uint16) & _HALF_MAGNITUDE, axis=None) >= _HALF_INFINITY:
        return bits.view(np.float16).astype(np.float32)
    wide = bits.view(np.int16).astype(np.int32)
    wide <<= 13
    wide &= np.int32(-0x70000001)  # clears the copies of the sign above the exponent
    out = wide.view(np.float32)
    out *= _HALF_SCALE
    return out


def bfloat_to_float(bits: Array) -> Array:
    """Converts bf16 bits (contiguous) to float32, exactly."""
    wide = bits.view(np.uint16).astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)


def _stack(registers: Sequence[Array], ctas: int, threads: int) -> Array:
    out = np.empty((len(registers), ctas, threads), np.uint32)
    for number, register in enumerate(registers):
        out[number] = register
    return out


def multiply(kind: str, a: Sequence[Array], b: Sequence[Array], steps: int, halves: int, threads: int) -> Array:
    """Multiplies A fragments by several columns of B fragments.

    Args:
        kind: Element type, ``f16`` or ``bf16``.
        a: Registers of A, ``steps * halves * 2``: for each K step the fragment's registers in PTX order.
        b: Registers of B, ``columns * steps * halves``: for each 16x8 output tile, for each K step.
        steps: Number of K steps.
        halves: Steps of 8 along K in an instruction: 2 for k16, 1 for k8.
        threads: Threads per CTA, a multiple of 32.

    Returns:
        float32 ``[columns * 4, 1 or ctas, threads]``: the D fragments without C; one row if all CTAs have the same.
    """
    widen = half_to_float if kind == "f16" else bfloat_to_float
    ctas = max(map(len, (*a, *b)))
    warps = ctas * threads // 32
    halves_in_depth = steps * halves
    columns, depth = len(b) // halves_in_depth, halves_in_depth * 8
    # Four lanes hold eight neighbouring values along K: 16 bytes that are moved as one element.
    lefts = _stack(a, ctas, threads).view(np.complex128).reshape(halves_in_depth, 2, warps, 8)
    rights = _stack(b, ctas, threads).view(np.complex128).reshape(columns, halves_in_depth, warps, 4, 2)
    out = np.empty((columns, 2, 2, warps, 8), np.complex128)
    some = max(1, _CACHED_BYTES // (columns * 8 * depth * 4))
    for start in range(0, warps, some):
        now = slice(start, start + some)
        left = widen(np.ascontiguousarray(lefts[:, :, now].transpose(2, 1, 3, 0))).reshape(-1, 16, depth)
        # The even columns of each tile come first, so that the results of four lanes are contiguous.
        right = widen(np.ascontiguousarray(rights[:, :, now].transpose(2, 0, 4, 3, 1))).reshape(-1, columns * 8, depth)
        product = np.matmul(left, right.transpose(0, 2, 1)).view(np.complex128).reshape(-1, 2, 8, columns, 2)
        out[:, :, :, now] = product.transpose(3, 1, 4, 0, 2)
    return out.view(np.float32).reshape(columns * 4, ctas, threads)


def add_each(product: Array, addends: Sequence[Array]) -> Array:
    """Adds an accumulator to each register of a product; in place if the product has as many CTAs."""
    ctas = max(map(len, addends))
    sums = product if ctas <= product.shape[1] else np.repeat(product, ctas, axis=1)
    for total, addend in zip(sums, addends, strict=True):
        np.add(total, addend, out=total)
    return sums
