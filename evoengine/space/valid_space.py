"""The valid configs of one search space for one problem and target, and the moves between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.diagram.decision_diagram import Diagram, IndexRow, IndexRows
from evoengine.space.diagram.diagram_sampling import Steps, draw, nearest
from evoengine.space.diagram.row_set import RowSet
from evoengine.space.language.conditions import Conditions
from evoengine.space.language.rules import Constraint
from evoengine.space.rulebook import RuleBook
from evoengine.space.tunables import Tunable

_CHUNK: Final = 4096
"""Rows that are looked at together."""
_MOST_DRAWS: Final = 2**18
"""Rows that are drawn before a loose space is taken to have nothing left."""
_MOST_NEAR: Final = 64
"""Nearest rows that are checked before a loose space is drawn from instead."""


@dataclass(frozen=True, eq=False)
class ValidSpace:
    """Every valid config, in a fixed order. Each move that takes a config or values returns a valid config.

    The configs are held as a decision diagram, so that their number, their places, uniform draws and nearest configs
    are exact, for 1e12 configs as for ten. Only a *loose* space, some of whose rules fit no diagram, is different: its
    diagram holds more than the valid configs, draws from it are rejected until one obeys those rules (they stay
    uniform), its size is an estimate, its places have holes, and the nearest config is the nearest of those looked at.
    """

    tunables: tuple[Tunable, ...]
    """With the values that overrides left."""
    count: Count
    """Number of valid configs."""
    cartesian_size: int
    """Combinations of all values, valid or not."""
    removed: Mapping[str, Count]
    """For each constraint, how many of the combinations it excludes on its own."""
    diagram: Diagram
    """The rows that obey all rules but the loose ones."""
    loose: tuple[Constraint, ...]
    """Rules that are checked row by row."""
    book: RuleBook
    conditions: Conditions

    @property
    def family(self) -> str:
        """The family whose configs they are."""
        return self.book.definition.family

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """All rules, in file order; those of conditional tunables last."""
        return self.book.definition.constraints

    @property
    def size(self) -> int:
        """Number of valid configs: the value of :attr:`count`, which says how sure it is."""
        return self.count.value

    def __iter__(self) -> Iterator[Config]:
        for rows in self._chunks():
            yield from map(self.config_of, rows)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.contains(config)

    # -- configs and rows ---------------------------------------------------------------------------------------------

    def config(self, index: int) -> Config:
        """The config at a place, 0 to ``size - 1`` where the size is exact.

        Raises:
            IndexError: there is no config at that place.
        """
        row = self.diagram.row(index)
        if not self.obeys(row[None])[0]:
            raise IndexError(f"the combination at place {index:,} is not valid")
        return self.config_of(row)

    def index_of(self, config: Config) -> int | None:
        """Place of a config; None if it is not valid here."""
        row = self.row_of(config)
        return None if row is None else self.diagram.place(row)

    def contains(self, config: Config) -> bool:
        """Whether a config is valid here."""
        return self.row_of(config) is not None

    def row_of(self, config: Config) -> IndexRow | None:
        """Value indices of a config; None if it is not valid here."""
        return self._valid_row(config.as_dict()) if config.family == self.family else None

    def config_of(self, row: IndexRow) -> Config:
        """The config with these value indices."""
        places = row.tolist()
        return Config(self.family, tuple([pairs[places[axis]] for axis, pairs in self._by_name]))

    def all_rows(self) -> IndexRows:
        """The rows of all valid configs, of which there should be few, by place."""
        return np.concatenate([*self._chunks()])

    def obeys(self, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Which rows of the diagram obey the loose rules too."""
        obeys = np.ones(len(rows), np.bool_)
        for constraint in self.loose:
            obeys &= self.book.allows(constraint, rows)
        return obeys

    # -- moves --------------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> Config:
        """A valid config, all equally likely."""
        config = self.sample_outside(rng, self._nothing)
        assert config is not None, "a space holds at least one config"
        return config

    def samples(self, rng: np.random.Generator, count: int) -> list[Config]:
        """Many valid configs, each equally likely, some perhaps twice; of a loose space perhaps fewer than wanted."""
        return [self.config_of(row) for row in self.sample_rows(rng, count)]

    def sample_rows(self, rng: np.random.Generator, count: int) -> IndexRows:
        """The rows of :meth:`samples`."""
        rows = self.diagram.rows(rng.integers(self.diagram.count, size=count))
        return np.asarray(rows[self.obeys(rows)])

    def sample_outside(self, rng: np.random.Generator, seen: RowSet) -> Config | None:
        """A valid config whose row is not in a set, all equally likely; None if there is none.

        Of a loose space, None says that none was found among many draws.
        """
        row = self._draw(rng, seen)
        return None if row is None else self.config_of(row)

    def neighbours(self, config: Config) -> list[Config]:
        """The valid configs that differ from a config, itself perhaps invalid, by one step of one tunable.

        Raises:
            UsageError: a tunable cannot hold its value.
        """
        values = config.as_dict()
        row = np.array([tunable.encode(values[tunable.name]) for tunable in self.tunables], np.uint8)
        return [self.config_of(one) for one in self.neighbour_rows(row)] if len(values) == len(row) else []

    def neighbour_rows(self, row: IndexRow) -> IndexRows:
        """The rows of :meth:`neighbours`, by value indices."""
        steps = [(axis, to) for axis, (places, at) in enumerate(zip(self._next, row, strict=True)) for to in places[at]]
        near = np.array([row] * len(steps), np.uint8).reshape(-1, len(row))
        near[np.arange(len(steps)), [axis for axis, _ in steps]] = [to for _, to in steps]
        inside = near[self.diagram.contains(near)]
        return np.asarray(inside[self.obeys(inside)])

    def mutate(self, config: Config, rng: np.random.Generator, rate: float) -> Config:
        """Mutates each tunable with probability ``rate``, at least one, and repairs the result.

        Returns:
            A valid config other than ``config``, unless that is the only one.
        """
        chosen = rng.random(len(self.tunables)) < rate
        if not chosen.any():
            chosen[rng.integers(len(self.tunables))] = True
        values = config.as_dict()
        for tunable in (self.tunables[int(place)] for place in np.flatnonzero(chosen)):
            old = values[tunable.name]
            values[tunable.name] = tunable.mutate(old, rng) if tunable.holds(old) else tunable.sample(rng)
        parent = self.row_of(config)
        if parent is None:
            return self.repair(values, rng)
        avoided = RowSet(len(self.tunables))
        avoided.add(parent)
        return self.nearest_outside(values, rng, avoided) or config

    def crossover(self, a: Config, b: Config, rng: np.random.Generator) -> Config:
        """Takes each tunable from either parent, evenly, and repairs the result."""
        from_a = rng.random(len(self.tunables)) < 0.5
        values = {
            tunable.name: (a if take_a else b)[tunable.name]
            for tunable, take_a in zip(self.tunables, from_a, strict=True)
        }
        return self.repair(values, rng)

    def repair(self, values: Mapping[str, Value], rng: np.random.Generator | None = None) -> Config:
        """The valid config that is the fewest steps away, ties broken at random, or by place without ``rng``.

        An ordinal tunable counts the places between two values, a categorical one 1 for any change. Values may be
        foreign or missing: a foreign integer counts as its nearest own value, a missing tunable costs nothing. Nor does
        a tunable that has no effect, given the other values.
        """
        config = self._nearest(values, rng, self._nothing)
        assert config is not None, "a space holds at least one config"
        return config

    def nearest_outside(self, values: Mapping[str, Value], rng: np.random.Generator, seen: RowSet) -> Config | None:
        """As :meth:`repair`, among the configs whose rows are not in a set; None if there are none."""
        return self._nearest(values, rng, seen)

    def starts(self) -> list[Config]:
        """The configs to begin with that the space's file names, each made valid here by as few changes as can be."""
        first = {tunable.name: tunable.values[0] for tunable in self.tunables}
        starts = [self.repair(first | dict(start.values)) for start in self.book.definition.starts]
        return list(dict.fromkeys(starts))

    def summary(self) -> list[str]:
        """Lines for people: the size, then what each constraint removes on its own and why."""
        lines = [
            (
                f"{self.family}: {self.count.of('valid configs')} of {self.cartesian_size:,} combinations "
                f"of {len(self.tunables)} tunables"
            )
        ]
        width = max((len(constraint.name) for constraint in self.constraints), default=0)
        number_width = max((len(str(count)) for count in self.removed.values()), default=0)
        for constraint in self.constraints:
            count = self.removed[constraint.name]
            share = 100 * count.value / self.cartesian_size
            lines.append(
                f"  {constraint.name:<{width}} removes {count!s:>{number_width}} ({share:4.1f} %): {constraint.reason}"
            )
        return lines

    # -- inside -------------------------------------------------------------------------------------------------------

    @cached_property
    def _nothing(self) -> RowSet:
        return RowSet(len(self.tunables))

    @cached_property
    def _next(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each tunable and value index, the indices that are one step away."""
        return tuple(
            tuple(tuple(map(tunable.encode, tunable.neighbours(value))) for value in tunable.values)
            for tunable in self.tunables
        )

    def _chunks(self) -> Iterator[IndexRows]:
        """The rows of all valid configs, some at a time."""
        for start in range(0, self.diagram.count, _CHUNK):
            rows = self.diagram.rows(np.arange(start, min(start + _CHUNK, self.diagram.count)))
            yield rows[self.obeys(rows)]

    @cached_property
    def _places(self) -> tuple[tuple[str, Mapping[tuple[type, object], int]], ...]:
        """For each tunable, its name and the places of its values (``True`` is not 1)."""
        return tuple((t.name, {(type(own), own): place for place, own in enumerate(t.values)}) for t in self.tunables)

    @cached_property
    def _by_name(self) -> tuple[tuple[int, tuple[tuple[str, Value], ...]], ...]:
        """Of each tunable, in the order of a config, its place here and what a config has of it, by value."""
        ordered = sorted(enumerate(self.tunables), key=lambda placed: placed[1].name)
        return tuple((axis, tuple((one.name, value) for value in one.values)) for axis, one in ordered)

    @cached_property
    def _step_tables(self) -> tuple[Steps, ...]:
        """For each tunable, ``[values, values]``: steps from one of its values to another."""
        return tuple(np.array([t.distances(value) for value in t.values], np.int64) for t in self.tunables)

    def _valid_row(self, values: Mapping[str, Value]) -> IndexRow | None:
        if len(values) != len(self.tunables):
            return None
        places = []
        for name, place_of in self._places:
            value = values.get(name)
            place = place_of.get((type(value), value))
            if place is None:
                return None
            places.append(place)
        row = np.array(places, np.uint8)
        inside = self.diagram.place(row) is not None and bool(self.obeys(row[None])[0])
        return row if inside else None

    def _draw(self, rng: np.random.Generator, seen: RowSet) -> IndexRow | None:
        if not self.loose:
            return draw(self.diagram, rng, seen.rows)
        for _ in range(0, _MOST_DRAWS, _CHUNK):
            rows = self.diagram.rows(rng.integers(self.diagram.count, size=_CHUNK))
            row: IndexRow | None = next((row for row in rows[self.obeys(rows)] if row not in seen), None)
            if row is not None:
                return row
        return None

    def _nearest(self, values: Mapping[str, Value], rng: np.random.Generator | None, seen: RowSet) -> Config | None:
        wanted = self.conditions.settled({t.name: values[t.name] for t in self.tunables if t.name in values})
        exact = self._valid_row(wanted)
        if exact is not None and exact not in seen:
            return self.config_of(exact)
        steps = [self._steps(place, wanted) for place in range(len(self.tunables))]
        rejected: list[IndexRow] = []
        for _ in range(_MOST_NEAR):
            row = nearest(self.diagram, steps, rng, seen.with_rows(rejected) if rejected else seen.rows)
            if row is None:
                return None
            if self.obeys(row[None])[0]:
                return self.config_of(row)
            rejected.append(row)
        return self.sample_outside(np.random.default_rng(0) if rng is None else rng, seen)

    def _steps(self, place: int, wanted: Mapping[str, Value]) -> Steps:
        """Steps from the wanted value of a tunable to each of its values; none if it may be any."""
        tunable, table = self.tunables[place], self._step_tables[place]
        if tunable.name not in wanted:
            return np.zeros(len(table), np.int64)
        value = wanted[tunable.name]
        return table[tunable.encode(value)] if tunable.holds(value) else tunable.distances(value).astype(np.int64)
