"""Which launcher serves a call: each thread remembers its own, and finds them by shapes, strides, types and options.

Asking tensors for all of that costs a sizeable part of what a launch costs. So calls on nothing but Q, K and V take a
shortcut: by options and the shape of K, and then torch compares tensors and modes with an earlier call's, all at once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from evoengine.runtime.call import Options, longest
from evoengine.runtime.launcher import Result
from evoengine.runtime.shortcuts import Recogniser, recogniser_of

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Q, K, V, sink, cu_seqlens_q, cu_seqlens_kv."""
Launcher = Callable[..., Result]
"""``launcher(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)``, or without the last three where there is none of them."""
Found = tuple[Recogniser | None, Launcher]
"""A launcher, and what recognises the next tensors that it serves; None where nothing does."""
Prepare = Callable[[Tensors, Options, bool, str, bool], Launcher]
"""``prepare(tensors, options, fallback, leaderboard, promised)``: makes the launcher for calls of one kind."""

MOST_KINDS = 4096
"""Kinds of calls that are remembered: lengths that never come back must not fill the memory."""
_MOST_ALIKE = 4
"""Shortcuts with one key: each that is looked at in vain costs a little."""


class Memory:
    """What one thread has prepared."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drops everything."""
        self.launchers: dict[Any, Launcher] = {}
        """By all that decides."""
        self.alike: dict[Any, tuple[tuple[Recogniser, Launcher], ...]] = {}
        """By options and the shape of K."""
        self.last: tuple[object, Recogniser, Launcher] = (None, _nothing, _nothing)
        """Options of the last call of ``attention``, what recognises its tensors, and what served it."""


class Threads(threading.local):
    """Makes a memory for each thread that asks, and lists it."""

    def __init__(self, memories: list[weakref.ref[Memory]]) -> None:
        self.memory = Memory()
        memories.append(weakref.ref(self.memory))


def finder(prepare: Prepare, threads: Threads) -> Callable[..., Found]:
    """What finds or prepares the launcher of a call."""

    def find(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None,
        starts_q: torch.Tensor | None,
        starts_kv: torch.Tensor | None,
        causal: bool,
        left: int,
        right: int,
        softcap: float,
        scale: float | None,
        longest_q: int,
        longest_kv: int,
        layout: str,
        fallback: bool,
        leaderboard: str,
        lse: bool,
        promised: bool,
    ) -> Found:
        memory = threads.memory
        alone = sink is starts_q is starts_kv is None
        if not alone and starts_q is not None and starts_kv is not None and not (longest_q and longest_kv):
            longest_q, longest_kv = longest(starts_q), longest(starts_kv)
        # fmt: off
        short = (
            k.shape, causal, left, right, softcap, scale,
            longest_q, longest_kv, layout, fallback, leaderboard, lse, promised,
        )
        # fmt: on
        alike = memory.alike.get(short, ()) if alone else ()
        for found in alike:
            if found[0](q, k, v):
                return found
        extras = None if alone else tuple(map(_facts, (sink, starts_q, starts_kv)))
        # fmt: off
        key = (
            short, q.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
            q.get_device(), k.get_device(), v.get_device(), extras,
        )
        # fmt: on
        launcher = memory.launchers.get(key)
        if launcher is None:
            options = Options(causal, left, right, softcap, scale, lse, layout, longest_q, longest_kv)
            launcher = prepare((q, k, v, sink, starts_q, starts_kv), options, fallback, leaderboard, promised)
            _remember(memory.launchers, key, launcher)
        recognises = recogniser_of(q, k, v) if alone and len(alike) < _MOST_ALIKE else None
        if recognises is not None:
            _remember(memory.alike, short, (*alike, (recognises, launcher)))
        return recognises, launcher

    return find


def _remember(table: dict[Any, Any], key: object, value: object) -> None:
    if len(table) >= MOST_KINDS:
        table.clear()
    table[key] = value


def _nothing(*_tensors: object) -> Any:
    return False


def _facts(tensor: torch.Tensor | None) -> object:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
