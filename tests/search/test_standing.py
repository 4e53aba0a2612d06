"""Why a run's best row is not the champion, for each way in which it can miss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Duel, Evaluation, Problem, Status, Timing
from evoengine.search.champion.refusal import REFUSED
from evoengine.search.champion.standing import Standing, standing_of

GPU = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False, driver="13.0", nvrtc="13.0.88")
KEY = StudyKey(Problem(1, 8, 512, 64), "mma", GPU, "graph-warm", "evolution", 0, "space1")
THRESHOLD = 0.03
SAMPLED = Duel((4.9,) * 9, (5.0,) * 9, 0.02, 0.013, THRESHOLD, False)
STORED = replace(SAMPLED, challenger_us=(4.9,), champion_us=(5.0,))


def evaluation(number: int, us: float, code: str = "", note: str = "") -> Evaluation:
    timing = Timing(us, us - 0.1, us + 0.1, False, "graph-warm", (us,) * 6)
    config = Config.of("mma", {"BLOCK": number})
    notes = (note,) if note else ()
    return Evaluation(config, Status.OK, code_hash=code or f"c{number}", timing=timing, notes=notes)


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Leaderboard]:
    """Returns a leaderboard whose row 1 takes 5 us and is champion."""
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as opened:
        champion = opened.record(opened.open_study(KEY), evaluation(1, 5.0))
        assert opened.record_challenge(KEY.scope, champion, None, None)
        yield opened


def standing(board: Leaderboard, rival: Evaluation, duel: Duel | None = None, *, seed: int = 0) -> Standing:
    """Stores another row, and its challenge if there was one, and returns its standing."""
    row_id = board.record(board.open_study(replace(KEY, seed=seed)), rival)
    if duel is not None:
        assert board.record_challenge(KEY.scope, row_id, 1, duel) is duel.accepted
    found = standing_of(board, KEY.scope, row_id, THRESHOLD)
    assert found.best is not None
    assert found.best.id == row_id
    return found


def test_a_run_without_a_correct_row_has_no_best(board: Leaderboard) -> None:
    assert standing_of(board, KEY.scope, None, THRESHOLD) == Standing(None, "")


def test_the_champion_has_no_difference(board: Leaderboard) -> None:
    assert standing_of(board, KEY.scope, 1, THRESHOLD).difference == ""
    won = replace(SAMPLED, accepted=True)
    assert standing(board, evaluation(2, 4.9), won).difference == ""


@pytest.mark.parametrize(
    ("rival", "duel", "words"),
    [
        (evaluation(2, 4.5), None, ["not finished"]),
        (evaluation(2, 4.9), None, ["2.0% faster", "row 1", "3.0%"]),
        (evaluation(2, 5.5), None, ["10.0% slower", "row 1", "this search"]),
        (evaluation(2, 5.0), None, ["as fast as row 1"]),
        (evaluation(2, 4.9, code="c1"), None, ["same kernel as row 1"]),
        (evaluation(2, 4.9), SAMPLED, ["lost its duel", "2.0%", "95 %", "at least 1.3%"]),
        (evaluation(2, 4.9), STORED, ["lost its duel", "stored times", "at least 1.3% in the worst case"]),
        (evaluation(2, 4.0, note=f"{REFUSED}a race"), None, ["failed its inspection", "a race"]),
    ],
    ids=["unfinished", "below the threshold", "slower", "equal", "twin", "duel", "stored times", "refused"],
)
def test_the_reason_is_named(board: Leaderboard, rival: Evaluation, duel: Duel | None, words: list[str]) -> None:
    reason = standing(board, rival, duel).difference
    assert [word for word in words if word not in reason] == []


def test_a_slower_row_names_the_study_of_the_champion(board: Leaderboard) -> None:
    assert "of study 1" in standing(board, evaluation(2, 5.5), seed=1).difference


def test_a_pending_row_waits_for_its_check(board: Leaderboard) -> None:
    row_id = board.record(board.open_study(KEY), evaluation(2, 4.0))
    assert board.record_challenge(KEY.scope, row_id, 1, replace(SAMPLED, accepted=True), pending=True)
    assert "compute-sanitizer" in standing_of(board, KEY.scope, row_id, THRESHOLD).difference
