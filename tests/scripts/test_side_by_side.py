"""``side_by_side.py``: which rows of which leaderboards are timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Problem
from tests.report.boards import H200, L4, MISSION, evaluation, key_of
from tests.scripts.running import Run, load


def _board(path: Path, problem: Problem = MISSION) -> Path:
    """A leaderboard with predictions, and three measured rows, of which two share their machine code."""
    with Leaderboard(f"sqlite:///{path}") as board:
        study = board.open_study(key_of(L4, problem))
        board.record(study, evaluation(0, 1.0, predicted=True))
        study = board.open_study(key_of(H200, problem))
        board.record(study, evaluation(1, 7.0))
        board.record(study, evaluation(2, 5.0))
        board.record(study, replace(evaluation(3, 6.0), code_hash="mma2"))
    return path


def test_the_fastest_measured_rows_are_read_each_machine_code_once(tmp_path: Path) -> None:
    board = _board(tmp_path / "one.db")
    script = load("side_by_side")
    assert [record.row.median_us for record in script.fastest(board, 20)] == [5.0, 7.0]
    assert [record.row.median_us for record in script.fastest(board, 1)] == [5.0]


def test_leaderboards_of_two_problems_are_refused(run: Run, tmp_path: Path) -> None:
    boards = _board(tmp_path / "one.db"), _board(tmp_path / "two.db", Problem(1, 8, 1024, 64))
    done = run("side_by_side.py", *boards)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "2 problems" in done.stderr
