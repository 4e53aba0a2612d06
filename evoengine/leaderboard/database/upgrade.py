"""Upgrades SQLite files of older schema versions in place, without losing data.

Versions 1 to 8 are upgraded here, later ones by the revisions in :mod:`evoengine.leaderboard.database.migrations`.
"""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.schema import CreateColumn

from evoengine.documents.bounds import BoundsError, inflate
from evoengine.leaderboard.database.migrations import upgrade_to_newest
from evoengine.leaderboard.database.migrations.versions.v0009_base import TABLES
from evoengine.leaderboard.database.ranking_view import create_view
from evoengine.leaderboard.schema import EVALUATIONS, LEASES, SCHEMA_VERSION, SOURCES, STUDIES, VERSIONS
from evoengine.leaderboard.sources import MOST_BYTES, SourceWriter

_LOG: Final = logging.getLogger(__name__)

_FIRST_OF_ALEMBIC: Final = 9
_LAST_WITH_WHOLE_TEXTS: Final = 6
"""Newest version that stores each source as one text."""
_WHOLE_TEXTS: Final = "evo_sources_version_6"
"""Temporary name of the old table of sources."""


def upgrade(connection: Connection) -> bool:
    """Upgrades a file, in a transaction that holds the write lock.

    Returns:
        Whether anything changed; not if another process upgraded the file in the meantime.
    """
    version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
    if version == SCHEMA_VERSION:
        return False
    if version < _FIRST_OF_ALEMBIC:
        _upgrade_to_9(connection, version)
    upgrade_to_newest(connection)
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return True


def _upgrade_to_9(connection: Connection, version: int) -> None:
    has_whole_texts = version <= _LAST_WITH_WHOLE_TEXTS
    if has_whole_texts:
        connection.exec_driver_sql(f"ALTER TABLE {SOURCES.name} RENAME TO {_WHOLE_TEXTS}")
    TABLES.create_all(connection)
    VERSIONS.create(connection, checkfirst=True)
    for table in TABLES.sorted_tables:
        present = {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table.name})")}
        for column in table.columns:
            if column.name not in present:
                definition = CreateColumn(column).compile(connection)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")
    for table in (EVALUATIONS, LEASES):  # in version 1 a study had one family, named in its own row only
        family = select(STUDIES.c.family).where(STUDIES.c.id == table.c.study_id).scalar_subquery()
        connection.execute(update(table).where(table.c.family == "").values(family=family))
    if has_whole_texts:
        _split_sources(connection)
    create_view(connection)
    connection.execute(delete(VERSIONS))
    connection.execute(insert(VERSIONS).values(version_num=f"{_FIRST_OF_ALEMBIC:04d}"))


def _split_sources(connection: Connection) -> None:
    """Converts whole texts (version 6 and before) to templates and prologues.

    The old table stays in the file if a text is damaged, so that nothing is lost.
    """
    writer, damaged = SourceWriter(), 0
    query = f"SELECT source_hash, text_zlib FROM {_WHOLE_TEXTS} ORDER BY rowid"  # noqa: S608 - a constant
    for source_hash, packed in connection.exec_driver_sql(query):
        try:
            text = inflate(packed, MOST_BYTES).decode()
        except (BoundsError, UnicodeDecodeError):
            damaged += 1
        else:
            writer.add(connection, source_hash, text)()
    if damaged:
        _LOG.warning("%d damaged sources of the older version stay in table %s", damaged, _WHOLE_TEXTS)
    else:
        connection.exec_driver_sql(f"DROP TABLE {_WHOLE_TEXTS}")
