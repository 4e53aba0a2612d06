"""Doctored files: foreign keys of other tables, other definitions, pages in two places, studies of another device."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from evoengine.errors import StoreError
from evoengine.leaderboard.database import sqlite as sqlite_database
from evoengine.leaderboard.database.connection import connect
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import DType, Problem
from tests.leaderboard.test_leaderboard import MODEL, evaluation, key, prediction
from tests.leaderboard.test_upgrade import restore

METHOD: Final = "model-v4"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A measured study with rows 1 and 2, and a predicted one with rows 3 and 4."""
    path = tmp_path / "board.db"
    with Leaderboard(path) as opened:
        measured, predicted = opened.open_study(key()), opened.open_study(key(MODEL, method=METHOD))
        for number in range(2):
            opened.record(measured, evaluation(number, 5.0 + number), number)
        for number in range(2):
            opened.record(predicted, prediction(number, 15.0 + number, METHOD), number)
        opened.record_challenge(predicted.scope, 3, None, None)
    return path


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        for statement in statements:
            file.execute(statement)


def redefine(path: Path, table: str, old: str, new: str) -> None:
    """Changes the definition of a table, but none of its rows."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA writable_schema=ON")
        file.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, table))
        assert file.execute("SELECT changes()").fetchone() == (1,)


# -- tables of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE x (v REFERENCES evo_schema_version(version_num) ON UPDATE CASCADE, CHECK (v > 1))",
        'CREATE TABLE x (v, FOREIGN KEY (v) REFERENCES "EVO_studies"(id) ON DELETE SET NULL)',
        "CREATE TABLE x (v REFERENCES evo_evaluations)",
    ],
)
def test_a_table_that_follows_rows_of_evoengine_is_refused(board: Path, statement: str) -> None:
    """Its constraints are evaluated with EvoEngine's statements, and no signal ends that of one expression."""
    execute(board, statement)
    with pytest.raises(StoreError, match=r"board\.db: .*table 'x'.*foreign key .*(evo|EVO)_"):
        Leaderboard(board, create=False)


def test_tables_of_the_user_with_constraints_and_keys_among_them_are_accepted(board: Path) -> None:
    execute(
        board,
        "CREATE TABLE mine (id INTEGER PRIMARY KEY, number CHECK (number > 1))",
        "CREATE TABLE more (id REFERENCES mine ON DELETE CASCADE)",
        "INSERT INTO mine VALUES (1, 2)",
        "INSERT INTO more VALUES (1)",
    )
    with Leaderboard(board, create=False) as opened:
        assert len(opened.rows()) == 4


# -- VACUUM after an upgrade ------------------------------------------------------------------------------------------


def share_pages(path: Path, table: str, children: int) -> None:
    """Replaces the root of a table with two levels of pages that name one leaf ``children**2`` times."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode=DELETE")
        (root,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    pages = bytearray(path.read_bytes())
    leaf = len(pages) // size + 1
    pages += pages[(root - 1) * size : root * size]
    pages += interior_page(leaf, children, size)
    pages[(root - 1) * size : root * size] = interior_page(leaf + 1, children, size)
    struct.pack_into(">I", pages, 28, len(pages) // size)
    path.write_bytes(pages)


def interior_page(child: int, children: int, size: int) -> bytes:
    cells = [struct.pack(">IB", child, number) for number in range(1, children)]
    head = struct.pack(">BHHHBI", 5, 0, len(cells), size - 5 * len(cells), 0, child)
    places = b"".join(struct.pack(">H", size - 5 * (number + 1)) for number in range(len(cells)))
    body = b"".join(reversed(cells))
    return (head + places).ljust(size - len(body), b"\0") + body


def test_an_upgrade_does_not_multiply_the_pages_of_other_tables(tmp_path: Path) -> None:
    old = restore(6, tmp_path)
    execute(old, "CREATE TABLE x (p)", *["INSERT INTO x VALUES (zeroblob(1200))"] * 3)
    share_pages(old, "x", 50)
    before = old.stat().st_size
    with Leaderboard(old, create=False) as opened:
        assert len(opened.rows(RowFilter(statuses=()))) == 8
    assert old.stat().st_size < before + 500_000, "50 * 50 leaves of 4096 bytes would be 10 MB"


def test_an_interruption_of_the_last_step_of_an_upgrade_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace interrupts the connection at the beginning of VACUUM, as a signal does later."""

    def interrupted(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
        connection = connect(path, busy_timeout_s)
        connection.set_trace_callback(lambda statement: connection.interrupt() if statement == "VACUUM" else None)
        return connection

    old = restore(6, tmp_path)
    monkeypatch.setattr(sqlite_database, "connect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Leaderboard(old, create=False)
    monkeypatch.undo()
    with Leaderboard(old, create=False) as opened:
        assert len(opened.rows(RowFilter(statuses=()))) == 8, "the upgrade itself is complete"


# -- definitions of EvoEngine's tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        (
            "CREATE UNIQUE INDEX once ON evo_evaluations (code_hash, id)",
            r"evo_evaluations: \(code_hash, id\) is unique",
        ),
        ("CREATE UNIQUE INDEX once ON evo_imports (family)", r"evo_imports: \(family\) is unique"),
    ],
)
def test_a_further_unique_index_is_refused(board: Path, statement: str, columns: str) -> None:
    """Inserts that ignore conflicts would lose rows without an error."""
    execute(board, statement)
    with pytest.raises(StoreError, match=rf"board\.db: is damaged: table {columns}: restore"):
        Leaderboard(board, create=False)


@pytest.mark.parametrize(
    ("table", "old", "new", "reason"),
    [
        (
            "evo_evaluations",
            "median_us FLOAT",
            "median_us TEXT",
            "column median_us has the type 'TEXT' instead of REAL",
        ),
        ("evo_evaluations", "reason TEXT", "reason", "column reason has the type '' instead of TEXT"),
        ("evo_evaluations", "registers INTEGER", "registers INTEGER DEFAULT 7", "column registers has the default 7"),
        ("evo_evaluations", "DEFAULT ''", "DEFAULT 'mma'", "column family has the default 'mma' instead of ''"),
        ("evo_imports", "UNIQUE (problem, config_key)", "UNIQUE (problem, family)", "unique"),
    ],
)
def test_other_types_defaults_and_keys_are_refused(board: Path, table: str, old: str, new: str, reason: str) -> None:
    redefine(board, table, old, new)
    with pytest.raises(StoreError, match=rf"board\.db: is damaged: table {table}: .*{reason}"):
        Leaderboard(board, create=False)


def test_a_newer_version_is_not_called_damaged(board: Path) -> None:
    redefine(board, "evo_evaluations", "median_us FLOAT", "median_us TEXT")
    execute(board, "PRAGMA user_version = 999")
    with pytest.raises(StoreError, match="leaderboard version 999"):
        Leaderboard(board, create=False)


def test_columns_and_indexes_that_change_nothing_are_accepted(board: Path) -> None:
    redefine(board, "evo_evaluations", "median_us FLOAT", "MEDIAN_US double precision")
    execute(
        board,
        "ALTER TABLE evo_evaluations ADD COLUMN mine UNIQUEIDENTIFIER DEFAULT 7",
        "CREATE INDEX mine ON evo_imports (family)",
    )
    with Leaderboard(board, create=False) as opened:
        assert len(opened.rows()) == 4


# -- text that is not UTF-8 -------------------------------------------------------------------------------------------


def test_an_error_of_sqlite_with_a_name_that_is_not_utf8_is_one_line(board: Path) -> None:
    with closing(sqlite3.connect(board, isolation_level=None)) as file:
        file.execute("PRAGMA writable_schema=ON")
        name = "name = CAST(x'61ff9c' AS TEXT), sql = 'CREATE INDEX'"
        file.execute(f"UPDATE sqlite_master SET {name} WHERE name = 'evo_attempts_by_scope'")
    with pytest.raises(StoreError, match=r"board\.db: .*UTF-8"):
        Leaderboard(board, create=False)


# -- studies that contradict their identity ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("device", "'NVIDIA H200'"),
        ("device_kind", "'cuda'"),
        ("arch", "'sm_90'"),
        ("predicted", "0"),
        ("method", "'graph-warm'"),
        ("problem", "'1x1x1x16-fp16'"),
        ("family", "'simt'"),
        ("strategy", "'random'"),
        ("seed", "7"),
        ("space_key", "'other'"),
    ],
)
@pytest.mark.every(2)
def test_a_study_that_contradicts_its_identity_is_refused(
    board: Path, caplog: pytest.LogCaptureFixture, column: str, value: str
) -> None:
    execute(board, f"UPDATE evo_studies SET {column} = {value} WHERE id = 2")
    predicted = key(MODEL, method=METHOD)
    with Leaderboard(board) as opened:
        with pytest.raises(StoreError, match=rf"board\.db: malformed data: study 2: {column}: is .*, but .* by its"):
            opened.open_study(predicted)
        assert [study.id for study in opened.studies()] == [1]
        assert [row.id for row in opened.rows()] == [1, 2]
        assert opened.champion(predicted.scope) is None
        with pytest.raises(StoreError, match="study 2: identity: "):
            opened.get(3)
        assert opened.open_study(key()).id == 1
    assert [record.getMessage().split(": ")[2:4] for record in caplog.records] == [["study 2", "identity"]]


def test_a_study_whose_problem_contradicts_its_key_is_left_out(board: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with Leaderboard(other) as opened:
        opened.open_study(replace(key(), problem=Problem(1, 1, 16, 64, dtype=DType.FP16)))
    execute(
        board,
        f"ATTACH '{other}' AS other",
        "UPDATE evo_studies SET problem_json = (SELECT problem_json FROM other.evo_studies)",
    )
    with Leaderboard(board) as opened:
        assert opened.studies() == []
        with pytest.raises(StoreError, match="study 1: problem_json: "):
            opened.open_study(key())


@pytest.mark.parametrize(("column", "value"), [("predicted", "0"), ("method", "'graph-warm'")])
def test_a_row_that_contradicts_its_study_is_left_out(
    board: Path, caplog: pytest.LogCaptureFixture, column: str, value: str
) -> None:
    execute(board, f"UPDATE evo_evaluations SET {column} = {value} WHERE id = 3")
    with Leaderboard(board) as opened:
        study = opened.open_study(key(MODEL, method=METHOD))
        assert [row.id for row in opened.rows()] == [1, 2, 4]
        assert [stored.id for stored in opened.evaluations(study)] == [4]
        assert [row.id for row in opened.elites(study)] == [4]
        with pytest.raises(StoreError, match=f"row 3: {column}: is "):
            opened.get(3)
    assert [record.getMessage().split(": ")[2:4] for record in caplog.records] == [["row 3", column]]
