"""Searches whose workers die, and searches that share one file, lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evoengine.device.workers.pool import WorkerPool
from evoengine.engine.workers.pools import JobRule, WorkerService
from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Status
from evoengine.search.candidate.jobs import Challenge, Examine, Inspect
from evoengine.search.candidate.results import Candidate, Examination
from evoengine.search.settings import SearchSettings
from tests.search.landscape import build_space, true_us
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, many_faults, open_search, study_key

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def start(database: str, folder: Path, budget: int, seed: int = 0, together: str = "") -> subprocess.Popen[str]:
    """Starts a search in a process of its own.

    Args:
        database: URL of the leaderboard.
        folder: Folder for the search space.
        budget: Candidates of the study.
        seed: Random seed of the study.
        together: Folder through which two searches wait for each other before their first examination.
    """
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "tests.search.synthetic"]
    return subprocess.Popen(
        [*command, database, str(folder), str(budget), str(seed), together],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def stored_in(database: str, folder: Path, seed: int = 0) -> list[Stored]:
    """Rows of the study; checks that no config was evaluated twice and that every time is the landscape's."""
    folder.mkdir(exist_ok=True)
    key = study_key(SearchSettings(budget=1, seed=seed), build_space(folder))
    with Leaderboard(database) as board:
        study = board.open_study(key)
        stored = board.evaluations(study)
    assert len({entry.evaluation.config for entry in stored}) == len(stored)
    for entry in stored:
        if entry.evaluation.timing is not None:
            assert entry.evaluation.timing.median_us == true_us(entry.evaluation.config)
    return stored


class DyingExaminer(SyntheticExaminer):
    """Kills its own process on some candidates."""

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        if many_faults(candidate.config) == "raise examine":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().examine(candidate, champion_us)


def test_a_worker_that_dies_costs_one_candidate(tmp_path: Path) -> None:
    space, settings = build_space(tmp_path), SearchSettings(budget=60)
    rules = dict.fromkeys((Examine, Challenge, Inspect), JobRule(600.0))
    with Leaderboard(f"sqlite:///{tmp_path / 'board.db'}") as board, WorkerPool(DyingExaminer, 2, 600.0) as pool:
        search, study = open_search(board, space, settings, SyntheticCompiler(), WorkerService(pool, rules))
        assert search.run().progress.evaluated == 60
        stored = board.evaluations(study)
    crashed = {entry.evaluation.config for entry in stored if entry.evaluation.status is Status.CRASHED}
    assert crashed == {e.evaluation.config for e in stored if many_faults(e.evaluation.config) == "raise examine"}
    assert crashed
    assert all(entry.evaluation.ok for entry in stored if entry.evaluation.config not in crashed)


def test_two_searches_on_one_study_share_its_budget(tmp_path: Path) -> None:
    database, budget = f"sqlite:///{tmp_path / 'board.db'}", 80
    together = tmp_path / "together"
    together.mkdir()
    processes = [start(database, tmp_path / f"space{index}", budget, together=str(together)) for index in range(2)]
    outputs = [process.communicate() for process in processes]
    lines = [output.splitlines()[-1].split() for output, _ in outputs]
    assert [line[0] for line in lines] == ["BUDGET_REACHED"] * 2, outputs
    stored = stored_in(database, tmp_path / "space")
    counted = [entry.evaluation for entry in stored if entry.evaluation.status is not Status.DUPLICATE]
    # Both may be at two configs of one kernel at the same moment: two rows, but one candidate.
    kernels = {(entry.code_hash or entry.config.key, entry.status is Status.RESOURCE_LIMIT) for entry in counted}
    assert len(kernels) == budget
    assert len(counted) <= budget + 10
    shares = [int(line[2]) for line in lines]
    assert min(shares) > 0
    assert sum(shares) == len(counted)


@pytest.mark.thorough
def test_two_studies_in_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'board.db'}"
    processes = [start(database, tmp_path / f"space{seed}", 40, seed) for seed in (0, 1)]
    for process in processes:
        output, errors = process.communicate()
        assert output.splitlines()[-1:] == ["BUDGET_REACHED 40 40"], errors
    for seed in (0, 1):
        stored = stored_in(database, tmp_path / f"space{seed}", seed)
        assert sum(entry.evaluation.status is not Status.DUPLICATE for entry in stored) == 40
