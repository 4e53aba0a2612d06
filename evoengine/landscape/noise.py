"""Noise model of a replay: recorded times are scattered, so that a search can be tested against noisy measurements.

Both components are relative. Each measurement has an independent lognormal error. In addition, a slow sine wave over
the sequence of measurements models clock drift; two consecutive measurements, as in the pairs of a duel, share its
phase.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

DRIFT_PERIOD: Final = 200.0
"""Period of the drift in measurements."""
MOST: Final = 0.5
"""Largest accepted ``sigma`` and ``drift``; the model is meant for small relative errors."""


@dataclass(frozen=True)
class Noise:
    """Strength of both noise components, and the seed."""

    sigma: float = 0.0
    """Standard deviation of the logarithm of one measurement: 0.01 is 1 %."""
    drift: float = 0.0
    """Amplitude of the drift: with 0.02 the device is up to 2 % slower and up to 2 % faster."""
    seed: int = 0

    @property
    def quiet(self) -> bool:
        return self.sigma == 0 and self.drift == 0

    def __str__(self) -> str:
        return f"noise {self.sigma:g}, drift {self.drift:g}, seed {self.seed}"

    def scatter(self, count: int, *of: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Returns error factors of ``count`` measurements.

        Args:
            count: Number of measurements.
            of: Identity of the measured kernel; together with the seed it determines the factors, whatever the order of
                the measurements.
        """
        digest = hashlib.sha256("/".join(of).encode()).digest()
        rng = np.random.default_rng([self.seed, int.from_bytes(digest[:8], "big")])
        return np.exp(self.sigma * rng.standard_normal(count))

    def drifted(self, when: float) -> float:
        """Returns the drift factor after ``when`` measurements."""
        phase = np.random.default_rng([self.seed, 1]).uniform(0, 2 * math.pi)
        return math.exp(self.drift * math.sin(2 * math.pi * when / DRIFT_PERIOD + phase))
