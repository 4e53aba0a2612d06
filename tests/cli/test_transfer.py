"""What a search takes over from the leaderboard's rows for a near problem, and the flag that turns it off."""

from __future__ import annotations

from tests.cli.calling import Evo

SEARCH = ("search", "--device=emulator", "--family=scalar", "--budget=1", "--no-forecast", "--no-skip", "--workers=1")


def test_a_near_problem_begins_with_what_is_known_and_the_flag_turns_it_off(evo: Evo) -> None:
    assert "transfer" not in evo(*SEARCH, "--problem=1x1x32x32").out  # nothing is there yet
    told = evo(*SEARCH, "--problem=1x1x64x32").out
    assert "transfer  row " in told
    assert "of 1x1x32x32-fp16, predicted on NVIDIA L4, distance " in told
    alone = evo(*SEARCH, "--problem=1x2x32x32", "--no-transfer", "--json").json()
    assert alone["transferred"] == []
