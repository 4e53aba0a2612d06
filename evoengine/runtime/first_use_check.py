"""A kernel compared with torch on random tensors, before it serves calls that nobody has checked it for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from evoengine.runtime.call import Call, Options, read_call
from evoengine.runtime.driver import Driver, open_driver
from evoengine.runtime.launcher import Plan, Result, make_launcher
from evoengine.runtime.lookup import Tensors
from evoengine.runtime.torch_fallback import plain_attention

_MOST_SCORES: Final = 2**26
"""Scores that the comparison holds at a time: a larger problem is tried with fewer sequences, heads and rows."""
_TRIAL_SEED: Final = 20260101
_CPU: Final = torch.device("cpu")
_TYPES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}


def try_kernel(plan_for: Callable[[Call], Plan], call: Call, device: int, driver: Driver | None = None) -> str:
    """Runs a kernel on random tensors like those of a call; says what is wrong, empty when nothing.

    The bound is like FlashAttention's: three times the error that torch makes in the same precision, and one rounding.

    Args:
        plan_for: the kernel's plan for a call that differs in sizes only.
        call: what it shall serve.
        device: ordinal of the GPU; -1 for the CPU, where a driver of one's own may run kernels.
        driver: what runs it; None for the CUDA driver.

    Returns:
        One line, or nothing.
    """
    try:
        driver = driver or open_driver()
        with driver.on(device):
            tensors, options = _random_call(_smaller(call), torch.device("cuda", device) if device >= 0 else _CPU)
            call = read_call(*tensors, options)
            launcher = make_launcher(driver, plan_for(call), call, *tensors[:3], options.layout, poison=True)
            return _wrong(launcher(*tensors), tensors, options)
    except RuntimeError as failure:  # of the driver, or what torch makes of a fault of the kernel
        return " ".join(str(failure).split())


def _wrong(found: Result, tensors: Tensors, options: Options) -> str:
    """Compares what a kernel wrote with attention in float32."""
    q, k, v, *others = tensors
    exact, exact_lse = plain_attention(options, q.float(), k.float(), v.float(), *others)
    rounded, _ = plain_attention(options, *tensors)
    o, lse = found if isinstance(found, tuple) else (found, None)
    step = 2.0**-10 if q.dtype is torch.float16 else 2.0**-7
    bound = 3 * _largest_error(rounded, exact) + step * float(exact.abs().max())
    error = _largest_error(o, exact)
    if not error <= bound:
        return f"its largest error is {error:.3g}, {bound:.3g} is allowed"
    if lse is not None and exact_lse is not None and not torch.allclose(lse, exact_lse, rtol=1e-3, atol=1e-3):
        return "its log-sum-exp differs"
    return ""


def _smaller(call: Call) -> Call:
    """The same kind of call with few enough scores."""
    if call.packed:
        longest_q, longest_kv = min(call.seq_q, 1024), min(call.seq_kv, 1024)
        return replace(call, batch=4, seq_q=longest_q, seq_kv=longest_kv, rows_q=2 * longest_q, rows_kv=2 * longest_kv)
    kv_heads = min(call.kv_heads, 2)
    heads, batch = kv_heads * (call.heads // call.kv_heads), min(call.batch, 2)
    most = math.isqrt(max(1, _MOST_SCORES // (heads * batch)))
    seq_q, seq_kv = min(call.seq_q, most), min(call.seq_kv, most)
    return replace(
        call, batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_kv=seq_kv, rows_q=seq_q, rows_kv=seq_kv
    )


def _random_call(call: Call, device: torch.device) -> tuple[Tensors, Options]:
    generator = torch.Generator(device).manual_seed(_TRIAL_SEED)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator, device=device)
        return values.to(_TYPES[call.dtype])

    lengths = {
        "q": (call.batch, call.heads, call.seq_q, call.rows_q),
        "kv": (call.batch, call.kv_heads, call.seq_kv, call.rows_kv),
    }
    shapes = {
        name: (rows, heads, call.head_dim) if call.packed else (batch, heads, rows, call.head_dim)
        for name, (batch, heads, _, rows) in lengths.items()
    }
    starts = [_starts(longest, device) if call.packed else None for _, _, longest, _ in lengths.values()]
    sink = torch.randn(call.heads, generator=generator, device=device) if call.sink else None
    options = Options(
        *(call.causal, call.window_left, call.window_right, call.softcap, call.scale, call.lse),
        max_seqlen_q=call.seq_q if call.packed else 0,
        max_seqlen_kv=call.seq_kv if call.packed else 0,
    )
    return (draw(*shapes["q"]), draw(*shapes["kv"]), draw(*shapes["kv"]), sink, starts[0], starts[1]), options


def _starts(longest: int, device: torch.device) -> torch.Tensor:
    """Four sequences, one of them empty, twice as long together as the longest."""
    some = longest // 3
    return torch.tensor([0, longest, longest + some, longest + some, 2 * longest], dtype=torch.int32, device=device)


def _largest_error(o: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest absolute difference; infinite where something is not a number."""
    difference = (o.float() - exact.float()).abs().max()
    return float(difference) if bool(torch.isfinite(difference)) else math.inf
