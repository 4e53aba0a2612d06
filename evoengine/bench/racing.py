"""Racing: a candidate that is clearly slower than the best is dropped after a few samples (early stopping).

The test is sequential: it may be evaluated after every sample. For a time ``m``, consider a gambler who bets a fixed
share of his wealth on every sample being above ``m``. If each sample is at least as likely below ``m`` as above, the
game is not in his favour, and by Ville's inequality his wealth reaches ``1/alpha`` with probability at most ``alpha``.
Once it does, the median is above ``m`` with confidence ``1 - alpha``, for any distribution and any stopping time
(Waudby-Smith & Ramdas, Estimating means of bounded random variables by betting, JRSS B 86, 2024, section 4; on signs it
is the one-sided case of Wald, Sequential tests of statistical hypotheses, Ann. Math. Stat. 16, 1945, section 3).

All ``m`` are tested at once: the largest rejected one is an order statistic of the samples and a lower confidence bound
of the median. An outlier counts as one sample, however large it is. ``scripts/measure/racing_drops.py`` measures the
rate of false drops for samples that are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from evoengine.statistics import median_interval

_STAKE: Final = 0.9
"""Share of the wealth that is bet on each sample. A large share decides early when all samples agree: after 8."""

MIN_INTERVAL_SAMPLES: Final = 6
"""Smallest number of samples whose median has a distribution-free 95 % confidence interval."""


@dataclass(frozen=True)
class RaceRule:
    """Condition for dropping a candidate."""

    margin: float = 0.10
    """Share by which the candidate's median must exceed the best time, so that a near-elite is measured in full. It
    also covers clock drift since the best time was measured, as far as the baseline does not show it."""
    confidence: float = 0.99
    """One minus the rate of false drops among candidates whose median is at most the best time plus the margin."""


@dataclass(frozen=True)
class Drop:
    """Evidence for dropping a candidate."""

    slower: float
    """Lower bound on the slow-down relative to the best time, 0.18 for 18 %."""
    best_us: float
    samples: int
    confidence: float

    def __str__(self) -> str:
        return (
            f"at least {self.slower:.0%} slower than the best so far, {self.best_us:.2f} us, with "
            f"{self.confidence:.0%} confidence, after {self.samples} samples"
        )


@dataclass(frozen=True)
class Race:
    """One candidate against the best time so far.

    The baseline is sampled beside the candidate. A round in which the baseline is slower than its fastest median in
    this process shows a slower GPU, so the candidate's sample of that round is corrected by the same factor. Samples
    are never corrected upwards, so the correction can only keep a candidate in the race.
    """

    rule: RaceRule
    best_us: float
    baseline_us: float | None
    """Fastest median of the baseline; None if there is no baseline."""

    def judge(self, samples_us: Sequence[float], baseline_us: Sequence[float] = ()) -> Drop | None:
        """Tests the samples so far; may be called after each one.

        Args:
            samples_us: Samples of the candidate.
            baseline_us: Samples of the baseline in the same rounds; empty if there is no baseline.
        """
        low_us = lower_bound(self._corrected(samples_us, baseline_us), self.rule.confidence)
        if low_us is None or low_us <= self.best_us * (1 + self.rule.margin):
            return None
        return Drop(low_us / self.best_us - 1, self.best_us, len(samples_us), self.rule.confidence)

    def _corrected(self, samples_us: Sequence[float], baseline_us: Sequence[float]) -> Sequence[float]:
        fastest_us = self.baseline_us
        if fastest_us is None or not baseline_us:
            return samples_us
        return [us * min(1.0, fastest_us / now) for us, now in zip(samples_us, baseline_us, strict=True)]


class BaselineSpeed:
    """Tracks the baseline's best median in this process, which shows how fast the GPU can be, and starts races."""

    def __init__(self, rule: RaceRule | None) -> None:
        self._rule = rule
        self._fastest_us: float | None = None

    @property
    def fastest_us(self) -> float | None:
        """The fastest median so far; None before the first complete measurement."""
        return self._fastest_us

    def observe(self, baseline_us: Sequence[float]) -> None:
        """Records a complete measurement of the baseline."""
        if baseline_us:
            median_us = median_interval(baseline_us).median
            self._fastest_us = median_us if self._fastest_us is None else min(median_us, self._fastest_us)

    def race(self, best_us: float | None, *, has_baseline: bool) -> Race | None:
        """Starts a race; None if there is no time to beat or no complete measurement of the baseline yet."""
        if self._rule is None or best_us is None or (has_baseline and self._fastest_us is None):
            return None
        return Race(self._rule, best_us, self._fastest_us if has_baseline else None)


def lower_bound(samples: Sequence[float], confidence: float) -> float | None:
    """Returns a lower confidence bound of the median that holds for all numbers of samples at once.

    Args:
        samples: Samples so far.
        confidence: Confidence between 0 and 1.

    Returns:
        One of the samples; None while there are too few for any bound.
    """
    above = _needed_above(len(samples), confidence)
    return None if above > len(samples) else sorted(samples)[len(samples) - above]


@cache
def _needed_above(count: int, confidence: float) -> int:
    """Number of samples, out of ``count``, above a time that raise the gambler's wealth to ``1 / (1 - confidence)``."""
    goal = -math.log1p(-confidence) - count * math.log1p(-_STAKE)
    return max(0, math.ceil(goal / (math.log1p(_STAKE) - math.log1p(-_STAKE)) - 1e-12))
