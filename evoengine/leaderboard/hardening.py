"""Settings of SQLite for files of unknown origin: no foreign code runs, and no value is larger than needed."""

from __future__ import annotations

import sqlite3
from functools import partial
from pathlib import Path
from typing import Final

from evoengine.documents.escaping import printable
from evoengine.errors import StoreError
from evoengine.leaderboard.ranking_view import KNOWN_VIEWS

MOST_BYTES: Final = 1 << 26
"""Maximum size of a value or row; the largest source has some 100 KiB."""

_CODE: Final = (
    "SELECT type, name, sql FROM sqlite_master WHERE type IN ('trigger', 'view') "
    "OR (type = 'table' AND sql LIKE 'CREATE VIRTUAL%')"
)
_DEFENSIVE: Final = (("DEFENSIVE", True), ("TRUSTED_SCHEMA", False), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False))


def harden(connection: sqlite3.Connection) -> None:
    """Restricts what the content of the file can do to this connection.

    Functions in the schema are limited to harmless ones, damaged pages are detected when they are read, and text that
    is not UTF-8 is read with replacement characters.
    """
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    if hasattr(connection, "setconfig"):  # Python 3.12
        for name, value in _DEFENSIVE:
            connection.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), value)


def refuse_foreign_code(connection: sqlite3.Connection, path: Path) -> None:
    """Checks that a leaderboard has no triggers, views and virtual tables, which would run with its statements.

    Only the view ``ranking`` with EvoEngine's own text is allowed.

    Raises:
        StoreError: It has another one.
    """
    for kind, name, text in connection.execute(_CODE):
        if kind == "view" and (name, text) in KNOWN_VIEWS:
            continue
        raise StoreError(
            f"{path}: has the {kind} '{printable(str(name))[:60]}', which EvoEngine did not create and which could "
            "change stored rows: remove it with sqlite3, or give another file"
        )
