"""A driver that records the arguments of ``cuTensorMapEncodeTiled``, compiled against the real ``cuda.h``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

from evoengine.kernel.tensor_maps import MAP_BYTES, TensorMapGeometry
from evoengine.model import DType

HEADER: Final = Path(__file__).parent / "stub_driver.h"
_STUB_MAP: Final = struct.Struct("<6B2xQ5Q4Q5I5I")
_DATA_TYPES: Final = {6: DType.FP16, 9: DType.BF16}
_SWIZZLES: Final = (0, 32, 64, 128)


def recorded(data: bytes) -> list[TensorMapGeometry]:
    """Reads maps that the stub encoded; arguments that no geometry has must be the documented ones."""
    found = []
    for at in range(0, len(data), MAP_BYTES):
        kind, rank, interleave, swizzle, promotion, fill, address, *numbers = _STUB_MAP.unpack_from(data, at)
        sizes, strides, box, elements = numbers[:5], numbers[5:9], numbers[9:14], numbers[14:]
        assert (interleave, promotion, fill, elements[:rank]) == (0, 2, 0, [1] * rank)
        sizes, strides, box = sizes[:rank], strides[: rank - 1], box[:rank]
        parts: tuple[Any, ...] = tuple(map(tuple, (sizes, strides, box)))
        found.append(TensorMapGeometry(address, parts[0], parts[1], parts[2], _DATA_TYPES[kind], _SWIZZLES[swizzle]))
    return found
