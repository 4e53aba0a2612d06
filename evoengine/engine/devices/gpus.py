"""Finds GPUs through the CUDA driver, without CuPy and within milliseconds."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from evoengine.device.cuda.driver import UUID_BYTES, uuid_text

_DRIVER: Final = "libcuda.so.1"
_COMPUTE_MAJOR: Final = 75
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR of cuda.h; 76 is the minor."""
_TEXT_BYTES: Final = 128


@dataclass(frozen=True)
class Gpu:
    """A GPU visible to the driver."""

    name: str
    arch: int
    """Compute capability: 89."""
    driver: str
    """Newest CUDA version that the driver supports: ``13.0``."""
    memory_bytes: int
    pci_bus_id: str
    """PCI address: ``0000:3B:00.0``."""
    ordinal: int = 0
    """CUDA's number of the GPU on this host."""
    uuid: str = ""
    """``GPU-`` and hexadecimal digits, for CUDA_VISIBLE_DEVICES."""

    @property
    def driver_major(self) -> int:
        return int(self.driver.split(".")[0])


def find_gpu() -> Gpu | None:
    """The first GPU; None without a driver or GPU."""
    return next(_gpus(), None)


def find_gpus() -> tuple[Gpu, ...]:
    """All GPUs visible to CUDA, in its order; empty without a driver."""
    return tuple(_gpus())


def _gpus() -> Iterator[Gpu]:
    try:
        cuda = ctypes.CDLL(_DRIVER)
    except OSError:
        return
    count, version = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return
    for ordinal in range(count.value):
        device = ctypes.c_int()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
            return
        yield _described(cuda, device, ordinal, driver)


def _described(cuda: Any, device: ctypes.c_int, ordinal: int, driver: str) -> Gpu:
    name, bus = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.create_string_buffer(_TEXT_BYTES)
    uuid = ctypes.create_string_buffer(UUID_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    memory = ctypes.c_size_t()
    cuda.cuDeviceGetName(name, _TEXT_BYTES, device)
    cuda.cuDeviceGetPCIBusId(bus, _TEXT_BYTES, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MAJOR + 1, device)
    cuda.cuDeviceGetUuid_v2(uuid, device)
    text = name.value.decode(errors="replace")
    return Gpu(
        name=text,
        arch=major.value * 10 + minor.value,
        driver=driver,
        memory_bytes=memory.value,
        pci_bus_id=bus.value.decode(errors="replace"),
        ordinal=ordinal,
        uuid=uuid_text(uuid.raw, text),
    )
