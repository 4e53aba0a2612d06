"""Forecasts by several processes: the same times as in one, also when processes are killed or too slow."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from evoengine.engine.forecast_workers import ForecastSetup, ForecastWorkers, parallel_forecasts
from evoengine.model import Problem
from evoengine.search.warmstart.forecast import fastest_by_forecast, forecasts_for
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.language.loader import find_space
from evoengine.target import get_target

PROBLEM, TARGET, SPACES = Problem(1, 2, 256, 64), get_target("h200"), (find_space("hopper"), find_space("mma"))
VALID = FamilySpaces(tuple(space.build(PROBLEM, TARGET) for space in SPACES))
WORKERS = 2


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("limit_s", [60.0, 0.0], ids=["in time", "too late"])
def test_times_are_those_of_one_process(limit_s: float) -> None:
    here, before = forecasts_for(SPACES, PROBLEM, TARGET), children(os.getpid())
    space = VALID.of("hopper")
    rows = space.sample_rows(np.random.default_rng(0), 12)
    times = here["hopper"].us_of_rows(space, rows).tolist()
    with closing(ForecastWorkers(ForecastSetup(VALID, SPACES, PROBLEM, TARGET), WORKERS, limit_s=limit_s)) as workers:
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


@pytest.fixture
def workers() -> Iterator[ForecastWorkers]:
    with closing(ForecastWorkers(ForecastSetup(VALID, SPACES, PROBLEM, TARGET), WORKERS)) as opened:
        yield opened


def test_the_choice_of_the_first_configs_is_that_of_one_process(workers: ForecastWorkers) -> None:
    here = forecasts_for(SPACES, PROBLEM, TARGET)
    shared = parallel_forecasts(forecasts_for(SPACES, PROBLEM, TARGET), workers)
    assert fastest_by_forecast(VALID, shared, seed=0, count=24) == fastest_by_forecast(VALID, here, seed=0, count=24)


def test_closing_ends_a_choice_that_is_under_way(workers: ForecastWorkers) -> None:
    shared = parallel_forecasts(forecasts_for(SPACES, PROBLEM, TARGET), workers)
    with ThreadPoolExecutor(1) as thread:
        choice = thread.submit(fastest_by_forecast, VALID, shared, seed=0, count=24)
        workers.close()
        assert isinstance(choice.exception(), RuntimeError | CancelledError)
