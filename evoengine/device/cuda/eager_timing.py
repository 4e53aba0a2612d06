"""Eager timing: each call is launched from the host on an idle stream, as in a program without CUDA graphs."""

from __future__ import annotations

from evoengine.device.cuda.driver import captured_launches
from evoengine.device.cuda.timed_call import Gpu, Launchable, TimedCall
from evoengine.device.protocols import StopwatchOptions
from evoengine.errors import CandidateError
from evoengine.kernel.call import AttentionInputs, AttentionOutput


class EagerStopwatch(TimedCall):
    """One kernel's calls, one by one.

    A sample is the mean over ``options.calls`` calls of the time between two events: one recorded on the idle stream
    just before the host submits the call's launches, one just after the last of them. It is device time plus the
    device's waits for the host within the call: the latency of the first launch, and gaps between launches if the host
    is slower than the kernels. Host work before the first event and after the last is not included. With a cold cache
    the flush has ended before the first event.
    """

    def __init__(self, device: Gpu, kernel: Launchable, inputs: AttentionInputs, options: StopwatchOptions) -> None:
        super().__init__(device, inputs, options)
        self._kernel = kernel
        self._inputs = inputs
        try:
            with device.faults("the kernel failed while timed"):
                self._allocate(kernel, inputs, cold=options.cold)
                self._call_us()  # loads everything
                self.launched = self._record()
        except CandidateError:
            self.close()
            raise

    def sample_us(self) -> float:
        """Returns the mean of the calls, in microseconds."""
        with self._device.faults("the kernel failed while timed"):
            return sum(self._call_us() for _ in range(self.calls)) / self.calls

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Repeats the timed calls on other inputs; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        buffers = self._open()
        with self._device.faults("the kernel failed while replayed"):
            buffers.refill(inputs)
            for _ in range(self.calls):
                self._call_us()
            return buffers.output()

    def spin(self, replays: int) -> None:
        """Repeats the calls without a pause; see :class:`~evoengine.device.protocols.KernelStopwatch`."""
        buffers = self._open()
        with self._device.faults("the kernel failed while timed"), self._device.stream:
            for _ in range(replays * self.calls):
                self._kernel.enqueue(self._inputs, buffers.params)
            self._device.finish(self._problem, replays * self.calls)

    def close(self) -> None:
        """Frees the buffers; may be called twice."""
        self._device.retire(self._flush, self._buffers)
        self._flush = self._buffers = None

    def _call_us(self) -> float:
        device, params = self._device, self._open().params
        stream = device.stream
        with stream:
            if self._flush is not None:
                self._enqueue_flush()
                device.finish(self._problem)
            self._start.record(stream)
            self._kernel.enqueue(self._inputs, params)
            self._end.record(stream)
            device.finish(self._problem)
        return self._elapsed_us()

    def _record(self) -> tuple[str, ...]:
        """Lists the launches of all calls by capturing them in a graph that never runs."""
        buffers, stream = self._open(), self._device.stream
        with stream:
            stream.begin_capture()
            try:
                for _ in range(self.calls):
                    self._kernel.enqueue(self._inputs, buffers.params)
                return captured_launches(stream.ptr)
            finally:
                stream.end_capture()
