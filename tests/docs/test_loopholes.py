"""Checks that every test and mutant named on the page of loopholes exists."""

from __future__ import annotations

import re

from evoengine.parity.mutants import MUTANTS
from tests.cli.calling import ROOT

PAGE = (ROOT / "docs" / "loopholes.md").read_text("utf-8")
CELLS = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
ROWS = [cells for cells in CELLS if len(cells) == 3][1:]
"""Rows of the table of loopholes, without its header; that of cheats has two columns, and tests of its own."""
FILES = [*(ROOT / "tests").rglob("*.py"), ROOT / "evoengine" / "device" / "contract.py"]


def test_every_loophole_is_closed_by_a_test_or_a_mutant_that_exists() -> None:
    code = "\n".join(file.read_text("utf-8") for file in FILES)
    there = {mutant.name for mutant in MUTANTS} | set(re.findall(r"^ *def (test_\w+)\(", code, re.MULTILINE))
    assert len(ROWS) == 26
    for what, _, shown in ROWS:
        names = re.findall(r"`([^`]+)`", shown)
        assert names, what
        assert [name for name in names if name not in there] == [], what
