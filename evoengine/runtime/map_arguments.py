"""Second arguments of kernels that copy with TMA: the tensor maps of a call, encoded once per addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from evoengine.runtime.call import POINTERS, Call, Strides
from evoengine.runtime.driver import CudaDriverError, Driver
from evoengine.runtime.map_encoding import MapBlock, MapGeometry, map_axes

_MOST_BLOCKS: Final = 256
"""Number of encoded arguments that a launcher keeps; the oldest is dropped."""
_ELEMENT_BYTES: Final = 2


@dataclass(frozen=True)
class MapBox:
    """One tensor map: the tensor, and the box of it that one copy moves."""

    tensor: str
    """``q``, ``k``, ``v`` or ``o``."""
    rows: int
    columns: int
    """Elements of ``head_dim``."""
    swizzle_bytes: int
    grouped: bool = False
    """Whether a box holds all query heads that share a K/V head."""


def map_geometry(box: MapBox, call: Call, strides: Strides) -> MapGeometry:
    """Returns the geometry of a call's tensor.

    Args:
        box: Map of the kernel.
        call: Call of the tensor.
        strides: Element strides of (batch, head, row) of the tensor.
    """
    queries = box.tensor in ("q", "o")
    rows, heads = (call.rows_q, call.heads) if queries else (call.rows_kv, call.kv_heads)
    sizes = (call.head_dim, rows, heads, 1 if call.packed else call.batch)
    entry, head, row = (stride * _ELEMENT_BYTES for stride in strides)
    group = heads // call.kv_heads if box.grouped else 0
    axes = map_axes(sizes, (row, head, entry), box.rows, box.columns, group)
    return MapGeometry(axes.sizes, axes.strides_bytes, axes.box, call.dtype == "bf16", box.swizzle_bytes)


class MapArguments:
    """The second argument of one launcher's calls.

    Args:
        driver: Driver that encodes the maps.
        call: Call of the launcher.
        boxes: Maps of the kernel, at least one.
        strides: Element strides of Q, K, V and O.
        arguments: Addresses of the kernel's two arguments; :meth:`pack` sets the second.
    """

    def __init__(
        self,
        driver: Driver,
        call: Call,
        boxes: tuple[MapBox, ...],
        strides: tuple[Strides, ...],
        arguments: ctypes.Array[Any],
    ) -> None:
        at = tuple("qkvo".index(box.tensor) for box in boxes)
        self._geometries = tuple(map_geometry(box, call, strides[i]) for box, i in zip(boxes, at, strict=True))
        self._encoders = tuple(driver.map_encoder(geometry) for geometry in self._geometries)
        self._names = tuple(box.tensor.upper() for box in boxes)
        self._at = at
        self._driver = driver
        self._blocks: dict[Any, MapBlock] = {}
        self.pack = self._packer(arguments)
        """Writes addresses into the parameter block like ``POINTERS.pack_into``, and sets the second argument."""

    def _packer(self, arguments: ctypes.Array[Any]) -> Callable[..., None]:
        key_of, find, write = itemgetter(*self._at), self._blocks.get, POINTERS.pack_into

        def pack(params: Any, offset: int, *addresses: int) -> None:
            """Writes the addresses of Q, K, V and O, and selects their maps."""
            block = find(key_of(addresses))
            if block is None:
                block = self._encode(addresses)
                if len(self._blocks) >= _MOST_BLOCKS:
                    del self._blocks[next(iter(self._blocks))]
                self._blocks[key_of(addresses)] = block
            arguments[1] = block.address
            write(params, offset, *addresses)

        return pack

    def _encode(self, addresses: tuple[int, ...]) -> MapBlock:
        block = MapBlock(len(self._at))
        for index, (at, encode) in enumerate(zip(self._at, self._encoders, strict=True)):
            status = encode(block.place(index), addresses[at])
            if status:
                raise CudaDriverError(
                    f"no tensor map of {self._names[index]} at {addresses[at]:#x}, {self._geometries[index]}: "
                    f"{self._driver.explain(status)}"
                )
        return block
