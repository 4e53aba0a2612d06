"""Copies a leaderboard to an empty one: from a SQLite file to a PostgreSQL server, back, or to another of its kind."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Table, func, insert, select, text
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InterfaceError, ProgrammingError, SQLAlchemyError

from evoengine.documents.escaping import printable
from evoengine.errors import StoreError
from evoengine.leaderboard.damage import MOST_WARNINGS
from evoengine.leaderboard.database.connection import database_name, database_url
from evoengine.leaderboard.database.protocol import Database
from evoengine.leaderboard.schema import LEASES, METADATA, VERSIONS
from evoengine.leaderboard.store import open_database

_LOG: Final = logging.getLogger(__name__)
_BATCH: Final = 500
_LONGEST_REASON: Final = 200
_OF_DATA: Final = (DataError, IntegrityError, InterfaceError, ProgrammingError)
"""Errors of the rows themselves. After others, such as a full disk, nothing of the transaction is left."""
_OMITTED: Final = (VERSIONS, LEASES)
"""Tables that are not copied. A lease belongs to a search on the source; the copy's next search proposes it again."""


@dataclass(frozen=True)
class Copied:
    """Result of a copy."""

    rows: Mapping[str, int]
    """Copied rows by table."""
    left_out: int
    """Damaged rows, which the destination does not accept."""


def copy_leaderboard(source: str, destination: str) -> Copied:
    """Copies all rows with their ids, in one transaction of the destination, which stays empty if an error occurs.

    Args:
        source: ``--db`` value of a leaderboard.
        destination: ``--db`` value of an empty or missing leaderboard.

    Raises:
        StoreError: The source has no leaderboard, or the destination holds rows or cannot be written.
    """
    with (
        closing(open_database(database_url(source), create=False)) as old,
        closing(open_database(database_url(destination))) as new,
    ):
        return _copy(old, new, database_name(destination))


def _copy(old: Database, new: Database, name: str) -> Copied:
    rows: dict[str, int] = {}
    left_out = 0
    with old.errors(), old.engine.connect() as reading, new.errors(), new.engine.connect() as writing:
        new.begin(writing)
        new.lock(writing, "copy")
        tables = [table for table in METADATA.sorted_tables if table not in _OMITTED]
        filled = [table.name for table in tables if writing.execute(select(func.count()).select_from(table)).scalar()]
        if filled:
            raise StoreError(f"{name}: holds rows already (in {filled[0]}): name an empty or a new leaderboard")
        for table in tables:
            copied, refused = _copy_table(table, reading, writing)
            rows[table.name] = copied
            left_out += refused
        if writing.dialect.name == "postgresql":
            _continue_ids(writing, tables)
        writing.commit()
    return Copied(rows, left_out)


def _copy_table(table: Table, reading: Connection, writing: Connection) -> tuple[int, int]:
    copied = refused = 0
    query = select(table).order_by(*table.primary_key.columns).execution_options(yield_per=_BATCH)
    for batch in reading.execute(query).mappings().partitions():
        rows = [dict(row) for row in batch]
        if _accepted(writing, table, rows) is None:
            copied += len(rows)
            continue
        for row in rows:
            error = _accepted(writing, table, [row])
            copied += error is None
            refused += error is not None
            if error is not None and refused <= MOST_WARNINGS:
                key = ", ".join(str(row[column.name]) for column in table.primary_key.columns)
                reason = printable(" ".join(str(getattr(error, "orig", None) or error).split()))[:_LONGEST_REASON]
                _LOG.warning("%s: damaged row %s is left out: %s", table.name, printable(key), reason)
    return copied, refused


def _accepted(writing: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> Exception | None:
    """Adds rows; returns the error of data that the destination does not accept, in which case none is added."""
    try:
        with writing.begin_nested():
            writing.execute(insert(table), rows)
    except _OF_DATA as error:
        if error.connection_invalidated:
            raise
        return error
    except DBAPIError:
        raise
    except (SQLAlchemyError, TypeError, ValueError) as error:
        return error
    return None


def _continue_ids(writing: Connection, tables: Sequence[Table]) -> None:
    """Advances the id sequences of PostgreSQL, which rows inserted with their ids leave unchanged."""
    for table in tables:
        column = table.autoincrement_column
        if column is None or column.foreign_keys:
            continue
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        last = select(func.max(column)).scalar_subquery()
        writing.execute(select(func.setval(sequence, func.coalesce(last, text("1")), last.is_not(None))))
