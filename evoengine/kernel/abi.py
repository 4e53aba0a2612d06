"""The one argument that every kernel takes: ``AttentionParams``, passed by value.

The C++ mirror is ``templates/partials/core/params.cuh``; a ``static_assert`` there compares the size with
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
        ("heads_per_kv_head", np.int32),
        ("seq_q", np.int32),  # of packed sequences, the longest
        ("seq_kv", np.int32),
        ("scale_log2", np.float32),  # softmax scale times log2(e): the kernels work in base 2
        # up to here 128 bytes: what every kernel needs lies in two lines of the constant cache
        ("lse", np.uint64),  # f32 [batch, heads, seq_q], rows contiguous; 0 where the problem asks for none
        ("sink", np.uint64),  # f32 [heads], natural logits; 0 for none
        ("cu_seqlens_q", np.uint64),  # i32 [batch + 1], first row of each packed sequence; 0 where none are packed
        ("cu_seqlens_kv", np.uint64),  # i32 [batch + 1]
        ("workspace", np.uint64),  # partial results between CTAs, as large as the launch spec says; 0 for none
        ("counters", np.uint64),  # u32, zero before every call and left at zero by it; 0 for none
        ("lse_batch_stride", np.int64),
        ("lse_head_stride", np.int64),
        ("batch", np.int32),  # sequences
        ("heads", np.int32),
        ("window_left", np.int32),  # keys seen before the diagonal; only read where the problem has a window
        ("window_right", np.int32),
        ("softcap_log2", np.float32),  # softcap times log2(e); 0 for none
        ("softcap_scale", np.float32),  # softmax scale over softcap: the argument of tanh per unit of QKᵀ
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


@dataclass(frozen=True)
class BufferAddresses:
    """Where everything that one call reads and writes lives; addresses that the problem does not need are 0."""

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


def pack_params(problem: Problem, places: BufferAddresses) -> np.ndarray:
    """Fills one ``AttentionParams`` record.

    Returns:
        A 0-d structured array of :data:`PARAMS_DTYPE`; ``.tobytes()`` is the parameter block.
    """
    record = np.zeros((), PARAMS_DTYPE)
    for name in ("q", "k", "v", "o"):
        placement: Placement = getattr(places, name)
        record[name] = placement.address
        batch, head, row = placement.strides
        record[f"{name}_batch_stride"] = 0 if problem.packed else batch
        record[f"{name}_head_stride"] = head
        record[f"{name}_row_stride"] = row
    for name in ("lse", "sink", "cu_seqlens_q", "cu_seqlens_kv", "workspace", "counters"):
        record[name] = getattr(places, name)
    record["lse_batch_stride"] = 0 if problem.packed else problem.heads * problem.seq_q
    record["lse_head_stride"] = problem.rows_q
    for name in ("batch", "heads", "seq_q", "seq_kv"):
        record[name] = getattr(problem, name)
    record["heads_per_kv_head"] = problem.heads // problem.kv_heads
    record["window_left"] = problem.window_left or 0
    record["window_right"] = problem.window_right or 0
    record["scale_log2"] = problem.softmax_scale * math.log2(math.e)
    if problem.softcap:
        record["softcap_log2"] = problem.softcap * math.log2(math.e)
        record["softcap_scale"] = problem.softmax_scale / problem.softcap
    return record
