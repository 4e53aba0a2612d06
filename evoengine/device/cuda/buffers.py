"""The device memory of one call: every buffer with guard bands, reused when the call is replayed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np

from evoengine.device.cuda.guard_bands import Image, check_bands, checked_payload, make_image
from evoengine.device.cuda.resident_inputs import ResidentInputs
from evoengine.device.protocols import GUARD_BYTE, GUARD_BYTES
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.call_memory import SCRATCH_BYTE, Region, Role, call_output, call_params, call_regions
from evoengine.kernel.records import Workspace

_PINNED_BYTES: Final = range(2**20, 2**28)
"""Image sizes that are copied to the host through pinned memory, which is faster but scarce."""

_LARGE_SCRATCH_BYTES: Final = 2**20
"""Size from which a workspace is never copied to the host: only its guard bands are checked."""


class GpuBuffers:
    """The buffers of one call.

    Large inputs and workspaces are filled and checked on the GPU; everything else goes through the host.

    Args:
        cupy: The CuPy module.
        stream: Stream of all copies.
        inputs: Initial contents.
        workspace: Further memory that the kernel needs.
        originals: The device's copies of large initial contents.
        before: Initial contents of the outputs; None for poison.
    """

    def __init__(
        self,
        cupy: Any,
        stream: Any,
        inputs: AttentionInputs,
        workspace: Workspace,
        originals: ResidentInputs,
        before: AttentionOutput | None = None,
    ) -> None:
        self._cupy = cupy
        self._stream = stream
        self._inputs = inputs
        self._workspace = workspace
        self._originals = originals
        self._regions = call_regions(inputs, workspace, before)
        with stream:
            self._arrays = {region.name: self._empty(region) for region in self._regions}
        self._fill(self._regions)
        addresses = {name: int(array.data.ptr) + GUARD_BYTES for name, array in self._arrays.items()}
        self.params = call_params(inputs, addresses)

    def refill(self, inputs: AttentionInputs) -> None:
        """Replaces the inputs and poisons the outputs; workspace and counters keep their contents.

        Raises:
            ValueError: The inputs have another problem, layout or softmax scale.
        """
        self._replace(inputs, (Role.INPUT, Role.OUTPUT))

    def renew(self, inputs: AttentionInputs) -> None:
        """Replaces the inputs and fills all other buffers as before a first call.

        Raises:
            ValueError: The inputs have another problem, layout or softmax scale.
        """
        self._replace(inputs, tuple(Role))

    def _replace(self, inputs: AttentionInputs, roles: Collection[Role]) -> None:
        if _captured(inputs) != _captured(self._inputs):
            raise ValueError(f"{inputs.problem.key} does not fit in the buffers of {self._inputs.problem.key}")
        self._inputs = inputs
        self._regions = call_regions(inputs, self._workspace)
        self._fill([region for region in self._regions if region.role in roles])

    def output(self) -> AttentionOutput:
        """Checks all buffers and copies the output to the host.

        Raises:
            LaunchError: A guard band or an input changed, or a counter is not zero.
        """
        resident = [region for region in self._regions if self._is_unchanged_on_gpu(region)]
        changed = self._originals.changed(resident, [self._arrays[region.name] for region in resident])
        sound = {region.name for region, wrong in zip(resident, changed, strict=True) if not wrong}
        after = {}
        for region in self._regions:
            array = self._arrays[region.name]
            if region.name in sound:
                continue
            if _is_large_scratch(region):
                check_bands(region.name, self._fetch(array[:GUARD_BYTES]), self._fetch(array[-GUARD_BYTES:]))
            else:
                after[region.name] = checked_payload(region, self._fetch(array))
        return call_output(self._inputs, after)

    def _is_unchanged_on_gpu(self, region: Region) -> bool:
        """Whether the check for changes of a buffer runs on the GPU."""
        return region.role is Role.INPUT and self._originals.is_resident(region)

    def _empty(self, region: Region) -> Any:
        return self._cupy.empty(region.contents.nbytes + 2 * GUARD_BYTES, self._cupy.uint8)

    def _fill(self, regions: Sequence[Region]) -> None:
        """Fills buffers with their initial contents and waits for the copies."""
        resident = [region for region in regions if self._originals.is_resident(region)]
        self._originals.fill(resident, [self._arrays[region.name] for region in resident])
        images: list[Image] = []  # held until they are copied
        for region in regions:
            array = self._arrays[region.name]
            if _is_large_scratch(region):
                array.data.memset_async(GUARD_BYTE, array.nbytes, self._stream)
                (array.data + GUARD_BYTES).memset_async(SCRATCH_BYTE, region.contents.nbytes, self._stream)
            elif region not in resident:
                images.append(make_image(region.contents))
                array.set(images[-1], stream=self._stream)
        self._stream.synchronize()

    def _fetch(self, array: Any) -> Image:
        """Copies an array to the host after all earlier work is done."""
        if array.nbytes not in _PINNED_BYTES:
            image: Image = array.get(stream=self._stream)
        else:
            image = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(array.nbytes), np.uint8, array.nbytes)
            array.get(stream=self._stream, out=image)
        self._stream.synchronize()
        return image


def _captured(inputs: AttentionInputs) -> tuple[object, ...]:
    """Returns what the parameter block holds of a call besides addresses: a captured graph cannot change it."""
    return inputs.problem, inputs.layout, inputs.softmax_scale


def _is_large_scratch(region: Region) -> bool:
    return region.role is Role.SCRATCH and region.contents.nbytes >= _LARGE_SCRATCH_BYTES
