"""Forecasts by several processes: a simulated config takes milliseconds, and a search forecasts thousands of them.

The results are those of one process, whatever the number of processes, so that proposals do not depend on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np

from evoengine.costmodel.forecast import SimulationKey, Times
from evoengine.device.workers.pool import Care, WorkerPool
from evoengine.errors import EvoEngineError
from evoengine.model import Problem
from evoengine.search.forecast.choice import ForecastChoice, fastest_by_forecast, forecasts_for
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target

_NAME: Final = "forecast worker"
_MODULES: Final = ("evoengine.search.forecast.choice",)
_CORES_PER_WORKER: Final = 2
_OTHER_CORES: Final = 2
"""Cores for the search's own process and for the device worker, while the opening is chosen."""
_MOST_WORKERS: Final = 16
_MOST_KEYS: Final = 4
"""Maximum number of configs in one call. Each call costs this process time; but with many configs, one process with
several slow ones would delay the whole batch."""
_LIMIT_S: Final = 60.0


@dataclass(frozen=True)
class ForecastSetup:
    """Inputs of the forecasts of a search."""

    spaces: tuple[SearchSpace, ...]
    """Search spaces of all families, as the files define them."""
    problem: Problem
    target: Target


class ForecastWorkers:
    """Processes that simulate configs; they start with the first call, and a call that fails is computed here.

    Args:
        setup: Inputs of the forecasts.
        workers: Number of processes.
        limit_s: Deadline of one call.
    """

    def __init__(self, setup: ForecastSetup, workers: int, limit_s: float = _LIMIT_S) -> None:
        self._setup = setup
        self._limit_s = limit_s
        self._opened = False
        self.size = workers

    @property
    def at_once(self) -> int:
        """Number of configs per batch for a caller that needs only the first suitable one: one for each process."""
        return self.size

    def open(self) -> None:
        """Starts the processes before the first call."""
        _ = self._pool

    @cached_property
    def _pool(self) -> WorkerPool | None:
        """The processes; None if the machine cannot start any."""
        self._opened = True
        make, care = partial(_Simulator, self._setup), Care(attempts=1)
        try:
            return WorkerPool(make, self.size, self._limit_s, name=_NAME, preload=_MODULES, care=care)
        except OSError:  # memory, processes or open files are exhausted: the search needs none of them
            return None

    def simulate(
        self, family: str, keys: Sequence[SimulationKey], here: Callable[[Sequence[SimulationKey]], Times]
    ) -> Times:
        """Simulates configs of one family; see :class:`~evoengine.costmodel.forecast.SimulationService`."""
        if self._pool is None:
            return here(keys)
        size = min(_MOST_KEYS, -(-len(keys) // self.size))
        parts = [list(keys[start : start + size]) for start in range(0, len(keys), size)]
        calls = [self._pool.submit("simulate", family, part) for part in parts]
        return np.concatenate(
            [_answer(call.result, partial(here, part)) for call, part in zip(calls, parts, strict=True)]
        )

    def close(self) -> None:
        """Ends the processes."""
        if self._opened and self._pool is not None:
            self._pool.close()


def _answer(result: Callable[[], bytes], here: Callable[[], Times]) -> Times:
    try:
        return np.frombuffer(result()).reshape(-1, 2)
    except EvoEngineError:  # a process was killed or stopped from outside
        return here()


class _Simulator:
    """Object that a process serves."""

    def __init__(self, setup: ForecastSetup) -> None:
        self._forecasts = forecasts_for(setup.spaces, setup.problem, setup.target)

    def simulate(self, family: str, keys: list[SimulationKey]) -> bytes:
        """Simulates configs of one family, as pairs of f64."""
        return self._forecasts[family].simulate(keys).tobytes()


def chosen_by_forecast(setup: ForecastSetup, valid: FamilySpaces, seed: int, count: int) -> ForecastChoice:
    """Builds the forecasts and chooses configs by them; all arguments are picklable, for a call in another process.

    See :func:`~evoengine.search.forecast.choice.fastest_by_forecast`.

    Args:
        setup: Inputs of the forecasts.
        valid: Valid configs of all families.
        seed: Random seed.
        count: Maximum number of configs of the opening.
    """
    with ExitStack() as stack:
        workers = None
        if (size := choice_worker_count()) > 1:
            workers = stack.enter_context(closing(ForecastWorkers(setup, size)))
            workers.open()  # they import while this process draws configs
        forecasts = forecasts_for(setup.spaces, setup.problem, setup.target, workers)
        return fastest_by_forecast(valid, forecasts, seed, count)


def forecast_worker_count() -> int:
    """Number of processes on this machine during a search: compilers, at a lower priority, use the same cores."""
    return min(_MOST_WORKERS, _cores() // _CORES_PER_WORKER)


def choice_worker_count() -> int:
    """Number of processes on this machine before a search: compilers soon idle until the choice is made."""
    return min(_MOST_WORKERS, _cores() - _OTHER_CORES)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
