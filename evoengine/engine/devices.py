"""``--device``: which devices of this host are meant, and for each a place where a worker runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.environment_check import cupy_version, cupy_wheel
from evoengine.engine.gpus import Gpu, find_gpu, find_gpus
from evoengine.engine.options import SearchOptions
from evoengine.engine.replay_device import PREFIX
from evoengine.errors import MissingDependencyError, UsageError
from evoengine.search.candidate.device_spec import DeviceKind, DeviceSpec
from evoengine.target import target_for_gpu

_ALL: Final = "all"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_MOST_EMULATED: Final = 256
"""Each is a process of its own."""


@dataclass(frozen=True)
class DeviceChoice:
    """Which devices a search uses, and why."""

    spec: DeviceSpec
    reason: str
    """Empty when the user named it."""
    places: tuple[GpuBinding, ...] = (GpuBinding(),)
    """Of the workers, one on each device."""
    gpu: Gpu | None = None
    """The first of the GPUs that the user named; None where it is the first that there is."""


def choose_device(request: SearchOptions) -> DeviceChoice:
    """Resolves ``--device``.

    Raises:
        UsageError: no such device, GPUs of several types, or it cannot do what is asked for.
        MissingDependencyError: the user names GPUs, and CUDA sees none.
    """
    kind: DeviceKind
    gpus: tuple[Gpu, ...] = ()
    reason = replay = ""
    match request.device.partition(":"):
        case ("auto", "", _):
            kind, reason = _detect()
            places = _emulated("") if kind == "emulator" else (GpuBinding(),)
        case ("cuda", "", _):
            kind, places = "cuda", (GpuBinding(),)
        case ("cuda", _, which):
            kind, gpus = "cuda", _named_gpus(which)
            places = tuple(_place_of(gpu) for gpu in gpus)
        case ("emulator", _, which):
            kind, places = "emulator", _emulated(which)
        case ("replay", ":", replay):
            kind, places = "replay", (GpuBinding(),)
        case _:
            known = f"auto, cuda, cuda:0,1, cuda:all, emulator or {PREFIX}FILE"
            raise UsageError(f"unknown device '{request.device}': choose {known}")
    _refuse_what_does_not_fit(request, kind)
    spec = DeviceSpec(kind, request.target, request.arch, replay)
    return DeviceChoice(spec, reason, places, gpus[0] if gpus else None)


def _refuse_what_does_not_fit(request: SearchOptions, kind: DeviceKind) -> None:
    if request.cold_l2 and kind != "cuda":
        raise UsageError("--cold-l2 times on a GPU: the emulator predicts with warm caches only")
    if request.eager and kind != "cuda":
        raise UsageError("--eager times launches on a GPU: the emulator predicts what a graph of them takes")
    if request.workload is not None and kind == "replay":
        raise UsageError("a replay knows one problem: leave --workload out")
    if kind == "replay" and (request.arch or request.space_file is not None):
        raise UsageError("a replay searches what was recorded: leave --arch and --space out")


def _detect() -> tuple[DeviceKind, str]:
    gpu = find_gpu()
    if gpu is None:
        return "emulator", "no GPU is visible"
    if cupy_version() is None:
        return "emulator", f"{gpu.name} is there but CuPy is not: python -m pip install {cupy_wheel(gpu)}"
    return "cuda", ""


def _named_gpus(which: str) -> tuple[Gpu, ...]:
    """The GPUs of ``0,1`` or ``all``, all of one type."""
    gpus = find_gpus()
    if not gpus:
        raise MissingDependencyError("no usable NVIDIA GPU: check 'nvidia-smi', or use --device emulator")
    named = gpus if which == _ALL else tuple(gpus[number] for number in _numbers("cuda", which, len(gpus)))
    first = named[0]
    for other in named:
        if _type_of(other) != _type_of(first):
            raise UsageError(
                f"GPU {first.ordinal} is {_described(first)} and GPU {other.ordinal} {_described(other)}: rows of the "
                "leaderboard are about one type of GPU, so a search uses GPUs of one type; name those, as in cuda:0,1"
            )
    return named


def _type_of(gpu: Gpu) -> tuple[object, ...]:
    """What GPUs must have in common; memory tells types apart that have one name."""
    return gpu.name, gpu.arch, target_for_gpu(gpu.name, gpu.memory_bytes)


def _described(gpu: Gpu) -> str:
    return f"{gpu.name} (sm_{gpu.arch}, {gpu.memory_bytes / 2**30:.0f} GiB)"


def _place_of(gpu: Gpu) -> GpuBinding:
    """A worker that sees this GPU only, and so does whatever it starts."""
    return GpuBinding(f"GPU {gpu.ordinal} ({gpu.pci_bus_id})", {_VISIBLE: gpu.uuid})


def _emulated(which: str) -> tuple[GpuBinding, ...]:
    """One for each core, or those that are named."""
    if which in ("", _ALL):
        return (GpuBinding(),) * len(os.sched_getaffinity(0))
    return tuple(GpuBinding(f"emulated device {number}") for number in _numbers("emulator", which, _MOST_EMULATED))


def _numbers(kind: str, which: str, count: int) -> Sequence[int]:
    """Different numbers below a count."""
    words = [word.strip().removeprefix(f"{kind}:") for word in which.split(",")]  # torch writes cuda:0
    if not all(word.isascii() and word.isdigit() for word in words):
        raise UsageError(f"--device {kind}:{which}: give numbers with commas between, as in {kind}:0,1, or {kind}:all")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--device {kind}:{which}: name each device once")
    if max(numbers) >= count:
        there = "only device 0 is there" if count == 1 else f"0 to {count - 1} are there"
        raise UsageError(f"--device {kind}:{which}: {there}")
    return numbers
