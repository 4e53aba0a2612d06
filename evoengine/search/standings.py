"""How the families of a study do, and which one to breed next."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

PRESSURE: Final = 4
"""A family that may hope for twice the time of the most hopeful one is bred ``2 ** -PRESSURE`` times as often."""


@dataclass(frozen=True)
class Standing:
    """One family's correct candidates so far."""

    best_us: float
    correct: int
    """Their number."""
    best_place: int
    """How many came before the best one."""

    @property
    def hoped_us(self) -> float:
        """What the family may still reach: the best of a few says less about its optimum than the best of many."""
        return self.best_us / (1 + 1 / math.sqrt(self.correct))

    def stalled(self, population: int) -> int:
        """Whole generations of ``population`` candidates since the best one appeared."""
        return max(0, self.correct // population - self.best_place // population - 1)


def standings(candidates: Iterable[tuple[str, float]]) -> dict[str, Standing]:
    """How families do, from the family and time of every correct candidate in order."""
    found: dict[str, Standing] = {}
    for family, us in candidates:
        before = found.get(family)
        if before is None:
            found[family] = Standing(us, 1, 0)
        elif us < before.best_us:
            found[family] = Standing(us, before.correct + 1, before.correct)
        else:
            found[family] = Standing(before.best_us, before.correct + 1, before.best_place)
    return found


def choose_family(
    families: Sequence[str], known: Mapping[str, Standing], attempts: Callable[[str], int], rng: np.random.Generator
) -> str:
    """A family, the more likely the more it may hope for.

    Args:
        families: those to choose from.
        known: families with a correct candidate.
        attempts: candidates that were tried of a family; one without a correct one loses appeal with each.
        rng: of the draw.
    """
    if len(families) == 1:
        return families[0]
    leader_us = min((known[family].hoped_us for family in families if family in known), default=1.0)
    weights = np.array(
        [
            (leader_us / known[family].hoped_us) ** PRESSURE if family in known else 1 / (1 + attempts(family))
            for family in families
        ]
    )
    return families[int(rng.choice(len(families), p=weights / weights.sum()))]
