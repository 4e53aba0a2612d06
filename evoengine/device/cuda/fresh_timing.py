"""Timing of generated kernels: every call of every sample has inputs and an output of its own.

A kernel that keeps results of earlier calls anywhere, and skips work when inputs repeat, finds none that repeat. The
inputs are random variations of the same call (:mod:`evoengine.kernel.variation`), and every output is compared after
every sample; large ones are varied and compared on the GPU. Samples take longer to prepare, and less of the inputs is
in the L2 cache than in :class:`~evoengine.device.cuda.graph_timing.GraphStopwatch`, so times of both are not compared
with each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evoengine.device.cuda.buffers import GpuBuffers
from evoengine.device.cuda.graph_timing import GraphStopwatch
from evoengine.device.cuda.timed_call import Gpu, Launchable
from evoengine.device.protocols import StopwatchOptions
from evoengine.errors import CandidateError, LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.records import Workspace
from evoengine.kernel.variation import Variation, difference, draw_variation


class FreshStopwatch(GraphStopwatch):
    """One kernel's calls in a CUDA graph, each with buffers of its own that are renewed before every sample."""

    def __init__(self, device: Gpu, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> None:
        self._base = inputs
        self._rng = np.random.default_rng()
        self._sets: list[GpuBuffers] = []
        self._used = 0
        # a capture begins with one call of its own; a cold sample has no calls before it
        self._set_count = 1 + options.calls + (0 if options.cold else 1 + options.lead_calls)
        super().__init__(device, kernel, inputs, options)
        try:
            with device.faults("the kernel failed while timed"), device.stream:
                self.expected = self._sets[0].output()
                expected = self._sets[0].output_on_gpu()
                self._expected = replace(expected, o=expected.o.copy())
        except CandidateError:
            self.close()
            raise

    def sample_us(self) -> float:
        """Renews the buffers of the timed calls, takes one sample and compares their outputs.

        Raises:
            LaunchError: An output differs from the expected one for the inputs of its call.
        """
        timed = self._sets[-self.calls :]
        drawn = [draw_variation(self._base, self._rng) for _ in timed]
        with self._device.faults("the kernel failed while timed"):
            for buffers, variation in zip(timed, drawn, strict=True):
                buffers.vary(self._base, variation)
        sample_us = super().sample_us()
        with self._device.faults("the kernel failed while timed"):
            self._compare(timed, drawn)
        return sample_us

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Repeats the captured calls on other inputs; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        self._open()
        with self._device.faults("the kernel failed while replayed"):
            for buffers in self._sets:
                buffers.refill(inputs)
            self._graph.launch(self._device.stream)
            self._device.finish(self._problem, self.calls)
            return self._sets[-1].output()

    def close(self) -> None:
        """Frees graphs and buffers; may be called twice."""
        self._device.retire(self._sets)
        self._sets = []
        super().close()

    def _new_buffers(self, inputs: AttentionInputs, workspace: Workspace) -> GpuBuffers:
        self._sets = [super()._new_buffers(inputs, workspace) for _ in range(self._set_count)]
        return self._sets[0]

    def _affordable_calls(self, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> int:
        return options.calls  # each has buffers already

    def _once(self, kernel: Launchable | None, inputs: AttentionInputs) -> None:
        self._enqueue_flush()
        if kernel is not None:
            kernel.enqueue(inputs, self._sets[self._used].params)
            self._used += 1

    def _compare(self, timed: list[GpuBuffers], drawn: list[Variation]) -> None:
        for number, (buffers, variation) in enumerate(zip(timed, drawn, strict=True)):
            output = buffers.output_on_gpu()
            with self._device.stream:
                expected = variation.on(self._device.cupy).output(self._expected)
                wrong = difference(output, expected, self._problem.dtype)
            if wrong:
                raise LaunchError(f"timed call {number} of {self.calls} on inputs of its own: {wrong}")
