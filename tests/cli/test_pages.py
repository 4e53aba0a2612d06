"""Outputs of a small search: log, report, exchanged rows, live table, dashboard."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
import urllib.request
import zlib
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import IO, Any

import pytest

from evoengine.cli.verbs.exchange import export_rows, import_rows
from evoengine.engine.options.verbs import RowExportOptions
from evoengine.errors import UsageError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem, Status
from evoengine.search.event_log import NAMES
from tests.cli.calling import SMALL_SEARCH, Evo, environment
from tests.cli.searched import BUDGET
from tests.report.boards import H200, L4, evaluation, failed, fill, key_of, open_board


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    """A copy of the small search's folder to write in."""
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    "name", [pytest.param("other.db", marks=pytest.mark.thorough), "other.db-wal", "leaderboard.db"]
)
@pytest.mark.every(2)
def test_a_log_is_never_appended_to_a_database(folder: Path, evo: Evo, name: str) -> None:
    shutil.copyfile(folder / "leaderboard.db", folder / "other.db")
    before = (folder / "other.db").read_bytes()
    done = evo(*SMALL_SEARCH, "--budget", "1", "--log", name)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{name}: is a" in done.err
    assert (folder / "other.db").read_bytes() == before
    assert not (folder / "other.db-wal").exists()
    assert rows_of(evo), "the leaderboard can still be read"


def rows_of(evo: Evo, *arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = evo("leaderboard", "--json", "--status", "all", *arguments).json()
    return rows


def test_the_log_has_every_event_once(folder: Path, evo: Evo) -> None:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert {line["event"] for line in lines} <= set(NAMES.values())
    assert len({line["run"] for line in lines}) == 1
    start, finish = lines[0], lines[-1]
    assert (start["event"], finish["event"], finish["stop"]) == ("started", "finished", "budget reached")
    assert (start["problem"], start["device"], start["predicted"]) == ("1x1x16x16-fp16", "NVIDIA L4", True)
    rows = {row["id"]: row for row in rows_of(evo)}
    recorded = {line["row"]: line for line in lines if line["event"] == "recorded"}
    assert recorded.keys() == rows.keys()
    for row_id, line in recorded.items():
        assert line["status"] == rows[row_id]["status"]
        assert line.get("median_us") == rows[row_id]["median_us"]
        assert line.get("predicted", True) is True
    proposed = [line["config"] for line in lines if line["event"] == "proposed"]
    assert all(row["config"] in proposed for row in rows.values())
    champion = next(row["id"] for row in rows.values() if row["champion"])
    assert [line["row"] for line in lines if line["event"] == "crowned"][-1] == champion


def test_verbose_prints_a_line_for_every_candidate(folder: Path) -> None:
    text = (folder / "err.txt").read_text()
    assert text.count("\nrow ") + text.startswith("row ") >= BUDGET
    assert "predicted  mma: " in text


def test_by_default_the_log_is_in_the_users_state_folder(small: Path) -> None:
    (log,) = small.glob("state/evoengine/log/evoengine-*.jsonl")
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["started", "finished"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--quiet", "--verbose"), "--verbose"),
        (("--log", "file.txt/log"), "file.txt"),
        (("--log", "pipe"), "pipe: is no regular file"),
    ],
)
def test_invalid_output_options_are_one_line(
    quick_evo: Evo, folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    (folder / "file.txt").write_text("")
    os.mkfifo(folder / "pipe")  # opening it would wait for its other end
    done = quick_evo(*SMALL_SEARCH, "--budget", "1", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert says in done.err


def test_report(quick_evo: Evo, folder: Path) -> None:
    done = quick_evo("report", "--json", "-o", "page.html")
    first = {"study_id": 1, "rows": len(rows_of(quick_evo)), "predicted": True}
    assert done.json() == {"file": "page.html", **first, "studies": [1]}
    text = (folder / "page.html").read_text()
    best = min(row["median_us"] for row in rows_of(quick_evo) if row["median_us"])
    assert f"{best:.3f}" in text
    assert "--budget 2" in text
    refused = quick_evo("report", "-o", "page.html")
    assert (refused.code, "--force" in refused.err) == (2, True)


def test_a_report_has_all_studies_or_those_of_a_problem_or_device(quick_evo: Evo, folder: Path) -> None:
    with Leaderboard(f"sqlite:///{folder / 'many.db'}") as board:
        fill(board, H200)
        fill(board, L4)
        fill(board, L4, problem=Problem(1, 4, 64, 64))

    def studies(*arguments: str) -> list[int]:
        done = quick_evo("report", "--db", "many.db", "--json", "--force", "-o", "page.html", *arguments)
        page = (folder / "page.html").read_text()
        found: list[int] = done.json()["studies"]
        assert re.findall(r'<article id="study-(\d+)"', page) == list(map(str, found))
        assert done.json()["study_id"] == found[0], "the study that is shown first"
        return found

    assert studies() == [3, 2, 1]
    assert studies("2") == [2]
    assert studies("--device", "emulator") == [3, 2]
    assert studies("--device", "h200") == [1]
    assert studies("--problem", "default") == [2, 1]
    assert studies("--problem", "1x4x64x64", "--device", "l4") == [3]
    said = quick_evo("report", "--db", "many.db", "--force", "-o", "page.html")
    assert "study 3" in said.err + said.out
    assert "3 studies" in said.err + said.out


@pytest.mark.slow
def test_imported_configs_are_measured_before_they_count(evo: Evo, folder: Path) -> None:
    assert evo("leaderboard", "export", "--status", "all", "-o", "rows.json").code == 0
    document = json.loads((folder / "rows.json").read_text())
    truth = {
        json.dumps(row["config"], sort_keys=True): row["median_us"] for row in document["rows"] if row["median_us"]
    }
    for row in document["rows"]:
        if row["median_us"]:
            row |= {"median_us": row["median_us"] / 1000, "predicted": False, "device": "NVIDIA H200", "champion": True}
    (folder / "rows.json").write_text(json.dumps(document))

    imported = evo("leaderboard", "import", "rows.json", "--db", "other.db")
    assert (imported.code, "UNPROVEN" in imported.out) == (0, True)
    assert rows_of(evo, "--db", "other.db") == [], "imported configs are not rows"
    done = evo(*SMALL_SEARCH, "--budget", "1", "--db", "other.db", "--no-log")
    assert "imported  " in done.out
    rows = [row for row in rows_of(evo, "--db", "other.db") if row["median_us"]]
    assert len(rows) == 1
    for row in rows:
        assert row["median_us"] == truth[json.dumps(row["config"], sort_keys=True)], "not the imported time"
        assert (row["predicted"], row["device"]) == (True, "NVIDIA L4")


def test_a_t4_export_does_not_keep_all_sources(tmp_path: Path) -> None:
    """A small file may hold 16 MiB of source for each row."""
    rows, source_bytes = 12, 1 << 22
    with closing(open_board(tmp_path)) as board:
        study = board.open_study(key_of(L4, Problem(1, 8, 512, 64)))
        for number in range(rows):
            board.record(study, evaluation(number, 9.0, predicted=True), number)
    with closing(sqlite3.connect(tmp_path / "leaderboard.db")) as file, file:
        file.execute("UPDATE evo_templates SET body_zlib = ?", [zlib.compress(b" " * source_bytes)])
    target = tmp_path / "t4.json"
    tracemalloc.start()
    try:
        export_rows(str(tmp_path / "leaderboard.db"), RowExportOptions(target, "t4"))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(json.loads(target.read_text())["results"]) == rows
    assert peak_bytes < rows / 2 * source_bytes


def test_export_formats(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)

    def write(format_: str, output: str) -> str:
        export_rows("leaderboard.db", RowExportOptions(Path(output), format_))
        return capsys.readouterr().out

    assert len(json.loads(write("json", "-"))["rows"]) == BUDGET
    assert write("csv", "-").count("\n") == BUDGET + 1
    assert write("t4", "t4.json") == "wrote t4.json\n"
    import_rows("other.db", Path("t4.json"), None, json_output=True)
    imported = json.loads(capsys.readouterr().out)
    assert (imported["imported"], imported["proven"]) == (BUDGET, False)
    write("rbk", "rbk")
    assert {path.name for path in Path("rbk").iterdir()} == {"rbk_report.json", "rbk_report.md"}
    write("robust-kbench", "task")
    names = {"func_forward.py", "config_forward.json", "forward.cu"}
    assert {path.name for path in Path("task").iterdir()} == names
    for format_, output, says in (
        ("rbk", "rbk", "--force"),
        ("xml", "x", "choose one of json, csv"),
        ("rbk", "-", "-o"),
    ):
        with pytest.raises(UsageError, match=says):
            write(format_, output)


def test_the_next_command_of_a_set_of_problems_names_the_leaderboard(quick_evo: Evo, tmp_path: Path) -> None:
    text = "output_dir: out\nshapes:\n  - {name: odd, batch_size: 1, num_heads: 1, seq_len: 16, head_dim: 60}\n"
    (tmp_path / "rbk_config.yaml").write_text(text)
    done = quick_evo("search", "--device", "emulator", "--problems", "rbk_config.yaml", "--db", "mine.db")
    assert done.code == 1, "no family supports the problem"
    assert done.out.splitlines()[-1].endswith("--problems rbk_config.yaml -o out --db mine.db")


@pytest.mark.slow
def test_a_set_of_problems_is_searched_in_turn(evo: Evo, folder: Path) -> None:
    shape = "batch_size: 1, num_heads: 1, seq_len: 16, head_dim: "
    text = f"output_dir: out\nshapes:\n  - {{name: odd, {shape}60}}\n  - {{name: tiny, {shape}16}}\n"
    (folder / "rbk_config.yaml").write_text(text)
    search = [word for word in SMALL_SEARCH if word not in ("--problem", "1x1x16x16")]
    done = evo(*search, "--budget", str(BUDGET), "--no-starts", "--problems", "rbk_config.yaml")
    assert done.code == 1, "no family supports the first problem"
    assert "1 of 2: odd" in done.out
    assert "the study is complete" in done.out
    report = ("leaderboard", "export", "--format", "rbk", "--problems", "rbk_config.yaml", "-o", "out")
    assert " ".join(report) in done.out
    assert evo(*report).code == 0
    found = json.loads((folder / "out" / "rbk_report.json").read_text())
    assert (found["missing"], found["results"][0]["shape"]["name"]) == (["odd"], "tiny")


def start(folder: Path, cache: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "evoengine", *arguments],
        cwd=folder, env=environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Sends the signal of Ctrl-C and waits."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


def line_of(stream: IO[str] | None) -> str:
    """The next line; fails after a time limit if there is none."""
    assert stream is not None
    lines: Queue[str] = Queue()
    Thread(target=lambda: lines.put(stream.readline()), daemon=True).start()
    return lines.get(timeout=300)


@pytest.mark.slow
def test_watch_prints_a_line_for_every_change(tmp_path: Path, cache: Path) -> None:
    with closing(Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}")) as board, ExitStack() as stack:
        study = fill(board, H200)
        process = start(tmp_path, cache, "leaderboard", "--watch", "--status", "all")
        stack.callback(process.kill)
        first = line_of(process.stdout)
        assert "24 ok" in first
        assert first.endswith("row 24, 4.00 us\n"), "measured rows are not marked as predicted"
        board.record(study, failed(77, Status.CRASHED, "gone"))
        assert "1 crashed" in line_of(process.stdout)
        assert end(process) == (0, "")


def test_watch_has_no_json(quick_evo: Evo, tmp_path: Path) -> None:
    Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}").close()
    done = quick_evo("leaderboard", "--watch", "--json")
    assert (done.code, done.err.count("\n")) == (2, 1)


@pytest.mark.slow
def test_the_dashboard_shows_the_studies(folder: Path, cache: Path) -> None:
    process = start(folder, cache, "dashboard", "--port", "0")
    line = line_of(process.stdout)
    assert line.startswith("http://127.0.0.1:")
    address = line.split()[0]
    with urllib.request.urlopen(f"{address}api/studies", timeout=120) as answer:
        (study,) = json.load(answer)["study_summaries"]
    with urllib.request.urlopen(f"{address}api/studies/{study['study_id']}", timeout=120) as answer:
        detail = json.load(answer)
    assert [trial["state"] for trial in detail["trials"]].count("Complete") == BUDGET
    for trial in detail["trials"]:  # the bars of the page's timeline
        assert datetime.fromisoformat(trial["datetime_start"]) < datetime.fromisoformat(trial["datetime_complete"])
    assert study["study_name"] == "1x1x16x16-fp16 l4-predicted random seed 0 #1"
    assert f"study     {study['study_name']}\n" in (folder / "out.txt").read_text()
    facts = {one["key"]: one["value"] for one in study["user_attrs"]}
    assert facts["evoengine:problem"] == "1x1x16x16-fp16"
    assert facts["evoengine:times"] == "predicted us, model-v18"
    assert end(process) == (0, "")


def test_a_dashboard_without_studies_or_port_is_one_line(quick_evo: Evo, tmp_path: Path) -> None:
    Leaderboard(f"sqlite:///{tmp_path / 'leaderboard.db'}").close()
    assert "run a search first" in quick_evo("dashboard").err
