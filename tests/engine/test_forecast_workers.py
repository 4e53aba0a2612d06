"""Forecasts by several processes: the same times as in one, also when processes are killed or too slow."""

from __future__ import annotations

import os
import signal
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from evoengine.engine.forecast_workers import ForecastSetup, ForecastWorkers, parallel_forecasts
from evoengine.model import Problem
from evoengine.search.warmstart.forecast import forecasts_for
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.language.loader import find_space
from evoengine.target import get_target

PROBLEM = Problem(1, 2, 256, 64)
WORKERS = 2


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("limit_s", [60.0, 0.0], ids=["in time", "too late"])
def test_times_are_those_of_one_process(limit_s: float) -> None:
    spaces, target = (find_space("hopper"), find_space("mma")), get_target("h200")
    valid = FamilySpaces(tuple(space.build(PROBLEM, target) for space in spaces))
    here, before = forecasts_for(spaces, PROBLEM, target), children(os.getpid())
    space = valid.of("hopper")
    rows = space.sample_rows(np.random.default_rng(0), 12)
    times = here["hopper"].us_of_rows(space, rows).tolist()
    with closing(ForecastWorkers(ForecastSetup(valid, spaces, PROBLEM, target), WORKERS, limit_s)) as workers:
        shared = parallel_forecasts(here, workers)
        assert shared["mma"] is here["mma"], "hundreds of its configs take little longer than one"
        assert shared["hopper"].at_once == 2 * WORKERS
        assert shared["hopper"].us_of_rows(space, rows[:1]).tolist() == times[:1]
        assert shared["hopper"].us_of_rows(space, rows[:6]).tolist() == times[:6]
        for server in set(children(os.getpid())) - set(before):
            with suppress(OSError):  # those that are too late are replaced all the time
                for worker in children(server):
                    os.kill(worker, signal.SIGKILL)
        assert shared["hopper"].us_of_rows(space, rows).tolist() == times
