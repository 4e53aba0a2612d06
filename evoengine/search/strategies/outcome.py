"""The outcome of a trial, as strategies receive it."""

from __future__ import annotations

from dataclasses import dataclass, field

from evoengine.model import Config, Status


@dataclass(frozen=True)
class Outcome:
    """Outcome of an evaluated config."""

    config: Config
    value_us: float | None
    """Time; None if the config failed."""
    status: Status
    number: int | None = None
    """Trial number; None where another search, or none that is known, proposed it."""
    row_id: int | None = field(default=None, compare=False)
    """Leaderboard row of the evaluation; None where it is not stored."""
