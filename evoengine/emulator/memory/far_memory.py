"""Global memory in which the rows of some tensors are so far apart that their offsets do not fit 32 bits.

Large caches of keys have such offsets. A kernel sees each row at a distant address; the bytes between rows do not
exist, and an access to them is a fault. In the emulator's memory the rows lie close together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.memory.address_space import GLOBAL_BASE
from evoengine.emulator.memory.global_memory import Buffer, Symbols
from evoengine.emulator.memory.uniform_memory import UniformMemory

Axes = tuple[int, int, int]
"""One number for each axis: batch, head, row."""

_FIRST: Final = GLOBAL_BASE + (1 << 40)
_SPAN_BYTES: Final = 1 << 41
"""Addresses that one tensor takes."""
_HEAD_BYTES: Final = 1 << 36
MOST_HEADS: Final = 8
MOST_BATCH: Final = 4
_ODD_BYTES: Final = 1 << 12
"""Difference of row strides from powers of two, so that an offset without its upper bits points at no row."""
_OFF_BYTES: Final = 16
"""Offset of a tensor's first row from a multiple of 256: kernels may rely on an alignment of 16 bytes only."""
_LARGEST_ROW_BYTES: Final = (1 << 28) + _ODD_BYTES
"""Strides of rows stay within 32 bits, as in the kernels' parameters; from row 16 on, the offset does not."""


@dataclass(frozen=True)
class FarTensor:
    """Where a kernel sees the rows of a tensor, and where they are."""

    address: int
    """Address of the first row, as a kernel sees it."""
    strides_bytes: Axes
    sizes: Axes
    row_bytes: int
    """Bytes of a row, which are contiguous."""
    near: int
    near_strides_bytes: Axes

    def holds(self, address: Array) -> Array:
        """Whether addresses are in the range of the tensor."""
        return np.asarray((address >= self.address) & (address < self.address + _SPAN_BYTES))

    def translated(self, address: Array) -> Array:
        """Returns where the bytes at addresses of the range are; those between rows are left as they are."""
        left = (address - np.uint64(self.address)).view(np.int64)
        found, inside = np.asarray(self.near), left >= 0
        axes = zip(self.strides_bytes, self.sizes, self.near_strides_bytes, strict=True)
        for stride, size, near in axes:
            # Most strides are powers of two, and a shift takes a fraction of the time of a division.
            number = left >> stride.bit_length() - 1 if stride.bit_count() == 1 else left // stride
            left = left - number * stride
            inside &= number < size
            found = found + number * near
        inside &= left < self.row_bytes
        if inside.all():
            return np.asarray(found + left).view(np.uint64)
        return np.where(inside, (found + left).astype(np.uint64), address)


class FarMemory(UniformMemory):
    """A :class:`~evoengine.emulator.memory.uniform_memory.UniformMemory` with tensors of large strides."""

    def __init__(self, symbols: Symbols | None = None) -> None:
        super().__init__(symbols)
        self._tensors: list[FarTensor] = []

    def spread(self, buffer: Buffer, sizes: Axes, near_strides_bytes: Axes, row_bytes: int) -> FarTensor:
        """Moves the rows of a tensor apart, for kernels.

        Args:
            buffer: Allocation with the tensor's elements.
            sizes: Batch entries, at most :data:`MOST_BATCH`, heads, at most :data:`MOST_HEADS`, and rows.
            near_strides_bytes: Strides within the buffer.
            row_bytes: Bytes of a row.

        Raises:
            ValueError: There are too many batch entries or heads.
        """
        if sizes[0] > MOST_BATCH or sizes[1] > MOST_HEADS:
            raise ValueError(f"at most {MOST_BATCH} batch entries of {MOST_HEADS} heads, not {sizes}")
        row = min(_LARGEST_ROW_BYTES, (_HEAD_BYTES >> math.ceil(math.log2(max(1, sizes[2])))) - _ODD_BYTES)
        strides = (_HEAD_BYTES * MOST_HEADS, _HEAD_BYTES, row)
        start = _FIRST + _OFF_BYTES + len(self._tensors) * _SPAN_BYTES
        self._tensors.append(FarTensor(start, strides, sizes, row_bytes, buffer.address, near_strides_bytes))
        return self._tensors[-1]

    def index(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        """Word index of every lane's address; see :meth:`GlobalMemory.index`."""
        tensor = self._only_tensor(address)
        if tensor is None and mask is not None and mask.any():  # inactive lanes may hold any address
            active = np.broadcast_to(mask, np.broadcast_shapes(address.shape, mask.shape))
            wide = np.broadcast_to(address, active.shape)
            address = np.where(active, wide, wide[np.unravel_index(int(active.argmax()), active.shape)])
            tensor = self._only_tensor(address)
        if tensor is not None:
            return super().index(tensor.translated(address), size, mask, site)
        for tensor in self._tensors:
            within = tensor.holds(address)
            if within.any():
                address = np.where(within, tensor.translated(address), address)
        return super().index(address, size, mask, site)

    def _only_tensor(self, address: Array) -> FarTensor | None:
        """The tensor whose range holds all addresses; None without one."""
        lowest, highest = int(address.min()), int(address.max())
        return next(
            (one for one in self._tensors if one.address <= lowest and highest < one.address + _SPAN_BYTES), None
        )
