"""Facts about a device before its workers open it: name, architecture, driver and data sheet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

from evoengine.device.architecture import compute_capability
from evoengine.device.workers.pool import WorkerPool
from evoengine.engine.devices.choice import DeviceChoice
from evoengine.engine.devices.environment import cupy_version
from evoengine.engine.devices.gpus import Gpu, find_gpu
from evoengine.kernel.compile.nvrtc import nvrtc_version
from evoengine.model import DeviceInfo
from evoengine.search.candidate.device_spec import DeviceSpec, open_device
from evoengine.target import Target, native_arch, target_for_gpu

_DESCRIBE_LIMIT_S: Final = 60.0
"""Deadline of a process that opens a device."""


class DeviceDescriber:
    """Opens a device to read its facts."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._device = open_device(spec)

    def describe(self) -> tuple[DeviceInfo, Target]:
        """Returns the device's facts and its data sheet."""
        return self._device.info, self._device.target


def describe_device(choice: DeviceChoice) -> tuple[DeviceInfo, Target]:
    """Returns the facts and the data sheet of a device, the first of several.

    A known GPU is described by its driver, which takes no time. Any other GPU is opened, in a process of its own,
    because this process must never hold a CUDA context; one that cannot be used then reports why.

    Raises:
        EvoEngineError: The device cannot be opened.
    """
    spec = choice.spec
    known = known_gpu(spec, choice.gpu) if spec.kind == "cuda" else None
    if known is not None:
        info, target = known
    elif spec.kind == "emulator":
        info, target = DeviceDescriber(spec).describe()
    else:
        probe, bindings = partial(DeviceDescriber, spec), choice.bindings[:1]
        with WorkerPool(probe, 1, _DESCRIBE_LIMIT_S, name="device probe", bindings=bindings) as pool:
            info, target = pool.submit("describe").result()
    return replace(info, nvrtc=nvrtc_version()), target


def known_gpu(spec: DeviceSpec, gpu: Gpu | None = None, *, here: bool = True) -> tuple[DeviceInfo, Target] | None:
    """Returns what a :class:`~evoengine.device.cuda.device.CudaDevice` reports of a GPU, without opening it.

    Args:
        spec: Device to describe.
        gpu: GPU to describe; None for the first.
        here: Whether it is a GPU of this machine.

    Returns:
        None where there is no GPU or no CuPy, where the GPU is in no data sheet, or is older than the requested
        architecture.
    """
    gpu = gpu or find_gpu()
    if gpu is None or (here and cupy_version() is None):
        return None
    target = target_for_gpu(gpu.name, gpu.memory_bytes)
    own_arch = native_arch(*divmod(gpu.arch, 10))
    if target is None or (spec.arch and compute_capability(spec.arch) > compute_capability(own_arch)):
        return None
    arch = spec.arch or own_arch
    info = DeviceInfo("cuda", gpu.name, arch, predicted=False, driver=gpu.driver)
    return replace(info, pci_bus_id=gpu.pci_bus_id, uuid=gpu.uuid), target
