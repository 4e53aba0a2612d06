"""Alembic's revisions of the leaderboard's tables, for SQLite and PostgreSQL alike.

Revision 0009 is the first: it creates all tables. SQLite files of versions 1 to 8 are upgraded to 9 by
:mod:`evoengine.leaderboard.database.upgrade`. Each revision module is named in ``versions/`` by its number; a change
of a table uses ``op.batch_alter_table``, because SQLite cannot alter columns in place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from evoengine.leaderboard.damage import MalformedDataError
from evoengine.leaderboard.schema import VERSIONS

_FOLDER: Final = Path(__file__).parent


def upgrade_to_newest(connection: Connection, more: Sequence[Path] = ()) -> None:
    """Runs the revisions that a database lacks, in the transaction of the connection.

    Args:
        connection: Connection in a transaction that holds the lock of the schema.
        more: Folders with further revisions.

    Raises:
        MalformedDataError: The database names several revisions, or an unknown one.
    """
    config = Config()
    folders = os.pathsep.join(map(str, (_FOLDER / "versions", *more)))
    config.set_main_option("script_location", _escaped(str(_FOLDER)))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", _escaped(folders))
    config.attributes["connection"] = connection
    stored = MigrationContext.configure(connection, opts={"version_table": VERSIONS.name}).get_current_heads()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if len(stored) > 1 or not known.issuperset(stored):
        raise MalformedDataError(f"{VERSIONS.name}: holds {', '.join(map(repr, stored))} instead of one known revision")
    command.upgrade(config, "head")


def _escaped(text: str) -> str:
    """Protects percent signs, which configuration files interpret."""
    return text.replace("%", "%%")
