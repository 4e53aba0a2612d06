"""Memory of the host for copies from and to the GPU."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np

from evoengine.device.cuda.guard_bands import Image

_PINNED_BYTES: Final = range(int(os.environ.get("PINMIN", 2**16)), 2**28)
"""Sizes that are pinned, which copies faster; pinned memory is scarce."""


def host_image(cupy: Any, size_bytes: int) -> Image:
    """Returns memory with any contents, pinned where that pays; CuPy keeps pinned memory for later images."""
    if size_bytes not in _PINNED_BYTES:
        return np.empty(size_bytes, np.uint8)
    return np.frombuffer(cupy.cuda.alloc_pinned_memory(size_bytes), np.uint8, size_bytes)


def fetch(cupy: Any, stream: Any, array: Any) -> Image:
    """Copies an array of bytes to the host after all earlier work on the stream is done."""
    image = host_image(cupy, array.nbytes)
    array.get(stream=stream, out=image)
    stream.synchronize()
    return image
