"""Forecasts by several processes: the same times as in one, also when processes are killed or too slow."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from evoengine.engine.workers import forecast as forecast_workers
from evoengine.engine.workers.forecast import ForecastSetup, ForecastWorkers, chosen_by_forecast
from evoengine.model import Problem
from evoengine.search.forecast.choice import LONG, fastest_by_forecast, forecasts_for
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space
from evoengine.target import get_target

PROBLEM = Problem(1, 2, 256, 64)
WORKERS = 2


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("limit_s", [60.0, 0.0], ids=["in time", "too late"])
@pytest.mark.every(2)
def test_times_are_those_of_one_process(limit_s: float) -> None:
    spaces, target = (find_space("hopper"), find_space("mma")), get_target("h200")
    valid = FamilySpaces(tuple(space.build(PROBLEM, target) for space in spaces))
    here, before = forecasts_for(spaces, PROBLEM, target), children(os.getpid())
    space = valid.of("hopper")
    rows = space.sample_rows(np.random.default_rng(0), 12)
    times = here["hopper"].us_of_rows(space, rows).tolist()
    with closing(ForecastWorkers(ForecastSetup(spaces, PROBLEM, target), WORKERS, limit_s)) as workers:
        shared = forecasts_for(spaces, PROBLEM, target, workers)
        assert shared["mma"].at_once == here["mma"].at_once, "hundreds of its configs take little longer than one"
        assert shared["hopper"].at_once == WORKERS
        assert shared["hopper"].us_of_rows(space, rows[:1]).tolist() == times[:1]
        assert children(os.getpid()) == before, "one config is not worth a process"
        assert shared["hopper"].us_of_rows(space, rows[:6]).tolist() == times[:6]
        for server in set(children(os.getpid())) - set(before):
            with suppress(OSError):  # those that are too late are replaced all the time
                for worker in children(server):
                    os.kill(worker, signal.SIGKILL)
        assert shared["hopper"].us_of_rows(space, rows).tolist() == times


def test_where_no_process_can_be_started_one_computes_alone() -> None:
    spaces, target = (find_space("hopper"),), get_target("h200")
    valid = spaces[0].build(PROBLEM, target)
    rows = valid.sample_rows(np.random.default_rng(0), 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(ForecastWorkers(ForecastSetup(spaces, PROBLEM, target), WORKERS)) as workers:
        shared = forecasts_for(spaces, PROBLEM, target, workers)["hopper"]
        shared.us_of_rows(valid, rows[:1])  # all files that it reads are read
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            times = shared.us_of_rows(valid, rows).tolist()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert times == forecasts_for(spaces, PROBLEM, target)["hopper"].us_of_rows(valid, rows).tolist()


@pytest.mark.parametrize("count", [LONG - 1, pytest.param(LONG, marks=pytest.mark.thorough)])
def test_a_choice_by_several_processes_is_that_of_one(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(forecast_workers, "choice_worker_count", lambda: WORKERS)
    spaces, target = (find_space("wgmma"), find_space("mma")), get_target("h200")
    valid = FamilySpaces(tuple(space.build(PROBLEM, target) for space in spaces))
    here = fastest_by_forecast(valid, forecasts_for(spaces, PROBLEM, target), 3, count)
    shared = chosen_by_forecast(ForecastSetup(spaces, PROBLEM, target), valid, 3, count)
    assert shared == here
    assert np.array_equal(shared.covariance, here.covariance)
    assert {one.family for one in here.candidates} == {"wgmma", "mma"}
    assert set(here.opening) <= set(here.candidates)
    assert list(here.candidate_us) == sorted(here.candidate_us)
