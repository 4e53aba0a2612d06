"""Custom ops of attention, for ``torch.compile``, fake tensors and graph capture."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from evoengine.runtime.launcher import output_like

_REST: Final = (
    ("Tensor? sink", None),
    ("Tensor? cu_seqlens_q", None),
    ("Tensor? cu_seqlens_kv", None),
    ("bool causal", False),
    ("int window_left", -1),
    ("int window_right", -1),
    ("float softcap", 0.0),
    ("float? scale", None),
    ("SymInt max_seqlen_q", 0),
    ("SymInt max_seqlen_kv", 0),
    ("str layout", "bhsd"),
    ("bool fallback", True),
    ("str leaderboard", ""),
)
"""Arguments after Q, K and V, with defaults. Torch passes all arguments up to the last that differs from its default;
each costs host time."""
_FEW: Final = ("bool causal", "str layout", "bool fallback", "str leaderboard")
_DEFAULTS: Final = tuple(default for _, default in _REST)
_LAYOUT_AT: Final = 10
"""Index of ``layout`` in :data:`_REST`."""
_LIBRARIES: Final[list[torch.library.Library]] = []
"""Keeps the libraries alive, because an op exists only as long as its library."""


def free_namespace(name: str) -> str:
    """Returns the name, with a number appended if it is taken: an exported module may be imported under two names."""
    names = itertools.chain((name,), (f"{name}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if not hasattr(getattr(torch.ops, candidate), "attention"))


@dataclass(frozen=True)
class Ops:
    """Custom ops of one dispatcher."""

    attention: Callable[..., torch.Tensor]
    """Returns O."""
    attention_lse: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    """Returns O and the log-sum-exp."""
    attention_qkv: Callable[..., torch.Tensor]
    """Returns O for calls without features other than a causal mask; has few arguments, because compiled programs pass
    all of them."""


def register_ops(namespace: str, serve: Callable[..., Any]) -> Ops:
    """Defines the ops for CPU, CUDA and fake tensors.

    Args:
        namespace: Namespace of the ops.
        serve: Computes a call, with O in the strides of :func:`output_like`; its last argument tells whether to return
            the log-sum-exp.
    """
    library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    ops = getattr(torch.ops, namespace)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        return serve(q, k, v, *rest, *_DEFAULTS[len(rest) :], False)

    def run_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = serve(q, k, v, *rest, *_DEFAULTS[len(rest) :], True)
        return o, lse.contiguous()

    def run_qkv(  # the defaults are those of the schema
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> Any:
        """Computes a call without features other than a causal mask."""
        return serve(q, k, v, None, None, None, causal, -1, -1, 0.0, None, 0, 0, layout, fallback, leaderboard, False)

    few = tuple(argument for argument in _REST if argument[0] in _FEW)
    for name, arguments, result, implementation, fake in (
        ("attention", _REST, "Tensor", run, _fake),
        ("attention_lse", _REST, "(Tensor, Tensor)", run_lse, _fake_lse),
        ("attention_qkv", few, "Tensor", run_qkv, _fake),
    ):
        library.define(f"{name}({_schema(arguments)}) -> {result}", tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            library.impl(name, implementation, key)
        torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)
        op = getattr(ops, name).default
        library.impl(name, _without_gradient(op, implementation), "Autograd", with_keyset=True)
    return Ops(ops.attention.default, ops.attention_lse.default, ops.attention_qkv.default)


def wants_gradient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: object) -> bool:
    """Returns whether one of the tensors requires a gradient."""
    if q.requires_grad or k.requires_grad or v.requires_grad:
        return True
    return isinstance(sink, torch.Tensor) and sink.requires_grad


def _without_gradient(op: Any, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the autograd kernel of an op: rejects gradients, and skips redispatch for plain tensors."""
    grad_enabled = torch.is_grad_enabled
    below, below_autograd = torch._C._after_autograd_keyset, torch._C._AutoDispatchBelowAutograd  # noqa: SLF001

    def kernel(keyset: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        if grad_enabled() and wants_gradient(q, k, v, rest[0] if rest else None):
            raise RuntimeError("this op has no gradient: call attention(...), which uses torch for calls that need one")
        if _PLAIN_KEYSETS and keyset.raw_repr() in _PLAIN_KEYSETS:
            return implementation(q, k, v, *rest)
        with below_autograd():
            return op.redispatch(keyset & below, q, k, v, *rest)

    return kernel


def _plain_keysets() -> Iterator[int]:
    """Yields the dispatch keys of plain tensors in a thread without modes; none if torch does not expose them."""
    keys, sets = torch._C.DispatchKey, torch._C.DispatchKeySet  # noqa: SLF001
    if not hasattr(sets, "raw_repr"):
        return
    for name in ("CPU", "CUDA"):
        plain = sets(getattr(keys, name)) | sets(getattr(keys, f"Autograd{name}"))
        yield plain.raw_repr()
        yield (plain | sets(keys.ADInplaceOrView)).raw_repr()


_PLAIN_KEYSETS: Final = frozenset(_plain_keysets())


def _schema(arguments: tuple[tuple[str, object], ...]) -> str:
    rest = (f"{name}={json.dumps(default) if isinstance(default, str) else default}" for name, default in arguments)
    return ", ".join(("Tensor q, Tensor k, Tensor v", *rest))


def _fake(q: torch.Tensor, *_others: Any) -> torch.Tensor:
    return output_like(q)


def _fake_lse(q: torch.Tensor, _k: torch.Tensor, _v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    shape: tuple[int, ...] = q.shape[:-1]
    if q.dim() == 3:
        shape = (shape[1], shape[0])
    elif rest[_LAYOUT_AT : _LAYOUT_AT + 1] == ("bshd",):
        shape = (shape[0], shape[2], shape[1])
    return output_like(q), q.new_empty(shape, dtype=torch.float32)
