"""Damaged and hostile files: bad rows are named and left out, foreign code does not run, nothing is deleted."""

from __future__ import annotations

import json
import signal
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.errors import StoreError
from evoengine.leaderboard.damage import MOST_WARNINGS
from evoengine.leaderboard.database.connection import connect, store_errors
from evoengine.leaderboard.database.read_only import open_read_only
from evoengine.leaderboard.records import LeaseStatus, RowFilter
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, Duel, Problem, Provenance, Status
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.registry import STRATEGIES
from evoengine.search.warmstart.resume import outcomes, start_strategy
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.leaderboard.test_leaderboard import evaluation, key

DAMAGE = [
    ("config_json", "{'A': 1}"),
    ("config_json", "[" * 5000),
    ("config_json", '{"A": 1' + "0" * 5000 + "}"),
    ("config_json", '{"A": 1, "A": 2}'),
    ("config_json", b"\xff\xfe"),
    ("config_json", '{"A": 1}'),
    ("config_key", "0" * 16),
    ("config_json", 7),
    ("status", "excellent"),
    ("status", b"ok"),
    ("median_us", "fast"),
    ("median_us", float("nan")),
    ("median_us", float("inf")),
    ("median_us", -1.0),
    ("median_us", 0),
    ("baseline_us", "x"),
    ("energy_uj", "much"),
    ("registers", "many"),
    ("registers", -1),
    ("family", b"mma"),
    ("created_at", "yesterday"),
    ("created_at", 5),
    ("trial_number", b"7"),
    ("trial_number", "many"),
    ("id", -3),
]


ODD_TIMES = [("samples_json", "[NaN]"), ("samples_json", "[1e999]"), ("stage_seconds_json", '{"compile": 1.7e308}')]
"""Times that are not finite, or are not in another unit: reports divide them, and JSON cannot hold them."""


@pytest.fixture
def board(tmp_path: Path) -> Path:
    path = tmp_path / "board.db"
    with Leaderboard(f"sqlite:///{path}") as opened:
        study = opened.open_study(key())
        for number in range(3):
            opened.record(study, evaluation(number, 5.0 + number), number)
    return path


def execute(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(statement, values)


@pytest.mark.parametrize(("column", "value"), DAMAGE)
@pytest.mark.every(2)
def test_a_damaged_row_does_not_hide_the_others(
    board: Path, caplog: pytest.LogCaptureFixture, column: str, value: object
) -> None:
    execute(board, f"UPDATE evo_evaluations SET {column} = ? WHERE id = 1", value)
    with Leaderboard(f"sqlite:///{board}", create=False) as opened:
        study = opened.studies()[0]
        for _ in range(2):
            assert [row.id for row in opened.rows(RowFilter(statuses=()))] == [2, 3]
            assert [row.id for row in opened.elites(study, 5)] == [2, 3]
            assert [outcome.row_id for outcome in outcomes(opened.evaluations(study))] == [2, 3]
            assert sum(opened.counts().values()) in (2, 3)
            assert set(opened.trial_facts([1, 2, 3, -3])) >= {2, 3}
            assert [record.row.id for record in opened.records([2, 3, *([1] if column != "id" else [])])] == [2, 3]
        new = opened.record(study, evaluation(9, 4.0), 9)
        assert next(iter(opened.rows())).id == new
    named = [record.getMessage() for record in caplog.records]
    assert any("row 1: " in text or "row -3: " in text for text in named)
    assert len(named) <= 3, "each damaged row is named once"
    assert all(text.isprintable() and len(text) < 400 for text in named)
    with closing(sqlite3.connect(board)) as file:
        assert file.execute("SELECT count(*) FROM evo_evaluations").fetchone() == (4,), "nothing is deleted"


def test_warnings_are_few(board: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        for number in range(3, 40):
            opened.record(opened.open_study(key()), evaluation(number, 5.0 + number), number)
        execute(board, "UPDATE evo_evaluations SET registers = -1 WHERE id > 1")
        assert [row.id for row in opened.rows()] == [1]
    assert len(caplog.records) == MOST_WARNINGS + 1


def test_a_damaged_champion_leaves_its_place_to_the_one_before(board: Path) -> None:
    duel = Duel((4.0,), (5.0,), 0.2, 0.2, 0.03, accepted=True)
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        assert opened.record_challenge(study.scope, 2, None, None)
        assert opened.record_challenge(study.scope, 1, 2, duel)
        execute(board, "UPDATE evo_evaluations SET config_json = '' WHERE id = 1")
        champion, leader = opened.champion(study.scope), opened.leader(study.scope)
        assert champion is not None
        assert leader is not None
        assert (champion.id, leader.id) == (2, 2)
        assert opened.record_challenge(study.scope, 3, 2, duel), "a search goes on from the sound leader"
        execute(board, "UPDATE evo_champions SET duel_json = '{' WHERE evaluation_id = 1")
        assert [challenge.evaluation_id for challenge in opened.challenges(study.scope)] == [2, 3]
        execute(board, "UPDATE evo_champions SET evaluation_id = 77, id = 99 WHERE evaluation_id = 1")
        champion = opened.champion(study.scope)
        assert champion is not None
        assert champion.id == 3


@pytest.mark.parametrize("status", ["ok", "parity_failed"])
def test_a_champion_history_names_correct_rows_of_its_own_ranking_only(board: Path, status: str) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        assert opened.record_challenge(study.scope, 2, None, None)
        other = opened.open_study(replace(key(), problem=Problem(1, 1, 16, 32)) if status == "ok" else key())
        foreign = opened.record(other, evaluation(7, 0.5), 7)
        assert opened.record_challenge(study.scope, 1, 2, Duel((4.0,), (5.0,), 0.2, 0.2, 0.03, accepted=True))
        execute(board, "UPDATE evo_champions SET evaluation_id = ? WHERE evaluation_id = 1", foreign)
        execute(board, "UPDATE evo_evaluations SET status = ? WHERE id = ?", status, foreign)
        champion, leader = opened.champion(study.scope), opened.leader(study.scope)
        assert champion is not None
        assert leader is not None
        assert (champion.id, leader.id) == (2, 2)
        assert not any(row.champion for row in opened.rows(RowFilter(statuses=()))), "search and table agree"
        execute(board, "UPDATE evo_champions SET pending = 1 WHERE evaluation_id = ?", foreign)
        marks = {row.id: (row.champion, row.pending) for row in opened.rows()}
        assert marks[2] == (True, False)
        assert marks.get(foreign, (False, False)) == (False, False)


@pytest.mark.parametrize("column", ["config_json", "family", "trial_number"])
def test_a_damaged_lease_of_an_ended_search_takes_no_place_in_the_budget(board: Path, column: str) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        opened.acquire_lease(study, evaluation(20).config, 4, 20)
        execute(board, f"UPDATE evo_claims SET {column} = x'00', owner = 'gone:1:1:x'")
        assert opened.acquire_lease(study, evaluation(21).config, 4, 21) is LeaseStatus.BUDGET_FULL
        assert opened.adopt_orphans(study) == []
        assert opened.acquire_lease(study, evaluation(21).config, 4, 21) is LeaseStatus.GRANTED


def test_a_lease_whose_owner_is_no_text_is_adopted(board: Path) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        opened.acquire_lease(study, evaluation(20).config, 4, 20)
        execute(board, "UPDATE evo_claims SET owner = x'00'")
        assert opened.adopt_orphans(study) == [evaluation(20).config]


def test_parents_that_are_no_keys_are_not_looked_up(board: Path) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        execute(
            board, "UPDATE evo_evaluations SET descent_json = ? WHERE id = 2", '{"move": "x", "parents": ["\\ud800"]}'
        )
        (own,) = opened.get(2).lineage
        assert (own.id, own.parents) == (2, ())


def test_other_tables_are_read_without_their_damaged_rows(board: Path) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        for number in (20, 21):
            opened.acquire_lease(study, evaluation(number).config, 100, number, Provenance("move", ("x",) * 3))
        other = opened.open_study(key(seed=7))
        execute(board, "UPDATE evo_claims SET config_json = 'no' WHERE trial_number = 20")
        execute(board, "UPDATE evo_studies SET problem_json = '{}' WHERE seed = 7")
        execute(board, "UPDATE evo_evaluations SET descent_json = ? WHERE id = 2", json.dumps({"move": 5}))
        assert list(opened.leased(study)) == [21]
        assert opened.adopt_orphans(study) == []
        assert [found.id for found in opened.studies()] == [study.id]
        assert opened.get(2).lineage == ()
        assert other.id == 2


@pytest.mark.parametrize(("column", "value"), ODD_TIMES)
def test_records_with_impossible_times_are_left_out(board: Path, column: str, value: str) -> None:
    execute(board, f"UPDATE evo_evaluations SET {column} = ? WHERE id = 1", value)
    with Leaderboard(f"sqlite:///{board}", create=False) as opened:
        assert [record.row.id for record in opened.records([1, 2, 3])] == [2, 3]


def bomb(size: int = 1 << 30) -> bytes:
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def test_compressed_data_has_a_limit(board: Path) -> None:
    execute(board, "UPDATE evo_templates SET body_zlib = ?", bomb(1 << 26))
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        with pytest.raises(StoreError, match=r"row 1: .*8 MiB"):
            opened.get(1)
        opened.append_journal(study, [b"{}"])
        for blob, reason in ((bomb(1 << 26), "more than 8 MiB"), (b"x", "zlib"), ("text", "zlib"), (b"", "complete")):
            execute(board, "UPDATE evo_optuna_journal SET entry_zlib = ?", blob)
            with pytest.raises(StoreError, match=reason):
                list(opened.journal(study))
        execute(board, "UPDATE evo_optuna_journal SET entry_zlib = ?", zlib.compress(b"{}"))
        opened.append_journal(study, [b"{}"])
        execute(board, "UPDATE evo_optuna_journal SET entry_zlib = ? WHERE number = 1", bomb(1 << 26))
        assert next(opened.journal(study)) == b"{}", "an entry is unpacked only after the ones before it were used"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER evil AFTER INSERT ON evo_evaluations BEGIN DELETE FROM evo_evaluations; END",
        "CREATE VIEW studies AS SELECT 1",
        "CREATE VIRTUAL TABLE evil USING fts5(a)",
    ],
)
def test_a_file_with_foreign_code_is_refused(board: Path, statement: str) -> None:
    execute(board, statement)
    with pytest.raises(StoreError, match=r"board\.db: has the (trigger|view|table) '(evil|studies)'"):
        Leaderboard(f"sqlite:///{board}", create=False)


TRIGGER = "CREATE TRIGGER evil AFTER INSERT ON evo_imports BEGIN UPDATE evo_evaluations SET median_us = 0.001; END"
VIEW = (
    "CREATE VIEW evil AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n "
    "WHERE i < 0"
)
"""A view whose query never ends."""
VIRTUAL = "CREATE VIRTUAL TABLE evil USING fts5(a)"


@pytest.mark.parametrize(
    ("statement", "disguise"),
    [
        (TRIGGER, "type = 'TRIGGER'"),
        (TRIGGER, "type = CAST('trigger' AS BLOB)"),
        (TRIGGER, "type = 'trigger' || char(0) || 'x'"),
        (VIEW, "type = 'VIEW'"),
        (VIEW, "type = 'View', sql = replace(sql, 'VIEW', '/**/ view')"),
        (VIRTUAL, "sql = replace(sql, ' VIRTUAL', '/**/VIRTUAL')"),
        (VIRTUAL, "sql = replace(sql, ' VIRTUAL', '/**/VIRTUAL'), rootpage = 2"),
        (VIRTUAL, "type = 'TABLE', sql = replace(sql, 'CREATE ', 'create' || char(10))"),
    ],
)
def test_foreign_code_in_disguise_is_refused(board: Path, statement: str, disguise: str) -> None:
    """SQLite reads these texts and types as the plain ones, as the first statement shows."""
    with closing(sqlite3.connect(board, isolation_level=None)) as file:
        file.execute(statement)
        file.execute("PRAGMA writable_schema=ON")
        file.execute(f"UPDATE sqlite_master SET {disguise} WHERE name = 'evil'")
    execute(board, "SELECT count(*) FROM evo_imports")
    with pytest.raises(StoreError, match=r"board\.db: has the .* 'evil'"):
        Leaderboard(f"sqlite:///{board}", create=False)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE evo_imports ADD COLUMN evil TEXT AS (hex(zeroblob(30000000)))",
        "CREATE TABLE evil (id, evil DEFAULT (hex(zeroblob(30000000))))",
        "CREATE INDEX evil ON evo_imports (hex(zeroblob(30000000 + id)))",
    ],
)
def test_expressions_in_a_schema_are_refused(board: Path, statement: str) -> None:
    """Their values need no space in the file, and any amount of memory."""
    execute(board, statement)
    with pytest.raises(StoreError, match=r"board\.db: has the (column|index) '[a-z_.]*evil', .* computes values"):
        Leaderboard(f"sqlite:///{board}", create=False)


def test_tables_and_indexes_of_the_user_and_of_sqlite_are_accepted(board: Path) -> None:
    for statement in (
        "CREATE TABLE IF NOT EXISTS mine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE)",
        "create unique index mine_by_name on mine (name) where name is not null",
        'CREATE TABLE "copy of rows" AS SELECT * FROM evo_evaluations',
        "ALTER TABLE mine RENAME TO 'my table'",
        "CREATE TABLE bare (id TEXT PRIMARY KEY) WITHOUT ROWID",
        "ANALYZE",
    ):
        execute(board, statement)
    with Leaderboard(f"sqlite:///{board}", create=False) as opened:
        assert len(opened.rows()) == 3


def test_a_trigger_writes_nothing(board: Path) -> None:
    """The second layer, for code that the check of the schema would miss."""
    execute(board, TRIGGER)
    with closing(connect(board, 1.0)) as connection:
        with suppress(
            sqlite3.DatabaseError
        ):  # before Python 3.12 the statement fails; since then the trigger is ignored
            connection.execute("INSERT INTO evo_imports SELECT 1, '', '', '', '', 1.0, 1, '', '', ''")
        assert connection.execute("SELECT min(median_us) FROM evo_evaluations").fetchone() == (5.0,)


def test_connections_are_restricted(board: Path) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened, closing(opened.connect()) as connection:
        assert_restricted(connection)
    with closing(open_read_only(board).connect(1.0)) as connection:
        assert_restricted(connection)


def assert_restricted(connection: sqlite3.Connection) -> None:
    assert connection.execute("PRAGMA trusted_schema").fetchone() == (0,)
    assert connection.execute("PRAGMA cell_size_check").fetchone() == (1,)
    with pytest.raises(sqlite3.DataError, match="too big"):
        connection.execute("SELECT zeroblob(100000000)").fetchone()


def test_a_signal_ends_a_query_that_never_ends(board: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from evoengine.leaderboard.database.connection import connect, store_errors\n"
        "path = Path(sys.argv[1])\n"
        "with store_errors(path):\n"
        "    connection = connect(path, 1.0)\n"
        "    print('ready', flush=True)\n"
        "    connection.execute('WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT sum(i) FROM n')\n"
    )
    words = [sys.executable, "-c", script, str(board)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    assert errors.splitlines()[-1] == "KeyboardInterrupt"


def damaged_source(file: sqlite3.Connection) -> None:
    file.execute("UPDATE evo_sources SET text_zlib = x'00' WHERE rowid = 1")


def damaged_nothing(_file: sqlite3.Connection) -> None:
    pass


@pytest.mark.parametrize("damage", [damaged_source, damaged_nothing])
def test_an_upgrade_keeps_damaged_sources(tmp_path: Path, damage: Callable[[sqlite3.Connection], None]) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript((Path(__file__).parent / "version_6.sql").read_text())
        damage(file)
        file.commit()
        before = file.execute("SELECT count(*) FROM evo_sources").fetchone()[0]
    with Leaderboard(f"sqlite:///{path}", create=False) as opened:
        assert opened.rows(RowFilter(statuses=()))
        assert opened.has_table("evo_sources_version_6") == (damage is damaged_source)
    with closing(sqlite3.connect(path)) as file:
        after = file.execute("SELECT count(*) FROM evo_sources").fetchone()[0]
    assert after == before - (damage is damaged_source)


@pytest.mark.parametrize("versions", [("zzz",), ("0010", "0011"), ("0011", "zzz"), (b"zz",), ("",)], ids=repr)
def test_a_damaged_version_of_the_schema_is_refused(board: Path, versions: tuple[object, ...]) -> None:
    execute(board, "DELETE FROM evo_schema_version")
    for version in versions:
        execute(board, "INSERT INTO evo_schema_version VALUES (?)", version)
    execute(board, "PRAGMA user_version = 10")
    with pytest.raises(StoreError, match=r"board\.db: malformed data: evo_schema_version: "):
        Leaderboard(board, create=False)


@pytest.mark.parametrize("value", [b"7", "many"])
def test_a_damaged_trial_number_does_not_end_a_search(board: Path, value: object) -> None:
    execute(board, "UPDATE evo_evaluations SET trial_number = ? WHERE id = 1", value)
    with Leaderboard(board) as opened:
        study = opened.open_study(key())
        opened.acquire_lease(study, evaluation(20, 5.0).config, 100, 20)
        execute(board, "UPDATE evo_claims SET trial_number = ?", value)
        opened.record(study, evaluation(9, 4.0), 2)
        assert [stored.trial_number for stored in opened.evaluations(study)] == [1, 2, 3]
        with pytest.raises(StoreError, match="row 1: trial_number: "):
            opened.get(1)


def test_an_ok_row_needs_a_time(board: Path) -> None:
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        opened.record(study, replace(evaluation(5, 1.0), status=Status.TIMEOUT, timing=None), 5)
        assert len(opened.rows(RowFilter(statuses=()))) == 4


def test_a_search_ignores_configs_that_its_space_does_not_have(board: Path, caplog: pytest.LogCaptureFixture) -> None:
    space = find_space("scalar").build(Problem(1, 1, 32, 64), get_target("l4"))
    with Leaderboard(f"sqlite:///{board}") as opened:
        study = opened.open_study(key())
        row = opened.record(study, replace(evaluation(9, 4.0), config=Config.of("scalar", {"X": "y"})), 9)
        for strategy in STRATEGIES:
            assert start_strategy(SearchSettings(budget=9, strategy=strategy), space, opened, study, log_trials=False)
    assert f"{row}]" in caplog.text


@pytest.mark.parametrize(
    ("table", "old", "new"),
    [
        ("evo_evaluations", "REFERENCES evo_studies (id)", "REFERENCES evo_studies (id) ON DELETE CASCADE"),
        ("evo_claims", "REFERENCES evo_studies (id)", "REFERENCES evo_studies (id) on/**/update set null"),
        ("evo_imports", "PRIMARY KEY (id)", "PRIMARY KEY (id), CHECK (hex(zeroblob(30000000)) != 'x')"),
        ("evo_imports", "PRIMARY KEY (id)", "PRIMARY KEY (id), UNIQUE (id) ON CONFLICT IGNORE"),
        ("evo_imports", "PRIMARY KEY (id)", "PRIMARY KEY (id) cHeCk(1)"),
    ],
)
def test_definitions_that_lose_or_compute_something_are_refused(board: Path, table: str, old: str, new: str) -> None:
    with closing(sqlite3.connect(board, isolation_level=None)) as file:
        file.execute("PRAGMA writable_schema=ON")
        file.execute("UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, table))
        assert file.execute("SELECT changes()").fetchone() == (1,)
    with pytest.raises(StoreError, match=rf"has the table '{table}', "):
        Leaderboard(f"sqlite:///{board}", create=False)


def test_a_table_with_another_key_is_refused(board: Path) -> None:
    with closing(sqlite3.connect(board, isolation_level=None)) as file:
        file.execute("PRAGMA writable_schema=ON")
        change = "replace(sql, 'PRIMARY KEY (id)', 'FOREIGN KEY (id) REFERENCES evo_studies (id)')"
        file.execute(f"UPDATE sqlite_master SET sql = {change} WHERE name = 'evo_imports'")
    with pytest.raises(StoreError, match="table evo_imports"):
        Leaderboard(f"sqlite:///{board}", create=False)


def test_pages_that_belong_to_two_places_are_refused(board: Path) -> None:
    """A small file has any number of rows so; sorting them would fill the disk."""
    with closing(sqlite3.connect(board)) as file:
        file.execute("PRAGMA journal_mode=DELETE")
        (root,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = 'evo_evaluations'").fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    pages = bytearray(board.read_bytes())
    leaf = len(pages) // size + 1
    pages += pages[(root - 1) * size : root * size]
    children = [struct.pack(">IB", leaf, number) for number in range(1, 100)]
    head = struct.pack(">BHHHBI", 5, 0, len(children), size - 5 * len(children), 0, leaf)
    places = b"".join(struct.pack(">H", size - 5 * (number + 1)) for number in range(len(children)))
    body = b"".join(reversed(children))
    pages[(root - 1) * size : root * size] = (head + places).ljust(size - len(body), b"\0") + body
    struct.pack_into(">I", pages, 28, len(pages) // size)
    board.write_bytes(pages)
    execute(board, "SELECT 1")
    with pytest.raises(StoreError, match=r"damaged.*tree"):
        Leaderboard(f"sqlite:///{board}", create=False)


def test_a_stop_signal_while_an_access_is_authorised_is_an_interruption() -> None:
    """``sqlite3`` discards the exception and denies the access."""

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.set_authorizer(stop)
        with pytest.raises(KeyboardInterrupt), store_errors("board.db"):
            connection.execute("SELECT 1")
