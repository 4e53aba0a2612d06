"""Injected noise: what a replay adds to recorded times, so that a search can be tried against a device that scatters.

Two kinds, both relative. Every measurement has an error of its own, lognormal. Besides, the clock of the device drifts:
a slow wave over the measurements, in which two that are taken one right after the other, as in a duel's pairs, share
the same phase.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

DRIFT_PERIOD: Final = 200.0
"""Measurements of one whole wave of the drift."""
MOST: Final = 0.5
"""Larger noise is no longer noise."""


@dataclass(frozen=True)
class Noise:
    """How much, and which."""

    sigma: float = 0.0
    """Standard deviation of the logarithm of one measurement: 0.01 is 1 %."""
    drift: float = 0.0
    """Amplitude of the wave: with 0.02 the device is up to 2 % slower, and up to 2 % faster."""
    seed: int = 0

    @property
    def quiet(self) -> bool:
        """Whether there is none."""
        return self.sigma == 0 and self.drift == 0

    def __str__(self) -> str:
        return f"noise {self.sigma:g}, drift {self.drift:g}, seed {self.seed}"

    def scatter(self, count: int, *of: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Factors of ``count`` measurements; they follow from the seed and from what is measured, not from when."""
        digest = hashlib.sha256("/".join(of).encode()).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(digest[:8], "big")])
        return np.exp(self.sigma * rng.standard_normal(count))

    def drifted(self, when: float) -> float:
        """Factor of the drift after so many measurements."""
        phase = np.random.default_rng([self.seed, 1]).uniform(0, 2 * math.pi)
        return math.exp(self.drift * math.sin(2 * math.pi * when / DRIFT_PERIOD + phase))
