"""Resolves ``--device`` to the devices of this host and one worker binding for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.devices.environment import GPU_FIX, NO_GPU, cupy_version, cupy_wheel
from evoengine.engine.devices.gpus import Gpu, find_gpu, find_gpus
from evoengine.engine.devices.replay import PREFIX
from evoengine.engine.options.search import SearchOptions
from evoengine.errors import MissingDependencyError, UsageError
from evoengine.search.candidate.device_spec import DeviceKind, DeviceSpec
from evoengine.target import target_for_gpu

_ALL: Final = "all"
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_MAX_EMULATED: Final = 256
"""Maximum number of emulated devices; each is a process."""
_MAX_DIGITS: Final = 9
"""Digits of the number of a device."""


@dataclass(frozen=True)
class DeviceChoice:
    """The devices of a search."""

    spec: DeviceSpec
    reason: str
    """Why the device was chosen; empty if the user named it."""
    bindings: tuple[GpuBinding, ...] = (GpuBinding(),)
    """Bindings of the device workers, one for each device."""
    gpu: Gpu | None = None
    """The first GPU that the user named; None for the first of the host."""


def choose_device(options: SearchOptions) -> DeviceChoice:
    """Resolves ``--device``.

    Raises:
        UsageError: The device is unknown, the GPUs are of several types, or the device does not support an option.
        MissingDependencyError: A GPU is requested, and CUDA sees none.
    """
    kind: DeviceKind
    gpus: tuple[Gpu, ...] = ()
    reason = replay = ""
    match options.device.partition(":"):
        case ("auto", "", _):
            kind, reason = _detect()
            bindings = _emulated("") if kind == "emulator" else (GpuBinding(),)
        case ("cuda", "", _):
            _visible_gpus()
            kind, bindings = "cuda", (GpuBinding(),)
        case ("cuda", _, which):
            kind, gpus = "cuda", _named_gpus(which)
            bindings = tuple(_binding_of(gpu) for gpu in gpus)
        case ("emulator", _, which):
            kind, bindings = "emulator", _emulated(which)
        case ("replay", ":", replay):
            kind, bindings = "replay", (GpuBinding(),)
        case _:
            known = f"auto, cuda, cuda:0,1, cuda:all, emulator or {PREFIX}FILE"
            raise UsageError(f"unknown device '{options.device}': choose {known}")
    check_support(options, kind)
    spec = DeviceSpec(kind, options.target, options.arch, replay)
    return DeviceChoice(spec, reason, bindings, gpus[0] if gpus else None)


def check_support(options: SearchOptions, kind: DeviceKind) -> None:
    """Checks that a device supports the options.

    Raises:
        UsageError: It does not.
    """
    if options.cold_l2 and kind != "cuda":
        raise UsageError("--cold-l2 needs a GPU: the emulator predicts warm caches, and a replay reads recorded times")
    if options.eager and kind != "cuda":
        raise UsageError("--eager needs a GPU: the emulator predicts CUDA graphs, and a replay reads recorded times")
    if options.workload is not None and kind == "replay":
        raise UsageError("a replay holds one problem: leave --workload out")
    if kind == "replay" and (options.arch or options.space_file is not None):
        raise UsageError("a replay searches recorded configs: leave --arch and --space out")


def _detect() -> tuple[DeviceKind, str]:
    gpu = find_gpu()
    if gpu is None:
        return "emulator", "no GPU is visible"
    if cupy_version() is None:
        return "emulator", f"CuPy is not installed for {gpu.name}: python -m pip install {cupy_wheel(gpu)}"
    return "cuda", ""


def _visible_gpus() -> tuple[Gpu, ...]:
    """Returns all GPUs; raises MissingDependencyError with the text of ``doctor`` if there are none."""
    gpus = find_gpus()
    if not gpus:
        raise MissingDependencyError(f"{NO_GPU}: {GPU_FIX}")
    return gpus


def _named_gpus(which: str) -> tuple[Gpu, ...]:
    """The GPUs of ``0,1`` or ``all``, all of one type."""
    gpus = _visible_gpus()
    named = gpus if which == _ALL else tuple(gpus[number] for number in _numbers("cuda", which, len(gpus)))
    first = named[0]
    for other in named:
        if type_of(other) != type_of(first):
            raise UsageError(
                f"GPU {first.ordinal} is {described(first)} and GPU {other.ordinal} is {described(other)}: "
                "a search uses GPUs of one type: name those, as in cuda:0,1"
            )
    return named


def type_of(gpu: Gpu) -> tuple[object, ...]:
    """Facts that are equal for GPUs of one type; some types differ only in memory."""
    return gpu.name, gpu.arch, target_for_gpu(gpu.name, gpu.memory_bytes)


def described(gpu: Gpu) -> str:
    """Name of a GPU with its architecture and memory, which distinguish types of the same name."""
    return f"{gpu.name} (sm_{gpu.arch}, {gpu.memory_bytes / 2**30:.0f} GiB)"


def _binding_of(gpu: Gpu) -> GpuBinding:
    """Binds a worker and its child processes to one GPU."""
    return GpuBinding(f"GPU {gpu.ordinal} ({gpu.pci_bus_id})", {_VISIBLE: gpu.uuid})


def _emulated(which: str) -> tuple[GpuBinding, ...]:
    """One emulated device for each core, or the named ones."""
    if which in ("", _ALL):
        return (GpuBinding(),) * len(os.sched_getaffinity(0))
    return tuple(GpuBinding(f"emulated device {number}") for number in _numbers("emulator", which, _MAX_EMULATED))


def _numbers(kind: str, which: str, count: int) -> Sequence[int]:
    """Parses distinct device numbers below ``count``."""
    words = [word.strip().removeprefix(f"{kind}:") for word in which.split(",")]  # torch writes cuda:0
    if not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        raise UsageError(f"--device {kind}:{which}: give comma-separated numbers, as in {kind}:0,1, or {kind}:all")
    numbers = [int(word) for word in words]
    if len(set(numbers)) < len(numbers):
        raise UsageError(f"--device {kind}:{which}: name each device once")
    if max(numbers) >= count:
        known = "only device 0 exists" if count == 1 else f"devices 0 to {count - 1} exist"
        raise UsageError(f"--device {kind}:{which}: {known}")
    return numbers
