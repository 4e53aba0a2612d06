"""``evoengine.replace_sdpa``: programs that call torch's SDPA use ``evoengine.attention`` instead, unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.nn import functional

from evoengine.api.serving import attention
from evoengine.runtime.autocast import cast_by_autocast
from evoengine.runtime.torch_fallback import SDPA

_NAME: Final = SDPA.__name__


@contextmanager
def replace_sdpa(leaderboard: str = "") -> Iterator[None]:
    """Computes calls of ``scaled_dot_product_attention`` with ``evoengine.attention`` inside of a ``with`` block.

    It reaches calls through ``torch.nn.functional`` and through names that modules imported from there, in eager
    programs and in programs that are compiled or captured inside. torch's fused encoder layers run as separate
    operations meanwhile. Calls that only SDPA accepts, such as those of tensors without a heads axis, are left to SDPA.

    Args:
        leaderboard: Leaderboard or lockfile, as for ``attention``.
    """

    def replacement(query: Any, key: Any, value: Any, *arguments: Any, **named: Any) -> Any:
        query, key, value = cast_by_autocast(query, key, value)
        if not _accepted(query, key, value):
            return SDPA(query, key, value, *arguments, **named)
        return attention(query, key, value, *arguments, **named, leaderboard=leaderboard)

    with sdpa_replaced(replacement, of_program=True):
        yield


@contextmanager
def sdpa_replaced(function: Callable[..., Any], *, of_program: bool) -> Iterator[None]:
    """Puts a function in SDPA's place and turns off torch's fused encoder layers, which do not call it.

    Args:
        function: Function to call instead.
        of_program: Whether to replace a program's own function in SDPA's place too.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    places = [(names, name, names[name]) for names, name in _places(of_program=of_program)]
    for names, name, _ in places:
        names[name] = function
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(value=fused)
        for names, name, before in places:
            names[name] = before


def _places(*, of_program: bool) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the names that stand for SDPA: in its module, and in modules that imported it."""
    own = vars(functional)
    if of_program or own[_NAME] is SDPA:
        yield own, _NAME
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and module_name.split(".")[0] not in ("torch", "evoengine"):
            yield from ((names, name) for name, value in list(names.items()) if value is SDPA)


def _accepted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Returns whether ``attention`` accepts shapes and types: SDPA also broadcasts, and takes other numbers of axes."""
    if not (q.dim() == k.dim() == v.dim() == 4 and k.shape == v.shape and q.dtype == k.dtype == v.dtype):
        return False
    whole_groups = q.shape[1] % k.shape[1] == 0 if k.shape[1] else q.shape[1] == 0
    return q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and whole_groups
