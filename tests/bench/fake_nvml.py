# ruff: noqa: N801, N802 - the names are the library's
"""An NVML library with recorded values: a module that can stand in the place of ``pynvml``, with the same names.

What it answers are readings like those of an H200 under load, in NVML's units: MHz, °C, milliwatts, millijoules, bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

BUS = "0000:3B:00.0"
IDLE, SETTING, POWER_CAP, THERMAL = 0x1, 0x2, 0x4, 0x20


class NVMLError(Exception):
    """The exception of ``pynvml``, with NVML's text."""


class NVMLError_NotSupported(NVMLError):
    def __str__(self) -> str:
        return "Not Supported"


class FakeNvml(ModuleType):
    """The library.

    Args:
        reasons: Bits that limit the clocks, one value per query; the last value is repeated.
        log: gets the name of each query.
        lacks: names of queries that this GPU does not support.
        fails: message with which the library does not start.
        energy_mj: the energy counter.
    """

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVMLError = NVMLError

    def __init__(
        self,
        reasons: Iterable[int] = (0,),
        log: list[str] | None = None,
        lacks: tuple[str, ...] = (),
        fails: str = "",
        energy_mj: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__("pynvml")
        given = tuple(reasons)
        self._reasons: Iterator[int] = itertools.chain(given, itertools.repeat(given[-1]))
        self.log: list[str] = [] if log is None else log
        self._lacks = lacks
        self._fails = fails
        self._energy_mj = energy_mj
        self.users = 0

    def nvmlInit(self) -> None:
        if self._fails:
            raise NVMLError(self._fails)
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:
        if bus != BUS:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return self._answer("clock", {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 3201}[kind])

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._answer("temperature", 41)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return self._answer("power", 312_400)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self._answer("reasons", next(self._reasons))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._answer("energy", self._energy_mj())

    def _answer(self, name: str, value: int) -> int:
        self.log.append(name)
        if name in self._lacks:
            raise NVMLError_NotSupported
        return value
