"""The state of the GPU through NVML: clocks, temperature, power, throttle reasons and energy.

A query takes 10 µs to some 100 µs, so none is made between samples; see :mod:`evoengine.bench.sampling`. The library is
nvidia-ml-py (module ``pynvml``); it is imported when a monitor is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
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

_REASON_QUERIES: Final = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""The query, and its older name: drivers before 535 answer only that one, although the module has both names."""
_REMEDY: Final = "python -m pip install nvidia-ml-py"


class Monitor(Protocol):
    """Reads the state of one GPU."""

    @property
    def missing(self) -> str:
        """Reason why nothing can be read; the empty string if readings work."""

    @property
    def gpu(self) -> str:
        """UUID of the GPU as CUDA reports it; empty if unknown."""

    def read(self) -> GpuReading:
        """Reads everything, in several queries."""

    def throttled(self) -> bool:
        """Whether temperature or power limits the clocks right now, in one query."""

    def energy_mj(self) -> int | None:
        """Energy of the whole GPU in millijoules since the driver was loaded; None if the driver does not report it."""

    def close(self) -> None:
        """Releases the library; may be called twice."""


class NullMonitor:
    """A monitor without a GPU behind it: readings are empty, and no sample counts as throttled.

    Args:
        missing: Reason why there are no readings.
        gpu: UUID of the GPU.
    """

    def __init__(self, missing: str, gpu: str = "") -> None:
        self.missing = missing
        self.gpu = gpu

    def read(self) -> GpuReading:
        return GpuReading()

    def throttled(self) -> bool:
        return False

    def energy_mj(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class _NvmlMonitor:
    """A GPU read through NVML. Build it with :func:`open_monitor`.

    A value that the driver does not report for this GPU (a MIG slice, a virtual machine) is None in readings.

    Args:
        nvml: The initialised ``pynvml`` module.
        handle: NVML handle of the GPU.
        gpu: UUID of the GPU.
    """

    missing = ""

    def __init__(self, nvml: Any, handle: Any, gpu: str = "") -> None:
        self.gpu = gpu
        self._nvml = nvml
        self._handle = handle
        self._open = True

    def read(self) -> GpuReading:
        """Reads everything, in five queries."""
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
        return GpuReading(reasons=self._reasons()).throttled

    def energy_mj(self) -> int | None:
        """Millijoules; None before Volta."""
        return self._ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _reasons(self) -> tuple[str, ...]:
        queries = (getattr(self._nvml, name, None) for name in _REASON_QUERIES)
        answers = (self._ask(partial(query, self._handle)) for query in queries if query is not None)
        bits = next((answer for answer in answers if answer is not None), 0)
        return tuple(text for bit, text in REASONS.items() if bits & bit)

    def _ask(self, query: Callable[[], Any]) -> int | None:
        try:
            return int(query())
        except self._nvml.NVMLError:
            return None


def probe_nvml() -> Probe:
    """Checks whether NVML works on this machine, for ``doctor``."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return Probe("NVML", False, "nvidia-ml-py is not installed: no telemetry", _REMEDY)
    except pynvml.NVMLError as error:
        return Probe("NVML", False, f"does not start: {error}")
    version = str(pynvml.nvmlSystemGetDriverVersion())
    pynvml.nvmlShutdown()
    return Probe("NVML", True, f"driver {version}")


def open_monitor(pci_bus_id: str, gpu: str = "") -> Monitor:
    """Opens a GPU in NVML. Never raises; :attr:`Monitor.missing` has the reason for a failure.

    Args:
        pci_bus_id: PCI bus id of the GPU as CUDA reports it; NVML and CUDA number GPUs differently.
        gpu: UUID of the GPU, which each measurement records.
    """
    try:
        import pynvml
    except ImportError:
        return NullMonitor(f"nvidia-ml-py is not installed: {_REMEDY}", gpu)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NullMonitor(f"NVML does not start: {error}", gpu)
    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError as error:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        return NullMonitor(f"NVML cannot read GPU {pci_bus_id}: {error}", gpu)
    return _NvmlMonitor(pynvml, handle, gpu)
