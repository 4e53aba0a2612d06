"""The function that users call: a lookup and a launch in eager mode, a custom op under ``torch.compile``.

How it decides: where a gradient is asked for, torch's own attention serves. Else the resolver is asked, once for each
kind of call; what it names is loaded and bound to a launcher, which later calls find by shapes, strides, types and
options (``lookup``).

Threads: each has its own launchers, so no two threads write one parameter block. Streams: a call goes to torch's
current stream. CUDA graphs: a kind of call must have been made once before it is captured, which prepares everything.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from evoengine.runtime.call import Call, Options, read_call
from evoengine.runtime.docstrings import ATTENTION_DOC
from evoengine.runtime.driver import Driver, open_driver
from evoengine.runtime.launcher import Plan, Result, laid_out, make_launcher
from evoengine.runtime.lookup import MOST_KINDS, Found, Launcher, Memory, Tensors, Threads, finder
from evoengine.runtime.ops import Ops, free_namespace, register_ops, wants_gradient
from evoengine.runtime.torch_fallback import plain_attention

Resolver = Callable[[Call, int, bool, str], "Plan | None"]
"""``resolve(call, device, required, leaderboard)``: the kernel for a call on a device (-1 is the CPU), or None where
torch is to serve it; with ``required`` it raises instead of answering None.
"""


class Dispatcher:
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
        self._memories: list[weakref.ref[Memory]] = []
        threads = Threads(self._memories)
        find = finder(self.prepare, threads)
        self.namespace = free_namespace(namespace)
        self.attention = _public(find, threads, register_ops(self.namespace, _served(find)))

    def forget(self) -> None:
        """Drops what was resolved: the next call of each kind asks anew."""
        with self._lock:
            self._plans.clear()
            for memory in filter(None, (reference() for reference in self._memories)):
                memory.clear()

    def prepare(self, tensors: Tensors, options: Options, fallback: bool, leaderboard: str, promised: bool) -> Launcher:
        """What serves calls of one kind.

        Args:
            tensors: of such a call.
            options: likewise.
            fallback: torch may serve.
            leaderboard: for the resolver.
            promised: O has the strides of ``output_like``; torch's own attention has others at times.

        Raises:
            ValueError: the tensors and options make no call.
            CudaDriverError: the driver does not take the kernel.
            RuntimeError: it must be prepared while a CUDA graph is captured.
        """
        q, k, v, sink, starts_q, starts_kv = tensors
        call = read_call(q, k, v, sink, starts_q, starts_kv, options)
        plan = self._plan(call, q.get_device() if q.is_cuda else -1, not fallback, leaderboard)
        if plan is None:
            return _plain(options, promised=promised)
        driver = self._driver()
        with driver.on(q.get_device()):
            return make_launcher(driver, plan, call, q, k, v, options.layout)

    def _plan(self, call: Call, device: int, required: bool, leaderboard: str) -> Plan | None:
        with self._lock:
            key = call, device, required, leaderboard
            if required and self._plans.get((call, device, False, leaderboard)) is not None:
                key = call, device, False, leaderboard  # a kernel serves already where torch might
            if key not in self._plans:
                if device >= 0 and self._driver().capturing():
                    raise RuntimeError("call attention once with these shapes before a CUDA graph of it is captured")
                if len(self._plans) >= MOST_KINDS:
                    self._plans.clear()
                self._plans[key] = self._resolve(call, device, required, leaderboard)
            return self._plans[key]


def _served(find: Callable[..., Found]) -> Callable[..., Result]:
    """What serves the ops: the launcher of a call, found and called."""

    def serve(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> Result:
        _, launcher = find(q, k, v, *others, True)
        return launcher(q, k, v, *others[:3])

    return serve


def _public(find: Callable[..., Found], threads: Threads, ops: Ops) -> Callable[..., Any]:
    """The function that users call."""
    compiling = torch.compiler.is_compiling
    ordinary = _ordinary(find, threads, ops)

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
        # fmt: off
        asked = (
            causal, window, softcap, scale, return_lse, max_seqlen_q, max_seqlen_kv, layout, fallback, leaderboard,
        )
        # fmt: on
        if not compiling() and sink is cu_seqlens_q is cu_seqlens_kv is None:
            known, recognises, launcher = threads.memory.last
            if known == asked and recognises(q, k, v):  # a call like the last one: as little as possible happens
                return launcher(q, k, v)
        return ordinary(asked, q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)

    attention.__doc__ = ATTENTION_DOC
    return attention


def _ordinary(find: Callable[..., Found], threads: Threads, ops: Ops) -> Callable[..., Result]:
    """What serves a call that is not like the one before."""
    op, op_lse, op_qkv = ops.attention, ops.attention_lse, ops.attention_qkv
    grad_enabled, compiling = torch.is_grad_enabled, torch.compiler.is_compiling
    modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)  # noqa: SLF001
    plain_tensor = torch.Tensor

    def ordinary(
        asked: tuple[Any, ...],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None,
        starts_q: torch.Tensor | None,
        starts_kv: torch.Tensor | None,
    ) -> Result:
        causal, window, softcap, scale, lse, longest_q, longest_kv, layout, fallback, leaderboard = asked
        left, right = window
        left, right = -1 if left is None else left, -1 if right is None else right
        longest_q, longest_kv = longest_q or 0, longest_kv or 0
        if grad_enabled() and wants_gradient(q, k, v, sink):
            if not fallback:
                raise ValueError("kernels have no gradient: leave fallback on, or call under torch.no_grad()")
            options = Options(causal, left, right, softcap, scale, lse, layout, longest_q, longest_kv)
            return _result(plain_attention(options, q, k, v, sink, starts_q, starts_kv))
        if not compiling() and type(q) is plain_tensor and type(k) is type(v) is plain_tensor and not modes():
            # fmt: off
            found, launcher = find(
                q, k, v, sink, starts_q, starts_kv, causal, left, right, softcap, scale,
                longest_q, longest_kv, layout, fallback, leaderboard, lse, False,
            )
            # fmt: on
            if found is not None and type(window) is tuple:  # a list may hold something else by the next call
                threads.memory.last = asked, found, launcher
            return launcher(q, k, v, sink, starts_q, starts_kv)
        if starts_q is not None and not (longest_q and longest_kv):
            raise ValueError("compiled programs must be told max_seqlen_q and max_seqlen_kv of packed sequences")
        bare = sink is starts_q is starts_kv is None and left == right == -1 and not softcap and scale is None
        if bare and not lse:
            return op_qkv(q, k, v, causal, layout, fallback, leaderboard)
        return (op_lse if lse else op)(
            *(q, k, v, sink, starts_q, starts_kv, causal, left, right, float(softcap), scale),
            *(longest_q, longest_kv, layout, fallback, leaderboard),
        )

    return ordinary


def _plain(options: Options, *, promised: bool) -> Callable[..., Result]:
    """The launcher of torch's own attention."""

    def run(q: torch.Tensor, *others: torch.Tensor | None) -> Result:
        o, lse = plain_attention(options, q, *others)  # type: ignore[arg-type]  # K and V are there
        return _result((laid_out(o, q) if promised else o, lse))

    return run


def _result(found: tuple[torch.Tensor, torch.Tensor | None]) -> Result:
    o, lse = found
    return o if lse is None else (o, lse)
