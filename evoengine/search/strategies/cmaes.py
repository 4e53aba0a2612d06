"""The ``cmaes`` strategy: covariance matrix adaptation, its wishes moved to the nearest unseen valid config.

A point has one axis per ordinal or boolean tunable (the place of its value between 0 and 1), and one axis for each
choice of a categorical one, of which the largest wins. The separable variant is used (Ros & Hansen 2008): a full
covariance of some forty axes would take thousands of evaluations to learn. The evolution is told the points of the
configs that were evaluated, not the ones it wished for (injected solutions, Hansen 2011), in order of their trials and
in whole generations, so that its state follows from the outcomes alone. Optuna's ``CmaEsSampler`` wraps the same
library but takes no categorical tunables, and keeps its state in trials under way, where no killed search finds it.

Of several families, each has an evolution of its own; which one is asked is decided as in ``evolution``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from cmaes import SepCMA

from evoengine.model import Config, Value
from evoengine.search.strategies.family_bandit import FamilyBandit, choose_family
from evoengine.search.strategies.outcome import Outcome
from evoengine.search.strategies.strategy import View
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.tunables import Categorical, Tunable

Point = npt.NDArray[np.float64]

_SIGMA: Final = 0.3
_SEED_LIMIT: Final = 2**31
_FAILED: Final = 10.0
"""A failed config counts as so many times as slow as the slowest correct one of its generation."""


class CmaEsSampler:
    """Asks one evolution per family.

    Args:
        spaces: the valid configs, family by family.
    """

    def __init__(self, spaces: FamilySpaces) -> None:
        self._evolutions = {member.family: _Evolution(member.tunables) for member in spaces.members}
        self._bandit = FamilyBandit()
        self._taken = 0

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        """Near what the evolution of a family wishes."""
        for outcome in view.observed[self._taken :]:
            if outcome.config.family in self._evolutions:
                self._evolutions[outcome.config.family].learn(outcome)
        self._taken = len(view.observed)
        known = self._bandit.update(view.observed).by_family
        family = choose_family(view.archive.open_families(), known, view.archive.seen, rng)
        for seed in view.seeds:
            if seed.family == family:
                return seed
        wish = self._evolutions[family].wish(int(rng.integers(_SEED_LIMIT)))
        return view.archive.nearest_unseen(family, wish, rng) if wish else view.archive.random_unseen(rng, family)


class _Evolution:
    """A separable CMA-ES over the points of one family."""

    def __init__(self, tunables: Sequence[Tunable]) -> None:
        self._tunables = [tunable for tunable in tunables if len(tunable.values) > 1]
        axes = sum(map(_axes, self._tunables))
        self._waiting: list[tuple[Point, float | None]] = []
        # Below two axes nothing can be adapted: such a family has a handful of configs, and any order will do.
        self._cma = SepCMA(np.full(axes, 0.5), _SIGMA, np.tile([0.0, 1.0], (axes, 1))) if axes > 1 else None

    def learn(self, outcome: Outcome) -> None:
        """One more outcome, in order; a whole generation moves the distribution."""
        if self._cma is None:
            return
        self._waiting.append((self._point(outcome.config), outcome.value_us))
        if len(self._waiting) < self._cma.population_size:
            return
        slowest = max((us for _, us in self._waiting if us is not None), default=1.0)
        self._cma.tell([(point, slowest * _FAILED if us is None else us) for point, us in self._waiting])
        self._waiting = []

    def wish(self, seed: int) -> dict[str, Value]:
        """Values of the tunables that leave a choice; none where there is nothing to adapt."""
        if self._cma is None:
            return {}
        self._cma.reseed_rng(seed)
        point, wish = self._cma.ask(), {}
        for tunable in self._tunables:
            own, point = point[: _axes(tunable)], point[_axes(tunable) :]
            last = len(tunable.values) - 1
            place = int(np.argmax(own)) if len(own) > 1 else round(float(own[0]) * last)
            wish[tunable.name] = tunable.decode(min(max(place, 0), last))
        return wish

    def _point(self, config: Config) -> Point:
        parts = []
        for tunable in self._tunables:
            place = tunable.encode(config[tunable.name])
            if _axes(tunable) > 1:
                parts.append(np.where(np.arange(len(tunable.values)) == place, 0.75, 0.25))
            else:
                parts.append(np.array([place / (len(tunable.values) - 1)]))
        return np.concatenate(parts)


def _axes(tunable: Tunable) -> int:
    many = isinstance(tunable, Categorical) and len(tunable.values) > 2
    return len(tunable.values) if many else 1
