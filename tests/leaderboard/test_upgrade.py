"""Upgrade of files of older schema versions: nothing is lost, and their studies continue.

``version_1.sql`` is a dump of a file of version 1: a study of four evaluations with a champion and its Optuna trials,
and a second study with two leases of a dead process. ``version_2.sql``: a study of eight evaluations, some failed, with
three champions and their duels, and again a second study. ``version_3.sql`` adds notes, energy and trial numbers,
``version_5.sql`` provenance, ``version_6.sql`` a hardware profile and sources that share their body.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from evoengine.errors import StoreError
from evoengine.leaderboard.records import RowFilter
from evoengine.leaderboard.schema import SCHEMA_VERSION
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, HardwareProfile, KernelCounters
from evoengine.search.settings import SearchSettings
from tests.search.landscape import build_space, true_us
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, open_search

ROOT = Path(__file__).parents[2]
EVALUATIONS = {1: 4, 2: 8, 3: 8, 5: 8, 6: 8}
"""Evaluations in the first study of each dump."""


def restore(version: int, folder: Path) -> Path:
    """Restores the file of a dump."""
    path = folder / f"version_{version}.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(Path(__file__).with_name(f"version_{version}.sql").read_text())
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return restore(1, tmp_path)


def rows_in(path: Path, table: str) -> list[dict[str, object]]:
    """Returns the rows of a table in the file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]


def packed(row: dict[str, object]) -> bytes:
    """Returns a source as files up to version 6 store it: one zlib stream."""
    text = row["text_zlib"]
    assert isinstance(text, bytes)
    return text


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize("version", EVALUATIONS)
def test_nothing_is_lost(tmp_path: Path, version: int) -> None:
    old = restore(version, tmp_path)
    tables = ("evo_studies", "evo_evaluations", "evo_claims", "evo_champions", "trials", "trial_params")
    before = {table: rows_in(old, table) for table in tables}
    assert (version_of(old), len(before["evo_evaluations"])) == (version, EVALUATIONS[version])
    sources = {row["source_hash"]: zlib.decompress(packed(row)).decode() for row in rows_in(old, "evo_sources")}
    Leaderboard(f"sqlite:///{old}", create=False).close()
    assert version_of(old) == SCHEMA_VERSION
    with Leaderboard(f"sqlite:///{old}", create=False) as board:
        stored = [board.get(row).evaluation for row in range(1, EVALUATIONS[version] + 1)]
    assert {one.source_hash: one.source for one in stored if one.source} == sources
    assert len(rows_in(old, "evo_sources")) == len(sources)
    for table, rows in before.items():
        after = rows_in(old, table)
        assert [{name: row[name] for name in rows[0]} for row in after] == rows, table


def test_rows_have_their_family(old: Path) -> None:
    with Leaderboard(f"sqlite:///{old}", create=False) as board:
        first, second = board.studies()
        stored = board.evaluations(first)
        assert [entry.evaluation.config.family for entry in stored] == ["synthetic"] * 4
        for entry in stored:
            assert entry.evaluation.timing is not None
            assert entry.evaluation.timing.median_us == true_us(entry.evaluation.config)
        assert len(board.rows(RowFilter(family="synthetic"))) == 4
        assert board.rows(RowFilter(family="other")) == []
        champion = board.champion(first.scope)
        assert champion is not None
        assert (champion.id, champion.family, champion.rank) == (1, "synthetic", 1)
        whole = board.get(1).evaluation
        assert whole == replace(stored[0].evaluation, source=whole.source)
        assert whole.source.startswith("// ")
        adopted = board.adopt_orphans(second)
        assert len(adopted) == 2
        assert all(isinstance(config, Config) and config.family == "synthetic" for config in adopted)


def test_telemetry_and_energy_of_version_2_are_none(tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{restore(2, tmp_path)}", create=False) as board:
        study, _ = board.studies()
        timed = [entry.evaluation.timing for entry in board.evaluations(study) if entry.evaluation.timing is not None]
        assert len(timed) == 6
        assert all((timing.telemetry, timing.energy_uj) == (None, None) for timing in timed)
        duels = [challenge.duel for challenge in board.challenges(study.scope)]
        assert duels[0] is None
        assert all(duel is not None and duel.accepted and duel.telemetry is None for duel in duels[1:])
        assert {len(duel.challenger_us) for duel in duels if duel is not None} == {9}


def test_notes_and_numbers_of_version_3_are_kept_and_provenance_is_unknown(tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{restore(3, tmp_path)}", create=False) as board:
        study, other = board.studies()
        assert sorted(entry.trial_number or 0 for entry in board.evaluations(study)) == list(range(8))
        assert board.get(2).evaluation.notes == ("a note",)
        assert all(board.get(row).lineage[0].descent is None for row in range(1, 9))
        assert len(board.get(8).lineage) == 1
        assert sorted(board.leased(other)) == []
        assert len(board.adopt_orphans(other)) == 2


def test_provenance_of_version_5_is_kept_and_profiles_can_be_added(tmp_path: Path) -> None:
    with Leaderboard(f"sqlite:///{restore(5, tmp_path)}", create=False) as board:
        kin = [board.get(row).lineage[0] for row in range(2, 9)]
        assert all(one.descent is not None for one in kin)
        assert board.profiles(range(1, 9)) == {}
        counters = KernelCounters("k", {"sm__cycles_active.sum": 2.0}, {"sm__cycles_active.sum": "cycle"})
        counted = HardwareProfile(
            (counters,), "NVIDIA H200", "Nsight Compute", "c0de", datetime.fromisoformat("2026-01-02T03:04:05")
        )
        board.add_profile(3, counted)
        assert board.profiles(range(1, 9)) == {3: counted}
        board.add_profile(3, replace(counted, tool="a newer one"))
        assert board.profiles([3])[3].tool == "a newer one"
        assert board.get(3).profile == board.profiles([3])[3]


def stored_objects(path: Path) -> list[str]:
    """Returns the names of the tables and indexes that have pages of their own."""
    with closing(sqlite3.connect(path)) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE rootpage > 0")]


def test_sources_of_version_6_share_their_body_and_the_file_shrinks(tmp_path: Path) -> None:
    old = restore(6, tmp_path)
    before, objects = old.stat().st_size, len(stored_objects(old))
    with Leaderboard(f"sqlite:///{old}", create=False) as board:
        profile = board.get(3).profile
        sources = [board.get(row).evaluation.source for row in range(1, 9)]
    assert profile is not None
    assert profile.launches[0].values == {"sm__cycles_active.sum": 2.0}
    shared = [row for row in rows_in(old, "evo_templates") if row["prologue_zlib"] != zlib.compress(b"")]
    assert len(shared) == 1
    assert sum("struct Cfg" in source for source in sources) == 3
    added = len(stored_objects(old)) - objects
    assert 0 < added < 20
    schema = 2  # pages of the new tables' statements
    assert old.stat().st_size <= before + (added + schema) * 4096, "a page for each new table and index"
    with closing(sqlite3.connect(old)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)


@pytest.mark.parametrize(("version", "seed"), [(1, 0), (2, 5), (3, 9), (5, 9), (6, 9)])
@pytest.mark.every(2)
def test_the_study_continues(tmp_path: Path, version: int, seed: int) -> None:
    space = build_space(tmp_path)
    with Leaderboard(f"sqlite:///{restore(version, tmp_path)}") as board:
        settings = SearchSettings(budget=12, seed=seed)
        search, study = open_search(board, space, settings, SyntheticCompiler(), SyntheticExaminer())
        assert study.id == 1
        result = search.run()
        assert (result.progress.evaluated, result.progress.new) == (12, 12 - EVALUATIONS[version])
        assert len({entry.evaluation.config for entry in board.evaluations(study)}) == 12


OPEN = "import sys; from evoengine.leaderboard.store import Leaderboard; Leaderboard(sys.argv[1]).close()"


def test_several_processes_may_upgrade_a_file_at_once(old: Path) -> None:
    command = [sys.executable, "-c", OPEN, f"sqlite:///{old}"]
    processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert (version_of(old), len(rows_in(old, "evo_evaluations"))) == (SCHEMA_VERSION, 4)


@pytest.mark.parametrize("version", EVALUATIONS)
def test_a_new_file_has_the_same_tables(tmp_path: Path, version: int) -> None:
    old = restore(version, tmp_path)
    Leaderboard(f"sqlite:///{old}").close()
    Leaderboard(f"sqlite:///{tmp_path / 'new.db'}").close()

    def columns(path: Path, table: str) -> set[tuple[object, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return {row[1:] for row in connection.execute(f"PRAGMA table_info({table})")}

    for table in (
        "evo_studies",
        "evo_evaluations",
        "evo_claims",
        "evo_champions",
        "evo_sources",
        "evo_templates",
        "evo_variants",
        "evo_variant_parents",
        "evo_attempts",
        "evo_profiles",
    ):
        assert columns(old, table) == columns(tmp_path / "new.db", table)


def test_a_version_that_is_too_old_is_refused(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("PRAGMA user_version = 0")
    copy = old.with_name("copy.db")
    shutil.copy(old, copy)
    with pytest.raises(StoreError, match="version 0"):
        Leaderboard(f"sqlite:///{old}")
    assert old.read_bytes() == copy.read_bytes()
