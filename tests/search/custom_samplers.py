"""Samplers that tests name on the command line by their path."""

from __future__ import annotations

import numpy as np

from evoengine.model import Config
from evoengine.search.strategies.sampler import View
from evoengine.space.family_spaces import FamilySpaces


class LocalSearch:
    """Proposes the unseen config nearest to the fastest observed one."""

    def __init__(self, spaces: FamilySpaces) -> None:
        self._spaces = spaces

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        correct = [one for one in view.observed if one.value_us is not None and view.seen.count(one.config.family)]
        if not correct:
            return view.seen.random_unseen(rng)
        best = min(correct, key=lambda one: one.value_us or 0.0).config
        return view.seen.nearest_unseen(best.family, best.as_dict(), rng)


class Failing(LocalSearch):
    """Raises an error in every proposal."""

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        raise ZeroDivisionError("no elites")


class Repeating(LocalSearch):
    """Proposes one config again and again."""

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        return next(iter(self._spaces.members[0]))


class WithoutConstructor:
    """Takes no search space."""

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        return view.seen.random_unseen(rng)


class Unlicensed(LocalSearch):
    """Cannot be constructed."""

    def __init__(self, spaces: FamilySpaces) -> None:
        raise RuntimeError("no licence")


NOT_A_CLASS = 7
