"""Encoding of tensor maps by the CUDA driver, through ctypes. Needs neither torch nor a CUDA context.

Bindings that keep a map in a Python object cannot align it as the driver requires.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAP_BYTES: Final = 128
"""Size of an encoded map."""
_UNIT_BYTES: Final = 16
"""Strides of a map are multiples of this."""
_MAP_ALIGNMENT: Final = 128
"""Alignment of ``CUtensorMap`` since CUDA 13; 64 before."""
# Numbers of cuda.h's enumerations.
_MAP_FP16: Final = 6
_MAP_BF16: Final = 9
_MAP_SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
_MAP_L2_PROMOTION_128B: Final = 2
"""With 256 bytes, kernels that reads of K and V bound were up to 7 % slower (``tensor-map-promotion-h200.md``)."""

Shape = tuple[int, int, int, int]
Steps = tuple[int, int, int]


@dataclass(frozen=True)
class MapAxes:
    """Axes of a tensor map, innermost first, and the box that one copy moves."""

    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    """Strides of all axes but the first, whose elements are contiguous."""
    box: tuple[int, ...]


def map_axes(sizes: Shape, strides_bytes: Steps, box_rows: int, box_columns: int, group: int = 0) -> MapAxes:
    """Returns the axes of a tensor: head_dim, rows, heads, batch.

    With a ``group`` they are head_dim, heads of a group, rows, groups, batch, and a box holds all heads of a group for
    as many rows as fit: its rows in shared memory are row · group + head.

    Args:
        sizes: Sizes of head_dim, rows, heads and batch.
        strides_bytes: Strides of rows, heads and batch entries; those of a single entry may have any value.
        box_rows: Most rows of a box in shared memory.
        box_columns: Elements of each of them.
        group: Heads that share a box; 0 for boxes of one head.
    """
    columns, rows, heads, batch = sizes
    row, head, entry = strides_bytes
    axes: tuple[int, ...] = sizes
    steps: tuple[int, ...] = strides_bytes
    box: tuple[int, ...] = (box_columns, box_rows, 1, 1)
    if group:
        axes = (columns, group, rows, heads // group, batch)
        steps, box = (head, row, group * head, entry), (box_columns, group, box_rows // group, 1, 1)
    # The stride of a single entry is never used, but must be valid.
    used = tuple(_UNIT_BYTES if size == 1 else step for size, step in zip(axes[1:], steps, strict=True))
    return MapAxes(axes, used, box)


@dataclass(frozen=True)
class MapGeometry:
    """Arguments of ``cuTensorMapEncodeTiled`` except the address; see :func:`map_axes`."""

    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    bf16: bool
    """Whether elements are bf16, else fp16."""
    swizzle_bytes: int


class MapBlock:
    """Aligned host memory for the maps of one kernel argument.

    Args:
        count: Number of maps.
    """

    def __init__(self, count: int) -> None:
        self._memory = ctypes.create_string_buffer(count * MAP_BYTES + _MAP_ALIGNMENT)
        self.address = -(-ctypes.addressof(self._memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT

    def place(self, index: int) -> int:
        """Returns the address of a map."""
        return self.address + index * MAP_BYTES

    def read(self) -> bytes:
        """Returns the bytes of all maps."""
        count = (len(self._memory) - _MAP_ALIGNMENT) // MAP_BYTES
        return ctypes.string_at(self.address, count * MAP_BYTES)


def map_encoder(cuda: Any, geometry: MapGeometry) -> Callable[[int, int], int]:
    """Returns ``encode(place, address)``, which writes the map of a tensor and returns the driver's status.

    Elements outside the tensor are read as zero and not written.

    Args:
        cuda: The CUDA driver's library, ``libcuda.so.1``.
        geometry: Geometry of the tensor.
    """
    encode, pointer = cuda.cuTensorMapEncodeTiled, ctypes.c_void_p
    element, rank = (_MAP_BF16 if geometry.bf16 else _MAP_FP16), len(geometry.sizes)
    rest = (
        (ctypes.c_uint64 * rank)(*geometry.sizes),
        (ctypes.c_uint64 * (rank - 1))(*geometry.strides_bytes),
        (ctypes.c_uint32 * rank)(*geometry.box),
        (ctypes.c_uint32 * rank)(*[1] * rank),  # strides of the elements of a box
        *(0, _MAP_SWIZZLES[geometry.swizzle_bytes], _MAP_L2_PROMOTION_128B, 0),  # no interleave, zeros out of bounds
    )
    return lambda place, address: int(encode(pointer(place), element, rank, pointer(address), *rest))
