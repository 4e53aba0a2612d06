"""Search on a replay: recorded outcomes, separate rankings, reproducibility."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.landscape.file import read_landscape
from evoengine.landscape.landscape import Landscape
from evoengine.landscape.noise import Noise
from evoengine.landscape.synthetic import analytical_landscape
from evoengine.leaderboard.records import RowFilter, Study, StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Status
from evoengine.search.loop import Search
from evoengine.search.replay import ReplayService, replay_info
from evoengine.search.settings import SearchResult, SearchSettings, StopReason
from evoengine.search.warmstart.resume import start_strategy
from tests.landscape.making import RECORDED, toy


def search(
    board: Leaderboard, landscape: Landscape, budget: int, strategy: str = "random", noise: Noise | None = None
) -> tuple[Study, SearchResult]:
    noise = noise or Noise()
    assert landscape.problem is not None
    families = ",".join(landscape.spaces.families)
    key = StudyKey(landscape.problem, families, replay_info(landscape, noise), landscape.method, strategy, 0)
    study = board.open_study(key)
    settings = SearchSettings(budget, strategy)
    asked = start_strategy(settings, landscape.spaces, board, study, log_trials=False)
    replay = ReplayService(landscape, noise, 0.03, board.evaluated(study))
    return study, Search(settings, board, study, asked, replay, replay).run()


def test_all_outcomes_are_replayed_as_recorded(tmp_path: Path) -> None:
    landscape = toy()
    with Leaderboard(f"sqlite:///{tmp_path / 'a.db'}") as board:
        study, result = search(board, landscape, 12)
        stored = {entry.evaluation.config: entry.evaluation for entry in board.evaluations(study)}
    assert result.stop is StopReason.SPACE_EXHAUSTED
    assert set(stored) == set(landscape.by_config)
    statuses = sorted(evaluation.status.value for evaluation in stored.values())
    assert statuses == ["compile_failed", "duplicate", "ok", "ok", "timeout"]  # two configs are the same kernel
    for config, evaluation in stored.items():
        recorded = landscape.by_config[config]
        if evaluation.status is not Status.DUPLICATE:
            assert (evaluation.status, evaluation.reason) == (recorded.status, recorded.reason)
            assert (evaluation.timing, evaluation.resources) == (recorded.timing, recorded.resources)
            assert evaluation.code_hash == recorded.code_hash
    assert result.champion is not None
    assert result.champion.median_us == 8.0
    assert not result.champion.predicted


def test_predicted_rows_have_their_own_ranking(tmp_path: Path) -> None:
    recorded = read_landscape(RECORDED)
    with Leaderboard(f"sqlite:///{tmp_path / 'a.db'}") as board:
        _, predicted = search(board, recorded, 20)
        _, measured = search(board, toy(), 12)
        noisy = toy()
        _, scattered = search(board, noisy, 12, noise=Noise(0.01, 0.01, 4))
        rows = board.rows(RowFilter())
    assert predicted.champion is not None
    assert predicted.champion.predicted
    scopes = {(row.device_kind, row.device, row.predicted) for row in rows}
    assert {kind for kind, _, _ in scopes} == {"replay"}
    assert len(scopes) == 3
    assert sum(row.champion for row in rows) == 3
    assert f"NVIDIA H200, landscape {toy().key}" in {device for _, device, _ in scopes}
    assert measured.champion is not None
    assert scattered.champion is not None
    assert scattered.champion.median_us != measured.champion.median_us


def test_a_search_on_a_replay_is_reproducible_and_resumes(tmp_path: Path) -> None:
    landscape = read_landscape(RECORDED)
    found = []
    for name, budgets in (("whole", (30,)), ("again", (30,)), ("in parts", (12, 30))):
        with Leaderboard(f"sqlite:///{tmp_path / name}.db") as board:
            for budget in budgets:
                study, _ = search(board, landscape, budget, "evolution")
            found.append({entry.evaluation.config for entry in board.evaluations(study)})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 30


@pytest.mark.thorough
def test_a_search_improves_on_a_noisy_formula(tmp_path: Path) -> None:
    landscape = analytical_landscape(1)
    with Leaderboard(f"sqlite:///{tmp_path / 'a.db'}") as board:
        study, result = search(board, landscape, 60, "evolution", Noise(0.01, 0.01, 2))
        failed = [entry.evaluation for entry in board.evaluations(study) if not entry.evaluation.ok]
    assert result.champion is not None
    champion = next(e for e in landscape.evaluations if e.config.as_dict() == dict(result.champion.config))
    times = sorted(e.value_us for e in landscape.evaluations if e.value_us is not None)
    assert champion.value_us is not None
    assert champion.value_us < times[len(times) // 50]  # among the best two per cent
    assert all(evaluation.status is Status.LAUNCH_FAILED for evaluation in failed)
