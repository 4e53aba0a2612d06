"""The parts that eager and graph timing share: events, buffers and the L2 flush of one kernel's timed calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from evoengine.device.cuda.buffers import GpuBuffers
from evoengine.device.cuda.driver import release_persisting_l2
from evoengine.device.protocols import StopwatchOptions
from evoengine.errors import LaunchError
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


class TimedCall:
    """Base of the stopwatches: two events, the buffers of a call and, for a cold cache, memory to flush L2 with."""

    def __init__(self, device: Gpu, inputs: AttentionInputs, options: StopwatchOptions) -> None:
        self._device = device
        self._problem = inputs.problem
        self.calls = options.calls
        self._flush: Any = None
        self._buffers: GpuBuffers | None = None
        self.launched: tuple[str, ...] = ()
        self.expected: AttentionOutput | None = None

    def _allocate(self, kernel: Launchable, inputs: AttentionInputs, *, cold: bool) -> None:
        device = self._device
        release_persisting_l2()
        self._start, self._end = device.cupy.cuda.Event(), device.cupy.cuda.Event()
        self._buffers = self._new_buffers(inputs, kernel.workspace(inputs.problem))
        if cold:
            with device.stream:
                self._flush = device.cupy.empty(2 * device.target.l2_bytes, device.cupy.uint8)

    def _new_buffers(self, inputs: AttentionInputs, workspace: Workspace) -> GpuBuffers:
        return self._device.buffers(inputs, workspace)

    def _open(self) -> GpuBuffers:
        if self._buffers is None:
            raise LaunchError("the stopwatch is closed")
        return self._buffers

    def _enqueue_flush(self) -> None:
        if self._flush is not None:
            self._flush.data.memset_async(0, self._flush.nbytes, self._device.stream)

    def _elapsed_us(self) -> float:
        return float(self._device.cupy.cuda.get_elapsed_time(self._start, self._end)) * 1e3
