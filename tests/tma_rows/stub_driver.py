"""A driver that records the arguments of ``cuTensorMapEncodeTiled``, compiled against the real ``cuda.h``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

from evoengine.kernel.tensor_maps import MAP_BYTES, TensorMapGeometry
from evoengine.model import DType

HEADER: Final = Path(__file__).parent / "stub_driver.h"
_STUB_MAP: Final = struct.Struct("<6B2xQ4Q3Q4I4I")
_DATA_TYPES: Final = {6: DType.FP16, 9: DType.BF16}
_SWIZZLES: Final = (0, 32, 64, 128)


def recorded(data: bytes) -> list[TensorMapGeometry]:
    """Reads maps that the stub encoded; arguments that no geometry has must be the documented ones."""
    found = []
    for at in range(0, len(data), MAP_BYTES):
        kind, rank, interleave, swizzle, promotion, fill, address, *numbers = _STUB_MAP.unpack_from(data, at)
        sizes, strides, box, elements = numbers[:4], numbers[4:7], numbers[7:11], numbers[11:]
        assert (rank, interleave, promotion, fill, elements) == (4, 0, 3, 0, [1, 1, 1, 1])
        parts: tuple[Any, ...] = tuple(map(tuple, (sizes, strides, box)))
        found.append(TensorMapGeometry(address, parts[0], parts[1], parts[2], _DATA_TYPES[kind], _SWIZZLES[swizzle]))
    return found
