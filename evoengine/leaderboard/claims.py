"""Which candidates are under way, and in whose hands: the statements behind the leaderboard's claims."""

from __future__ import annotations

from sqlalchemy import Connection, String, delete, func, select, update
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.clock import utc_now
from evoengine.leaderboard.codec import config_json, config_values
from evoengine.leaderboard.owner import is_alive
from evoengine.leaderboard.records import Claim, Study
from evoengine.leaderboard.schema import CLAIMS, EVALUATIONS
from evoengine.model import Config, Status


def count_evaluated(connection: Connection, study: Study) -> int:
    """Distinct candidates of a study.

    Two searches at once may both evaluate one kernel under two configs: by code hash it still counts once. One that did
    not pass the resource gate is another candidate, since its launch is not in the hash.
    """
    c = EVALUATIONS.c
    kernel = func.coalesce(func.nullif(c.code_hash, ""), c.config_key, type_=String)
    fits = (c.status != Status.RESOURCE_LIMIT.value).cast(String)
    distinct = func.count(kernel.concat(fits).distinct())
    query = select(distinct).where(c.study_id == study.id, c.status != Status.DUPLICATE.value)
    return int(connection.execute(query).scalar_one())


def claim(connection: Connection, study: Study, config: Config, budget: int, owner: str) -> Claim:
    """Gives a config to an owner if it is free and the budget has room."""
    here = (CLAIMS.c.study_id == study.id) & (CLAIMS.c.config_key == config.key)
    if connection.execute(select(CLAIMS.c.owner).where(here)).scalar_one_or_none() == owner:
        return Claim.GRANTED  # adopted before
    under_way = connection.execute(select(func.count()).where(CLAIMS.c.study_id == study.id)).scalar_one()
    if count_evaluated(connection, study) + under_way >= budget:
        return Claim.BUDGET_FULL
    e = EVALUATIONS.c
    known = select(e.id).where(e.study_id == study.id, e.config_key == config.key)
    if connection.execute(known).first() is not None:
        return Claim.TAKEN
    values = {
        "study_id": study.id,
        "config_key": config.key,
        "family": config.family,
        "config_json": config_json(config),
        "owner": owner,
        "created_at": utc_now(),
    }
    done = connection.execute(insert(CLAIMS).values(values).on_conflict_do_nothing())
    return Claim.GRANTED if done.rowcount == 1 else Claim.TAKEN


def end_claim(connection: Connection, study: Study, config_key: str) -> None:
    """The config is evaluated."""
    connection.execute(delete(CLAIMS).where(CLAIMS.c.study_id == study.id, CLAIMS.c.config_key == config_key))


def release(connection: Connection, study: Study, owner: str) -> None:
    """Gives back all claims of an owner."""
    connection.execute(delete(CLAIMS).where(CLAIMS.c.study_id == study.id, CLAIMS.c.owner == owner))


def adopt_orphans(connection: Connection, study: Study, owner: str) -> list[Config]:
    """Gives the claims of dead processes to an owner, oldest first."""
    adopted = []
    query = select(CLAIMS).where(CLAIMS.c.study_id == study.id).order_by(CLAIMS.c.created_at, CLAIMS.c.config_key)
    for row in connection.execute(query).mappings().all():
        if row["owner"] == owner or is_alive(row["owner"]):
            continue
        here = (CLAIMS.c.study_id == study.id) & (CLAIMS.c.config_key == row["config_key"])
        connection.execute(update(CLAIMS).where(here).values(owner=owner))
        adopted.append(Config.of(row["family"], config_values(row["config_json"])))
    return adopted
