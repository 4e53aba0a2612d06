"""Brings the file of an older version up to date: nothing is lost, columns are added."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select, update
from sqlalchemy.schema import CreateColumn

from evoengine.leaderboard.schema import EVALUATIONS, LEASES, METADATA, SCHEMA_VERSION, STUDIES

OLDEST_VERSION: Final = 1
"""Oldest version that can be brought up to date."""


def upgrade(connection: Connection) -> None:
    """Adds the tables and columns that a file lacks, inside a transaction that holds the write lock.

    Another process may have done it in the meantime; then there is nothing to do.
    """
    if connection.exec_driver_sql("PRAGMA user_version").scalar_one() == SCHEMA_VERSION:
        return
    METADATA.create_all(connection)
    for table in METADATA.sorted_tables:
        present = {row[1] for row in connection.exec_driver_sql(f"PRAGMA table_info({table.name})")}
        for column in table.columns:
            if column.name not in present:
                definition = CreateColumn(column).compile(connection)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {definition}")
    for table in (EVALUATIONS, LEASES):  # until version 2 a study had one family, and only its own row named it
        family = select(STUDIES.c.family).where(STUDIES.c.id == table.c.study_id).scalar_subquery()
        connection.execute(update(table).where(table.c.family == "").values(family=family))
    connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA_VERSION}")
