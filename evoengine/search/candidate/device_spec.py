"""Description of the device that candidates run on, and the function that opens it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from evoengine.device.protocols import Device
from evoengine.errors import UsageError
from evoengine.target import get_target

DeviceKind = Literal["cuda", "emulator", "replay"]


@dataclass(frozen=True)
class DeviceSpec:
    """A device to open; picklable, so that each worker process opens its own."""

    kind: DeviceKind
    target: str = "l4"
    """Name of the GPU to predict for; emulator only."""
    arch: str = ""
    """Architecture to compile for; empty for the device's own."""
    replay: str = ""
    """Landscape file and noise options; replay only."""


def open_device(spec: DeviceSpec) -> Device:
    """Opens a device in this process.

    Raises:
        UsageError: The target is unknown, the device cannot run the architecture, or it is a replay, which runs no
            kernels.
        MissingDependencyError: There is no GPU, no driver or no CuPy.
    """
    if spec.kind == "replay":
        raise UsageError("a replay runs no kernels: only 'search' and 'verify' can use it")
    if spec.kind == "cuda":
        from evoengine.device.cuda.device import CudaDevice  # lazily: CuPy takes seconds and needs a driver

        return CudaDevice(spec.arch or None)
    from evoengine.costmodel.device import EmulatorDevice

    return EmulatorDevice(get_target(spec.target), spec.arch or None)
