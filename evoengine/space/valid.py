"""The valid configs of one search space for one problem and target, and the moves between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Value
from evoengine.space.rules import Constraint
from evoengine.space.tunables import Tunable


def radix_weights(sizes: Sequence[int]) -> tuple[int, ...]:
    """Place values of a mixed-radix key whose first digit counts most."""
    return tuple(math.prod(sizes[place + 1 :]) for place in range(len(sizes)))


@dataclass(frozen=True, eq=False)
class ValidSpace:
    """Every valid config, in a fixed order. Each move that takes a config or values returns a valid config.

    A config is held as its mixed-radix key over the tunables' value indices, the first tunable counting most.
    """

    family: str
    tunables: tuple[Tunable, ...]
    """With the values that overrides left."""
    constraints: tuple[Constraint, ...]
    keys: npt.NDArray[np.int64]
    """Keys of the valid configs, ascending."""
    cartesian_size: int
    """Combinations of all values, valid or not."""
    removed: Mapping[str, int]
    """For each constraint, how many of the combinations it excludes on its own."""

    @property
    def size(self) -> int:
        """Number of valid configs."""
        return len(self.keys)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Config]:
        return (self.config(index) for index in range(self.size))

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.contains(config)

    @cached_property
    def matrix(self) -> npt.NDArray[np.uint8]:
        """Value indices ``[size, tunables]``, one row per valid config, stored by column."""
        matrix = np.empty((self.size, len(self.tunables)), np.uint8, order="F")
        for place, (tunable, weight) in enumerate(zip(self.tunables, self._weights, strict=True)):
            matrix[:, place] = self.keys // weight % len(tunable.values)
        return matrix

    def config(self, index: int) -> Config:
        """The config at a position, 0 to ``size - 1``.

        Raises:
            IndexError: there is no such position.
        """
        return self._config_of(int(self.keys[index]))

    def index_of(self, config: Config) -> int | None:
        """Position of a config; None if it is not valid here."""
        key = self._key(config)
        if key is None:
            return None
        index = int(np.searchsorted(self.keys, key))
        return index if index < self.size and self.keys[index] == key else None

    def contains(self, config: Config) -> bool:
        """Whether a config is valid here, in O(log size)."""
        return self.index_of(config) is not None

    def sample(self, rng: np.random.Generator) -> Config:
        """A valid config, all equally likely."""
        return self.config(int(rng.integers(self.size)))

    def neighbours(self, config: Config) -> list[Config]:
        """The valid configs that differ from a config, itself perhaps invalid, by one step of one tunable.

        Raises:
            UsageError: a tunable cannot hold its value.
        """
        values = config.as_dict()
        near = [
            Config.of(self.family, {**values, tunable.name: value})
            for tunable in self.tunables
            for value in tunable.neighbours(values[tunable.name])
        ]
        return [candidate for candidate in near if self.contains(candidate)]

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
        return self._repair(values, rng, avoid=self.index_of(config))

    def crossover(self, a: Config, b: Config, rng: np.random.Generator) -> Config:
        """Takes each tunable from either parent, evenly, and repairs the result."""
        from_a = rng.random(len(self.tunables)) < 0.5
        values = {
            tunable.name: (a if take_a else b)[tunable.name]
            for tunable, take_a in zip(self.tunables, from_a, strict=True)
        }
        return self._repair(values, rng, avoid=None)

    def repair(self, values: Mapping[str, Value], rng: np.random.Generator) -> Config:
        """The valid config that is the fewest steps away, ties broken at random.

        An ordinal tunable counts the places between two values, a categorical one 1 for any change. Values may be
        foreign or missing: a foreign integer counts as its nearest own value, a missing tunable costs nothing.
        """
        return self._repair(values, rng, avoid=None)

    def nearest(self, values: Mapping[str, Value]) -> Config:
        """As :meth:`repair`, ties broken by position."""
        return self.config(int(np.argmin(self._steps(values))))

    def summary(self) -> list[str]:
        """Lines for people: the size, then what each constraint removes on its own and why."""
        lines = [
            (
                f"{self.family}: {self.size:,} valid configs of {self.cartesian_size:,} combinations "
                f"of {len(self.tunables)} tunables"
            )
        ]
        width = max((len(constraint.name) for constraint in self.constraints), default=0)
        for constraint in self.constraints:
            count = self.removed[constraint.name]
            share = 100 * count / self.cartesian_size
            lines.append(f"  {constraint.name:<{width}} removes {count:>12,} ({share:4.1f} %): {constraint.reason}")
        return lines

    @cached_property
    def _weights(self) -> tuple[int, ...]:
        return radix_weights([len(tunable.values) for tunable in self.tunables])

    def _config_of(self, key: int) -> Config:
        values: dict[str, Value] = {}
        for tunable, weight in zip(self.tunables, self._weights, strict=True):
            values[tunable.name] = tunable.decode(key // weight % len(tunable.values))
        return Config.of(self.family, values)

    def _key(self, config: Config) -> int | None:
        """Key of a config; None where it has other tunables or values than this space."""
        values = config.as_dict()
        if config.family != self.family or len(values) != len(self.tunables):
            return None
        key = 0
        for tunable, weight in zip(self.tunables, self._weights, strict=True):
            value = values.get(tunable.name)
            if value is None or not tunable.holds(value):
                return None
            key += tunable.encode(value) * weight
        return key

    def _repair(self, values: Mapping[str, Value], rng: np.random.Generator, avoid: int | None) -> Config:
        known = {tunable.name: values[tunable.name] for tunable in self.tunables if tunable.name in values}
        index = self.index_of(Config.of(self.family, known))
        if index is None or (index == avoid and self.size > 1):
            steps = self._steps(known)
            if avoid is not None and self.size > 1:
                steps[avoid] = np.iinfo(steps.dtype).max
            ties = np.flatnonzero(steps == steps.min())
            index = int(ties[rng.integers(len(ties))])
        return self.config(index)

    def _steps(self, values: Mapping[str, Value]) -> npt.NDArray[np.uint16]:
        """Steps from ``values`` to every valid config."""
        steps = np.zeros(self.size, np.uint16)
        for place, tunable in enumerate(self.tunables):
            if tunable.name in values:
                steps += np.take(tunable.distances(values[tunable.name]), self.matrix[:, place])
        return steps
