"""The device memory of one call: every buffer with guard bands, reused when the call is replayed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from evoengine.device.cuda.guard_bands import Image, check_bands, checked_payload
from evoengine.device.cuda.resident_inputs import ResidentInputs
from evoengine.device.protocols import GUARD_BYTE, GUARD_BYTES
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.call_memory import SCRATCH_BYTE, Region, Role, call_lse, call_output, call_params, call_regions
from evoengine.kernel.memory_layout import TensorLayout
from evoengine.kernel.records import Workspace
from evoengine.kernel.variation import Variation

_PINNED_BYTES: Final = range(2**20, 2**28)
"""Image sizes that are copied to the host through pinned memory, which is faster but scarce."""

_TENSORS: Final = ("q", "k", "v")
"""Buffers of a call that a variation changes, besides the sink."""

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
        resident_inputs: The device's copies of large initial contents.
        before: Initial contents of the outputs; None for poison.
    """

    def __init__(
        self,
        cupy: Any,
        stream: Any,
        inputs: AttentionInputs,
        workspace: Workspace,
        resident_inputs: ResidentInputs,
        before: AttentionOutput | None = None,
    ) -> None:
        self._cupy = cupy
        self._stream = stream
        self._inputs = inputs
        self._workspace = workspace
        self._resident = resident_inputs
        self._varied: dict[str, int] = {}
        """Checksums of the inputs that were varied on the GPU."""
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

    def vary(self, base: AttentionInputs, variation: Variation) -> None:
        """Does what :meth:`renew` does with a variation of inputs; large ones are varied on the GPU.

        Raises:
            ValueError: The inputs have another problem, layout or softmax scale.
        """
        regions = {region.name: region for region in call_regions(base, self._workspace)}
        if not all(self._resident.is_resident(regions[name]) for name in _TENSORS):
            self.renew(variation.inputs(base))
            return
        self.renew(replace(base, sink=variation.sink(base.sink)))
        with self._stream:
            tensors = [self._logical(name) for name in _TENSORS]
            for tensor, varied in zip(tensors, variation.on(self._cupy).tensors(*tensors), strict=True):
                tensor[...] = varied
        checksums = self._resident.checksums([self._arrays[name] for name in _TENSORS])
        self._varied = dict(zip(_TENSORS, checksums, strict=True))

    def _replace(self, inputs: AttentionInputs, roles: Collection[Role]) -> None:
        if _captured(inputs) != _captured(self._inputs):
            raise ValueError(f"{inputs.problem.key} does not fit in the buffers of {self._inputs.problem.key}")
        self._inputs = inputs
        self._varied = {}
        self._regions = call_regions(inputs, self._workspace)
        self._fill([region for region in self._regions if region.role in roles])

    def output(self) -> AttentionOutput:
        """Checks all buffers and copies the output to the host.

        Raises:
            LaunchError: A guard band or an input changed, or a counter is not zero.
        """
        return call_output(self._inputs, self._checked(()))

    def output_on_gpu(self) -> AttentionOutput:
        """Checks all buffers and returns the output in CuPy arrays; without gaps, O is not copied to the host.

        Raises:
            LaunchError: A guard band or an input changed, or a counter is not zero.
        """
        layout, lse = self._inputs.layout.o, None
        after = self._checked(("o",) if layout.dense else ())
        if layout.dense:
            self._check_bands("o")
        if self._inputs.problem.lse:
            lse = self._cupy.asarray(call_lse(self._inputs, after))
        return AttentionOutput(self._logical("o"), lse)

    @property
    def outputs_on_gpu(self) -> tuple[Any, ...]:
        """The bytes of all outputs, with their guard bands."""
        return tuple(self._arrays[region.name] for region in self._regions if region.role is Role.OUTPUT)

    def _checked(self, left_out: Collection[str]) -> dict[str, Image]:
        """Checks the buffers, and returns the bytes of those that were copied to the host."""
        resident = [region for region in self._regions if self._is_unchanged_on_gpu(region)]
        changed = self._resident.changed(resident, [self._arrays[region.name] for region in resident])
        sound = {region.name for region, wrong in zip(resident, changed, strict=True) if not wrong}
        self._check_varied()
        after = {}
        for region in self._regions:
            if region.name in sound or region.name in self._varied or region.name in left_out:
                continue
            if _is_large_scratch(region):
                self._check_bands(region.name)
            else:
                after[region.name] = checked_payload(region, self._fetch(self._arrays[region.name]))
        return after

    def _check_bands(self, name: str) -> None:
        array = self._arrays[name]
        check_bands(name, self._fetch(array[:GUARD_BYTES]), self._fetch(array[-GUARD_BYTES:]))

    def _check_varied(self) -> None:
        """Checks that inputs that were varied on the GPU, and their guard bands, are unchanged."""
        found = self._resident.checksums([self._arrays[name] for name in self._varied])
        for (name, checksum), now in zip(self._varied.items(), found, strict=True):
            if now != checksum:
                raise LaunchError(f"the kernel changed its input {name.upper()}, or wrote just beside it")

    def _is_unchanged_on_gpu(self, region: Region) -> bool:
        """Whether a buffer is compared, on the GPU, with the device's copy of its initial contents."""
        return region.role is Role.INPUT and region.name not in self._varied and self._resident.is_resident(region)

    def _logical(self, name: str) -> Any:
        """Returns the logical view of a tensor's buffer, uint16 ``[batch, heads, seq, head_dim]``."""
        layout: TensorLayout = getattr(self._inputs.layout, name)
        shape = self._inputs.output_shape if name in ("q", "o") else self._inputs.kv_shape
        elements = self._arrays[name][GUARD_BYTES:-GUARD_BYTES].view(np.uint16)
        strides = tuple(stride * elements.itemsize for stride in (*layout.strides(shape), 1))
        return self._cupy.lib.stride_tricks.as_strided(elements, shape, strides)

    def _empty(self, region: Region) -> Any:
        return self._cupy.empty(region.contents.nbytes + 2 * GUARD_BYTES, self._cupy.uint8)

    def _fill(self, regions: Sequence[Region]) -> None:
        """Fills buffers with their initial contents and waits for the copies."""
        resident = [region for region in regions if self._resident.is_resident(region)]
        self._resident.fill(resident, [self._arrays[region.name] for region in resident])
        sources = [self._fill_from_host(region) for region in regions if region not in resident]
        self._stream.synchronize()
        del sources  # held until they are copied

    def _fill_from_host(self, region: Region) -> np.ndarray:
        """Enqueues the copies that fill one buffer and its guard bands, and returns their source."""
        array = self._arrays[region.name]
        array.data.memset_async(GUARD_BYTE, array.nbytes, self._stream)
        if _is_large_scratch(region):
            (array.data + GUARD_BYTES).memset_async(SCRATCH_BYTE, region.contents.nbytes, self._stream)
            return region.contents
        payload = np.ascontiguousarray(region.contents).reshape(-1).view(np.uint8)
        array[GUARD_BYTES:-GUARD_BYTES].set(payload, stream=self._stream)
        return payload

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
    """Returns the contents of a call's parameter block besides addresses, which a captured graph cannot change."""
    return inputs.problem, inputs.layout, inputs.softmax_scale


def _is_large_scratch(region: Region) -> bool:
    return region.role is Role.SCRATCH and region.contents.nbytes >= _LARGE_SCRATCH_BYTES
