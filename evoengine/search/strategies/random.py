"""The ``random`` strategy: what every other strategy has to beat.

Each trial draws a family, all equally likely however large they are, then one of its unseen valid configs, all equally
likely. A family that is exhausted is not drawn any more.
"""

from __future__ import annotations

import numpy as np

from evoengine.model import Config
from evoengine.search.strategies.strategy import View


class UniformSampler:
    """Draws without replacement."""

    def propose(self, view: View, rng: np.random.Generator) -> Config:
        """Any family, then any of its unseen configs."""
        return view.seeds[0] if view.seeds else view.archive.random_unseen(rng)
