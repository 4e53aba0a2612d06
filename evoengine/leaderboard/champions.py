"""Who was champion when, and on what evidence: the statements behind the champion history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, select
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.clock import utc_now
from evoengine.leaderboard.codec import duel_from_json, duel_json
from evoengine.leaderboard.records import Challenge, Scope
from evoengine.leaderboard.schema import CHALLENGES
from evoengine.model import Duel


def champion_id(connection: Connection, scope: Scope) -> int | None:
    """Row that was crowned last in a scope."""
    query = (
        select(CHALLENGES.c.evaluation_id)
        .where(CHALLENGES.c.scope == scope.key, CHALLENGES.c.accepted)
        .order_by(CHALLENGES.c.id.desc())
        .limit(1)
    )
    found: int | None = connection.execute(query).scalar_one_or_none()
    return found


def store_challenge(
    connection: Connection, scope: Scope, challenger_id: int, met_id: int | None, duel: Duel | None
) -> None:
    """Adds an entry to the history."""
    values = {
        "scope": scope.key,
        "evaluation_id": challenger_id,
        "champion_id": met_id,
        "accepted": duel is None or duel.accepted,
        "duel_json": None if duel is None else duel_json(duel),
        "created_at": utc_now(),
    }
    connection.execute(insert(CHALLENGES).values(values))


def history(connection: Connection, condition: ColumnElement[bool]) -> tuple[Challenge, ...]:
    """Entries that meet a condition, oldest first."""
    query = select(CHALLENGES).where(condition).order_by(CHALLENGES.c.id)
    return tuple(_challenge(row) for row in connection.execute(query).mappings())


def in_history_of(scope: Scope) -> ColumnElement[bool]:
    """Condition: the challenge took place in a scope."""
    return CHALLENGES.c.scope == scope.key


def involving(row_id: int) -> ColumnElement[bool]:
    """Condition: a row made or met the challenge."""
    return (CHALLENGES.c.evaluation_id == row_id) | (CHALLENGES.c.champion_id == row_id)


def _challenge(row: Mapping[Any, Any]) -> Challenge:
    duel = None if row["duel_json"] is None else duel_from_json(row["duel_json"])
    return Challenge(row["evaluation_id"], row["champion_id"], row["accepted"], duel, row["created_at"])
