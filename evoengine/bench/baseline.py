"""The baseline: PyTorch's own attention on the GPU. Every backend that supports the problem is timed like a candidate.

torch is imported inside the functions; on a machine without a GPU there is no baseline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from evoengine.bench.peer_protocol import Peer, PeerCall, PeerUnavailableError, host_output, upload
from evoengine.bench.peer_stopwatch import EagerTorchStopwatch, TorchStopwatch
from evoengine.bench.peers import sdpa, varlen
from evoengine.bench.timer import sample_interleaved
from evoengine.device.protocols import Stopwatch, StopwatchOptions
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.statistics import median_interval

BACKENDS: Final[tuple[Peer, ...]] = (*(peer for peer in sdpa.PEERS if peer.backend), *varlen.PEERS)
"""Each backend that SDPA can choose from, and torch's kernel for packed sequences."""

_PICK_SAMPLES: Final = 15
_PICK_WARMUP: Final = 3


@dataclass(frozen=True)
class BaselineRow:
    """One backend, for reports."""

    backend: str
    median_us: float | None
    """None when the backend does not support the problem."""
    reason: str = ""
    """Reason why the backend was not timed."""


@dataclass
class Baseline:
    """The fastest backend, captured and ready to be sampled beside candidates."""

    name: str
    stopwatch: Stopwatch
    rows: tuple[BaselineRow, ...]
    """All backends, in the order of :data:`BACKENDS`."""
    output: AttentionOutput | None = None
    """Result on the benchmark's inputs; None if the backend fails when called eagerly."""

    def close(self) -> None:
        self.stopwatch.close()


def open_baseline(inputs: AttentionInputs, options: StopwatchOptions, known: str = "") -> Baseline | None:
    """Captures every backend that works, times them interleaved, and keeps the fastest.

    Args:
        inputs: Same bits as candidates receive; SDPA receives them as contiguous ``[batch, heads, seq, head_dim]``.
        options: Same options as for candidates.
        known: Name of the fastest backend if it was determined before; then only this one is captured and none is
            timed.

    Returns:
        The baseline; None when torch is missing, torch has no GPU, or no backend supports the problem.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    uploaded = upload(inputs)
    watches: dict[str, Stopwatch] = {}
    reasons: dict[str, str] = {}
    calls: dict[str, PeerCall] = {}
    for backend in (backend for backend in BACKENDS if known in ("", backend.name)):
        try:
            call = calls[backend.name] = backend.prepare(uploaded)
            with call.scope():
                kind = EagerTorchStopwatch if options.eager else TorchStopwatch
                watches[backend.name] = kind(call, options)
        except (PeerUnavailableError, RuntimeError, TypeError, ValueError) as error:  # torch refuses in several ways
            reasons[backend.name] = str(error).split("\n", 1)[0]
    if known:
        found = watches.get(known)
        rows = tuple(BaselineRow(b.name, None, "timed before") for b in BACKENDS)
        if found is None:
            return open_baseline(inputs, options)
        return Baseline(known, found, rows, _output(calls[known], inputs))
    if not watches:
        return None
    sampled = sample_interleaved(list(watches.values()), _PICK_SAMPLES, _PICK_WARMUP)
    medians = {name: median_interval(samples).median for name, samples in zip(watches, sampled, strict=True)}
    fastest = min(medians, key=lambda name: medians[name])
    for name, watch in watches.items():
        if name != fastest:
            watch.close()
    rows = tuple(BaselineRow(b.name, medians.get(b.name), reasons.get(b.name, "")) for b in BACKENDS)
    return Baseline(fastest, watches[fastest], rows, _output(calls[fastest], inputs))


def _output(call: PeerCall, inputs: AttentionInputs) -> AttentionOutput | None:
    """Runs a backend once, eagerly."""
    try:
        with call.scope():
            return host_output(call(), inputs.problem)
    except (RuntimeError, ValueError):
        return None
