"""Where the workers of a slot run: each of a host's GPUs is a place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class GpuBinding:
    """What tells the workers of one slot from those of the others; picklable."""

    label: str = ""
    """What is lost when workers do not come back there: ``GPU 1 (0000:4D:00.0)``; empty where all places are alike."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that a worker sets before it builds anything, such as which GPU it sees."""

    def lost(self, why: str) -> str:
        """What is told of a place where nothing can run any more."""
        return f"{self.label} is quarantined: {why}" if self.label else why
