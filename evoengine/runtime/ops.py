"""The custom ops of a door: what ``torch.compile``, fake tensors and graph captures see of attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from evoengine.runtime.launcher import laid_out, output_like

_ARGUMENTS: Final = (
    "Tensor q, Tensor k, Tensor v, Tensor? sink, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, bool causal, "
    "int window_left, int window_right, float softcap, float? scale, SymInt max_seqlen_q, SymInt max_seqlen_kv, "
    "str layout, bool fallback, str leaderboard"
)
_LAYOUT_AT: Final = 12
"""Index of ``layout`` among the arguments after Q."""
_LIBRARIES: Final[list[torch.library.Library]] = []
"""Held: an op goes with its library."""


def free_namespace(name: str) -> str:
    """The name, or with a number behind it where it is taken: an exported module may be imported under two names."""
    names = itertools.chain((name,), (f"{name}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if not hasattr(getattr(torch.ops, candidate), "attention"))


def register_ops(namespace: str, serve: Callable[..., Any]) -> tuple[Any, Any]:
    """Defines ``attention`` (to O) and ``attention_lse`` (to O and the log-sum-exp) for CPU, CUDA and fake tensors.

    Args:
        namespace: of the ops.
        serve: runs a call; its last argument says whether the log-sum-exp is wanted.

    Returns:
        The two ops.
    """
    library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)

    def run(q: torch.Tensor, *others: Any) -> torch.Tensor:
        return laid_out(serve(q, *others, False), q)

    def run_lse(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = serve(q, *others, True)
        return laid_out(o, q), lse.contiguous()

    for name, result, implementation, fake in (
        ("attention", "Tensor", run, _fake),
        ("attention_lse", "(Tensor, Tensor)", run_lse, _fake_lse),
    ):
        library.define(f"{name}({_ARGUMENTS}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(name, implementation, key)
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
        torch.library.register_autograd(f"{namespace}::{name}", _refuse, lib=library)
    ops = getattr(torch.ops, namespace)
    return ops.attention.default, ops.attention_lse.default


def _fake(q: torch.Tensor, *_others: Any) -> torch.Tensor:
    return output_like(q)


def _fake_lse(q: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape: tuple[int, ...] = q.shape[:-1]
    if q.dim() == 3:
        shape = (shape[1], shape[0])
    elif others[_LAYOUT_AT] == "bshd":
        shape = (shape[0], shape[2], shape[1])
    return output_like(q), q.new_empty(shape, dtype=torch.float32)


def _refuse(*_unused: Any) -> NoReturn:
    raise RuntimeError("this op has no gradient: call attention(...), which takes torch's own where one is asked for")
