"""Reports of a GPU: clocks and throttling around a measurement, and the hardware counters of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

THROTTLING: Final = frozenset(
    (
        "sw_power_cap",
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        "board_limit",
        "reliability",
    )
)
"""Reasons for low clocks that depend on heat and power. The others (``gpu_idle``, ``sync_boost``,
``applications_clocks_setting``, ``display_clock_setting``) come from the GPU's settings or from idleness."""


@dataclass(frozen=True)
class GpuReading:
    """State of a GPU at one moment; None where the driver does not report a value."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = ()
    """Why the clocks were below their maximum, by NVML's names."""

    @property
    def throttled(self) -> bool:
        """Whether heat or power limited the clocks."""
        return not THROTTLING.isdisjoint(self.reasons)


@dataclass(frozen=True)
class Telemetry:
    """GPU readings around one measurement."""

    before: GpuReading
    """Just before the first sample."""
    after: GpuReading
    """Just after the last sample."""
    discarded: int = 0
    """Samples that were discarded and repeated because the GPU was throttled around them."""
    throttled: bool = False
    """Whether kept samples were throttled, because throttling lasted longer than the allowed retries."""
    missing: str = ""
    """Why nothing could be read; empty otherwise."""
    gpu: str = ""
    """UUID of the GPU, to tell GPUs of one type apart; empty in rows stored before it was recorded."""


@dataclass(frozen=True)
class KernelCounters:
    """Hardware counters of one kernel launch."""

    kernel: str
    values: Mapping[str, float]
    """Value by the profiler's metric name; metrics that the GPU does not have are missing."""
    units: Mapping[str, str]


@dataclass(frozen=True)
class HardwareProfile:
    """Hardware counters of every launch of one call."""

    launches: tuple[KernelCounters, ...]
    gpu: str
    """Name of the GPU."""
    tool: str
    """Profiler and version: ``Nsight Compute 2025.3.1``."""
    code_hash: str
    """Hash of the profiled machine code."""
    counted_at: datetime
    """UTC, without a time zone, as all times of the leaderboard."""
