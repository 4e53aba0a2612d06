"""``strategy_benchmark.py`` with few seeds and small budgets."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.landscape.making import RECORDED

SHORT = ("--seeds=2", "--budgets=10,25", "--strategies=evolution,random", "--kernel-tuner=none", "--processes=1")


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts/measure/strategy_benchmark.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, timeout=600)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    cached = ("--cache", str(folder / "cache"), "--held-out=mma")
    for name, options in (("first", ()), ("second", cached), ("third", cached)):
        done = run(repo_root, str(RECORDED), *SHORT, *options, f"--out={folder / name}")
        assert done.returncode == 0, done.stderr
        assert "left out: " in done.stderr
    return folder


def test_the_same_command_gives_the_same_results(written: Path) -> None:
    first, second = (_figures(written / f"{name}.json") for name in ("first", "second"))
    assert first == second


def test_finished_runs_are_taken_from_the_cache(written: Path) -> None:
    """Equal times prove that nothing ran again."""
    second, third = (json.loads((written / f"{name}.json").read_text()) for name in ("second", "third"))
    assert second == third | {"command": second["command"], "chart": second["chart"]}
    kept = [json.loads(file.read_text()) for file in (written / "cache").glob("*.json")]
    assert len(kept) == 4  # two strategies, two seeds
    assert {run["facts"]["strategy"] for run in kept} == {"evolution", "random"}
    assert all(len(run["shares"]) == 25 and run["seconds"] > 0 for run in kept)
    page = (written / "third.md").read_text()
    assert "third.svg" in page
    assert "Held out: " in page
    assert "--cache" not in page


def _figures(file: Path) -> list[dict[str, Any]]:
    (landscape,) = json.loads(file.read_text())["landscapes"]
    return [{key: value for key, value in one.items() if key != "seconds_per_run"} for one in landscape["strategies"]]


def test_shares_and_counts_are_about_the_recorded_optimum(written: Path) -> None:
    (landscape,) = json.loads((written / "first.json").read_text())["landscapes"]
    assert landscape["configs"] == 216
    assert landscape["optimum_us"] == pytest.approx(3.648, abs=0.01)
    assert landscape["predicted"] is True
    by_name = {one["strategy"]: one for one in landscape["strategies"]}
    assert set(by_name) == {"evolution", "random"}
    for one in by_name.values():
        assert len(one["curve"]) == 25
        assert one["curve"] == sorted(one["curve"])
        assert one["curve"][-1] == one["shares"]["25"][1] <= 1
        assert one["shares"]["10"][1] == one["curve"][9]
        low, median, high = one["shares"]["25"]
        assert 0.5 < low <= median <= high
        for near in ("0.05", "0.02"):
            assert 0 <= one["reached"][near] <= 1


def test_page_and_chart_are_written(written: Path) -> None:
    page = (written / "first.md").read_text()
    assert "| evolution |" in page
    assert "predicted for NVIDIA L4" in page
    assert "left out: " in page
    chart = ET.fromstring((written / "first.svg").read_text())
    assert len(chart.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2


def test_evolution_is_worth_its_evaluations_on_recorded_gpus(tmp_path: Path, repo_root: Path) -> None:
    """Few seeds and wide margins; docs/results/strategies-h200.md has 50 seeds and budgets up to 500."""
    landscapes = sorted(map(str, (repo_root / "docs/results/landscapes").glob("*.landscape.xz")))
    assert landscapes
    short = ("--seeds=7", "--budgets=50,100", "--strategies=evolution,random", "--kernel-tuner=none")
    done = run(repo_root, *landscapes, *short, f"--out={tmp_path / 'short'}")
    assert done.returncode == 0, done.stderr
    for landscape in json.loads((tmp_path / "short.json").read_text())["landscapes"]:
        assert landscape["predicted"] is False
        assert landscape["configs"] >= 5000
        own, rival = landscape["strategies"]
        assert own["shares"]["100"][1] >= 1 / 1.03, landscape["name"]
        assert own["shares"]["50"][1] > rival["shares"]["50"][1]
        needed, rivals = (one["evaluations"]["0.05"][1] or 1000 for one in (own, rival))
        assert needed <= min(70, rivals), landscape["name"]


def test_invalid_arguments_are_refused_with_one_line(tmp_path: Path, repo_root: Path) -> None:
    for arguments, message in (
        ((str(tmp_path / "none.xz"), *SHORT), "none.xz: cannot be read"),
        ((str(RECORDED), "--strategies=luck"), "unknown strategy 'luck'"),
    ):
        done = run(repo_root, *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
