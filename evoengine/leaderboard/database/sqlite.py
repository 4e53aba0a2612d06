"""A leaderboard in one SQLite file, which the processes of one host use."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, insert, select
from sqlalchemy.pool import QueuePool

from evoengine.errors import StoreError
from evoengine.leaderboard import lease_owner
from evoengine.leaderboard.database.connection import check_file, connect, read_only_text, store_errors, stored_version
from evoengine.leaderboard.database.hardening import has_sound_pages
from evoengine.leaderboard.database.protocol import Lock
from evoengine.leaderboard.database.ranking_view import create_view
from evoengine.leaderboard.database.read_only import ReadOnlyFile, is_writable, open_read_only
from evoengine.leaderboard.schema import APPLICATION_ID, METADATA, REVISION, SCHEMA_VERSION, VERSIONS


class SqliteDatabase:
    """A :class:`~evoengine.leaderboard.database.protocol.Database` in a file.

    Args:
        path: File.
        create: Whether to create a missing file. Without it, a file that cannot be written is opened for reading only.
        busy_timeout_s: Longest wait for a lock that another process holds.

    Raises:
        StoreError: The file is missing (without ``create``), foreign, of another version, locked, damaged or not
            writable.
    """

    def __init__(self, path: Path, *, create: bool, busy_timeout_s: float) -> None:
        self.path = path
        self.name = str(path)
        self.url = f"sqlite:///{path}"
        self._busy_timeout_s = busy_timeout_s
        self._read_only: ReadOnlyFile | None = None
        self._upgrades = False
        self._file: tuple[int, int] | None = None
        """Device and inode of the file, from the first connection on."""
        known = check_file(path)
        if known and not is_writable(path):
            if create:
                raise StoreError(read_only_text(path))
            with self.errors():
                self._read_only = open_read_only(path)
            version = self._read_only.version()
        else:
            version = stored_version(path, busy_timeout_s)
        if version == 0 and not create:
            raise StoreError(f"{path}: no leaderboard yet: run a search first, or name its file with --db")
        self.engine = create_engine("sqlite://", creator=self.connect, poolclass=QueuePool)
        try:
            if version == 0:
                self._create_tables()
            elif version < SCHEMA_VERSION:
                self._upgrade()
        except BaseException:
            self.close()  # or SQLite's files would stay beside a file that cannot be upgraded
            raise

    def errors(self) -> AbstractContextManager[None]:
        return store_errors(self.path)

    def begin(self, connection: Connection) -> None:
        """Takes the write lock of the file at once, so that the transaction waits for it instead of failing halfway."""
        if self._read_only is not None and not self._upgrades:
            raise StoreError(read_only_text(self.path))
        self._check_file()
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def lock(self, connection: Connection, lock: Lock) -> None:
        """Does nothing: the transaction has the write lock of the file."""

    def hold(self, owner: str) -> None:
        """Does nothing: the name of an owner names its process."""

    def is_alive(self, connection: Connection, owner: str) -> bool:
        return lease_owner.is_alive(owner)

    def retire(self, owner: str) -> None:
        lease_owner.retire_owner(owner)

    def connect(self) -> Any:
        """Opens a ``sqlite3`` connection."""
        if self._read_only is not None:
            return self._read_only.connect(self._busy_timeout_s)
        self._check_file()
        connection = connect(self.path, self._busy_timeout_s)
        self._file = self._file or _identity(self.path)
        return connection

    def _check_file(self) -> None:
        """Checks that the path still names the file of the first connection: rows would be lost in a deleted one.

        Raises:
            StoreError: It was deleted or replaced.
        """
        if self._read_only is None and self._file is not None and _identity(self.path) != self._file:
            raise StoreError(f"{self.path}: was deleted or replaced while it was in use: run the command again")

    def close(self) -> None:
        self.engine.dispose()
        if self._read_only is not None:
            self._read_only.close()

    def _create_tables(self) -> None:
        with self.errors(), closing(self.connect()):
            pass  # switches the new file to WAL, which cannot be done inside a transaction
        with self.errors(), self.engine.connect() as connection:
            self.begin(connection)
            METADATA.create_all(connection)
            create_view(connection)
            if connection.execute(select(VERSIONS)).first() is None:
                connection.execute(insert(VERSIONS).values(version_num=REVISION))
            connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.commit()

    def _upgrade(self) -> None:
        from evoengine.leaderboard.database.upgrade import upgrade  # imports Alembic, which takes a moment

        self._upgrades = True  # a read-only file of an older version is a copy here
        with self.errors(), self.engine.connect() as connection:
            self.begin(connection)
            upgraded = upgrade(connection)
            connection.commit()
        self._upgrades = False
        if upgraded and self._read_only is None:
            self._free_space()

    def _free_space(self) -> None:
        """Removes the pages that an upgrade freed; a file in use or with damaged pages stays larger.

        VACUUM copies every table. If pages of a small damaged file are used twice, the copy could fill the disk.
        """
        with suppress(StoreError), self.errors(), closing(self.connect()) as connection:
            if has_sound_pages(connection):
                connection.execute("VACUUM")


def _identity(path: Path) -> tuple[int, int] | None:
    """Returns device and inode of a file; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
