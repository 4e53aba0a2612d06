"""Updates of a stored row: energy, notes, hardware counters."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import Connection, select, update

from evoengine.leaderboard.codec import decoded, decoding, notes_from_json, notes_json
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.schema import EVALUATIONS, PROFILES
from evoengine.model import HardwareProfile, KernelCounters


def set_energy(connection: Connection, row_id: int, energy_uj: float) -> None:
    """Sets the energy of one call, in microjoules."""
    connection.execute(update(EVALUATIONS).where(EVALUATIONS.c.id == row_id).values(energy_uj=energy_uj))


def add_note(connection: Connection, row_id: int, note: str) -> None:
    """Adds a one-line note unless the row has it."""
    wanted = EVALUATIONS.c.id == row_id
    known = notes_from_json(connection.execute(select(EVALUATIONS.c.notes_json).where(wanted)).scalar_one())
    if note not in known:
        connection.execute(update(EVALUATIONS).where(wanted).values(notes_json=notes_json((*known, note))))


def add_profile(connection: Connection, row_id: int, profile: HardwareProfile) -> None:
    """Adds a profile of a row's kernel; earlier profiles stay."""
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


def newest_profiles(
    connection: Connection, row_ids: tuple[int, ...], damage: DamageReport
) -> dict[int, HardwareProfile]:
    """Returns the newest sound profile by row; rows without a profile are missing."""
    query = select(PROFILES).where(PROFILES.c.evaluation_id.in_(row_ids)).order_by(PROFILES.c.id)
    return dict(damage.sound(_profile, connection.execute(query).mappings()))


def _profile(row: Any) -> tuple[int, HardwareProfile]:
    what = f"row {row['evaluation_id']}: profile {row['id']}"
    launches = decoded(tuple[KernelCounters, ...], row["launches_json"], f"{what}: launches_json")
    with decoding(what):
        found = {name: row[name] for name in ("gpu", "tool", "code_hash", "counted_at")}
        profile = msgspec.convert({"launches": (), **found}, HardwareProfile)
        if not launches:
            raise ValueError("launches_json: is empty")
        return row["evaluation_id"], replace(profile, launches=launches)
