"""Tensor maps: descriptions of tensors in global memory that ``cp.async.bulk.tensor`` copies boxes of.

Only a CUDA driver can encode a real ``CUtensorMap``, whose format is not documented. The emulator has a format of its
own, of the same size, with a magic number. Source of the rules: CUDA driver API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Final

from evoengine.emulator.faults import EmulatorError, Fault, FaultKind

MAP_BYTES: Final = 128
"""Size of an encoded map."""
MAP_ALIGNMENT: Final = 64
"""Alignment of an encoded map, in bytes."""
MAX_RANK: Final = 5
_MAGIC: Final = b"EvoTMap1"
_LAYOUT: Final = struct.Struct("<8s3B5xQ5Q4Q5H")
_GRANULE: Final = 16
"""Alignment of addresses, strides and the inner size of a box, in bytes."""
_MAX_BOX: Final = 256
_MAX_SIZE: Final = 1 << 32
_MAX_STRIDE: Final = 1 << 40
_ELEMENT_BYTES: Final = (1, 2, 4, 8)
_SWIZZLES: Final = (0, 32, 64, 128)


@dataclass(frozen=True)
class TensorMap:
    """A tensor in global memory and the box of it that one copy moves; dimensions are innermost first.

    Attributes:
        address: Global address of the first element, a multiple of 16.
        sizes: Elements per dimension, for one to five dimensions.
        strides_bytes: Bytes between elements of dimensions 1 and up, multiples of 16; dimension 0 is contiguous.
        box: Elements of a box per dimension, at most 256.
        element_bytes: Bytes of an element: 1, 2, 4 or 8.
        swizzle_bytes: Span of the swizzle in shared memory: 0 (none), 32, 64 or 128 bytes.

    Raises:
        EmulatorError: ``cuTensorMapEncodeTiled`` would reject the map.
    """

    address: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    element_bytes: int
    swizzle_bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MAX_RANK:
            raise _invalid(f"{self.rank} dimensions; 1 to {MAX_RANK} are possible")
        if len(self.strides_bytes) != self.rank - 1 or len(self.box) != self.rank:
            raise _invalid(f"{self.rank} sizes need {self.rank - 1} strides and {self.rank} box sizes")
        if self.element_bytes not in _ELEMENT_BYTES or self.swizzle_bytes not in _SWIZZLES:
            raise _invalid(f"elements of {self.element_bytes} bytes with a swizzle of {self.swizzle_bytes} bytes")
        if not 0 < self.address < 1 << 64 or self.address % _GRANULE:
            raise _invalid(f"address {self.address:#x} is not a multiple of {_GRANULE}")
        self._check_sizes()

    def _check_sizes(self) -> None:
        for size in self.sizes:
            if not 1 <= size <= _MAX_SIZE:
                raise _invalid(f"size {size} of a dimension; 1 to 2^32 are possible")
        for stride in self.strides_bytes:
            if not 0 <= stride < _MAX_STRIDE or stride % _GRANULE:
                raise _invalid(f"stride of {stride} bytes; strides are multiples of {_GRANULE} below 2^40")
        for size in self.box:
            if not 1 <= size <= _MAX_BOX:
                raise _invalid(f"box size {size}; 1 to {_MAX_BOX} are possible")
        inner = self.box[0] * self.element_bytes
        if inner % _GRANULE:
            raise _invalid(f"rows of the box have {inner} bytes, not a multiple of {_GRANULE}")
        if self.swizzle_bytes and inner > self.swizzle_bytes:
            raise _invalid(f"rows of the box have {inner} bytes, more than the swizzle of {self.swizzle_bytes} bytes")

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def box_bytes(self) -> int:
        """Bytes that one copy moves, including elements out of bounds."""
        return math.prod(self.box) * self.element_bytes

    def encode(self) -> bytes:
        """The map as the 128 bytes that a kernel receives as a parameter."""
        strides = self.strides_bytes + (0,) * (MAX_RANK - self.rank)
        sizes, box = (values + (0,) * (MAX_RANK - self.rank) for values in (self.sizes, self.box))
        head = (_MAGIC, self.rank, self.element_bytes, self.swizzle_bytes)
        return _LAYOUT.pack(*head, self.address, *sizes, *strides, *box).ljust(MAP_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TensorMap:
        """Reads an encoded map.

        Args:
            data: The 128 bytes of the map.

        Raises:
            EmulatorError: The bytes are not a map that :meth:`encode` wrote.
        """
        if len(data) != MAP_BYTES or data[: len(_MAGIC)] != _MAGIC:
            raise _invalid("these bytes are no tensor map")
        _, rank, element_bytes, swizzle_bytes, address, *numbers = _LAYOUT.unpack_from(data)
        if not 1 <= rank <= MAX_RANK:
            raise _invalid(f"{rank} dimensions; 1 to {MAX_RANK} are possible")
        sizes, strides, box = numbers[:5], numbers[5:9], numbers[9:]
        return cls(
            address, tuple(sizes[:rank]), tuple(strides[: rank - 1]), tuple(box[:rank]), element_bytes, swizzle_bytes
        )


def _invalid(detail: str) -> EmulatorError:
    return EmulatorError(Fault(FaultKind.BAD_LAUNCH, f"tensor map: {detail}"))
