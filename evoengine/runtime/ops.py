"""The custom ops of a door: what ``torch.compile``, fake tensors and graph captures see of attention."""

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
"""Arguments after Q, K and V, with defaults. Torch hands on what differs and all before it; each costs host time."""
_FEW: Final = ("bool causal", "str layout", "bool fallback", "str leaderboard")
_DEFAULTS: Final = tuple(default for _, default in _REST)
_LAYOUT_AT: Final = 10
"""Index of ``layout`` among them."""
_LIBRARIES: Final[list[torch.library.Library]] = []
"""Held: an op goes with its library."""


def free_namespace(name: str) -> str:
    """The name, or with a number behind it where it is taken: an exported module may be imported under two names."""
    names = itertools.chain((name,), (f"{name}_{number}" for number in itertools.count(2)))
    return next(candidate for candidate in names if not hasattr(getattr(torch.ops, candidate), "attention"))


@dataclass(frozen=True)
class Ops:
    """The ops of a door."""

    attention: Callable[..., torch.Tensor]
    """To O."""
    attention_lse: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    """To O and the log-sum-exp."""
    attention_qkv: Callable[..., torch.Tensor]
    """To O, of calls on nothing but Q, K and V without other features than a causal mask. A compiled program hands all
    arguments on, and here there are few."""


def register_ops(namespace: str, serve: Callable[..., Any]) -> Ops:
    """Defines the ops for CPU, CUDA and fake tensors.

    Args:
        namespace: of the ops.
        serve: runs a call, to an O with the strides of :func:`output_like`; its last argument says whether the
            log-sum-exp is wanted.
    """
    library: Any = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)
    ops = getattr(torch.ops, namespace)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        return serve(q, k, v, *rest, *_DEFAULTS[len(rest) :], False)

    def run_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        o, lse = serve(q, k, v, *rest, *_DEFAULTS[len(rest) :], True)
        return o, lse.contiguous()

    def run_qkv(  # its defaults are those of its schema
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool = False,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> Any:
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
    """Whether a gradient with respect to one of these is asked for, where gradients are on."""
    if q.requires_grad or k.requires_grad or v.requires_grad:
        return True
    return isinstance(sink, torch.Tensor) and sink.requires_grad


def _without_gradient(op: Any, implementation: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of an op where torch would record gradients: it refuses them, else takes the short way if it can."""
    grad_enabled = torch.is_grad_enabled
    below, beneath = torch._C._after_autograd_keyset, torch._C._AutoDispatchBelowAutograd  # noqa: SLF001

    def kernel(keyset: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        if grad_enabled() and wants_gradient(q, k, v, rest[0] if rest else None):
            raise RuntimeError(
                "this op has no gradient: call attention(...), which takes torch's own where one is asked for"
            )
        if _PLAIN and keyset.raw_repr() in _PLAIN:
            return implementation(q, k, v, *rest)
        with beneath():
            return op.redispatch(keyset & below, q, k, v, *rest)

    return kernel


def _plain_keysets() -> Iterator[int]:
    """What ops get as keys for tensors that nothing wraps, in a thread without modes; nothing where torch hides it."""
    keys, sets = torch._C.DispatchKey, torch._C.DispatchKeySet  # noqa: SLF001
    if not hasattr(sets, "raw_repr"):
        return
    for name in ("CPU", "CUDA"):
        plain = sets(getattr(keys, name)) | sets(getattr(keys, f"Autograd{name}"))
        yield plain.raw_repr()
        yield (plain | sets(keys.ADInplaceOrView)).raw_repr()


_PLAIN: Final = frozenset(_plain_keysets())


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
