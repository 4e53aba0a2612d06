"""Tunables as Optuna sees them."""

from __future__ import annotations

from itertools import pairwise

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from evoengine.space.tunables import Ordinal, Tunable
from evoengine.space.valid import ValidSpace


def distributions_of(space: ValidSpace) -> dict[str, BaseDistribution]:
    """One distribution per tunable, in the space's order; what each trial is asked and stored with."""
    return {tunable.name: _distribution(tunable) for tunable in space.tunables}


def _distribution(tunable: Tunable) -> BaseDistribution:
    """An integer range where the values are evenly spaced, so that their order counts; else a list of choices."""
    values = [value for value in tunable.values if isinstance(value, int) and not isinstance(value, bool)]
    if isinstance(tunable, Ordinal) and len(values) == len(tunable.values):
        steps = {after - before for before, after in pairwise(values)} or {1}
        if len(steps) == 1 and min(steps) > 0:
            return IntDistribution(values[0], values[-1], step=min(steps))
    return CategoricalDistribution(tunable.values)
