# mypy: ignore-errors
# ruff: noqa: N803
"""A plain FlashAttention-2 forward in Triton's language; imported only if Triton is installed.

The algorithm is FlashAttention-2's (Dao 2023, arXiv 2307.08691, algorithm 1), in base 2. Triton compiles the functions
below, so types are not checked and constants are upper case.
"""

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-1.0e30)
"""Initial running maximum: finite, so that a row without a key gives no NaN."""


@triton.jit
def attention_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, scale_log2, heads, group, seq_q, seq_kv,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr, HAS_TAIL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One CTA: BLOCK_M query rows of one head, contiguous ``[batch, heads, seq, HEAD_DIM]``; grid (row tiles, heads).

    Key blocks that need no mask for any row come first; then, if HAS_TAIL, those at the diagonal or at the end of the
    keys.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = (head // heads) * (heads // group) + (head % heads) // group
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    q_at = head.to(tl.int64) * seq_q * HEAD_DIM + rows[:, None] * HEAD_DIM + dims[None, :]
    q_inside = (rows[:, None] < seq_q) & (dims[None, :] < HEAD_DIM)
    q = tl.load(q_ptr + q_at, mask=q_inside, other=0.0)
    k_head = k_ptr + kv_head.to(tl.int64) * seq_kv * HEAD_DIM
    v_head = v_ptr + kv_head.to(tl.int64) * seq_kv * HEAD_DIM

    offset = seq_kv - seq_q
    seen_by_all = seq_kv
    seen_by_any = seq_kv
    if CAUSAL:
        seen_by_all = tl.minimum(seq_kv, tl.maximum(tile * BLOCK_M + offset + 1, 0))
        seen_by_any = tl.minimum(seq_kv, tl.maximum((tile + 1) * BLOCK_M + offset, 0))
    whole = (seen_by_all // BLOCK_N) * BLOCK_N

    top = tl.full([BLOCK_M], _LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, whole, BLOCK_N):
        top, total, acc = _block(
            q, k_head, v_head, top, total, acc, start, rows, scale_log2, offset, seq_kv,
            HEAD_DIM, BLOCK_D, BLOCK_N, CAUSAL, False,
        )  # fmt: skip
    if HAS_TAIL:
        for start in range(whole, seen_by_any, BLOCK_N):
            top, total, acc = _block(
                q, k_head, v_head, top, total, acc, start, rows, scale_log2, offset, seq_kv,
                HEAD_DIM, BLOCK_D, BLOCK_N, CAUSAL, True,
            )  # fmt: skip
    out = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(o_ptr + q_at, out.to(o_ptr.dtype.element_ty), mask=q_inside)


@triton.jit
def _block(
    q, k_head, v_head, top, total, acc, start, rows, scale_log2, offset, seq_kv,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One block of keys: S = QKᵀ, online softmax, O += PV."""
    keys = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    k_at = k_head + dims[:, None] + keys[None, :] * HEAD_DIM
    v_at = v_head + keys[:, None] * HEAD_DIM + dims[None, :]
    if MASKED:
        k = tl.load(k_at, mask=(dims[:, None] < HEAD_DIM) & (keys[None, :] < seq_kv), other=0.0)
    elif BLOCK_D != HEAD_DIM:
        k = tl.load(k_at, mask=dims[:, None] < HEAD_DIM, other=0.0)
    else:
        k = tl.load(k_at)
    scores = tl.dot(q, k)
    if MASKED:
        seen = keys[None, :] < seq_kv
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None] + offset)
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale_log2)
    weights = tl.exp2(scores * scale_log2 - new_top[:, None])
    rescale = tl.exp2(top - new_top)
    total = total * rescale + tl.sum(weights, 1)
    if MASKED:
        v = tl.load(v_at, mask=(keys[:, None] < seq_kv) & (dims[None, :] < HEAD_DIM), other=0.0)
    elif BLOCK_D != HEAD_DIM:
        v = tl.load(v_at, mask=dims[None, :] < HEAD_DIM, other=0.0)
    else:
        v = tl.load(v_at)
    acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None])
    return new_top, total, acc
