"""``foresight_gpu.py``: predictions are read, and never mixed with the searches on the GPU."""

from __future__ import annotations

from pathlib import Path

from evoengine.leaderboard.store import Leaderboard
from tests.report.boards import L4, key_of
from tests.scripts.running import run


def test_a_folder_that_has_the_predictions_is_refused(tmp_path: Path) -> None:
    """Searches write a leaderboard of the same name there."""
    board = tmp_path / "p1.db"
    with Leaderboard(f"sqlite:///{board}") as opened:
        opened.open_study(key_of(L4))
    before = board.read_bytes()
    done = run("foresight_gpu.py", board, "--work", tmp_path, "--time-limit", 0)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path) in done.stderr
    assert board.read_bytes() == before
    apart = run("foresight_gpu.py", board, "--work", tmp_path / "work", "--time-limit", 0)
    assert apart.returncode == 1, apart.stderr
    assert "0 of 1 problems are measured" in apart.stdout
