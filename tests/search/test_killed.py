"""``kill -9`` of the process tree at random moments: no row is lost, and the result is that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from evoengine.leaderboard.store import Leaderboard, Stored
from evoengine.model import Config
from evoengine.search.settings import SearchSettings
from evoengine.search.trial_log import open_optuna_study
from evoengine.search.warmstart.resume import outcomes
from tests.search.killable import run_search, server, start
from tests.search.landscape import build_space
from tests.search.synthetic import study_key

pytestmark = pytest.mark.slow

KILLS = 6
BUDGET = 30
SLOW_S = 0.01


def stored_in(file: Path, folder: Path, settings: SearchSettings) -> list[Stored]:
    """Rows of a study; checks that the file is intact and that no config was evaluated twice."""
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Leaderboard(f"sqlite:///{file}") as board:
        stored = board.evaluations(board.open_study(study_key(settings, build_space(folder))))
    assert len({entry.evaluation.config for entry in stored}) == len(stored)
    return stored


def assert_logged(file: Path, stored: list[Stored]) -> None:
    """Checks that the Optuna study has a trial for each row."""
    with Leaderboard(f"sqlite:///{file}") as board:
        (study,) = board.studies()
        trials = open_optuna_study(board, study).get_trials()
    logged = Counter(tuple(sorted(trial.params.items())) for trial in trials)
    assert logged == Counter(entry.evaluation.config.values for entry in stored)


def learned(stored: list[Stored]) -> dict[Config, float | None]:
    """Value of each evaluation; which of two equal kernels came first does not matter."""
    return {outcome.config: outcome.value_us for outcome in outcomes(stored)}


def test_killed_searches_end_with_the_evaluations_of_undisturbed_ones(tmp_path: Path) -> None:
    context, rng = server(), np.random.default_rng(7)
    kills, seed = 0, 0
    while kills < KILLS:
        seed += 1
        settings = SearchSettings(budget=BUDGET, seed=seed, strategy="evolution", head=20 * (seed % 2))
        folder, file = tmp_path / str(seed), tmp_path / f"{seed}.db"
        folder.mkdir()
        begin_s = time.monotonic()
        assert (
            run_search(f"sqlite:///{tmp_path / f'whole{seed}.db'}", str(folder), settings, SLOW_S) == "BUDGET_REACHED"
        )
        whole_s = time.monotonic() - begin_s
        expected = learned(stored_in(tmp_path / f"whole{seed}.db", folder, settings))
        known: list[Stored] = []
        patience_s = 0.5 * whole_s
        while True:
            process, pipe = start(context, f"sqlite:///{file}", folder, settings, SLOW_S)
            assert pipe.recv() == "ready"
            if pipe.poll(rng.uniform(0, patience_s)):
                break
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            kills += 1
            now = stored_in(file, folder, settings) if file.exists() else []
            if len(now) == len(known):
                patience_s *= 1.5  # on a busy machine even the start takes longer than that
            assert now[: len(known)] == known, "what was recorded stays as it was"
            assert learned(now).items() <= expected.items()
            known = now
        assert pipe.recv() == "BUDGET_REACHED"
        process.join()
        final = stored_in(file, folder, settings)
        assert final[: len(known)] == known
        assert learned(final) == expected
        assert_logged(file, final)
