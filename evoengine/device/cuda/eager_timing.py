"""Eager timing: each call is launched from the host on an idle stream, as in a program without CUDA graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from evoengine.device.cuda.buffers import GpuBuffers
from evoengine.device.cuda.driver import captured_launches, release_persisting_l2
from evoengine.device.protocols import StopwatchOptions
from evoengine.errors import CandidateError, LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.records import Workspace
from evoengine.model import Problem
from evoengine.target import Target


class Gpu(Protocol):
    """The part of :class:`~evoengine.device.cuda.device.CudaDevice` that a stopwatch uses."""

    @property
    def cupy(self) -> Any:
        """The CuPy module."""

    @property
    def stream(self) -> Any:
        """The stream on which everything runs."""

    @property
    def target(self) -> Target:
        """The GPU's limits."""

    def buffers(self, inputs: AttentionInputs, workspace: Workspace) -> GpuBuffers:
        """Allocates and fills the memory of a call on these inputs."""

    def faults(self, doing: str) -> AbstractContextManager[None]:
        """Converts CUDA's errors to LaunchError."""

    def finish(self, problem: Problem, calls: int = 1) -> None:
        """Waits until that many calls on the stream are done."""

    def retire(self, *objects: object) -> None:
        """Keeps objects of a lost context alive."""


class Launchable(Protocol):
    """The part of :class:`~evoengine.device.cuda.device.CudaKernel` that a stopwatch uses."""

    def workspace(self, problem: Problem) -> Workspace:
        """Returns the memory that a call needs besides its tensors."""

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Enqueues all launches of one call on the current stream."""


class EagerStopwatch:
    """One kernel's calls, one by one.

    A sample is the mean over ``options.calls`` calls of the time between two events: one recorded on the idle stream
    just before the host submits the call's launches, one just after the last of them. It is device time plus the
    device's waits for the host within the call: the latency of the first launch, and gaps between launches if the host
    is slower than the kernels. Host work before the first event and after the last is not included. With a cold cache
    the flush has ended before the first event.
    """

    def __init__(self, device: Gpu, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> None:
        self._device = device
        self._kernel = kernel
        self._inputs = inputs
        self._calls = options.calls
        self._flush: Any = None
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
                self._call_us()  # loads everything
                self.launched = self._record()
        except CandidateError:
            self.close()
            raise

    def sample_us(self) -> float:
        """Returns the mean of the calls, in microseconds."""
        with self._device.faults("the kernel failed while timed"):
            return sum(self._call_us() for _ in range(self._calls)) / self._calls

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Repeats the timed calls on other inputs; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        buffers = self._open()
        with self._device.faults("the kernel failed while replayed"):
            buffers.refill(inputs)
            for _ in range(self._calls):
                self._call_us()
            return buffers.output()

    def spin(self, replays: int) -> None:
        """Repeats the calls without a pause; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        buffers = self._open()
        with self._device.faults("the kernel failed while timed"), self._device.stream:
            for _ in range(replays * self._calls):
                self._kernel.enqueue(self._inputs, buffers.params)
            self._device.finish(self._inputs.problem, replays * self._calls)

    def close(self) -> None:
        """Frees the buffers; may be called twice."""
        self._device.retire(self._flush, self._buffers)
        self._flush = self._buffers = None

    def _call_us(self) -> float:
        device, params = self._device, self._open().params
        stream = device.stream
        with stream:
            if self._flush is not None:
                self._flush.data.memset_async(0, self._flush.nbytes, stream)
                device.finish(self._inputs.problem)
            self._start.record(stream)
            self._kernel.enqueue(self._inputs, params)
            self._end.record(stream)
            device.finish(self._inputs.problem)
        return float(device.cupy.cuda.get_elapsed_time(self._start, self._end)) * 1e3

    def _record(self) -> tuple[str, ...]:
        """Lists the launches of all calls by capturing them in a graph that never runs."""
        buffers, stream = self._open(), self._device.stream
        with stream:
            stream.begin_capture()
            try:
                for _ in range(self._calls):
                    self._kernel.enqueue(self._inputs, buffers.params)
                return captured_launches(stream.ptr)
            finally:
                stream.end_capture()

    def _open(self) -> GpuBuffers:
        if self._buffers is None:
            raise LaunchError("the stopwatch is closed")
        return self._buffers
