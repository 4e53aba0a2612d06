"""Launcher look-up: every thread caches its launchers by shapes, strides, types and options of the call.

Reading these properties takes a considerable share of the time of a launch. Calls without further tensors therefore
use a shortcut: the options and the shape of K select a few launchers, and torch compares the tensors and modes with
those of an earlier call in one step (a *guard*).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from evoengine.runtime.call import Options, longest_sequence
from evoengine.runtime.launcher import Result
from evoengine.runtime.shortcuts import TensorGuard, tensor_guard

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Q, K, V, sink, cu_seqlens_q, cu_seqlens_kv."""
Launcher = Callable[..., Result]
"""``launcher(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)``; the last three may be omitted if they are None."""
GuardedLauncher = tuple[TensorGuard | None, Launcher]
"""A launcher, and the guard of the tensors that it supports; None if there is no guard."""
Prepare = Callable[[Tensors, Options, bool, str, bool], Launcher]
"""``prepare(tensors, options, fallback, leaderboard, fixed_strides)`` creates the launcher for calls of one kind."""

MAX_CACHED = 4096
"""Maximum number of cached kinds of calls, so that ever new lengths do not fill the memory."""
_MAX_GUARDS = 4
"""Maximum number of guards with equal options and shape of K; each failed comparison costs time."""


class LauncherCache:
    """Launchers of one thread."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.launchers: dict[Any, Launcher] = {}
        """Launchers by all properties of a call."""
        self.guarded: dict[Any, tuple[tuple[TensorGuard, Launcher], ...]] = {}
        """Guards and launchers by options and shape of K."""
        self.last: tuple[object, TensorGuard, Launcher] = (None, _no_match, _no_match)
        """Arguments, guard and launcher of the previous call of ``attention``."""

    def remember(self, launchers: dict[Any, Launcher], call: tuple[object, TensorGuard, Launcher]) -> None:
        """Sets ``last``, unless the cache was cleared by another thread after its ``launchers`` were read."""
        self.last = call
        if self.launchers is not launchers:  # checked afterwards: ``clear`` replaces ``launchers`` before ``last``
            self.last = (None, _no_match, _no_match)


class ThreadCaches(threading.local):
    """One launcher cache per thread; those of live threads are listed in ``caches``."""

    def __init__(self, caches: list[weakref.ref[LauncherCache]]) -> None:
        self.cache = LauncherCache()
        caches.append(weakref.ref(self.cache, caches.remove))


def launcher_lookup(prepare: Prepare, threads: ThreadCaches) -> Callable[..., GuardedLauncher]:
    """Returns a function that finds or creates the launcher of a call."""

    def find(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        sink: torch.Tensor | None, starts_q: torch.Tensor | None, starts_kv: torch.Tensor | None,
        causal: bool, left: int, right: int, softcap: float, scale: float | None,
        longest_q: int, longest_kv: int, layout: str, fallback: bool, leaderboard: str, lse: bool, fixed_strides: bool,
    ) -> GuardedLauncher:  # fmt: skip
        """Returns the cached or new launcher of a call, and its guard if it has one."""
        cache = threads.cache
        launchers, guards = cache.launchers, cache.guarded  # if they are cleared meanwhile, these are discarded
        alone = sink is starts_q is starts_kv is None
        if not alone and starts_q is not None and starts_kv is not None and not (longest_q and longest_kv):
            longest_q, longest_kv = longest_sequence(starts_q), longest_sequence(starts_kv)
        # fmt: off
        options_key = (
            k.shape, causal, left, right, type(left), type(right), softcap, scale,  # 3 and 3.0 are equal keys
            longest_q, longest_kv, layout, fallback, leaderboard, lse, fixed_strides,
        )
        # fmt: on
        guarded = guards.get(options_key, ()) if alone else ()
        for found in guarded:
            if found[0](q, k, v):
                return found
        extras = None if alone else tuple(map(_properties, (sink, starts_q, starts_kv)))
        # fmt: off
        key = (
            options_key, q.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
            q.get_device(), k.get_device(), v.get_device(), extras,
        )
        # fmt: on
        launcher = launchers.get(key)
        if launcher is None:
            options = Options(causal, left, right, softcap, scale, lse, layout, longest_q, longest_kv)
            launcher = prepare((q, k, v, sink, starts_q, starts_kv), options, fallback, leaderboard, fixed_strides)
            _store(launchers, key, launcher)
        guard = tensor_guard(q, k, v) if alone and len(guarded) < _MAX_GUARDS else None
        if guard is not None:
            _store(guards, options_key, (*guarded, (guard, launcher)))
        return guard, launcher

    return find


def _store(table: dict[Any, Any], key: object, value: object) -> None:
    if len(table) >= MAX_CACHED:
        table.clear()
    table[key] = value


def _no_match(*_tensors: object) -> Any:
    return False


def _properties(tensor: torch.Tensor | None) -> object:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
