"""``foresight_gpu.py``: predictions are never mixed with the searches on the GPU, and finished steps are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evoengine.leaderboard.store import Leaderboard
from tests.report.boards import L4, MISSION, key_of
from tests.scripts.running import Run


def test_a_folder_that_has_the_predictions_is_refused(run: Run, tmp_path: Path) -> None:
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


@pytest.mark.thorough
def test_a_finished_step_is_kept_when_the_next_one_fails(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU the first search fails; the step before it, a module that was not exported, needs none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    board, work = tmp_path / "p1.db", tmp_path / "work"
    work.mkdir()
    with Leaderboard(f"sqlite:///{board}") as opened:
        opened.open_study(key_of(L4))
    state = work / "state.json"
    state.write_text(json.dumps({MISSION.key: {"verify": {}}}))
    done = run("foresight_gpu.py", board, "--work", work)
    assert done.returncode == 1, done.stderr
    assert "search: " in done.stdout
    assert json.loads(state.read_text()) == {
        MISSION.key: {"verify": {}, "module": {"seconds": None, "said": "no module"}}
    }


def test_the_loss_is_of_times_in_turns(run: Run, tmp_path: Path) -> None:
    """By the stored times, of two processes, the shortlist would lose 25 %."""
    board, work = tmp_path / "p1.db", tmp_path / "work"
    work.mkdir()
    with Leaderboard(f"sqlite:///{board}") as opened:
        opened.open_study(key_of(L4))
    verify = {"device": "a GPU", "model": "m", "compared": 2, "spearman": 0.5, "median_ratio": 1.0, "best_us": 5.0}
    steps = {
        "verify": verify,
        "module": {"seconds": None, "said": ""},
        "search": {"times_us": [6.0, None, 4.1, 4.0]},
        "in_turns": {
            "seconds": 9.0,
            "pairs_us": {"verify": [[5.0, 4.6], [5.2, 4.4]], "search": [[4.0, 4.2], [4.1, 4.0]], "unaided": []},
        },
    }
    (work / "state.json").write_text(json.dumps({MISSION.key: steps}))
    out = tmp_path / "page"
    done = run("foresight_gpu.py", board, "--work", work, "--unaided-budget", 0, "--out", out)
    assert done.returncode == 0, done.stderr
    (row,) = (line for line in out.with_suffix(".md").read_text().splitlines() if line.startswith(f"| {MISSION.key}"))
    cells = [cell.strip() for cell in row.split("|")][1:-1]
    assert cells[3:9] == ["4.40", "4.00", "+10.0%", "+25.0%", "–", "3"]
