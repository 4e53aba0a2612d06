"""A challenger of the champion, and the time that it needs to be one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from evoengine.model import Timing
from evoengine.search.candidate.results import Candidate

_ROUNDING: Final = 1e-9
"""Tolerance, so that a gain of exactly the threshold does not fail for a rounding error."""


@dataclass(frozen=True)
class Challenger:
    """A stored correct row with its kernels."""

    row_id: int
    timing: Timing
    candidate: Candidate

    @property
    def median_us(self) -> float:
        return self.timing.median_us


def is_fast_enough(median_us: float, leader_us: float | None, threshold: float) -> bool:
    """Whether a time is better than the leader's by the threshold; an equal time is not better.

    No time is better by an infinite threshold, also without a leader.
    """
    if leader_us is None:
        return threshold < math.inf
    return median_us < leader_us and median_us <= leader_us * (1 - threshold) * (1 + _ROUNDING)
