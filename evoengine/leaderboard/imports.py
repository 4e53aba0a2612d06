"""Configs that came from elsewhere: claims, stored apart, until the normal road has proven them here.

Nothing here is ranked, crowned or compared. What is kept is the config, and what its source says of it; the next search
on the problem renders the config from our own templates, and compiles, checks and times it like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.clock import utc_now
from evoengine.leaderboard.codec import config_json, config_values
from evoengine.leaderboard.schema import IMPORTS
from evoengine.model import Config


@dataclass(frozen=True)
class ImportedConfig:
    """One config that somebody else says is correct and fast."""

    problem: str
    """Key of the problem."""
    config: Config
    claimed_us: float
    """What the source says; nothing here vouches for it."""
    claimed_predicted: bool
    claimed_device: str
    origin: str
    """Name of the file, and the first digits of its SHA-256."""


def add_imports(connection: Connection, configs: Sequence[ImportedConfig]) -> int:
    """Stores configs; those that the file holds already stay as they are.

    Returns:
        How many were new.
    """
    new = 0
    for one in configs:
        values = {
            "problem": one.problem,
            "family": one.config.family,
            "config_key": one.config.key,
            "config_json": config_json(one.config),
            "claimed_us": one.claimed_us,
            "claimed_predicted": one.claimed_predicted,
            "claimed_device": one.claimed_device,
            "origin": one.origin,
            "imported_at": utc_now(),
        }
        new += connection.execute(insert(IMPORTS).values(values).on_conflict_do_nothing()).rowcount
    return new


def find_imports(connection: Connection, problem: str | None) -> list[ImportedConfig]:
    """Imported configs of a problem, or of all; those that claim the least time first."""
    query = select(IMPORTS).order_by(IMPORTS.c.problem, IMPORTS.c.claimed_us, IMPORTS.c.id)
    if problem is not None:
        query = query.where(IMPORTS.c.problem == problem)
    return [_imported(row) for row in connection.execute(query).mappings()]


def _imported(row: Any) -> ImportedConfig:
    return ImportedConfig(
        problem=row["problem"],
        config=Config.of(row["family"], config_values(row["config_json"])),
        claimed_us=row["claimed_us"],
        claimed_predicted=row["claimed_predicted"],
        claimed_device=row["claimed_device"],
        origin=row["origin"],
    )
