"""Settings of SQLite for files of unknown origin: no foreign code runs, and no value is larger than needed."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from evoengine.documents.escaping import printable
from evoengine.errors import StoreError
from evoengine.leaderboard.database.ranking_view import KNOWN_VIEWS

MOST_BYTES: Final = 1 << 26
"""Maximum size of a value or row; the largest source has some 100 KiB."""

_WRITES: Final = (sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE)
_STEPS_BETWEEN_SIGNALS: Final = 100_000
"""Steps of SQLite between two checks for a signal: some milliseconds."""
_DAMAGED_PAGES: Final = "***"
"""Prefix of SQLite's messages about damaged pages, which it reports before those about values."""
_SCHEMA_PAGE: Final = 1
"""Page of the schema itself; a virtual table, view or trigger has page 0."""
_SCHEMA: Final = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master"
_OWN: Final = "evo_"
"""Beginning of the names of EvoEngine's tables."""
_COMPUTED: Final = """\
SELECT 'column', t.name || '.' || c.name FROM sqlite_master AS t, pragma_table_xinfo(t.name) AS c
    WHERE t.type = 'table' AND (c.hidden > 1 OR instr(c.dflt_value, '('))
UNION ALL SELECT 'index', i.name FROM sqlite_master AS i, pragma_index_xinfo(i.name) AS c
    WHERE i.type = 'index' AND c.cid = -2"""
"""Columns and indexes with an expression, whose values may be larger than the file by any factor."""
_LINKED: Final = """\
SELECT t.name, k."table" FROM sqlite_master AS t, pragma_foreign_key_list(t.name) AS k
    WHERE t.type = 'table' AND lower(substr(t.name, 1, 4)) <> 'evo_' AND lower(substr(k."table", 1, 4)) = 'evo_'"""
"""Tables of the user whose rows SQLite searches or changes with each change of a row of EvoEngine's tables."""
_TOKEN: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|\w+|[\s(),.+-]|(?P<other>.)""", re.DOTALL | re.ASCII
)
_ACTING: Final = frozenset(("CHECK", "COLLATE", "CONFLICT", "GENERATED", "AS", "ON", "WHERE", "WITHOUT"))
"""Words of definitions with expressions, and of those that change or lose rows by themselves, such as ON DELETE."""
_STATEMENTS: Final[Mapping[object, tuple[str, ...]]] = {
    "table": ("CREATE TABLE ",),
    "index": ("CREATE INDEX ", "CREATE UNIQUE INDEX "),
}
"""Beginnings of the texts that SQLite itself writes for each type, whatever the user's statement looks like."""
_REFUSED: Final = 100
"""Answer of an authorizer that ends the statement with an error of its own, "authorizer malfunction". That of a denial
is also the error after a stop signal during the call, whose exception ``sqlite3`` discards."""
_DEFENSIVE: Final = (("DEFENSIVE", True), ("TRUSTED_SCHEMA", False), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False))


def harden(connection: sqlite3.Connection) -> None:
    """Restricts what the content of the file can do to this connection.

    Functions in the schema are limited to harmless ones, triggers write nothing, damaged pages are detected when they
    are read, and text that is not UTF-8 is read with replacement characters. A stop signal ends a query of the main
    thread with ``SQLITE_INTERRUPT``, however long it is.
    """
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    connection.set_progress_handler(lambda: 0, _STEPS_BETWEEN_SIGNALS)
    if hasattr(connection, "setconfig"):  # Python 3.12
        for name, value in _DEFENSIVE:
            connection.setconfig(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), value)
    else:
        connection.set_authorizer(_authorize)


def _authorize(action: int, _first: str | None, _second: str | None, _database: str | None, source: str | None) -> int:
    """Denies the writes of triggers: those with the name of a `source`, which statements themselves do not have."""
    return _REFUSED if source is not None and action in _WRITES else sqlite3.SQLITE_OK


def refuse_foreign_code(connection: sqlite3.Connection, path: Path) -> None:
    """Checks that a leaderboard has nothing that would run with its statements: code, or expressions.

    Only ordinary tables, indexes and the view ``ranking`` with EvoEngine's own text are allowed: no triggers, other
    views or virtual tables, no computed columns or defaults, and no index of an expression. A list of forbidden
    types would not suffice: SQLite accepts ``trigger`` also in capitals, as a BLOB and with further text after a NUL.
    EvoEngine's own tables have no constraints with expressions or actions, and none of their pages is used twice, since
    a small file could then have any number of rows. Tables of the user have no foreign keys to EvoEngine's, or
    SQLite would evaluate their constraints with EvoEngine's statements.

    Raises:
        StoreError: It has something else.
    """
    schema = connection.execute(_SCHEMA).fetchall()
    for kind, name, _, root, text in schema:
        if not _is_plain(kind, name, root, text) and not (kind == "view" and (name, text) in KNOWN_VIEWS):
            raise _foreign(path, kind, name, "could change stored rows")
    for kind, name in connection.execute(_COMPUTED):
        raise _foreign(path, kind, name, "computes values")
    for name, parent in connection.execute(_LINKED):
        raise _foreign(path, "table", name, f"has a foreign key to {printable(parent)[:60]}")
    own = [row for row in schema if str(row[2]).lower().startswith(_OWN) and row[0] != "view"]
    for kind, name, _, _, text in own:
        if text is not None and _acts(kind, text):
            raise _foreign(path, kind, name, "could change stored rows", "with a definition that")
    for name in (name for kind, name, *_ in own if kind == "table"):
        if (damage := _page_damage(connection, name)) is not None:
            raise StoreError(f"{path}: is damaged: {printable(damage)[:200]}: restore a copy or give another file")


def has_sound_pages(connection: sqlite3.Connection) -> bool:
    """Returns whether no page of the whole file is used twice, tables of the user included.

    The check evaluates no constraint of these tables; their expressions may take any time.
    """
    connection.execute("PRAGMA ignore_check_constraints=ON")
    try:
        return _page_damage(connection) is None
    finally:
        connection.execute("PRAGMA ignore_check_constraints=OFF")


def _page_damage(connection: sqlite3.Connection, table: str | None = None) -> str | None:
    """Describes the first damage to the pages of a table, or of the whole file."""
    argument = "" if table is None else "('{}')".format(table.replace("'", "''"))
    (damage,) = connection.execute(f"PRAGMA quick_check{argument}").fetchone()
    return " ".join(damage.splitlines()[1:2]) if damage.startswith(_DAMAGED_PAGES) else None


def _foreign(path: Path, kind: object, name: object, harm: str, which: str = "which") -> StoreError:
    what = f"{printable(str(kind))[:60]} '{printable(str(name))[:60]}'"
    return StoreError(
        f"{path}: has the {what}, {which} EvoEngine did not create and which {harm}: remove it with sqlite3, or give "
        "another file"
    )


def _is_plain(kind: object, name: object, root: object, text: object) -> bool:
    """Whether a row of the schema is a table or an index with pages of its own, and with a text that makes no other."""
    if kind not in _STATEMENTS or not isinstance(name, str) or not isinstance(root, int) or root <= _SCHEMA_PAGE:
        return False
    if text is None:  # the index of a UNIQUE or PRIMARY KEY constraint
        return kind == "index" and name.startswith("sqlite_autoindex_")
    return isinstance(text, str) and text.startswith(_STATEMENTS[kind])


def _acts(kind: object, text: str) -> bool:
    """Whether the definition of one of EvoEngine's tables, or of an index of it, has more than columns and keys."""
    tokens = list(_TOKEN.finditer(text))
    allowed = 1 if kind == "index" else 0  # CREATE INDEX name ON table
    return any(token["other"] for token in tokens) or sum(token[0].upper() in _ACTING for token in tokens) != allowed
