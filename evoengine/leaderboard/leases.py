"""Which candidates are under way, and in whose hands: the statements behind the leaderboard's claims."""

from __future__ import annotations

import sqlite3
from typing import Final

from sqlalchemy import BindParameter, Connection, String, bindparam, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.clock import utc_now
from evoengine.leaderboard.codec import config_json, config_values, descent_json
from evoengine.leaderboard.lease_owner import is_alive
from evoengine.leaderboard.raw_statements import Prepared, time_text
from evoengine.leaderboard.records import LeaseStatus, Study
from evoengine.leaderboard.schema import EVALUATIONS, LEASES
from evoengine.model import Config, Provenance, Status

_E: Final = EVALUATIONS.c
_C: Final = LEASES.c
_STUDY: Final[BindParameter[int]] = bindparam("study")
_KEY: Final[BindParameter[str]] = bindparam("key")

_KERNEL: Final = func.coalesce(func.nullif(_E.code_hash, ""), _E.config_key, type_=String)
_FITS: Final = (_E.status != Status.RESOURCE_LIMIT.value).cast(String)
_DISTINCT: Final = Prepared(
    select(func.count(_KERNEL.concat(_FITS).distinct())).where(
        _E.study_id == _STUDY, _E.status != Status.DUPLICATE.value
    )
)
_SITUATION: Final = Prepared(
    select(
        select(_C.owner).where(_C.study_id == _STUDY, _C.config_key == _KEY).scalar_subquery(),
        select(func.count()).select_from(LEASES).where(_C.study_id == _STUDY).scalar_subquery(),
        select(func.count()).select_from(EVALUATIONS).where(_E.study_id == _STUDY).scalar_subquery(),
        select(_E.id).where(_E.study_id == _STUDY, _E.config_key == _KEY).scalar_subquery(),
    )
)
"""The owner of a config, how many claims there are, how many rows, and the row of the config: in one statement."""
_CLAIM: Final = Prepared(insert(LEASES).on_conflict_do_nothing())
_END: Final = Prepared(delete(LEASES).where(_C.study_id == _STUDY, _C.config_key == _KEY).returning(_C.descent_json))


def count_evaluated(connection: sqlite3.Connection, study: Study) -> int:
    """Distinct candidates of a study.

    Two searches at once may both evaluate one kernel under two configs: by code hash it still counts once. One that did
    not pass the resource gate is another candidate, since its launch is not in the hash.
    """
    counted = _DISTINCT.first(connection, {"study": study.id})
    return int(counted[0]) if counted else 0


def acquire(
    connection: sqlite3.Connection,
    study: Study,
    config: Config,
    budget: int,
    owner: str,
    trial_number: int | None,
    descent: Provenance | None,
) -> LeaseStatus:
    """Gives a config to an owner if it is free and the budget has room."""
    key = config.key
    situation = _SITUATION.first(connection, {"study": study.id, "key": key})
    holder, under_way, rows, known = situation or (None, 0, 0, None)
    if holder == owner:
        return LeaseStatus.GRANTED  # adopted before
    # There are at least as many rows as distinct candidates, and counting those takes the longer the more there are.
    if rows + under_way >= budget and count_evaluated(connection, study) + under_way >= budget:
        return LeaseStatus.BUDGET_FULL
    if known is not None or holder is not None:
        return LeaseStatus.TAKEN
    values = {
        "study_id": study.id,
        "config_key": key,
        "family": config.family,
        "config_json": config_json(config),
        "owner": owner,
        "trial_number": trial_number,
        "descent_json": descent_json(descent),
        "created_at": time_text(utc_now()),
    }
    _CLAIM.first(connection, values)
    return LeaseStatus.GRANTED


def held_by(connection: Connection, study: Study, owner: str) -> dict[int, Config]:
    """An owner's claims by trial number; those of unknown number count down from -1."""
    query = select(LEASES).where(_C.study_id == study.id, _C.owner == owner).order_by(_C.created_at, _C.config_key)
    found: dict[int, Config] = {}
    for row in connection.execute(query).mappings():
        number = row["trial_number"]
        free = number is not None and number not in found
        found[number if free else min(0, *found, 0) - 1] = Config.of(row["family"], config_values(row["config_json"]))
    return found


def end(connection: sqlite3.Connection, study: Study, config_key: str) -> str | None:
    """The config is evaluated; gives what the claim said of its descent."""
    ended = _END.first(connection, {"study": study.id, "key": config_key})
    return ended[0] if ended else None


def release(connection: Connection, study: Study, owner: str) -> None:
    """Gives back all claims of an owner."""
    connection.execute(delete(LEASES).where(LEASES.c.study_id == study.id, LEASES.c.owner == owner))


def adopt_orphans(connection: Connection, study: Study, owner: str) -> list[Config]:
    """Gives the claims of dead processes to an owner, oldest first."""
    adopted = []
    query = select(LEASES).where(LEASES.c.study_id == study.id).order_by(LEASES.c.created_at, LEASES.c.config_key)
    for row in connection.execute(query).mappings().all():
        if row["owner"] == owner or is_alive(row["owner"]):
            continue
        here = (LEASES.c.study_id == study.id) & (LEASES.c.config_key == row["config_key"])
        connection.execute(update(LEASES).where(here).values(owner=owner))
        adopted.append(Config.of(row["family"], config_values(row["config_json"])))
    return adopted
