"""The one argument that every kernel takes: ``AttentionParams``, passed by value.

The C++ mirror is ``templates/partials/params.cuh``; a ``static_assert`` there compares the size with
:data:`PARAM_BYTES`, which the renderer states in the prologue, so host and device cannot drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.model import Problem

ENTRY: Final = "evo_attention"
"""Every kernel is ``extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams)``."""

PARAMS_DTYPE: Final = np.dtype(
    [
        ("q", np.uint64),  # device addresses: Q [batch, heads, seq_q, head_dim]
        ("k", np.uint64),  # K [batch, kv_heads, seq_kv, head_dim]
        ("v", np.uint64),  # V [batch, kv_heads, seq_kv, head_dim]
        ("o", np.uint64),  # O [batch, heads, seq_q, head_dim]
        ("q_batch_stride", np.int64),  # strides are in elements; the head_dim axis is contiguous
        ("q_head_stride", np.int64),
        ("k_batch_stride", np.int64),
        ("k_head_stride", np.int64),
        ("v_batch_stride", np.int64),
        ("v_head_stride", np.int64),
        ("o_batch_stride", np.int64),
        ("o_head_stride", np.int64),
        ("q_row_stride", np.int32),
        ("k_row_stride", np.int32),
        ("v_row_stride", np.int32),
        ("o_row_stride", np.int32),
        ("seq_q", np.int32),
        ("seq_kv", np.int32),
        ("heads_per_kv_head", np.int32),
        ("scale_log2", np.float32),  # softmax scale times log2(e): the kernels work in base 2
    ],
    align=True,
)
PARAM_BYTES: Final = PARAMS_DTYPE.itemsize

Strides = tuple[int, int, int]
"""Element strides of (batch, head, row) of a ``[batch, head, row, head_dim]`` tensor."""


@dataclass(frozen=True)
class Placement:
    """Where one tensor lives: its device address and its element strides."""

    address: int
    strides: Strides


def pack_params(problem: Problem, q: Placement, k: Placement, v: Placement, o: Placement) -> np.ndarray:
    """Fills one ``AttentionParams`` record.

    Returns:
        A 0-d structured array of :data:`PARAMS_DTYPE`; ``.tobytes()`` is the parameter block.
    """
    record = np.zeros((), PARAMS_DTYPE)
    for name, placement in (("q", q), ("k", k), ("v", v), ("o", o)):
        record[name] = placement.address
        batch, head, row = placement.strides
        record[f"{name}_batch_stride"] = batch
        record[f"{name}_head_stride"] = head
        record[f"{name}_row_stride"] = row
    record["seq_q"] = problem.seq_q
    record["seq_kv"] = problem.seq_kv
    record["heads_per_kv_head"] = problem.heads // problem.kv_heads
    record["scale_log2"] = problem.softmax_scale * math.log2(math.e)
    return record
