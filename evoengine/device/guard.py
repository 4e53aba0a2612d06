"""Device memory images with guard bands, shared by all devices: what goes up, and what must still be there after."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evoengine.device.base import GUARD_BYTE, GUARD_BYTES
from evoengine.errors import LaunchError
from evoengine.kernel.call import POISON_BITS, AttentionInputs, Bits

Image = NDArray[np.uint8]
"""Guard band, payload, guard band."""

TENSORS = ("q", "k", "v", "o")


def make_image(payload: Bits) -> Image:
    """The bytes of one buffer with its guard bands."""
    data = np.ascontiguousarray(payload).reshape(-1).view(np.uint8)
    image = np.full(data.size + 2 * GUARD_BYTES, GUARD_BYTE, np.uint8)
    image[GUARD_BYTES : GUARD_BYTES + data.size] = data
    return image


def input_images(inputs: AttentionInputs) -> dict[str, Image]:
    """The images of Q, K, V and of the poisoned O, by name."""
    output = np.full(int(np.prod(inputs.output_shape)), POISON_BITS, np.uint16)
    payloads = (inputs.q_memory, inputs.k_memory, inputs.v_memory, output)
    return {name: make_image(payload) for name, payload in zip(TENSORS, payloads, strict=True)}


def check_images(before: dict[str, Image], after: dict[str, Image]) -> None:
    """Compares images after a launch with those before it.

    Raises:
        LaunchError: a guard band changed, or an input did.
    """
    for name in TENSORS:
        old, new = before[name], after[name]
        for side, band in (("before", slice(None, GUARD_BYTES)), ("after", slice(-GUARD_BYTES, None))):
            changed = np.flatnonzero(old[band] != new[band])
            if changed.size:
                raise LaunchError(f"the kernel wrote {changed.size} bytes just {side} {name.upper()}")
        if name != "o" and not np.array_equal(old, new):
            first = int(np.flatnonzero(old != new)[0]) - GUARD_BYTES
            raise LaunchError(f"the kernel changed its input {name.upper()}, first at byte {first}")


def output_bits(inputs: AttentionInputs, image: Image) -> Bits:
    """The logical output held in an image of O."""
    return inputs.logical_output(image[GUARD_BYTES:-GUARD_BYTES].view(np.uint16))
