"""Fast internal functions of torch for operations repeated at every call; torch's compiler uses them too.

They are not part of torch's public API, so each has a public replacement for versions of torch that lack it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

TensorGuard = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]
"""Returns whether Q, K and V match the tensors for which the guard was created."""
Allocator = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
"""``allocate(shape, strides, dtype)`` returns an uninitialised tensor."""

_GUARDS: Final[Any] = getattr(getattr(torch._C, "_dynamo", None), "guards", None)  # noqa: SLF001
_KNOWN_UNTIL: Final = (2, 13)
"""Last version of torch whose ``TensorGuards`` is known: with other arguments it crashes instead of raising."""


def tensor_guard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> TensorGuard | None:
    """Creates a guard that compares all properties relevant to a launcher in one call, which is four times faster.

    A guard accepts tensors of the same class, type, device, shape and strides that require no gradient, in a thread
    with the same inference and dispatch modes.

    Returns:
        None if this version of torch is unknown, and for tensors that require a gradient, because a guard does not
        check ``no_grad``.
    """
    tensors = q, k, v
    release = tuple(map(int, torch.__version__.split(".")[:2]))
    if _GUARDS is None or release > _KNOWN_UNTIL or any(tensor.requires_grad for tensor in tensors):
        return None
    shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    guards = _GUARDS.TensorGuards(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
    check: TensorGuard = guards.check
    return check


def allocator_of(device: torch.device) -> Allocator:
    """Returns the allocator of a device; a GPU must be current when it is called."""
    if device.type == "cuda" and hasattr(_GUARDS, "_empty_strided_cuda"):
        fast: Allocator = _GUARDS._empty_strided_cuda  # noqa: SLF001
        return fast
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device)
