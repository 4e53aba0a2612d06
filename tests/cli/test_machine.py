"""The command line on a machine that fails it: stop signals, little memory, closed streams, no home."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
import pytest

from evoengine.errors import UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.leaderboard.transcripts import Transcript
from evoengine.system.files import write_file
from tests.cli.calling import SMALL_SEARCH, environment
from tests.leaderboard.test_leaderboard import evaluation, key

CALL = (sys.executable, "-m", "evoengine")
SEARCH = (*SMALL_SEARCH, "--budget", "400", "--no-starts")
"""A search that lasts until it is stopped."""
PATIENCE_S = 600.0
GONE = "the working directory no longer exists: change to another folder"


def count(file: Path, table: str) -> int:
    with closing(sqlite3.connect(file)) as board, suppress(sqlite3.OperationalError):
        found: int = board.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return found
    return 0


def ends(group: int, deadline_s: float) -> bool:
    """Whether all processes of a group have ended."""
    while time.monotonic() < deadline_s:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_sigterm_ends_a_search_as_ctrl_c_does(tmp_path: Path, cache: Path) -> None:
    """All of its processes receive it, as from a service manager; no candidate may be blamed for that."""
    file, temporary = tmp_path / "board.db", tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [*CALL, *SEARCH, "--no-forecast", "--workers", "1", "--db", str(file), "--no-log", "--quiet"],
        env={**environment(cache), "TMPDIR": str(temporary)}, cwd=tmp_path, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline_s = time.monotonic() + PATIENCE_S
    while not count(file, "evo_evaluations") and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    assert count(file, "evo_evaluations") > 0
    assert count(file, "evo_claims") == 0
    with closing(sqlite3.connect(file)) as board:
        assert board.execute("SELECT count(*) FROM evo_evaluations WHERE status = 'crashed'").fetchone() == (0,)
    assert list(temporary.iterdir()) == []
    assert ends(process.pid, deadline_s)


@pytest.mark.slow
def test_little_memory_records_nothing_and_says_what_to_mend(tmp_path: Path, cache: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (750 * 2**20,) * 2)

    done = subprocess.run(
        [*CALL, *SMALL_SEARCH, "--budget", "6", "--quiet"],
        env=environment(cache), cwd=tmp_path, preexec_fn=limit,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "ulimit -v" in done.stderr
    assert count(tmp_path / "leaderboard.db", "evo_evaluations") == 0


@pytest.mark.slow
@pytest.mark.thorough
def test_a_search_without_streams_or_home_stores_its_rows(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "home").write_text("")
    nowhere = {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": "relative", "XDG_CONFIG_HOME": "relative"}
    words = " ".join((*CALL, *SMALL_SEARCH, "--budget", "1"))
    done = subprocess.run(
        ["bash", "-c", f"exec {words} <&- >&- 2>&-"],
        env={**environment(cache), **nowhere}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert count(tmp_path / "leaderboard.db", "evo_evaluations") >= 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "leaderboard.db"]


@pytest.mark.parametrize("verb", ["leaderboard", "search"])
def test_a_working_directory_that_is_gone_is_named(tmp_path: Path, cache: Path, verb: str) -> None:
    (tmp_path / "gone").mkdir()
    call = [*CALL, "leaderboard"] if verb == "leaderboard" else [*CALL, *SMALL_SEARCH, "--db", str(tmp_path / "b.db")]
    done = subprocess.run(
        ["bash", "-c", f"rmdir ../gone && exec {shlex.join(call)} --quiet"],
        env=environment(cache), cwd=tmp_path / "gone", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"error: {GONE}\n")


def test_a_home_that_is_no_folder_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from evoengine.kernel.compile.cache import usable_cache_dir

    (tmp_path / "home").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("XDG_CACHE_HOME", raising=False)
        patch.setenv("HOME", str(tmp_path / "home"))
        assert usable_cache_dir() is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("limit", [1_000_000, 3_000_000])
def test_a_copy_of_a_leaderboard_that_does_not_fit_adds_no_rows(tmp_path: Path, limit: int) -> None:
    """After a full disk SQLite takes the whole transaction back; the rows that follow must not be kept alone."""
    reply = np.random.default_rng(1).bytes(80_000)
    sent = Transcript("write", "http://127.0.0.1", "model", "ok", "", b"{}", reply, 1, 1, True, None, 0.1)
    with Leaderboard(f"sqlite:///{tmp_path / 'whole.db'}") as board:
        board.record(board.open_study(key()), evaluation(1, 5.0))
        for _ in range(60):
            board.add_transcript(sent)
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
    program = f"{limited} from evoengine.cli.app import main; main()"
    command = [sys.executable, "-c", program, "db", "copy", "whole.db", "copy.db"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2, done
    assert done.stderr.startswith("error: copy.db: ")
    again = subprocess.run(
        [*CALL, "db", "copy", "whole.db", "copy.db"], cwd=tmp_path, env=environment(tmp_path), check=False, timeout=120
    )
    assert again.returncode == 0, "the destination is still empty"
    assert count(tmp_path / "copy.db", "evo_transcripts") == 60


def test_a_mounted_file_keeps_its_content_on_a_full_disk(tmp_path: Path) -> None:
    """Such a file cannot be replaced by another one; a container's outputs are often mounted."""
    disk, file = tmp_path / "disk", tmp_path / "out.html"
    disk.mkdir()
    file.touch()
    with ExitStack() as mounted:
        for what, where in ((("-t", "tmpfs", "-o", "size=200k", "tmpfs"), disk), (("--bind", str(disk / "x")), file)):
            if what[0] == "--bind":
                (disk / "x").write_bytes(b"old" * 1000)
            if subprocess.run(["mount", *what, str(where)], check=False, capture_output=True).returncode:
                pytest.skip("this process may not mount file systems")
            mounted.callback(subprocess.run, ["umount", str(where)], check=True)
        with pytest.raises(UsageError, match="No space left"):
            write_file(file, b"new" * 1_000_000)
        assert file.read_bytes() == b"old" * 1000
        write_file(file, b"new")
        assert file.read_bytes() == b"new"
