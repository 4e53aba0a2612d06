"""A search on an open leaderboard: its warm start, its services and the loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import Final, Self

from evoengine.engine.prefetch import EarlyImports
from evoengine.engine.search_plan import SearchPlan
from evoengine.engine.search_services import compiler_count, open_services, sanitizer_path
from evoengine.engine.workers.forecast import ForecastSetup, ForecastWorkers, chosen_by_forecast, forecast_worker_count
from evoengine.engine.workers.job_services import IdleService, PrefetchingService
from evoengine.leaderboard.database.connection import database_url
from evoengine.leaderboard.records import Study
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config
from evoengine.search.candidate.jobs import Compile, JobService
from evoengine.search.champion.energy import meter_elites
from evoengine.search.champion.overdue import overdue_rows
from evoengine.search.events import Observer
from evoengine.search.forecast.choice import Forecast, ForecastChoice, fastest_by_forecast, forecasts_for
from evoengine.search.loop import Search
from evoengine.search.settings import SearchResult, SearchSettings
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from evoengine.search.warmstart.resume import imported_starts, start_strategy
from evoengine.search.warmstart.transfer import Transferred, transferred
from evoengine.search.warmstart.warm_start_plan import WarmStartPlan
from evoengine.system.futures import done_future

_GPU_COMPILE_QUEUE: Final = 6
"""Candidates that may wait for a compiler where a GPU takes milliseconds for each."""


class Session:
    """An open leaderboard with the study of a plan. Use it in a ``with`` block.

    Args:
        plan: Plan of the search.
        imports: Imports of the workers that were started before.
        services: Services for compilations and for jobs on the device, which stay open; None to open some.
    """

    def __init__(
        self,
        plan: SearchPlan,
        imports: EarlyImports | None = None,
        services: tuple[JobService, JobService] | None = None,
    ) -> None:
        self._plan = plan
        self._imports = imports or EarlyImports()
        self._stack = ExitStack()
        self._services = services
        self._choice: Future[ForecastChoice] | None = None
        self.database = plan.request.db
        self.board = Leaderboard(database_url(self.database))
        try:
            self.study: Study = self.board.open_study(plan.study_key)
        except BaseException:
            self.board.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with closing(self.board):
            self._stack.close()

    @property
    def evaluated(self) -> int:
        """Number of distinct candidates in the study."""
        return self.board.evaluated(self.study)

    @cached_property
    def imported(self) -> list[Config]:
        """Imported configs that are tried first."""
        return imported_starts(self.board, self.study, self._plan.valid)

    @cached_property
    def transferred(self) -> list[Transferred]:
        """Configs that were fast for a similar problem or on another GPU; they are tried first."""
        return transferred(self.board, self.study, self._plan.valid) if self._plan.priors.transfer else []

    @cached_property
    def expected_count(self) -> int:
        """Maximum number of configs in :attr:`expected`."""
        plan = self._plan
        if not plan.priors.forecast or self.evaluated >= plan.request.candidates or not self._forecasts:
            return 0
        return self._warm_start.expected

    @property
    def expected(self) -> list[Config]:
        """Configs that the latency model expects to be fastest. Waits for them."""
        return list(self.choice_by_forecast().result().opening)

    def choice_by_forecast(self) -> Future[ForecastChoice]:
        """Returns the choice of :attr:`expected`, which may still be computed; the first call begins it.

        It is under way in a process of its own where there is one, and made here otherwise.
        """
        if self._choice is None:
            self._choice = self._begun_choice()
        return self._choice

    def _begun_choice(self) -> Future[ForecastChoice]:
        plan, forecaster, count = self._plan, self._imports.forecaster, self.expected_count
        if not count:
            return done_future(ForecastChoice())
        seed = plan.request.seed
        if forecaster is None:
            return done_future(fastest_by_forecast(plan.valid, self._forecasts, seed, count))
        thread = ThreadPoolExecutor(1, "forecast")
        self._stack.callback(thread.shutdown)
        self._stack.enter_context(closing(forecaster))
        return thread.submit(forecaster.run, partial(chosen_by_forecast, self._forecast_setup, plan.valid, seed, count))

    @cached_property
    def _forecast_setup(self) -> ForecastSetup:
        """Inputs of the forecasts, for other processes."""
        plan = self._plan
        assert plan.target is not None, "a replay is forecast in this process"
        return ForecastSetup(tuple(family.space for family in plan.families.taken), plan.problem, plan.target)

    @cached_property
    def _forecasts(self) -> Mapping[str, Forecast]:
        """Forecasts by family; they cache what they have simulated."""
        return self._plan.forecasts

    def _shared_forecasts(self) -> Mapping[str, Forecast]:
        """The forecasts; beside a GPU, several processes compute them, so that the loop does not keep it waiting."""
        plan, count = self._plan, forecast_worker_count()
        if plan.device.kind != "cuda" or plan.target is None or count < 2:
            return self._forecasts
        setup = self._forecast_setup
        workers = self._stack.enter_context(closing(ForecastWorkers(setup, count)))
        return forecasts_for(setup.spaces, setup.problem, setup.target, workers)

    @cached_property
    def _warm_start(self) -> WarmStartPlan:
        """Numbers of configs that are tried first."""
        plan = self._plan
        return WarmStartPlan.of(
            budget=plan.request.candidates,
            named=len(self.starts),
            compilers=compiler_count(plan),
            gets_ready=plan.device.kind == "cuda",
        )

    def begin(self) -> None:
        """Starts the workers; compilers prefetch the configs that are certain to be tried."""
        if self._services is not None or self.evaluated >= self._plan.request.candidates:
            return
        compiler, examiner = open_services(self._plan, self._stack, self.evaluated, imports=self._imports)
        if self._imports.forecaster is not None:
            self.choice_by_forecast()  # it is made while this process goes on
        starts, plan = self.starts, self._plan
        tried = len(starts) + self._warm_start.expected + len(self.transferred)
        if not self.evaluated and tried <= plan.request.candidates and not self._forecast_leads:
            compiler = PrefetchingService(compiler, map(Compile, starts))
        self._services = compiler, examiner

    @cached_property
    def starts(self) -> list[Config]:
        """Requested configs, and the starts that the search spaces name."""
        return [*self._wanted, *self._named]

    @cached_property
    def _wanted(self) -> list[Config]:
        """Requested configs; they are tried first."""
        return [*self._plan.starts, *(self.imported if self._plan.priors.starts else [])]

    @cached_property
    def _named(self) -> list[Config]:
        """Starts that the search spaces name."""
        return list(self._plan.valid.starts()) if self._plan.priors.starts else []

    @cached_property
    def _forecast_leads(self) -> bool:
        """Whether the forecast's configs are tried before the named starts.

        They are if times are predicted: a candidate then takes seconds, and many named starts are not worth that time.
        """
        return self._plan.device.predicted and self.expected_count > 0

    def _named_by_forecast(self) -> list[Config]:
        """The named starts that have a forecast, fastest first, and the others."""
        forecasts = self._forecasts
        known = {one: forecasts[one.family].us(one) for one in self._named if one.family in forecasts}
        return sorted(self._named, key=lambda one: known.get(one, math.inf))

    def _starts_around_forecast(self) -> tuple[list[Config], list[Config]]:
        """The starts that are tried before the forecast's configs, and those after them.

        A short search leaves out the last starts, not the forecast.
        """
        first = [*(entry.config for entry in self.transferred), *self._wanted]
        starts = [*first, *(self._named_by_forecast() if self._forecast_leads else self._named)]
        before = max(0, self._plan.request.candidates - min(self._warm_start.best, self.expected_count))
        if self._forecast_leads:
            before = min(before, len(first))
        return starts[:before], starts[before:]

    def run(self, observer: Observer) -> SearchResult:
        """Searches; starts the workers unless :meth:`begin` did.

        Raises:
            EvoEngineError: The search cannot go on.
        """
        plan, request = self._plan, self._plan.request
        self.begin()
        before, after = self._starts_around_forecast()
        settings = SearchSettings(
            budget=request.candidates,
            strategy=request.strategy,
            seed=request.seed,
            accept_threshold=plan.accept_threshold,
            elects_first=plan.elects_first,
            deadline_s=request.time_limit_s,
            compile_queue=SearchSettings.compile_queue if plan.device.predicted else _GPU_COMPILE_QUEUE,
            # no longer than the list of known configs: the rest of the head would be random samples
            head=min(self._warm_start.head, len({*before, *after}) + self.expected_count),
        ).paced_for(plan.device)
        choice = self.choice_by_forecast() if self.expected_count else None
        pruner = ForecastPruner(self._shared_forecasts() if plan.priors.skip else {}, choice)
        strategy = start_strategy(
            settings, plan.valid, self.board, self.study, before, pruner, later=after, forecast=choice
        )
        pending = sanitizer_path(plan) and self.board.pending(self.study.scope)
        overdue = overdue_rows(self.board, self.study, plan.accept_threshold, electing=plan.elects_first)
        if self.evaluated >= request.candidates and not (pending or overdue):
            idle = IdleService()
            return Search(settings, self.board, self.study, strategy, idle, idle, observer).run()
        compiler, examiner = self._services or open_services(plan, self._stack, self.evaluated, imports=self._imports)
        result = Search(settings, self.board, self.study, strategy, compiler, examiner, observer).run()
        result = replace(result, skipped=pruner.skipped)
        return meter_elites(self.board, result, compiler, examiner) if request.energy else result
