"""Device memory of one call: the contents of each buffer before the call and the checks on it afterwards.

All devices use these contents. They differ in how they allocate memory and detect out-of-bounds accesses.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evoengine.errors import LaunchError
from evoengine.kernel.abi import BufferAddresses, Placement, pack_params
from evoengine.kernel.call import LSE_POISON_BITS, AttentionInputs, AttentionOutput
from evoengine.kernel.memory_layout import POISON_BITS, Shape, TensorLayout
from evoengine.kernel.records import Workspace

SCRATCH_BYTE: Final = 0xFF
"""Byte that fills a workspace before a call: NaN in every floating-point type."""


class Role(enum.Enum):
    """Permitted use of a buffer during a call."""

    INPUT = "input"
    """Read only; the contents must be unchanged afterwards."""
    OUTPUT = "output"
    """Written completely; filled with poison or with other results before the call."""
    SCRATCH = "scratch"
    """Written, and read only after writing."""
    COUNTERS = "counters"
    """Modified, and zero again after the call."""


@dataclass(frozen=True, eq=False)
class Region:
    """One buffer of a call with its initial contents."""

    name: str
    """Name of its field in :class:`~evoengine.kernel.abi.BufferAddresses`."""
    contents: NDArray[Any]
    """Initial contents, read-only; a uniform buffer is a broadcast of one element."""
    role: Role
    layout: TensorLayout | None = None
    """Layout of an output with gaps, which a kernel must not write to; else None."""
    shape: Shape = (0, 0, 0, 0)
    """Logical shape of an output with gaps."""

    def check(self, after: NDArray[np.uint8]) -> None:
        """Checks the buffer's bytes after a call.

        Raises:
            LaunchError: An input or a gap of an output changed, or a counter is not zero.
        """
        if self.role is Role.INPUT:
            changed = np.flatnonzero(after.view(self.contents.dtype) != self.contents.reshape(-1))
            if changed.size:
                raise LaunchError(f"the kernel changed its input {self.name.upper()}, first at element {changed[0]}")
        elif self.layout is not None:
            changed = np.flatnonzero(self.layout.gap_mask(self.shape) & (after.view(np.uint16) != POISON_BITS))
            if changed.size:
                where = self.layout.place_before(int(changed[0]), self.shape)
                raise LaunchError(
                    f"the kernel wrote {changed.size} elements into gaps of {self.name.upper()}, first behind {where}"
                )
        elif self.role is Role.COUNTERS:
            left = np.flatnonzero(after.view(np.uint32))
            if left.size:
                raise LaunchError(
                    f"the kernel left counter {left[0]} at {after.view(np.uint32)[left[0]]}, not 0: the next call "
                    "would start from there"
                )


def call_regions(
    inputs: AttentionInputs, workspace: Workspace, before: AttentionOutput | None = None
) -> tuple[Region, ...]:
    """Returns the buffers that one call of the problem and its launch need.

    Args:
        inputs: Inputs; their arrays become regions without a copy.
        workspace: Further memory that the launch needs.
        before: Contents of the outputs before the call; None for poison.
    """
    problem = inputs.problem
    found: list[tuple[str, NDArray[Any], Role]] = [
        ("q", inputs.q_memory, Role.INPUT),
        ("k", inputs.k_memory, Role.INPUT),
        ("v", inputs.v_memory, Role.INPUT),
    ]
    if problem.lse and before is not None and before.lse is not None:
        found.append(("lse", np.ascontiguousarray(before.lse).view(np.uint32), Role.OUTPUT))
    elif problem.lse:
        found.append(("lse", _uniform(LSE_POISON_BITS, inputs.lse_shape, np.uint32), Role.OUTPUT))
    if inputs.sink is not None:
        found.append(("sink", inputs.sink.view(np.uint32), Role.INPUT))
    if problem.packed:
        found.append(("cu_seqlens_q", inputs.cu_seqlens_q, Role.INPUT))
        found.append(("cu_seqlens_kv", inputs.cu_seqlens_kv, Role.INPUT))
    if workspace.bytes:
        found.append(("workspace", _uniform(SCRATCH_BYTE, (workspace.bytes,), np.uint8), Role.SCRATCH))
    if workspace.counters:
        found.append(("counters", np.zeros(workspace.counters, np.uint32), Role.COUNTERS))
    return (_output_region(inputs, before), *(Region(name, contents, role) for name, contents, role in found))


def _output_region(inputs: AttentionInputs, before: AttentionOutput | None) -> Region:
    layout, shape = inputs.layout.o, inputs.output_shape
    contents = _uniform(POISON_BITS, (layout.elements(shape),), np.uint16) if before is None else layout.place(before.o)
    return Region("o", contents, Role.OUTPUT, None if layout.dense else layout, shape)


def _uniform(value: int, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    return np.broadcast_to(dtype(value), shape)


def call_params(inputs: AttentionInputs, addresses: Mapping[str, int]) -> np.ndarray:
    """Returns the parameter block of a call.

    Args:
        inputs: Inputs, which determine the problem, the strides and the softmax scale.
        addresses: Device addresses by name of the region.
    """
    rows, keys, layout = inputs.output_shape, inputs.kv_shape, inputs.layout
    strides = {
        "q": layout.q.strides(rows),
        "k": layout.k.strides(keys),
        "v": layout.v.strides(keys),
        "o": layout.o.strides(rows),
    }
    q, k, v, o = (Placement(addresses[name], strides[name]) for name in strides)
    others = {name: address for name, address in addresses.items() if name not in strides}
    return pack_params(inputs.problem, BufferAddresses(q, k, v, o, **others), inputs.scale)


def call_output(inputs: AttentionInputs, after: Mapping[str, NDArray[np.uint8]]) -> AttentionOutput:
    """Returns the outputs of a call from the bytes of its regions afterwards."""
    lse = call_lse(inputs, after) if inputs.problem.lse else None
    return AttentionOutput(inputs.logical_output(after["o"].view(np.uint16)), lse)


def call_lse(inputs: AttentionInputs, after: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Returns the log-sum-exp of a call, as :func:`call_output` does."""
    return after["lse"].view(np.float32).reshape(inputs.lse_shape)
