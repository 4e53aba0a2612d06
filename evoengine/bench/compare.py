"""Times our kernel and every peer interleaved in one process, each by CUDA-graph replay, each checked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import numpy as np

from evoengine.bench.comparison import Finding, PeerStatus
from evoengine.bench.peers.base import (
    Peer,
    PeerCall,
    PeerInputs,
    PeerUnavailableError,
    first_line,
    host_output,
    upload,
)
from evoengine.bench.peers.stopwatch import TorchStopwatch, host_time_us
from evoengine.bench.timer import TimingPlan, sample_interleaved, spin_up
from evoengine.device.protocols import Stopwatch, TimedKernel
from evoengine.errors import LaunchError, MissingDependencyError, UsageError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.call_memory import call_params, call_regions
from evoengine.kernel.records import Workspace
from evoengine.model import Problem

OURS: Final = "evoengine"


@dataclass(frozen=True)
class PeerCheck:
    """What the check against fp64 says of one output."""

    max_error: float
    reason: str = ""
    """Why it is wrong; empty when it is right."""


Judge = Callable[[AttentionOutput], PeerCheck]
"""Compares an output with the truth; it comes from the floor above."""

Tell = Callable[[str], None]
"""Takes the name of the contestant that is being prepared."""


@dataclass(frozen=True)
class Ours:
    """Our kernel: loaded, or the reason why there is none."""

    loaded: TimedKernel | None
    note: str
    config: str = ""
    """Family and tunables, from which it can be made again; empty where there is none."""


@runtime_checkable
class EagerKernel(Protocol):
    """A loaded kernel that can be put on the current stream as it is."""

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Puts all launches of one call on the current stream; ``params`` is what ``pack_params`` makes."""

    def workspace(self, problem: Problem) -> Workspace:
        """The memory that a call of this problem needs besides its tensors."""


def require_torch_cuda() -> str:
    """Version of the torch that can use the GPU.

    Raises:
        MissingDependencyError: torch has no CUDA, or sees no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingDependencyError(
            f"torch {torch.__version__} cannot use a GPU, and compare times it: install a CUDA build of torch, "
            "'python -m evoengine doctor' shows the driver"
        )
    return str(torch.__version__)


def measure(
    inputs: AttentionInputs, ours: Ours, peers: Sequence[Peer], judge: Judge, plan: TimingPlan, tell: Tell
) -> tuple[Finding, ...]:
    """Prepares, checks and times everybody on the same inputs.

    Args:
        inputs: with heads outside rows; peers that want another layout get a copy in it.
        ours: our kernel, or why it is missing.
        peers: in the order in which they are prepared.
        judge: the check against fp64.
        plan: calls, samples, warm or cold cache.
        tell: is told who is being prepared.

    Returns:
        One finding per contestant, ours first.

    Raises:
        UsageError: a peer lost the GPU to this process.
    """
    with ExitStack() as stack:
        tensors = upload(inputs)
        tell(OURS)
        entries = [_open_ours(ours, inputs, judge, plan, stack)]
        for peer in peers:
            tell(peer.name)
            entries.append(_open_peer(peer, tensors, judge, plan, stack))
        timed = [(index, watch) for index, (_, watch) in enumerate(entries) if watch is not None]
        findings = [finding for finding, _ in entries]
        if not timed:
            return tuple(findings)
        tell("timing")
        watches = [watch for _, watch in timed]
        spin_up(watches[0], plan.spin_up_s)
        sampled = sample_interleaved(watches, plan.samples, plan.warmup)
        for (index, _), samples_us in zip(timed, sampled, strict=True):
            findings[index] = replace(findings[index], samples_us=samples_us)
    return tuple(findings)


_Entry = tuple[Finding, Stopwatch | None]


def _open_ours(ours: Ours, inputs: AttentionInputs, judge: Judge, plan: TimingPlan, stack: ExitStack) -> _Entry:
    if ours.loaded is None:
        return Finding(OURS, PeerStatus.UNAVAILABLE, ours.note, ours=True), None
    try:
        judgement = judge(ours.loaded.attention(inputs))
        watch = stack.enter_context(closing(ours.loaded.stopwatch(inputs, plan.stopwatch)))
        host_us = _our_host_us(ours.loaded, inputs)
    except LaunchError as error:
        _check_gpu(OURS)
        return Finding(OURS, PeerStatus.FAILED, f"{ours.note}: {first_line(error)}", ours=True), None
    return _judged(Finding(OURS, PeerStatus.OK, ours.note, host_us=host_us, ours=True), judgement), watch


def _our_host_us(loaded: TimedKernel, inputs: AttentionInputs) -> float | None:
    """Host time of one call on tensors that are on the GPU already, the output included."""
    if not isinstance(loaded, EagerKernel):
        return None
    import torch

    buffers = {
        region.name: torch.from_numpy(np.array(region.contents, order="C").reshape(-1).view(np.uint8)).cuda()
        for region in call_regions(inputs, loaded.workspace(inputs.problem))
    }
    params = call_params(inputs, {name: buffer.data_ptr() for name, buffer in buffers.items()})
    return host_time_us(lambda: loaded.enqueue(inputs, params), torch.cuda.synchronize)


def _open_peer(peer: Peer, tensors: PeerInputs, judge: Judge, plan: TimingPlan, stack: ExitStack) -> _Entry:
    """Prepares, captures and checks one peer; whatever goes wrong becomes its row."""
    import torch

    try:
        call = peer.prepare(tensors)
        with torch.no_grad(), call.scope():
            watch = stack.enter_context(closing(TorchStopwatch(call, plan.stopwatch)))
            host_us = host_time_us(call, torch.cuda.synchronize)
        judgement = judge(host_output(watch.output(), tensors.problem))
    except PeerUnavailableError as error:
        _check_gpu(peer.name)
        return Finding(peer.name, PeerStatus.UNAVAILABLE, str(error)), None
    except Exception as error:  # noqa: BLE001 - a library may fail in any way; none of them ends the comparison
        _check_gpu(peer.name)
        return Finding(peer.name, *_refusal(error)), None
    return _judged(Finding(peer.name, PeerStatus.OK, call.note, host_us=host_us), judgement), watch


def check_peer(peer: Peer, tensors: PeerInputs, judge: Judge) -> Finding:
    """Runs a peer once, eagerly, and checks its output; works on any torch device and times nothing."""
    import torch

    try:
        call: PeerCall = peer.prepare(tensors)
        with torch.no_grad(), call.scope():
            judgement = judge(host_output(call(), tensors.problem))
    except PeerUnavailableError as error:
        return Finding(peer.name, PeerStatus.UNAVAILABLE, str(error))
    except Exception as error:  # noqa: BLE001 - as above
        return Finding(peer.name, *_refusal(error))
    return _judged(Finding(peer.name, PeerStatus.OK, call.note), judgement)


def _refusal(error: Exception) -> tuple[PeerStatus, str]:
    return PeerStatus.FAILED, f"{type(error).__name__}: {first_line(error)}"


def _judged(finding: Finding, judgement: PeerCheck) -> Finding:
    if judgement.reason:
        note = f"{judgement.reason} ({finding.note})" if finding.note else judgement.reason
        return replace(finding, outcome=PeerStatus.WRONG, note=note, max_error=judgement.max_error)
    return replace(finding, max_error=judgement.max_error)


def _check_gpu(name: str) -> None:
    """A fault such as an illegal address takes the GPU from the whole process: nobody can be timed any more."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise UsageError(
            f"{name} lost the GPU ({first_line(error)}): leave it out of --peers, which names who is compared"
        ) from error
