"""The bandit that allocates trials to the families of a study."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from evoengine.search.strategies.outcome import Outcome

PRESSURE: Final = 4
"""Selection pressure: a family with twice the optimistic time of the best one is drawn ``2 ** -PRESSURE`` times as
often."""

PATIENCE: Final = 2
"""The weight of a family without a correct candidate falls with this power of its number of trials."""


@dataclass(frozen=True)
class FamilyStanding:
    """Summary of one family's correct candidates."""

    best_us: float
    correct: int
    """Number of correct candidates."""

    @property
    def optimistic_us(self) -> float:
        """Lower estimate of the family's optimum; the fewer candidates, the further below the best one."""
        return self.best_us / (1 + 1 / math.sqrt(self.correct))

    def with_one(self, us: float) -> FamilyStanding:
        """Returns the standing after one more correct candidate."""
        return FamilyStanding(min(us, self.best_us), self.correct + 1)


@dataclass
class FamilyBandit:
    """Standings of the families after a growing sequence of outcomes, each of which is counted once."""

    by_family: dict[str, FamilyStanding] = field(default_factory=dict)
    """Families with a correct candidate."""
    _counted: int = 0

    def update(self, observed: Sequence[Outcome]) -> FamilyBandit:
        """Counts the new outcomes and returns the bandit; ``observed`` starts with those of the previous call."""
        for outcome in observed[self._counted :]:
            if outcome.value_us is not None:
                family, before = outcome.config.family, self.by_family.get(outcome.config.family)
                one = FamilyStanding(outcome.value_us, 1) if before is None else before.with_one(outcome.value_us)
                self.by_family[family] = one
        self._counted = len(observed)
        return self

    def is_behind(self, family: str) -> bool:
        """Whether even the optimistic time of a family is slower than the best candidate of another."""
        own = self.by_family.get(family)
        return own is not None and own.optimistic_us > min(one.best_us for one in self.by_family.values())


def choose_family(
    families: Sequence[str],
    known: Mapping[str, FamilyStanding],
    trials: Callable[[str], int],
    rng: np.random.Generator,
) -> str:
    """Draws a family, with weights that fall with its optimistic time.

    Args:
        families: Families to choose from.
        known: Standings of the families with a correct candidate.
        trials: Number of a family's trials, those in flight included. It lowers the weight of a family without a
            correct candidate, so that a slow family does not take all trials before its first time is known.
        rng: Random generator.
    """
    if len(families) == 1:
        return families[0]
    if not any(family in known for family in families):
        return min(families, key=trials)
    leader_us = min(known[family].optimistic_us for family in families if family in known)
    weights = np.array(
        [
            (leader_us / known[family].optimistic_us) ** PRESSURE
            if family in known
            else (1 + trials(family)) ** -PATIENCE
            for family in families
        ]
    )
    return families[int(rng.choice(len(families), p=weights / weights.sum()))]
