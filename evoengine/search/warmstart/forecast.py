"""Screening: configs that a latency model expects to be fast are measured first.

A :class:`Forecast` tells a config's time without compiling it, in well below a millisecond, so that thousands of valid
configs can be looked at before the first kernel is built. The best of them begin the search like any other known good
config; what they turn out to be is for the GPU to say, and the strategy goes on from there.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.model import Config, Problem
from evoengine.space.diagram.decision_diagram import IndexRows
from evoengine.space.diagram.row_set import keys_of, rows_of
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

DRAWN: Final = 2000
"""Configs of a family that are drawn and forecast; spaces with fewer are forecast whole."""
SMALL: Final = 10**6
"""Of a space with fewer configs a fifth of that is drawn."""
CLIMBS: Final = 4
"""Best ones from which neighbours are followed to a local optimum of the forecast."""
BEHIND: Final = 2.0
"""A family whose best draw takes so many times as long as another one's is not followed further."""
COUNT: Final = 12
"""Configs that a search is given."""
PER_KIND: Final = 2
"""At most so many of one kind: a model errs alike on all of them."""


class Forecast(Protocol):
    """Expected times of one family's configs."""

    def us(self, config: Config) -> float:
        """Expected time in microseconds; infinite for what is not expected to run."""

    def us_of(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        """The same for many configs, ``[configs]``."""

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        """The same for many valid configs, ``[configs]``, without writing them out."""

    def kind(self, config: Config) -> Hashable:
        """What configs have in common that a forecast errs alike on."""


def forecasts_for(spaces: Iterable[SearchSpace], problem: Problem, target: Target) -> dict[str, Forecast]:
    """A forecast for each space that the latency model has analytic counts for, by family.

    Args:
        spaces: as their files define them, derived values included.
        problem: what is to be computed.
        target: the GPU.
    """
    return {
        space.family: AnalyticForecast(space, problem, target)
        for space in spaces
        if AnalyticForecast.covers(space, problem)
    }


def fastest_by_forecast(
    spaces: FamilySpaces, forecasts: Mapping[str, Forecast], seed: int, count: int = COUNT
) -> list[Config]:
    """The valid configs that are expected to be fastest, best first; none where no family has a forecast.

    Args:
        spaces: the valid configs.
        forecasts: by family.
        seed: of the draw; the same arguments give the same configs.
        count: how many at most.
    """
    looks: list[_Look] = []
    for place, member in enumerate(spaces.members):
        if member.family in forecasts:
            looks.append(_Look(member, forecasts[member.family]))
            looks[-1].at(_drawn(member, np.random.default_rng([seed, place])))
    best_us = min((look.best_us for look in looks), default=0.0)
    for look in looks:
        if look.best_us <= BEHIND * best_us:
            look.climb()
    kinds: dict[tuple[str, Hashable], int] = {}
    chosen: list[Config] = []
    for us, config in _fastest_first(looks):
        kind = (config.family, forecasts[config.family].kind(config))
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= PER_KIND and np.isfinite(us):
            chosen.append(config)
        if len(chosen) >= count:
            break
    return chosen[:count]


def _drawn(space: ValidSpace, rng: np.random.Generator) -> IndexRows:
    """All of a small space, some of a larger one."""
    if space.size <= DRAWN:
        return space.all_rows()
    return space.sample_rows(rng, DRAWN if space.size >= SMALL else DRAWN // 5)


class _Look:
    """What is expected of the configs of one family that were looked at."""

    def __init__(self, space: ValidSpace, forecast: Forecast) -> None:
        self._space = space
        self._forecast = forecast
        self.expected_us: dict[bytes, float] = {}
        """By the key of a row."""

    @property
    def best_us(self) -> float:
        """The least so far."""
        return min(self.expected_us.values())

    def config(self, key: bytes) -> Config:
        """The config of a row."""
        return self._space.config_of(np.frombuffer(key, np.uint8))

    def at(self, rows: IndexRows) -> None:
        """Looks at rows; at those that it knows, not again."""
        new = [key for key in dict.fromkeys(keys_of(rows)) if key not in self.expected_us]
        found = self._forecast.us_of_rows(self._space, rows_of(new, rows.shape[1]))
        self.expected_us.update(zip(new, found.tolist(), strict=True))

    def climb(self) -> None:
        """Looks at what lies on the way from the best to local optima."""
        for _, start in list(itertools.islice(_fastest_first([self]), CLIMBS)):
            here: Config | None = start
            while here is not None:
                here = self._better_neighbour(here)

    def _better_neighbour(self, config: Config) -> Config | None:
        """The fastest neighbour, if it is faster."""
        row = self._space.row_of(config)
        assert row is not None, "only valid configs are looked at"
        near = self._space.neighbour_rows(row)
        self.at(near)
        us_of = {key: self.expected_us[key] for key in keys_of(near)}
        least_us = min(us_of.values(), default=np.inf)
        if least_us >= self.expected_us[row.tobytes()]:
            return None
        return min((self.config(key) for key, us in us_of.items() if us == least_us), key=str)


def _fastest_first(looks: Sequence[_Look]) -> Iterator[tuple[float, Config]]:
    """By expected time, those of equal time by what they say, which is not written out for the others."""
    by_time = sorted((us, place, key) for place, look in enumerate(looks) for key, us in look.expected_us.items())
    for us, equal in itertools.groupby(by_time, key=operator.itemgetter(0)):
        configs = [looks[place].config(key) for _, place, key in equal]
        yield from ((us, config) for config in (sorted(configs, key=str) if len(configs) > 1 else configs))
