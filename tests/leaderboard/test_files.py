"""Leaderboards as files: any name, foreign content, media that cannot be written; owners of leases; trial numbers."""

from __future__ import annotations

import os
import socket
import sqlite3
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from evoengine.errors import StoreError
from evoengine.leaderboard.database.connection import database_path, database_url
from evoengine.leaderboard.lease_owner import is_alive, new_owner
from evoengine.leaderboard.records import LeaseStatus
from evoengine.leaderboard.store import Leaderboard
from evoengine.system.processes import process_start
from tests.leaderboard.test_leaderboard import config, evaluation, key

NAMES = ("a?b.db", "a%41.db", "a#b c.db", "file:x.db", "file:x.db?mode=ro", "-dash.db", "sqlite:x.db")


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_path_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with Leaderboard(database_url(name)) as board:
        board.record(board.open_study(key()), evaluation(1, 5.0))
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with Leaderboard(database_url(name), create=False) as board:
        assert len(board.rows()) == 1


def test_a_url_is_the_file_after_its_slashes() -> None:
    assert database_path(database_url("sqlite:////tmp/a%20b#c.db")) == Path("/tmp/a%20b#c.db")
    with pytest.raises(StoreError, match="parameters"):
        database_url("sqlite:///x.db?mode=ro")


# -- what is no leaderboard -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"x", b"x" * 511, b"\0" * 4096, b"SQLite format 3\0"])
@pytest.mark.parametrize("create", [True, False])
def test_a_file_that_is_none_is_refused_and_left_alone(tmp_path: Path, content: bytes, *, create: bool) -> None:
    file = tmp_path / "board.db"
    file.write_bytes(content)
    with pytest.raises(StoreError, match="not an EvoEngine leaderboard"):
        Leaderboard(file, create=create)
    assert file.read_bytes() == content


def test_an_empty_file_is_a_new_leaderboard(tmp_path: Path) -> None:
    file = tmp_path / "board.db"
    file.touch()
    with pytest.raises(StoreError, match="no leaderboard yet"):
        Leaderboard(file, create=False)
    with Leaderboard(file) as board:
        assert board.rows() == []


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="no regular file"):
        Leaderboard(tmp_path / "pipe")


@pytest.mark.parametrize("name", ["board.db-wal", "board.db-shm", "board.db-journal"])
@pytest.mark.parametrize("create", [True, False])
def test_a_pipe_or_a_link_beside_a_leaderboard_is_refused(tmp_path: Path, name: str, *, create: bool) -> None:
    if not create:
        Leaderboard(tmp_path / "board.db").close()
    os.mkfifo(tmp_path / name)  # SQLite would wait for its other end, and no signal would end that
    with pytest.raises(StoreError, match=f"{name}: .*regular file"):
        Leaderboard(tmp_path / "board.db", create=create)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    (tmp_path / "link.db").symlink_to("board.db")  # SQLite looks for the files beside the target
    with pytest.raises(StoreError, match=f"{name}: .*regular file"):
        Leaderboard(tmp_path / "link.db", create=create)


def hot_journal(database: bytes, other: Path) -> bytes:
    """A journal that restores the first page, and that names a super-journal (SQLite's file format, section 3)."""
    magic, page_size = bytes.fromhex("d9d505f920a163d7"), int.from_bytes(database[16:18])
    page, name = database[:page_size], bytes(other)
    header = magic + struct.pack(">5I", 1, 0, len(database) // page_size, 512, page_size)
    record = struct.pack(">I", 1) + page + struct.pack(">I", sum(page[page_size - 200 : 0 : -200]))
    last = struct.pack(">I", 2**30 // page_size + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    return header.ljust(512, b"\0") + record + last


def test_a_journal_does_not_delete_the_file_that_it_names(tmp_path: Path) -> None:
    file, other = tmp_path / "board.db", tmp_path / "other.txt"
    other.write_text("of another program")
    Leaderboard(file).close()
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    journal = hot_journal(file.read_bytes(), other)
    (tmp_path / "board.db-journal").write_bytes(journal)
    with pytest.raises(StoreError, match=r"board\.db-journal: "):
        Leaderboard(file, create=False)
    assert other.exists()
    (tmp_path / "board.db-journal").write_bytes(journal[: -len(bytes(other)) - 20])
    Leaderboard(file, create=False).close()
    assert not (tmp_path / "board.db-journal").exists()


# -- media that cannot be written -------------------------------------------------------------------------------------


@pytest.fixture
def medium(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own; the test makes it read-only."""
    folder = tmp_path / "medium"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


def make_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.mark.parametrize("how", ["closed", "pending", "old"])
def test_a_leaderboard_on_a_read_only_medium_is_read_but_not_written(
    medium: Path, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rows = medium / "board.db", 2
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if how == "old":
        with closing(sqlite3.connect(file)) as connection:
            connection.executescript((Path(__file__).parent / "version_6.sql").read_text())
            (rows,) = connection.execute("SELECT count(*) FROM evo_evaluations").fetchone()
    else:
        with Leaderboard(file) as board:
            board.record(board.open_study(key()), evaluation(1, 5.0))
            board.record(board.open_study(key()), evaluation(2, 6.0))
    keeper = sqlite3.connect(file)
    if how == "pending":  # the second row's status is only in the WAL, whose index is lost with its process
        keeper.execute("PRAGMA wal_autocheckpoint=0")
        keeper.execute("UPDATE evo_evaluations SET reason = 'pending' WHERE id = 2")
        keeper.commit()
        for suffix in ("", "-wal"):
            (medium / f"copy.db{suffix}").write_bytes((medium / f"board.db{suffix}").read_bytes())
        file = medium / "copy.db"
    keeper.close()
    make_read_only(medium)
    before = sorted(path.name for path in medium.iterdir())
    with Leaderboard(file, create=False) as board:
        assert sum(board.counts().values()) == rows
        assert board.get(1).evaluation.source
        if how == "pending":
            assert board.get(2).evaluation.reason == "pending"
        with pytest.raises(StoreError, match="writ"):
            board.open_study(key())
    with pytest.raises(StoreError, match="writing"):
        Leaderboard(file)
    assert sorted(path.name for path in medium.iterdir()) == before
    assert list(tmp_path.glob("evoengine-*")) == [], "the copy is removed"


def test_what_lies_beside_a_link_is_not_copied(medium: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite looks beside the target, and a device beside the link would fill the disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(sqlite3.connect(medium / "board.db")) as connection:
        connection.executescript((Path(__file__).parent / "version_6.sql").read_text())
        (rows,) = connection.execute("SELECT count(*) FROM evo_evaluations").fetchone()
    (medium / "link.db").symlink_to("board.db")
    (medium / "link.db-wal").mkdir()
    make_read_only(medium)
    with Leaderboard(medium / "link.db", create=False) as board:
        assert sum(board.counts().values()) == rows


def test_a_damaged_file_on_a_read_only_medium_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "board.db"
    file.write_bytes(b"SQLite format 3\0" + b"\xff" * 4080)
    monkeypatch.setattr("evoengine.leaderboard.database.sqlite.is_writable", lambda _: False)
    with pytest.raises(StoreError, match=r"board\.db: "):
        Leaderboard(file, create=False)


# -- leases -----------------------------------------------------------------------------------------------------------

HOST, PID = socket.gethostname(), os.getpid()
DEAD = (
    f"{HOST}:-1:5:x",
    f"{HOST}:0:5:x",
    f"{HOST}:1:5:x",
    f"{HOST}:{2**22 + 1}:5:x",
    f"{HOST}:{2**70}:5:x",
    f"{HOST}:{PID}::x",
    f"{HOST}:{PID}:{process_start(PID)}0:x",
    f"elsewhere:{PID}:{process_start(PID)}:x",
    f"{HOST}:self:5:x",
    HOST,
    "",
    ":::",
    "\N{ARABIC-INDIC DIGIT ONE}" * 3,
)


@pytest.mark.parametrize("owner", DEAD, ids=range(len(DEAD)))  # process ids differ between test workers
def test_a_lease_of_a_dead_or_impossible_owner_is_taken_over(tmp_path: Path, owner: str) -> None:
    assert is_alive(new_owner())
    assert not is_alive(owner)
    with Leaderboard(tmp_path / "board.db") as board:
        study = board.open_study(key())
        board.acquire_lease(study, config(1), 10)
        with closing(sqlite3.connect(board.path)) as file, file:
            file.execute("UPDATE evo_claims SET owner = ?", (owner,))
        assert board.adopt_orphans(study) == [config(1)]
        assert board.acquire_lease(study, config(1), 10) is LeaseStatus.GRANTED


def test_a_closed_leaderboard_of_this_process_holds_no_lease(tmp_path: Path) -> None:
    with Leaderboard(tmp_path / "board.db") as board:
        study = board.open_study(key())
        board.acquire_lease(study, config(1), 10)
        with Leaderboard(board.path) as other:
            assert other.adopt_orphans(study) == []
    with Leaderboard(tmp_path / "board.db") as other:
        assert other.adopt_orphans(study) == [config(1)]


# -- trial numbers ----------------------------------------------------------------------------------------------------


def test_trial_numbers_of_concurrent_searches_are_unique(tmp_path: Path) -> None:
    """Each search counts from 0, as searches with the same seed do."""
    with Leaderboard(tmp_path / "board.db") as board:
        study = board.open_study(key())

    def evaluate(first: int) -> None:
        with Leaderboard(tmp_path / "board.db") as own:
            for number in range(12):
                assert own.acquire_lease(study, config(first + number), 100, number) is LeaseStatus.GRANTED
                own.record(study, evaluation(first + number, 5.0), number)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(evaluate, (100, 200, 300)))
    with Leaderboard(tmp_path / "board.db") as board:
        numbers = [stored.trial_number for stored in board.evaluations(study)]
    assert len(set(numbers)) == 36
    assert set(range(12)) <= set(numbers)


def test_a_file_with_repeated_trial_numbers_opens(tmp_path: Path) -> None:
    with Leaderboard(tmp_path / "board.db") as board:
        study = board.open_study(key())
        for number in (1, 2):
            board.record(study, evaluation(number, 5.0), number)
    with closing(sqlite3.connect(tmp_path / "board.db")) as file, file:
        file.execute("UPDATE evo_evaluations SET trial_number = 0")
        file.execute("DROP INDEX evo_evaluations_by_trial")
    with Leaderboard(tmp_path / "board.db") as board:
        study = board.open_study(key())
        assert [stored.trial_number for stored in board.evaluations(study)] == [0, 0]
        board.record(study, evaluation(3, 5.0), 0)
        assert [stored.trial_number for stored in board.evaluations(study)] == [0, 0, 1]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_deleted_while_it_is_in_use_takes_no_more_rows(tmp_path: Path, replaced: bool) -> None:
    """They would be in a file without a name."""
    file = tmp_path / "board.db"
    with Leaderboard(f"sqlite:///{file}") as board:
        study = board.open_study(key())
        board.record(study, evaluation(1, 5.0))
        kept = file.read_bytes()
        file.unlink()
        if replaced:
            file.write_bytes(kept)
        with pytest.raises(StoreError, match=r"board\.db: was deleted or replaced while it was in use"):
            board.record(study, evaluation(2, 4.0))
    assert file.exists() == replaced
