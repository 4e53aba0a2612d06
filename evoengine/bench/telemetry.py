"""The state of the GPU through NVML: clocks, temperature, power, why it is throttled, and energy.

A query takes the driver 10 µs to some 100 µs, so none stands between samples; see :mod:`evoengine.bench.sampling`. The
library is nvidia-ml-py, whose module is ``pynvml``; it is imported when a monitor is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from evoengine.kernel.compile.toolchain_check import Probe
from evoengine.model import GpuReading

REASONS: Final[Mapping[int, str]] = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of ``nvmlDeviceGetCurrentClocksEventReasons``, by nvml.h's names."""

_REMEDY: Final = "python -m pip install nvidia-ml-py"


class Monitor(Protocol):
    """Looks at one GPU."""

    @property
    def missing(self) -> str:
        """Why it sees nothing; empty where it does."""

    @property
    def gpu(self) -> str:
        """UUID of the GPU, as CUDA gives it; empty where nobody said."""

    def read(self) -> GpuReading:
        """Everything, in several queries."""

    def throttled(self) -> bool:
        """Whether heat or power holds the clocks down right now, in one query."""

    def energy_mj(self) -> int | None:
        """Energy in millijoules since the driver was loaded, of the whole GPU; None where it is not counted."""

    def close(self) -> None:
        """Lets go of the library; harmless when called twice."""


class Blind:
    """A monitor that sees nothing: readings are empty, and nothing counts as throttled.

    Args:
        missing: why.
        gpu: UUID of the GPU.
    """

    def __init__(self, missing: str, gpu: str = "") -> None:
        self.missing = missing
        self.gpu = gpu

    def read(self) -> GpuReading:
        """Nothing is known."""
        return GpuReading()

    def throttled(self) -> bool:
        """Nothing is known, so nothing is held against the samples."""
        return False

    def energy_mj(self) -> int | None:
        """Nothing is known."""
        return None

    def close(self) -> None:
        """Has nothing to let go of."""


class NvmlMonitor:
    """A GPU seen through NVML. Made by :func:`open_monitor`.

    What a driver does not tell about this GPU (a MIG slice, a virtual machine) is None in readings, not an error.

    Args:
        nvml: the ``pynvml`` module, initialised.
        handle: of the GPU.
        gpu: its UUID.
    """

    missing = ""

    def __init__(self, nvml: Any, handle: Any, gpu: str = "") -> None:
        self.gpu = gpu
        self._nvml = nvml
        self._handle = handle
        self._open = True

    def read(self) -> GpuReading:
        """Everything, in five queries."""
        nvml, handle = self._nvml, self._handle
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return GpuReading(
            sm_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            temperature_c=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            reasons=self._reasons(),
        )

    def throttled(self) -> bool:
        """Whether heat or power holds the clocks down right now."""
        return GpuReading(reasons=self._reasons()).throttled

    def energy_mj(self) -> int | None:
        """The counter of millijoules; None before Volta."""
        return self._ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def close(self) -> None:
        """Shuts NVML down."""
        if self._open:
            self._open = False
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _reasons(self) -> tuple[str, ...]:
        nvml = self._nvml
        name = "nvmlDeviceGetCurrentClocksEventReasons"  # before driver 535 it was called after throttling
        query = getattr(nvml, name, None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        bits = self._ask(lambda: query(self._handle)) or 0
        return tuple(text for bit, text in REASONS.items() if bits & bit)

    def _ask(self, query: Callable[[], Any]) -> int | None:
        try:
            return int(query())
        except self._nvml.NVMLError:
            return None


def probe_nvml() -> Probe:
    """Whether NVML can be asked on this machine, for ``doctor``."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Probe("NVML", False, "nvidia-ml-py is not installed: no telemetry", _REMEDY)
    except pynvml.NVMLError as error:
        return Probe("NVML", False, f"does not start: {error}")
    version = str(pynvml.nvmlSystemGetDriverVersion())
    pynvml.nvmlShutdown()
    return Probe("NVML", True, f"of driver {version}")


def open_monitor(pci_bus_id: str, gpu: str = "") -> Monitor:
    """Looks for a GPU in NVML; says in :attr:`Monitor.missing` why it cannot be seen. Never raises.

    Args:
        pci_bus_id: of the GPU, as CUDA gives it: the order of GPUs is not the same there.
        gpu: its UUID, which each measurement is to name.
    """
    try:
        import pynvml
    except ImportError:
        return Blind(f"nvidia-ml-py is not installed: {_REMEDY}", gpu)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Blind(f"NVML does not start: {error}", gpu)
    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError as error:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        return Blind(f"NVML tells nothing about GPU {pci_bus_id}: {error}", gpu)
    return NvmlMonitor(pynvml, handle, gpu)
