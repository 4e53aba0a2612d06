"""Input of an export: one evaluated kernel with its launch."""

from __future__ import annotations

from dataclasses import dataclass

from evoengine.kernel.records import LaunchSpec
from evoengine.model import DeviceInfo, Evaluation, Problem


@dataclass(frozen=True)
class ExportRecord:
    """One row of the leaderboard with its launch."""

    problem: Problem
    evaluation: Evaluation
    """Evaluation with its rendered source."""
    device: DeviceInfo
    """Device that it was evaluated on."""
    launch: LaunchSpec
    maxrregcount: int = 0
    """Register cap of the compilation; 0 for none."""
    row_id: str = ""
    """Id of the row in its leaderboard; empty if it has none."""
    evaluated_at: str = ""
    """Time of the evaluation, ISO 8601; empty if unknown."""
    exported_at: str = ""
    """Date of the export, ISO 8601."""
    only_arch: str = ""
    """The only architecture that the kernel compiles for, such as ``sm_90a``; empty for every one from the device's
    on."""
    untrusted: bool = False
    """Whether the source is another one than the templates of this installation render."""
