"""Content of a folder before and after a call: what must still be there, and what must not have come."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SQLITE: Final = b"SQLite format 3\0"
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database."""


@dataclass(frozen=True)
class Snapshot:
    """Files by name, with their bytes; folders and links have a description instead."""

    entries: dict[str, bytes]

    def changes(self, after: Snapshot, *, refused: bool) -> Iterator[str]:
        """Yields what a call lost or left behind.

        Args:
            after: Snapshot after the call.
            refused: Whether the call ended with an error, so that it may not have written anything.
        """
        for name, content in self.entries.items():
            if name not in after.entries:
                if not name.endswith(_BESIDE):
                    yield f"{name} is gone"
            elif after.entries[name] != content and not name.endswith(_BESIDE):
                yield from _difference(name, content, after.entries[name], refused=refused)
        if refused:
            yield from (f"left {name} behind" for name in sorted(after.entries.keys() - self.entries.keys()))


def take_snapshot(folder: Path) -> Snapshot:
    """Reads all files of a folder."""
    return Snapshot({str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*"))})


def _content(path: Path) -> bytes:
    if path.is_symlink():
        return b"link to " + bytes(path.readlink())
    if path.is_dir():
        return b"folder"
    try:
        return path.read_bytes()
    except PermissionError:
        return b"unreadable"


def _difference(name: str, before: bytes, after: bytes, *, refused: bool) -> Iterator[str]:
    """Yields how a file changed, if that is no harmless change of a database's form."""
    rows = _rows(before) if before.startswith(_SQLITE) else None
    if rows is None:
        yield f"{name} was changed"
        return
    now = _rows(after)
    if now is None:
        yield f"{name} can no longer be read"
        return
    lost = rows - now
    if lost:
        yield f"{name} lost {sum(lost.values())} rows, such as {str(next(iter(lost)))[:80]}"
    elif refused and now - rows:
        yield f"{name} got {sum((now - rows).values())} rows by a call that failed"


def _rows(content: bytes) -> Counter[tuple[str, str]] | None:
    """All rows of a database; None if SQLite cannot read them."""
    with tempfile.TemporaryDirectory() as folder, suppress(sqlite3.Error, OverflowError):
        path = Path(folder) / "copy.db"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as connection:
            connection.text_factory = bytes
            names = [row[0].decode("utf-8", "replace") for row in connection.execute(_TABLES)]
            return Counter((name, repr(row)) for name in names for row in _table(connection, name))
    return None


_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"


def _table(connection: sqlite3.Connection, name: str) -> list[tuple[object, ...]]:
    quoted = name.replace('"', '""')
    return connection.execute(f'SELECT * FROM "{quoted}"').fetchall()
