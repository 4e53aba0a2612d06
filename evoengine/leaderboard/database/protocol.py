"""The database behind a leaderboard: a SQLite file, or a PostgreSQL server that several hosts use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

Lock = int | str
"""Subject of a lock: a study by its id, any other by its name."""


class Database(Protocol):
    """One database with the current tables. A SQLite file has one write lock, a server locks by study or subject."""

    @property
    def name(self) -> str:
        """Name for messages and files; it never holds a password or user name."""

    @property
    def url(self) -> str:
        """Text that opens the same database again; it may hold credentials."""

    @property
    def engine(self) -> Engine: ...

    def errors(self) -> AbstractContextManager[None]:
        """Converts database errors of its block to StoreErrors of one line."""

    def begin(self, connection: Connection) -> None:
        """Begins a transaction that writes.

        Raises:
            StoreError: The database can only be read.
        """

    def lock(self, connection: Connection, lock: Lock) -> None:
        """Takes a lock until the transaction ends: what it reads about the subject holds until it commits."""

    def hold(self, owner: str) -> None:
        """Marks an owner of leases as alive until :meth:`retire`, or until this process ends in any way."""

    def is_alive(self, connection: Connection, owner: str) -> bool:
        """Whether the leases of an owner are valid.

        Args:
            connection: Connection in a transaction that writes.
            owner: Name of the owner.
        """

    def retire(self, owner: str) -> None:
        """Marks an owner of this process as ended; its leases can be taken over."""

    def connect(self) -> Any:
        """Opens a connection of the driver with this database's settings."""

    def close(self) -> None:
        """Closes all connections; may be called twice."""
