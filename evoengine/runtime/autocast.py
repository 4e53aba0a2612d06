"""Autocast: the element types that torch's SDPA computes with inside of ``torch.autocast``.

SDPA is in autocast's list of operations in lower precision: where autocast is enabled for a tensor's device, a
floating-point tensor other than float64 is cast to autocast's type, and SDPA itself runs without autocast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import torch

from evoengine.runtime.shortcuts import TensorGuard

_DEVICES: Final = frozenset(
    filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "xla"))
)
"""Types of device that have autocast, since asking torch takes a share of a call's time."""


def autocast_dtype(device: str) -> torch.dtype | None:
    """Returns the element type to which autocast casts on a type of device; None where it is off."""
    return torch.get_autocast_dtype(device) if device in _DEVICES and torch.is_autocast_enabled(device) else None


def cast_by_autocast(q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Casts Q, K and V as autocast does for SDPA; returns them unchanged where it is off, and what is no tensor."""
    dtype = autocast_dtype(q.device.type) if isinstance(q, torch.Tensor) else None
    return (q, k, v) if dtype is None else (_cast(q, dtype), _cast(k, dtype), _cast(v, dtype))


def _cast(one: Any, dtype: torch.dtype) -> Any:
    lower = isinstance(one, torch.Tensor) and one.is_floating_point() and one.dtype != torch.float64
    return one.to(dtype) if lower else one


def guard_with_autocast(guard: TensorGuard, device: str) -> Callable[..., bool]:
    """Returns a guard that also compares autocast's type: torch's guards compare only whether autocast is on."""
    dtype = autocast_dtype(device)
    if dtype is None:
        return guard
    return lambda q, k, v: torch.get_autocast_dtype(device) == dtype and guard(q, k, v)


def without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which operations keep their element types."""
    return contextlib.nullcontext() if autocast_dtype(device) is None else torch.autocast(device, enabled=False)
