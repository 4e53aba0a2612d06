"""The scripts that the docs tell people to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_record_results_writes_a_page_and_its_data(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "scripts/measure/record_results.py"),
        "--problem=tiny",
        "--budget=3",
        "--name=tiny",
    ]
    subprocess.run([*command, "--device=emulator", f"--out={tmp_path}"], check=True, capture_output=True, cwd=ROOT)
    report = json.loads((tmp_path / "tiny.json").read_text())
    assert report["search"]["evaluated"] == 3
    assert report["search"]["predicted"] is True
    assert report["peak_memory_mib"] > 0
    page = (tmp_path / "tiny.md").read_text()
    assert "**predicted** on NVIDIA L4" in page
    assert f"{report['search']['champion']['median_us']:.2f} µs" in page
