"""The small buffers of one call in one allocation, so that one copy fills all of them and one fetches them.

A copy between host and GPU takes some ten microseconds whatever its size, and a parity gate has six small cases with
up to nine buffers each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from evoengine.device.cuda.guard_bands import Image, write_payload
from evoengine.device.cuda.pinned_memory import fetch, host_image
from evoengine.device.protocols import GUARD_BYTE, GUARD_BYTES
from evoengine.kernel.call_memory import Region

PACKED_BYTES: Final = 2**18
"""Size from which a buffer has an allocation of its own."""

_ALIGNMENT_BYTES: Final = 512
"""Alignment of CuPy's allocations, which these buffers keep."""


class PackedBuffers:
    """Buffers with their guard bands, one after another in one array on the GPU.

    Args:
        cupy: The CuPy module.
        stream: Stream of all copies.
        regions: The buffers, in the order in which they lie.
    """

    def __init__(self, cupy: Any, stream: Any, regions: Sequence[Region]) -> None:
        self._cupy = cupy
        self._stream = stream
        self._spans: dict[str, slice] = {}
        end = 0
        for region in regions:
            start = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
            end = start + region.contents.nbytes + 2 * GUARD_BYTES
            self._spans[region.name] = slice(start, end)
        self._names = list(self._spans)
        with stream:
            self._array = cupy.empty(end, cupy.uint8)

    @property
    def names(self) -> Collection[str]:
        """Names of the buffers."""
        return self._names

    @property
    def arrays(self) -> Mapping[str, Any]:
        """The bytes of each buffer on the GPU, guard bands included."""
        return {name: self._array[span] for name, span in self._spans.items()}

    def fill(self, regions: Sequence[Region]) -> Image:
        """Enqueues one copy of the contents of neighbouring buffers.

        Returns:
            Its source, which must be held until it is done.

        Raises:
            ValueError: Another buffer lies between them.
        """
        names = [region.name for region in regions]
        place = self._names.index(names[0])
        if names != self._names[place : place + len(names)]:
            raise ValueError(f"the buffers {', '.join(names)} do not lie one after another")
        first, end = self._spans[names[0]].start, self._spans[names[-1]].stop
        source = host_image(self._cupy, end - first)
        source[:] = GUARD_BYTE
        for region in regions:
            span = self._spans[region.name]
            write_payload(source[span.start - first : span.stop - first], region.contents)
        self._array[first:end].set(source, stream=self._stream)
        return source

    def fetch(self) -> dict[str, Image]:
        """Copies all buffers to the host after all earlier work is done."""
        if not self._spans:
            return {}
        image = fetch(self._cupy, self._stream, self._array)
        return {name: image[span] for name, span in self._spans.items()}
