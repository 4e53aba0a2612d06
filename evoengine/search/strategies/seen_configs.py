"""The configs that a study has proposed or evaluated, and draws from the valid configs outside this set."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from evoengine.model import Config, Value
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.index_rows import IndexRow, RowSet
from evoengine.space.valid_space import ValidSpace


class SeenConfigs:
    """The valid configs that are evaluated or in flight.

    Args:
        spaces: Valid configs, by family.
    """

    def __init__(self, spaces: FamilySpaces) -> None:
        self.spaces = spaces
        self._seen = {member.family: RowSet(len(member.tunables)) for member in spaces.members}
        self._witnesses: dict[str, IndexRow] = {}
        """An unseen config of families whose number of configs is estimated, as far as one was looked for."""

    def __contains__(self, config: Config) -> bool:
        if config.family not in self._seen:
            return False
        row = self.spaces.of(config.family).row_of(config)
        return row is not None and row in self._seen[config.family]

    @property
    def exhausted(self) -> bool:
        """Whether every valid config has been seen."""
        return not self.open_families()

    def open_families(self) -> tuple[str, ...]:
        """Families with an unseen valid config."""
        return tuple(member.family for member in self.spaces.members if self._is_open(member))

    def count(self, family: str) -> int:
        """Number of seen configs of a family."""
        return len(self._seen[family])

    def rows(self, family: str) -> RowSet:
        """Seen configs of a family, as rows of value indices."""
        return self._seen[family]

    def add(self, config: Config) -> None:
        """Marks a config as seen; one that is not valid here is ignored."""
        if config.family in self._seen:
            row = self.spaces.of(config.family).row_of(config)
            if row is not None:
                self._seen[config.family].add(row)

    def random_unseen(self, rng: np.random.Generator, family: str = "") -> Config:
        """Draws an unseen valid config, all equally likely.

        Args:
            rng: Random generator.
            family: Family to draw from; empty for any that is not exhausted, all equally likely.

        Raises:
            ValueError: The family, or the space, is exhausted.
        """
        if not family:
            families = self.open_families()
            if not families:
                raise ValueError("the space is exhausted")
            family = families[int(rng.integers(len(families)))]
        config = self.spaces.of(family).sample_outside(rng, self._seen[family]) or self._probe(family)
        if config is None:
            raise ValueError(f"family {family} is exhausted")
        return config

    def nearest_unseen(self, family: str, values: Mapping[str, Value], rng: np.random.Generator) -> Config:
        """Returns the unseen valid config of a family that is the fewest steps away, ties broken at random.

        Steps are counted as in ``ValidSpace.repair``. The config with the given values itself is returned when it is
        valid and unseen.

        Args:
            family: Family of the config.
            values: Values by tunable; they may be invalid together.
            rng: Random generator.

        Raises:
            ValueError: The family is exhausted.
        """
        near = self.spaces.of(family).nearest_outside(values, rng, self._seen[family])
        return near or self.random_unseen(rng, family)

    def _is_open(self, member: ValidSpace) -> bool:
        if member.count.exact:
            return len(self._seen[member.family]) < member.size
        witness = self._witnesses.get(member.family)
        if witness is None or witness in self._seen[member.family]:
            config = self._probe(member.family)
            witness = None if config is None else member.row_of(config)
            if witness is None:
                return False
            self._witnesses[member.family] = witness
        return True

    def _probe(self, family: str) -> Config | None:
        """Returns an unseen config, the same one until another config is seen; None if none is found."""
        seen = self._seen[family]
        return self.spaces.of(family).sample_outside(np.random.default_rng(len(seen)), seen)
