"""Screening: configs that a latency model expects to be fast are measured first.

A :class:`Forecast` tells a config's time without compiling it, in well below a millisecond, so that thousands of valid
configs can be looked at before the first kernel is built. The best of them begin the search like any other known good
config; what they turn out to be is for the GPU to say, and the strategy goes on from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import numpy as np

from evoengine.emulator.prospect import Prospect
from evoengine.model import Config, Problem
from evoengine.space.families import FamilySpaces
from evoengine.space.space import SearchSpace
from evoengine.space.valid import ValidSpace
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

    def kind(self, config: Config) -> Hashable:
        """What configs have in common that a forecast errs alike on."""


def forecasts_for(spaces: Iterable[SearchSpace], problem: Problem, target: Target) -> dict[str, Forecast]:
    """A forecast for each space that the latency model has analytic counts for, by family.

    Args:
        spaces: as their files define them, derived values included.
        problem: what is to be computed.
        target: the GPU.
    """
    return {space.family: Prospect(space, problem, target) for space in spaces if Prospect.covers(space, problem)}


def promising(spaces: FamilySpaces, forecasts: Mapping[str, Forecast], seed: int, count: int = COUNT) -> list[Config]:
    """The valid configs that are expected to be fastest, best first; none where no family has a forecast.

    Args:
        spaces: the valid configs.
        forecasts: by family.
        seed: of the draw; the same arguments give the same configs.
        count: how many at most.
    """
    draws: dict[str, dict[Config, float]] = {}
    for place, member in enumerate(spaces.members):
        if member.family in forecasts:
            draws[member.family] = _drawn(member, forecasts[member.family], np.random.default_rng([seed, place]))
    best_us = min((min(draw.values()) for draw in draws.values()), default=0.0)
    expected: dict[Config, float] = {}
    for family, draw in draws.items():
        near = min(draw.values()) <= BEHIND * best_us
        expected |= _climbed(spaces.of(family), forecasts[family], draw) if near else draw
    kinds: dict[tuple[str, Hashable], int] = {}
    chosen: list[Config] = []
    for config in _fastest_first(expected):
        kind = (config.family, forecasts[config.family].kind(config))
        kinds[kind] = kinds.get(kind, 0) + 1
        if kinds[kind] <= PER_KIND and np.isfinite(expected[config]):
            chosen.append(config)
        if len(chosen) >= count:
            break
    return chosen[:count]


def _drawn(space: ValidSpace, forecast: Forecast, rng: np.random.Generator) -> dict[Config, float]:
    """Expected times of a draw."""
    count = DRAWN if space.size >= SMALL else DRAWN // 5
    drawn = set(space) if space.size <= DRAWN else set(space.samples(rng, count))
    return {config: forecast.us(config) for config in drawn}


def _climbed(space: ValidSpace, forecast: Forecast, draw: Mapping[Config, float]) -> dict[Config, float]:
    """Expected times of a draw and of what lies on the way from its best to local optima."""
    expected = dict(draw)
    for config in list(itertools.islice(_fastest_first(expected), CLIMBS)):
        here: Config | None = config
        while here is not None:
            near = space.neighbours(here)
            expected |= {one: forecast.us(one) for one in near if one not in expected}
            best = next(_fastest_first({one: expected[one] for one in near}), here)
            here = best if expected[best] < expected[here] else None
    return expected


def _fastest_first(expected: Mapping[Config, float]) -> Iterator[Config]:
    """By expected time, those of equal time by what they say, which is not written out for the others."""
    by_time = sorted(expected, key=expected.__getitem__)
    for _, equal in itertools.groupby(by_time, key=expected.__getitem__):
        configs = list(equal)
        yield from sorted(configs, key=str) if len(configs) > 1 else configs
