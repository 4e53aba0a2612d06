"""The baseline: PyTorch's own attention on the GPU. Every backend that supports the problem is timed like a candidate.

torch is imported inside the functions; on a machine without a GPU there is no baseline.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from evoengine.bench.peer_protocol import Peer, PeerCall, PeerInputs, PeerUnavailableError, host_output, upload
from evoengine.bench.peer_stopwatch import EagerTorchStopwatch, TorchStopwatch
from evoengine.bench.peers import sdpa, varlen
from evoengine.bench.timer import sample_interleaved
from evoengine.device.protocols import Stopwatch, StopwatchOptions
from evoengine.kernel.call import AttentionInputs, AttentionOutput

BACKENDS: Final[tuple[Peer, ...]] = (*(peer for peer in sdpa.PEERS if peer.backend), *varlen.PEERS)
"""Each backend that SDPA can choose from, and torch's kernel for packed sequences."""

_FIRST_SAMPLES: Final = 3
"""Samples of one call each, after which backends that are far from the fastest are left out."""
_FAR_RATIO: Final = 3.0
"""Ratio to the fastest median of these samples above which a backend is left out."""
_PICK_SAMPLES: Final = 15
_PICK_WARMUP: Final = 3
_SAMPLE_US: Final = 500.0
"""Sufficient duration of a sample: its start and end take 3 to 7 us."""


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
    calls: int
    """Calls per sample: as many as for a candidate, or fewer if fewer already take long enough."""
    rows: tuple[BaselineRow, ...]
    """All backends, in the order of :data:`BACKENDS`."""
    output: AttentionOutput | None = None
    """Result on the benchmark's inputs; None if the backend fails when called eagerly."""

    def close(self) -> None:
        self.stopwatch.close()


def open_baseline(inputs: AttentionInputs, options: StopwatchOptions, known: str = "") -> Baseline | None:
    """Captures every backend that works, times those that may be the fastest interleaved, and keeps the fastest.

    Args:
        inputs: Same bits as candidates receive; SDPA receives them as contiguous ``[batch, heads, seq, head_dim]``.
        options: Same options as for candidates; a backend that takes long has fewer calls in a sample.
        known: Name of the fastest backend if it was determined before; then only this one is captured.

    Returns:
        The baseline; None when torch is missing, torch has no GPU, or no backend supports the problem.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    single, reasons = _capture(upload(inputs), replace(options, calls=1), known)
    if not single:
        return open_baseline(inputs, options) if known else None
    first_us = _medians_us(single, _FIRST_SAMPLES, warmup=1)
    limit_us = _FAR_RATIO * min(first_us.values())
    final = {
        name: _Backend(one.call, *_with_calls(one, options, first_us[name]))
        for name, one in single.items()
        if first_us[name] <= limit_us
    }
    medians_us = first_us if known else first_us | _medians_us(final, _PICK_SAMPLES, _PICK_WARMUP)
    fastest = min(final, key=lambda name: medians_us[name])
    for backend in (*single.values(), *final.values()):
        if backend.stopwatch is not final[fastest].stopwatch:
            backend.stopwatch.close()
    kept = final[fastest]
    rows = tuple(
        BaselineRow(one.name, None, "timed before")
        if known
        else BaselineRow(one.name, medians_us.get(one.name), reasons.get(one.name, ""))
        for one in BACKENDS
    )
    return Baseline(fastest, kept.stopwatch, kept.calls, rows, _output(kept.call, inputs))


@dataclass(frozen=True)
class _Backend:
    """A backend whose calls are captured."""

    call: PeerCall
    stopwatch: Stopwatch
    calls: int
    """Calls of a sample."""


def _capture(uploaded: PeerInputs, options: StopwatchOptions, known: str) -> tuple[dict[str, _Backend], dict[str, str]]:
    """Captures the known backend, or all; returns those that support the problem, and why the others do not."""
    found: dict[str, _Backend] = {}
    reasons: dict[str, str] = {}
    for peer in (peer for peer in BACKENDS if known in ("", peer.name)):
        try:
            call = peer.prepare(uploaded)
            found[peer.name] = _Backend(call, _stopwatch(call, options), options.calls)
        except (PeerUnavailableError, RuntimeError, TypeError, ValueError) as error:  # torch refuses in several ways
            reasons[peer.name] = str(error).split("\n", 1)[0]
    return found, reasons


def _with_calls(single: _Backend, options: StopwatchOptions, call_us: float) -> tuple[Stopwatch, int]:
    """Returns a stopwatch with as many calls as its samples need, and their number."""
    calls = min(options.calls, max(1, math.ceil(_SAMPLE_US / call_us)))
    if calls > single.calls:
        try:
            return _stopwatch(single.call, replace(options, calls=calls)), calls
        except RuntimeError:  # no memory for a longer graph
            pass
    return single.stopwatch, single.calls


def _stopwatch(call: PeerCall, options: StopwatchOptions) -> Stopwatch:
    kind = EagerTorchStopwatch if options.eager else TorchStopwatch
    with call.scope():
        return kind(call, options)


def _medians_us(backends: Mapping[str, _Backend], samples: int, warmup: int) -> dict[str, float]:
    sampled = sample_interleaved([one.stopwatch for one in backends.values()], samples, warmup)
    return {name: statistics.median(column) for name, column in zip(backends, sampled, strict=True)}


def _output(call: PeerCall, inputs: AttentionInputs) -> AttentionOutput | None:
    """Runs a backend once, eagerly."""
    try:
        with call.scope():
            return host_output(call(), inputs.problem)
    except (RuntimeError, ValueError):
        return None
