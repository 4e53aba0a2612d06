"""The valid configs of several families, searched as one space."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evoengine.model import Config, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.valid_space import ValidSpace


@dataclass(frozen=True, eq=False)
class FamilySpaces:
    """A union of valid spaces; the family is part of a config.

    Steps stay within a family, since tunables of two families have nothing in common, whatever their names. How often
    to try which family is for those to decide who know what became of earlier configs: the strategies.
    """

    members: tuple[ValidSpace, ...]
    """One per family."""

    @classmethod
    def around(cls, space: ValidSpace | FamilySpaces) -> FamilySpaces:
        """One family as a union of one; a union as it is."""
        return space if isinstance(space, FamilySpaces) else cls((space,))

    @property
    def families(self) -> tuple[str, ...]:
        """Names of the families."""
        return tuple(member.family for member in self.members)

    @cached_property
    def _by_family(self) -> Mapping[str, ValidSpace]:
        return {member.family: member for member in self.members}

    def of(self, family: str) -> ValidSpace:
        """The valid configs of one family.

        Raises:
            KeyError: it is not among the families.
        """
        return self._by_family[family]

    @property
    def count(self) -> Count:
        """Number of valid configs."""
        return Count.sum(member.count for member in self.members)

    @property
    def size(self) -> int:
        """The value of :attr:`count`."""
        return self.count.value

    def __iter__(self) -> Iterator[Config]:
        for member in self.members:
            yield from member

    def __contains__(self, config: object) -> bool:
        return isinstance(config, Config) and self.contains(config)

    def contains(self, config: Config) -> bool:
        """Whether a config is valid in its family."""
        return config.family in self._by_family and self.of(config.family).contains(config)

    def sample(self, rng: np.random.Generator) -> Config:
        """Any family, all equally likely; then any of its valid configs, all equally likely."""
        return self.members[int(rng.integers(len(self.members)))].sample(rng)

    def starts(self) -> list[Config]:
        """See :meth:`ValidSpace.starts`; the families take turns."""
        turns = itertools.zip_longest(*(member.starts() for member in self.members))
        return [config for turn in turns for config in turn if config is not None]

    def neighbours(self, config: Config) -> list[Config]:
        """See :meth:`ValidSpace.neighbours`."""
        return self.of(config.family).neighbours(config)

    def mutate(self, config: Config, rng: np.random.Generator, rate: float) -> Config:
        """See :meth:`ValidSpace.mutate`; the family stays."""
        return self.of(config.family).mutate(config, rng, rate)

    def crossover(self, a: Config, b: Config, rng: np.random.Generator) -> Config:
        """See :meth:`ValidSpace.crossover`.

        Raises:
            ValueError: the parents are of two families.
        """
        if a.family != b.family:
            raise ValueError(f"a config of {a.family} and one of {b.family} have no tunable in common")
        return self.of(a.family).crossover(a, b, rng)

    def repair(self, family: str, values: Mapping[str, Value], rng: np.random.Generator | None = None) -> Config:
        """See :meth:`ValidSpace.repair`."""
        return self.of(family).repair(values, rng)
