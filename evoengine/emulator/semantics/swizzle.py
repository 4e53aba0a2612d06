"""Swizzles of shared memory that tensor maps and ``wgmma`` descriptors name by their span in bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array

_CHUNK: Final = 16
_LINE_BITS: Final = 7


def swizzled(address: Array, span: int) -> Array:
    """Shared-memory addresses of swizzled data.

    A swizzle XORs the number of a 16-byte chunk with address bits from bit 7 on: three bits for a span of 128 bytes,
    two for 64, one for 32. Source: PTX ISA 9.0, "Swizzling modes".

    Args:
        address: Addresses without the swizzle, int64.
        span: 32, 64 or 128 bytes; 0 for no swizzle.
    """
    if span == 0:
        return address
    return np.asarray(address ^ ((address >> _LINE_BITS) & (span // _CHUNK - 1)) << 4)
