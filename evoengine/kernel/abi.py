"""Kernel ABI: ``AttentionParams``, the first argument of every kernel, passed by value.

It is the only one, except in families that declare tensor maps, see :mod:`evoengine.kernel.tensor_maps`. The C++
counterpart is ``templates/partials/core/params.cuh``. A ``static_assert`` there compares its size with
:data:`PARAM_BYTES`, which the renderer writes into the prologue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.model import Problem

ENTRY: Final = "evo_attention"
"""Name of every main kernel: ``extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams)``."""

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
        ("heads_per_kv_head", np.int32),
        ("seq_q", np.int32),  # for packed sequences the longest
        ("seq_kv", np.int32),
        ("scale_log2", np.float32),  # softmax scale times log2(e): the kernels work in base 2
        # 128 bytes up to here: the fields that every kernel reads fit into two lines of the constant cache
        ("lse", np.uint64),  # f32 [batch, heads, seq_q], rows contiguous; 0 if the problem has no log-sum-exp output
        ("sink", np.uint64),  # f32 [heads], natural logits; 0 for none
        ("cu_seqlens_q", np.uint64),  # i32 [batch + 1], first row of each packed sequence; 0 without packing
        ("cu_seqlens_kv", np.uint64),  # i32 [batch + 1]
        ("workspace", np.uint64),  # partial results between CTAs, sized by the launch spec; 0 for none
        ("counters", np.uint64),  # u32, zero before and after every call; 0 for none
        ("lse_batch_stride", np.int64),
        ("lse_head_stride", np.int64),
        ("batch", np.int32),  # sequences
        ("heads", np.int32),
        ("window_left", np.int32),  # visible keys before the diagonal; read only if the problem has a window
        ("window_right", np.int32),
        ("softcap_log2", np.float32),  # softcap times log2(e); 0 for none
        ("softcap_scale", np.float32),  # softmax scale over softcap: the argument of tanh per unit of QKᵀ. Without a
        # softcap it is positive_scale: |scale_log2|, at least SMALLEST_SCALE
    ],
    align=True,
)
PARAM_BYTES: Final = PARAMS_DTYPE.itemsize

SMALLEST_SCALE: Final = 2.0**-126
"""Smallest normal f32, which stands for a scale of 0: kernels multiply it by scores of -inf, and 0 · -inf is NaN."""

LARGEST_SCALE: Final = 2.0**127
"""Largest magnitude of a softmax scale: times log2(e) it is still finite in f32."""

LARGEST_ARGUMENT: Final = 2.0**125
"""Largest magnitude of scale over softcap: tanh of any product with it is 0, 1 or -1, and kernels double it."""

Strides = tuple[int, int, int]
"""Element strides of (batch, head, row) of a ``[batch, head, row, head_dim]`` tensor."""


@dataclass(frozen=True)
class Placement:
    """Device address and element strides of one tensor."""

    address: int
    strides: Strides


@dataclass(frozen=True)
class BufferAddresses:
    """Device addresses of all buffers of one call; 0 for buffers that the problem does not need."""

    q: Placement
    k: Placement
    v: Placement
    o: Placement
    lse: int = 0
    """f32 ``[memory_batch, heads, rows_q]``, contiguous."""
    sink: int = 0
    """f32 ``[heads]``."""
    cu_seqlens_q: int = 0
    """i32 ``[batch + 1]``."""
    cu_seqlens_kv: int = 0
    workspace: int = 0
    counters: int = 0


def pack_params(problem: Problem, addresses: BufferAddresses, scale: float | None = None) -> np.ndarray:
    """Fills one ``AttentionParams`` record.

    Args:
        problem: Problem of the call.
        addresses: Device addresses and strides of the call's buffers.
        scale: Softmax scale, at most :data:`LARGEST_SCALE` in magnitude; None for the problem's own.

    Returns:
        0-d structured array of :data:`PARAMS_DTYPE`; ``.tobytes()`` is the parameter block.
    """
    record = np.zeros((), PARAMS_DTYPE)
    for name in ("q", "k", "v", "o"):
        placement: Placement = getattr(addresses, name)
        record[name] = placement.address
        batch, head, row = placement.strides
        record[f"{name}_batch_stride"] = 0 if problem.packed else batch
        record[f"{name}_head_stride"] = head
        record[f"{name}_row_stride"] = row
    for name in ("lse", "sink", "cu_seqlens_q", "cu_seqlens_kv", "workspace", "counters"):
        record[name] = getattr(addresses, name)
    record["lse_batch_stride"] = 0 if problem.packed else problem.heads * problem.seq_q
    record["lse_head_stride"] = problem.rows_q
    for name in ("batch", "heads", "seq_q", "seq_kv"):
        record[name] = getattr(problem, name)
    record["heads_per_kv_head"] = problem.heads // problem.kv_heads
    record["window_left"] = problem.window_left or 0
    record["window_right"] = problem.window_right or 0
    scale = problem.softmax_scale if scale is None else scale
    scale_log2 = scale * math.log2(math.e)
    record["scale_log2"] = scale_log2
    record["softcap_scale"] = max(abs(scale_log2), SMALLEST_SCALE)
    if problem.softcap:
        record["softcap_log2"] = problem.softcap * math.log2(math.e)
        record["softcap_scale"] = min(max(scale / problem.softcap, -LARGEST_ARGUMENT), LARGEST_ARGUMENT)
    return record
