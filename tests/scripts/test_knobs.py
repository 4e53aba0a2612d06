"""``knobs.py landscape``: a table from hand-made lines, and one of a recorded landscape."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from evoengine.landscape.file import read_landscape
from tests.scripts.running import ROOT, Run, load

LANDSCAPE = ROOT / "docs/results/landscapes/mission-h200.landscape.xz"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load("knobs")


def test_table_of_hand_made_lines(script: ModuleType) -> None:
    lines = [script.Line("STAGES", 1, 3, 5.0), script.Line("STAGES", 2, 1, 4.0)]
    text = script.table(lines, "title")
    assert text.splitlines()[0] == "title"
    assert "| STAGES | 1 | 3 | 5.00 | 1.250 |" in text
    assert "| STAGES | 2 | 1 | 4.00 | 1.000 |" in text


@pytest.mark.thorough
def test_table_of_a_recorded_landscape(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "knobs.md"
    done = run("knobs.py", "landscape", LANDSCAPE, "--out", out)
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8") == done.stdout
    cells = [row.strip("| ").split(" | ") for row in done.stdout.splitlines() if row.startswith("| ")][1:]
    landscape = read_landscape(LANDSCAPE)
    best, correct = landscape.best, sum(evaluation.ok for evaluation in landscape.evaluations)
    for knob in {row[0] for row in cells}:
        lines = {row[1]: row for row in cells if row[0] == knob}
        assert sum(int(row[2]) for row in lines.values()) == correct
        assert lines[str(best.config[knob])][4] == "1.000"
