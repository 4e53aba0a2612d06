"""Optuna's tables in a leaderboard, against what Optuna itself writes for the same study."""

from __future__ import annotations

import json
import sqlite3
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import optuna
import pytest

from evoengine.errors import StoreError
from evoengine.kernel.compile.cache import DiskCache
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.optuna_tables import installed_tables
from evoengine.search.settings import SearchSettings
from evoengine.search.trial_log import OptunaTrialLog
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import build_space
from tests.search.synthetic import study_key

OWN: Final = ("evo_", "sqlite_", "ix_evo_")
"""How the leaderboard's own tables, and SQLite's, begin."""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> ValidSpace:
    return build_space(tmp_path_factory.mktemp("space"))


def contents(path: Path) -> dict[str, Any]:
    """Every one of Optuna's tables and indices: its definition and its rows."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        foreign = [row for row in found if not row[1].startswith(OWN) and not row[2].startswith(OWN)]
        tables = [name for kind, name, _, _ in foreign if kind == "table"]
        rows = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}
    return {"definitions": sorted(row for row in foreign if row[3]), "rows": rows}


def written_by_optuna(path: Path, study: Study) -> None:
    """The same study, by Optuna's public functions."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    made = optuna.create_study(storage=storage, study_name=study.name, direction="minimize")
    for name, text in (
        ("problem", "1x8x512x64-fp16"),
        ("device", "Synthetic GPU"),
        ("arch", "sm_89"),
        ("times", "us, graph-warm"),
    ):
        made.set_user_attr(f"evoengine:{name}", text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        made.set_metric_names(["us"])
    storage.engine.dispose()


@pytest.mark.parametrize("kept", [False, True])
def test_the_file_holds_what_optuna_would_have_written(tmp_path: Path, space: ValidSpace, kept: bool) -> None:
    cache_dir = tmp_path / "cache" if kept else None
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        study = board.open_study(study_key(SearchSettings(), space))
        for _ in range(2):  # the second finds everything there
            log = OptunaTrialLog(board, study, cache_dir)
            log.open()
            log.close()
        written_by_optuna(tmp_path / "optuna.db", study)
        ours, theirs = contents(board.path), contents(tmp_path / "optuna.db")
    assert ours == theirs
    assert {"studies", "trials", "trial_params", "version_info"} <= ours["rows"].keys()


@pytest.mark.parametrize("missing", ["DROP TABLE alembic_version", "DELETE FROM alembic_version", "DROP TABLE trials"])
def test_tables_whose_making_was_killed_are_completed(tmp_path: Path, space: ValidSpace, missing: str) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        study = board.open_study(study_key(SearchSettings(), space))
        for path in (board.path, tmp_path / "optuna.db"):
            written_by_optuna(path, study)
        with closing(sqlite3.connect(board.path)) as connection:
            connection.execute(missing)
            connection.execute("DELETE FROM alembic_version" if "trials" in missing else "SELECT 1")
            connection.commit()
        log = OptunaTrialLog(board, study)
        log.open()
        log.close()
        assert contents(board.path) == contents(tmp_path / "optuna.db")


def test_two_studies_share_the_tables(tmp_path: Path, space: ValidSpace) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        names = []
        for seed in (0, 1):
            study = board.open_study(study_key(SearchSettings(seed=seed), space))
            log = OptunaTrialLog(board, study)
            log.open()
            log.close()
            names.append(study.name)
        assert optuna.study.get_all_study_names(storage=board.url) == names


def test_a_copy_on_disk_is_taken(tmp_path: Path) -> None:
    made = installed_tables(tmp_path / "first")
    (entry,) = (path for path in (tmp_path / "first").rglob("*") if path.is_file())
    marked = [made.revision, *made.statements, "CREATE TABLE from_the_copy (x)"]
    DiskCache(tmp_path / "second").put(entry.name, (json.dumps(marked).encode(),))
    assert installed_tables(tmp_path / "second").statements[-1] == marked[-1]


def test_a_damaged_copy_is_made_anew(tmp_path: Path) -> None:
    made = installed_tables(tmp_path / "first")
    (entry,) = (path for path in (tmp_path / "first").rglob("*") if path.is_file())
    damaged = tmp_path / "second" / entry.parent.name / entry.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(entry.read_bytes()[:-20])
    assert installed_tables(tmp_path / "second") == made
    assert damaged.read_bytes() == entry.read_bytes()


def test_those_who_come_at_the_same_time_make_them_once(tmp_path: Path) -> None:
    many = 6
    tables, together = installed_tables(None), Barrier(many)

    def make(file: Path, count: int) -> None:
        with closing(sqlite3.connect(file, timeout=60.0, isolation_level="IMMEDIATE")) as connection:
            if count > 1:
                together.wait(60.0)
            tables.make(connection, file)

    with ThreadPoolExecutor(many) as pool:
        list(pool.map(make, [tmp_path / "many.db"] * many, [many] * many))
    make(tmp_path / "one.db", 1)
    assert contents(tmp_path / "many.db") == contents(tmp_path / "one.db")


def test_tables_of_another_optuna_are_refused_and_left_alone(tmp_path: Path, space: ValidSpace) -> None:
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board:
        study = board.open_study(study_key(SearchSettings(), space))
        with closing(board.connect()) as connection:
            other = installed_tables(None)
            for line in other.statements:
                connection.execute(line.replace(other.revision, "v9.9.9.a"))
            connection.commit()
        before = contents(board.path)
        with pytest.raises(StoreError, match=r"revision v9\.9\.9\.a, Optuna .* has v3\.\d\.\d\.a: run 'optuna storage"):
            OptunaTrialLog(board, study).open()
        assert contents(board.path) == before
