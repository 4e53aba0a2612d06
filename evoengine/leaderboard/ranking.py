"""Ranking query: correct rows of one scope, fastest first; rows with equal machine code share a rank."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Integer, Select, and_, case, func, select, tuple_

from evoengine.leaderboard.champions import awaiting, newest_champion_entries
from evoengine.leaderboard.codec import (
    Columns,
    check_columns,
    check_kind,
    check_time,
    decoding,
    problem_from_json,
    problem_json,
    spaces_from_json,
    spaces_json,
    stored_config,
    workload_from_json,
    workload_json,
)
from evoengine.leaderboard.damage import MalformedDataError
from evoengine.leaderboard.records import Row, RowFilter, Scope, Study, StudyKey, study_identity
from evoengine.leaderboard.schema import CHALLENGES, EVALUATIONS, STUDIES
from evoengine.model import DeviceInfo, Status

_E: Final = EVALUATIONS.c
_S: Final = STUDIES.c
_SCOPE_COLUMNS: Final = (_S.problem, _S.device_kind, _S.device, _S.arch, _S.predicted, _S.method)
_SEARCH_COLUMNS: Final = ("family", "strategy", "seed", "space_key")
_CHECKED_COLUMNS: Final = (*(column.name for column in _SCOPE_COLUMNS), *_SEARCH_COLUMNS, "identity")
"""Columns of ``evo_studies`` that the identity is computed from, and the identity."""
_CHECKED_LABELS: Final = tuple(f"study_{name}" for name in _CHECKED_COLUMNS)
"""Names of these columns in :func:`ranked_rows`."""
_STUDY_TEXTS: Final = ("problem", "device_kind", "device", "arch", "method", "family", "strategy", "space_key")


def in_scope(scope: Scope) -> ColumnElement[bool]:
    """Returns the condition on ``evo_studies`` that a study ranks in this scope."""
    return and_(
        _S.problem == scope.problem,
        _S.device_kind == scope.device_kind,
        _S.device == scope.device,
        _S.arch == scope.arch,
        _S.predicted == scope.predicted,
        _S.method == scope.method,
    )


def matching(wanted: RowFilter) -> list[ColumnElement[bool]]:
    """Returns the conditions of a filter, except its statuses."""
    named = (
        (_S.problem, wanted.problem),
        (_S.device_kind, wanted.device_kind),
        (_S.device, wanted.device),
        (_S.arch, wanted.arch),
        (_E.family, wanted.family),
        (_S.method, wanted.method),
        (_S.predicted, wanted.predicted),
        (_S.id, wanted.study_id),
    )
    return [column == value for column, value in named if value is not None]


def ranked_rows() -> Select[Any]:
    """Selects all evaluations with the columns of their study, their ``rank`` and champion flags.

    Conditions may be added to the statement; ranks are computed over the whole scope before they apply.
    """
    best = (
        select(
            _E.id.label("id"),
            func.min(_E.median_us).over(partition_by=(*_SCOPE_COLUMNS, _E.code_hash)).label("best_us"),
            func.min(_E.id).over(partition_by=(*_SCOPE_COLUMNS, _E.code_hash)).label("first_id"),
            *_SCOPE_COLUMNS,
        )
        .join(STUDIES, _S.id == _E.study_id)
        .where(_E.status == Status.OK.value, *_has_time())
        .subquery("best")
    )
    scope = [best.c[column.name] for column in _SCOPE_COLUMNS]
    order = (best.c.best_us, best.c.first_id)  # of equal times the older is first
    ranks = select(best.c.id, func.dense_rank().over(partition_by=scope, order_by=order).label("rank")).subquery(
        "ranks"
    )
    champions = select(CHALLENGES.c.evaluation_id, CHALLENGES.c.scope).where(
        CHALLENGES.c.id.in_(newest_champion_entries().scalar_subquery())
    )
    row_and_scope = tuple_(_E.id, _scope_key())  # a doctored history may name a row of another ranking
    study_columns = [_S[name].label(label) for name, label in zip(_CHECKED_COLUMNS, _CHECKED_LABELS, strict=True)]
    return (
        select(
            EVALUATIONS,
            *study_columns,
            ranks.c.rank.label("rank"),
            and_(_E.status == Status.OK.value, row_and_scope.in_(champions)).cast(Integer).label("is_champion"),
            row_and_scope.in_(awaiting()).cast(Integer).label("is_pending"),
        )
        .join(STUDIES, _S.id == _E.study_id)
        .outerjoin(ranks, ranks.c.id == _E.id)
        .order_by(*_SCOPE_COLUMNS, ranks.c.rank.nulls_last(), _E.median_us.nulls_first(), _E.id)
    )


def _scope_key() -> ColumnElement[str]:
    """Returns :attr:`Scope.key <evoengine.leaderboard.records.Scope.key>` of a study's columns."""
    kind = case((_S.predicted, "predicted"), else_="measured")
    first, *others = (_S.problem, _S.device_kind, _S.device, _S.arch, kind, _S.method)
    text: ColumnElement[str] = first
    for part in others:
        text = text + "|" + part
    return text


def _has_time() -> tuple[ColumnElement[bool], ...]:
    """Returns the conditions that a time is a positive finite number; a damaged one gets no rank.

    SQLite's columns may hold texts, which are greater than all numbers there.
    """
    return _E.median_us > 0, _E.median_us <= sys.float_info.max


def row_of(connection: Connection, scope: Scope, row_id: int) -> Row:
    """Returns a row that the champion history of a scope names, by its id.

    Raises:
        MalformedDataError: The row is damaged, missing, not correct, or of another scope.
    """
    columns = connection.execute(ranked_rows().where(_E.id == row_id)).mappings().one_or_none()
    if columns is None:
        raise MalformedDataError(f"row {row_id}: is named by the champion history, but missing")
    row = row_from(columns)
    if row.scope != scope:
        raise MalformedDataError(f"row {row_id}: is named by the champion history of another ranking")
    if row.status is not Status.OK:
        raise MalformedDataError(f"row {row_id}: is named by the champion history, but is {row.status.value}")
    return row


def first_of_each(rows: Iterable[Row], limit: int) -> list[Row]:
    """Returns the first ``limit`` rows of every scope."""
    seen: Counter[Scope] = Counter()
    kept = []
    for row in rows:
        seen[row.scope] += 1
        if seen[row.scope] <= limit:
            kept.append(row)
    return kept


def study_columns(key: StudyKey) -> Columns:
    """Returns the columns of ``evo_studies`` that come from a study's key."""
    d = key.device
    return {
        "identity": key.identity,
        "problem": key.scope.problem,
        "problem_json": problem_json(key.problem),
        "family": key.family,
        "device_kind": d.kind,
        "device": d.name,
        "arch": d.arch,
        "predicted": d.predicted,
        "method": key.method,
        "strategy": key.strategy,
        "seed": key.seed,
        "space_key": key.space_key,
        "workload_json": workload_json(key.workload),
        "spaces_json": spaces_json(key.own_spaces),
    }


def study_from(row: Mapping[Any, Any]) -> Study:
    """Returns the study in a row of ``evo_studies``."""
    device = DeviceInfo(row["device_kind"], row["device"], row["arch"], row["predicted"])
    _check_identity(row["id"], (row[name] for name in _CHECKED_COLUMNS))
    with decoding(f"study {row['id']}"):
        check_time(row, "created_at")
        key = StudyKey(
            problem=problem_from_json(row["problem_json"]),
            family=row["family"],
            device=device,
            method=row["method"],
            strategy=row["strategy"],
            seed=row["seed"],
            space_key=row["space_key"],
            workload=workload_from_json(row["workload_json"]),
            own_spaces=spaces_from_json(row["spaces_json"]),
        )
        if key.scope.problem != row["problem"]:
            raise ValueError("problem_json: does not describe its problem")
    return Study(row["id"], key, row["created_at"])


def study_of(row: Mapping[Any, Any], key: StudyKey) -> Study:
    """Returns the study in a row of ``evo_studies`` that was found by the identity of a key.

    Raises:
        MalformedDataError: Other columns than the identity differ from the key, or are damaged.
    """
    with decoding(f"study {row['id']}"):
        expected = study_columns(key)
        for name in _CHECKED_COLUMNS:
            if row[name] != expected[name]:
                raise ValueError(f"{name}: is {row[name]!r}, but {expected[name]!r} by its identity")
    return Study(row["id"], key, study_from(row).created_at)


def _check_identity(study_id: object, columns: Iterable[object]) -> None:
    """Checks that the columns of a study have the types and values that its identity was computed from.

    Args:
        study_id: Id of the study.
        columns: Values of :data:`_CHECKED_COLUMNS`.

    Raises:
        MalformedDataError: A column has another type or value.
    """
    if (reason := _contradiction(*columns)) is not None:
        raise MalformedDataError(f"study {study_id}: {reason}")


@lru_cache(maxsize=256, typed=True)  # the rows of a study have the same columns
def _contradiction(*columns: Any) -> str | None:
    values = dict(zip(_CHECKED_COLUMNS, columns, strict=True))
    if any(type(values[name]) is not str for name in _STUDY_TEXTS) or type(values["seed"]) is not int:
        return "a column has another type"
    scope = Scope(*columns[: len(_SCOPE_COLUMNS)])
    if values["identity"] != study_identity(scope, *(values[name] for name in _SEARCH_COLUMNS)):
        return "identity: does not match device, method, problem and its other columns"
    return None


def row_from(columns: Mapping[Any, Any]) -> Row:
    """Returns the row in one result of :func:`ranked_rows`."""
    median_us, baseline_us = columns["median_us"], columns["baseline_us"]
    has_resources = columns["registers"] is not None
    _check_identity(columns["study_id"], (columns[label] for label in _CHECKED_LABELS))
    with decoding(f"row {columns['id']}"):
        check_columns(columns)
        check_kind(columns, columns["study_method"], predicted=columns["study_predicted"])
        return Row(
            id=columns["id"],
            rank=columns["rank"],
            status=Status(columns["status"]),
            median_us=median_us,
            predicted=columns["study_predicted"],
            device_kind=columns["study_device_kind"],
            device=columns["study_device"],
            arch=columns["study_arch"],
            problem=columns["study_problem"],
            family=columns["family"],
            config=stored_config(columns).as_dict(),
            registers=columns["registers"],
            spill_bytes=columns["spill_bytes"],
            smem_bytes=columns["static_smem_bytes"] + columns["dynamic_smem_bytes"] if has_resources else None,
            max_error=columns["max_error"],
            speedup=baseline_us / median_us if baseline_us is not None and median_us else None,
            champion=bool(columns["is_champion"]),
            method=columns["study_method"],
            low_us=columns["low_us"],
            high_us=columns["high_us"],
            code_hash=columns["code_hash"],
            reason=columns["reason"],
            study_id=columns["study_id"],
            created_at=columns["created_at"],
            energy_uj=columns["energy_uj"],
            pending=bool(columns["is_pending"]),
        )
