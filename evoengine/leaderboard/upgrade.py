"""Upgrades files of older schema versions in place, without losing data."""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy import Connection, select, update
from sqlalchemy.schema import CreateColumn

from evoengine.documents.bounds import BoundsError, inflate
from evoengine.leaderboard.ranking_view import create_view
from evoengine.leaderboard.schema import EVALUATIONS, LEASES, METADATA, SCHEMA_VERSION, SOURCES, STUDIES
from evoengine.leaderboard.sources import MOST_BYTES, SourceWriter

_LOG: Final = logging.getLogger(__name__)

OLDEST_VERSION: Final = 1
"""Oldest version that can be upgraded."""

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
    has_whole_texts = version <= _LAST_WITH_WHOLE_TEXTS
    if has_whole_texts:
        connection.exec_driver_sql(f"ALTER TABLE {SOURCES.name} RENAME TO {_WHOLE_TEXTS}")
    METADATA.create_all(connection)
    for table in METADATA.sorted_tables:
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
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
    return True


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
