"""Generic addresses: where global memory and the windows of the other state spaces begin."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array

GLOBAL_BASE: Final = 0x7000_0000_0000
"""Address of the first byte of global memory."""
SHARED_WINDOW: Final = 0x7E00_0100_0000
"""Generic address of byte 0 of shared memory; its low 32 bits are not zero, so a truncated one is out of bounds."""
LOCAL_WINDOW: Final = 0x7D00_0100_0000
"""Generic address of byte 0 of every thread's local memory; its low 32 bits are not zero either."""
PARAM_WINDOW: Final = 0x7C00_0000_0000
"""Generic address of byte 0 of the parameter block."""


def shared_address(generic: Array) -> Array:
    """Converts generic addresses of shared memory to addresses in it, uint32."""
    return (generic - np.uint64(SHARED_WINDOW)).astype(np.uint32)
