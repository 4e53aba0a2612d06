"""The first proposals of a search, with the forecast made in its own process or in another one."""

from __future__ import annotations

import signal
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evoengine.device.workers.sidecar_process import SidecarProcess
from evoengine.engine.options.search import SearchOptions
from evoengine.engine.prefetch import EarlyImports
from evoengine.engine.search_plan import SearchPlan, make_plan
from evoengine.engine.session import Session
from evoengine.errors import WorkerCrashError
from evoengine.model import Config, parse_problem
from evoengine.search.candidate.jobs import Job, ResultT
from evoengine.search.events import Event, Proposed
from evoengine.search.forecast.choice import fastest_by_forecast
from evoengine.search.settings import StopReason


class StuckService:
    """Workers whose jobs never end: all that is proposed depends on no outcome."""

    workers = 12
    lost: tuple[str, ...] = ()

    def supports(self, kind: type[Job[Any]]) -> bool:
        return False

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        return Future()


class StopAfter:
    """Collects proposals and interrupts the search after the last one of the budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.configs: list[Config] = []

    def notify(self, event: Event) -> None:
        if isinstance(event, Proposed):
            self.configs.append(event.config)
            if len(self.configs) == self.budget:
                signal.raise_signal(signal.SIGINT)


def proposals(plan: SearchPlan, imports: EarlyImports | None = None) -> list[Config]:
    stuck, observer = StuckService(), StopAfter(plan.request.candidates)
    with Session(plan, imports, services=(stuck, stuck)) as session:
        assert session.run(observer).stop is StopReason.INTERRUPTED
    return observer.configs


@pytest.fixture(scope="module")
def plan() -> SearchPlan:
    return make_plan(SearchOptions(parse_problem("1x1x32x64"), device="emulator", family="wmma,mma"))


def with_budget(plan: SearchPlan, budget: int, db: Path) -> SearchPlan:
    return replace(plan, request=replace(plan.request, budget=budget, db=str(db)))


def test_without_a_gpu_the_forecast_comes_first_and_orders_the_starts(plan: SearchPlan, tmp_path: Path) -> None:
    expected = fastest_by_forecast(plan.valid, plan.forecasts, plan.request.seed, 6).opening
    named = sorted(plan.valid.starts(), key=lambda config: plan.forecasts[config.family].us(config))
    assert named != list(plan.valid.starts())
    first = [*expected, *(config for config in named if config not in expected)]
    assert proposals(with_budget(plan, 24, tmp_path / "24.db"))[: len(first)] == first
    assert proposals(with_budget(plan, 8, tmp_path / "8.db")) == [*expected[:2], *first[6:12]]


def test_on_a_gpu_the_starts_come_first_and_leave_room_for_the_forecast(plan: SearchPlan, tmp_path: Path) -> None:
    plan = replace(plan, device=replace(plan.device, predicted=False))
    named = list(plan.valid.starts())
    expected = fastest_by_forecast(plan.valid, plan.forecasts, plan.request.seed, 6).opening
    assert len(named) < 18
    assert proposals(with_budget(plan, 24, tmp_path / "24.db"))[: len(named) + 6] == [*named, *expected]
    few = proposals(with_budget(plan, 8, tmp_path / "8.db"))
    assert few[:6] == named[:6]
    assert set(few[6:]) == set(expected[:2])


def test_a_forecast_made_beside_the_search_changes_no_proposal(plan: SearchPlan, tmp_path: Path) -> None:
    here = proposals(with_budget(plan, 20, tmp_path / "here.db"))
    with closing(SidecarProcess("forecaster", ())) as forecaster:
        beside = EarlyImports(forecaster=forecaster)
        assert proposals(with_budget(plan, 20, tmp_path / "beside.db"), beside) == here


def test_a_search_ends_while_the_forecast_is_made_beside_it(plan: SearchPlan, tmp_path: Path) -> None:
    stuck = StuckService()
    with closing(SidecarProcess("forecaster", ())) as forecaster:
        beside = EarlyImports(forecaster=forecaster)
        with Session(with_budget(plan, 288, tmp_path / "288.db"), beside, services=(stuck, stuck)) as session:
            choice = session.choice_by_forecast()
        assert isinstance(choice.exception(timeout=10), WorkerCrashError)
