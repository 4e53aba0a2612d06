"""A leaderboard on a real PostgreSQL server: the same answers as from a file, several coordinators, dead ones, copies.

The server is that of the system's package ``postgresql`` (Debian: ``apt-get install postgresql``), started by
``tests/postgres.py`` in a folder of its own and stopped at the end; without it or psycopg these tests are skipped.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect

from evoengine.errors import StoreError
from evoengine.leaderboard.copying import copy_leaderboard
from evoengine.leaderboard.database.migrations import upgrade_to_newest
from evoengine.leaderboard.records import LeaseStatus, RowFilter, utc_now
from evoengine.leaderboard.schema import METADATA, SCHEMA_VERSION
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Provenance, Status
from tests.leaderboard.test_leaderboard import GPU, MODEL, ROOT, config, duel, evaluation, key, prediction
from tests.leaderboard.test_upgrade import restore
from tests.postgres import PASSWORD, Server

EPOCH = utc_now()


def fill(where: str | Path) -> None:
    """Two rankings with failures, equal code, provenance, notes, energy, NaN, and won, lost and pending challenges."""
    with Leaderboard(where) as board:
        measured, predicted = board.open_study(key(GPU)), board.open_study(key(MODEL, seed=2**40, method="model-v4"))
        for number, us in enumerate((5.0, 4.0, 4.0, 6.0, 3.9)):
            board.acquire_lease(measured, config(number), 100, number, Provenance("mutation", (config(0).key,)))
            board.record(measured, evaluation(number, us, code=f"c{number % 4}"))
        broken = evaluation(9, None, status=Status.PARITY_FAILED)
        assert broken.verdict is not None
        board.record(measured, replace(broken, verdict=replace(broken.verdict, max_error=float("inf"))), 77)
        board.record(measured, evaluation(8, None, status=Status.COMPILE_FAILED))
        board.record(predicted, prediction(1, 14.5, "model-v4"))
        board.set_energy(1, 12.5)
        board.add_note(2, "a note – ü")
        board.append_journal(measured, [b'{"op": 1}', b'{"op": 2}'])
        board.record_challenge(measured.scope, 1, None, None)
        board.record_challenge(measured.scope, 2, 1, duel())
        board.record_challenge(measured.scope, 3, 2, duel(accepted=False))
        board.record_challenge(measured.scope, 5, 2, duel(), pending=True)


def content(where: str | Path) -> list[object]:
    """Everything that the store returns, without the times at which it was stored."""
    with Leaderboard(where, create=False) as board:
        studies = board.studies()
        scope = studies[0].scope
        rows = board.rows(RowFilter(statuses=()))
        records = [board.get(row.id) for row in rows]
        return [
            [study.key for study in studies],
            [replace(row, created_at=EPOCH) for row in rows],
            [(one.evaluation, one.trial_number, one.lineage, len(one.challenges)) for one in records],
            [(one.evaluation_id, one.champion_id, one.accepted, one.pending, one.duel)
             for one in board.challenges(scope)],
            [getattr(board.champion(scope), "id", None), getattr(board.leader(scope), "id", None)],
            [row.id for row in board.pending(scope)], [row.id for row in board.elites(scope)],
            board.counts(), [board.evaluated(study) for study in studies],
            list(board.journal(studies[0])), board.profiles([row.id for row in rows]),
        ]  # fmt: skip


def test_it_answers_as_a_file_does(postgres_url: str, tmp_path: Path) -> None:
    fill(postgres_url)
    fill(tmp_path / "board.db")
    assert content(postgres_url) == content(tmp_path / "board.db")


def test_the_view_ranking_has_the_rows_of_the_leaderboard(postgres: Server, postgres_url: str) -> None:
    fill(postgres_url)
    with Leaderboard(postgres_url, create=False) as board:
        rows = board.rows()
    query = "SELECT id, rank, predicted, champion, median_us, tunables::json ->> 'BLOCK' FROM ranking"
    lines = postgres.query(postgres_url, query)
    assert lines == [
        [str(row.id), str(row.rank), str(int(row.predicted)), str(int(row.champion)), f"{row.median_us:g}",
         str(row.config["BLOCK"])] for row in rows
    ]  # fmt: skip


# -- several coordinators ---------------------------------------------------------------------------------------------

COORDINATOR = """
import sys
from tests.leaderboard.test_leaderboard import *
with Leaderboard(sys.argv[1]) as board:
    study = board.open_study(key())
    print("ready", flush=True)
    sys.stdin.readline()
    mine = number = 0
    while (lease := board.acquire_lease(study, config(number), {budget}, number)) is not LeaseStatus.BUDGET_FULL:
        if lease is LeaseStatus.GRANTED:
            board.record(study, evaluation(number, 5.0 + number), number)
            mine += 1
        number += 1
    print(mine)
"""


def start(url: str, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_four_coordinators_share_a_study_without_duplicates(postgres: Server, postgres_url: str) -> None:
    """All four want the same configs with the same trial numbers, as searches with one seed do."""
    budget = 60
    coordinators = [start(postgres_url, COORDINATOR.format(budget=budget)) for _ in range(4)]
    assert [line_of(process) for process in coordinators] == ["ready"] * 4, "they create the tables at the same time"
    for process in coordinators:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    shares = [int(process.communicate()[0]) for process in coordinators]
    assert sum(shares) == budget
    query = "SELECT count(*), count(DISTINCT config_key), count(DISTINCT trial_number) FROM evo_evaluations"
    assert postgres.query(postgres_url, query) == [[str(budget)] * 3]
    assert postgres.query(postgres_url, "SELECT count(*) FROM evo_claims") == [["0"]]


HOLDER = """
import sys
from tests.leaderboard.test_leaderboard import *
board = Leaderboard(sys.argv[1])
study = board.open_study(key())
for number in (1, 2):
    board.acquire_lease(study, config(number), 10, number)
board.record(study, evaluation(1, 5.0), 1)
print("holds", flush=True)
sys.stdin.readline()
"""


def test_the_leases_of_a_killed_coordinator_are_taken_over_by_one_other(postgres_url: str) -> None:
    holder = start(postgres_url, HOLDER)
    assert line_of(holder) == "holds"
    with Leaderboard(postgres_url) as one, Leaderboard(postgres_url) as other:
        study = one.open_study(key())
        assert one.adopt_orphans(study) == [], "its process runs"
        assert one.acquire_lease(study, config(2), 10) is LeaseStatus.TAKEN
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        while not (adopted := one.adopt_orphans(study)):  # the server notices the closed connection in its own time
            pass
        assert (adopted, other.adopt_orphans(study)) == ([config(2)], [])
        assert one.evaluated(study) == 1
        assert one.acquire_lease(study, config(2), 10) is LeaseStatus.GRANTED
        one.record(study, evaluation(2, 4.0), 2)
        assert [stored.trial_number for stored in other.evaluations(study)] == [1, 2]


def test_a_closed_leaderboard_holds_no_lease(postgres_url: str) -> None:
    with Leaderboard(postgres_url) as board:
        study = board.open_study(key())
        board.acquire_lease(study, config(1), 10)
    with Leaderboard(postgres_url) as other:
        assert other.adopt_orphans(study) == [config(1)]


# -- revisions --------------------------------------------------------------------------------------------------------


def test_the_revisions_make_the_tables_of_the_schema(postgres_url: str) -> None:
    Leaderboard(postgres_url).close()
    engine = create_engine(postgres_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


REVISION = """
import sqlalchemy
from alembic import op
revision, down_revision = "9999", "0011"
def upgrade():
    with op.batch_alter_table("evo_studies") as table:
        table.add_column(sqlalchemy.Column("team", sqlalchemy.String, server_default="none", nullable=False))
"""


@pytest.mark.parametrize("backend", ["sqlite", "version 6", "postgresql"])
def test_a_further_revision_upgrades_both_backends(postgres_url: str, tmp_path: Path, backend: str) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "v9999.py").write_text(REVISION)
    where = postgres_url if backend == "postgresql" else f"sqlite:///{tmp_path / 'board.db'}"
    if backend == "version 6":
        where = f"sqlite:///{restore(6, tmp_path)}"
        Leaderboard(where).close()
    else:
        fill(where)
    with Leaderboard(where) as board:
        before = len(board.studies())
    engine = create_engine(where)
    with engine.begin() as connection:
        upgrade_to_newest(connection, (tmp_path / "more",))
        rows = connection.exec_driver_sql("SELECT team FROM evo_studies").fetchall()
        assert [tuple(row) for row in rows] == [("none",)] * before
        assert connection.exec_driver_sql("SELECT version_num FROM evo_schema_version").scalar_one() == "9999"
    engine.dispose()
    if backend == "postgresql":
        with pytest.raises(StoreError, match=rf"\b9999\b.*\b{SCHEMA_VERSION}\b"):
            Leaderboard(where)


# -- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_to_the_server_and_back_is_equal(postgres: Server, postgres_url: str, tmp_path: Path) -> None:
    first, last = tmp_path / "first.db", tmp_path / "last.db"
    fill(first)
    copied = copy_leaderboard(str(first), postgres_url)
    assert (copied.rows["evo_evaluations"], copied.rows["evo_champions"], copied.left_out) == (8, 4, 0)
    copy_leaderboard(postgres_url, str(last))
    assert content(first) == content(postgres_url) == content(last)
    tables = inspect(create_engine(f"sqlite:///{first}")).get_table_names()
    with closing(sqlite3.connect(first)) as one, closing(sqlite3.connect(last)) as two:
        for table in tables:
            query = f"SELECT * FROM {table}"
            assert sorted(one.execute(query), key=str) == sorted(two.execute(query), key=str), table
    with Leaderboard(postgres_url) as board:  # new rows go on after the copied ids
        assert board.record(board.open_study(key()), evaluation(50, 9.0)) == 9
        assert board.open_study(key(seed=5)).id > 2
    with pytest.raises(StoreError, match="holds rows already"):
        copy_leaderboard(str(first), postgres_url)


def test_damaged_rows_are_left_out_of_a_copy(
    postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = tmp_path / "first.db"
    fill(first)
    with closing(sqlite3.connect(first)) as file, file:
        file.execute("UPDATE evo_evaluations SET registers = 'many' WHERE id = 4")
    copied = copy_leaderboard(str(first), postgres_url)
    assert (copied.rows["evo_evaluations"], copied.left_out) == (7, 1)
    assert "damaged row 4 is left out" in caplog.text
    with Leaderboard(postgres_url, create=False) as board:
        assert [row.id for row in board.rows(RowFilter(statuses=())) if row.study_id == 1] == [5, 1, 2, 3, 6, 7]


# -- errors and credentials -------------------------------------------------------------------------------------------


def test_errors_are_one_line_without_credentials(postgres: Server, postgres_url: str) -> None:
    with pytest.raises(StoreError, match="no leaderboard yet") as none_yet:
        Leaderboard(postgres_url, create=False)
    wrong = postgres.url(postgres_url.rpartition("/")[2], "wr0ng-pass")
    with pytest.raises(StoreError, match="check user and password") as refused:
        Leaderboard(wrong)
    with pytest.raises(StoreError, match="no such database") as missing:
        Leaderboard(postgres.url("nowhere"))
    with pytest.raises(StoreError, match="check that the server runs") as stopped:
        Leaderboard(postgres_url.replace(f":{postgres.port}/", ":1/"))
    with pytest.raises(StoreError, match="malformed") as malformed:
        Leaderboard(f"postgresql+psycopg://tester:{PASSWORD}/x@y:z/db")
    with pytest.raises(StoreError, match="not a known driver") as driver:
        Leaderboard(postgres_url.replace("psycopg", "pg8000"))
    for caught in (none_yet, refused, missing, stopped, malformed, driver):
        text = str(caught.value)
        assert "\n" not in text
        assert PASSWORD not in text
        assert "wr0ng-pass" not in text


def test_a_lost_connection_ends_in_one_line_and_nothing_recorded_is_lost(postgres: Server, postgres_url: str) -> None:
    with Leaderboard(postgres_url) as board:
        study = board.open_study(key())
        board.record(study, evaluation(1, 5.0))
        postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()", "postgres")
        with pytest.raises(StoreError, match="everything recorded is kept") as caught:
            board.record(study, evaluation(2, 4.0))
        assert "\n" not in str(caught.value)
        board.record(study, evaluation(3, 4.0))
        assert board.evaluated(study) == 2


def test_text_with_nul_is_stored(postgres_url: str) -> None:
    """PostgreSQL's texts hold no NUL, and a worker's message may."""
    with Leaderboard(postgres_url) as board:
        study = board.open_study(key())
        row_id = board.record(study, replace(evaluation(1, None, status=Status.CRASHED), reason="died: \0 – ü"))
        assert board.get(row_id).evaluation.reason == "died: \N{REPLACEMENT CHARACTER} – ü"
