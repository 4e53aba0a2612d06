"""Times a peer by CUDA-graph replay or eagerly, and returns the output of the captured calls."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from evoengine.bench.peer_protocol import PeerCall, PeerInputs, PeerOutput, poison, upload
from evoengine.device.protocols import StopwatchOptions
from evoengine.kernel.call import AttentionInputs

if TYPE_CHECKING:
    import torch

_CAPTURE_WARMUP: Final = 3
_HOST_CALLS: Final = 30
"""Consecutive eager calls: few enough that no launch waits for a full queue."""
_HOST_ROUNDS: Final = 7


class TorchStopwatch:
    """Calls of a peer in a CUDA graph; for a cold cache, a second graph contains only the flushes.

    A graph holds addresses, not tensors. The stopwatch therefore keeps the call, and with it every tensor that the call
    reads (copies in another layout, masks, plans, workspaces), until it is closed. Capturing another graph returns
    unused memory to the driver, so that a replay which reads a freed tensor is an illegal access.

    The caller must hold the peer's scope during construction.
    """

    def __init__(self, call: PeerCall, options: StopwatchOptions) -> None:
        import torch

        self._calls = options.calls
        self._call: PeerCall | None = call
        self._buffer: torch.Tensor | None = None
        self._flush_only: torch.cuda.CUDAGraph | None = None
        self._output: PeerOutput | None = None
        if options.cold:
            l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self._buffer = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
            self._flush_only = self._capture(None, options.calls)
        self._lead: torch.cuda.CUDAGraph | None = None if options.cold else self._capture(call, options.lead_calls)
        self._graph: torch.cuda.CUDAGraph | None = self._capture(call, options.calls)

    def sample_us(self) -> float:
        """Returns the time of one replay per call, in microseconds, without the flushes."""
        if self._graph is None:
            raise RuntimeError("the stopwatch is closed")
        if self._lead is not None:
            self._lead.replay()
        total_us = _replay_us(self._graph)
        if self._flush_only is not None:
            total_us -= _replay_us(self._flush_only)
        return total_us / self._calls

    def output(self) -> PeerOutput:
        """Returns the output of the last captured call, poisoned before the replay so that missing work shows."""
        import torch

        if self._graph is None or self._output is None:
            raise RuntimeError("the stopwatch is closed")
        poison(self._output)
        self._graph.replay()
        torch.cuda.synchronize()
        return self._output

    def close(self) -> None:
        self._graph = self._lead = self._flush_only = self._output = self._buffer = self._call = None

    def _capture(self, call: PeerCall | None, calls: int) -> torch.cuda.CUDAGraph:
        import torch

        def once() -> PeerOutput | None:
            if self._buffer is not None:
                self._buffer.zero_()
            return None if call is None else call()

        side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_CAPTURE_WARMUP):
                once()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                self._output = once()  # the previous output is freed and its memory reused, as in eager use
        graph.replay()
        torch.cuda.synchronize()
        return graph


@dataclass(frozen=True)
class TorchGpu:
    """Peers on the GPU, timed by graph replay; a :class:`~evoengine.bench.compare_job.PeerPlatform`."""

    def upload(self, inputs: AttentionInputs) -> PeerInputs:
        return upload(inputs)

    def stopwatch(self, call: PeerCall, options: StopwatchOptions) -> TorchStopwatch:
        return TorchStopwatch(call, options)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


class EagerTorchStopwatch:
    """Calls of a peer one by one from the host, timed like :class:`~evoengine.device.cuda.eager_timing.EagerStopwatch`.

    The caller must hold the peer's scope during construction; sampling enters the scope itself.
    """

    def __init__(self, call: PeerCall, options: StopwatchOptions) -> None:
        import torch

        self._calls = options.calls
        self._call: PeerCall | None = call
        self._buffer: torch.Tensor | None = None
        if options.cold:
            l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
            self._buffer = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
        for _ in range(_CAPTURE_WARMUP):
            self._call_us(call)

    def sample_us(self) -> float:
        """Returns the mean of the calls, in microseconds."""
        if self._call is None:
            raise RuntimeError("the stopwatch is closed")
        with self._call.scope():
            return sum(self._call_us(self._call) for _ in range(self._calls)) / self._calls

    def close(self) -> None:
        self._call = self._buffer = None

    def _call_us(self, call: PeerCall) -> float:
        import torch

        if self._buffer is not None:
            self._buffer.zero_()
        torch.cuda.synchronize()
        return _between_events_us(call)


def host_time_us(enqueue: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Measures the host time of one eager call in microseconds: the time until the call returns, not the GPU's work.

    Args:
        enqueue: One call, which must not wait for the device.
        synchronize: Function that waits until the device is idle.
    """
    rounds = []
    for _ in range(_HOST_ROUNDS):
        synchronize()
        start = time.perf_counter()
        for _ in range(_HOST_CALLS):
            enqueue()
        rounds.append((time.perf_counter() - start) * 1e6 / _HOST_CALLS)
    synchronize()
    return statistics.median(rounds)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    return _between_events_us(graph.replay)


def _between_events_us(work: Callable[[], object]) -> float:
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3
