"""Docstring of ``attention``."""

from typing import Final

ATTENTION_DOC: Final = """Computes O = softmax(scale · Q Kᵀ) V on torch's current stream with the fastest known kernel.

It takes the arguments of ``torch.nn.functional.scaled_dot_product_attention``, with Q, K and V by position, and can
replace it; ``evoengine.replace_sdpa`` accepts their names too. Calls without a known kernel, calls with ``attn_mask``
or dropout, and calls that need a gradient are computed by torch: by its SDPA, or by plain torch operations for features
that SDPA lacks (softcap, sink, log-sum-exp). Inside of ``torch.autocast`` Q, K and V are cast to its type, as SDPA
casts them.

Args:
    q: Queries, fp16 or bf16 ``[batch, heads, seq_q, head_dim]`` (see ``layout``) with any strides; a tensor that
        kernels cannot read in place is copied. Packed sequences are ``[rows, heads, head_dim]``.
    k: Keys ``[batch, kv_heads, seq_kv, head_dim]``; heads must be a multiple of kv_heads.
    v: Values, with the shape of ``k``.
    attn_mask: Mask as for SDPA; torch computes such calls.
    dropout_p: Dropout as for SDPA; torch computes such calls.
    is_causal: Whether keys after the diagonal are hidden; the diagonal of row i is key i, as in SDPA. Torch computes
        such calls if there are more or fewer keys than queries.
    scale: Factor on Q Kᵀ, any finite number, negative or 0 too, or a tensor with one; None for 1/sqrt(head_dim).
    enable_gqa: Accepted for SDPA's sake: K and V may have fewer heads than Q either way.
    causal: Whether keys after the diagonal are hidden; the diagonal of row i is key i + seq_kv - seq_q.
    window: Visible keys before and after a row's diagonal; None for no limit.
    softcap: Bound on the logits, softcap · tanh(logit / softcap); 0 for none.
    sink: Attention sinks, f32 ``[heads]``: one extra softmax logit per head that contributes no value.
    return_lse: Whether to return the log-sum-exp too, f32 ``[batch, heads, seq_q]``, packed ``[heads, rows]``.
    cu_seqlens_q: First row of each packed query sequence, int32 ``[sequences + 1]``; not checked against Q.
    cu_seqlens_kv: First row of each packed K/V sequence, int32 ``[sequences + 1]``; not checked against K.
    max_seqlen_q: Maximum query length; if it is not given, it is read from the GPU, which synchronises.
    max_seqlen_kv: Maximum key length; if it is not given, it is read from the GPU, which synchronises.
    layout: Order of the axes of Q, K, V and O: ``bhsd`` or ``bshd``.
    fallback: Whether torch may compute the call. If not, a missing kernel is an error, and a kernel is used even if
        torch was faster in its benchmark.
    leaderboard: Path of a leaderboard or lockfile; empty for the default locations.

Returns:
    O in the layout of Q; with ``return_lse`` a pair. Rows without visible keys are zero.

Raises:
    TypeError: An argument has another type.
    ValueError: The tensors and options are not a valid call.
"""
