"""Records of a comparison that its process and the processes of the kernels share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from evoengine.bench.peer_protocol import Peer, PeerCall, PeerInputs, PeerOutput
from evoengine.bench.peer_stopwatch import TorchGpu
from evoengine.bench.timer import TimingPlan
from evoengine.device.protocols import Stopwatch, StopwatchOptions, TimedKernel
from evoengine.kernel.call import AttentionInputs, AttentionOutput

OURS: Final = "evoengine"


@dataclass(frozen=True)
class PeerCheck:
    """Result of checking one output against fp64 attention."""

    max_error: float
    reason: str = ""
    """Reason why the output is wrong; empty when it is correct."""


OutputCheck = Callable[[AttentionOutput], PeerCheck]
"""Compares an output with the reference; picklable. The caller provides it, since ``parity`` is in the same layer."""


@dataclass(frozen=True)
class OwnKernel:
    """Our kernel: a picklable function that loads it, or the reason why there is none."""

    load: Callable[[], TimedKernel] | None
    note: str
    config: str = ""
    """Family and tunables, from which the kernel can be rebuilt; empty if there is none."""


class PeerStopwatch(Stopwatch, Protocol):
    """A stopwatch that also returns the output of the timed calls."""

    def output(self) -> PeerOutput:
        """Runs the timed calls again, over a poisoned output, and returns it."""


class PeerPlatform(Protocol):
    """Where peers run; picklable."""

    def upload(self, inputs: AttentionInputs) -> PeerInputs:
        """Copies the inputs to where the peers run."""

    def stopwatch(self, call: PeerCall, options: StopwatchOptions) -> PeerStopwatch:
        """Prepares the timing of a call; the caller holds the call's scope."""

    def synchronize(self) -> None:
        """Waits for all enqueued work and raises its errors."""


@dataclass(frozen=True)
class Limits:
    """Time limits of the processes, in seconds."""

    start_s: float = 180.0
    """Imports and the GPU's context."""
    prepare_s: float = 600.0
    """Compiling, tuning and capturing one kernel; the first use of a library may compile it for minutes."""
    check_s: float = 300.0
    """Check of one output, on the host."""
    sample_s: float = 120.0
    """One sample."""


@dataclass(frozen=True, eq=False)
class CompareJob:
    """The compared kernels and the way of timing them; picklable."""

    inputs: AttentionInputs
    """Inputs with heads outside rows; peers that need another layout copy them."""
    ours: OwnKernel
    peers: tuple[Peer, ...]
    """Peers in the order in which they are prepared."""
    check: OutputCheck
    plan: TimingPlan
    """Calls, samples, warm or cold cache."""
    platform: PeerPlatform = field(default_factory=TorchGpu)
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Prepared:
    """A kernel that is ready to be timed, or the reason why a library does not take the problem."""

    note: str = ""
    unavailable: bool = False
    host_us: float | None = None
    """Host time of one eager call."""
    tuned: str = ""
    """Setting that the kernel's tuner chose; see :attr:`~evoengine.bench.peer_protocol.PeerCall.tuned`."""
