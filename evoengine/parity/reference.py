"""The two yardsticks: attention in float64 (the truth) and same-precision SDPA (what rounding alone costs).

Both work on a sample of query rows when the whole problem would be too dear on a CPU; the rows are the same for every
head. The only importer of torch in this room.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.kernel.call import AttentionInputs
from evoengine.model import DType, Problem
from evoengine.parity.bits import Bits, Real, from_bits

Rows = NDArray[np.int64]

FULL_FLOPS: Final = 2 * 10**9
"""Attention with more multiply-adds (times two) than this is checked on a sample of rows."""

MIN_ROWS: Final = 16


def sample_rows(problem: Problem, seed: int, full_flops: int = FULL_FLOPS) -> Rows:
    """Query rows to compare: all of them, or a random sample that always holds the first and the last row.

    Args:
        problem: the shape.
        seed: of the sample.
        full_flops: the work up to which all rows are taken.

    Returns:
        Sorted row indices, int64.
    """
    flops_per_row = 4 * problem.batch * problem.heads * problem.seq_kv * problem.head_dim
    count = max(MIN_ROWS, full_flops // flops_per_row)
    if count >= problem.seq_q:
        return np.arange(problem.seq_q, dtype=np.int64)
    rng = np.random.default_rng([seed, problem.seq_q, problem.seq_kv])
    inner = rng.choice(np.arange(1, problem.seq_q - 1), size=count - 2, replace=False)
    return np.sort(np.concatenate([inner, [0, problem.seq_q - 1]])).astype(np.int64)


def visible(problem: Problem, rows: Rows) -> NDArray[np.bool_]:
    """The mask ``[len(rows), seq_kv]``: True where a query row sees a key (causal is aligned bottom-right)."""
    if not problem.causal:
        return np.ones((len(rows), problem.seq_kv), np.bool_)
    keys = np.arange(problem.seq_kv)
    mask: NDArray[np.bool_] = keys[None, :] <= rows[:, None] + problem.seq_kv - problem.seq_q
    return mask


def attention_fp64(inputs: AttentionInputs, rows: Rows) -> Real:
    """Attention by its definition in float64: ``softmax(Q Kᵀ / sqrt(head_dim)) V``.

    Returns:
        float64 ``[batch, heads, len(rows), head_dim]``; a row that sees no key is zero.
    """
    problem = inputs.problem
    mask = visible(problem, rows)
    group = problem.heads // problem.kv_heads
    out = np.zeros((problem.batch, problem.heads, len(rows), problem.head_dim))
    for batch, head in np.ndindex(problem.batch, problem.heads):
        q = from_bits(inputs.q[batch, head, rows], problem.dtype)
        k = from_bits(inputs.k[batch, head // group], problem.dtype)
        v = from_bits(inputs.v[batch, head // group], problem.dtype)
        scores = np.where(mask, (q @ k.T) * problem.softmax_scale, -np.inf)
        top = np.max(scores, axis=1, keepdims=True)
        weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
        total = weights.sum(axis=1, keepdims=True)
        out[batch, head] = (weights @ v) / np.where(total > 0, total, 1.0)
    return out


def attention_same_precision(inputs: AttentionInputs, rows: Rows) -> Real:
    """PyTorch's SDPA on the CPU in the problem's own dtype: the error that rounding alone makes.

    The CPU is used on every device, so that one candidate gets one verdict everywhere.

    Returns:
        float64 ``[batch, heads, len(rows), head_dim]``, each value one of the dtype; rows that see no key are zero.
    """
    import torch  # lazily: a second of import time

    problem = inputs.problem
    torch_dtype = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16
    group = problem.heads // problem.kv_heads

    def tensor(bits: Bits) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(bits).view(np.int16)).view(torch_dtype)

    mask = visible(problem, rows)
    seen = mask.any(axis=1)
    out = np.zeros((problem.batch, problem.heads, len(rows), problem.head_dim))
    if not seen.any():
        return out
    attn_mask = torch.from_numpy(mask[seen])[None, None] if problem.causal else None
    for batch in range(problem.batch):
        result = torch.nn.functional.scaled_dot_product_attention(
            tensor(inputs.q[batch : batch + 1, :, rows[seen]]),
            tensor(inputs.k[batch : batch + 1]).repeat_interleave(group, dim=1),
            tensor(inputs.v[batch : batch + 1]).repeat_interleave(group, dim=1),
            attn_mask=attn_mask,
        )
        out[batch][:, seen] = result[0].to(torch.float64).numpy()
    return out
