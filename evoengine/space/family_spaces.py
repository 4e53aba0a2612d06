"""Union of the valid spaces of several families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from evoengine.model import Config, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.valid_space import ValidSpace


@dataclass(frozen=True, eq=False)
class FamilySpaces:
    """Union of valid spaces, one per family.

    Moves stay within a family, because families have no tunables in common, even with equal names. The strategies
    decide how often to try each family.
    """

    members: tuple[ValidSpace, ...]
    """Valid spaces, one per family."""

    @classmethod
    def around(cls, space: ValidSpace | FamilySpaces) -> FamilySpaces:
        """Wraps the space of a single family; returns a union unchanged."""
        return space if isinstance(space, FamilySpaces) else cls((space,))

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(member.family for member in self.members)

    @cached_property
    def _by_family(self) -> Mapping[str, ValidSpace]:
        return {member.family: member for member in self.members}

    def of(self, family: str) -> ValidSpace:
        """Returns the valid configs of one family.

        Raises:
            KeyError: The union does not have the family.
        """
        return self._by_family[family]

    @property
    def count(self) -> Count:
        return Count.sum(member.count for member in self.members)

    @property
    def size(self) -> int:
        return self.count.value

    def __iter__(self) -> Iterator[Config]:
        for member in self.members:
            yield from member

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.contains(config)

    def contains(self, config: Config) -> bool:
        return config.family in self._by_family and self.of(config.family).contains(config)

    def sample(self, rng: np.random.Generator) -> Config:
        """Draws a family uniformly, then one of its valid configs uniformly."""
        return self.members[int(rng.integers(len(self.members)))].sample(rng)

    def starts(self) -> list[Config]:
        """Returns the starts of all families, those of each family spread evenly over the list.

        Families with many starts therefore come first, and the only start of a family comes in the middle.
        """
        placed = [
            ((place + 0.5) / len(starts), config)
            for starts in (member.starts() for member in self.members)
            for place, config in enumerate(starts)
        ]
        return [config for _, config in sorted(placed, key=itemgetter(0))]

    def neighbours(self, config: Config) -> list[Config]:
        return self.of(config.family).neighbours(config)

    def mutate(self, config: Config, rng: np.random.Generator, rate: float) -> Config:
        return self.of(config.family).mutate(config, rng, rate)

    def crossover(self, a: Config, b: Config, rng: np.random.Generator) -> Config:
        """Combines two configs of one family.

        Raises:
            ValueError: The parents belong to different families.
        """
        if a.family != b.family:
            raise ValueError(f"a config of {a.family} and one of {b.family} have no tunable in common")
        return self.of(a.family).crossover(a, b, rng)

    def repair(self, family: str, values: Mapping[str, Value], rng: np.random.Generator | None = None) -> Config:
        return self.of(family).repair(values, rng)
