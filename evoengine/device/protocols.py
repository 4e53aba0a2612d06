"""What a device is: it loads a kernel, runs it on attention inputs, and times or predicts it.

Three protocols and their records. A device that measures hands out :class:`TimedKernel`, a device that predicts hands
out :class:`PredictedKernel`; both run attention, so the parity gate needs to know neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from evoengine.kernel.call import AttentionInputs, AttentionOutput, Prediction
from evoengine.kernel.records import Kernel
from evoengine.model import DeviceInfo, Problem
from evoengine.target import Target

GUARD_BYTES: Final = 256
"""Bytes before and after every device buffer that a kernel must leave alone."""

GUARD_BYTE: Final = 0xFF
"""What the guard bands hold: NaN in every floating-point type, so that a value that is read there shows."""


@dataclass(frozen=True)
class StopwatchOptions:
    """How one sample is taken."""

    calls: int = 20
    """Kernel calls in one captured graph; a sample is the graph's device time over this."""
    cold: bool = False
    """Flush the L2 cache before every call, and subtract the flush."""
    eager: bool = False
    """Launch each of the calls from the host, onto an idle stream, instead of replaying a graph of them."""

    @property
    def lead_calls(self) -> int:
        """Calls that run untimed just before a warm sample.

        After a rival's turn the first ones find cold caches; and while they run the host submits the timed calls, which
        takes it about 10 µs: an idle gap there would be counted.
        """
        return max(1, self.calls // 2)

    @property
    def method(self) -> str:
        """Name of the objective, as stored in :class:`~evoengine.model.Timing`: how calls are launched, and caches."""
        return f"{'eager' if self.eager else 'graph'}-{'cold' if self.cold else 'warm'}"


class Stopwatch(Protocol):
    """Times one kernel (or one baseline) on fixed inputs; it owns its device buffers until closed."""

    def sample_us(self) -> float:
        """One sample: replays the captured calls once and returns device time per call in microseconds."""

    def close(self) -> None:
        """Frees what it holds; harmless when called twice."""


class KernelStopwatch(Stopwatch, Protocol):
    """A stopwatch of a kernel, which can show what the timed calls compute."""

    @property
    def launched(self) -> tuple[str, ...]:
        """Entries that the timed calls launch, in order, as the device counts them and not as they were asked for.

        What is no kernel, and does more than fill or copy memory, stands in angle brackets.
        """

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Replays the captured calls once, untimed, with other inputs in the place of those that are timed.

        Outputs are poisoned before, and everything is checked afterwards, as by :meth:`LoadedKernel.attention`;
        workspace and counters are what the calls before left.

        Args:
            inputs: of the same problem and layout.

        Raises:
            LaunchError: as for :meth:`LoadedKernel.attention`.
            ValueError: another problem or layout.
        """

    def spin(self, replays: int) -> None:
        """Replays the captured calls so many times without a pause, untimed, and waits until all are done.

        Raises:
            LaunchError: as for :meth:`LoadedKernel.attention`.
        """


@runtime_checkable
class PacedDevice(Protocol):
    """A device that gives kernels up after a time which it derives from what the baseline takes."""

    def learn_pace(self, problem: Problem, baseline_us: float) -> None:
        """Takes note of the baseline's time per call of a problem."""


@runtime_checkable
class LoadedKernel(Protocol):
    """A kernel that is ready to run on its device."""

    def attention(self, inputs: AttentionInputs) -> AttentionOutput:
        """Runs all steps of the kernel once on fresh buffers.

        O is filled with ``POISON_BITS`` and the log-sum-exp with ``LSE_POISON_BITS`` before the call, so an element
        that the kernel does not write stays NaN; the workspace holds NaN too, and the counters are zero. Guard bands
        around every buffer, the inputs and the counters are checked afterwards.

        Returns:
            O, and the log-sum-exp where the problem asks for it.

        Raises:
            LaunchError: the device refused a launch, the kernel faulted, wrote outside its buffers, changed an input
                or left a counter above zero.
        """

    def close(self) -> None:
        """Unloads; harmless when called twice."""


@runtime_checkable
class TimedKernel(LoadedKernel, Protocol):
    """A loaded kernel of a device that measures."""

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> KernelStopwatch:
        """Captures a graph of calls on these inputs.

        Raises:
            LaunchError: as for :meth:`attention`.
        """


@runtime_checkable
class PredictedKernel(LoadedKernel, Protocol):
    """A loaded kernel of a device that predicts."""

    @property
    def launched(self) -> tuple[str, ...]:
        """Entries that the latest call executed, in order, as the device counted them; none before the first call."""

    def predict(self, problem: Problem) -> Prediction:
        """Predicts device time per call for one problem.

        Raises:
            LaunchError: as for :meth:`attention`.
        """


class Device(Protocol):
    """Where binaries run."""

    @property
    def info(self) -> DeviceInfo:
        """The device as stored with each row; ``info.arch`` is what candidates must be compiled for."""

    @property
    def target(self) -> Target:
        """The limits that the search space and the resource gate respect."""

    @property
    def healthy(self) -> bool:
        """False once a fault has lost the device to this process: nothing can run here any more."""

    def load(self, kernel: Kernel) -> LoadedKernel:
        """Loads a binary; several kernels may be loaded at once.

        Raises:
            LaunchError: the device does not take this binary.
        """

    def close(self) -> None:
        """Releases the device; harmless when called twice."""
