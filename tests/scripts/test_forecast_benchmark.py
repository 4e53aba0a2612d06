"""The scripts that say how forecasts and predictions held: ``skip_audit.py`` and ``verify_report.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "docs/results/samples/window-sample-h200.landscape.xz"


def run(script: str, *words: object) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "measure" / script), *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def test_skipping_is_right_on_a_recorded_sample(tmp_path: Path) -> None:
    said = run("skip_audit.py", SAMPLE, "--draws", 3, "--out", tmp_path / "audit")
    (landscape,) = json.loads((tmp_path / "audit.json").read_text())["landscapes"]
    first, six, twelve = landscape["audits"]
    assert (first["judged"], six["judged"], twelve["judged"]) == (38 - 12, 3 * (38 - 6), 3 * (38 - 12))
    assert all(one["skipped"] > 0 for one in (first, six, twelve))
    assert [one["faster"] + one["good"] for one in landscape["audits"]] == [0, 0, 0]
    assert said.strip() == (tmp_path / "audit.md").read_text().strip()
    assert "| window-sample-h200 | 4x8x1024x64-fp16-causal-left128 | 6 at random | 96 |" in said


def elite(rank: int, predicted_us: float, measured_us: float | None, stages: int) -> dict[str, Any]:
    ratio = None if measured_us is None else measured_us / predicted_us
    config = {"BLOCK_N": 64, "STAGES_K": stages}
    status = None if measured_us is None else "ok"
    found = {"rank": rank, "row": rank, "family": "mma", "config": config, "status": status, "reason": ""}
    return found | {"predicted_us": predicted_us, "measured_us": measured_us, "ratio": ratio}


def test_a_page_of_verified_elites(tmp_path: Path) -> None:
    document = {
        "problem": "1x8x512x64-fp16",
        "predicted_for": "NVIDIA H200 SXM5 141GB",
        "model": "model-v4",
        "device": "NVIDIA H200",
        "compared": 2,
        "spearman": None,
        "median_ratio": 1.05,
        "best_rank": 2,
        "best_us": 4.4,
        "elites": [elite(1, 4.0, 4.5, 1), elite(2, 4.1, 4.4, 2), elite(3, 4.2, None, 2)],
    }
    (tmp_path / "one.json").write_text(json.dumps(document))
    said = run("verify_report.py", tmp_path / "one.json", "--out", tmp_path / "page")
    assert json.loads((tmp_path / "page.json").read_text()) == [document]
    assert "| 2 | 4.00 to 4.20 µs | 4.40 to 4.50 µs | – | 1.050 | number 2 predicted |" in said
    assert "| 1 | 4.00 | 4.50 | 1.125 | ok | mma | STAGES_K=1 |" in said
    assert "| 3 | 4.20 | – | – | not valid here | mma | STAGES_K=2 |" in said
    assert "BLOCK_N" not in said, "all have the same"
