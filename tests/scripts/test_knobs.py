"""``scripts/measure/landscape_knobs.py``: its table by hand, and a page of a recorded landscape."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from evoengine.landscape.file import read_landscape

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "measure" / "landscape_knobs.py"
LANDSCAPE = ROOT / "docs/results/landscapes/mission-h200.landscape.xz"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        return importlib.import_module("landscape_knobs")
    finally:
        sys.path.remove(str(SCRIPT.parent))


def test_a_table_by_hand(script: ModuleType) -> None:
    lines = [script.Line("STAGES", 1, 3, 5.0), script.Line("STAGES", 2, 1, 4.0)]
    text = script.table(lines, "title")
    assert text.splitlines()[0] == "title"
    assert "| STAGES | 1 | 3 | 5.00 | 1.250 |" in text
    assert "| STAGES | 2 | 1 | 4.00 | 1.000 |" in text


def test_a_recorded_landscape_keeps_its_best_and_its_counts(tmp_path: Path) -> None:
    out = tmp_path / "knobs.md"
    command = [sys.executable, str(SCRIPT), str(LANDSCAPE), "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert out.read_text(encoding="utf-8") == done.stdout
    cells = [row.strip("| ").split(" | ") for row in done.stdout.splitlines() if row.startswith("| ")][1:]
    landscape = read_landscape(LANDSCAPE)
    best, correct = landscape.best, sum(evaluation.ok for evaluation in landscape.evaluations)
    for knob in {row[0] for row in cells}:
        mine = {row[1]: row for row in cells if row[0] == knob}
        assert sum(int(row[2]) for row in mine.values()) == correct
        assert mine[str(best.config[knob])][4] == "1.000"
