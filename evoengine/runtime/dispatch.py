"""The public ``attention`` function: look-up and launch in eager mode, a custom op under ``torch.compile``.

Selection: torch computes calls that need a gradient. For other calls a resolver names the kernel, once per kind of
call; the kernel is loaded and bound to a launcher, which later calls find by shapes, strides, types and options (see
``lookup``).

Threads: every thread has its own launchers, so no two threads write to the same parameter block. Streams: a call runs
on torch's current stream. CUDA graphs: a kind of call must run once before it is captured, which loads its kernel.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import NoneType
from typing import Any, Final, cast

import torch

from evoengine.runtime.attention_type import AttentionFunction
from evoengine.runtime.autocast import cast_by_autocast, guard_with_autocast
from evoengine.runtime.call import Call, CallStrides, Options, call_strides, read_call, read_options
from evoengine.runtime.docstrings import ATTENTION_DOC
from evoengine.runtime.driver import Driver, open_driver
from evoengine.runtime.launcher import KernelPlan, Result, make_launcher, with_output_strides
from evoengine.runtime.lookup import (
    MAX_CACHED,
    GuardedLauncher,
    Launcher,
    LauncherCache,
    Tensors,
    ThreadCaches,
    launcher_lookup,
)
from evoengine.runtime.ops import Ops, free_namespace, register_ops, wants_gradient
from evoengine.runtime.sdpa_arguments import causal_flag, check_mask, scale_value, sdpa_attention, torch_only
from evoengine.runtime.torch_fallback import torch_attention

Resolver = Callable[[Call, int, bool, str, CallStrides], "KernelPlan | None"]
"""``resolve(call, device, required, leaderboard, strides)`` returns the kernel for a call on a device (-1 for the CPU),
or None if torch must compute it; with ``required`` it raises instead of returning None.
"""

Wrap = Callable[[Tensors, Options, Launcher], Launcher]
"""``wrap(tensors, options, launcher)`` returns the launcher for calls like one with these tensors and options."""

ARGUMENTS: Final = (
    *("causal", "is_causal", "dropout_p", "window", "softcap", "scale", "return_lse"),
    *("max_seqlen_q", "max_seqlen_kv", "layout", "fallback", "leaderboard"),
)
"""Keyword arguments of ``attention`` that are no tensors, in the order in which it passes them on."""
_WINDOW: Final = ARGUMENTS.index("window")
_OF_WRONG_ARGUMENTS: Final = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of an invalid call, whose arguments are then checked one by one."""


class Dispatcher:
    """Attention with kernels from a resolver, and its custom ops.

    Args:
        namespace: Namespace of the ops; a number is appended if it is taken.
        resolve: Resolver of kernels, see :data:`Resolver`.
        driver: Opens the driver when the first kernel is launched.
    """

    def __init__(self, namespace: str, resolve: Resolver, driver: Callable[[], Driver] = open_driver) -> None:
        self._resolve = resolve
        self._driver = driver
        self._lock = threading.Lock()
        self._plans: dict[tuple[Call, int, bool, str, CallStrides], KernelPlan | None] = {}
        self._wrap: Wrap | None = None
        self._caches: list[weakref.ref[LauncherCache]] = []
        threads = ThreadCaches(self._caches)
        find = launcher_lookup(self.prepare, threads)
        self.namespace = free_namespace(namespace)
        self.attention = _user_function(find, threads, register_ops(self.namespace, _op_implementation(find)))

    def forget(self) -> None:
        """Clears all caches: the next call of each kind is resolved again."""
        with self._lock:
            self._plans.clear()
            self._clear_launchers()

    @contextmanager
    def wrapping(self, wrap: Wrap) -> Iterator[None]:
        """Wraps the launchers of all calls that begin inside; other calls cost no time for it."""
        before = self._wrap
        self._set_wrap(wrap)
        try:
            yield
        finally:
            self._set_wrap(before)

    def _set_wrap(self, wrap: Wrap | None) -> None:
        with self._lock:
            self._wrap = wrap
            self._clear_launchers()

    def _clear_launchers(self) -> None:
        # A copy: a thread that ends removes its cache from the list, and a loop over the list would skip the next one.
        for cache in filter(None, (reference() for reference in tuple(self._caches))):
            cache.clear()

    def prepare(
        self, tensors: Tensors, options: Options, fallback: bool, leaderboard: str, fixed_strides: bool
    ) -> Launcher:
        """Creates the launcher for calls of one kind.

        Args:
            tensors: Tensors of such a call.
            options: Options of such a call.
            fallback: Whether torch may compute the call.
            leaderboard: Argument of the resolver.
            fixed_strides: Whether O must have the strides of ``output_like``, which torch's attention does not ensure.

        Raises:
            ValueError: The tensors and options are not a valid call.
            CudaDriverError: The driver rejects the kernel.
            RuntimeError: A CUDA graph is being captured.
        """
        q, k, v, sink, starts_q, starts_kv = tensors
        _check_source(fallback, leaderboard)
        call = read_call(q, k, v, sink, starts_q, starts_kv, options)
        strides = call_strides((q, k, v), call, options.layout)
        plan = self._plan(call, q.get_device() if q.is_cuda else -1, not fallback, leaderboard, strides)
        if plan is None:
            launcher = _torch_launcher(options, fixed_strides=fixed_strides)
        else:
            driver = self._driver()
            with driver.on(q.get_device()):
                launcher = make_launcher(driver, plan, call, q, k, v, options.layout)
        wrap = self._wrap
        return launcher if wrap is None else wrap(tensors, options, launcher)

    def _plan(
        self, call: Call, device: int, required: bool, leaderboard: str, strides: CallStrides
    ) -> KernelPlan | None:
        with self._lock:
            key = call, device, required, leaderboard, strides
            if required and self._plans.get((call, device, False, leaderboard, strides)) is not None:
                key = call, device, False, leaderboard, strides  # reuse the kernel resolved for a call with fallback
            if key not in self._plans:
                if device >= 0 and self._driver().capturing():
                    raise RuntimeError("call attention once with these shapes before a CUDA graph captures it")
                if len(self._plans) >= MAX_CACHED:
                    self._plans.clear()
                self._plans[key] = self._resolve(call, device, required, leaderboard, strides)
            return self._plans[key]


def _op_implementation(find: Callable[..., GuardedLauncher]) -> Callable[..., Result]:
    """Returns the implementation of the ops: finds the launcher of a call and runs it."""

    def serve(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> Result:
        _, launcher = find(q, k, v, *others, True)
        return launcher(q, k, v, *others[:3])

    return serve


def _user_function(find: Callable[..., GuardedLauncher], threads: ThreadCaches, ops: Ops) -> AttentionFunction:
    """Returns the public ``attention`` function."""
    compiling, general = torch.compiler.is_compiling, _general_path(find, threads, ops)
    with_sdpa_arguments = _sdpa_path(general)

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool | None = None,
        *,
        scale: float | torch.Tensor | None = None,
        enable_gqa: bool = False,  # noqa: ARG001 - kernels need no leave for grouped heads
        causal: bool | None = None,
        window: tuple[int | None, int | None] = (None, None),
        softcap: float = 0.0,
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
        """Computes attention; documented by :data:`ATTENTION_DOC`."""
        arguments = (
            causal, is_causal, dropout_p, window, softcap, scale if scale is None else scale_value(scale), return_lse,
            max_seqlen_q, max_seqlen_kv, layout, fallback, leaderboard,
        )
        # fmt: on
        if not compiling() and attn_mask is sink is cu_seqlens_q is cu_seqlens_kv is None:
            last, matches, launcher = threads.cache.last
            try:
                same = last == arguments and (window is last[_WINDOW] or _same_types(window, last)) and matches(q, k, v)
            except (AttributeError, RuntimeError, TypeError, ValueError):  # not comparable; refused below
                same = False
            if same:  # fast path: a call like the previous one
                return launcher(q, k, v)
        if is_causal is None and attn_mask is None and isinstance(dropout_p, float) and not dropout_p:
            return general(arguments, causal, q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)
        return with_sdpa_arguments(arguments, q, k, v, attn_mask, sink, cu_seqlens_q, cu_seqlens_kv)

    attention.__doc__, attention.__qualname__ = ATTENTION_DOC, attention.__name__
    return cast("AttentionFunction", attention)  # whose result depends on return_lse


def _general_path(find: Callable[..., GuardedLauncher], threads: ThreadCaches, ops: Ops) -> Callable[..., Result]:
    """Returns the function for calls that differ from the previous one; it explains what is wrong with a call."""
    serve, compiling = _unchecked_path(find, threads, ops), torch.compiler.is_compiling

    def general(arguments: tuple[Any, ...], causal: Any, q: Any, k: Any, v: Any, *others: Any) -> Result:
        """Computes a call in the types of autocast, or names what is wrong with an argument."""
        tensors = (*cast_by_autocast(q, k, v), *others)
        if compiling():
            return serve(arguments, bool(causal), *tensors)
        if causal is not None and type(causal) is not bool:
            _check_flag("causal", causal)
        try:
            return serve(arguments, bool(causal), *tensors)
        except _OF_WRONG_ARGUMENTS:
            check_call(arguments, *tensors)  # names what is wrong with an argument
            raise

    return general


def _unchecked_path(find: Callable[..., GuardedLauncher], threads: ThreadCaches, ops: Ops) -> Callable[..., Result]:
    """Returns the function that serves a call which may be invalid."""
    op, op_lse, op_qkv = ops.attention, ops.attention_lse, ops.attention_qkv
    grad_enabled, compiling = torch.is_grad_enabled, torch.compiler.is_compiling
    modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)  # noqa: SLF001
    plain_tensor = torch.Tensor

    def serve(
        arguments: tuple[Any, ...],
        causal: bool,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None,
        starts_q: torch.Tensor | None,
        starts_kv: torch.Tensor | None,
    ) -> Result:
        """Computes a call: with torch if it needs a gradient, with a launcher in eager mode, else with a custom op."""
        _, _, _, window, softcap, scale, lse, longest_q, longest_kv, layout, fallback, leaderboard = arguments
        left, right = window
        left, right = -1 if left is None else left, -1 if right is None else right
        longest_q, longest_kv = longest_q or 0, longest_kv or 0
        if grad_enabled() and wants_gradient(q, k, v, sink):
            options = Options(causal, left, right, softcap, scale, lse, layout, longest_q, longest_kv)
            return _with_gradient((q, k, v, sink, starts_q, starts_kv), options, fallback, leaderboard)
        if not compiling() and type(q) is plain_tensor and type(k) is type(v) is plain_tensor and not modes():
            cache = threads.cache
            launchers = cache.launchers
            # fmt: off
            guard, launcher = find(
                q, k, v, sink, starts_q, starts_kv, causal, left, right, softcap, scale,
                longest_q, longest_kv, layout, fallback, leaderboard, lse, False,
            )
            # fmt: on
            if guard is not None and _fixed(arguments):
                cache.remember(launchers, (arguments, guard_with_autocast(guard, q.device.type), launcher))
            return launcher(q, k, v, sink, starts_q, starts_kv)
        if starts_q is not None and not (longest_q and longest_kv):
            raise ValueError("compiled programs need max_seqlen_q and max_seqlen_kv for packed sequences")
        bare = sink is starts_q is starts_kv is None and left == right == -1 and not softcap and scale is None
        if bare and not lse:
            return op_qkv(q, k, v, causal, layout, fallback, leaderboard)
        return (op_lse if lse else op)(
            *(q, k, v, sink, starts_q, starts_kv, causal, left, right, float(softcap), scale),
            *(longest_q, longest_kv, layout, fallback, leaderboard),
        )

    return serve


def _with_gradient(tensors: Tensors, options: Options, fallback: bool, leaderboard: str) -> Result:
    """Computes a call that needs a gradient, with torch."""
    if not fallback:
        raise ValueError("kernels have no gradient: enable fallback, or call under torch.no_grad()")
    if not torch.compiler.is_compiling():
        _check_source(fallback, leaderboard)
        # Without a length, read_call would read it from the GPU; torch needs none.
        longest_q, longest_kv = options.max_seqlen_q or 1, options.max_seqlen_kv or 1
        read_call(*tensors, replace(options, max_seqlen_q=longest_q, max_seqlen_kv=longest_kv))
    return _result(torch_attention(options, *tensors))


def _same_types(window: tuple[Any, Any], arguments: Any) -> bool:
    """Returns whether a window has sides of the same types as the equal one of a known call.

    3.0 and True, which are refused, equal 3 and 1.
    """
    known = arguments[_WINDOW]
    return type(window[0]) is type(known[0]) and type(window[1]) is type(known[1])


def _fixed(arguments: tuple[Any, ...]) -> bool:
    """Returns whether the arguments keep their values: a tensor as a flag or a list as the window could be modified."""
    causal, is_causal, _, window, *_ = arguments
    return type(window) is tuple and not isinstance(causal, torch.Tensor) and not isinstance(is_causal, torch.Tensor)


def check_call(arguments: tuple[Any, ...], *tensors: Any) -> None:
    """Checks the arguments of ``attention``.

    Args:
        arguments: Values of the keyword arguments that are no tensors, in the order of :data:`ARGUMENTS`.
        *tensors: Q, K, V, sink, cu_seqlens_q, cu_seqlens_kv.

    Raises:
        TypeError: An argument has another type.
        ValueError: The tensors and options are not a valid call.
    """
    given = dict(zip(ARGUMENTS, arguments, strict=True))
    _check_source(given["fallback"], given["leaderboard"])
    _check_flags(given)
    given["causal"] = bool(given["causal"])
    for name in ("max_seqlen_q", "max_seqlen_kv"):
        given[name] = 1 if given[name] is None else given[name]  # or the GPU would be read, also in a graph's capture
    q, k, v, sink, starts_q, starts_kv = tensors
    read_call(q, k, v, sink, starts_q, starts_kv, read_options(given))


def _check_flags(given: Mapping[str, Any]) -> None:
    for name in ("causal", "is_causal"):
        if not isinstance(given[name], (bool, int, NoneType)):
            raise TypeError(f"{name} must be True, False or None, not a {type(given[name]).__name__}")
    if not isinstance(given["dropout_p"], (int, float)):
        raise TypeError(f"dropout_p must be a number, not a {type(given['dropout_p']).__name__}")
    if not 0 <= given["dropout_p"] <= 1:
        raise ValueError(f"dropout_p must be a number from 0 to 1, not {given['dropout_p']}")


def _check_flag(name: str, value: object) -> None:
    """Refuses a mask's flag whose truth means nothing, such as that of "False"; a scalar of torch or NumPy has one."""
    if not isinstance(value, (bool, int, NoneType)) and not hasattr(value, "dtype"):
        raise TypeError(f"{name} must be True, False or None, not a {type(value).__name__}")


def _check_source(fallback: object, leaderboard: object) -> None:
    if not isinstance(fallback, (bool, int)):
        raise TypeError(f"fallback must be True or False, not a {type(fallback).__name__}")
    if not isinstance(leaderboard, str):
        raise TypeError(f"leaderboard must be the path of a file as a str, not a {type(leaderboard).__name__}")


def _sdpa_path(general: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the function for calls with SDPA's ``attn_mask``, ``dropout_p`` or ``is_causal``."""
    compiling = torch.compiler.is_compiling

    def with_sdpa_arguments(
        arguments: tuple[Any, ...],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        sink: torch.Tensor | None,
        starts_q: torch.Tensor | None,
        starts_kv: torch.Tensor | None,
    ) -> Result:
        """Computes a call: by SDPA if no kernel could, else as without these arguments."""
        causal, is_causal, dropout_p, window, softcap, scale, lse, _, _, layout, fallback, _ = arguments
        causal = causal_flag(q, k, causal, is_causal, layout)
        reason = torch_only(q, k, mask, dropout_p, bool(is_causal), layout)
        if not reason:
            return general(arguments, causal, q, k, v, sink, starts_q, starts_kv)
        if not fallback:
            raise ValueError(f"{reason}: enable fallback, or leave the argument out")
        left, right = (-1 if side is None else side for side in window)
        options = Options(causal, left, right, softcap, scale, lse, layout)
        others = sink is not None or starts_q is not None
        return sdpa_attention(q, k, v, mask, dropout_p, bool(is_causal), options, others=others)

    def explained(arguments: tuple[Any, ...], q: Any, k: Any, v: Any, mask: Any, *others: Any) -> Result:
        """Computes a call, or names what is wrong with an argument."""
        q, k, v = cast_by_autocast(q, k, v)
        if compiling():
            return with_sdpa_arguments(arguments, q, k, v, mask, *others)
        _check_flag("causal", arguments[0])
        _check_flag("is_causal", arguments[1])
        try:
            return with_sdpa_arguments(arguments, q, k, v, mask, *others)
        except _OF_WRONG_ARGUMENTS:
            check_call(arguments, q, k, v, *others)
            check_mask(q, k, mask, arguments[ARGUMENTS.index("layout")])
            raise

    return explained


def _torch_launcher(options: Options, *, fixed_strides: bool) -> Callable[..., Result]:
    """Returns a launcher that computes a call with torch."""

    def run(q: torch.Tensor, *others: torch.Tensor | None) -> Result:
        o, lse = torch_attention(options, q, *others)  # type: ignore[arg-type]  # K and V are always given
        return _result((with_output_strides(o, q) if fixed_strides else o, lse))

    return run


def _result(found: tuple[torch.Tensor, torch.Tensor | None]) -> Result:
    o, lse = found
    return o if lse is None else (o, lse)
