"""Forecasts by several processes: a simulated config takes milliseconds, and a search passes over many of them.

The results are those of the forecast in this process, whatever the number of processes, so that proposals do not depend
on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.device.workers.pool import Care, WorkerPool
from evoengine.errors import EvoEngineError
from evoengine.model import Config, Problem
from evoengine.search.warmstart.forecast import Forecast, forecasts_for
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

_NAME: Final = "forecast worker"
_MODULES: Final = ("evoengine.search.warmstart.forecast",)
_CORES_PER_WORKER: Final = 2
_MOST_WORKERS: Final = 16
_ROWS_PER_WORKER: Final = 2
"""Configs that a process forecasts per call: a call costs this process a quarter of what a config costs the other."""
_LIMIT_S: Final = 60.0

Times = npt.NDArray[np.float64]
"""Predicted times in microseconds, ``[configs]``."""


@dataclass(frozen=True)
class ForecastSetup:
    """Inputs of the forecasts of a search."""

    valid: FamilySpaces
    """Valid configs of all families."""
    spaces: tuple[SearchSpace, ...]
    """Their spaces, as the files define them."""
    problem: Problem
    target: Target


class ForecastWorkers:
    """Processes that forecast configs; they start with the first call, and a call that fails is answered here.

    Args:
        setup: Inputs of the forecasts.
        workers: Number of processes.
        limit_s: Deadline of one process for its share.
    """

    def __init__(self, setup: ForecastSetup, workers: int, limit_s: float = _LIMIT_S) -> None:
        self._setup = setup
        self._limit_s = limit_s
        self._opened = False
        self.size = workers

    @cached_property
    def _pool(self) -> WorkerPool:
        self._opened = True
        make, care = partial(_Forecaster, self._setup), Care(attempts=1)
        return WorkerPool(make, self.size, self._limit_s, name=_NAME, preload=_MODULES, care=care)

    def us_of_rows(self, space: ValidSpace, rows: IndexRows, here: Callable[[IndexRows], Times]) -> Times:
        """Predicts the times of rows, a share of them in each process.

        Args:
            space: Valid configs of one family.
            rows: Rows of that space, ``[configs, tunables]``.
            here: Predicts them in this process.
        """
        parts = [part for part in np.array_split(rows, self.size) if len(part)]
        calls = [self._pool.submit("us_of_rows", space.family, part) for part in parts]
        return np.concatenate(
            [_answer(call.result, partial(here, part)) for call, part in zip(calls, parts, strict=True)]
        )

    def close(self) -> None:
        """Ends the processes."""
        if self._opened:
            self._pool.close()


def _answer(result: Callable[[], bytes], here: Callable[[], Times]) -> Times:
    try:
        return np.frombuffer(result())
    except EvoEngineError:  # a process was killed or stopped from outside: the search needs none of them
        return here()


class _Forecaster:
    """Object that a process serves."""

    def __init__(self, setup: ForecastSetup) -> None:
        self._valid = setup.valid
        self._forecasts = forecasts_for(setup.spaces, setup.problem, setup.target)

    def us_of_rows(self, family: str, rows: IndexRows) -> bytes:
        """Predicts the times of rows of a family's valid configs, as f64."""
        return self._forecasts[family].us_of_rows(self._valid.of(family), rows).tobytes()


class ParallelForecast:
    """A :class:`~evoengine.search.warmstart.forecast.Forecast` of which many rows at once are shared by processes.

    Args:
        own: Forecast in this process.
        workers: The processes.
    """

    def __init__(self, own: Forecast, workers: ForecastWorkers) -> None:
        self._own = own
        self._workers = workers
        self._known: dict[bytes, float] = {}

    @property
    def is_quick(self) -> bool:
        return self._own.is_quick

    @property
    def at_once(self) -> int:
        return _ROWS_PER_WORKER * self._workers.size

    @property
    def partition(self) -> Sequence[str]:
        return self._own.partition

    def us(self, config: Config) -> float:
        return self._own.us(config)

    def us_of(self, configs: Sequence[Config]) -> Times:
        return self._own.us_of(configs)

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> Times:
        new = {row.tobytes(): row for row in rows if row.tobytes() not in self._known}
        if new:
            here = partial(self._own.us_of_rows, space)
            unknown = np.array([*new.values()])
            found = self._workers.us_of_rows(space, unknown, here) if len(new) > 1 else here(unknown)
            self._known.update(zip(new, found.tolist(), strict=True))
        return np.array([self._known[row.tobytes()] for row in rows])

    def kind(self, config: Config) -> Hashable:
        return self._own.kind(config)

    def error_covariance(self, configs: Sequence[Config]) -> Times:
        return self._own.error_covariance(configs)


def parallel_forecasts(forecasts: Mapping[str, Forecast], workers: ForecastWorkers) -> dict[str, Forecast]:
    """Shares the forecasts among processes, except those for which hundreds of configs take little longer than one."""
    return {
        family: forecast if forecast.is_quick else ParallelForecast(forecast, workers)
        for family, forecast in forecasts.items()
    }


def forecast_worker_count() -> int:
    """Number of processes on this machine: compilers, at a lower priority, use the same cores."""
    return min(_MOST_WORKERS, len(os.sched_getaffinity(0)) // _CORES_PER_WORKER)
