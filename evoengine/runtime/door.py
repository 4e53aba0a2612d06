"""The function that users call: a lookup and a launch in eager mode, a custom op under ``torch.compile``.

How it decides: where a gradient is asked for, torch's own attention serves. Else the resolver is asked, once for each
kind of call; what it names is loaded and bound to a launcher, which later calls find by shapes, strides, types and
options.

Threads: each has its own launchers, so no two threads write one parameter block. Streams: a call goes to torch's
current stream. CUDA graphs: a kind of call must have been made once before it is captured, which prepares everything.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from evoengine.runtime.call import Call, Options, longest, read_call
from evoengine.runtime.doc import ATTENTION_DOC
from evoengine.runtime.driver import Driver, open_driver
from evoengine.runtime.launcher import Plan, Result, make_launcher
from evoengine.runtime.ops import free_namespace, register_ops
from evoengine.runtime.plain import plain_attention

Resolver = Callable[[Call, int, bool, str], "Plan | None"]
"""``resolve(call, device, required, leaderboard)``: the kernel for a call on a device (-1 is the CPU), or None where
torch is to serve it; with ``required`` it raises instead of answering None.
"""

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Q, K, V, sink, cu_seqlens_q, cu_seqlens_kv."""


_MOST_KINDS = 4096
"""Kinds of calls that are remembered: lengths that never come back must not fill the memory."""


class _Table(dict[Any, Callable[..., Result]]):
    """The launchers of one thread, by kind of call."""


class _Threads(threading.local):
    """Makes a table for each thread that asks, and lists it."""

    def __init__(self, tables: list[weakref.ref[_Table]]) -> None:
        self.table = _Table()
        tables.append(weakref.ref(self.table))


class Door:
    """Attention with the kernels that a resolver names, and the custom ops ``attention`` and ``attention_lse``.

    Args:
        namespace: of the ops; where it is taken it gets a number.
        resolve: see :data:`Resolver`.
        driver: opens what kernels run on, once there is one to run.
    """

    def __init__(self, namespace: str, resolve: Resolver, driver: Callable[[], Driver] = open_driver) -> None:
        self._resolve = resolve
        self._driver = driver
        self._lock = threading.Lock()
        self._plans: dict[tuple[Call, int, bool, str], Plan | None] = {}
        self._tables: list[weakref.ref[_Table]] = []
        direct = _direct(self, _Threads(self._tables))
        self.namespace = free_namespace(namespace)
        self.attention = _public(direct, *register_ops(self.namespace, direct))

    def forget(self) -> None:
        """Drops what was resolved: the next call of each kind asks anew."""
        with self._lock:
            self._plans.clear()
            for table in filter(None, (reference() for reference in self._tables)):
                table.clear()

    def prepare(self, tensors: Tensors, options: Options, fallback: bool, leaderboard: str) -> Callable[..., Result]:
        """What serves calls of one kind: ``launcher(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)``.

        Raises:
            ValueError: the tensors and options make no call.
            CudaDriverError: the driver does not take the kernel.
            RuntimeError: it must be prepared while a CUDA graph is captured.
        """
        q, k, v, sink, starts_q, starts_kv = tensors
        call = read_call(q, k, v, sink, starts_q, starts_kv, options)
        plan = self._plan(call, q.get_device() if q.is_cuda else -1, not fallback, leaderboard)
        if plan is None:
            return lambda *given: _result(plain_attention(options, *given))
        driver = self._driver()
        with driver.on(q.get_device()):
            return make_launcher(driver, plan, call, q, k, v, options.layout)

    def _plan(self, call: Call, device: int, required: bool, leaderboard: str) -> Plan | None:
        with self._lock:
            key = call, device, required, leaderboard
            if key not in self._plans:
                if device >= 0 and self._driver().capturing():
                    raise RuntimeError("call attention once with these shapes before a CUDA graph of it is captured")
                if len(self._plans) >= _MOST_KINDS:
                    self._plans.clear()
                self._plans[key] = self._resolve(call, device, required, leaderboard)
            return self._plans[key]


def _direct(door: Door, threads: _Threads) -> Callable[..., Result]:
    """Looks a launcher up and calls it. A closure: what it reads on each call are cells, not attributes."""

    def direct(  # what a call costs the host is mostly spent here
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
    ) -> Result:
        extras = None
        if sink is not None or starts_q is not None or starts_kv is not None:
            if starts_q is not None and starts_kv is not None and not (longest_q and longest_kv):
                longest_q, longest_kv = longest(starts_q), longest(starts_kv)
            extras = tuple(map(_facts, (sink, starts_q, starts_kv)))
        # fmt: off
        key = (
            q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
            q.get_device(), k.get_device(), v.get_device(), extras,
            causal, left, right, softcap, scale, longest_q, longest_kv, layout, fallback, leaderboard, lse,
        )
        # fmt: on
        launcher = threads.table.get(key)
        if launcher is None:
            options = Options(causal, left, right, softcap, scale, lse, layout, longest_q, longest_kv)
            launcher = door.prepare((q, k, v, sink, starts_q, starts_kv), options, fallback, leaderboard)
            if len(threads.table) >= _MOST_KINDS:
                threads.table.clear()
            threads.table[key] = launcher
        return launcher(q, k, v, sink, starts_q, starts_kv)

    return direct


def _public(
    direct: Callable[..., Result], op: Callable[..., Result], op_lse: Callable[..., Result]
) -> Callable[..., Any]:
    """The function that users call."""
    grad_enabled, compiling = torch.is_grad_enabled, torch.compiler.is_compiling
    modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)  # noqa: SLF001
    plain_tensor = torch.Tensor

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        causal: bool = False,
        window: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
        scale: float | None = None,
        sink: torch.Tensor | None = None,
        return_lse: bool = False,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        layout: str = "bhsd",
        fallback: bool = True,
        leaderboard: str = "",
    ) -> Result:
        left, right = window
        left, right = -1 if left is None else left, -1 if right is None else right
        longest_q, longest_kv = max_seqlen_q or 0, max_seqlen_kv or 0
        if grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
            if not fallback:
                raise ValueError("kernels have no gradient: leave fallback on, or call under torch.no_grad()")
            options = Options(causal, left, right, softcap, scale, return_lse, layout, longest_q, longest_kv)
            return _result(plain_attention(options, q, k, v, sink, cu_seqlens_q, cu_seqlens_kv))
        if not compiling() and type(q) is plain_tensor and type(k) is type(v) is plain_tensor and not modes():
            # fmt: off
            return direct(
                q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, causal, left, right, softcap, scale,
                longest_q, longest_kv, layout, fallback, leaderboard, return_lse,
            )
            # fmt: on
        if cu_seqlens_q is not None and not (longest_q and longest_kv):
            raise ValueError("compiled programs must be told max_seqlen_q and max_seqlen_kv of packed sequences")
        return (op_lse if return_lse else op)(
            *(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv, causal, left, right, float(softcap), scale),
            *(longest_q, longest_kv, layout, fallback, leaderboard),
        )

    attention.__doc__ = ATTENTION_DOC
    return attention


def _facts(tensor: torch.Tensor | None) -> object:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())


def _result(found: tuple[torch.Tensor, torch.Tensor | None]) -> Result:
    o, lse = found
    return o if lse is None else (o, lse)
