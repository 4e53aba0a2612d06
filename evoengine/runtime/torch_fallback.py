"""Differentiable attention with torch: SDPA if it supports the call, else plain torch operations."""

from __future__ import annotations

from typing import Final

import torch

from evoengine.runtime.autocast import without_autocast
from evoengine.runtime.call import Options

SDPA: Final = torch.nn.functional.scaled_dot_product_attention
"""Torch's own function, also in a program that has put ``attention`` in its place."""


def sdpa_supports(options: Options, sink: torch.Tensor | None) -> bool:
    """Returns whether ``scaled_dot_product_attention`` supports the features; any mask can be passed as a tensor."""
    return not options.softcap and not options.lse and sink is None


def torch_attention(
    options: Options,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_kv: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Computes O in the layout of Q, and the log-sum-exp if requested.

    It does not synchronise with the device. Masks other than a square causal one, softcap, sinks, the log-sum-exp and
    packed sequences need memory for all scores.
    """
    packed = cu_seqlens_q is not None
    if packed:
        q4, k4, v4 = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    elif options.layout == "bshd":
        q4, k4, v4 = (tensor.transpose(1, 2) for tensor in (q, k, v))
    else:
        q4, k4, v4 = q, k, v
    if sdpa_supports(options, sink):
        o4, lse4 = _sdpa(q4, k4, v4, cu_seqlens_q, cu_seqlens_kv, options), None
    else:
        with without_autocast(q.device.type):  # or the scores would be computed in autocast's type
            o4, lse4 = _by_definition(q4, k4, v4, sink, _mask(q4, k4, cu_seqlens_q, cu_seqlens_kv, options), options)
    if packed:
        return o4[0].transpose(0, 1), None if lse4 is None else lse4[0]
    return (o4.transpose(1, 2) if options.layout == "bshd" else o4), lse4


def _sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_kv: torch.Tensor | None,
    options: Options,
) -> torch.Tensor:
    grouped, causal = q.shape[1] != k.shape[1], options.causal or options.window_right == 0
    if causal and options.window_left < 0 and cu_seqlens_q is None and q.shape[2] == k.shape[2]:
        return SDPA(q, k, v, is_causal=True, scale=options.scale, enable_gqa=grouped)
    mask = _mask(q, k, cu_seqlens_q, cu_seqlens_kv, options)
    if mask is None:
        return SDPA(q, k, v, scale=options.scale, enable_gqa=grouped)
    # A row without visible keys attends to all keys and is then zeroed: backends differ in their results for such a
    # row, and a NaN would propagate to the gradients of all keys.
    fully_masked = ~mask.any(dim=-1, keepdim=True)
    o = SDPA(q, k, v, attn_mask=mask | fully_masked, scale=options.scale, enable_gqa=grouped)
    return o.masked_fill(fully_masked, 0.0)


def _by_definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sink: torch.Tensor | None,
    mask: torch.Tensor | None,
    options: Options,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Computes attention by its definition in float32."""
    if q.shape[1] != k.shape[1]:
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
    scale = q.shape[-1] ** -0.5 if options.scale is None else options.scale
    logits = (q.float() * scale) @ k.float().transpose(-1, -2)
    if options.softcap:
        logits = options.softcap * torch.tanh(logits / options.softcap)
    if mask is not None:
        logits = logits.masked_fill(~mask, float("-inf"))
    if sink is not None:
        sinks = sink.float()[None, :, None, None].expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, sinks], dim=-1)
    if logits.shape[-1]:
        top = logits.amax(dim=-1, keepdim=True)
    else:  # no keys, of which there is no maximum
        top = logits.new_full((*logits.shape[:-1], 1), float("-inf"))
    top = top.masked_fill(top == float("-inf"), 0.0)  # rows without visible keys
    weights = torch.exp(logits - top)
    total = weights.sum(dim=-1, keepdim=True)
    if sink is not None:
        weights = weights[..., :-1]
    o = (weights @ v.float()) / total.masked_fill(total == 0.0, 1.0)
    lse = (top + torch.log(total)).squeeze(-1) if options.lse else None
    return o.to(q.dtype), lse


def _mask(
    q: torch.Tensor,
    k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    cu_seqlens_kv: torch.Tensor | None,
    options: Options,
) -> torch.Tensor | None:
    """Returns the visibility of keys, bool ``[rows_q, rows_kv]``; None if all keys are visible.

    The diagonal of row ``i`` of a sequence is key ``i + keys - queries`` (bottom-right alignment).
    """
    left, right = options.window_left, 0 if options.causal else options.window_right
    if left < 0 and right < 0 and cu_seqlens_q is None:
        return None
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    keys = torch.arange(k.shape[2], device=q.device)[None, :]
    if cu_seqlens_q is None or cu_seqlens_kv is None:
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
        diagonal = rows + (k.shape[2] - q.shape[2])
    else:
        starts_q, starts_kv = cu_seqlens_q.long(), cu_seqlens_kv.long()
        of_row = torch.searchsorted(starts_q, rows.reshape(-1), right=True) - 1
        of_key = torch.searchsorted(starts_kv, keys.reshape(-1), right=True) - 1
        visible = of_row[:, None] == of_key[None, :]
        # The last row of a sequence is aligned with its last key.
        last = starts_q.shape[0] - 1
        ends = (starts_kv - starts_q)[(of_row + 1).clamp(0, last)]
        diagonal = rows + ends[:, None]
    if left >= 0:
        visible = visible & (keys >= diagonal - left)
    if right >= 0:
        visible = visible & (keys <= diagonal + right)
    return visible
