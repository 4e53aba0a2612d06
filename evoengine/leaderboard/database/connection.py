"""Values of ``--db``; the SQLite file: version check, connections, and database errors as one-line messages."""

from __future__ import annotations

import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from evoengine.documents.escaping import printable
from evoengine.errors import StoreError
from evoengine.leaderboard.damage import MalformedDataError
from evoengine.leaderboard.database.definitions import difference
from evoengine.leaderboard.database.hardening import harden, refuse_foreign_code
from evoengine.leaderboard.database.server_url import is_server, server_name
from evoengine.leaderboard.schema import APPLICATION_ID, METADATA, OLDEST_VERSION, SCHEMA_VERSION

_LONGEST_REASON: Final = 200
_WAL_RETRY_S: Final = 0.02
_SQLITE: Final = "sqlite:///"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PARAMETERS: Final = re.compile(r"\?[a-z_]+=[^/]*$")
_HEADER: Final = b"SQLite format 3\0"
_SMALLEST_BYTES: Final = 512
"""Smallest page of SQLite, which treats any smaller file as an empty database."""
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite opens by itself with a database."""
_JOURNAL_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
"""End of a rollback journal that names a super-journal, a file that SQLite deletes after the rollback."""


def database_url(text: str) -> str:
    """Returns the URL of a ``--db`` value; anything without a scheme is the path of a file, whatever its characters.

    Raises:
        StoreError: The URL of a file has parameters, which a leaderboard does not take.
    """
    if not _SCHEME.match(text):
        return f"{_SQLITE}{text}"
    if is_server(text):
        return text
    if _PARAMETERS.search(text):
        raise StoreError(f"'{text}' has parameters, and a leaderboard takes none: give the path of the file alone")
    return text


def database_name(text: str) -> str:
    """Returns a ``--db`` value as messages and files show it: without the credentials of a server."""
    return server_name(text) if is_server(text) else text


def database_path(url: str | Path) -> Path:
    """Returns the file that a ``sqlite:///…`` URL names: all characters after the three slashes, as they are.

    Raises:
        StoreError: The URL is malformed, not one of SQLite, or names no file.
    """
    if isinstance(url, Path):
        return url
    if not _SCHEME.match(url):
        raise StoreError(f"'{url}' is not a database URL: give one like sqlite:///leaderboard.db")
    scheme = url.partition("://")[0].partition("+")[0].lower()
    if scheme != "sqlite":
        raise StoreError(f"a leaderboard is a SQLite file or on PostgreSQL, not {scheme}: give sqlite:///FILE")
    name = url.partition("://")[2].removeprefix("/")
    if not url.partition("://")[2].startswith("/") or name in ("", ":memory:"):
        raise StoreError(f"'{url}' names no file: give one like sqlite:///leaderboard.db")
    return Path(name)


def explain_file_error(name: str, error: Exception) -> str:
    """Returns one line about an error of SQLite, with file, problem and remedy."""
    return _explain(name, str(error.orig if isinstance(error, DBAPIError) else error))


@contextmanager
def store_errors(name: Path | str, explain: Callable[[str, Exception], str] = explain_file_error) -> Iterator[None]:
    """Turns errors of the database, SQLAlchemy and of decoding into one line that names database, problem and remedy.

    Args:
        name: File, or name of the server's database.
        explain: Returns the line for a database error.

    Raises:
        StoreError: The block raised a database error or read malformed data.
        KeyboardInterrupt: A stop signal ended a query.
    """
    try:
        yield
    except MalformedDataError as error:
        text = printable(" ".join(str(error).split()))[:_LONGEST_REASON]
        raise StoreError(f"{name}: malformed data: {text}: restore a copy or give another file") from error
    except UnicodeDecodeError as error:  # by sqlite3, for a message of SQLite that holds such a name
        raise StoreError(f"{name}: is damaged (a name is not UTF-8): restore a copy or give another file") from error
    except OverflowError as error:
        raise StoreError(f"{name}: a number does not fit 64 bits: give a smaller one") from error
    except (sqlite3.Error, SQLAlchemyError) as error:
        if _is_interruption(error):
            raise KeyboardInterrupt from error
        raise StoreError(explain(str(name), error)) from error


def _is_interruption(error: Exception) -> bool:
    """Whether a stop signal ended a query; ``sqlite3`` discards the exception that the signal's handler raised.

    Where it was raised in the authorizer, ``sqlite3`` denies an access; the authorizer itself refuses in another way.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", None) in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_AUTH)


def _explain(path: str, message: str) -> str:
    text = printable(" ".join(message.split()))[:_LONGEST_REASON]
    low = text.lower()
    if "locked" in low or "busy" in low:
        return f"{path}: locked by another program: close that program and start again"
    if "disk is full" in low:
        return f"{path}: the disk is full: free some space and start again; everything recorded is kept"
    if "disk i/o error" in low:
        return f"{path}: cannot be written ({text}): check the disk and its quota; everything recorded is kept"
    if "readonly" in low or "unable to open" in low:
        return read_only_text(path)
    if "not a database" in low:
        return f"{path}: is not an EvoEngine leaderboard: give another file"
    if "malformed" in low:
        return f"{path}: is damaged ({text}): restore a copy or give another file"
    return f"{path}: {text}"


def read_only_text(path: Path | str) -> str:
    """Returns the line about a file that cannot be written; verbs name it by different options."""
    return f"{path}: cannot be opened for writing: give another file, or make this one and its folder writable"


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Opens a leaderboard in WAL mode: a commit survives the death of the process, and readers never wait.

    Outside explicit transactions the connection is in autocommit mode. A transaction that Python opens implicitly, as
    for Optuna's tables, takes the write lock at its start, so that it waits for the lock instead of failing halfway.
    """
    connection = sqlite3.connect(
        path.absolute(), timeout=busy_timeout_s, isolation_level="IMMEDIATE", check_same_thread=False
    )
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


def check_file(path: Path) -> bool:
    """Checks that a path holds a database, or that a new one can be created there, without opening it as a database.

    Returns:
        True if the file holds a database; False if it is missing or empty.

    Raises:
        StoreError: The file is a folder or a device, too small, or of another program, or its folder is missing; or a
            file beside it would make SQLite wait forever, or use a file elsewhere.
    """
    exists = _is_database(path)
    _check_beside(path)
    return exists


def _is_database(path: Path) -> bool:
    try:
        facts = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise StoreError(f"{path}: no folder {path.parent}: create it or give another file") from None
        return False
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror}: give another file") from error
    if stat.S_ISDIR(facts.st_mode):
        raise StoreError(f"{path}: is a folder: give a file, for example --db sqlite:///{path / 'leaderboard.db'}")
    if not stat.S_ISREG(facts.st_mode):
        raise StoreError(f"{path}: is no regular file: give another file")
    if facts.st_size == 0:
        return False
    try:
        with path.open("rb") as file:
            head = file.read(len(_HEADER))
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}: change its mode, or give another file") from error
    if facts.st_size < _SMALLEST_BYTES or head != _HEADER:
        raise StoreError(f"{path}: is not an EvoEngine leaderboard: give another file")
    return True


def _check_beside(path: Path) -> None:
    """Checks the files that SQLite opens with a database; a folder from elsewhere may hold any.

    EvoEngine changes one database per transaction, so that its journals name no other file.
    """
    target = path.resolve()  # as SQLite does, which looks for these files beside the target of a link
    for suffix in _BESIDE:
        beside = target.with_name(target.name + suffix)
        try:
            if not stat.S_ISREG(beside.lstat().st_mode):
                raise StoreError(f"{beside}: is no regular file: remove it, or give another leaderboard")
            if suffix == "-journal" and _ends_with(beside, _JOURNAL_MAGIC):
                raise StoreError(f"{beside}: names another file, which SQLite would delete: remove it")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"{beside}: cannot be read: {error.strerror}: remove it") from error


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - len(end)))
        return file.read() == end


def stored_version(path: Path, busy_timeout_s: float) -> int:
    """Reads the schema version of a file without changing it.

    Returns:
        The version; 0 if there is no file, or one without tables.

    Raises:
        StoreError: The file belongs to another program, or has a version that cannot be read.
    """
    return stored_version_in(str(path.absolute()), path, busy_timeout_s) if check_file(path) else 0


def stored_version_in(database: str, path: Path, busy_timeout_s: float = 5.0, *, uri: bool = False) -> int:
    """Reads the schema version of an existing database.

    Args:
        database: Path, or URI of SQLite.
        path: File to name in messages.
        busy_timeout_s: Longest wait for a lock that another process holds.
        uri: Whether ``database`` is a URI.

    Raises:
        StoreError: The file belongs to another program, or has a version that cannot be read.
    """
    with store_errors(path), closing(sqlite3.connect(database, timeout=busy_timeout_s, uri=uri)) as connection:
        harden(connection)
        connection.execute("BEGIN")  # another process may create the tables between two reads
        application: int = connection.execute("PRAGMA application_id").fetchone()[0]
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if application == APPLICATION_ID:
            refuse_foreign_code(connection, path)
        own = [name for name in tables if application == APPLICATION_ID and name.lower() in METADATA.tables]
        differences = [(name, difference(connection, name)) for name in sorted(own)]
        keys = {name: _primary_key(connection, name) for name in METADATA.tables.keys() & tables}
    if application == 0 and not tables:
        return 0
    if application != APPLICATION_ID:
        raise StoreError(f"{path}: belongs to another program, not to EvoEngine: give another file")
    if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
        raise StoreError(
            f"{path}: has leaderboard version {version}, this EvoEngine reads up to {SCHEMA_VERSION}: "
            "use the EvoEngine that wrote it, or give another file"
        )
    for name, text in differences:
        if text is not None:
            raise StoreError(f"{path}: is damaged: table {name}: {text}: restore a copy or give another file")
    if version == SCHEMA_VERSION and (missing := sorted(METADATA.tables.keys() - tables)):
        raise StoreError(f"{path}: is damaged: table {missing[0]} is missing: restore a copy or give another file")
    for name, table in METADATA.tables.items() if version == SCHEMA_VERSION else ():
        if keys[name] != {column.name for column in table.primary_key}:
            raise StoreError(f"{path}: is damaged: table {name} has another key: restore a copy or give another file")
    return version


def _primary_key(connection: sqlite3.Connection, table: str) -> set[str]:
    """Columns of the primary key of a table."""
    return {name for name, place in connection.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)) if place}
