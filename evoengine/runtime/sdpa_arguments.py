"""Arguments of ``torch.nn.functional.scaled_dot_product_attention`` that kernels lack or define otherwise.

``is_causal`` aligns a causal mask with the first key, as SDPA does, and ``causal`` with the last one, as kernels do.
For as many queries as keys both are the same mask.
"""

from __future__ import annotations

from typing import Any

import torch

from evoengine.runtime.call import Options, check_options
from evoengine.runtime.torch_fallback import SDPA


def causal_flag(q: torch.Tensor, k: torch.Tensor, causal: bool | None, is_causal: bool | None, layout: str) -> bool:
    """Returns whether a call has a causal mask aligned with the last key, which kernels compute.

    Args:
        q: Queries.
        k: Keys.
        causal: Mask aligned with the last key; None if it is not given.
        is_causal: Mask aligned with the first key; None if it is not given.
        layout: Order of the axes.

    Raises:
        ValueError: Both are given and contradict each other, or ``is_causal`` is given for packed sequences.
    """
    if is_causal and q.dim() == 3:
        raise ValueError("is_causal is no argument of packed sequences: give causal=True, aligned with the last key")
    square = _is_square(q, k, layout)
    if causal is not None and is_causal is not None and (causal != is_causal or (causal and not square)):
        raise ValueError(
            f"causal={causal} and is_causal={is_causal} contradict each other: give one of them; causal aligns the "
            "mask with the last key, is_causal with the first"
        )
    return bool(causal or (is_causal and square))


def scale_value(scale: Any) -> Any:
    """Returns the value of a scale that is a tensor with one element, which SDPA takes too; others are unchanged.

    Reading it synchronises with the device. A tensor that requires a gradient is left, because it would get none.
    """
    if not isinstance(scale, torch.Tensor) or scale.numel() != 1 or scale.requires_grad:
        return scale
    return float(scale)


def torch_only(
    q: torch.Tensor, k: torch.Tensor, attn_mask: torch.Tensor | None, dropout_p: float, is_causal: bool, layout: str
) -> str:
    """Returns why these arguments leave a call to torch; empty if a kernel could compute it."""
    if attn_mask is not None:
        return "kernels take no attn_mask"
    if dropout_p:
        return "kernels have no dropout"
    if is_causal and not _is_square(q, k, layout):
        return "is_causal aligns the mask with the first key, and kernels with the last one (causal=True)"
    return ""


def check_mask(q: torch.Tensor, k: torch.Tensor, mask: object, layout: str) -> None:
    """Checks ``attn_mask`` of a call whose other arguments are valid.

    Raises:
        TypeError: It is not a tensor, or its element type is neither bool nor that of Q.
        ValueError: Its shape does not broadcast to that of the logits.
    """
    if mask is None or q.dim() == 3:  # packed sequences take no mask
        return
    if not isinstance(mask, torch.Tensor):
        raise TypeError(f"attn_mask must be a tensor or None, not a {type(mask).__name__}")
    if mask.dtype not in (torch.bool, q.dtype):
        raise TypeError(f"attn_mask must be of type torch.bool or {q.dtype}, not {mask.dtype}")
    heads, rows = (1, 2) if layout == "bhsd" else (2, 1)
    logits = (q.shape[0], q.shape[heads], q.shape[rows], k.shape[rows])
    given = tuple(mask.shape)
    sides = zip(reversed(given), reversed(logits), strict=False)
    if not 2 <= len(given) <= len(logits) or any(size not in (1, whole) for size, whole in sides):
        raise ValueError(f"attn_mask has the shape {given}, which does not broadcast to that of the logits, {logits}")


def sdpa_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    options: Options,
    *,
    others: bool,
) -> torch.Tensor:
    """Computes a call with these arguments by SDPA; differentiable.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        attn_mask: As for SDPA.
        dropout_p: As for SDPA.
        is_causal: As for SDPA.
        options: Other arguments of the call.
        others: Whether the call has sinks or packed sequences.

    Raises:
        ValueError: The call has features that SDPA lacks, or an option is invalid.
    """
    check_options(options)
    aligned_otherwise = options.causal and not is_causal and not _is_square(q, k, options.layout)
    masked = options.window_left >= 0 or options.window_right >= 0 or aligned_otherwise
    if others or masked or options.softcap or options.lse or (attn_mask is not None and options.causal):
        name = "attn_mask" if attn_mask is not None else "dropout_p" if dropout_p else "is_causal"
        raise ValueError(
            f"{name} is computed by SDPA, which takes it with no second mask, softcap, sink, log-sum-exp or packed "
            "sequences: leave those out, or put all masks into attn_mask"
        )
    swapped = options.layout == "bshd"
    q4, k4, v4 = (tensor.transpose(1, 2) if swapped else tensor for tensor in (q, k, v))
    o = SDPA(
        q4, k4, v4, attn_mask, dropout_p, is_causal or options.causal,
        scale=options.scale, enable_gqa=q4.shape[1] != k4.shape[1],
    )  # fmt: skip
    return o.transpose(1, 2) if swapped else o


def _is_square(q: torch.Tensor, k: torch.Tensor, layout: str) -> bool:
    """Returns whether there are as many queries as keys; True for packed sequences and invalid tensors."""
    rows = 2 if layout == "bhsd" else 1
    return q.dim() != 4 or k.dim() != 4 or q.shape[rows] == k.shape[rows]
