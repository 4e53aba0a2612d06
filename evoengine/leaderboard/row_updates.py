"""What is added to a row after it was stored: its energy, notes, and what hardware counters said."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from evoengine.leaderboard.codec import notes_from_json, notes_json
from evoengine.leaderboard.schema import EVALUATIONS, PROFILES
from evoengine.model import HardwareProfile, KernelCounters


def set_energy(connection: Connection, row_id: int, energy_uj: float) -> None:
    """Sets what one call costs, in microjoules."""
    connection.execute(update(EVALUATIONS).where(EVALUATIONS.c.id == row_id).values(energy_uj=energy_uj))


def add_note(connection: Connection, row_id: int, note: str) -> None:
    """Adds a note of one line, unless the row has it."""
    wanted = EVALUATIONS.c.id == row_id
    known = notes_from_json(connection.execute(select(EVALUATIONS.c.notes_json).where(wanted)).scalar_one())
    if note not in known:
        connection.execute(update(EVALUATIONS).where(wanted).values(notes_json=notes_json((*known, note))))


def add_profile(connection: Connection, row_id: int, profile: HardwareProfile) -> None:
    """Keeps what counters said of a row's kernel, beside what they said before."""
    values = {
        "evaluation_id": row_id,
        "gpu": profile.gpu,
        "tool": profile.tool,
        "code_hash": profile.code_hash,
        "launches_json": json.dumps(
            [{"kernel": one.kernel, "values": dict(one.values), "units": dict(one.units)} for one in profile.launches]
        ),
        "counted_at": profile.counted_at,
    }
    connection.execute(PROFILES.insert().values(values))


def newest_profiles(connection: Connection, row_ids: tuple[int, ...]) -> dict[int, HardwareProfile]:
    """What counters said last, by row; rows that were never counted are missing."""
    query = select(PROFILES).where(PROFILES.c.evaluation_id.in_(row_ids)).order_by(PROFILES.c.id)
    return {row["evaluation_id"]: _profile(row) for row in connection.execute(query).mappings()}


def _profile(row: Any) -> HardwareProfile:
    launches = (KernelCounters(one["kernel"], one["values"], one["units"]) for one in json.loads(row["launches_json"]))
    counted_at: datetime = row["counted_at"]
    return HardwareProfile(tuple(launches), row["gpu"], row["tool"], row["code_hash"], counted_at)
