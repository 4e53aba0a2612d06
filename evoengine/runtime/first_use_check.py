"""Check of a kernel against torch on random tensors, before its first use for a problem and a kind of strides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Final

import torch

from evoengine.runtime.autocast import without_autocast
from evoengine.runtime.call import Call, CallStrides, Options, Strides, read_call
from evoengine.runtime.driver import Driver, open_driver
from evoengine.runtime.launcher import KernelPlan, Result, make_launcher
from evoengine.runtime.lookup import Tensors
from evoengine.runtime.torch_fallback import torch_attention

_MOST_SCORES: Final = 2**24
"""Maximum number of scores; larger problems are checked with fewer sequences, heads and rows."""
_WHOLE_SCORES: Final = 2**22
"""Number of scores up to which a problem is not reduced."""
_MOST_SEQUENCES: Final = 3
_MOST_KV_HEADS: Final = 3
_TRIAL_SEED: Final = 20260101
_CPU: Final = torch.device("cpu")
_TYPES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}


def check_kernel(
    plan_for: Callable[[Call], KernelPlan],
    call: Call,
    device: int,
    driver: Driver | None = None,
    *,
    strides: CallStrides | None = None,
    full: bool = False,
) -> str:
    """Runs a kernel on random tensors like those of a call and compares it with torch.

    The error bound follows FlashAttention's tests: three times the error of torch in the same precision, plus one
    rounding step.

    Args:
        plan_for: Returns the kernel's plan for a call that differs only in sizes.
        call: Call for which the kernel will be used.
        device: Ordinal of the GPU; -1 for the CPU, for drivers that run kernels there.
        driver: Driver; None for the CUDA driver.
        strides: Strides of Q, K and V, between whose elements there will be NaN; None for contiguous tensors.
        full: Whether to check the call at its full size, instead of fewer sequences, heads and rows.

    Returns:
        What is wrong, in one line; empty if the kernel is correct.
    """
    try:
        driver = driver or open_driver()
        with driver.on(device):
            where = torch.device("cuda", device) if device >= 0 else _CPU
            tensors, options = random_call(call if full else _reduced(call), where)
            call = read_call(*tensors, options)
            if strides is not None:
                tensors = (*map(_with_strides, tensors[:3], strides.elements), *tensors[3:])  # type: ignore[assignment]
            launcher = make_launcher(driver, plan_for(call), call, *tensors[:3], options.layout, poison=True)
            found = launcher(*tensors)
            parts = _heads(found, tensors) if full and not call.packed else iter([(found, tensors)])
            return next(filter(None, (_mismatch(*part, options) for part in parts)), "")
    except RuntimeError as failure:  # from the driver, or from torch after a fault of the kernel
        return " ".join(str(failure).split())


def _mismatch(found: Result, tensors: Tensors, options: Options) -> str:
    """Compares results with attention in float32; returns what is wrong."""
    q, k, v, *others = tensors
    # Outside of the modes of the user's call: autocast would cast float32, and a recorder would see calls of SDPA.
    with without_autocast(q.device.type), torch._C.DisableTorchFunction():  # noqa: SLF001 - there is no public name
        exact, exact_lse = torch_attention(options, q.float(), k.float(), v.float(), *others)
        rounded, _ = torch_attention(options, *tensors)
    o, lse = found if isinstance(found, tuple) else (found, None)
    step = 2.0**-10 if q.dtype is torch.float16 else 2.0**-7
    bound = 3 * _largest_error(rounded, exact) + step * float(exact.abs().max())
    error = _largest_error(o, exact)
    if not error <= bound:
        return f"its largest error is {error:.3g}, above the bound {bound:.3g}"
    if lse is not None and exact_lse is not None and not torch.allclose(lse, exact_lse, rtol=1e-3, atol=1e-3):
        return "its log-sum-exp differs"
    return ""


def _heads(found: Result, tensors: Tensors) -> Iterator[tuple[Result, Tensors]]:
    """Yields results and tensors of one query head each, since torch needs memory for all scores."""
    q, k, v, sink, starts_q, starts_kv = tensors
    group = q.shape[1] // k.shape[1]
    for batch in range(q.shape[0]):
        for head in range(q.shape[1]):
            b, h, kv = slice(batch, batch + 1), slice(head, head + 1), slice(head // group, head // group + 1)
            own = (found[0][b, h], found[1][b, h]) if isinstance(found, tuple) else found[b, h]
            yield own, (q[b, h], k[b, kv], v[b, kv], None if sink is None else sink[h], starts_q, starts_kv)


def is_checked_whole(call: Call) -> bool:
    """Returns whether :func:`check_kernel` checks a call at its full size in any case."""
    return not call.packed and call.batch * call.heads * call.seq_q * call.seq_kv <= _WHOLE_SCORES


def _reduced(call: Call) -> Call:
    """Returns a call of the same kind with at most :data:`_MOST_SCORES` scores."""
    if is_checked_whole(call):
        return call
    if call.packed:
        longest_q, longest_kv = min(call.seq_q, 1024), min(call.seq_kv, 1024)
        return replace(call, batch=4, seq_q=longest_q, seq_kv=longest_kv, rows_q=2 * longest_q, rows_kv=2 * longest_kv)
    kv_heads = min(call.kv_heads, _MOST_KV_HEADS)
    heads, batch = kv_heads * (call.heads // call.kv_heads), min(call.batch, _MOST_SEQUENCES)
    most = math.isqrt(max(1, _MOST_SCORES // (heads * batch)))
    seq_q, seq_kv = min(call.seq_q, most), min(call.seq_kv, most)
    return replace(
        call, batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq_q, seq_kv=seq_kv, rows_q=seq_q, rows_kv=seq_kv
    )


def random_call(call: Call, device: torch.device) -> tuple[Tensors, Options]:
    """Returns random tensors like those of a call, and its options."""
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
    starts = [
        _starts(batch, longest, rows, device) if call.packed else None for batch, _, longest, rows in lengths.values()
    ]
    sink = torch.randn(call.heads, generator=generator, device=device) if call.sink else None
    options = Options(
        *(call.causal, call.window_left, call.window_right, call.softcap, call.scale, call.lse),
        max_seqlen_q=call.seq_q if call.packed else 0,
        max_seqlen_kv=call.seq_kv if call.packed else 0,
    )
    return (draw(*shapes["q"]), draw(*shapes["kv"]), draw(*shapes["kv"]), sink, starts[0], starts[1]), options


def _with_strides(tensor: torch.Tensor, strides: Strides | None) -> torch.Tensor:
    """Copies ``[batch, heads, rows, head_dim]`` or ``[rows, heads, head_dim]`` to memory with these strides."""
    if strides is None:
        return tensor
    batch, head, row = strides
    steps = (row, head, 1) if tensor.dim() == 3 else (batch, head, row, 1)
    places = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for size, step in zip(tensor.shape, steps, strict=True):
        places = places[..., None] + step * torch.arange(size, device=tensor.device)
    memory = torch.full((int(places.max()) + 1,), math.nan, dtype=tensor.dtype, device=tensor.device)
    memory[places] = tensor  # where a stride is 0, one of several values stays
    return memory.as_strided(tensor.shape, steps)


def _starts(count: int, longest: int, total: int, device: torch.device) -> torch.Tensor:
    """Returns the starts of packed sequences: of four with twice the longest in total, so that one is empty."""
    lengths = [longest]
    if count == 4 and total == 2 * longest:
        lengths += [longest // 3, 0, longest - longest // 3]
    else:
        share, more = divmod(max(0, total - longest), max(1, count - 1))
        lengths += [share + (number < more) for number in range(count - 1)]
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def _largest_error(o: torch.Tensor, exact: torch.Tensor) -> float:
    """Returns the largest absolute difference; infinite if a value is not finite."""
    difference = (o.float() - exact.float()).abs().max()
    return float(difference) if bool(torch.isfinite(difference)) else math.inf
