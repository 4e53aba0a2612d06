"""A leaderboard on a PostgreSQL server, which searches on several hosts use at the same time.

A transaction that acquires leases locks the row of its study, so budgets and trial numbers stay exact. An owner of
leases holds an advisory lock on a connection of its own: when its process or host ends in any way, the server ends the
connection, and other searches may take its leases over.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, suppress
from typing import Any, Final

from sqlalchemy import URL, BigInteger, Connection, Engine, cast, create_engine, func, inspect, select
from sqlalchemy.event import listen
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from evoengine.documents.escaping import printable
from evoengine.errors import MissingDependencyError, StoreError
from evoengine.leaderboard.database.connection import store_errors
from evoengine.leaderboard.database.protocol import Lock
from evoengine.leaderboard.database.server_url import server_name, server_url
from evoengine.leaderboard.schema import REVISION, SCHEMA_VERSION, STUDIES, VERSIONS

_CONNECT_S: Final = 10
_LONGEST_REASON: Final = 200
_MIGRATION: Final = "schema"
"""Subject that a process locks while it creates or upgrades the tables."""
_SESSION: Final = {
    "timezone": "UTC",
    "tcp_keepalives_idle": 20,
    "tcp_keepalives_interval": 10,
    "tcp_keepalives_count": 3,  # the server notices within a minute that a host has vanished
}
_REMEDIES: Final = {
    "08": "the connection was lost: start again; everything recorded is kept",
    "28": "the server refuses the login: check user and password (PGUSER, PGPASSWORD or ~/.pgpass)",
    "3D": "the server has no such database: create it with createdb",
    "42501": "the user may not do this: grant it the rights on the schema and the tables",
    "53100": "the server's disk is full: free some space and start again; everything recorded is kept",
    "53300": "the server has no free connection: raise its max_connections, or run fewer searches",
    "55P03": "locked by another program: close that program and start again",
    "57P": "the server was stopped: start again; everything recorded is kept",
    "25006": "the server can only be read: give the address of the primary server",
}
"""Remedies by SQLSTATE or its first characters (PostgreSQL's documentation, appendix A)."""
_UNCONNECTED: Final = (
    ("authentication failed", _REMEDIES["28"]),
    ("no password supplied", _REMEDIES["28"]),
    ("does not exist", _REMEDIES["3D"]),
    ("too many clients", _REMEDIES["53300"]),
    ("connection slots", _REMEDIES["53300"]),
)
"""Remedies by words of libpq's messages about connections that were not made, which have no SQLSTATE."""
_UNREACHABLE: Final = "check that the server runs and accepts connections; everything recorded is kept"


class PostgresDatabase:
    """A :class:`~evoengine.leaderboard.database.protocol.Database` on a server.

    Args:
        url: Address.
        create: Whether to create the tables where the database has none.
        busy_timeout_s: Longest wait for a lock that another process holds.

    Raises:
        MissingDependencyError: psycopg is not installed.
        StoreError: The server cannot be reached or used, or holds no leaderboard (without ``create``).
    """

    def __init__(self, url: str, *, create: bool, busy_timeout_s: float) -> None:
        self.url = url
        self.name = server_name(url)
        self._password = server_url(url).password or ""
        self._holding: dict[str, Connection] = {}
        self.engine = _engine(server_url(url), busy_timeout_s)
        try:
            self._prepare(create=create)
        except BaseException:
            self.close()
            raise

    def errors(self) -> AbstractContextManager[None]:
        return store_errors(self.name, self._explain)

    def begin(self, connection: Connection) -> None:
        """Does nothing: a transaction begins with its first statement."""

    def lock(self, connection: Connection, lock: Lock) -> None:
        """Locks the row of a study, or a subject by an advisory lock."""
        if isinstance(lock, int):
            connection.execute(select(STUDIES.c.id).where(STUDIES.c.id == lock).with_for_update(key_share=True))
        else:
            connection.execute(select(func.pg_advisory_xact_lock(_key(lock))))

    def hold(self, owner: str) -> None:
        """Takes the owner's advisory lock on a connection that nothing else uses."""
        if owner in self._holding:
            return
        with self.errors():
            connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(select(func.pg_advisory_lock(_key(owner))))
        self._holding[owner] = connection

    def is_alive(self, connection: Connection, owner: str) -> bool:
        """Tries the owner's lock; a dead owner's is held until the transaction ends, so only one search adopts it."""
        return not connection.execute(select(func.pg_try_advisory_xact_lock(_key(owner)))).scalar_one()

    def retire(self, owner: str) -> None:
        connection = self._holding.pop(owner, None)
        if connection is not None:
            with suppress(SQLAlchemyError):  # a lost connection has lost its lock, too
                connection.invalidate()
                connection.close()

    def connect(self) -> Any:
        """Opens a ``psycopg`` connection."""
        with self.errors():
            return self.engine.raw_connection()

    def close(self) -> None:
        for owner in list(self._holding):
            self.retire(owner)
        self.engine.dispose()

    def _prepare(self, *, create: bool) -> None:
        """Creates or upgrades the tables unless they are current."""
        with self.errors(), self.engine.connect() as connection:
            version = _version(connection)
            if version == REVISION:
                return
            if version is None and not create:
                raise StoreError(f"{self.name}: no leaderboard yet: run a search first, or name its database with --db")
            if version is not None and (not version.isdecimal() or int(version) > SCHEMA_VERSION):
                raise StoreError(
                    f"{self.name}: has leaderboard version {printable(version)}, this EvoEngine reads up to "
                    f"{SCHEMA_VERSION}: use the EvoEngine that wrote it, or give another database"
                )
        from evoengine.leaderboard.database.migrations import upgrade_to_newest

        with self.errors(), self.engine.connect() as connection:
            self.lock(connection, _MIGRATION)
            upgrade_to_newest(connection)  # does nothing if another process did it meanwhile
            connection.commit()

    def _explain(self, name: str, error: Exception) -> str:
        original = getattr(error, "orig", None) or error
        state = getattr(original, "sqlstate", None) or ""
        remedy = next((text for code, text in _REMEDIES.items() if state.startswith(code)), "")
        lines = str(original).strip().splitlines() or [type(original).__name__]
        text = printable(" ".join(lines[0].split()))[:_LONGEST_REASON]
        if self._password:
            text = text.replace(self._password, "***")
        if not state:  # there was no answer with one: the connection was not made, or was lost
            remedy = next((remedy for words, remedy in _UNCONNECTED if words in text), _UNREACHABLE)
        return f"{name}: {text}: {remedy}" if remedy else f"{name}: {text}"


def _engine(url: URL, busy_timeout_s: float) -> Engine:
    settings = _SESSION | {"lock_timeout": int(busy_timeout_s * 1000)}
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    given = url.query.get("options", "")
    arguments = {
        "options": f"{options} {given if isinstance(given, str) else ' '.join(given)}".strip(),
        "connect_timeout": _connect_timeout_s(url),
        "application_name": str(url.query.get("application_name", "evoengine")),
    }
    plain = url.difference_update_query(arguments)
    try:
        engine = create_engine(plain, connect_args=arguments, poolclass=QueuePool)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"PostgreSQL needs {error.name}: python -m pip install 'evoengine[postgres]'"
        ) from error
    listen(engine, "connect", _accept_any_text)
    return engine


def _connect_timeout_s(url: URL) -> int:
    text = str(url.query.get("connect_timeout", _CONNECT_S))
    try:
        return int(text)
    except ValueError:
        reason = f"has the connect_timeout {text!r}: give a whole number of seconds"
        raise StoreError(f"the address of the PostgreSQL server {reason}") from None


def _accept_any_text(connection: Any, _record: object) -> None:
    """Replaces NUL in texts, which PostgreSQL does not store."""
    from psycopg.types.string import StrDumper

    class AnyText(StrDumper):
        def dump(self, obj: str) -> Any:
            return super().dump(obj.replace("\0", "\N{REPLACEMENT CHARACTER}"))

    connection.adapters.register_dumper(str, AnyText)


def _version(connection: Connection) -> str | None:
    """Returns the revision of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSIONS.name):
        return None
    return connection.execute(select(VERSIONS.c.version_num)).scalar_one_or_none()


def _key(subject: str) -> Any:
    """Returns the 64-bit key of an advisory lock."""
    digest = hashlib.sha256(f"evoengine:{subject}".encode()).digest()
    return cast(int.from_bytes(digest[:8], signed=True), BigInteger)
