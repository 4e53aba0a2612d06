"""The protocols of a device, which loads a kernel, runs it on attention inputs, and times or predicts it.

A measuring device returns a :class:`TimedKernel`, a predicting device a :class:`PredictedKernel`. Both run attention,
so the parity gate does not distinguish them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from evoengine.kernel.call import AttentionInputs, AttentionOutput, Prediction
from evoengine.kernel.records import Kernel
from evoengine.model import DeviceInfo, Problem
from evoengine.target import Target

GUARD_BYTES: Final = 256
"""Size of the guard band before and after every device buffer, in bytes."""

GUARD_BYTE: Final = 0xFF
"""Byte that fills the guard bands: NaN in every floating-point type, so that reads of it are visible."""


_LONG_SAMPLE_US: Final = 5_000.0
"""Duration of a sample above which it gets fewer calls: thirty times that of a good kernel's."""
_SUFFICIENT_SAMPLE_US: Final = 1_000.0
"""Duration of a sample with fewer calls; its start and end, 3 to 7 µs, are a small part of it."""


@dataclass(frozen=True)
class StopwatchOptions:
    """Settings for one sample."""

    calls: int = 20
    """Kernel calls in one captured graph, unless one takes very long; a sample is the graph's device time divided by
    their number."""
    cold: bool = False
    """Whether the L2 cache is flushed before every call; the time of the flush is subtracted."""
    eager: bool = False
    """Whether each call is launched from the host on an idle stream instead of by replaying a graph."""

    fresh: bool = False
    """Whether every call of every sample has inputs and an output of its own, as for untrusted sources."""

    @property
    def lead_calls(self) -> int:
        """Number of untimed calls just before a warm sample.

        They refill the caches after another kernel's turn, and they keep the GPU busy while the host submits the timed
        calls, which takes about 10 µs that would otherwise be counted.
        """
        return max(1, self.calls // 2)

    def calls_for(self, call_us: float) -> int:
        """Returns the number of calls in a sample of a kernel with this time per call."""
        if call_us * self.calls <= _LONG_SAMPLE_US:
            return self.calls
        return min(self.calls, math.ceil(_SUFFICIENT_SAMPLE_US / call_us))

    @property
    def method(self) -> str:
        """Name of the objective as stored in :class:`~evoengine.model.Timing`: kind of launch and cache state."""
        return f"{'eager' if self.eager else 'graph'}-{'cold' if self.cold else 'warm'}"


class Stopwatch(Protocol):
    """Times one kernel (or one baseline) on fixed inputs; it owns its device buffers until closed."""

    def sample_us(self) -> float:
        """Replays the captured calls once and returns the device time per call in microseconds."""

    def close(self) -> None:
        """Frees all resources; may be called twice."""


class KernelStopwatch(Stopwatch, Protocol):
    """A stopwatch of a kernel that can also return the output of the timed calls."""

    @property
    def calls(self) -> int:
        """Calls in a sample: those of the options, or fewer if one takes very long."""

    @property
    def launched(self) -> tuple[str, ...]:
        """Entries that the timed calls launch, in order, as counted by the device.

        Any node that is not a kernel and does more than fill or copy memory is named in angle brackets.
        """

    @property
    def expected(self) -> AttentionOutput | None:
        """Output of a call on the stopwatch's own inputs, by which all timed calls were judged; None if none was."""

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        """Replays the captured calls once, untimed, on other inputs.

        Outputs are poisoned before, and everything is checked afterwards as by :meth:`LoadedKernel.attention`.
        Workspace and counters keep the contents that the previous calls left.

        Args:
            inputs: Inputs of the same problem and layout.

        Raises:
            LaunchError: See :meth:`LoadedKernel.attention`.
            ValueError: The inputs have another problem or layout.
        """

    def spin(self, replays: int) -> None:
        """Replays the captured calls ``replays`` times without a pause, untimed, and waits for the end.

        Raises:
            LaunchError: See :meth:`LoadedKernel.attention`.
        """


@runtime_checkable
class PacedDevice(Protocol):
    """A device whose time limit of a kernel depends on the baseline's time."""

    def learn_pace(self, problem: Problem, baseline_us: float) -> None:
        """Records the baseline's time per call of a problem."""


@runtime_checkable
class LoadedKernel(Protocol):
    """A kernel that is ready to run on its device."""

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        """Runs all launches of the kernel once on fresh buffers.

        Before the call, O is filled with ``POISON_BITS``, the log-sum-exp with ``LSE_POISON_BITS`` and the workspace
        with NaN, so that an element which the kernel does not write stays NaN; the counters are zero. Guard bands
        around every buffer, the inputs and the counters are checked afterwards.

        Args:
            inputs: Inputs of the call.
            before: Results of the same shape that the outputs hold before the call, instead of poison.

        Returns:
            O, and the log-sum-exp if the problem requests it.

        Raises:
            LaunchError: The device refused a launch, or the kernel faulted, wrote outside its buffers, changed an input
                or left a counter above zero.
        """

    def close(self) -> None:
        """Unloads the kernel; may be called twice."""


@runtime_checkable
class RepeatableKernel(LoadedKernel, Protocol):
    """A loaded kernel of a device that can call it thousands of times in a second."""

    def first_unequal(self, inputs: AttentionInputs, seconds: float) -> int | None:
        """Calls the kernel again and again on the same inputs, and compares the bits of the outputs.

        Args:
            inputs: Inputs of every call.
            seconds: Time after which no further call begins.

        Returns:
            Number of the first call, from 1 on, whose outputs have other bits than those of the first; None if all have
            the same, or if the device cannot compare them.

        Raises:
            LaunchError: See :meth:`LoadedKernel.attention`.
        """


@runtime_checkable
class TimedKernel(LoadedKernel, Protocol):
    """A loaded kernel of a device that measures."""

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> KernelStopwatch:
        """Captures a graph of calls on these inputs.

        Raises:
            LaunchError: See :meth:`attention`.
        """


@runtime_checkable
class PredictedKernel(LoadedKernel, Protocol):
    """A loaded kernel of a device that predicts."""

    @property
    def launched(self) -> tuple[str, ...]:
        """Entries that the latest call executed, in order, as counted by the device; empty before the first call."""

    def executed(self, problem: Problem) -> int:
        """Returns the warp instructions of the latest call for one problem; 0 if there was none."""

    def predict(self, problem: Problem) -> Prediction:
        """Predicts the device time per call for one problem.

        Raises:
            LaunchError: See :meth:`attention`.
        """


class Device(Protocol):
    """A device that runs binaries."""

    @property
    def info(self) -> DeviceInfo:
        """The device as stored with each row; candidates must be compiled for ``info.arch``."""

    @property
    def target(self) -> Target:
        """Limits that the search space and the resource gate respect."""

    @property
    def healthy(self) -> bool:
        """False after a fault that makes the device unusable for this process."""

    def load(self, kernel: Kernel) -> LoadedKernel:
        """Loads a binary; several kernels may be loaded at once.

        Raises:
            LaunchError: The device does not accept this binary.
        """

    def close(self) -> None:
        """Releases the device; may be called twice."""
