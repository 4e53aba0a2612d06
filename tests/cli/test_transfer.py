"""Warm start from the leaderboard's rows of a near problem, and the option that turns it off."""

from __future__ import annotations

import re

import pytest

from tests.cli.calling import Evo

SEARCH = ("search", "--device=emulator", "--family=mma", "--budget=1", "--no-forecast", "--no-skip", "--workers=1")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_search_begins_with_rows_of_a_near_problem(evo: Evo) -> None:
    empty = evo(*SEARCH, "--problem=1x1x32x16").out
    assert "transfer  row " not in empty
    assert re.search(r"transfer \(none.*\); off: forecast, skip$", empty, re.MULTILINE)
    text = evo(*SEARCH, "--problem=1x1x64x16").out
    assert "transfer  row " in text
    assert re.search(r"transfer \(1 config.*\); off: forecast, skip$", text, re.MULTILINE)
    assert re.search("1x1x32x16-fp16, predicted on NVIDIA L4, distance [0-9.]+", text)
    alone = evo(*SEARCH, "--problem=1x2x32x16", "--no-transfer", "--json").json()
    assert alone["transferred"] == []
    assert (alone["priors"], alone["priors_off"]) == (["starts"], ["forecast", "transfer", "skip"])
