"""Launchers: kernels bound to one kind of call. A launch only sets addresses and the stream.

A launcher belongs to one thread, because it packs parameters into its own buffers. Loaded machine code is shared.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from evoengine.runtime.call import EXTRAS, EXTRAS_AT, PARAM_BYTES, POINTERS, Call, readable_by_kernels, strides_of
from evoengine.runtime.driver import CudaDriverError, Driver, LaunchConfig
from evoengine.runtime.map_arguments import MapArguments, MapBox
from evoengine.runtime.shortcuts import Allocator, allocator_of

Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""O, or O and the log-sum-exp."""

_ROW_BYTES = 16
"""Alignment of addresses in bytes."""


@dataclass(frozen=True)
class Launch:
    """One launch of a call, with its sizes."""

    entry: str
    grid: tuple[int, int, int]
    threads: int
    smem_bytes: int


@dataclass(frozen=True)
class KernelPlan:
    """Machine code and launches of a kernel for one kind of call."""

    code: bytes
    """Cubin, or zero-terminated PTX."""
    launches: tuple[Launch, ...]
    workspace_bytes: int = 0
    counters: int = 0
    """Number of u32 counters that are zero before the first call; every call resets them to zero."""
    maps: tuple[MapBox, ...] = ()
    """Tensor maps in the second argument of every launch; without any there is no second argument."""


def output_like(q: torch.Tensor) -> torch.Tensor:
    """Allocates O in the layout of Q, or contiguously if the last axis of Q is not contiguous."""
    return torch.empty_like(q) if q.stride(-1) == 1 else torch.empty(q.shape, dtype=q.dtype, device=q.device)


def make_launcher(
    driver: Driver,
    plan: KernelPlan,
    call: Call,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    *,
    poison: bool = False,
) -> Callable[..., Result]:
    """Binds a kernel to calls with the given shapes, strides and features.

    Args:
        driver: Driver that loads the code.
        plan: Kernel and launch sizes.
        call: Call that was read from the tensors.
        q: Example of Q.
        k: Example of K.
        v: Example of V.
        layout: Order of the axes.
        poison: Whether outputs are filled with NaN before the launch, so that missing writes are detected.

    Returns:
        ``launcher(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)``; it copies tensors that kernels cannot read in place,
        with columns of zeros up to the head_dim of the call.

    Raises:
        CudaDriverError: The driver rejects the code.
    """
    o = output_like(q)
    if q.shape[-1] != call.head_dim or not all(readable_by_kernels(tensor, layout) for tensor in (q, k, v, o)):
        return _copying_launcher(driver, plan, call, q, k, v, layout, poison)
    strides = tuple(strides_of(tensor, call, layout) for tensor in (q, k, v, o))
    params = ctypes.create_string_buffer(call.params(*strides), PARAM_BYTES)
    device, pack = q.get_device(), POINTERS.pack_into
    arguments = (ctypes.c_void_p * (2 if plan.maps else 1))(ctypes.addressof(params))
    if plan.maps:
        pack = MapArguments(driver, call, plan.maps, strides, arguments).pack
    steps = tuple(_Step(driver, device, plan.code, launch, arguments) for launch in plan.launches)
    output = _Output(allocator_of(q.device), tuple(o.shape), o.stride(), o.dtype)
    binding = _Binding(driver, device, params, pack, steps, output, poison)
    if call.lse or call.sink or call.packed or plan.workspace_bytes or plan.counters or len(steps) > 1:
        return _full_launcher(binding, plan, call)
    return _minimal_launcher(binding)


class _Step:
    """One prepared launch and its ``CUlaunchConfig``, whose stream is set by each call."""

    def __init__(self, driver: Driver, device: int, code: bytes, launch: Launch, arguments: ctypes.Array[Any]) -> None:
        function = driver.function(device, code, launch.entry, launch.smem_bytes)
        self.config = LaunchConfig(*launch.grid, launch.threads, 1, 1, launch.smem_bytes, None, None, 0)
        self.launch = driver.launch_of(self.config, function, arguments)


@dataclass(frozen=True)
class _Output:
    """Allocator and layout of O."""

    allocate: Allocator
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class _Binding:
    """Data shared by both kinds of launcher."""

    driver: Driver
    device: int
    params: ctypes.Array[ctypes.c_char]
    pack: Callable[..., None]
    """``pack(params, 0, q, k, v, o)`` sets the addresses of a call."""
    steps: tuple[_Step, ...]
    output: _Output
    poison: bool

    @property
    def current(self) -> Callable[[], int] | None:
        """Returns the current GPU; None if there is only one."""
        return self.driver.current if self.driver.devices > 1 else None

    @property
    def allocate(self) -> Allocator:
        """Allocator of O."""
        return _poisoned(self.output.allocate) if self.poison else self.output.allocate

    def fail(self, status: int) -> CudaDriverError:
        """Returns the error for a failed launch."""
        return CudaDriverError(f"the launch failed: {self.driver.explain(status)}")


def _poisoned(allocate: Allocator) -> Allocator:
    return lambda *what: allocate(*what).fill_(math.nan)


def _minimal_launcher(binding: _Binding) -> Callable[..., Result]:
    """Returns the launcher of a kernel with one launch and no buffers besides Q, K, V and O."""
    (step,) = binding.steps
    launch, config, params, device = step.launch, step.config, binding.params, binding.device
    pack, stream_of, current = binding.pack, binding.driver.stream_of, binding.current
    output, allocate = binding.output, binding.allocate
    shape, strides, dtype = output.shape, output.strides, output.dtype

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_extras: torch.Tensor | None) -> Result:
        """Launches the kernel; makes its GPU current and aligns tensors first if necessary."""
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


def _full_launcher(binding: _Binding, plan: KernelPlan, call: Call) -> Callable[..., Result]:
    """Returns the launcher of any kernel."""
    stream_of, current = binding.driver.stream_of, binding.current
    output, allocate = binding.output, binding.allocate
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
        """Launches all steps of the kernel with its extra buffers."""
        if current is not None and current() != binding.device:
            with binding.driver.on(binding.device):
                return run(q, k, v, sink, cu_seqlens_q, cu_seqlens_kv)
        q, k, v = map(_aligned, (q, k, v))
        o, device = allocate(output.shape, output.strides, output.dtype), q.device
        lse = torch.empty(lse_shape, dtype=torch.float32, device=device) if call.lse else None
        if lse is not None and binding.poison:
            lse.fill_(math.nan)
        workspace = (
            torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device) if plan.workspace_bytes else None
        )
        stream = stream_of(binding.device)
        counted = counters.on(stream, device)
        extras = (lse, sink, cu_seqlens_q, cu_seqlens_kv, workspace, counted)
        binding.pack(binding.params, 0, q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr())
        EXTRAS.pack_into(binding.params, EXTRAS_AT, *(0 if tensor is None else tensor.data_ptr() for tensor in extras))
        for step in binding.steps:
            step.config.stream = stream
            status = step.launch()
            if status:
                raise binding.fail(status)
        return o if lse is None else (o, lse)

    return run


class _Counters:
    """Zeroed counters, one buffer per stream, because calls on one stream run one after another.

    A captured graph gets its own buffer and zeroes it, because it may be replayed on any stream.
    """

    def __init__(self, count: int, driver: Driver) -> None:
        self._count = count
        self._driver = driver
        self._by_stream: dict[int, torch.Tensor] = {}

    def on(self, stream: int, device: torch.device) -> torch.Tensor | None:
        """Returns zeroed counters for a stream; None if the kernel has none."""
        if not self._count:
            return None
        if self._driver.capturing():
            return torch.zeros(self._count, dtype=torch.int32, device=device)
        found = self._by_stream.get(stream)
        if found is None:
            found = self._by_stream[stream] = torch.zeros(self._count, dtype=torch.int32, device=device)
        return found


def _copying_launcher(
    driver: Driver,
    plan: KernelPlan,
    call: Call,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    poison: bool,
) -> Callable[..., Result]:
    """Returns a launcher that first copies or pads the tensors that kernels cannot read in place."""

    def readable(tensor: torch.Tensor) -> torch.Tensor:
        tensor = _padded(tensor, call.head_dim)
        return tensor if readable_by_kernels(tensor, layout) else tensor.contiguous()

    def with_readable_output(tensor: torch.Tensor) -> torch.Tensor:
        tensor = _padded(tensor, call.head_dim)
        in_place = all(readable_by_kernels(one, layout) for one in (tensor, output_like(tensor)))
        return tensor if in_place else tensor.contiguous()

    copies = with_readable_output(q), readable(k), readable(v)
    if not all(readable_by_kernels(tensor, layout) for tensor in copies):
        raise ValueError("kernels need rows that are less than 2^31 elements apart")
    inner = make_launcher(driver, plan, call, *copies, layout, poison=poison)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *extras: torch.Tensor | None) -> Result:
        result = inner(with_readable_output(q), readable(k), readable(v), *extras)
        if isinstance(result, tuple):
            return with_output_strides(result[0][..., : q.shape[-1]], q), result[1]
        return with_output_strides(result[..., : q.shape[-1]], q)

    return run


def _padded(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Returns a tensor with columns of zeros up to a head_dim; the tensor itself if it has that already."""
    if tensor.shape[-1] == head_dim:
        return tensor
    wide = tensor.new_zeros((*tensor.shape[:-1], head_dim))
    wide[..., : tensor.shape[-1]] = tensor
    return wide


def with_output_strides(o: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Returns O with the strides of :func:`output_like`, on which compiled programs rely."""
    return o if o.stride() == _output_strides(q.shape, q.stride()) else output_like(q).copy_(o)


@functools.lru_cache(maxsize=4096)
def _output_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return output_like(torch.empty_strided(shape, strides, device="meta")).stride()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor if its address is aligned to 16 bytes, else an aligned copy with the same strides."""
    if tensor.data_ptr() % _ROW_BYTES == 0:
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
