"""What an export needs to know about one evaluated kernel."""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.kernel.records import LaunchSpec
from evoengine.model import DeviceInfo, Evaluation, Problem


@dataclass(frozen=True)
class ExportRecord:
    """One row of the leaderboard with the launch that belongs to it: everything that :func:`export_cu` prints."""

    problem: Problem
    evaluation: Evaluation
    """The evaluation, its rendered source included."""
    device: DeviceInfo
    """Where it was evaluated."""
    launch: LaunchSpec
    maxrregcount: int = 0
    """Register cap that the compiler was given; 0 for none."""
    row_id: str = ""
    """Id of the row in its leaderboard; empty when it has none."""
    evaluated_at: str = ""
    """When it was evaluated, ISO 8601; empty when unknown."""
    exported_at: str = ""
    """Date of the export, ISO 8601."""
    only_arch: str = ""
    """The one architecture whose instructions the kernel uses, as ``sm_90a``; empty for any from the device's on."""
