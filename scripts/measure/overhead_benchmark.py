#!/usr/bin/env python3
"""Measures the framework's overhead per trial: everything but compiling, checking and timing kernels.

    OPENBLAS_NUM_THREADS=1 python scripts/measure/overhead_benchmark.py --trials 500,2000
    OPENBLAS_NUM_THREADS=1 python scripts/measure/overhead_benchmark.py --trials 500 --problem 16x12x197x64

Searches the real space of a problem, all families, with services that return synthetic results at once.
Reports the CPU milliseconds per trial of the search's thread: the strategy's ask and tell, the lease and the record in
SQLite, the log in Optuna's tables, and the rest of the loop, without the time of the synthetic services, and how many
configs the forecast excluded. Synthetic times scatter around the latency model's forecast, so that forecast pruning is
active; slow kernels are dropped by racing, as on a GPU. Prints a Markdown table. Searches limit numerical libraries to
one thread; set it here too.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Final

import common

from evoengine.bench.acceptance import judge_duel
from evoengine.engine.families import choose_families, wanted_spaces
from evoengine.kernel.records import Binary, LaunchSpec, Source
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.leaderboard.records import StudyKey
from evoengine.leaderboard.store import Leaderboard
from evoengine.model import Config, DeviceInfo, Duel, Problem, Resources, Status, Timing, Verdict, parse_problem
from evoengine.search.candidate.jobs import Job, ResultT, perform
from evoengine.search.candidate.results import Candidate, Compilation, Examination, Inspection
from evoengine.search.forecast.choice import Forecast, ForecastChoice, fastest_by_forecast, forecasts_for
from evoengine.search.loop import Search
from evoengine.search.settings import SearchSettings
from evoengine.search.strategies.forecast_pruning import ForecastPruner
from evoengine.search.strategies.registry import STRATEGIES
from evoengine.search.warmstart.resume import start_strategy
from evoengine.space.data_dirs import data_dir
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space
from evoengine.system.futures import done_future
from evoengine.target import get_target

PARTS: Final = ("ask", "tell", "lease", "record", "log")
_SERVICES: Final = "services"
_RESOURCES: Final = Resources(96, 0, 0, 0, 32768, 128)
_SAMPLES: Final = 40
OPENING: Final = 72
"""Configs of the opening by forecast in a search of 500 with 16 compilers."""


@dataclass
class Meter:
    """CPU seconds of the calling thread, by part."""

    seconds: dict[str, float] = field(default_factory=dict)

    def metered(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a call and adds its CPU time to a part."""

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[part] = self.seconds.get(part, 0.0) + time.thread_time() - start_s

        return timed


class InstantServices:
    """Compile and device services with synthetic results: every config compiles and is correct.

    Args:
        forecasts: Forecast of each family; synthetic times scatter around it.
        text: Source of a rendered kernel; its compression is part of the record.
    """

    workers = 15
    lost: tuple[str, ...] = ()

    def __init__(self, forecasts: Mapping[str, Forecast], text: str) -> None:
        self._forecasts = forecasts
        self._text = text

    def supports(self, kind: type[Job[Any]]) -> bool:
        return hasattr(self, kind.method)

    def submit(self, job: Job[ResultT]) -> Future[ResultT]:
        future: Future[ResultT] = Future()
        future.set_result(perform(self, job))
        return future

    def build(self, config: Config) -> Compilation:
        source = Source(config, f"// {config}\n{self._text}", config.key, "t", 0, LaunchSpec(("1",) * 3, 128, 0, ()))
        binary = Binary("sm_90a", b"", "", f"c{config.key}", _RESOURCES, "")
        return Compilation(config, Status.OK, "", (source,), (binary,))

    def examine(self, candidate: Candidate, champion_us: float | None) -> Examination:
        us = self._us(candidate.config)
        slow = champion_us is not None and us > 1.1 * champion_us
        samples = tuple(us * (1 + 1e-3 * number) for number in range(_SAMPLES))
        timing = Timing(us, us, us, False, "graph-warm", samples, 2 * us, "flash")
        verdict = Verdict(True, 4e-4, 1e-3, 2e-4, 6, "mission")
        status, reason = (Status.PRUNED, "slow") if slow else (Status.OK, "")
        return Examination(status, reason, verdict, timing, {"load": 0.01, "parity": 0.01, "bench": 0.01})

    def challenge(self, challenger: Candidate, champion: Candidate) -> Duel:
        return judge_duel([self._us(challenger.config)] * 20, [self._us(champion.config)] * 20)

    def inspect(self, candidate: Candidate) -> Inspection:
        return Inspection()

    def _us(self, config: Config) -> float:
        """Synthetic time: the forecast, or 10 µs without one, varied by a hash of the config."""
        variation = int(config.key[:4], 16) / 2**16
        forecast = self._forecasts.get(config.family)
        expected_us = math.inf if forecast is None else forecast.us(config)
        return (expected_us if math.isfinite(expected_us) else 10.0) * (0.85 + 0.3 * variation)


def _example_source(spaces: FamilySpaces, key: StudyKey) -> str:
    """Rendered source of the first config of the first family."""
    config = next(iter(spaces.members[0]))
    template = TemplateLibrary(data_dir("templates")).load(config.family)
    return template.render(config, key.problem, find_space(config.family), get_target("h200")).text


@dataclass(frozen=True)
class Subject:
    """Problem, spaces and forecasts of a search."""

    problem: Problem
    spaces: FamilySpaces
    forecasts: Mapping[str, Forecast]
    choice: ForecastChoice
    """Choice of the opening, as a search on a GPU makes it in another process."""

    @classmethod
    def of(cls, problem: Problem) -> Subject:
        target = get_target("h200")
        families = choose_families(wanted_spaces("auto", None), problem, target).taken
        spaces = FamilySpaces(tuple(family.valid for family in families))
        first, forecasts = (forecasts_for([one.space for one in families], problem, target) for _ in range(2))
        return cls(problem, spaces, forecasts, fastest_by_forecast(spaces, first, seed=0, count=OPENING))


@contextmanager
def _metered_search(
    subject: Subject, settings: SearchSettings, pruner: ForecastPruner, meter: Meter
) -> Iterator[Search]:
    device = DeviceInfo("cuda", "Instant GPU", "sm_90a", predicted=False)
    key = StudyKey(subject.problem, "auto", device, "graph-warm", settings.strategy, settings.seed)
    with tempfile.TemporaryDirectory() as folder, Leaderboard(f"sqlite:///{Path(folder) / 'board.db'}") as board:
        study, choice = board.open_study(key), done_future(subject.choice)
        strategy = start_strategy(
            settings, subject.spaces, board, study, subject.spaces.starts(), pruner, forecast=choice
        )
        services = InstantServices(subject.forecasts, _example_source(subject.spaces, key))
        for part, owner, names in (
            ("ask", strategy, ("ask",)),
            ("tell", strategy, ("tell",)),
            ("log", strategy, ("flush", "close")),
            ("lease", board, ("acquire_lease",)),
            ("record", board, ("record",)),
            (_SERVICES, services, ("submit",)),
        ):
            for name in names:
                setattr(owner, name, meter.metered(part, getattr(owner, name)))
        yield Search(settings, board, study, strategy, services, services)


def measure(problem: Problem, strategy: str, trials: int) -> tuple[list[float], int]:
    """Searches once.

    Returns:
        CPU milliseconds per trial: each part, the rest, and the sum; and the number of configs that were skipped.
    """
    meter, subject = Meter(), Subject.of(problem)
    pruner = ForecastPruner(subject.forecasts, done_future(subject.choice))
    settings = SearchSettings(budget=trials, strategy=strategy)
    with _metered_search(subject, settings, pruner, meter) as search:
        result = search.run()
    *parts, services = (1e3 * meter.seconds.get(part, 0.0) / trials for part in (*PARTS, _SERVICES))
    own = result.overhead_ms_per_trial - services
    return [*parts, own - sum(parts), own], pruner.skipped


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--trials", default="500,2000", help="Comma-separated budgets of the searches.")
    parser.add_argument("--strategies", default="evolution", help=f"Comma-separated; any of {', '.join(STRATEGIES)}.")
    parser.add_argument("--problem", default="default", help="Name or shape.")
    arguments = parser.parse_args()
    print(f"| strategy | trials | {' | '.join(PARTS)} | rest | all, ms a trial | skipped |")
    print("|---|---|" + "---|" * (len(PARTS) + 3))
    for strategy in arguments.strategies.split(","):
        for trials in map(int, arguments.trials.split(",")):
            (*parts, own), skipped = measure(parse_problem(arguments.problem), strategy, trials)
            cells = " | ".join(f"{part:.2f}" for part in parts)
            print(f"| {strategy} | {trials} | {cells} | **{own:.2f}** | {skipped:,} |", flush=True)
    return 0


if __name__ == "__main__":
    common.run(main)
