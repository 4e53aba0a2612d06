"""Optuna's tables in a leaderboard file: what Optuna itself makes, from a copy that is kept in the cache on disk.

Optuna takes a third of a second of CPU for its dozen tables, as long as recording two hundred trials takes: it imports
Alembic and reads all revisions of its schema. What comes out is the same for every file.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import optuna

from evoengine.errors import StoreError
from evoengine.kernel.compile.cache import DiskCache

_KEY: Final = f"optuna-tables-{optuna.__version__}"
_TRANSACTION: Final = ("BEGIN TRANSACTION;", "COMMIT;")
"""What a dump begins and ends with."""
_COUNT: Final = "SELECT count(*) FROM sqlite_master WHERE name IN ('studies', 'version_info', 'alembic_version')"
_HAS_REVISION: Final = "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
_REVISION: Final = "SELECT version_num FROM alembic_version"


@dataclass(frozen=True)
class OptunaTables:
    """How one version of Optuna keeps its studies."""

    revision: str
    """Of its schema, as Alembic names it."""
    statements: tuple[str, ...]
    """That make the tables, empty."""

    def make(self, connection: sqlite3.Connection, path: Path) -> None:
        """Makes the tables in a file that has none, in one transaction, whoever else is about to do the same.

        Args:
            connection: to the file.
            path: how messages call it.

        Raises:
            StoreError: it has tables of another version of Optuna.
            sqlite3.Error: the file cannot be read or written.
        """
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute(_COUNT).fetchone()[0]:
                for statement in self.statements:
                    connection.execute(statement)
        if _revision(connection) is None:  # a process was killed while Optuna made them, which it does bit by bit
            _have_optuna_make(connection)
        revision = _revision(connection)
        if revision != self.revision:
            raise StoreError(
                f"{path}: Optuna's tables in it are of revision {revision}, Optuna {optuna.__version__} has "
                f"{self.revision}: run 'optuna storage upgrade --storage sqlite:///{path}', or give another file"
            )


@cache
def installed_tables(cache_dir: Path | None) -> OptunaTables:
    """Those of the Optuna that is installed here.

    Args:
        cache_dir: of the cache on disk; with None, each process asks Optuna once.
    """
    disk = DiskCache(cache_dir)
    stored = disk.get(_KEY)
    if stored is None:
        stored = (json.dumps(_ask_optuna()).encode(),)
        disk.put(_KEY, stored)
    revision, *statements = json.loads(stored[0])
    return OptunaTables(revision, tuple(statements))


def _ask_optuna() -> list[str]:
    """Has Optuna make its tables in memory: the revision, then the statements that make the same."""
    with closing(sqlite3.connect(":memory:")) as connection:
        _have_optuna_make(connection)
        revision = _revision(connection)
        assert revision is not None
        return [revision, *(line for line in connection.iterdump() if line not in _TRANSACTION)]


def _have_optuna_make(connection: sqlite3.Connection) -> None:
    """What is there already stays."""
    optuna.storages.RDBStorage("sqlite://", engine_kwargs={"creator": lambda: connection})


def _revision(connection: sqlite3.Connection) -> str | None:
    """Of the tables in a file; None where it has none, or not all of them."""
    if not connection.execute(_HAS_REVISION).fetchone()[0]:
        return None
    found = connection.execute(_REVISION).fetchone()
    return None if found is None else str(found[0])
