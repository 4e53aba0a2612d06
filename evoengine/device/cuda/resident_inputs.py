"""What large buffers hold before a call, kept on the GPU: a call's memory is then copied there, not from the host.

A search calls hundreds of kernels on the same few inputs. Those of a large problem are 100 MB and more, which take
the host a tenth of a second to copy and to compare, and the GPU some tens of microseconds. What lies on the GPU is open
to every kernel that writes where it must not; so a copy counts only while its digest is that of the bytes on the host.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from evoengine.device.cuda.device_checksum import host_digest
from evoengine.device.cuda.guard_bands import make_image
from evoengine.kernel.call_memory import Region, Role

Digests = Callable[[Sequence[Any]], tuple[int, ...]]
"""Takes arrays of bytes on the GPU, and returns their digests when all work before is done."""

RESIDENT_BYTES: Final = 2**22
"""Smaller buffers come from the host, and go back to it: that takes no longer there."""

KEPT_BYTES: Final = 2**30
"""What is kept on the GPU at most; what was used longest ago goes first, and what is larger is never kept."""


@dataclass(frozen=True, eq=False)
class ResidentInput:
    """One buffer's image on the GPU."""

    image: Any
    """A CuPy array of bytes, the guard bands included."""
    digest: int
    """Of the same bytes on the host."""
    contents: np.ndarray
    """Where they came from; held, since its identity is the key."""


_Key = tuple[object, ...]


class ResidentInputs:
    """The images of large inputs and outputs.

    Args:
        cupy: the CuPy module.
        stream: on which everything is copied.
        open_digests: makes those of this device when they are first needed; None where they cannot be made, and then
            nothing is kept.
        resident_bytes: size from which a buffer is kept.
        kept_bytes: all that is kept together.
    """

    def __init__(
        self,
        cupy: Any,
        stream: Any,
        open_digests: Callable[[], Digests | None],
        resident_bytes: int = RESIDENT_BYTES,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._cupy = cupy
        self._stream = stream
        self._open_digests = open_digests
        self._resident_bytes = resident_bytes
        self._kept_bytes = kept_bytes
        self._kept: OrderedDict[_Key, ResidentInput] = OrderedDict()
        self.mended = 0
        """Images that were no longer those of the host when they were needed."""

    @property
    def kept(self) -> tuple[ResidentInput, ...]:
        """All that lies on the GPU now."""
        return tuple(self._kept.values())

    def is_resident(self, region: Region) -> bool:
        """Whether a buffer is filled and checked on the GPU."""
        return (
            region.role in (Role.INPUT, Role.OUTPUT)
            and self._resident_bytes <= region.contents.nbytes <= self._kept_bytes
            and region.contents.nbytes % 4 == 0
            and self._digests is not None
        )

    def fill(self, regions: Sequence[Region], arrays: Sequence[Any]) -> None:
        """Puts what resident buffers hold before a call into their arrays, guard bands included.

        What a wild kernel did to an image since it was last used is noticed here, and mended from the host.
        """
        originals = [self._original(region) for region in regions]
        self._copy(originals, arrays)
        for region, array, spoilt in zip(regions, arrays, self._changed(originals, arrays), strict=True):
            if spoilt:
                self.mended += 1
                self._kept.pop(_key(region), None)
                self._copy([self._original(region)], [array])

    def changed(self, regions: Sequence[Region], arrays: Sequence[Any]) -> tuple[bool, ...]:
        """Which arrays no longer hold, to the bit, what :meth:`fill` put there."""
        return self._changed([self._original(region) for region in regions], arrays)

    def _changed(self, originals: Sequence[ResidentInput], arrays: Sequence[Any]) -> tuple[bool, ...]:
        if not originals or self._digests is None:
            return ()
        found = self._digests(arrays)
        return tuple(digest != original.digest for digest, original in zip(found, originals, strict=True))

    @cached_property
    def _digests(self) -> Digests | None:
        return self._open_digests()

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
            original = ResidentInput(self._cupy.asarray(image), host_digest(image), region.contents)
        self._stream.synchronize()
        self._kept[key] = original
        while len(self._kept) > 1 and sum(kept.image.nbytes for kept in self._kept.values()) > self._kept_bytes:
            self._kept.popitem(last=False)
        return original


def _key(region: Region) -> _Key:
    """Inputs are known by their array; outputs, which all begin as the same poison, by their size."""
    if region.role is Role.INPUT:
        return (id(region.contents),)
    return (region.name, region.contents.nbytes)
