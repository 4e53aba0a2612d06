"""``record_results.py`` on the emulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scripts.running import Run


@pytest.mark.thorough
def test_record_results_writes_a_page_and_its_data(run: Run, tmp_path: Path) -> None:
    words = ("--problem=1x1x16x16", "--budget=3", "--name=tiny", "--device=emulator", f"--out={tmp_path}")
    done = run("record_results.py", *words)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "tiny.json").read_text())
    assert report["search"]["evaluated"] == 3
    assert report["search"]["predicted"] is True
    assert report["peak_memory_mib"] > 0
    page = (tmp_path / "tiny.md").read_text()
    assert "**predicted** on NVIDIA L4" in page
    assert f"{report['search']['champion']['median_us']:.2f} µs" in page
