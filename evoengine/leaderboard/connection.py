"""The SQLite file: version check, connections, and database errors as one-line messages."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from evoengine.documents.escaping import printable
from evoengine.errors import StoreError
from evoengine.leaderboard.damage import MalformedDataError
from evoengine.leaderboard.hardening import harden, refuse_foreign_code
from evoengine.leaderboard.schema import APPLICATION_ID, SCHEMA_VERSION
from evoengine.leaderboard.upgrade import OLDEST_VERSION

_LONGEST_REASON: Final = 200
_WAL_RETRY_S: Final = 0.02


def database_url(text: str) -> str:
    """Returns the URL of a ``--db`` value; a plain file name means SQLite."""
    return text if "://" in text else f"sqlite:///{text}"


def database_path(url: str) -> Path:
    """Returns the file that a ``sqlite:///…`` URL names.

    Raises:
        StoreError: the URL is malformed, not one of SQLite, or names no file.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError(f"'{url}' is not a database URL: give one like sqlite:///leaderboard.db") from None
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(f"the leaderboard is a SQLite file, not {parsed.get_backend_name()}: give sqlite:///FILE")
    if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
        raise StoreError(f"'{url}' names no file: give one like sqlite:///leaderboard.db")
    return Path(parsed.database)


@contextmanager
def store_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite, SQLAlchemy and of decoding into one line that names file, problem and remedy.

    Raises:
        StoreError: the block raised a database error or read malformed data.
    """
    try:
        yield
    except MalformedDataError as error:
        text = printable(" ".join(str(error).split()))[:_LONGEST_REASON]
        raise StoreError(f"{path}: malformed data: {text}: restore a copy or give another file") from error
    except DBAPIError as error:
        raise StoreError(_explain(path, str(error.orig))) from error
    except (sqlite3.Error, SQLAlchemyError) as error:
        raise StoreError(_explain(path, str(error))) from error


def _explain(path: Path, message: str) -> str:
    text = printable(" ".join(message.split()))[:_LONGEST_REASON]
    low = text.lower()
    if "locked" in low or "busy" in low:
        return f"{path}: locked by another program: close that program and start again"
    if "disk is full" in low:
        return f"{path}: the disk is full: free some space and start again; everything recorded is kept"
    if "disk i/o error" in low:
        return f"{path}: cannot be written ({text}): check the disk and its quota; everything recorded is kept"
    if "readonly" in low or "unable to open" in low:
        return f"{path}: cannot be opened for writing: give a writable file, for example --db sqlite:///leaderboard.db"
    if "not a database" in low:
        return f"{path}: is not an EvoEngine leaderboard: give another file"
    if "malformed" in low:
        return f"{path}: is damaged ({text}): restore a copy or give another file"
    return f"{path}: {text}"


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a leaderboard in WAL mode: a commit survives the death of the process, and readers never wait.

    Outside explicit transactions the connection is in autocommit mode. A transaction that Python opens implicitly, as
    for Optuna's tables, takes the write lock at its start, so that it waits for the lock instead of failing halfway.
    """
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level="IMMEDIATE", check_same_thread=False)
    try:
        _enter_wal(connection, busy_timeout_s)
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
        harden(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _enter_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switches to WAL; SQLite itself does not wait when two processes switch one new file at the same time."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return


def stored_version(path: Path, busy_timeout_s: float) -> int:
    """Reads the schema version of a file without changing it.

    Returns:
        The version; 0 if there is no file, or one without tables.

    Raises:
        StoreError: the file belongs to another program, or has a version that cannot be read.
    """
    if path.is_dir():
        raise StoreError(f"{path}: is a folder: give a file, for example --db sqlite:///{path / 'leaderboard.db'}")
    if not path.parent.is_dir():
        raise StoreError(f"{path}: no folder {path.parent}: create it or give another file")
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with store_errors(path), closing(sqlite3.connect(path, timeout=busy_timeout_s)) as connection:
        application: int = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        tables: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == APPLICATION_ID:
            refuse_foreign_code(connection, path)
    if application == 0 and tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise StoreError(f"{path}: belongs to another program, not to EvoEngine: give another file")
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"{path}: has leaderboard version {version}, this EvoEngine reads up to {SCHEMA_VERSION}: "
            "use the EvoEngine that wrote it, or give another file"
        )
    return version
