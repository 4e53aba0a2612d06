"""The ``random`` strategy: uniform random search, the baseline for every other strategy.

Each trial draws a family, all equally likely regardless of their size, then one of its unseen valid configs, all
equally likely. Exhausted families are not drawn.
"""

from __future__ import annotations

import numpy as np

from evoengine.model import Config
from evoengine.search.strategies.sampler import View
from evoengine.search.strategies.spec import NoOptions, StrategySpec
from evoengine.space.family_spaces import FamilySpaces


class UniformSampler:
    """Draws configs without replacement."""

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        # Deferred configs were named by the user or an earlier search, so they precede random ones.
        return view.deferred[0] if view.deferred else view.seen.random_unseen(rng)


def _make(_spaces: FamilySpaces, _options: NoOptions) -> UniformSampler:
    return UniformSampler()


STRATEGY = StrategySpec("uniform random search without replacement", NoOptions, _make)
