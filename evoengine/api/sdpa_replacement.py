"""``evoengine.replace_sdpa``: programs that call torch's SDPA use ``evoengine.attention`` instead, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from evoengine.api.serving import attention
from evoengine.runtime.torch_fallback import SDPA

_NAME: Final = SDPA.__name__


@contextmanager
def replace_sdpa(leaderboard: str = "") -> Iterator[None]:
    """Computes calls of ``scaled_dot_product_attention`` with ``evoengine.attention`` inside of a ``with`` block.

    It reaches calls through ``torch.nn.functional`` and through a name imported from there, in eager programs and in
    programs that are compiled or captured inside. torch's fused encoder layers run as separate operations meanwhile.
    Arguments that only SDPA accepts, such as tensors without a heads axis, are left to SDPA. Imported names and fused
    layers are handled in the thread of the block only.

    Args:
        leaderboard: Leaderboard or lockfile, as for ``attention``.
    """

    def replacement(query: Any, key: Any, value: Any, *arguments: Any, **named: Any) -> Any:
        if not _has_four_axes(query, key, value):
            return SDPA(query, key, value, *arguments, **named)
        return attention(query, key, value, *arguments, **named, leaderboard=leaderboard)

    with intercepted_sdpa(replacement, replacement):
        yield


@contextmanager
def intercepted_sdpa(in_module: Callable[..., Any], by_name: Callable[..., Any]) -> Iterator[None]:
    """Intercepts all calls of SDPA.

    Args:
        in_module: Function in the place of ``torch.nn.functional.scaled_dot_product_attention``.
        by_name: Function for calls of torch's own function that do not look it up there.
    """
    before, fused = getattr(functional, _NAME), torch.backends.mha.get_fastpath_enabled()
    setattr(functional, _NAME, in_module)
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        with _NamedCalls(by_name):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=fused)
        setattr(functional, _NAME, before)


class _NamedCalls(TorchFunctionMode):
    """Passes calls of torch's own SDPA to a function, during which the mode is off."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._function if func is SDPA else func)(*args, **(kwargs or {}))


def _has_four_axes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Returns whether ``attention`` accepts the shapes: SDPA also broadcasts, and takes other numbers of axes."""
    if not (q.dim() == k.dim() == v.dim() == 4 and k.shape == v.shape):
        return False
    return q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and q.shape[1] % max(1, k.shape[1]) == 0
