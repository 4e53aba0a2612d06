"""The functions of the package ``flash_attn`` over ``evoengine.attention``, for FlashAttention's own tests.

The forward pass is that of ``attention`` with ``fallback=False``, so a kernel computes it or the call is refused;
launches are counted. Backward passes, which those tests contain as well, are plain torch operations.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch

from evoengine.errors import EvoEngineError, UsageError
from evoengine.runtime.call import Options
from evoengine.runtime.torch_fallback import torch_attention

PACKAGE: Final = "flash_attn"
_EMULATED: Final = (8, 9)
"""Compute capability of the emulator's kernels."""
Wrapping = Callable[[Callable[..., Any]], AbstractContextManager[None]]
"""``Dispatcher.wrapping`` of the dispatcher whose attention is tested."""


class RefusedError(Exception):
    """A call that kernels do not serve; the text is the reason."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a call besides tensors, as FlashAttention names them."""

    softmax_scale: float | None = None
    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0

    @property
    def window(self) -> tuple[int | None, int | None]:
        """Window of ``evoengine.attention``; a causal mask is its right side."""
        left, right = (None if int(side) < 0 else int(side) for side in self.window_size)
        return left, None if self.causal else right

    @property
    def options(self) -> Options:
        """The call as torch's attention takes it."""
        left, right = (-1 if side is None else side for side in self.window)
        scale, causal = self.softmax_scale, self.causal or right == 0
        return Options(
            causal, left, -1 if causal else right, self.softcap, scale, lse=True, layout="bshd",
            max_seqlen_q=self.max_seqlen_q, max_seqlen_kv=self.max_seqlen_k,
        )  # fmt: skip


class Adapter:
    """FlashAttention's functions, and the number of calls and launches.

    Args:
        attention: The tested function.
        wrapping: Wraps its launchers, to count launches.
    """

    def __init__(self, attention: Callable[..., Any], wrapping: Wrapping) -> None:
        self._attention = attention
        self._wrapping = wrapping
        self.calls = 0
        self.launches = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts launches inside of a ``with`` block."""

        def wrap(_tensors: object, _options: object, launcher: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any) -> Any:
                self.launches += 1
                return launcher(*arguments)

            return counted

        with self._wrapping(wrap):
            yield

    def flash_attn_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Any = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> Any:
        """Computes attention of [batch, rows, heads, head_dim]."""
        _refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
        said = Arguments(softmax_scale, causal, tuple(map(int, window_size)), softcap)
        return self._result(q, k, v, None, None, said, return_attn_probs)

    def flash_attn_varlen_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: Any = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: torch.Tensor | None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: torch.Tensor | None = None,
    ) -> Any:
        """Computes attention of packed sequences, [rows, heads, head_dim]."""
        _refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes, block_table=block_table)
        longest = int(max_seqlen_q), int(max_seqlen_k)
        said = Arguments(softmax_scale, causal, tuple(map(int, window_size)), softcap, *longest)
        return self._result(q, k, v, cu_seqlens_q, cu_seqlens_k, said, return_attn_probs)

    def flash_attn_kvpacked_func(self, q: torch.Tensor, kv: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Computes attention with K and V in one tensor, on axis 2."""
        return self.flash_attn_func(q, *kv.unbind(2), *rest, **named)

    def flash_attn_qkvpacked_func(self, qkv: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Computes attention with Q, K and V in one tensor, on axis 2."""
        return self.flash_attn_func(*qkv.unbind(2), *rest, **named)

    def flash_attn_varlen_kvpacked_func(self, q: torch.Tensor, kv: torch.Tensor, *rest: Any, **named: Any) -> Any:
        """Computes attention of packed sequences with K and V in one tensor, on axis 1."""
        return self.flash_attn_varlen_func(q, *kv.unbind(1), *rest, **named)

    def flash_attn_varlen_qkvpacked_func(
        self, qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *rest: Any, **named: Any
    ) -> Any:
        """Computes self-attention of packed sequences with Q, K and V in one tensor, on axis 1."""
        lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        return self.flash_attn_varlen_func(*qkv.unbind(1), *lengths, *rest, **named)

    def flash_attn_with_kvcache(self, *_arguments: Any, **_named: Any) -> Any:
        """Refuses every call."""
        raise RefusedError("kernels have no cache that they update or read by pages")

    def sdpa(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **named: Any) -> torch.Tensor:
        """Computes attention with the arguments of torch's SDPA.

        Raises:
            RefusedError: No kernel serves the call.
        """
        self.calls += 1
        try:
            o: torch.Tensor = self._attention(q, k, v, **named, fallback=False)
        except (EvoEngineError, ValueError) as error:
            raise RefusedError(str(error)) from error
        return o

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: tuple[Any, Any], said: Arguments
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes O and the log-sum-exp with a kernel.

        Raises:
            RefusedError: No kernel serves the call.
        """
        packed = {"cu_seqlens_q": starts[0], "cu_seqlens_kv": starts[1]}
        packed |= {"max_seqlen_q": said.max_seqlen_q, "max_seqlen_kv": said.max_seqlen_k}
        layout = {"layout": "bshd"} if starts[0] is None else packed
        self.calls += 1
        try:
            o, lse = self._attention(
                q, k, v, causal=said.causal, window=said.window, softcap=said.softcap, scale=said.softmax_scale,
                return_lse=True, fallback=False, **layout,
            )  # fmt: skip
        except EvoEngineError as error:
            raise RefusedError(str(error)) from error
        return o, lse

    def _result(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        starts_q: Any,
        starts_k: Any,
        said: Arguments,
        more: bool,
    ) -> Any:
        o, lse = _Attention.apply(self, q, k, v, (starts_q, starts_k), said)
        return (o, lse, None) if more else o


class _Attention(torch.autograd.Function):
    """A kernel's forward pass, and the gradient of torch's attention in float32."""

    @staticmethod
    def forward(ctx: Any, adapter: Adapter, q: Any, k: Any, v: Any, starts: Any, said: Arguments) -> Any:
        ctx.save_for_backward(q, k, v)
        ctx.starts, ctx.said = starts, said
        o, lse = adapter.forward(q, k, v, starts, said)
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _lse: Any) -> Any:
        with torch.enable_grad():
            tensors = [one.detach().float().requires_grad_() for one in ctx.saved_tensors]
            o, _ = torch_attention(ctx.said.options, *tensors, None, *ctx.starts)
        found = torch.autograd.grad(o, tensors, gradient.float())
        return None, *(one.to(kind.dtype) for one, kind in zip(found, ctx.saved_tensors, strict=True)), None, None


def _refuse(**given: Any) -> None:
    """Raises RefusedError for arguments that kernels lack."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise RefusedError(f"kernels have no {name}")


def load_tests(checkout: Path, adapter: Adapter, device: str = "cuda") -> types.ModuleType:
    """Imports FlashAttention's tests with the adapter in the place of the package that they test.

    Args:
        checkout: Checkout of FlashAttention.
        adapter: Functions to test.
        device: Device of the tensors; the tests themselves name cuda only.

    Raises:
        UsageError: The tests are not there, or a package that they import is missing.
    """
    path = checkout / "tests" / "test_flash_attn.py"
    if not path.is_file():
        raise UsageError(f"{path}: no such file: give the path of a checkout of FlashAttention")
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(checkout / PACKAGE)]
    for name in dir(adapter):
        if name.startswith("flash_attn_"):
            setattr(package, name, getattr(adapter, name))
    interface = _module("flash_attn_interface", _get_block_size_n=_unused, USE_TRITON_ROCM=False)
    layers, rotary = _module("layers"), _module("layers.rotary", apply_rotary_emb=_unused)
    for module in (package, interface, layers, rotary):
        sys.modules[module.__name__] = module
    tests = types.ModuleType("flash_attention_tests")
    tests.__file__ = str(path)
    text = path.read_text(encoding="utf-8")
    try:
        with _capability(device):
            exec(compile(text.replace('"cuda"', f'"{device}"'), str(path), "exec"), vars(tests))
    except ModuleNotFoundError as error:
        raise UsageError(f"{path}: {error}: run 'python -m pip install {error.name}'") from error
    return tests


def _capability(device: str) -> AbstractContextManager[Any]:
    """Lets the tests' import ask a CPU for its compute capability, on which some of their bounds depend."""
    if device == "cuda":
        return nullcontext()
    return mock.patch.object(torch.cuda, "get_device_capability", return_value=_EMULATED)


def _module(name: str, **content: Any) -> types.ModuleType:
    module = types.ModuleType(f"{PACKAGE}.{name}")
    vars(module).update(content)
    return module


def _unused(*_arguments: Any, **_named: Any) -> Any:
    raise RefusedError("the tests that call it are not run")
