"""Leases: which candidates are under way, and which search holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, String, bindparam, delete, exists, func, select, update
from sqlalchemy.dialects.sqlite import insert

from evoengine.leaderboard.codec import config_json, decoding, descent_json, stored_config
from evoengine.leaderboard.damage import DamageReport
from evoengine.leaderboard.records import LeaseStatus, Study, utc_now
from evoengine.leaderboard.schema import EVALUATIONS, LEASES
from evoengine.model import Config, Provenance, Status

_E: Final = EVALUATIONS.c
_L: Final = LEASES.c
_STUDY: Final[BindParameter[int]] = bindparam("study")
_KEY: Final[BindParameter[str]] = bindparam("key")

_KERNEL: Final = func.coalesce(func.nullif(_E.code_hash, ""), _E.config_key, type_=String)
_FITS: Final = (_E.status != Status.RESOURCE_LIMIT.value).cast(String)
_DISTINCT: Final = select(func.count(_KERNEL.concat(_FITS).distinct())).where(
    _E.study_id == _STUDY, _E.status != Status.DUPLICATE.value
)
_SITUATION: Final = select(
    select(_L.owner).where(_L.study_id == _STUDY, _L.config_key == _KEY).scalar_subquery(),
    select(func.count()).select_from(LEASES).where(_L.study_id == _STUDY).scalar_subquery(),
    select(func.count()).select_from(EVALUATIONS).where(_E.study_id == _STUDY).scalar_subquery(),
    select(_E.id).where(_E.study_id == _STUDY, _E.config_key == _KEY).scalar_subquery(),
)
"""In one statement: owner of a config, number of leases, number of rows, row of the config."""
_ADD: Final = insert(LEASES).on_conflict_do_nothing()
_RESTART: Final = update(LEASES).where(_L.study_id == _STUDY, _L.config_key == _KEY)
_END: Final = (
    delete(LEASES)
    .where(_L.study_id == _STUDY, _L.config_key == _KEY)
    .returning(_L.descent_json, _L.created_at, _L.trial_number)
)
_NUMBER: Final[BindParameter[int]] = bindparam("number")
_TAKEN: Final = select(
    exists().where(_E.study_id == _STUDY, _E.trial_number == _NUMBER),
    exists().where(_L.study_id == _STUDY, _L.trial_number == _NUMBER, _L.config_key != _KEY),
)
_MOST_NUMBER: Final = 2**31 - 1
"""Largest trial number; a damaged one, such as a text, is greater in SQLite than all numbers."""
_LAST: Final = select(
    select(func.max(_E.trial_number)).where(_E.study_id == _STUDY, _E.trial_number < _MOST_NUMBER).scalar_subquery(),
    select(func.max(_L.trial_number)).where(_L.study_id == _STUDY, _L.trial_number < _MOST_NUMBER).scalar_subquery(),
)


@dataclass(frozen=True)
class EndedLease:
    """Data of a lease that the evaluation of its config keeps."""

    descent_json: str | None = None
    started_at: datetime | None = None
    trial_number: int | None = None


def count_evaluated(connection: Connection, study: Study) -> int:
    """Counts the distinct candidates of a study.

    Two concurrent searches may evaluate one kernel under two configs: with the same code hash it counts once. A
    candidate that failed the resource gate counts apart, since the gate also depends on the limit on spills and on
    messages of the compiler, which are not part of the hash.
    """
    return int(connection.execute(_DISTINCT, {"study": study.id}).scalar_one())


def acquire(
    connection: Connection,
    study: Study,
    config: Config,
    budget: int,
    owner: str,
    trial_number: int | None,
    descent: Provenance | None,
) -> LeaseStatus:
    """Leases a config to an owner if no search holds it and the budget is not full."""
    here = {"study": study.id, "key": config.key}
    holder, leased, rows, known = connection.execute(_SITUATION, here).one()
    if holder == owner:  # adopted before; its evaluation starts now
        connection.execute(_RESTART.values(created_at=utc_now()), here)
        return LeaseStatus.GRANTED
    # There are at least as many rows as distinct candidates, and counting the latter gets slower with their number.
    if rows + leased >= budget and count_evaluated(connection, study) + leased >= budget:
        return LeaseStatus.BUDGET_FULL
    if known is not None or holder is not None:
        return LeaseStatus.TAKEN
    values = {
        "study_id": study.id,
        "config_key": config.key,
        "family": config.family,
        "config_json": config_json(config),
        "owner": owner,
        "trial_number": free_number(connection, study, trial_number, config.key),
        "descent_json": descent_json(descent),
        "created_at": utc_now(),
    }
    connection.execute(_ADD, values)
    return LeaseStatus.GRANTED


def free_number(connection: Connection, study: Study, number: int | None, config_key: str) -> int | None:
    """Returns a trial number that no other config of the study has.

    Concurrent searches on a study count independently, so a number may be taken; the caller's transaction holds the
    lock of the study, so the returned one is not.

    Args:
        connection: Connection in a transaction that holds the lock of the study.
        study: Study of the trial.
        number: Wanted number; None, for a trial without one, is returned as it is.
        config_key: Config of the trial, whose own lease does not count.
    """
    if number is None:
        return None
    here = {"study": study.id, "number": number, "key": config_key}
    if not any(connection.execute(_TAKEN, here).one()):
        return number
    lasts = connection.execute(_LAST, {"study": study.id}).one()
    return 1 + max((int(last) for last in lasts if last is not None), default=-1)


def held_by(connection: Connection, study: Study, owner: str, damage: DamageReport) -> dict[int, Config]:
    """Returns an owner's leases by trial number; unknown numbers count down from -1."""
    query = select(LEASES).where(_L.study_id == study.id, _L.owner == owner).order_by(_L.created_at, _L.config_key)
    found: dict[int, Config] = {}
    for number, config in damage.sound(_numbered_config, connection.execute(query).mappings()):
        free = number is not None and number not in found
        found[number if number is not None and free else min(0, *found, 0) - 1] = config
    return found


def end(connection: Connection, study: Study, config_key: str) -> EndedLease:
    """Ends the lease of an evaluated config."""
    ended = connection.execute(_END, {"study": study.id, "key": config_key}).one_or_none()
    return EndedLease() if ended is None else EndedLease(*ended)


def release(connection: Connection, study: Study, owner: str) -> None:
    """Ends all leases of an owner."""
    connection.execute(delete(LEASES).where(_L.study_id == study.id, _L.owner == owner))


def adopt_orphans(
    connection: Connection, study: Study, owner: str, is_alive: Callable[[str], bool], damage: DamageReport
) -> list[Config]:
    """Transfers the leases of dead owners to an owner, oldest first; ends damaged ones, which no search can evaluate.

    Args:
        connection: Connection in a transaction that holds the lock of the study.
        study: Study of the leases.
        owner: New owner.
        is_alive: Whether the leases of an owner are valid.
        damage: Receiver of damaged leases.
    """
    adopted = []
    is_alive = cache(is_alive)
    query = select(LEASES).where(_L.study_id == study.id).order_by(_L.created_at, _L.config_key)
    for row in connection.execute(query).mappings().all():
        if row["owner"] == owner or is_alive(row["owner"]):
            continue
        config = next(damage.sound(_numbered_config, [row]), (None, None))[1]
        here = (_L.study_id == study.id) & (_L.config_key == row["config_key"])
        if config is None:  # it would count towards the budget for ever
            connection.execute(delete(LEASES).where(here))
            continue
        connection.execute(update(LEASES).where(here).values(owner=owner))
        adopted.append(config)
    return adopted


def _numbered_config(row: Mapping[Any, Any]) -> tuple[int | None, Config]:
    """Returns trial number and config of a lease."""
    number = row["trial_number"]
    with decoding(f"lease of config {row['config_key']}"):
        if number is not None and type(number) is not int:
            raise ValueError("trial_number: is not an integer")
        if type(row["family"]) is not str:
            raise ValueError("family: is not a text")
        return number, stored_config(row)
