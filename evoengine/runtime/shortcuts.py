"""Torch's short ways to do what a call does again and again: inside torch, its compiler's output uses them too.

They are not part of torch's public API: each has a public way beside it, taken where this torch lacks the short one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

Recogniser = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]
"""Whether tensors are like those that it was made for."""
Allocator = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""``allocate(shape, strides, dtype)``: memory with any contents."""

_GUARDS: Final[Any] = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # noqa: SLF001
_KNOWN_UNTIL: Final = (2, 13)
"""The last torch whose ``TensorGuards`` was looked at: made with other arguments it crashes instead of raising."""


def recogniser_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Recogniser | None:
    """One call into torch that compares all that a launcher counts on, for a quarter of what asking for each costs.

    It is true for tensors of the same class, type, device, shape and strides that want no gradient, in a thread in the
    same modes: inference, dispatch modes and what else decides where torch's operations go.

    Returns:
        None where this torch is not known to have it, and for tensors that want a gradient: it does not look at
        ``no_grad``.
    """
    tensors = q, k, v
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    if _GUARDS is None or release > _KNOWN_UNTIL or any(tensor.requires_grad for tensor in tensors):
        return None
    shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    guards = _GUARDS.TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    check: Recogniser = guards.check
    return check


def allocator_of(device: torch.device) -> Allocator:
    """What makes a tensor on a device, which for a GPU must be the current one."""
    if device.type == "cuda" and hasattr(_GUARDS, "_empty_strided_cuda"):
        short: Allocator = _GUARDS._empty_strided_cuda  # noqa: SLF001
        return short
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)
