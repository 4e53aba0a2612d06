"""The GPU that the workers of a slot run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuBinding:
    """The device of one slot's workers; picklable."""

    label: str = ""
    """Name for messages: ``GPU 1 (0000:4D:00.0)``; empty if all slots are alike."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that a worker sets before it builds anything, such as CUDA_VISIBLE_DEVICES."""

    def lost(self, reason: str) -> str:
        """Returns the message for a device on which nothing can run any more."""
        return f"{self.label} is quarantined: {reason}" if self.label else reason
