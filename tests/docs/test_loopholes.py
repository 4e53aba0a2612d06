"""Checks that every test, mutant and cheat named on the page of loopholes exists."""

from __future__ import annotations

import re

from evoengine.parity.mutants import MUTANTS
from tests.cheats.corpus import cheats
from tests.cli.calling import ROOT

PAGE = (ROOT / "docs" / "loopholes.md").read_text("utf-8")
CLOSED, _STILL_OPEN = PAGE.split("## Wrong kernels that are still accepted")
TABLES = [
    [line.split("|")[1:-1] for line in part.splitlines() if line.startswith("| ")][1:]
    for part in CLOSED.split("## Intentional cheats")
]
FILES = [*(ROOT / "tests").rglob("*.py"), ROOT / "evoengine" / "device" / "contract.py"]


def test_every_loophole_is_closed_by_a_test_or_a_mutant_that_exists() -> None:
    code = "\n".join(file.read_text("utf-8") for file in FILES)
    tests = set(re.findall(r"^ *def (test_\w+)\(", code, re.MULTILINE))
    mistakes, intended = TABLES
    assert (len(mistakes), len(intended)) == (26, 15)
    accidents = [(row, tests | {mutant.name for mutant in MUTANTS}) for row in mistakes]
    intents = [(row, tests | {cheat.name for cheat in cheats()}) for row in intended]
    for (what, _, shown), there in accidents + intents:
        names = re.findall(r"`([^`]+)`", shown)
        assert names, what
        assert [name for name in names if name not in there] == [], what


def test_the_page_counts_the_cheats() -> None:
    assert re.findall(r"holds (\d+) such kernels", PAGE) == [str(len(cheats()))]
