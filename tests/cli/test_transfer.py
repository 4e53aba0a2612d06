"""Warm start from the leaderboard's rows of a near problem, and the option that turns it off."""

from __future__ import annotations

import pytest

from tests.cli.calling import Evo

SEARCH = ("search", "--device=emulator", "--family=mma", "--budget=1", "--no-forecast", "--no-skip", "--workers=1")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_search_begins_with_rows_of_a_near_problem(evo: Evo) -> None:
    empty = evo(*SEARCH, "--problem=1x1x32x16").out
    assert "transfer  row " not in empty
    assert ", transfer (none known); off: forecast, skip\n" in empty
    text = evo(*SEARCH, "--problem=1x1x64x16").out
    assert "transfer  row " in text
    assert ", transfer (1 config tried first); off: forecast, skip\n" in text
    assert "of 1x1x32x16-fp16, predicted on NVIDIA L4, distance " in text
    alone = evo(*SEARCH, "--problem=1x2x32x16", "--no-transfer", "--json").json()
    assert alone["transferred"] == []
    assert (alone["priors"], alone["priors_off"]) == (["starts"], ["forecast", "transfer", "skip"])
