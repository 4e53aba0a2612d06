"""The whole pipeline from the command line, on the emulator: search, leaderboard, show, export; and after a kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evoengine.model import parse_problem
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.cli.calling import SMALL_SEARCH, TINY_SEARCH, Evo, environment
from tests.cli.searched import BUDGET as SMALL_BUDGET
from tests.warm import WarmPython

pytestmark = pytest.mark.slow

BUDGET = 4
FAMILIES = ("mma", "wmma")
SEARCH = (*TINY_SEARCH, "--family", ",".join(FAMILIES), "--budget", str(BUDGET))
"""A search of two families; kernels of a third one, scalar, take the emulator longer."""
ROW_KEYS = {
    *("id", "rank", "status", "median_us", "predicted", "device", "arch", "problem", "family", "config", "registers"),
    *("spill_bytes", "smem_bytes", "max_error", "speedup"),
}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, evo_in: Evo) -> Path:
    """A folder in which a small search ran."""
    folder = tmp_path_factory.mktemp("searched")
    done = evo_in(folder, *SEARCH, "--no-forecast")
    assert done.code == 0, done
    (folder / "out.txt").write_text(done.out)
    (folder / "err.txt").write_text(done.err)
    return folder


def rows_of(evo: Evo, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """``leaderboard --json`` of a folder's leaderboard."""
    rows = evo("leaderboard", "--db", str(folder / "leaderboard.db"), "--json", "--top", "1000", *arguments).json()
    assert isinstance(rows, list)
    return rows


def test_it_prints_the_plan_and_the_result(searched: Path) -> None:
    text = (searched / "out.txt").read_text()
    assert "1x1x16x32-fp16" in text
    assert "PREDICTED on NVIDIA L4 (emulator" in text
    for family in FAMILIES:
        assert re.search(rf"^space {family}: .* valid of .* combinations$", text, re.MULTILINE)
    assert f"{BUDGET} of {BUDGET} candidates" in text
    assert "evoengine export" in text
    summary = re.search(
        r"^this run .*, row (\d+)\nchampion .*, row \1, the same row\naccept .*any gain", text, re.MULTILINE
    )
    assert summary is not None
    progress = (searched / "err.txt").read_text()
    found = re.findall(r"^new champion: row (\d+), ", progress, re.MULTILINE)
    assert found == [summary[1]], "elected at the end: no other row was inspected"
    for printed in (text, progress):
        assert "\x1b" not in printed
        assert "\r" not in printed


def test_leaderboard_json(searched: Path, quick_evo: Evo) -> None:
    rows = rows_of(quick_evo, searched)
    assert rows
    for row in rows:
        assert row.keys() >= ROW_KEYS
        assert row["status"] == "ok"
        assert row["predicted"] is True
        assert row["device"] == "NVIDIA L4"
        assert row["arch"] == "sm_89"
        assert row["problem"] == "1x1x16x32-fp16"
        assert row["family"] in FAMILIES
        assert row["median_us"] > 0
        assert row["registers"] > 0
        assert 0 < row["max_error"] < 0.01
        assert row["speedup"] is None, "predictions have no baseline"
        assert isinstance(row["config"], dict)
    times = [row["median_us"] for row in rows]
    assert times == sorted(times)
    assert rows[0]["rank"] == 1
    everything = rows_of(quick_evo, searched, "--status", "all")
    distinct = [row for row in everything if row["status"] != "duplicate"]
    assert len(distinct) == BUDGET
    assert len({row["family"] for row in everything}) > 1, "control: starts of both families are among them"
    assert len({json.dumps(row["config"], sort_keys=True) for row in everything}) == len(everything)


def test_the_shortlist_is_listed_refused_without_a_gpu_and_exported(
    searched: Path, evo_in: Evo, quick_evo: Evo
) -> None:
    """The steps of a user without a GPU after a search; the printed numbers are those of the stored rows."""
    text = (searched / "out.txt").read_text()
    found = re.search(r"^shortlist (\d+) rows, ([\d.]+) to ([\d.]+) us predicted: ", text, re.MULTILINE)
    assert found is not None
    count, low, high = found.groups()
    listed = rows_of(quick_evo, searched, "--shortlist", "--top", count)
    assert len(listed) == int(count)
    assert [f"{row['median_us']:.2f}" for row in (listed[0], listed[-1])] == [low, high]
    refused = evo_in(searched, "verify", "--top", "20", "--device", "emulator")
    assert refused.code == 2
    assert re.fullmatch(r"error: .*'export --top 20 --format torch'.*\n", refused.err)
    command = next(line.split("#")[0].split()[3:] for line in text.splitlines() if "export --top" in line)
    command[command.index("-o") + 1] = "f.py"
    done = evo_in(searched, "export", *command[1:])
    assert done.code == 0, done.err
    assert f"wrote f.py: {count} kernels, 1x1x16x32-fp16 on NVIDIA L4, {low} to {high} us predicted" in done.out
    ids = ", ".join(str(row["id"]) for row in listed)
    head = (searched / "f.py").read_text().split("from __future__")[0]
    assert f"{count} kernels, {low} to {high} us predicted" in head
    assert f"rows {ids}, in this order" in head


def test_it_begins_with_the_starts_of_the_search_spaces(searched: Path, quick_evo: Evo) -> None:
    starts = [
        config.as_dict()
        for family in FAMILIES
        for config in find_space(family).build(parse_problem("1x1x16x32"), get_target("l4")).starts()
    ]
    assert len(starts) >= BUDGET
    assert all(row["config"] in starts for row in rows_of(quick_evo, searched, "--status", "all"))


def test_it_can_leave_the_starts_out(small: Path, quick_evo: Evo) -> None:
    starts = find_space("mma").build(parse_problem("1x1x16x16"), get_target("l4")).starts()
    found = [row["config"] for row in rows_of(quick_evo, small, "--status", "all")]
    assert len(found) >= SMALL_BUDGET
    assert not any(config.as_dict() in found for config in starts)


def test_leaderboard_filters(searched: Path, evo_in: Evo, quick_evo: Evo) -> None:
    assert rows_of(quick_evo, searched, "--problem", "1x1x16x32", "--device", "emulator")
    assert rows_of(quick_evo, searched, "--problem", "1x1x16x32-fp16", "--device", "l4")
    assert rows_of(quick_evo, searched, "--problem", "mission") == []
    assert rows_of(quick_evo, searched, "--device", "cuda") == []
    table = evo_in(searched, "leaderboard", "--top", "2").out
    assert "PREDICTED on NVIDIA L4" in table
    assert any(f" {family} " in table for family in FAMILIES)
    assert "\x1b" not in table


def test_show_prints_everything(searched: Path, evo_in: Evo, quick_evo: Evo) -> None:
    best = rows_of(quick_evo, searched)[0]
    shown = evo_in(searched, "leaderboard", "show", str(best["id"]), "--json").json()
    assert {key: shown[key] for key in ROW_KEYS} == {key: best[key] for key in ROW_KEYS}
    assert "evo_attention" in shown["source"]
    assert shown["verdict"]["passed"]
    assert shown["resources"]["registers"] == best["registers"]
    elsewhere = searched / "elsewhere"
    elsewhere.mkdir()
    options_first = evo_in(elsewhere, "leaderboard", "--db", "../leaderboard.db", "--json", "show", str(best["id"]))
    assert options_first.json() == shown
    text = evo_in(searched, "leaderboard", "show", str(best["id"])).out
    assert shown["code_hash"] in text
    assert "predicted" in text
    assert evo_in(searched, "leaderboard", "show", "--source").out == shown["source"]


def test_export_writes_the_kernel_of_the_row(searched: Path, evo_in: Evo, tmp_path: Path, quick_evo: Evo) -> None:
    best = rows_of(quick_evo, searched)[0]
    file = tmp_path / "best.cu"
    done = evo_in(searched, "export", "--best", "-o", str(file), "--problem", "1x1x16x32")
    assert (done.code, done.err) == (0, "")
    text = file.read_text()
    for terminal in ("-", "/dev/stdout"):
        assert evo_in(searched, "export", "--best", "-o", terminal).out == text
    assert evo_in(searched, "export", str(best["id"]), "-o", str(file)).code == 2, "a file was overwritten"
    assert evo_in(searched, "export", str(best["id"]), "-o", str(file), "--force").code == 0
    shown = evo_in(searched, "leaderboard", "show", str(best["id"]), "--json").json()
    assert shown["source"].strip() in file.read_text()
    assert "not measured" in text


@pytest.mark.thorough
def test_export_compiles(searched: Path, evo_in: Evo, tmp_path: Path) -> None:
    """The page README.md shows the same, on another family's kernel."""
    file = tmp_path / "best.cu"
    assert evo_in(searched, "export", "--best", "-o", str(file), "--problem", "1x1x16x32").code == 0
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    build = [nvcc, "-arch=sm_89", "-c", str(file), "-o", str(tmp_path / "best.o")]
    compiled = subprocess.run(build, capture_output=True, text=True, check=False)
    assert (compiled.returncode, compiled.stderr) == (0, "")


def test_a_complete_study_is_not_searched_again(searched: Path, evo_in: Evo, quick_evo: Evo) -> None:
    before = rows_of(quick_evo, searched, "--status", "all")
    done = evo_in(searched, *SEARCH, "--json")
    assert done.code == 0
    result = done.json()
    assert (result["evaluated"], result["new"], result["predicted"]) == (BUDGET, 0, True)
    assert result["start_seconds"] == {}
    assert result["champion"]["id"] in {row["id"] for row in before}
    assert rows_of(quick_evo, searched, "--status", "all") == before
    assert "complete" in done.err


@pytest.fixture
def killed(tmp_path: Path, cache: Path, quick_evo: Evo) -> tuple[Path, list[dict[str, Any]]]:
    """A folder whose search and all its processes were killed, and the rows stored before that."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evoengine", *TINY_SEARCH, "--budget", "12"],
        cwd=tmp_path, env=environment(cache), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        wait_for_rows(tmp_path / "leaderboard.db", 5, process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=600)
    return tmp_path, rows_of(quick_evo, tmp_path, "--status", "all")


def wait_for_rows(database: Path, count: int, pid: int) -> None:
    """Waits until a search has stored some rows."""
    deadline = time.monotonic() + 1800
    while time.monotonic() < deadline and runs(pid):
        if database.exists():
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
                try:
                    stored = connection.execute("SELECT count(*) FROM evo_evaluations").fetchone()[0]
                except sqlite3.OperationalError:
                    stored = 0
            if stored >= count:
                return
        time.sleep(0.05)
    pytest.fail("the search ended or took too long before it was interrupted")


def runs(pid: int) -> bool:
    """Whether a process has not ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.thorough
def test_a_killed_search_resumes(killed: tuple[Path, list[dict[str, Any]]], evo_in: Evo, quick_evo: Evo) -> None:
    folder, before = killed
    assert 5 <= len(before) < 12
    start_s = time.monotonic()
    done = evo_in(folder, *TINY_SEARCH, "--budget", "12", "--json")
    done_s = time.monotonic() - start_s
    assert done.code == 0, done
    after = rows_of(quick_evo, folder, "--status", "all")
    kept = {row["id"]: row for row in after}
    for row in before:
        assert {**kept[row["id"]], "rank": None, "champion": None} == {**row, "rank": None, "champion": None}
    configs = [json.dumps(row["config"], sort_keys=True) for row in after]
    assert len(configs) == len(set(configs)), "a config was evaluated twice"
    codes = [row["code_hash"] for row in after if row["status"] == "ok"]
    assert len(codes) == len(set(codes)), "a kernel was evaluated twice"
    assert sum(row["status"] != "duplicate" for row in after) == 12
    result = done.json()
    assert result["evaluated"] == 12
    first_s = result["start_seconds"]
    assert first_s.keys() == {"proposed", "compiled", "examined", "row"}
    assert 0 < first_s["proposed"] < first_s["compiled"] < first_s["row"] < done_s


def test_ctrl_c_keeps_the_rows(tmp_path: Path, cache: Path, warm: WarmPython, quick_evo: Evo) -> None:
    words = (*SMALL_SEARCH, "--budget", "200", "--no-starts", "--workers", "1")
    process = warm.start("evoengine", words, tmp_path, environment(cache))
    wait_for_rows(tmp_path / "leaderboard.db", 2, process.pid)
    process.send_signal(signal.SIGINT)
    done = process.finish(timeout_s=600)
    assert done.code == 130, done.err
    assert "interrupted" in done.out
    assert "Traceback" not in done.err
    assert len(rows_of(quick_evo, tmp_path, "--status", "all")) >= 2


def test_nothing_correct_is_exit_1(evo: Evo, tmp_path: Path) -> None:
    """A time limit of 0 leaves no candidates."""
    done = evo(*SMALL_SEARCH, "--budget", "3", "--time-limit", "0", "--db", "my own.db")
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("error: no correct kernel")
    assert "leaderboard --status all --db 'my own.db'" in done.err
