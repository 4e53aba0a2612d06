"""``mma.sync`` on elements other than f16 and bf16: tf32, 8-bit integers, 8-bit floats and f64.

Fragment layouts are those of the PTX ISA. With ``g = lane / 4`` and ``t = lane % 4``, a 32-bit register of A or B holds
``E`` neighbours along K (1 tf32, 4 bytes) from ``E t`` on. The registers of A hold rows ``g`` and ``g + 8`` of the
first ``4 E`` columns, then of the next ``4 E``; those of B hold column ``g``. C and D hold rows ``g`` and ``g + 8``,
columns ``2t, 2t + 1``. f64 (``m8n8k4``) has only rows ``g``, and one element per register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.semantics.fp8 import FP8_VALUES

_DECODE: Final[dict[str, Callable[[Array], Array]]] = {
    "tf32": lambda bits: (bits & np.uint32(0xFFFFE000)).view(np.float32)[..., None].astype(np.float64),
    "s8": lambda bits: bits[..., None].view(np.int8).astype(np.float64),
    "u8": lambda bits: bits[..., None].view(np.uint8).astype(np.float64),
    "e4m3": lambda bits: FP8_VALUES["e4m3"][bits[..., None].view(np.uint8)],
    "e5m2": lambda bits: FP8_VALUES["e5m2"][bits[..., None].view(np.uint8)],
}


def _stack(registers: Sequence[Array], ctas: int, threads: int, dtype: type) -> Array:
    out: Array = np.empty((len(registers), ctas, threads), dtype)
    for number, register in enumerate(registers):
        out[number] = register
    return out


def multiply_form(kinds: tuple[str, str], a: Sequence[Array], b: Sequence[Array], ctas: int, threads: int) -> Array:
    """Product of one ``m16n8`` instruction without its addend, exact in f64: ``[4, ctas, threads]``.

    Args:
        kinds: Element types of A and B.
        a: Registers of A, uint32.
        b: Registers of B, half as many.
        ctas: CTAs in the batch.
        threads: Threads per CTA, a multiple of 32.
    """
    warps, chunks = ctas * threads // 32, len(b)
    raw = _stack(a, ctas, threads, np.uint32).reshape(chunks, 2, warps, 8, 4)
    left = _DECODE[kinds[0]](np.ascontiguousarray(raw.transpose(2, 1, 3, 0, 4))).reshape(warps, 16, -1)
    raw = _stack(b, ctas, threads, np.uint32).reshape(chunks, warps, 8, 4)
    right = _DECODE[kinds[1]](np.ascontiguousarray(raw.transpose(1, 2, 0, 3))).reshape(warps, 8, -1)
    product = np.matmul(left, right.transpose(0, 2, 1)).reshape(warps, 2, 8, 4, 2)
    return np.ascontiguousarray(product.transpose(1, 4, 0, 2, 3)).reshape(4, ctas, threads)


def multiply_f64(a: Array, b: Array, ctas: int, threads: int) -> Array:
    """Product of ``mma.m8n8k4`` on f64 without its addend: ``[2, ctas, threads]``."""
    warps = ctas * threads // 32
    left = _stack([a], ctas, threads, np.float64).reshape(warps, 8, 4)
    right = _stack([b], ctas, threads, np.float64).reshape(warps, 8, 4)
    product = np.matmul(left, right.transpose(0, 2, 1)).reshape(warps, 8, 4, 2)
    return np.ascontiguousarray(product.transpose(3, 0, 1, 2)).reshape(2, ctas, threads)


def add_s32(product: Array, addend: Array, saturates: bool) -> Array:
    """Sum of integers in a float type and of int32, wrapped to 32 bits or clamped; returned as uint32."""
    total = product.astype(np.int64) + addend
    if saturates:
        total = np.clip(total, -(2**31), 2**31 - 1)
    return total.astype(np.uint32)
