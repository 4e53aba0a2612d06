"""How the families of a study do, and which one to breed next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evoengine.search.strategies.outcome import Outcome

PRESSURE: Final = 4
"""A family that may hope for twice the time of the most hopeful one is bred ``2 ** -PRESSURE`` times as often."""

PATIENCE: Final = 2
"""A family without a correct candidate loses appeal with this power of its attempts."""


@dataclass(frozen=True)
class FamilyStanding:
    """One family's correct candidates so far."""

    best_us: float
    correct: int
    """Their number."""
    best_place: int
    """How many came before the best one."""

    @property
    def optimistic_us(self) -> float:
        """What the family may still reach: the best of a few says less about its optimum than the best of many."""
        return self.best_us / (1 + 1 / math.sqrt(self.correct))

    def with_one(self, us: float) -> FamilyStanding:
        """After one more correct candidate."""
        if us < self.best_us:
            return FamilyStanding(us, self.correct + 1, self.correct)
        return FamilyStanding(self.best_us, self.correct + 1, self.best_place)


@dataclass
class FamilyBandit:
    """The standings after a growing number of outcomes; each is looked at once."""

    by_family: dict[str, FamilyStanding] = field(default_factory=dict)
    _counted: int = 0

    def update(self, observed: Sequence[Outcome]) -> FamilyBandit:
        """Itself, after these outcomes; they begin with those of the call before."""
        for outcome in observed[self._counted :]:
            if outcome.value_us is not None:
                family, before = outcome.config.family, self.by_family.get(outcome.config.family)
                one = FamilyStanding(outcome.value_us, 1, 0) if before is None else before.with_one(outcome.value_us)
                self.by_family[family] = one
        self._counted = len(observed)
        return self

    def is_behind(self, family: str) -> bool:
        """Whether even what a family may hope for is slower than what another one has reached."""
        own = self.by_family.get(family)
        return own is not None and own.optimistic_us > min(one.best_us for one in self.by_family.values())


def choose_family(
    families: Sequence[str],
    known: Mapping[str, FamilyStanding],
    attempts: Callable[[str], int],
    rng: np.random.Generator,
) -> str:
    """A family, the more likely the more it may hope for.

    Args:
        families: those to choose from.
        known: families with a correct candidate.
        attempts: candidates that were tried of a family, those under way included; one without a correct one loses
            appeal with each, so that a slow family is not tried again and again before its first time is known.
        rng: of the draw.
    """
    if len(families) == 1:
        return families[0]
    if not any(family in known for family in families):
        return min(families, key=attempts)
    leader_us = min(known[family].optimistic_us for family in families if family in known)
    weights = np.array(
        [
            (leader_us / known[family].optimistic_us) ** PRESSURE
            if family in known
            else (1 + attempts(family)) ** -PATIENCE
            for family in families
        ]
    )
    return families[int(running_shares(weights).searchsorted(rng.random(), side="right"))]


def running_shares(weights: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Where, among random numbers from 0 to 1, those end that mean each place, by its weight.

    ``rng.choice(len(weights), p=weights / weights.sum())`` is the same draw; its checks take longer than all of it.
    """
    ends = np.cumsum(weights / weights.sum())
    return np.asarray(ends / ends[-1])
