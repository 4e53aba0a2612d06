"""The process of one kernel, or of all timed kernels: prepares, times and checks them on request of ``compare_run``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np

from evoengine.bench.compare_job import OURS, CompareJob, PeerCheck, PeerStopwatch, Prepared
from evoengine.bench.peer_protocol import (
    Peer,
    PeerInputs,
    PeerUnavailableError,
    TunedPeer,
    first_line,
    host_output,
)
from evoengine.bench.peer_stopwatch import host_time_us
from evoengine.bench.timer import sample_interleaved, spin_up
from evoengine.device.protocols import KernelStopwatch, Stopwatch, TimedKernel
from evoengine.device.workers.single_worker import Journal, capture_output
from evoengine.errors import EvoEngineError, LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.call_memory import call_params, call_regions
from evoengine.kernel.records import Workspace
from evoengine.model import Problem


@runtime_checkable
class _EagerKernel(Protocol):
    """A loaded kernel that can be enqueued on the current stream."""

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Enqueues all launches of one call on the current stream; ``params`` comes from ``pack_params``."""

    def workspace(self, problem: Problem) -> Workspace:
        """Returns the memory that a call of this problem needs besides its tensors."""


class CompareWorker:
    """Kernels in one process. Every method records in the journal which kernel it runs.

    Args:
        job: The comparison.
    """

    def __init__(self, job: CompareJob) -> None:
        self._job = job
        self._peers = {peer.name: peer for peer in job.peers}
        self._timed: dict[str, _TimedPeer | _TimedOwn] = {}

    def open(self, folder: str) -> str:
        """Captures the output of libraries and starts the journal, both in the worker's folder."""
        capture_output(folder)
        self._journal = Journal(folder)
        return ""

    def prepare(self, name: str, tuned: str) -> Prepared:
        """Loads, tunes and captures a kernel, and waits until all its work is done.

        Args:
            name: Name of the kernel.
            tuned: Setting that its tuner chose in another process; empty to tune it here.

        Raises:
            LaunchError: The kernel cannot be prepared.
        """
        self._journal.write(name)
        with _short_errors():
            try:
                timed, prepared = self._own() if name == OURS else self._peer(self._peers[name], tuned)
            except PeerUnavailableError as error:
                return Prepared(str(error), unavailable=True)
            self._job.platform.synchronize()  # a fault of this kernel must not show while the next one runs
        self._timed[name] = timed
        return prepared

    def sample(self) -> tuple[tuple[float, ...], ...]:
        """Times all prepared kernels interleaved; returns the samples of each in µs, in order of preparation.

        Raises:
            LaunchError: A kernel failed; the journal names the one that ran.
        """
        plan = self._job.plan
        watches = [_JournaledWatch(timed.watch, name, self._journal) for name, timed in self._timed.items()]
        with _short_errors():
            spin_up(watches[0], plan.spin_up_s)
            return sample_interleaved(watches, plan.samples, plan.warmup)

    def verify(self, name: str) -> PeerCheck:
        """Replays a prepared kernel and checks its output.

        Raises:
            LaunchError: The kernel failed, or its output has another shape or dtype.
        """
        self._journal.write(name)
        with _short_errors():
            return self._job.check(self._timed[name].output())

    @cached_property
    def _tensors(self) -> PeerInputs:
        return self._job.platform.upload(self._job.inputs)

    def _peer(self, peer: Peer, tuned: str) -> tuple[_TimedPeer, Prepared]:
        import torch

        platform = self._job.platform
        if tuned and isinstance(peer, TunedPeer):
            call = peer.prepare_tuned(self._tensors, tuned)
        else:
            call = peer.prepare(self._tensors)
        with torch.no_grad(), call.scope():
            watch = platform.stopwatch(call, self._job.plan.stopwatch)
            host_us = host_time_us(call, platform.synchronize)
        return _TimedPeer(watch, self._job.inputs.problem), Prepared(call.note, host_us=host_us, tuned=call.tuned)

    def _own(self) -> tuple[_TimedOwn, Prepared]:
        ours, inputs = self._job.ours, self._job.inputs
        if ours.load is None:
            raise PeerUnavailableError(ours.note)
        loaded = ours.load()
        loaded.attention(inputs)  # a fault of the kernel itself shows before anything is captured
        watch = loaded.stopwatch(inputs, self._job.plan.stopwatch)
        host_us = _our_host_us(loaded, inputs)
        return _TimedOwn(watch, inputs, loaded), Prepared(ours.note, host_us=host_us)


@dataclass(frozen=True)
class _TimedPeer:
    watch: PeerStopwatch
    problem: Problem

    def output(self) -> AttentionOutput:
        return host_output(self.watch.output(), self.problem)


@dataclass(frozen=True)
class _TimedOwn:
    watch: KernelStopwatch
    inputs: AttentionInputs
    loaded: TimedKernel
    """Keeps the module loaded."""

    def output(self) -> AttentionOutput:
        return self.watch.replay(self.inputs)


@dataclass(frozen=True)
class _JournaledWatch:
    """A stopwatch that records its kernel's name before every sample."""

    watch: Stopwatch
    name: str
    journal: Journal

    def sample_us(self) -> float:
        self.journal.write(self.name)
        return self.watch.sample_us()

    def close(self) -> None:
        self.watch.close()


@contextmanager
def _short_errors() -> Iterator[None]:
    """Turns the errors of foreign libraries into one short line."""
    try:
        yield
    except EvoEngineError:
        raise
    except Exception as error:
        raise LaunchError(f"{type(error).__name__}: {first_line(error)}") from error


def _our_host_us(loaded: TimedKernel, inputs: AttentionInputs) -> float | None:
    """Host time of one call whose tensors, the output included, are already on the GPU."""
    if not isinstance(loaded, _EagerKernel):
        return None
    import torch

    buffers = {
        region.name: torch.from_numpy(np.array(region.contents, order="C").reshape(-1).view(np.uint8)).cuda()
        for region in call_regions(inputs, loaded.workspace(inputs.problem))
    }
    params = call_params(inputs, {name: buffer.data_ptr() for name, buffer in buffers.items()})
    return host_time_us(lambda: loaded.enqueue(inputs, params), torch.cuda.synchronize)
