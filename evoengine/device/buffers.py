"""All memory of one call on a GPU, each buffer with guard bands; reused when the call is replayed."""

from __future__ import annotations

from typing import Any

from evoengine.device.base import GUARD_BYTES
from evoengine.device.guard import checked_payload, make_image
from evoengine.kernel.artifact import Workspace
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.call_memory import Role, call_output, call_params, call_regions


class GpuBuffers:
    """The buffers of one call.

    Args:
        cupy: the CuPy module.
        stream: on which everything is copied.
        inputs: what is in them first.
        workspace: what the kernel needs besides.
    """

    def __init__(self, cupy: Any, stream: Any, inputs: AttentionInputs, workspace: Workspace) -> None:
        self._stream = stream
        self._inputs = inputs
        self._workspace = workspace
        self._regions = call_regions(inputs, workspace)
        with stream:
            self._arrays = {region.name: cupy.asarray(make_image(region.contents)) for region in self._regions}
        stream.synchronize()
        addresses = {name: int(array.data.ptr) + GUARD_BYTES for name, array in self._arrays.items()}
        self.params = call_params(inputs, addresses)

    def refill(self, inputs: AttentionInputs) -> None:
        """Puts other inputs in place, and poison into the outputs; workspace and counters stay as calls left them.

        Raises:
            ValueError: they are of another problem or layout.
        """
        if (inputs.problem, inputs.layout) != (self._inputs.problem, self._inputs.layout):
            raise ValueError(f"{inputs.problem.key} does not fit in the buffers of {self._inputs.problem.key}")
        self._inputs = inputs
        self._regions = call_regions(inputs, self._workspace)
        fresh = [region for region in self._regions if region.role in (Role.INPUT, Role.OUTPUT)]
        images = [make_image(region.contents) for region in fresh]  # held until they are copied
        for region, image in zip(fresh, images, strict=True):
            self._arrays[region.name].set(image, stream=self._stream)
        self._stream.synchronize()

    def output(self) -> AttentionOutput:
        """Checks all buffers and fetches what the call wrote.

        Raises:
            LaunchError: a guard band or an input changed, or a counter is not zero.
        """
        with self._stream:
            images = {name: array.get(stream=self._stream) for name, array in self._arrays.items()}
        self._stream.synchronize()
        after = {region.name: checked_payload(region, images[region.name]) for region in self._regions}
        return call_output(self._inputs, after)
