"""Alembic's revisions of the leaderboard's tables, for SQLite and PostgreSQL alike.

Revision 0009 is the first: it creates all tables. SQLite files of versions 1 to 8 are upgraded to 9 by
:mod:`evoengine.leaderboard.upgrade`. Each revision module is named in ``versions/`` by its number; a change of a table
uses ``op.batch_alter_table``, because SQLite cannot alter columns in place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

_FOLDER: Final = Path(__file__).parent


def upgrade_to_newest(connection: Connection, more: Sequence[Path] = ()) -> None:
    """Runs the revisions that a database lacks, in the transaction of the connection.

    Args:
        connection: Connection in a transaction that holds the lock of the schema.
        more: Folders with further revisions.
    """
    config = Config()
    folders = os.pathsep.join(map(str, (_FOLDER / "versions", *more)))
    config.set_main_option("script_location", _escaped(str(_FOLDER)))
    config.set_main_option("path_separator", "os")
    config.set_main_option("version_locations", _escaped(folders))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _escaped(text: str) -> str:
    """Protects percent signs, which configuration files interpret."""
    return text.replace("%", "%%")
