"""Which configs a study has seen: a config is proposed once, and the valid space may run out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.model import Config, Value
from evoengine.space.valid import ValidSpace

_FAR: Final = np.iinfo(np.uint16).max
"""More steps than any two configs are apart."""


class Archive:
    """The valid configs that are evaluated or under way."""

    def __init__(self, space: ValidSpace) -> None:
        self.space = space
        self._seen: npt.NDArray[np.bool_] = np.zeros(space.size, np.bool_)

    def __contains__(self, config: Config) -> bool:
        index = self.space.index_of(config)
        return index is not None and bool(self._seen[index])

    @property
    def exhausted(self) -> bool:
        """Whether every valid config has been seen."""
        return bool(self._seen.all())

    def add(self, config: Config) -> None:
        """Marks a config as seen; one that is not valid here is ignored."""
        index = self.space.index_of(config)
        if index is not None:
            self._seen[index] = True

    def random_unseen(self, rng: np.random.Generator) -> Config:
        """An unseen valid config, all equally likely.

        Raises:
            ValueError: the space is exhausted.
        """
        unseen = np.flatnonzero(~self._seen)
        return self.space.config(int(unseen[rng.integers(len(unseen))]))

    def nearest_unseen(self, values: Mapping[str, Value], rng: np.random.Generator) -> Config:
        """The unseen valid config that is the fewest steps away, ties broken at random.

        Steps count as in :meth:`ValidSpace.repair <evoengine.space.valid.ValidSpace.repair>`. The values themselves are
        returned when they are valid and unseen; they need be neither.

        The space must not be exhausted.
        """
        exact = self.space.index_of(Config.of(self.space.family, values))
        if exact is not None and not self._seen[exact]:
            return self.space.config(exact)
        steps = np.zeros(self.space.size, np.uint16)
        for place, tunable in enumerate(self.space.tunables):
            if tunable.name in values:
                steps += np.take(tunable.distances(values[tunable.name]), self.space.matrix[:, place])
        steps[self._seen] = _FAR
        ties = np.flatnonzero(steps == steps.min())
        return self.space.config(int(ties[rng.integers(len(ties))]))
