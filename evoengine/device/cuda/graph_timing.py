"""Graph timing: calls are captured once in a CUDA graph and replayed as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from evoengine.device.cuda.driver import captured_launches
from evoengine.device.cuda.timed_call import Gpu, Launchable, TimedCall
from evoengine.device.protocols import StopwatchOptions
from evoengine.errors import CandidateError
from evoengine.kernel.call import AttentionInputs, AttentionOutput

_SLOW_CALLS: Final = 3
"""Slow calls in a row that show that a kernel is slow; a single one may have waited for the host."""


class GraphStopwatch(TimedCall):
    """One kernel's calls in a CUDA graph; for a cold cache, a second graph contains only the flushes."""

    def __init__(self, device: Gpu, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> None:
        super().__init__(device, inputs, options)
        self._flush_only: Any = None
        self._lead: Any = None
        self._graph: Any = None
        try:
            with device.faults("the kernel failed while timed"):
                self._allocate(kernel, inputs, cold=options.cold)
                if options.cold:
                    self._flush_only = self._capture(None, inputs, options.calls)
                else:
                    options = replace(options, calls=self._affordable_calls(kernel, inputs, options))
                    self._lead = self._capture(kernel, inputs, options.lead_calls)
                self.calls = options.calls
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
        return total_us / self.calls

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Repeats the captured calls on other inputs; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        buffers = self._open()
        with self._device.faults("the kernel failed while replayed"):
            buffers.refill(inputs)
            self._graph.launch(self._device.stream)
            self._device.finish(self._problem, self.calls)
            return buffers.output()

    def spin(self, replays: int) -> None:
        """Replays without a pause; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        with self._device.faults("the kernel failed while timed"):
            for _ in range(replays):
                self._graph.launch(self._device.stream)
            self._device.finish(self._problem, replays * self.calls)

    def close(self) -> None:
        """Frees graphs and buffers; may be called twice."""
        self._device.retire(self._graph, self._lead, self._flush_only, self._flush, self._buffers)
        self._graph = self._lead = self._flush_only = self._flush = self._buffers = None

    def _affordable_calls(self, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> int:
        """Returns how many calls of a sample a kernel's speed allows, from one call or, where that is slow, several."""
        calls = options.calls
        for _ in range(_SLOW_CALLS):
            self._start.record(self._device.stream)
            with self._device.stream:
                self._once(kernel, inputs)
            self._end.record(self._device.stream)
            self._device.finish(self._problem)
            calls = options.calls_for(self._elapsed_us())
            if calls == options.calls:
                break
        return calls

    def _replay_us(self, graph: Any) -> float:
        stream = self._device.stream
        self._start.record(stream)
        graph.launch(stream)
        self._end.record(stream)
        self._device.finish(self._problem, self.calls)
        return self._elapsed_us()

    def _once(self, kernel: Launchable | None, inputs: AttentionInputs) -> None:
        self._enqueue_flush()
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
