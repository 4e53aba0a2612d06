"""What the driver said of a GPU while something was measured on it."""

from __future__ import annotations

from dataclasses import dataclass
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
"""Reasons for low clocks that come and go with heat and power. The others (``gpu_idle``, ``sync_boost``,
``applications_clocks_setting``, ``display_clock_setting``) are how the GPU was set up, or that it had nothing to do."""


@dataclass(frozen=True)
class GpuReading:
    """The state of a GPU at one moment; None where the driver does not say."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = ()
    """Why clocks were below the highest, by NVML's names."""

    @property
    def throttled(self) -> bool:
        """Whether heat or power held the clocks down."""
        return not THROTTLING.isdisjoint(self.reasons)


@dataclass(frozen=True)
class Telemetry:
    """The GPU around one measurement."""

    before: GpuReading
    """Just before the first sample."""
    after: GpuReading
    """Just after the last one."""
    discarded: int = 0
    """Samples that were thrown away, and taken again, because the GPU was throttled around them."""
    throttled: bool = False
    """Whether samples that were kept are not free of throttling: it did not end within the retries that are allowed."""
    missing: str = ""
    """Why nothing could be read; empty when it could."""
    gpu: str = ""
    """UUID of the GPU: times of several GPUs of one type may meet; empty in rows of before it was recorded."""
