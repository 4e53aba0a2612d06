"""Damaged leaderboards: bytes, pages, schemas, and values of every column of every table."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Final

from tests.fuzz.cases import PORT, Case
from tests.fuzz.mutation import byte_damage, flipped
from tests.fuzz.samples import BOARD, LANDSCAPE, MEASURED
from tests.fuzz.values import LONG

_READERS: Final = (
    ("leaderboard",),
    ("leaderboard", "--status", "all", "--json"),
    ("leaderboard", "--pareto"),
    ("leaderboard", "show", "1"),
    ("leaderboard", "show", "1", "--json"),
    ("leaderboard", "export", "-o", "out.csv", "--format", "csv", "--status", "all"),
    ("leaderboard", "export", "-o", "out.json"),
    ("leaderboard", "export", "-o", "out", "--format", "rbk"),
    ("leaderboard", "import", "rows.json"),
    ("export", "1", "-o", "out.cu"),
    ("export", "--best", "-o", "out.cu"),
    ("export", "--all", "-o", "out.h", "--format", "header"),
    ("profile", "1", "--ptx"),
    ("report", "-o", "out.html"),
    ("lock", "-o", "out.lock"),
    ("verify", "--device", f"replay:{LANDSCAPE}", "--top", "2"),
    ("search", "--device", f"replay:{LANDSCAPE}", "--budget", "8", "--no-log", "--quiet"),
    ("search", "--device", f"replay:{LANDSCAPE}", "--budget", "8", "--no-log", "--strategy", "tpe"),
    ("dashboard", "--port", PORT),
    ("compare", "--id", "1"),
)
_VALUES: Final[tuple[object, ...]] = (
    *(None, -1, 0, 7, 2**62, 0.5, 1e308, float("inf"), -float("inf"), 5e-324),
    *("", " ", "banana", "x" * LONG, "\x1b[31m\u202e\n", "[]", "{}", "[[]]", "null", "NaN", '{"A": 1}', "=1+1"),
    *('{"a": NaN}', "[" * 3000, '["\\ud800"]', '{"A": 1, "A": 2}', "1" * 5000, "2020-01-01", "2020-01-01 00:00:00.000"),
    *(b"", b"\xff\xfe\x80", bytes(100_000), b"x\x9c", "9999-99-99 99:99:99.999999", "ok", "sm_999", "1x1x32x64"),
)
_SCHEMA: Final = (
    "CREATE TRIGGER evil AFTER INSERT ON evo_evaluations BEGIN DELETE FROM evo_evaluations; END",
    "CREATE VIEW studies AS SELECT 1",
    "CREATE VIEW ranking AS SELECT 1",
    "CREATE VIRTUAL TABLE evil USING fts5(a)",
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 1",
    "PRAGMA user_version = 3",
    "PRAGMA user_version = 6",
    "PRAGMA user_version = 8",
    "PRAGMA user_version = -1",
    "PRAGMA application_id = 0",
    "PRAGMA application_id = 12345",
    "PRAGMA encoding = 'UTF-16'",
    "DROP TABLE evo_studies",
    "DROP TABLE evo_evaluations",
    "DROP TABLE evo_sources",
    "DROP TABLE evo_templates",
    "DROP TABLE evo_champions",
    "DROP TABLE evo_imports",
    "DROP TABLE evo_claims",
    "DROP TABLE evo_profiles",
    "DROP TABLE evo_optuna_journal",
    "DROP INDEX evo_evaluations_by_trial",
    "DELETE FROM evo_studies",
    "DELETE FROM evo_evaluations",
    "DELETE FROM evo_sources",
    "DELETE FROM evo_templates",
    "DELETE FROM evo_champions",
    "ALTER TABLE evo_evaluations DROP COLUMN reason",
    "ALTER TABLE evo_evaluations RENAME COLUMN reason TO x",
    "ALTER TABLE evo_studies RENAME TO x",
    "ALTER TABLE evo_studies ADD COLUMN x",
    "CREATE TABLE more (x)",
    "CREATE TABLE sqlite_stat1x (x)",
    "INSERT INTO evo_champions (scope, evaluation_id, accepted, created_at) VALUES ('x', 999, 1, '2020')",
    "UPDATE evo_evaluations SET study_id = 999",
    "UPDATE evo_evaluations SET id = id + 9223372036854775000",
    "UPDATE evo_sources SET body_hash = 'x'",
)


def database_cases(rng: random.Random, samples: Path) -> Iterator[Case]:
    """Yields calls that read a damaged leaderboard; endless."""
    contents = [(samples / name).read_bytes() for name in (BOARD, MEASURED)]
    streams = [(_bytes(rng, one), _schemas(rng, one), _columns(rng, one)) for one in contents]
    for number in count():
        damaged, schemas, columns = streams[number % 2]
        stream = (damaged, schemas, columns, columns, columns)[number % 5]
        words = rng.choice(_READERS)
        what, content = next(stream)
        yield Case(f"leaderboard {what}, {' '.join(words[:2])}", (*words, "--db", "bad.db"), {"bad.db": content})


def _bytes(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    while True:
        found = list(byte_damage(rng, content))
        found += [(f"header byte {at}", flipped(content, at)) for at in rng.sample(range(16, 100), 6)]
        found += [(f"page byte {at}", flipped(content, at)) for at in rng.sample(range(100, len(content)), 6)]
        page = rng.randrange(1, max(2, len(content) // 4096)) * 4096
        found.append((f"page at {page} zeroed", content[:page] + bytes(4096) + content[page + 4096 :]))
        found.append((f"page at {page} missing", content[:page] + content[page + 4096 :]))
        rng.shuffle(found)
        yield from found


def _schemas(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    while True:
        for statement in rng.sample(_SCHEMA, len(_SCHEMA)):
            yield statement[:60], _changed(content, _executed(statement))
        yield "page size 512", _changed(content, _other_pages)


def _executed(statement: str) -> Callable[[sqlite3.Connection], object]:
    return lambda file: file.execute(statement)


def _other_pages(file: sqlite3.Connection) -> object:
    file.execute("PRAGMA journal_mode=DELETE")
    file.execute("PRAGMA page_size=512")
    return file.execute("VACUUM")


def _columns(rng: random.Random, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields copies with another value in one column, of one row or of all."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy.db"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as file:
            tables = [row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            columns = [
                (table, row[1])
                for table in tables
                if file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for row in file.execute(f"PRAGMA table_info({table})")
            ]
    while True:
        table, column = rng.choice(columns)
        value = rng.choice(_VALUES)
        where = rng.choice(("", "WHERE rowid = (SELECT min(rowid) FROM {table})")).format(table=table)
        what = f"{table}.{column} = {ascii(value)[:20]} {'in one row' if where else 'in all rows'}"
        yield what, _changed(content, _update(f"UPDATE OR REPLACE {table} SET {column} = ? {where}", value))


def _update(statement: str, value: object) -> Callable[[sqlite3.Connection], object]:
    return lambda file: file.execute(statement, (value,))


def _changed(content: bytes, change: Callable[[sqlite3.Connection], object]) -> bytes:
    """Returns a database after a change; unchanged where SQLite refuses it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "copy.db"
        path.write_bytes(content)
        with closing(sqlite3.connect(path, isolation_level=None)) as file, suppress(sqlite3.Error):
            file.execute("PRAGMA journal_mode=WAL")
            file.execute("PRAGMA foreign_keys=OFF")
            change(file)
        return path.read_bytes()
