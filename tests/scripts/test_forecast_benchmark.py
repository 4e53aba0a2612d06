"""``forecast_benchmark.py`` on a recorded sample: searches with the forecast, and the audit of pruning."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scripts.running import ROOT, Run

SAMPLE = ROOT / "docs/results/samples/window-sample-h200.landscape.xz"


def test_search_reaches_the_optimum_in_every_mode(run: Run, tmp_path: Path) -> None:
    words = ("--strategies", "random", "--seeds", 2, "--out", tmp_path / "search")
    done = run("forecast_benchmark.py", "search", SAMPLE, *words)
    assert done.returncode == 0, done.stderr
    (landscape,) = json.loads((tmp_path / "search.json").read_text())["landscapes"]
    assert [one["forecast"] for one in landscape["runs"]] == ["nothing", "first", "skip", "both", "learn"]
    assert all(count is not None for one in landscape["runs"] for near in one["reached"] for count in near["quartiles"])
    assert [one["skips"] is None for one in landscape["runs"]] == [True, True, False, False, False]


def test_audit_finds_no_wrong_decision_in_a_recorded_sample(run: Run, tmp_path: Path) -> None:
    done = run("forecast_benchmark.py", "audit", SAMPLE, "--draws", 3, "--out", tmp_path / "audit")
    assert done.returncode == 0, done.stderr
    (landscape,) = json.loads((tmp_path / "audit.json").read_text())["landscapes"]
    first, six, twelve = landscape["audits"]
    assert (first["judged"], six["judged"], twelve["judged"]) == (38 - 12, 3 * (38 - 6), 3 * (38 - 12))
    assert all(one["skipped"] > 0 for one in (first, six, twelve))
    assert [one["faster"] + one["good"] for one in landscape["audits"]] == [0, 0, 0]
    assert done.stdout.strip() == (tmp_path / "audit.md").read_text().strip()
    assert "| window-sample-h200 | 4x8x1024x64-fp16-causal-left128 | 6 at random | 96 |" in done.stdout
