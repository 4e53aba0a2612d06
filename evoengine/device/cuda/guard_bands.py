"""Device memory images with guard bands: their construction before a call and their check after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evoengine.device.protocols import GUARD_BYTE, GUARD_BYTES
from evoengine.errors import LaunchError
from evoengine.kernel.call_memory import Region

Image = NDArray[np.uint8]
"""Guard band, payload, guard band."""


def make_image(payload: NDArray[Any]) -> Image:
    """Returns the bytes of one buffer with its guard bands."""
    data = np.ascontiguousarray(payload).reshape(-1).view(np.uint8)
    image = np.full(data.size + 2 * GUARD_BYTES, GUARD_BYTE, np.uint8)
    image[GUARD_BYTES : GUARD_BYTES + data.size] = data
    return image


def check_bands(name: str, before: Image, after: Image) -> None:
    """Checks the guard bands of a buffer after a call.

    Raises:
        LaunchError: A guard band changed.
    """
    for side, band in (("before", before), ("after", after)):
        changed = int(np.count_nonzero(band != GUARD_BYTE))
        if changed:
            raise LaunchError(f"the kernel wrote {changed} bytes just {side} {name.upper()}")


def checked_payload(region: Region, image: Image) -> NDArray[np.uint8]:
    """Returns the bytes of a buffer after a call.

    Raises:
        LaunchError: A guard band changed, or the buffer violates its rule.
    """
    check_bands(region.name, image[:GUARD_BYTES], image[-GUARD_BYTES:])
    payload = image[GUARD_BYTES:-GUARD_BYTES]
    region.check(payload)
    return payload
