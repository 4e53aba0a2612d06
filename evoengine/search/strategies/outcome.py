"""What a strategy learns of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass, field

from evoengine.model import Config, Status


@dataclass(frozen=True)
class Outcome:
    """What became of an earlier config."""

    config: Config
    value_us: float | None
    """None when it failed."""
    status: Status
    number: int | None = None
    """Trial number; None where another search, or none that is known, proposed it."""
    row_id: int | None = field(default=None, compare=False)
    """Leaderboard row of the evaluation; None where it is not stored."""
