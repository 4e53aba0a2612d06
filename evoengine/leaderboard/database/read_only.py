"""Reading a leaderboard whose file, folder or medium cannot be written.

SQLite needs files beside a database in WAL mode, even to read it. Where it cannot make them, a file without pending WAL
content is opened as immutable; one with such content, or of an older version, is read from a copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import urllib.parse
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evoengine.errors import MachineError, StoreError
from evoengine.leaderboard.database.connection import connect, stored_version_in
from evoengine.leaderboard.database.hardening import harden
from evoengine.leaderboard.schema import SCHEMA_VERSION
from evoengine.system.machine_faults import machine_fault
from evoengine.system.temporary import TemporaryFolder

_PROBE: Final = "SELECT count(*) FROM sqlite_master"


def is_writable(path: Path) -> bool:
    """Whether a database can be written: its file, and the folder in which SQLite makes its journal."""
    return os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK)


@dataclass(frozen=True)
class ReadOnlyFile:
    """A way to read a database without writing to its folder; close it to remove the copy, if one was made."""

    path: Path
    parameters: str
    """Parameters of SQLite's URI; empty for a copy, which is opened as any database."""
    copy: TemporaryFolder | None = None

    def connect(self, busy_timeout_s: float) -> sqlite3.Connection:
        """Opens a connection that only reads."""
        if self.copy is not None:
            connection = connect(self.path, busy_timeout_s)
        else:
            connection = sqlite3.connect(
                _uri(self.path, self.parameters), timeout=busy_timeout_s, check_same_thread=False, uri=True
            )
        try:
            harden(connection)
            if self.version() == SCHEMA_VERSION:
                connection.execute("PRAGMA query_only=ON")
        except BaseException:
            connection.close()
            raise
        return connection

    def version(self) -> int:
        """Reads the schema version."""
        if self.copy is not None:
            return stored_version_in(str(self.path), self.path, uri=False)
        return stored_version_in(_uri(self.path, self.parameters), self.path, uri=True)

    def close(self) -> None:
        """Removes the copy."""
        if self.copy is not None:
            self.copy.close()


def open_read_only(path: Path) -> ReadOnlyFile:
    """Finds a way to read a database that cannot be written.

    Raises:
        StoreError: It cannot be read at all.
        MachineError: There is no space for a copy of it.
    """
    if not os.access(path, os.R_OK):
        raise StoreError(f"{path}: cannot be read: change its mode, or give another file")
    for parameters in ("mode=ro", *(() if _has_wal(path) else ("mode=ro&immutable=1",))):
        file = ReadOnlyFile(path, parameters)
        try:
            with closing(sqlite3.connect(_uri(path, parameters), uri=True)) as connection:
                connection.execute(_PROBE).fetchone()
        except sqlite3.OperationalError:
            continue
        return file if file.version() in (0, SCHEMA_VERSION) else _copied(path)
    return _copied(path)


def _copied(path: Path) -> ReadOnlyFile:
    """Copies a database with its pending WAL content, so that SQLite can apply it and older versions are upgraded."""
    folder, target = TemporaryFolder(), path.resolve()  # as SQLite does
    try:
        for suffix in ("", "-wal"):
            source = target.with_name(target.name + suffix)
            if source.exists():
                shutil.copyfile(source, folder.path / f"leaderboard.db{suffix}")
    except OSError as error:
        folder.close()
        fault = machine_fault(error) or MachineError(f"{error.filename or path}: {error.strerror}")
        raise fault from error
    return ReadOnlyFile(folder.path / "leaderboard.db", "", folder)


def _has_wal(path: Path) -> bool:
    target = path.resolve()
    wal = target.with_name(f"{target.name}-wal")
    try:
        return wal.stat().st_size > 0
    except OSError:
        return False


def _uri(path: Path, parameters: str) -> str:
    return f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?{parameters}"
