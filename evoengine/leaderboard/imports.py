"""Imported configs, stored apart from the ranking until a search here has evaluated them.

An imported config and the time that its origin reports are never ranked or compared. The next search on the problem
renders the config from its own templates, then compiles, checks and times it like any candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.codec import config_json, config_values, decoding
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.records import utc_now
from evoengine.leaderboard.schema import IMPORTS
from evoengine.model import Config


@dataclass(frozen=True)
class ImportedConfig:
    """A config from another program or machine, with the time reported there."""

    problem: str
    """Key of the problem."""
    config: Config
    claimed_us: float
    """Reported time, not verified here."""
    claimed_predicted: bool
    claimed_device: str
    origin: str
    """Name of the file, and the first digits of its SHA-256."""


def add_imports(connection: Connection, configs: Sequence[ImportedConfig]) -> int:
    """Stores configs; those already in the file stay unchanged.

    Returns:
        Number of new configs.
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


def find_imports(connection: Connection, problem: str | None, damage: DamageReport) -> list[ImportedConfig]:
    """Returns the imported configs of one problem or of all, shortest reported time first, without damaged ones."""
    query = select(IMPORTS).order_by(IMPORTS.c.problem, IMPORTS.c.claimed_us, IMPORTS.c.id)
    if problem is not None:
        query = query.where(IMPORTS.c.problem == problem)
    return list(damage.sound(_imported, connection.execute(query).mappings()))


def _imported(row: Any) -> ImportedConfig:
    with decoding(f"imported config {row['id']}"):
        found = {
            "problem": row["problem"],
            "config": {
                "family": row["family"],
                "values": sorted(config_values(row["config_json"]).items()),
            },
            "claimed_us": row["claimed_us"],
            "claimed_predicted": row["claimed_predicted"],
            "claimed_device": row["claimed_device"],
            "origin": row["origin"],
        }
        return msgspec.convert(found, ImportedConfig)
