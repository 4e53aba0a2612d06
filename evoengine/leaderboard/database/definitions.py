"""Comparison of the tables in a SQLite file with EvoEngine's definitions: types, defaults and unique columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from sqlalchemy import DefaultClause, Table, UniqueConstraint
from sqlalchemy.dialects import sqlite

from evoengine.documents.escaping import printable
from evoengine.leaderboard.schema import METADATA

_AFFINITIES: Final = (
    ("INT", "INTEGER"),
    *((word, "TEXT") for word in ("CHAR", "CLOB", "TEXT")),
    ("BLOB", "BLOB"),
    *((word, "REAL") for word in ("REAL", "FLOA", "DOUB")),
)
"""Affinity by the part of a declared type that decides it, the first one that occurs (SQLite, "Datatypes", 3.1)."""
_COLUMNS: Final = "SELECT lower(name), type, dflt_value FROM pragma_table_info(?)"
_UNIQUE: Final = """\
SELECT i.name, coalesce(lower(c.name), 'rowid') FROM pragma_index_list(?) AS i, pragma_index_info(i.name) AS c
    WHERE i."unique" AND i.origin <> 'pk'"""


def difference(connection: sqlite3.Connection, name: str) -> str | None:
    """Describes how a table differs from EvoEngine's definition in a way that loses or changes rows.

    ``ON CONFLICT DO NOTHING`` drops a row that breaks a further unique index without an error, a column of another
    affinity converts what it stores, and another default replaces a missing value. Files of earlier versions lack
    columns and tables, but those that they have are defined alike.

    Args:
        connection: Connection to the file.
        name: Name of one of EvoEngine's tables, in any case.
    """
    table = METADATA.tables[name.lower()]
    columns = _columns(table)
    for column, kind, default in connection.execute(_COLUMNS, (name,)).fetchall():
        if column not in columns:
            continue
        affinity, expected = columns[column]
        if _affinity(kind) != affinity:
            return f"column {column} has the type '{printable(kind)[:40]}' instead of {affinity}"
        if default != expected:
            return f"column {column} has the default {printable(str(default))[:40]} instead of {expected}"
    unique: dict[str, set[str]] = {}
    for index, column in connection.execute(_UNIQUE, (name,)):
        unique.setdefault(index, set()).add(column)
    found, wanted = {frozenset(group) for group in unique.values()}, _unique(table)
    for names in sorted(sorted(group) for group in found ^ wanted):
        return f"({printable(', '.join(names))[:100]}) is {'unique' if frozenset(names) in found else 'not unique'}"
    return None


@lru_cache(maxsize=64)
def _columns(table: Table) -> Mapping[str, tuple[str, str | None]]:
    """Affinity, and default as SQL text, of each column of a definition."""
    dialect = sqlite.dialect()
    return {
        column.name: (_affinity(column.type.compile(dialect)), _default(column.server_default))
        for column in table.columns
    }


def _affinity(kind: str) -> str:
    upper = kind.upper()
    return next((affinity for word, affinity in _AFFINITIES if word in upper), "NUMERIC" if upper else "BLOB")


def _default(clause: object) -> str | None:
    return f"'{clause.arg}'" if isinstance(clause, DefaultClause) else None


def _unique(table: Table) -> set[frozenset[str]]:
    """Sets of columns that are unique together, without the primary key."""
    groups = [one.columns for one in table.constraints if isinstance(one, UniqueConstraint)]
    groups += [index.columns for index in table.indexes if index.unique]
    return {frozenset(column.name for column in columns) for columns in groups}
