"""Choice among several kernels for one problem: each is checked and timed on the GPU at hand, the fastest is kept."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import torch

from evoengine.runtime.call import Call, CallStrides, read_call
from evoengine.runtime.driver import open_driver
from evoengine.runtime.first_use_check import check_kernel, random_call
from evoengine.runtime.launcher import KernelPlan, make_launcher

_CALLS: Final = 10
"""Calls in a CUDA graph."""
_ROUNDS: Final = 12
"""Timed replays of each kernel's graph; all kernels take part in each round, so that a change of clocks affects all."""


class Choosable(Protocol):
    """A kernel that can be chosen."""

    @property
    def sha256(self) -> str:
        """Hash of its machine code."""

    def plan(self, call: Call) -> KernelPlan:
        """Returns code and launch sizes for a call."""


Kernel = TypeVar("Kernel", bound=Choosable)
Timer = Callable[[Sequence[KernelPlan], Call, int], list[float]]
"""Returns the time of each plan for a call on a device, in microseconds."""


def choices_file() -> Path | None:
    """Returns the file in which choices are kept between processes; None for a user without a home."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the XDG specification ignores a relative path
        try:
            root = Path.home() / ".cache"
        except RuntimeError:  # no HOME, and no entry of the user in the system's list
            return None
    return root / "evoengine" / "choices.json" if root.is_absolute() else None


def choose_kernel(
    kernels: Sequence[Kernel],
    call: Call,
    device: int,
    strides: CallStrides | None,
    gpu: str,
    check: Callable[..., str] = check_kernel,
    timer: Timer | None = None,
) -> Kernel | str:
    """Returns the fastest correct kernel for a call, or why there is none.

    A choice that an earlier process made for the same kernels, call and GPU is used again after a check. Where times
    cannot be taken, the first correct kernel is returned.

    Args:
        kernels: Candidates, fastest prediction first.
        call: Attention call.
        device: Ordinal of the GPU.
        strides: Strides of Q, K and V.
        gpu: Name of the GPU.
        check: Check of a kernel; the package's own but for tests.
        timer: Timer; None for CUDA events.
    """
    key = hashlib.sha256(repr((gpu, call, *(kernel.sha256 for kernel in kernels))).encode()).hexdigest()
    known = _read_choices().get(key)
    for kernel in kernels:
        if kernel.sha256 == known and not check(kernel.plan, call, device, strides=strides):
            return kernel
    reasons = [check(kernel.plan, call, device, strides=strides) for kernel in kernels]
    correct = [kernel for kernel, reason in zip(kernels, reasons, strict=True) if not reason]
    if not correct:
        return f"none of {len(kernels)} kernels is right for it: {reasons[0]}"
    try:
        times_us = (timer or graph_times)([kernel.plan(call) for kernel in correct], call, device)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        warnings.warn(f"kernels cannot be timed, the fastest predicted is taken: {text}", RuntimeWarning, stacklevel=2)
        return correct[0]
    chosen = correct[times_us.index(min(times_us))]
    _keep_choice(key, chosen.sha256)
    return chosen


def graph_times(plans: Sequence[KernelPlan], call: Call, device: int) -> list[float]:
    """Measures kernels on random tensors by replays of CUDA graphs, in microseconds for one call.

    Args:
        plans: Kernels with the launch sizes of the call.
        call: Attention call.
        device: Ordinal of the GPU.

    Raises:
        RuntimeError: The driver or torch fails.
    """
    driver = open_driver()
    with driver.on(device), torch.no_grad():
        tensors, options = random_call(call, torch.device("cuda", device))
        read = read_call(*tensors, options)
        graphs = []
        for plan in plans:
            launcher = make_launcher(driver, plan, read, *tensors[:3], options.layout)
            launcher(*tensors)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(_CALLS):
                    launcher(*tensors)
            graph.replay()
            graphs.append(graph)
        rounds = [[_replay_us(graph) / _CALLS for graph in graphs] for _ in range(_ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    make_event: Callable[..., torch.cuda.Event] = torch.cuda.Event
    begin, end = make_event(enable_timing=True), make_event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _read_choices() -> dict[str, str]:
    """Returns the kept choices; a missing or damaged file has none."""
    file = choices_file()
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep_choice(key: str, sha256: str) -> None:
    """Adds a choice to the file; a folder that cannot be written only costs the next process the time to choose."""
    file = choices_file()
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps(_read_choices() | {key: sha256}), encoding="utf-8")
        new.replace(file)
    except OSError:
        return
