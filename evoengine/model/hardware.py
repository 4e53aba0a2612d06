"""What a GPU's own counters said of one call of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class KernelCounters:
    """The hardware's counters of one launch."""

    kernel: str
    values: Mapping[str, float]
    """By the profiler's name of the metric; those that the GPU does not have are missing."""
    units: Mapping[str, str]


@dataclass(frozen=True)
class HardwareProfile:
    """The counters of every launch of one call."""

    launches: tuple[KernelCounters, ...]
    gpu: str
    """Its name."""
    tool: str
    """What counted: ``Nsight Compute 2025.3.1``."""
    code_hash: str
    """Of the machine code that ran."""
    counted_at: datetime
    """UTC, without a time zone, as all times of the leaderboard."""
