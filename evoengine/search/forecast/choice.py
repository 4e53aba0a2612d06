"""Starts by forecast: a set of configs that is likely to contain the fastest one is measured first.

A :class:`Forecast` predicts a config's time without compiling it, in some milliseconds or well below one, so that many
valid configs can be ranked before the first kernel is built: random ones, those along local searches, and of many kinds
(work partitions) one with the best values elsewhere, which a long opening refines where the kind is among the fastest.
A decision set of the best of them (:mod:`evoengine.search.forecast.decision_set`) is proposed first, like any other
known good config. A search that requests more also receives the fastest config of each further kind: where the forecast
is wrong about a kind, it is wrong about all of its configs, and the surrogate model learns little from a second one.
When the first times are known, further configs are chosen from the same candidates
(:mod:`evoengine.search.strategies.forecast_sampler`).
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.forecast import AnalyticForecast, SimulationService
from evoengine.model import Config, Problem
from evoengine.search.forecast.decision_set import POOL, decision_set
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.index_rows import IndexRow, IndexRows, keys_of, rows_of
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import Target

DRAWN: Final = 2000
"""Configs of a family that are drawn and forecast; a smaller space is forecast completely."""
SMALL: Final = 10**6
"""Size below which a fifth of :data:`DRAWN` is drawn."""
CLIMBS: Final = 4
"""Number of a family's best draws from which local searches on the forecast start."""
LONG_CLIMBS: Final = 16
"""The same for a long opening, of families that are among the fastest after the first local searches."""
SLOW_DRAWN: Final = 200
"""Configs of a family that are drawn where a forecast is slow; a smaller space is forecast completely."""
LONG_SLOW_DRAWN: Final = 600
"""Configs that are drawn for a long opening where a forecast is slow. On eight problems and three seeds the fastest
forecast is 0.05 % above the fastest that is known, at most 0.8 %, in 4.8 s of CPU time; 0.9 % and at most 5.1 % in
2.5 s with the numbers for a short opening."""
BEHIND: Final = 2.0
"""Ratio to the best draw of all families above which a family has no local search."""
NEAR: Final = 1.3
"""Ratio to the best config of all families above which a family has no further local searches and refinements."""
COUNT: Final = 12
"""Default number of configs."""
PER_KIND: Final = 12
"""Maximum number of candidates of one kind: a local search visits many near twins."""
SET: Final = 3 * COUNT
"""Most configs that are chosen as a decision set; further ones are of further kinds."""
KINDS: Final = 300
"""Kinds of a family for which the tunables of its best config are tried."""
_KINDS_STREAM: Final = 300
"""Stream of random numbers for the configs whose kinds are tried; families draw from the streams of their indices."""
LONG: Final = 2 * COUNT
"""Smallest length of a long opening, for which more configs are forecast and kinds are refined.

Refined configs all have the values that the forecast prefers; a short opening would contain no others.
"""
REFINED: Final = 64
"""Kinds of a family whose best configs are refined, at most two for each config of the opening."""
SLOW_REFINED: Final = 16
"""The same where a forecast is slow, at most one for every two configs of the opening."""
ROUNDS: Final = 2
"""Number of refinements of a config."""
CANDIDATES: Final = 1000
"""Configs with the fastest forecasts from which further ones are chosen when the first times are known."""


@dataclass(frozen=True, eq=False)
class ForecastTable:
    """Forecasts of some configs of one family."""

    rows: IndexRows
    """Rows of the family's space of valid configs, ``[configs, tunables]``."""
    us: npt.NDArray[np.float64]
    """Predicted times, ``[configs]``."""


@dataclass(frozen=True)
class ForecastChoice:
    """Configs to try first, and candidates for later."""

    opening: tuple[Config, ...] = ()
    """Configs that are likely to include the fastest one, in the order in which they are tried."""
    candidates: tuple[Config, ...] = ()
    """Configs with the fastest forecasts, and the opening, fastest first."""
    candidate_us: tuple[float, ...] = ()
    """Predicted time of each candidate."""
    covariance: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)), compare=False)
    """Covariance of the logarithms of measured over predicted times, ``[candidates, candidates]``."""
    tables: Mapping[str, ForecastTable] = field(default_factory=dict, compare=False)
    """All forecasts from which the choice was made, of the families whose forecasts take milliseconds each."""


class Forecast(Protocol):
    """Predicts times of one family's configs."""

    @property
    def is_quick(self) -> bool:
        """Whether hundreds of configs take little longer than one; otherwise each takes some milliseconds."""

    @property
    def at_once(self) -> int:
        """Number of configs per batch for a caller that needs only the first suitable one."""

    def us(self, config: Config) -> float:
        """Predicted time in microseconds; infinite for a config that is not expected to run."""

    def us_of(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        """Predicted times of many configs, ``[configs]``."""

    def us_of_rows(self, space: ValidSpace, rows: IndexRows) -> npt.NDArray[np.float64]:
        """Predicted times of many valid configs, ``[configs]``, given as rows of value indices."""

    @property
    def partition(self) -> Sequence[str]:
        """Tunables that determine how a config partitions the work."""

    def kind(self, config: Config) -> Hashable:
        """Key of a config's kind, its work partition; the forecast's errors are similar within a kind."""

    def error_covariance(self, configs: Sequence[Config]) -> npt.NDArray[np.float64]:
        """Covariance of the logarithms of measured over predicted times, ``[configs, configs]``."""


def forecasts_for(
    spaces: Iterable[SearchSpace], problem: Problem, target: Target, service: SimulationService | None = None
) -> dict[str, AnalyticForecast]:
    """Makes a forecast, by family, for each space that the latency model has analytic counts for.

    Args:
        spaces: Search spaces as their files define them, derived values included.
        problem: Problem of the search.
        target: Target GPU.
        service: Service that simulates configs of families that are simulated; None to simulate them here.
    """
    return {
        space.family: AnalyticForecast(space, problem, target, service=service)
        for space in spaces
        if AnalyticForecast.covers(space, problem)
    }


def fastest_by_forecast(
    spaces: FamilySpaces, forecasts: Mapping[str, Forecast], seed: int, count: int = COUNT
) -> ForecastChoice:
    """Chooses valid configs that are likely to include the fastest one; none if no family has a forecast.

    Args:
        spaces: Valid configs, by family.
        forecasts: Forecasts, by family.
        seed: Random seed; the same arguments give the same configs.
        count: Maximum number of configs of the opening.
    """
    slow = LONG_SLOW_DRAWN if count >= LONG else SLOW_DRAWN
    samples: list[_ForecastSample] = []
    for index, member in enumerate(spaces.members):
        if member.family in forecasts:
            forecast = forecasts[member.family]
            drawn = _drawn(member, np.random.default_rng([seed, index]), DRAWN if forecast.is_quick else slow)
            samples.append(_ForecastSample(member, forecast, drawn))
    best_us = min((sample.best_us for sample in samples), default=0.0)
    for sample in samples:
        if sample.best_us <= BEHIND * best_us:
            sample.climb(0, CLIMBS)
            sample.transplant(_drawn(sample.space, np.random.default_rng([seed, _KINDS_STREAM]), DRAWN))
    best_us = min((sample.best_us for sample in samples), default=0.0)
    for sample in samples:
        if count >= LONG and sample.best_us <= NEAR * best_us:
            sample.climb(CLIMBS, LONG_CLIMBS)
            sample.refine(min(REFINED, 2 * count) if sample.is_quick else min(SLOW_REFINED, count // 2))
    fastest = _candidates(samples, forecasts, CANDIDATES)
    configs, us = [*fastest], [*fastest.values()]
    chosen = [configs[place] for place in decision_set(configs[:POOL], us[:POOL], forecasts, min(count, SET))]
    further = _further_kinds(samples, forecasts, chosen, count - len(chosen))
    tables = {sample.space.family: sample.table() for sample in samples if not sample.is_quick}
    return replace(_choice([*chosen, *further], fastest | further, forecasts), tables=tables)


def _choice(
    opening: Iterable[Config], expected_us: Mapping[Config, float], forecasts: Mapping[str, Forecast]
) -> ForecastChoice:
    """Builds a choice from an opening and from candidates that include it."""
    configs = sorted(expected_us, key=expected_us.__getitem__)
    covariance = np.zeros((len(configs), len(configs)))
    for family in dict.fromkeys(config.family for config in configs):
        own = [place for place, config in enumerate(configs) if config.family == family]
        covariance[np.ix_(own, own)] = forecasts[family].error_covariance([configs[place] for place in own])
    return ForecastChoice((*opening,), (*configs,), tuple(expected_us[config] for config in configs), covariance)


def _candidates(
    samples: Sequence[_ForecastSample], forecasts: Mapping[str, Forecast], count: int
) -> dict[Config, float]:
    """The fastest forecast configs with their times, fastest first, at most :data:`PER_KIND` of a kind."""
    kinds: Counter[tuple[str, Hashable]] = Counter()
    expected_us: dict[Config, float] = {}
    for us, config in _fastest_first(samples):
        kind = (config.family, forecasts[config.family].kind(config))
        kinds[kind] += 1
        if kinds[kind] <= PER_KIND and np.isfinite(us):
            expected_us[config] = us
        if len(expected_us) >= count:
            break
    return expected_us


def _further_kinds(
    samples: Sequence[_ForecastSample], forecasts: Mapping[str, Forecast], chosen: Sequence[Config], count: int
) -> dict[Config, float]:
    """The fastest config of each kind that is not among the chosen ones, then a second one of each kind, and so on.

    Returns:
        Their predicted times, in this order.
    """
    if count <= 0:
        return {}
    taken = Counter((config.family, forecasts[config.family].kind(config)) for config in chosen)
    known = set(chosen)
    ranked: list[tuple[int, Config, float]] = []  # fastest first, with the number of faster or chosen ones of its kind
    new = 0
    for us, config in _fastest_first(samples):
        if np.isfinite(us) and config not in known:
            kind = (config.family, forecasts[config.family].kind(config))
            ranked.append((taken[kind], config, us))
            new += taken[kind] == 0
            taken[kind] += 1
        if new == count:
            break
    return {config: us for _, config, us in sorted(ranked, key=operator.itemgetter(0))[:count]}


def _drawn(space: ValidSpace, rng: np.random.Generator, count: int) -> IndexRows:
    """All rows of a small space, a random sample of a larger one; a fifth of :data:`DRAWN` below :data:`SMALL`."""
    if space.size <= count:
        return space.all_rows()
    return space.sample_rows(rng, count if count < DRAWN or space.size >= SMALL else DRAWN // 5)


class _ForecastSample:
    """Forecasts of some configs of one family.

    Args:
        space: Valid configs of the family.
        forecast: Its forecast.
        drawn: Rows to begin with.
    """

    def __init__(self, space: ValidSpace, forecast: Forecast, drawn: IndexRows) -> None:
        self.space = space
        self._forecast = forecast
        self.expected_us: dict[bytes, float] = {}
        """Predicted time by row key."""
        self.add(drawn)
        self._best_drawn = [config for _, config in itertools.islice(_fastest_first([self]), LONG_CLIMBS)]

    @property
    def is_quick(self) -> bool:
        return self._forecast.is_quick

    @property
    def best_us(self) -> float:
        return min(self.expected_us.values())

    def config(self, key: bytes) -> Config:
        return self.space.config_of(np.frombuffer(key, np.uint8))

    def table(self) -> ForecastTable:
        """All forecasts so far."""
        rows = rows_of(self.expected_us, len(self.space.tunables))
        return ForecastTable(rows, np.array([*self.expected_us.values()], np.float64))

    def add(self, rows: IndexRows) -> None:
        """Forecasts rows, except those that are known."""
        new = [key for key in dict.fromkeys(keys_of(rows)) if key not in self.expected_us]
        found = self._forecast.us_of_rows(self.space, rows_of(new, rows.shape[1]))
        self.expected_us.update(zip(new, found.tolist(), strict=True))

    def climb(self, first: int, end: int) -> None:
        """Adds the neighbours along local searches from some of the best draws, one step of all of them at a time."""
        here = self._best_drawn[first:end]
        while here:
            here = self._better_neighbours(here)

    def transplant(self, rows: IndexRows) -> None:
        """Adds configs with the work partitions of some rows and all other values of the best config.

        A random config has random values elsewhere, so that its own time says little about its kind.
        """
        (_, best), *_ = _fastest_first([self])
        kinds: dict[Hashable, Config] = {}
        for row in rows:
            config = self.space.config_of(row)
            kinds.setdefault(self._forecast.kind(config), config)
        found = []
        for config in itertools.islice(kinds.values(), KINDS):
            own = {name: value for name, value in config.as_dict().items() if name in self._forecast.partition}
            found.append(self._row(self.space.repair(best.as_dict() | own)))
        self.add(np.array(found))

    def refine(self, kinds: int) -> None:
        """Improves the best config of each of the fastest kinds in all that its work partition leaves open.

        A kind is as fast as its best config; a random or a transplanted config says little about it.
        """
        best: dict[Hashable, Config] = {}
        for _, config in _fastest_first([self]):
            if len(best) == kinds:
                break
            best.setdefault(self._forecast.kind(config), config)
        refined = [*best.values()]
        for _ in range(ROUNDS):
            refined = self._refined(refined)

    def _refined(self, configs: Sequence[Config]) -> list[Config]:
        """Changes all values of a config at once that would each make it faster, and keep its kind.

        Returns:
            For each config the fastest of itself with these changes, with one of them and with none.
        """
        near = [self._near_twins(config) for config in configs]
        us = self._us_of([*configs, *itertools.chain(*near)])
        changed = [self._improved(config, twins, us) for config, twins in zip(configs, near, strict=True)]
        us |= self._us_of(changed)
        choices = ((config, *twins, one) for config, twins, one in zip(configs, near, changed, strict=True))
        return [min(choice, key=lambda one: (us[one], str(one))) for choice in choices]

    def _near_twins(self, config: Config) -> list[Config]:
        """The neighbours of the same kind."""
        kind = self._forecast.kind(config)
        neighbours = map(self.space.config_of, self.space.neighbour_rows(self._row(config)))
        return [one for one in neighbours if self._forecast.kind(one) == kind]

    def _improved(self, config: Config, twins: Sequence[Config], us: Mapping[Config, float]) -> Config:
        """The config with the changes of all faster twins; of two changes of one value that of the fastest."""
        values = config.as_dict()
        changed = dict(values)
        for one in sorted(twins, key=lambda one: (us[one], str(one))):
            changes = {name: value for name, value in one.as_dict().items() if value != values[name]}
            if us[one] < us[config] and all(changed[name] == values[name] for name in changes):
                changed |= changes
        return self.space.repair(changed)

    def _us_of(self, configs: Sequence[Config]) -> dict[Config, float]:
        """Predicted times, which are kept."""
        rows = np.array([*map(self._row, configs)])
        self.add(rows)
        return {config: self.expected_us[key] for config, key in zip(configs, keys_of(rows), strict=True)}

    def _row(self, config: Config) -> IndexRow:
        row = self.space.row_of(config)
        assert row is not None, "only valid configs are forecast"
        return row

    def _better_neighbours(self, configs: Sequence[Config]) -> list[Config]:
        """The fastest neighbour of each config that has a faster one."""
        rows = [*map(self._row, configs)]
        near = [self.space.neighbour_rows(row) for row in rows]
        self.add(np.concatenate(near))
        found = [self._fastest_below(keys_of(own), row.tobytes()) for row, own in zip(rows, near, strict=True)]
        return [*dict.fromkeys(one for one in found if one is not None)]

    def _fastest_below(self, keys: Sequence[bytes], bound: bytes) -> Config | None:
        """The fastest of some configs, if it is faster than another one; all are given by row keys."""
        least_us = min((self.expected_us[key] for key in keys), default=np.inf)
        if least_us >= self.expected_us[bound]:
            return None
        return min((self.config(key) for key in keys if self.expected_us[key] == least_us), key=str)


def _fastest_first(samples: Sequence[_ForecastSample]) -> Iterator[tuple[float, Config]]:
    """Configs by predicted time; ties are ordered by text, which is made only for them."""
    by_time = sorted((us, index, key) for index, sample in enumerate(samples) for key, us in sample.expected_us.items())
    for us, equal in itertools.groupby(by_time, key=operator.itemgetter(0)):
        configs = [samples[index].config(key) for _, index, key in equal]
        yield from ((us, config) for config in (sorted(configs, key=str) if len(configs) > 1 else configs))
