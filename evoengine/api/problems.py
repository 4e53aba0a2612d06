"""From a call on tensors to the problem that a search knows."""

from __future__ import annotations

from evoengine.model import DType, Problem
from evoengine.runtime.call import Call


def unsupported(call: Call) -> str:
    """Why no kernel can serve a call, whatever was searched for; empty when one could."""
    if call.dtype not in {dtype.value for dtype in DType}:
        return f"kernels are for {' and '.join(dtype.value for dtype in DType)}, not {call.dtype}"
    if 0 in (call.batch, call.heads, call.seq_q, call.seq_kv, call.rows_q, call.rows_kv, call.head_dim):
        return "there is nothing to compute"
    return ""


def problem_of(call: Call) -> Problem:
    """The problem of a call for which :func:`unsupported` says nothing.

    The lengths of packed sequences lie on the GPU and change from call to call, so that only their number, their sum
    and the longest are known: the problem has lengths that fit these.

    Raises:
        ProblemError: the sizes fit no lengths.
    """
    return Problem(
        batch=call.batch,
        heads=call.heads,
        seq_q=call.seq_q,
        head_dim=call.head_dim,
        kv_heads=call.kv_heads,
        seq_kv=call.seq_kv,
        dtype=DType(call.dtype),
        causal=call.causal,
        window_left=None if call.window_left < 0 else call.window_left,
        window_right=None if call.window_right < 0 else call.window_right,
        softcap=call.softcap,
        sink=call.sink,
        lse=call.lse,
        lengths_q=_lengths(call.batch, call.seq_q, call.rows_q) if call.packed else (),
        lengths_kv=_lengths(call.batch, call.seq_kv, call.rows_kv) if call.packed else (),
    )


def _lengths(count: int, longest: int, total: int) -> tuple[int, ...]:
    """One of the longest length, the others as equal as can be."""
    if count == 1:
        return (longest,)
    share, more = divmod(max(0, total - longest), count - 1)
    return (longest, *(min(longest, share + (number < more)) for number in range(count - 1)))
