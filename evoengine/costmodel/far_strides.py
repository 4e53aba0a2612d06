"""A call whose tensors have strides such that offsets need more than 32 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evoengine.emulator.memory.far_memory import MOST_BATCH, MOST_HEADS, FarMemory
from evoengine.emulator.memory.global_memory import Buffer
from evoengine.kernel.call import AttentionInputs
from evoengine.model import Problem


def can_spread(problem: Problem) -> bool:
    """Returns whether the tensors of a problem fit into the addresses of a far memory."""
    return problem.memory_batch <= MOST_BATCH and problem.heads <= MOST_HEADS


def spread_tensors(
    inputs: AttentionInputs, memory: FarMemory, buffers: Mapping[str, Buffer], params: np.ndarray
) -> None:
    """Moves the rows of Q, K, V and O apart, and changes their addresses and strides in the parameter block."""
    layout, packed = inputs.layout, inputs.problem.packed
    rows, keys = inputs.output_shape, inputs.kv_shape
    for name, tensor, shape in (
        ("q", layout.q, rows),
        ("k", layout.k, keys),
        ("v", layout.v, keys),
        ("o", layout.o, rows),
    ):
        element = inputs.problem.dtype.bytes
        batch, head, row = (stride * element for stride in tensor.strides(shape))
        found = memory.spread(buffers[name], shape[:3], (batch, head, row), shape[3] * element)
        params[name] = found.address
        strides = (0 if packed else found.strides_bytes[0], *found.strides_bytes[1:])
        for axis, stride in zip(("batch", "head", "row"), strides, strict=True):
            params[f"{name}_{axis}_stride"] = stride // element
