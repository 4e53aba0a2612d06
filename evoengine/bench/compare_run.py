"""Runs a comparison: our kernel and every peer are checked, then timed interleaved in one process by graph replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import numpy as np

from evoengine.bench.compare_result import Finding, PeerStatus
from evoengine.bench.peer_protocol import (
    Peer,
    PeerCall,
    PeerInputs,
    PeerUnavailableError,
    first_line,
    host_output,
    upload,
)
from evoengine.bench.peer_stopwatch import TorchStopwatch, host_time_us
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
    """Result of checking one output against fp64 attention."""

    max_error: float
    reason: str = ""
    """Reason why the output is wrong; empty when it is correct."""


OutputCheck = Callable[[AttentionOutput], PeerCheck]
"""Compares an output with the reference; the caller provides it, since ``parity`` is in the same layer as ``bench``."""

Announce = Callable[[str], None]
"""Receives the name of the kernel that is being prepared."""


@dataclass(frozen=True)
class OwnKernel:
    """Our kernel: loaded, or the reason why there is none."""

    loaded: TimedKernel | None
    note: str
    config: str = ""
    """Family and tunables, from which the kernel can be rebuilt; empty if there is none."""


@runtime_checkable
class _EagerKernel(Protocol):
    """A loaded kernel that can be enqueued on the current stream."""

    def enqueue(self, inputs: AttentionInputs, params: np.ndarray) -> None:
        """Enqueues all launches of one call on the current stream; ``params`` comes from ``pack_params``."""

    def workspace(self, problem: Problem) -> Workspace:
        """Returns the memory that a call of this problem needs besides its tensors."""


def require_torch_cuda() -> str:
    """Returns the version of torch, which must be able to use the GPU.

    Raises:
        MissingDependencyError: torch has no CUDA, or finds no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise MissingDependencyError(
            f"torch {torch.__version__} cannot use a GPU, which compare needs: install a CUDA build of torch, "
            "'python -m evoengine doctor' shows the driver"
        )
    return str(torch.__version__)


def measure(
    inputs: AttentionInputs,
    ours: OwnKernel,
    peers: Sequence[Peer],
    check: OutputCheck,
    plan: TimingPlan,
    announce: Announce,
) -> tuple[Finding, ...]:
    """Prepares, checks and times our kernel and all peers on the same inputs.

    Args:
        inputs: Inputs with heads outside rows; peers that need another layout copy them.
        ours: Our kernel, or the reason why it is missing.
        peers: Peers in the order in which they are prepared.
        check: Check against fp64 attention.
        plan: Calls, samples, warm or cold cache.
        announce: Callback for the name of the kernel that is being prepared.

    Returns:
        One finding per kernel, ours first.

    Raises:
        UsageError: A peer made the GPU unusable for this process.
    """
    with ExitStack() as stack:
        tensors = upload(inputs)
        announce(OURS)
        entries = [_open_ours(ours, inputs, check, plan, stack)]
        for peer in peers:
            announce(peer.name)
            entries.append(_open_peer(peer, tensors, check, plan, stack))
        timed = [(index, watch) for index, (_, watch) in enumerate(entries) if watch is not None]
        findings = [finding for finding, _ in entries]
        if not timed:
            return tuple(findings)
        announce("timing")
        watches = [watch for _, watch in timed]
        spin_up(watches[0], plan.spin_up_s)
        sampled = sample_interleaved(watches, plan.samples, plan.warmup)
        for (index, _), samples_us in zip(timed, sampled, strict=True):
            findings[index] = replace(findings[index], samples_us=samples_us)
    return tuple(findings)


_Entry = tuple[Finding, Stopwatch | None]


def _open_ours(
    ours: OwnKernel, inputs: AttentionInputs, check: OutputCheck, plan: TimingPlan, stack: ExitStack
) -> _Entry:
    if ours.loaded is None:
        return Finding(OURS, PeerStatus.UNAVAILABLE, ours.note, ours=True), None
    try:
        checked = check(ours.loaded.attention(inputs))
        watch = stack.enter_context(closing(ours.loaded.stopwatch(inputs, plan.stopwatch)))
        host_us = _our_host_us(ours.loaded, inputs)
    except LaunchError as error:
        _check_gpu(OURS)
        return Finding(OURS, PeerStatus.FAILED, f"{ours.note}: {first_line(error)}", ours=True), None
    return _checked(Finding(OURS, PeerStatus.OK, ours.note, host_us=host_us, ours=True), checked), watch


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


def _open_peer(peer: Peer, tensors: PeerInputs, check: OutputCheck, plan: TimingPlan, stack: ExitStack) -> _Entry:
    """Prepares, captures and checks one peer; any failure becomes its row."""
    import torch

    try:
        call = peer.prepare(tensors)
        with torch.no_grad(), call.scope():
            watch = stack.enter_context(closing(TorchStopwatch(call, plan.stopwatch)))
            host_us = host_time_us(call, torch.cuda.synchronize)
        checked = check(host_output(watch.output(), tensors.problem))
    except PeerUnavailableError as error:
        _check_gpu(peer.name)
        return Finding(peer.name, PeerStatus.UNAVAILABLE, str(error)), None
    except Exception as error:  # noqa: BLE001 - no failure of a foreign library may end the comparison
        _check_gpu(peer.name)
        return Finding(peer.name, *_refusal(error)), None
    return _checked(Finding(peer.name, PeerStatus.OK, call.note, host_us=host_us), checked), watch


def check_peer(peer: Peer, tensors: PeerInputs, check: OutputCheck) -> Finding:
    """Runs a peer once, eagerly, and checks its output; works on any torch device and times nothing."""
    import torch

    try:
        call: PeerCall = peer.prepare(tensors)
        with torch.no_grad(), call.scope():
            checked = check(host_output(call(), tensors.problem))
    except PeerUnavailableError as error:
        return Finding(peer.name, PeerStatus.UNAVAILABLE, str(error))
    except Exception as error:  # noqa: BLE001 - as above
        return Finding(peer.name, *_refusal(error))
    return _checked(Finding(peer.name, PeerStatus.OK, call.note), checked)


def _refusal(error: Exception) -> tuple[PeerStatus, str]:
    return PeerStatus.FAILED, f"{type(error).__name__}: {first_line(error)}"


def _checked(finding: Finding, checked: PeerCheck) -> Finding:
    if checked.reason:
        note = f"{checked.reason} ({finding.note})" if finding.note else checked.reason
        return replace(finding, outcome=PeerStatus.WRONG, note=note, max_error=checked.max_error)
    return replace(finding, max_error=checked.max_error)


def _check_gpu(name: str) -> None:
    """Detects a fault such as an illegal address: it makes the GPU unusable for the whole process."""
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise UsageError(
            f"{name} made the GPU unusable for this process ({first_line(error)}): leave it out of --peers"
        ) from error
