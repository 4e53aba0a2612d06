"""Device copies of the initial contents of large buffers, so that a call's memory is not filled from the host.

A search calls hundreds of kernels on the same few inputs. The inputs of a large problem exceed 100 MB, which take a
tenth of a second to copy and compare on the host but only tens of microseconds on the GPU. A faulty kernel can
overwrite device memory, so a copy is valid only while its checksum equals that of the bytes on the host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from evoengine.device.cuda.device_checksum import host_checksum
from evoengine.device.cuda.guard_bands import make_image
from evoengine.kernel.call_memory import Region, Role

Checksums = Callable[[Sequence[Any]], tuple[int, ...]]
"""Returns the checksums of byte arrays on the GPU after all earlier work is done."""

RESIDENT_BYTES: Final = 2**18
"""Size from which a buffer is kept on the GPU; smaller ones are filled and checked on the host equally fast."""

_KEPT_BYTES: Final = 2**30
_KEPT_SHARE: Final = 8


def kept_bytes_on(memory_bytes: int) -> int:
    """Returns the total size of the copies on a GPU with so much memory: an eighth of it, but 1 GiB at least.

    The inputs of the timed calls and those of the recheck should fit: otherwise each candidate copies them again.
    """
    return max(_KEPT_BYTES, memory_bytes // _KEPT_SHARE)


@dataclass(frozen=True, eq=False)
class ResidentInput:
    """One buffer's image on the GPU."""

    image: Any
    """A CuPy array of bytes, the guard bands included."""
    checksum: int
    """Checksum of the same bytes on the host."""
    contents: np.ndarray
    """Source array; it is held because its identity is the cache key."""


_Key = tuple[object, ...]


class ResidentInputs:
    """The images of large inputs and outputs.

    Args:
        cupy: The CuPy module.
        stream: Stream of all copies.
        open_checksums: Factory of the device's checksum function, called on first use; if it returns None, nothing is
            kept.
        resident_bytes: Size from which a buffer is kept.
        kept_bytes: Total size of all copies; the least recently used are evicted, and larger ones are never kept.
    """

    def __init__(
        self,
        cupy: Any,
        stream: Any,
        open_checksums: Callable[[], Checksums | None],
        resident_bytes: int = RESIDENT_BYTES,
        kept_bytes: int = _KEPT_BYTES,
    ) -> None:
        self._cupy = cupy
        self._stream = stream
        self._open_checksums = open_checksums
        self._resident_bytes = resident_bytes
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[_Key, ResidentInput] = OrderedDict()
        self.repaired = 0
        """Number of images that had been overwritten and were copied from the host again."""

    @property
    def kept(self) -> tuple[ResidentInput, ...]:
        """All copies on the GPU."""
        return tuple(self._kept.values())

    def is_resident(self, region: Region) -> bool:
        """Whether a buffer is filled and checked on the GPU; of outputs, only those that hold poison are."""
        return (
            (region.role is Role.INPUT or (region.role is Role.OUTPUT and not any(region.contents.strides)))
            and self._resident_bytes <= region.contents.nbytes <= self._kept_bytes
            and region.contents.nbytes % 4 == 0
            and self._checksums is not None
        )

    def fill(self, regions: Sequence[Region], arrays: Sequence[Any]) -> None:
        """Copies the initial contents of resident buffers to their arrays, guard bands included.

        An image that a faulty kernel has overwritten since its last use is detected and copied from the host again.
        """
        originals = [self._original(region) for region in regions]
        self._copy(originals, arrays)
        for region, array, overwritten in zip(regions, arrays, self._changed(originals, arrays), strict=True):
            if overwritten:
                self.repaired += 1
                self._kept.pop(_key(region), None)
                self._copy([self._original(region)], [array])

    def changed(self, regions: Sequence[Region], arrays: Sequence[Any]) -> tuple[bool, ...]:
        """Returns for each array whether its bits differ from those that :meth:`fill` copied there."""
        return self._changed([self._original(region) for region in regions], arrays)

    def checksums(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Returns the checksums of arrays whose buffers are resident, after all earlier work is done."""
        return self._checksums(arrays) if arrays and self._checksums is not None else ()

    def _changed(self, originals: Sequence[ResidentInput], arrays: Sequence[Any]) -> tuple[bool, ...]:
        if not originals or self._checksums is None:
            return ()
        found = self._checksums(arrays)
        return tuple(checksum != original.checksum for checksum, original in zip(found, originals, strict=True))

    @cached_property
    def _checksums(self) -> Checksums | None:
        return self._open_checksums()

    def _copy(self, originals: Sequence[ResidentInput], arrays: Sequence[Any]) -> None:
        for original, array in zip(originals, arrays, strict=True):
            array.data.copy_from_device_async(original.image.data, original.image.nbytes, self._stream)

    def _original(self, region: Region) -> ResidentInput:
        key = _key(region)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        image = make_image(region.contents)
        with self._stream:
            original = ResidentInput(self._cupy.asarray(image), host_checksum(image), region.contents)
        self._stream.synchronize()
        self._kept[key] = original
        while len(self._kept) > 1 and sum(kept.image.nbytes for kept in self._kept.values()) > self._kept_bytes:
            self._kept.popitem(last=False)
        return original


def _key(region: Region) -> _Key:
    """Identifies inputs by their array, and outputs, which all start as the same poison, by name and size."""
    if region.role is Role.INPUT:
        return (id(region.contents),)
    return (region.name, region.contents.nbytes)
