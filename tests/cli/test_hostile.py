"""Leaderboards and requests from anyone: what reaches the terminal, and what the dashboard answers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evoengine.cli.verbs.dashboard import LocalOnly
from evoengine.model import Config
from tests.api.boards import MISSION, Entry, mma, store
from tests.cli.calling import Evo
from tests.hostile import HOSTILE, controls, hostile_copy


@pytest.fixture
def hostile(tmp_path: Path, cache: Path) -> Path:
    store(tmp_path / "plain.db", cache, Entry(MISSION, mma()), Entry(MISSION, mma({"BLOCK_N": 16}), 6.0, crowned=False))
    return hostile_copy(tmp_path / "plain.db", tmp_path)


def test_no_control_character_reaches_the_terminal(hostile: Path, quick_evo: Evo) -> None:
    for words in (
        ("leaderboard",),
        ("leaderboard", "--status", "all", "--device", "h200"),
        ("leaderboard", "show", "1"),
        ("lock", "-o", "x.lock"),
        ("export", "1", "-o", "-"),
        ("leaderboard", "export", "-o", "-", "--format", "csv"),
    ):
        done = quick_evo(*words, "--db", str(hostile))
        assert (done.code, controls(done.out + done.err)) == (0, []), words
        assert not any(line.startswith('#include "evil') for line in done.out.splitlines())
    refused = quick_evo("leaderboard", "--problem", HOSTILE.replace("\x00", ""), "--db", str(hostile))
    assert (refused.code, refused.out, controls(refused.err)) == (2, "", []), "it is no problem"
    shown = quick_evo("leaderboard", "--db", str(hostile)).out
    assert "[bold]m[/bold]" in shown, "markup is text"
    assert quick_evo("leaderboard", "--json", "--db", str(hostile)).json()[0]["reason"] == HOSTILE
    assert quick_evo("leaderboard", "show", "1", "--json", "--db", str(hostile)).json()["notes"] == [HOSTILE]
    assert HOSTILE in quick_evo("lock", "-o", "y.lock", "--json", "--db", str(hostile)).json()["kernels"][0]["gpu"]


def test_a_warning_about_a_file_is_one_printable_line(hostile: Path, tmp_path: Path, evo: Evo) -> None:
    """A folder from anyone may name its leaderboard so, in evoengine.toml."""
    name = "\x1b]0;owned\x07\n.db"
    with closing(sqlite3.connect(hostile)) as file, file:
        file.execute("UPDATE evo_evaluations SET registers = 'many' WHERE id = 2")
    hostile.rename(tmp_path / name)
    (tmp_path / "evoengine.toml").write_text(f"db = {json.dumps(name)}\n")
    done = evo("leaderboard")
    assert (done.code, controls(done.out + done.err)) == (0, [])
    assert len(done.err.splitlines()) == 1
    assert r"\x1b]0;owned\x07\n.db: damaged data is left out: row 2: registers" in done.err


def test_an_import_prints_a_screen_whatever_the_number_of_problems(tmp_path: Path, quick_evo: Evo) -> None:
    """A report that compared each problem with each row took 40 s for 20,000 rows of a problem each."""
    config = mma()
    row = {"status": "ok", "family": config.family, "config": config.as_dict(), "predicted": False, "device": "x"}
    rows = [{**row, "problem": f"1x1x{number + 1}x64-fp16", "median_us": 1.0} for number in range(1000)]
    others = [{**row, "family": f"other{number}"} for number, row in enumerate(rows[:100])]
    document = {"format": "evoengine-leaderboard", "schema": 1, "rows": rows + others}
    (tmp_path / "rows.json").write_text(json.dumps(document))
    done = quick_evo("leaderboard", "import", "rows.json", "--db", "other.db")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) < 50
    assert "and 980 more" in done.out
    assert "and 80 more" in done.out
    assert len(quick_evo("leaderboard", "import", "rows.json", "--db", "other.db", "--json").json()["problems"]) == 1000


def test_an_import_counts_repeated_and_stored_configs(tmp_path: Path, quick_evo: Evo) -> None:
    first, second = mma(), mma({"BLOCK_N": 16})
    row = {
        "status": "ok",
        "family": "mma",
        "predicted": False,
        "device": "x",
        "problem": "1x1x16x64-fp16",
        "median_us": 1.0,
    }
    for configs, again in (([first, first, first], 2), ([first, second], 0)):
        rows = [{**row, "config": config.as_dict()} for config in configs]
        (tmp_path / "rows.json").write_text(json.dumps({"format": "evoengine-leaderboard", "schema": 1, "rows": rows}))
        done = quick_evo("leaderboard", "import", "rows.json", "--db", "other.db")
        assert ("left out  2: with the problem and config of an earlier row" in done.out) == bool(again)
        assert ("1 of them new, 1 already in the leaderboard" in done.out) == (not again)
        told = quick_evo("leaderboard", "import", "rows.json", "--db", "other.db", "--json").json()
        assert (told["rows"], sum(told["left_out"].values()), told["new"]) == (len(configs), again, 0)


@pytest.mark.parametrize("variable", ["", "set"])
def test_a_row_of_a_family_that_is_not_installed_names_the_variable(
    tmp_path: Path, cache: Path, quick_evo: Evo, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    store(tmp_path / "leaderboard.db", cache, Entry(MISSION, mma()))
    with closing(sqlite3.connect(tmp_path / "leaderboard.db")) as file, file:
        renamed = Config.of("warp_row", mma().as_dict()).key
        file.execute("UPDATE evo_evaluations SET family = 'warp_row', config_key = ?", (renamed,))
    monkeypatch.delenv("EVOENGINE_DATA", raising=False)
    if variable:
        (tmp_path / "mine" / "templates").mkdir(parents=True)
        monkeypatch.setenv("EVOENGINE_DATA", str(tmp_path / "mine"))
    remedy = (
        f"EVOENGINE_DATA is {tmp_path / 'mine'}, which lacks it" if variable else "set EVOENGINE_DATA to the folder"
    )
    for words in (
        ("export", "1", "-o", "best.cu"),
        ("profile", "1"),
        ("leaderboard", "export", "-o", "t4.json", "--format", "t4"),
        ("leaderboard", "export", "-o", "task", "--format", "robust-kbench"),
    ):
        done = quick_evo(*words)
        assert (done.code, done.err.count("\n")) == (2, 1), done
        assert "row 1 is of an unknown family 'warp_row'" in done.err
        assert remedy in done.err
    assert quick_evo("leaderboard", "show", "1").code == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"HOST": "127.0.0.1:8080"}, "200 OK"),
        ({"HOST": "LOCALHOST:8080"}, "200 OK"),
        ({"HOST": "127.0.0.1:8080", "REFERER": "https://evil.example/page"}, "200 OK"),
        ({}, "403 Forbidden"),
        ({"HOST": "evil.example:8080"}, "403 Forbidden"),
        ({"HOST": "127.0.0.1"}, "403 Forbidden"),
        ({"HOST": "127.0.0.1:8080.evil.example"}, "403 Forbidden"),
        ({"HOST": "127.0.0.1:8080", "ORIGIN": "https://evil.example"}, "403 Forbidden"),
        ({"HOST": "127.0.0.1:8080", "ORIGIN": "null"}, "403 Forbidden"),
        ({"HOST": "127.0.0.1:8080", "ORIGIN": "http://127.0.0.1:8081"}, "403 Forbidden"),
        ({"HOST": "127.0.0.1:8080", "ORIGIN": "http://127.0.0.1:8080"}, "200 OK"),
        ({"METHOD": "POST", "HOST": "127.0.0.1:8080", "ORIGIN": "http://localhost:8080"}, "200 OK"),
        ({"METHOD": "POST", "HOST": "127.0.0.1:8080", "REFERER": "https://evil.example/page"}, "403 Forbidden"),
        ({"METHOD": "DELETE", "HOST": "127.0.0.1:8080", "SEC_FETCH_SITE": "cross-site"}, "403 Forbidden"),
    ],
)
def test_the_dashboard_answers_its_own_pages_only(headers: dict[str, str], status: str) -> None:
    def application(_environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"study"]

    seen: list[str] = []
    environ = {f"HTTP_{name}": text for name, text in headers.items()}
    environ["REQUEST_METHOD"] = headers.get("METHOD", "GET")
    body = LocalOnly(application, 8080)(environ, lambda line, _headers: seen.append(line))
    assert seen == [status]
    assert (b"study" in b"".join(body)) == (status == "200 OK")
