"""A kernel bound to one kind of call: what is left to do per call is four addresses, a stream and the launch.

A launcher belongs to one thread: it packs its parameters into buffers of its own. The loaded machine code is shared.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from evoengine.runtime.call import EXTRAS, EXTRAS_AT, PARAM_BYTES, POINTERS, Call, admissible, strides_of
from evoengine.runtime.driver import CudaDriverError, Driver, LaunchConfig
from evoengine.runtime.shortcuts import Allocator, allocator_of

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""O, or O and the log-sum-exp."""

_ROW_BYTES = 16
"""Addresses are multiples of this."""


@dataclass(frozen=True)
class Launch:
    """One launch of a call, its sizes worked out."""

    entry: str
    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int


@dataclass(frozen=True)
class Plan:
    """A kernel for one kind of call."""

    code: bytes
    """Cubin, or PTX with a zero at its end."""
    launches: tuple[Launch, ...]
    workspace_bytes: int = 0
    counters: int = 0
    """u32 that are zero before the first call; each call leaves them so."""


def output_like(q: torch.Tensor) -> torch.Tensor:
    """Memory for O: laid out as Q, unless Q's last axis is not the innermost."""
    return torch.empty_like(q) if q.stride(-1) == 1 else torch.empty(q.shape, dtype=q.dtype, device=q.device)


def make_launcher(
    driver: Driver,
    plan: Plan,
    call: Call,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    *,
    poison: bool = False,
) -> Callable[..., Result]:
    """Binds a kernel to calls with the shapes, strides and features of this one.

    Args:
        driver: where the code is loaded.
        plan: kernel and sizes.
        call: what was read from the tensors.
        q: like those that will come.
        k: likewise.
        v: likewise.
        layout: of the axes.
        poison: hand NaN to the kernel in the memory that it is to write, so that what it leaves out shows.

    Returns:
        ``launcher(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)``. What kernels cannot read where it lies is copied.

    Raises:
        CudaDriverError: the driver does not take the code.
    """
    o = output_like(q)
    if not all(admissible(tensor, layout) for tensor in (q, k, v, o)):
        return _copying(driver, plan, call, q, k, v, layout, poison)
    params = ctypes.create_string_buffer(call.params(*(strides_of(t, call, layout) for t in (q, k, v, o))), PARAM_BYTES)
    device = q.get_device()
    pointer = (ctypes.c_void_p * 1)(ctypes.addressof(params))
    steps = tuple(_Step(driver, device, plan.code, launch, pointer) for launch in plan.launches)
    memory = _Memory(allocator_of(q.device), tuple(o.shape), o.stride(), o.dtype)
    binding = _Binding(driver, device, params, steps, memory, poison)
    if call.lse or call.sink or call.packed or plan.workspace_bytes or plan.counters or len(steps) > 1:
        return _full(binding, plan, call)
    return _short(binding)


class _Step:
    """One launch, prepared: what does it, and its ``CUlaunchConfig``, whose stream each call writes."""

    def __init__(self, driver: Driver, device: int, code: bytes, launch: Launch, pointer: ctypes.Array[Any]) -> None:
        function = driver.function(device, code, launch.entry, launch.smem_bytes)
        self.config = LaunchConfig(*launch.grid, launch.threads, 1, 1, launch.smem_bytes, None, None, 0)
        self.launch = driver.launch_of(self.config, function, pointer)


@dataclass(frozen=True)
class _Memory:
    """What O is."""

    allocate: Allocator
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class _Binding:
    """What both kinds of launcher need."""

    driver: Driver
    device: int
    params: ctypes.Array[ctypes.c_char]
    steps: tuple[_Step, ...]
    memory: _Memory
    """For O."""
    poison: bool

    @property
    def current(self) -> Callable[[], int] | None:
        """Says which GPU is current; None where there is one only."""
        return self.driver.current if self.driver.devices > 1 else None

    @property
    def allocate(self) -> Allocator:
        """What makes the memory for O."""
        return _poisoned(self.memory.allocate) if self.poison else self.memory.allocate

    def fail(self, status: int) -> CudaDriverError:
        """The error of a launch that was refused."""
        return CudaDriverError(f"the launch failed: {self.driver.explain(status)}")


def _poisoned(allocate: Allocator) -> Allocator:
    return lambda *what: allocate(*what).fill_(math.nan)


def _short(binding: _Binding) -> Callable[..., Result]:
    """The launcher of a kernel with one step that reads and writes nothing but Q, K, V and O."""
    (step,) = binding.steps
    launch, config, params, device = step.launch, step.config, binding.params, binding.device
    pack, stream_of, current = POINTERS.pack_into, binding.driver.stream_of, binding.current
    memory, allocate = binding.memory, binding.allocate
    shape, strides, dtype = memory.shape, memory.strides, memory.dtype

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_extras: torch.Tensor | None) -> Result:
        if current is not None and current() != device:
            with binding.driver.on(device):
                return run(q, k, v)
        q_at, k_at, v_at = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (q_at | k_at | v_at) % _ROW_BYTES:
            return run(*map(_aligned, (q, k, v)))
        o = allocate(shape, strides, dtype)
        pack(params, 0, q_at, k_at, v_at, o.data_ptr())
        config.stream = stream_of(device)
        status = launch()
        if status:
            raise binding.fail(status)
        return o

    return run


def _full(binding: _Binding, plan: Plan, call: Call) -> Callable[..., Result]:
    """The launcher of any kernel."""
    stream_of, current = binding.driver.stream_of, binding.current
    memory, allocate = binding.memory, binding.allocate
    counters = _Counters(plan.counters, binding.driver)
    lse_shape = (call.heads, call.rows_q) if call.packed else (call.batch, call.heads, call.rows_q)

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sink: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_kv: torch.Tensor | None = None,
    ) -> Result:
        if current is not None and current() != binding.device:
            with binding.driver.on(binding.device):
                return run(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)
        q, k, v = map(_aligned, (q, k, v))
        o, device = allocate(memory.shape, memory.strides, memory.dtype), q.device
        lse = torch.empty(lse_shape, dtype=torch.float32, device=device) if call.lse else None
        if lse is not None and binding.poison:
            lse.fill_(math.nan)
        workspace = (
            torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device) if plan.workspace_bytes else None
        )
        stream = stream_of(binding.device)
        counted = counters.on(stream, device)
        extras = (lse, sink, cu_seqlens_q, cu_seqlens_kv, workspace, counted)
        POINTERS.pack_into(binding.params, 0, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr())
        EXTRAS.pack_into(binding.params, EXTRAS_AT, *(0 if tensor is None else tensor.data_ptr() for tensor in extras))
        for step in binding.steps:
            step.config.stream = stream
            status = step.launch()
            if status:
                raise binding.fail(status)
        return o if lse is None else (o, lse)

    return run


class _Counters:
    """Zeroed counters, some for each stream: calls on one stream follow each other, so they may share them.

    A captured graph gets its own, with the zeroing in it: nobody knows on which streams it will be replayed.
    """

    def __init__(self, count: int, driver: Driver) -> None:
        self._count = count
        self._driver = driver
        self._by_stream: dict[int, torch.Tensor] = {}

    def on(self, stream: int, device: torch.device) -> torch.Tensor | None:
        if not self._count:
            return None
        if self._driver.capturing():
            return torch.zeros(self._count, dtype=torch.int32, device=device)
        found = self._by_stream.get(stream)
        if found is None:
            found = self._by_stream[stream] = torch.zeros(self._count, dtype=torch.int32, device=device)
        return found


def _copying(
    driver: Driver, plan: Plan, call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str, poison: bool
) -> Callable[..., Result]:
    """The launcher for tensors that kernels cannot read where they lie: each of those is copied first."""

    def readable(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if admissible(tensor, layout) else tensor.contiguous()

    def with_room(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if all(admissible(t, layout) for t in (tensor, output_like(tensor))) else tensor.contiguous()

    copies = with_room(q), readable(k), readable(v)
    if not all(admissible(tensor, layout) for tensor in copies):
        raise ValueError(f"kernels need a head_dim that is a multiple of 8, not {q.shape[-1]}")
    inner = make_launcher(driver, plan, call, *copies, layout, poison=poison)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *extras: torch.Tensor | None) -> Result:
        result = inner(with_room(q), readable(k), readable(v), *extras)
        if isinstance(result, tuple):
            return laid_out(result[0], q), result[1]
        return laid_out(result, q)

    return run


def laid_out(o: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """O with the strides that :func:`output_like` gives, which is what a compiled program counts on."""
    return o if o.stride() == _output_strides(q.shape, q.stride()) else output_like(q).copy_(o)


@functools.lru_cache(maxsize=4096)
def _output_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return output_like(torch.empty_strided(shape, strides, device="meta")).stride()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor where its first element lies on 16 bytes, else a copy with the same strides."""
    if tensor.data_ptr() % _ROW_BYTES == 0:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
