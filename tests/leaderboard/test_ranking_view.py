"""The SQL view ``ranking``: what other programs read is what EvoEngine ranks, and EvoEngine never reads it."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from evoengine.errors import StoreError
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.schema import SCHEMA_VERSION
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Status
from tests.leaderboard.test_leaderboard import GPU, MODEL, duel, evaluation, key, prediction
from tests.leaderboard.test_upgrade import restore, version_of

PLAIN = ("problem", "device", "family", "median_us", "predicted", "champion", "tunables")
"""Columns that the documentation promises first."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two rankings with equal times, equal machine code, failed rows, a replaced, a lost and a pending challenge."""
    path = tmp_path / "leaderboard.db"
    with Leaderboard(path) as board:
        measured, again = board.open_study(key(GPU)), board.open_study(key(GPU, seed=1))
        predicted = board.open_study(key(MODEL, method="model-v4"))
        for number, us in enumerate((5.0, 4.0, 4.0, 6.0, 3.9)):
            board.record(measured, evaluation(number, us, code=f"c{5 - number}"))  # codes are not in the order of ids
        board.record(measured, evaluation(9, None, status=Status.PARITY_FAILED))
        board.record(again, evaluation(3, 5.5, code="c2"))
        board.record(again, evaluation(7, 4.5, code="c5"))
        for number, us in enumerate((14.71, 14.41)):
            board.record(predicted, prediction(number, us, "model-v4"))
        board.record_challenge(measured.scope, 1, None, None)
        board.record_challenge(measured.scope, 2, 1, duel())
        board.record_challenge(measured.scope, 3, 2, duel(accepted=False))
        board.record_challenge(measured.scope, 5, 2, duel(), pending=True)
        board.record_challenge(predicted.scope, 9, None, None)
    return path


def view_of(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of the view, read by another program."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM ranking")]


def test_it_has_the_rows_ranks_and_champions_of_the_leaderboard(file: Path) -> None:
    seen = view_of(file)
    with Leaderboard(file, create=False) as board:
        rows = board.rows()
    assert len(rows) == 9
    assert tuple(name for name in seen[0] if name in PLAIN) == PLAIN
    for line, row in zip(seen, rows, strict=True):
        assert json.loads(line["tunables"]) == row.config
        for name in ("id", "rank", "problem", "device", "family", "median_us", "device_kind", "arch", "method",
                     "registers", "spill_bytes", "smem_bytes", "max_error", "low_us", "high_us", "code_hash",
                     "study_id"):  # fmt: skip
            assert line[name] == getattr(row, name), name
        assert (line["predicted"], line["champion"]) == (int(row.predicted), int(row.champion))
    assert [line["id"] for line in seen if line["champion"]] == [2, 9]
    assert [line["id"] for line in seen if not line["predicted"]][:3] == [5, 2, 3], "of equal times the older is first"


def test_a_url_of_sqlalchemy_reads_it_as_pandas_does(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as connection:
        rows = connection.execute(text("select * from ranking")).mappings().all()
    engine.dispose()
    assert [dict(row) for row in rows] == view_of(file)


def test_damaged_times_get_no_rank_there_either(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        for row_id, value in ((1, "fast"), (2, -1.0), (3, float("inf")), (4, 0)):
            connection.execute("UPDATE evo_evaluations SET median_us = ? WHERE id = ?", (value, row_id))
    with Leaderboard(file, create=False) as board:
        ranked = [row.id for row in board.rows()]
    assert [line["id"] for line in view_of(file)] == ranked


@pytest.mark.parametrize("version", [1, 6])
def test_an_upgrade_adds_it(tmp_path: Path, version: int) -> None:
    old = restore(version, tmp_path)
    with Leaderboard(old, create=False) as board:
        ranked = [(row.id, row.rank) for row in board.rows()]
    assert ranked
    assert [(line["id"], line["rank"]) for line in view_of(old)] == ranked


def test_a_file_of_version_7_is_upgraded(file: Path) -> None:
    """Version 7 differs by the missing view and the missing tables of variants and transcripts only."""
    before = view_of(file)
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP VIEW ranking")
        for table in ("evo_variant_parents", "evo_variants", "evo_attempts", "evo_transcripts"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("PRAGMA user_version = 7")
    copy = file.with_name("copy.db")
    shutil.copyfile(file, copy)
    copy.chmod(0o444)
    with Leaderboard(file, create=False) as board:
        assert board.get(1).evaluation.source
    assert (version_of(file), view_of(file)) == (SCHEMA_VERSION, before)
    with Leaderboard(copy, create=False) as board:
        assert len(board.rows()) == 9


def test_nothing_is_read_through_it(file: Path) -> None:
    def everything() -> list[object]:
        with Leaderboard(file, create=False) as board:
            scope = board.studies()[0].scope
            ids = [row.id for row in board.rows(RowFilter(statuses=()))]
            return [board.rows(), list(board.records(ids)), board.champion(scope), board.leader(scope),
                    board.pending(scope), board.challenges(scope), board.elites(scope), board.counts()]  # fmt: skip

    before = everything()
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP VIEW ranking")
    assert everything() == before


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        (("DROP VIEW ranking", "CREATE VIEW ranking AS SELECT 1 AS id"), "ranking"),
        (("DROP VIEW ranking", "CREATE VIEW ranking AS SELECT * FROM evo_evaluations"), "ranking"),
        (("CREATE VIEW rank AS SELECT 1",), "rank"),
        (("DROP VIEW ranking", "CREATE VIEW RANKING AS {own}"), "RANKING"),
        (("CREATE VIEW other AS {own}",), "other"),
        (("CREATE TRIGGER ranking INSTEAD OF INSERT ON ranking BEGIN DELETE FROM evo_evaluations; END",), "ranking"),
    ],
)
@pytest.mark.parametrize("writable", [True, False])
def test_any_other_view_is_refused(file: Path, statements: tuple[str, ...], named: str, *, writable: bool) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        (own,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'ranking'").fetchone()
        for statement in statements:
            connection.execute(statement.replace("{own}", own.partition(" AS\n")[2]))
    if not writable:
        file.chmod(0o444)
    with pytest.raises(StoreError, match=rf"leaderboard\.db: has the (view|trigger) '{named}'"):
        Leaderboard(file, create=False)
