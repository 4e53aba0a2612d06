"""Champion history: SQL statements on challenges, their evidence and their result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Integer, Select, func, select, update
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.codec import check_time, decoding, duel_from_json, duel_json
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.records import Challenge, Scope, utc_now
from evoengine.leaderboard.schema import CHALLENGES
from evoengine.model import Duel

_C: Final = CHALLENGES.c
_MADE_CHAMPION: Final = _C.accepted & _C.pending.is_not(True)


def newest_champion_entries() -> Select[tuple[int]]:
    """Selects, for each scope, the entry that made its champion."""
    return select(func.max(_C.id)).where(_MADE_CHAMPION).group_by(_C.scope)


def awaiting() -> Select[tuple[int, str]]:
    """Selects the rows that beat the champion of a scope and still wait for their inspection, and that scope."""
    newest = select(_C.scope, func.max(_C.id, type_=Integer).label("last")).where(_MADE_CHAMPION).group_by(_C.scope)
    known = newest.subquery("newest")
    return (
        select(_C.evaluation_id, _C.scope)
        .outerjoin(known, known.c.scope == _C.scope)
        .where(_C.accepted, _C.pending, _C.id > func.coalesce(known.c.last, 0))
    )


def champion_ids(connection: Connection, scope: Scope) -> list[int]:
    """Returns the champion of a scope, then the former ones, newest first."""
    return _newest(connection, scope, _MADE_CHAMPION)


def leader_ids(connection: Connection, scope: Scope) -> list[int]:
    """Returns the rows that won their challenge, newest first: the pending rows, the champion, the former champions."""
    return _newest(connection, scope, _C.accepted)


def _newest(connection: Connection, scope: Scope, condition: ColumnElement[bool]) -> list[int]:
    query = select(_C.evaluation_id).where(_C.scope == scope.key, condition).order_by(_C.id.desc())
    return [row.evaluation_id for row in connection.execute(query)]


def pending_ids(connection: Connection, scope: Scope) -> list[int]:
    """Returns the rows of a scope that wait for their inspection, newest first."""
    query = awaiting().where(_C.scope == scope.key).order_by(_C.id.desc())
    return [row.evaluation_id for row in connection.execute(query)]


def settle(connection: Connection, scope: Scope, row_id: int, *, accepted: bool) -> None:
    """Stores the result of a pending row's inspection."""
    here = (_C.scope == scope.key) & (_C.evaluation_id == row_id) & _C.pending
    connection.execute(update(CHALLENGES).where(here).values(pending=False, accepted=accepted))


def store_challenge(
    connection: Connection, scope: Scope, challenger_id: int, rival_id: int | None, duel: Duel | None, *, pending: bool
) -> None:
    """Adds an entry to the history; ``pending`` requires a won challenge."""
    values = {
        "scope": scope.key,
        "evaluation_id": challenger_id,
        "champion_id": rival_id,
        "accepted": duel is None or duel.accepted,
        "pending": pending,
        "duel_json": None if duel is None else duel_json(duel),
        "created_at": utc_now(),
    }
    connection.execute(insert(CHALLENGES).values(values))


def history(connection: Connection, condition: ColumnElement[bool], damage: DamageReport) -> tuple[Challenge, ...]:
    """Returns the entries that meet a condition, oldest first, without damaged ones."""
    query = select(CHALLENGES).where(condition).order_by(CHALLENGES.c.id)
    return tuple(damage.sound(_challenge, connection.execute(query).mappings()))


def in_history_of(scope: Scope) -> ColumnElement[bool]:
    """Returns the condition that a challenge took place in a scope."""
    return CHALLENGES.c.scope == scope.key


def involving(row_id: int) -> ColumnElement[bool]:
    """Returns the condition that a row was challenger or champion of a challenge."""
    return (CHALLENGES.c.evaluation_id == row_id) | (CHALLENGES.c.champion_id == row_id)


def _challenge(row: Mapping[Any, Any]) -> Challenge:
    with decoding(f"challenge {row['id']}"):
        duel = None if row["duel_json"] is None else duel_from_json(row["duel_json"])
        if type(row["evaluation_id"]) is not int or type(row["champion_id"]) not in (int, type(None)):
            raise ValueError("a row id is not an integer")
        check_time(row, "created_at")
        pending = bool(row["pending"])
        return Challenge(row["evaluation_id"], row["champion_id"], row["accepted"], duel, row["created_at"], pending)
