"""Shuffled order of CTAs: a GPU may start CTAs in any order, and one may overtake another at any time.

A seed gives each launch a random order of its CTAs, and some points at which a batch is cut in two random parts that
then progress on their own. Cuts are made at the start and after barriers, where a strong access to global memory may
follow before the next barrier.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows

_MAX_CUTS: Final = 3
"""Cuts of one batch; each costs as much as another batch."""


class CtaOrder:
    """Random order of the CTAs of one launch.

    Args:
        seed: Random seed.
        points: Blocks at whose start a batch may be cut; see :func:`~evoengine.emulator.ptx.control_flow.cut_points`.
    """

    def __init__(self, seed: int, points: frozenset[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._points = points
        self._cuts = _MAX_CUTS

    def shuffled(self, ctas: int) -> Array:
        """Numbers of the CTAs in the order in which they start."""
        return self._rng.permutation(ctas)

    def cut(self, block: int, ctas: int) -> tuple[CtaRows, CtaRows] | None:
        """Divides the CTAs of a batch that is about to run a block, by chance; None if they stay together."""
        if block not in self._points or not self._cuts or ctas < 2 or self._rng.random() < 0.5:
            return None
        first = self._rng.random(ctas) < self._rng.uniform(0.2, 0.8)
        if first.all() or not first.any():
            return None
        self._cuts -= 1
        return np.flatnonzero(first), np.flatnonzero(~first)
