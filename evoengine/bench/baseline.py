"""The speed to beat: PyTorch's SDPA on the GPU, every backend that takes the problem, each in a CUDA graph.

torch is imported inside the functions; on a machine without a GPU there is no baseline.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from evoengine.bench.statistics import median_interval
from evoengine.bench.timer import sample_interleaved
from evoengine.device.base import Stopwatch, StopwatchOptions
from evoengine.kernel.call import AttentionInputs, Bits
from evoengine.model import DType

if TYPE_CHECKING:
    import torch

BACKENDS: Final = ("flash", "efficient", "cudnn", "math")
_ENUM_NAMES: Final = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}
_PICK_SAMPLES: Final = 15
_PICK_WARMUP: Final = 3
_CAPTURE_WARMUP: Final = 3


@dataclass(frozen=True)
class BaselineRow:
    """One SDPA backend, for reports."""

    backend: str
    median_us: float | None
    """None when the backend does not take the problem."""
    reason: str = ""
    """Why not."""


@dataclass
class Baseline:
    """The fastest backend, captured and ready to be sampled beside candidates."""

    name: str
    stopwatch: Stopwatch
    rows: tuple[BaselineRow, ...]
    """All backends, in the order of :data:`BACKENDS`."""

    def close(self) -> None:
        """Frees graph and tensors."""
        self.stopwatch.close()


def open_baseline(inputs: AttentionInputs, options: StopwatchOptions) -> Baseline | None:
    """Captures every backend that works, times them in turns, and keeps the fastest.

    Args:
        inputs: the same bits that candidates get; SDPA gets them as contiguous ``[batch, heads, seq, head_dim]``.
        options: the same as for candidates.

    Returns:
        None when torch is missing, sees no GPU, or no backend takes the problem.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    call = _Sdpa(inputs)
    watches: dict[str, Stopwatch] = {}
    reasons: dict[str, str] = {}
    for backend in BACKENDS:
        try:
            watches[backend] = _SdpaStopwatch(call, backend, options)
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:  # torch's ways to say "not supported"
            reasons[backend] = str(error).split("\n", 1)[0]
    if not watches:
        return None
    sampled = sample_interleaved(list(watches.values()), _PICK_SAMPLES, _PICK_WARMUP)
    medians = {name: median_interval(samples).median for name, samples in zip(watches, sampled, strict=True)}
    fastest = min(medians, key=lambda name: medians[name])
    for name, watch in watches.items():
        if name != fastest:
            watch.close()
    rows = tuple(BaselineRow(name, medians.get(name), reasons.get(name, "")) for name in BACKENDS)
    return Baseline(f"sdpa-{fastest}", watches[fastest], rows)


class _Sdpa:
    """One SDPA call on the GPU, with the backend still open."""

    def __init__(self, inputs: AttentionInputs) -> None:
        import torch

        problem = inputs.problem
        dtype = torch.float16 if problem.dtype is DType.FP16 else torch.bfloat16

        def upload(bits: Bits) -> torch.Tensor:
            host = torch.from_numpy(np.ascontiguousarray(bits).view(np.int16))
            return host.view(dtype).cuda()

        self._q, self._k, self._v = upload(inputs.q), upload(inputs.k), upload(inputs.v)
        self._arguments: dict[str, Any] = {}
        if problem.causal and problem.seq_q == problem.seq_kv:
            self._arguments["is_causal"] = True
        elif problem.causal:
            from torch.nn.attention.bias import causal_lower_right

            self._arguments["attn_mask"] = causal_lower_right(problem.seq_q, problem.seq_kv)
        if problem.heads != problem.kv_heads:
            self._arguments["enable_gqa"] = True

    def __call__(self) -> torch.Tensor:
        import torch

        return torch.nn.functional.scaled_dot_product_attention(self._q, self._k, self._v, **self._arguments)


class _SdpaStopwatch:
    """One backend's calls in a CUDA graph; a second graph with only the flushes, when the cache is to be cold."""

    def __init__(self, call: _Sdpa, backend: str, options: StopwatchOptions) -> None:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self._calls = options.calls
        self._flush_only: torch.cuda.CUDAGraph | None = None
        self._buffer: torch.Tensor | None = None
        if options.cold:
            l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self._buffer = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
            self._flush_only = self._capture(None)
        with warnings.catch_warnings(), sdpa_kernel([getattr(SDPBackend, _ENUM_NAMES[backend])]):
            warnings.simplefilter("ignore")  # torch warns once per reason why a backend does not fit
            self._graph: torch.cuda.CUDAGraph | None = self._capture(call)

    def sample_us(self) -> float:
        """One replay, per call, in microseconds; the flushes are taken off."""
        if self._graph is None:
            raise RuntimeError("the stopwatch is closed")
        total_us = _replay_us(self._graph)
        if self._flush_only is not None:
            total_us -= _replay_us(self._flush_only)
        return total_us / self._calls

    def close(self) -> None:
        """Frees graphs and buffer."""
        self._graph = self._flush_only = self._buffer = None

    def _capture(self, call: _Sdpa | None) -> torch.cuda.CUDAGraph:
        import torch

        def once() -> None:
            if self._buffer is not None:
                self._buffer.zero_()
            if call is not None:
                call()

        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_CAPTURE_WARMUP):
                once()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self._calls):
                once()
        graph.replay()
        torch.cuda.synchronize()
        return graph


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
