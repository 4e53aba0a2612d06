"""Graph timing: calls are captured once in a CUDA graph and replayed as a whole."""

from __future__ import annotations

from typing import Any

from evoengine.device.cuda.buffers import GpuBuffers
from evoengine.device.cuda.driver import captured_launches, release_persisting_l2
from evoengine.device.cuda.eager_timing import Gpu, Launchable
from evoengine.device.protocols import StopwatchOptions
from evoengine.errors import CandidateError, LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput


class GraphStopwatch:
    """One kernel's calls in a CUDA graph; for a cold cache, a second graph contains only the flushes."""

    def __init__(self, device: Gpu, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> None:
        self._device = device
        self._problem = inputs.problem
        self._calls = options.calls
        self._flush: Any = None
        self._flush_only: Any = None
        self._lead: Any = None
        self._graph: Any = None
        self._buffers: GpuBuffers | None = None
        self.launched: tuple[str, ...] = ()
        try:
            with device.faults("the kernel failed while timed"):
                release_persisting_l2()
                self._start, self._end = device.cupy.cuda.Event(), device.cupy.cuda.Event()
                self._buffers = device.buffers(inputs, kernel.workspace(inputs.problem))
                if options.cold:
                    with device.stream:
                        self._flush = device.cupy.empty(2 * device.target.l2_bytes, device.cupy.uint8)
                    self._flush_only = self._capture(None, inputs, options.calls)
                else:
                    self._lead = self._capture(kernel, inputs, options.lead_calls)
                self._graph = self._capture(kernel, inputs, options.calls)  # last, because it sets self.launched
        except CandidateError:
            self.close()
            raise

    def sample_us(self) -> float:
        """Returns the time of one replay per call, in microseconds, without the flushes."""
        with self._device.faults("the kernel failed while timed"):
            if self._lead is not None:
                self._lead.launch(self._device.stream)
            total_us = self._replay_us(self._graph)
            if self._flush_only is not None:
                total_us -= self._replay_us(self._flush_only)
        return total_us / self._calls

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Repeats the captured calls on other inputs; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        if self._buffers is None:
            raise LaunchError("the stopwatch is closed")
        with self._device.faults("the kernel failed while replayed"):
            self._buffers.refill(inputs)
            self._graph.launch(self._device.stream)
            self._device.finish(self._problem, self._calls)
            return self._buffers.output()

    def spin(self, replays: int) -> None:
        """Replays without a pause; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        with self._device.faults("the kernel failed while timed"):
            for _ in range(replays):
                self._graph.launch(self._device.stream)
            self._device.finish(self._problem, replays * self._calls)

    def close(self) -> None:
        """Frees graphs and buffers; may be called twice."""
        self._device.retire(self._graph, self._lead, self._flush_only, self._flush, self._buffers)
        self._graph = self._lead = self._flush_only = self._flush = self._buffers = None

    def _replay_us(self, graph: Any) -> float:
        stream = self._device.stream
        self._start.record(stream)
        graph.launch(stream)
        self._end.record(stream)
        self._device.finish(self._problem, self._calls)
        return float(self._device.cupy.cuda.get_elapsed_time(self._start, self._end)) * 1e3

    def _once(self, kernel: Launchable | None, inputs: AttentionInputs) -> None:
        if self._flush is not None:
            self._flush.data.memset_async(0, self._flush.nbytes, self._device.stream)
        if kernel is not None and self._buffers is not None:
            kernel.enqueue(inputs, self._buffers.params)

    def _capture(self, kernel: Launchable | None, inputs: AttentionInputs, calls: int) -> Any:
        """Runs one call eagerly, which loads everything, then captures all calls."""
        stream = self._device.stream
        with stream:
            self._once(kernel, inputs)
            self._device.finish(self._problem)
            stream.begin_capture()
            try:
                for _ in range(calls):
                    self._once(kernel, inputs)
                self.launched = captured_launches(stream.ptr)
            finally:
                graph = stream.end_capture()
        graph.launch(stream)
        self._device.finish(self._problem, calls)
        return graph
