"""Statements that every trial runs: written once, then given to SQLite as they are.

SQLAlchemy takes several times as long for one of them as SQLite does. What they bind must be what SQLite holds: texts,
numbers, bytes, None.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.elements import CompilerElement

from evoengine.leaderboard.connection import store_errors

_DIALECT: Final = sqlite.dialect(paramstyle="named")


@contextmanager
def written(engine: Engine, path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction for prepared statements, which takes the write lock at its start.

    Raises:
        StoreError: the block raised a database error.
    """
    with store_errors(path), closing(engine.raw_connection()) as pooled:
        connection = cast("sqlite3.Connection", pooled.driver_connection)
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.commit()


def raw(connection: Connection) -> sqlite3.Connection:
    """What prepared statements run on, of a connection of SQLAlchemy."""
    return cast("sqlite3.Connection", connection.connection.driver_connection)


class Prepared:
    """One statement.

    Args:
        statement: any; an insert without values takes all columns, those that are not given as NULL.
    """

    def __init__(self, statement: CompilerElement) -> None:
        self._statement = statement

    def first(self, connection: sqlite3.Connection, values: dict[str, Any]) -> tuple[Any, ...] | None:
        """Runs it; its first row, if there is any.

        Args:
            connection: in a transaction that the caller ends.
            values: by name.
        """
        text, nulls = self._text
        rows: list[tuple[Any, ...]] = connection.execute(text, nulls | values).fetchall()
        return rows[0] if rows else None

    @cached_property
    def _text(self) -> tuple[str, dict[str, Any]]:
        compiled = self._statement.compile(dialect=_DIALECT)
        return str(compiled), dict(compiled.params)


def time_text(time: datetime) -> str:
    """As SQLAlchemy's ``DateTime`` writes it for SQLite."""
    return time.isoformat(" ", "microseconds")
