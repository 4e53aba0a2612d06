"""Machine code that killed its worker twice does not run again on that device, whichever search proposes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest

from evoengine.device.workers.worker_slot import KILLER
from evoengine.errors import WorkerCrashError
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Evaluation, Status
from evoengine.search.candidate.results import Candidate, Examination
from evoengine.search.loop import Search
from evoengine.search.settings import SearchSettings
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.valid_space import ValidSpace
from tests.search.synthetic import SyntheticCompiler, SyntheticExaminer, study_key

pytestmark = pytest.mark.slow

BUDGET = 4


@dataclass
class Dangerous(SyntheticExaminer):
    """One config crashes its worker."""

    deadly: str = ""
    story: str = f"{KILLER}: SIGKILL"

    def examine(self, candidate: Candidate, champion_us: float | None = None) -> Examination:
        if candidate.config.key == self.deadly:
            self.examined.append(candidate.config.key)
            raise WorkerCrashError(self.story)
        return super().examine(candidate, champion_us)


def search(
    board: Leaderboard, space: ValidSpace, examiner: Dangerous, seed: int, device: str = "Synthetic GPU"
) -> Evaluation:
    """Searches the first configs in a study of its own; returns the evaluation of the crashing one."""
    settings = SearchSettings(budget=BUDGET, seed=seed)
    key = study_key(settings, space)
    study = board.open_study(replace(key, device=replace(key.device, name=device)))
    configs = [space.config(index) for index in range(BUDGET)]
    strategy = start_strategy(settings, space, board, study, starts=configs, log_trials=False)
    Search(settings, board, study, strategy, SyntheticCompiler(), examiner).run()
    rows = {stored.evaluation.config: stored.evaluation for stored in board.evaluations(study)}
    assert rows.keys() == set(configs)
    assert sum(row.ok for row in rows.values()) >= BUDGET - 1
    return rows[configs[1]]


def test_another_search_does_not_run_it(board: Leaderboard, space: ValidSpace) -> None:
    deadly = space.config(1).key
    first = search(board, space, Dangerous(deadly=deadly), seed=0)
    assert (first.status, first.reason) == (Status.CRASHED, f"{KILLER}: SIGKILL")
    for seed in (1, 2):
        careful = Dangerous(deadly=deadly)
        again = search(board, space, careful, seed)
        assert again.status is Status.CRASHED
        assert re.match(rf"{re.escape(KILLER)} .*row \d+", again.reason)
        assert deadly not in careful.examined
        assert again.source_hash == first.source_hash


def test_another_gpu_may_run_it_and_other_crashes_do_not_count(board: Leaderboard, space: ValidSpace) -> None:
    deadly = space.config(1).key
    search(board, space, Dangerous(deadly=deadly), seed=0)
    elsewhere = Dangerous()
    assert search(board, space, elsewhere, seed=0, device="Another GPU").ok
    harmless = space.config(1).key
    search(board, space, Dangerous(deadly=harmless, story="its worker gave a malformed answer"), 5, "Third GPU")
    assert search(board, space, Dangerous(), 6, "Third GPU").ok
