"""Looks for a GPU through the driver alone, without CuPy and in milliseconds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

_DRIVER: Final = "libcuda.so.1"
_COMPUTE_MAJOR: Final = 75
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR of cuda.h; 76 is the minor."""
_NAME_BYTES: Final = 128


@dataclass(frozen=True)
class Gpu:
    """The first GPU that the driver sees."""

    name: str
    arch: int
    """Compute capability: 89."""
    driver: str
    """Newest CUDA that the driver runs: ``13.0``."""
    memory_bytes: int
    pci_bus_id: str
    """As ``0000:3B:00.0``."""

    @property
    def driver_major(self) -> int:
        """13 of ``13.0``."""
        return int(self.driver.split(".")[0])


def find_gpu() -> Gpu | None:
    """The first GPU; None without a driver or without a GPU."""
    try:
        cuda = ctypes.CDLL(_DRIVER)
    except OSError:
        return None
    if cuda.cuInit(0) != 0:
        return None
    device, version = ctypes.c_int(), ctypes.c_int()
    if cuda.cuDeviceGet(ctypes.byref(device), 0) != 0 or cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    name, bus = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_NAME_BYTES)
    major, minor = ctypes.c_int(), ctypes.c_int()
    memory = ctypes.c_size_t()
    cuda.cuDeviceGetName(name, _NAME_BYTES, device)
    cuda.cuDeviceGetPCIBusId(bus, _NAME_BYTES, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MAJOR + 1, device)
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    arch = major.value * 10 + minor.value
    return Gpu(name.value.decode(errors="replace"), arch, driver, memory.value, bus.value.decode(errors="replace"))
