"""The command line on a PostgreSQL server: no output and no file holds the credentials."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evoengine.leaderboard.store import Leaderboard
from tests.cli.calling import Evo, environment
from tests.landscape.making import RECORDED
from tests.leaderboard.test_leaderboard import evaluation, key
from tests.leaderboard.test_variants import PARENT
from tests.postgres import PASSWORD, Server

SEARCH = ("search", "--device", f"replay:{RECORDED}", "--budget", "6")


def test_a_server_works_as_a_file_does_and_no_credentials_are_printed_or_stored(
    postgres: Server, postgres_url: str, quick_evo: Evo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    calls = [
        (*SEARCH, "-v"),
        SEARCH,
        ("leaderboard", "--status", "all"),
        ("leaderboard", "show"),
        ("leaderboard", "show", "999"),
        ("report", "-o", "page.html"),
        ("leaderboard", "--problem", "8x8x8x8"),
    ]
    done = [quick_evo(*call, "--db", postgres_url) for call in calls]
    done.append(quick_evo("db", "copy", postgres_url, "copy.db"))
    assert [one.code for one in done] == [0, 0, 0, 0, 2, 0, 0, 0], [one.err for one in done]
    assert f"--db postgresql+psycopg://127.0.0.1:{postgres.port}/" in done[0].out
    assert "6 evaluations" in done[-1].out
    assert postgres.query(postgres_url, "SELECT count(*) FROM evo_studies") == [["1"]], "the same command resumes"
    output = "".join(one.out + one.err for one in done)
    assert PASSWORD not in output
    stored = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"page.html", "copy.db"} <= {file.name for file in stored}
    assert [file.name for file in stored if PASSWORD.encode() in file.read_bytes()] == []


def test_lineage_of_an_unknown_variant_prints_no_credentials(
    postgres: Server, postgres_url: str, quick_evo: Evo
) -> None:
    with Leaderboard(postgres_url) as board:
        board.variants.add(PARENT, "recorded", ("mma",))
    done = quick_evo("lineage", "mma~00000000", "--db", postgres_url)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: postgresql+psycopg://127.0.0.1:{postgres.port}/board")
    assert PASSWORD not in done.err


def test_watch_follows_a_server(postgres_url: str, tmp_path: Path, cache: Path) -> None:
    with Leaderboard(postgres_url) as board:
        study = board.open_study(key())
        board.record(study, evaluation(1, 5.0))
        command = [sys.executable, "-m", "evoengine", "leaderboard", "--watch", "--db", postgres_url]
        watch = subprocess.Popen(
            command, cwd=tmp_path, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert watch.stdout is not None
        first = watch.stdout.readline()
        board.record(study, evaluation(2, 4.0))
        second = watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        rest = watch.communicate()[0]
    assert ("1 ok" in first, "2 ok" in second) == (True, True)
    assert PASSWORD not in first + second + rest
