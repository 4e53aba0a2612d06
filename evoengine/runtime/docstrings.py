"""What ``attention`` says of itself."""

from typing import Final

ATTENTION_DOC: Final = """O = softmax(scale · Q Kᵀ) V on torch's current stream, by the fastest known kernel.

Where no kernel is known, torch's SDPA serves, or plain torch operations for what SDPA lacks (softcap, sink, the
log-sum-exp); likewise where a gradient is asked for, which kernels do not have.

Args:
    q: fp16 or bf16 ``[batch, heads, seq_q, head_dim]``, or as ``layout`` says, with any strides; what kernels
        cannot read where it lies is copied. Packed sequences are ``[rows, heads, head_dim]``.
    k: ``[batch, kv_heads, seq_kv, head_dim]``; heads are a multiple of kv_heads.
    v: like ``k``.
    causal: hide the keys after the diagonal, which for row i is key i + seq_kv - seq_q.
    window: keys that a row sees before and after its diagonal; None for all.
    softcap: logits become softcap · tanh(logit / softcap); 0 for none.
    scale: None for 1/sqrt(head_dim).
    sink: f32 ``[heads]``: one more logit a head, without a value.
    return_lse: return the log-sum-exp too, f32 ``[batch, heads, seq_q]``, packed ``[heads, rows]``.
    cu_seqlens_q: int32 ``[sequences + 1]``, first row of each packed sequence; not checked against Q.
    cu_seqlens_kv: likewise of K and V.
    max_seqlen_q: length of the longest; where it is not given it is read, which waits for the GPU.
    max_seqlen_kv: likewise.
    layout: order of the axes of Q, K, V and O: ``bhsd`` or ``bshd`` (rows outside heads).
    fallback: False raises where no kernel serves, and takes one although torch was faster beside it.
    leaderboard: a leaderboard or lockfile to look in; empty for the usual places.

Returns:
    O, laid out as Q; with ``return_lse`` a pair. A row that sees no key is zero.

Raises:
    ValueError: the tensors and options make no call.
"""
