"""A call whose tensors have strides such that offsets need more than 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evoengine.emulator.memory.far_memory import MOST_BATCH, MOST_HEADS, FarMemory
from evoengine.emulator.memory.global_memory import Buffer
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.memory_layout import TensorLayout

_FLOAT_BYTES: Final = 4
_LEAST_ROWS: Final = 16
"""Largest number of rows with offsets that fit 32 bits; with one row more, that of the last row does not."""

GROUPED: Final = 2
"""Heads per K/V head from which on a call also shows the offsets between the heads of a group."""

MANY_ROWS: Final = 96
"""Query rows above which most kernels have several query tiles, so that offsets of tiles need more than 32 bits too."""

LARGEST_TILE: Final = 256
"""Query rows above which all kernels have several query tiles."""


def can_spread(inputs: AttentionInputs) -> bool:
    """Returns whether offsets of rows and keys need more than 32 bits, and the tensors fit into a far memory."""
    problem = inputs.problem
    if min(problem.seq_q, problem.seq_kv) <= _LEAST_ROWS:
        return False
    return problem.memory_batch <= MOST_BATCH and problem.heads <= MOST_HEADS


def shown_heads(inputs: AttentionInputs) -> int:
    """Returns the query heads per K/V head, at most :data:`GROUPED`, if any wrong offset changes the output, else 0.

    The result is 0 for a single sequence, and if scores do not depend on Q and K.
    """
    problem = inputs.problem
    shows = inputs.softmax_scale != 0 and problem.batch > 1
    return min(GROUPED, problem.heads // problem.kv_heads) if shows else 0


def spread_tensors(
    inputs: AttentionInputs, memory: FarMemory, buffers: Mapping[str, Buffer], params: np.ndarray
) -> None:
    """Moves rows apart, and changes addresses and strides in the parameter block.

    Rows are those of Q, K, V and O, and the log-sum-exps of one head, which are contiguous.
    """
    layout, problem = inputs.layout, inputs.problem
    rows, keys = inputs.output_shape, inputs.kv_shape
    tensors = [("q", layout.q, rows), ("k", layout.k, keys), ("v", layout.v, keys), ("o", layout.o, rows)]
    if problem.lse:
        tensors.append(("lse", TensorLayout(), (*rows[:2], 1, rows[2])))
    for name, tensor, shape in tensors:
        element = _FLOAT_BYTES if name == "lse" else problem.dtype.bytes
        batch, head, row = (stride * element for stride in tensor.strides(shape))
        found = memory.spread(buffers[name], shape[:3], (batch, head, row), shape[3] * element)
        params[name] = found.address
        axes = ("batch", "head") if name == "lse" else ("batch", "head", "row")
        for axis, stride in zip(axes, found.strides_bytes, strict=False):
            params[f"{name}_{axis}_stride"] = 0 if axis == "batch" and problem.packed else stride // element
