"""Valid configs of one search space for one problem and target, and moves between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.diagram.decision_diagram import Diagram
from evoengine.space.diagram.diagram_sampling import Steps, draw, nearest
from evoengine.space.index_rows import IndexRow, IndexRows, RowSet
from evoengine.space.language.conditions import Conditions
from evoengine.space.language.rules import Constraint
from evoengine.space.rulebook import RuleBook
from evoengine.space.tunables import Tunable

_CHUNK: Final = 4096
"""Rows processed at once."""
_MOST_DRAWS: Final = 2**18
"""Rows drawn from a loose space before it is considered exhausted."""
_MOST_NEAR: Final = 64
"""Nearest rows checked in a loose space before a random row is taken instead."""


@dataclass(frozen=True, eq=False)
class ValidSpace:
    """All valid configs, in a fixed order. Every move returns a valid config.

    The configs are stored as a decision diagram: their number, positions, uniform samples and nearest configs are exact
    for 1e12 configs as for ten. In a *loose* space some rules are not part of the diagram. The diagram then contains
    invalid configs too: samples are rejected until one satisfies the loose rules (they remain uniform), the size is an
    estimate, positions of invalid configs are unused, and the nearest config is the nearest of those checked.
    """

    tunables: tuple[Tunable, ...]
    """Tunables after overrides."""
    count: Count
    """Number of valid configs."""
    cartesian_size: int
    """Combinations of all values, valid or not."""
    removed: Mapping[str, Count]
    """For each constraint, the number of combinations that it excludes on its own."""
    diagram: Diagram
    """Rows that satisfy all rules except the loose ones."""
    loose: tuple[Constraint, ...]
    """Rules that are checked row by row, because their diagrams would be too large."""
    book: RuleBook
    conditions: Conditions

    @property
    def family(self) -> str:
        return self.book.definition.family

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """All rules in file order, followed by those implied by conditional tunables."""
        return self.book.definition.constraints

    @property
    def size(self) -> int:
        """Number of valid configs; :attr:`count` also holds its error."""
        return self.count.value

    def __iter__(self) -> Iterator[Config]:
        for rows in self._chunks():
            yield from map(self.config_of, rows)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.contains(config)

    # -- configs and rows ---------------------------------------------------------------------------------------------

    def config(self, index: int) -> Config:
        """Returns the config at a position, 0 to ``size - 1`` if the size is exact.

        Raises:
            IndexError: There is no config at the position.
        """
        row = self.diagram.row(index)
        if not self.obeys(row[None])[0]:
            raise IndexError(f"the combination at position {index:,} is not valid")
        return self.config_of(row)

    def index_of(self, config: Config) -> int | None:
        """Returns the position of a config; None if it is not valid."""
        row = self.row_of(config)
        return None if row is None else self.diagram.position(row)

    def contains(self, config: Config) -> bool:
        return self.row_of(config) is not None

    def row_of(self, config: Config) -> IndexRow | None:
        """Returns the value indices of a config; None if it is not valid."""
        return self._valid_row(config.as_dict()) if config.family == self.family else None

    def config_of(self, row: IndexRow) -> Config:
        """Returns the config with these value indices."""
        indices = row.tolist()
        return Config(self.family, tuple([pairs[indices[axis]] for axis, pairs in self._by_name]))

    def all_rows(self) -> IndexRows:
        """Returns the rows of all valid configs by position; meant for small spaces."""
        return np.concatenate([*self._chunks()])

    def obeys(self, rows: IndexRows) -> npt.NDArray[np.bool_]:
        """Returns which rows of the diagram satisfy the loose rules."""
        obeys = np.ones(len(rows), np.bool_)
        for constraint in self.loose:
            obeys &= self.book.allows(constraint, rows)
        return obeys

    # -- moves --------------------------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator) -> Config:
        """Draws a valid config uniformly."""
        config = self.sample_outside(rng, self._nothing)
        assert config is not None, "a space holds at least one config"
        return config

    def samples(self, rng: np.random.Generator, count: int) -> list[Config]:
        """Draws valid configs uniformly with replacement; from a loose space possibly fewer than ``count``."""
        return [self.config_of(row) for row in self.sample_rows(rng, count)]

    def sample_rows(self, rng: np.random.Generator, count: int) -> IndexRows:
        """Draws rows as :meth:`samples` draws configs."""
        rows = self.diagram.rows(rng.integers(self.diagram.count, size=count))
        return np.asarray(rows[self.obeys(rows)])

    def sample_outside(self, rng: np.random.Generator, seen: RowSet) -> Config | None:
        """Draws a valid config uniformly whose row is not in ``seen``; None if there is none.

        For a loose space, None means that many draws found none.
        """
        row = self._draw(rng, seen)
        return None if row is None else self.config_of(row)

    def neighbours(self, config: Config) -> list[Config]:
        """Returns the valid configs one step of one tunable away from a config, which may be invalid.

        Raises:
            UsageError: A value is unknown to its tunable.
        """
        values = config.as_dict()
        row = np.array([tunable.encode(values[tunable.name]) for tunable in self.tunables], np.uint8)
        return [self.config_of(one) for one in self.neighbour_rows(row)] if len(values) == len(row) else []

    def neighbour_rows(self, row: IndexRow) -> IndexRows:
        """Returns the rows of :meth:`neighbours` for a row."""
        steps = [
            (axis, to) for axis, (next_of, at) in enumerate(zip(self._next, row, strict=True)) for to in next_of[at]
        ]
        near = np.array([row] * len(steps), np.uint8).reshape(-1, len(row))
        near[np.arange(len(steps)), [axis for axis, _ in steps]] = [to for _, to in steps]
        inside = near[self.diagram.contains(near)]
        return np.asarray(inside[self.obeys(inside)])

    def mutate(self, config: Config, rng: np.random.Generator, rate: float) -> Config:
        """Mutates each tunable with probability ``rate``, at least one, and repairs the result.

        Each chosen tunable changes as by :meth:`Tunable.mutated <evoengine.space.tunables.Tunable.mutated>`.

        Returns:
            A valid config other than ``config``, unless that is the only one.
        """
        chosen = rng.random(len(self.tunables)) < rate
        if not chosen.any():
            chosen[rng.integers(len(self.tunables))] = True
        values = config.as_dict()
        for tunable in (self.tunables[int(axis)] for axis in np.flatnonzero(chosen)):
            old = values[tunable.name]
            values[tunable.name] = tunable.mutated(old, rng) if tunable.holds(old) else tunable.sample(rng)
        parent = self.row_of(config)
        if parent is None:
            return self.repair(values, rng)
        avoided = RowSet(len(self.tunables))
        avoided.add(parent)
        return self.nearest_outside(values, rng, avoided) or config

    def crossover(self, a: Config, b: Config, rng: np.random.Generator) -> Config:
        """Uniform crossover: takes each value from a random parent, and repairs the result."""
        from_a = rng.random(len(self.tunables)) < 0.5
        values = {
            tunable.name: (a if take_a else b)[tunable.name]
            for tunable, take_a in zip(self.tunables, from_a, strict=True)
        }
        return self.repair(values, rng)

    def repair(self, values: Mapping[str, Value], rng: np.random.Generator | None = None) -> Config:
        """Returns the valid config with the fewest steps from given values.

        Ties are broken at random, or by position without ``rng``. Steps of an ordinal tunable are differences of value
        indices; any change of a categorical tunable is one step. Values may be unknown or missing: an unknown integer
        counts as the nearest known value, a missing value costs nothing. A tunable without effect costs nothing either.
        """
        config = self._nearest(values, rng, self._nothing)
        assert config is not None, "a space holds at least one config"
        return config

    def nearest_outside(self, values: Mapping[str, Value], rng: np.random.Generator, seen: RowSet) -> Config | None:
        """Works as :meth:`repair`, without the configs whose rows are in ``seen``; None if no config is left."""
        return self._nearest(values, rng, seen)

    def starts(self) -> list[Config]:
        """Returns the starts of the search-space file, each repaired to the nearest valid config."""
        first = {tunable.name: tunable.values[0] for tunable in self.tunables}
        starts = [self.repair(first | dict(start.values)) for start in self.book.definition.starts]
        return list(dict.fromkeys(starts))

    def summary(self) -> list[str]:
        """Returns text lines: the size, then the number of configs that each constraint removes, and its reason."""
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

    # -- internals ---------------------------------------------------------------------------------------------------

    @cached_property
    def _nothing(self) -> RowSet:
        return RowSet(len(self.tunables))

    @cached_property
    def _next(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """For each tunable and value index, the value indices one step away."""
        return tuple(
            tuple(tuple(map(tunable.encode, tunable.neighbours(value))) for value in tunable.values)
            for tunable in self.tunables
        )

    def _chunks(self) -> Iterator[IndexRows]:
        """Yields the rows of all valid configs in chunks."""
        for start in range(0, self.diagram.count, _CHUNK):
            rows = self.diagram.rows(np.arange(start, min(start + _CHUNK, self.diagram.count)))
            yield rows[self.obeys(rows)]

    @cached_property
    def _indices(self) -> tuple[tuple[str, Mapping[tuple[type, object], int]], ...]:
        """For each tunable, its name and the indices of its values by type and value (``True`` is not 1)."""
        return tuple((t.name, {(type(own), own): index for index, own in enumerate(t.values)}) for t in self.tunables)

    @cached_property
    def _by_name(self) -> tuple[tuple[int, tuple[tuple[str, Value], ...]], ...]:
        """For each tunable in the order of a config: its axis, and the (name, value) pairs by value index."""
        ordered = sorted(enumerate(self.tunables), key=lambda numbered: numbered[1].name)
        return tuple((axis, tuple((one.name, value) for value in one.values)) for axis, one in ordered)

    @cached_property
    def _step_tables(self) -> tuple[Steps, ...]:
        """For each tunable, ``[values, values]``: Steps from one value to another."""
        return tuple(np.array([t.distances(value) for value in t.values], np.int64) for t in self.tunables)

    def _valid_row(self, values: Mapping[str, Value]) -> IndexRow | None:
        if len(values) != len(self.tunables):
            return None
        indices = []
        for name, index_of in self._indices:
            value = values.get(name)
            index = index_of.get((type(value), value))
            if index is None:
                return None
            indices.append(index)
        row = np.array(indices, np.uint8)
        inside = self.diagram.position(row) is not None and bool(self.obeys(row[None])[0])
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
        wanted = self.conditions.normalised({t.name: values[t.name] for t in self.tunables if t.name in values})
        exact = self._valid_row(wanted)
        if exact is not None and exact not in seen:
            return self.config_of(exact)
        steps = [self._steps(axis, wanted) for axis in range(len(self.tunables))]
        rejected: list[IndexRow] = []
        for _ in range(_MOST_NEAR):
            row = nearest(self.diagram, steps, rng, seen.with_rows(rejected) if rejected else seen.rows)
            if row is None:
                return None
            if self.obeys(row[None])[0]:
                return self.config_of(row)
            rejected.append(row)
        return self.sample_outside(np.random.default_rng(0) if rng is None else rng, seen)

    def _steps(self, axis: int, wanted: Mapping[str, Value]) -> Steps:
        """Returns the steps from the wanted value of a tunable to each of its values; 0 if no value is wanted."""
        tunable, table = self.tunables[axis], self._step_tables[axis]
        if tunable.name not in wanted:
            return np.zeros(len(table), np.int64)
        value = wanted[tunable.name]
        return table[tunable.encode(value)] if tunable.holds(value) else tunable.distances(value).astype(np.int64)
