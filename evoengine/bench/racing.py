"""Racing: a candidate that is hopeless is dropped after a few samples.

The test is sequential, so that it may be looked at after every sample. For a time ``m`` let a gambler stake a fixed
share of his wealth on every sample being above ``m``. If each sample is below ``m`` at least as likely as above, the
game is not in his favour, and by Ville's inequality his wealth ever reaches ``1/alpha`` with a probability of at most
``alpha``. So once it has, the median is above ``m`` with confidence ``1 - alpha``, whatever the distribution and
whenever one stops (Waudby-Smith & Ramdas, Estimating means of bounded random variables by betting, JRSS B 86, 2024,
section 4; on signs it is the one-sided case of Wald, Sequential tests of statistical hypotheses, Ann. Math. Stat. 16,
1945, section 3).

All ``m`` are tried at once: the largest one that is given up is an order statistic of the samples, and a lower
confidence bound of the median. Outliers, however large, count as one sample each. ``scripts/measure/false_drops.py`` shows what
is left of the promise where samples are not independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from evoengine.statistics import median_interval

_STAKE: Final = 0.9
"""Share of the wealth that is bet on each sample. A large one decides early when all samples agree: after 8 of them."""

MIN_RACE: Final = 6
"""No race is decided after fewer samples, whatever the confidence: fewer give no confidence interval either."""


@dataclass(frozen=True)
class RaceRule:
    """When a candidate is out of the race."""

    margin: float = 0.10
    """Share by which its median must be above the best time. A near-elite is therefore measured in full; it also has
    to be more than what clocks may have drifted since the best time was taken and does not show in the baseline."""
    confidence: float = 0.99
    """One minus the rate of false drops, of candidates whose median is the best time and the margin or less."""


@dataclass(frozen=True)
class Drop:
    """Why a candidate was dropped."""

    slower: float
    """Share of the best time by which it is slower at least: 0.18 for 18 %."""
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

    The baseline is sampled beside the candidate. Where it is slower than it was at its fastest in this process, so is
    the GPU, and the candidate's sample of that round is corrected by the same factor. It is never corrected upwards, so
    the correction can only keep a candidate in the race.
    """

    rule: RaceRule
    best_us: float
    baseline_us: float | None
    """The baseline's time when it was fastest; None where there is no baseline."""

    def judge(self, samples_us: Sequence[float], baseline_us: Sequence[float] = ()) -> Drop | None:
        """Looks at the samples so far; may be called after each one.

        Args:
            samples_us: of the candidate.
            baseline_us: of the baseline, round by round; empty where there is none.
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


class Pacemaker:
    """What a process knows of how fast its GPU can be: the baseline's best median. Makes races."""

    def __init__(self, rule: RaceRule | None) -> None:
        self._rule = rule
        self._fastest_us: float | None = None

    def saw(self, baseline_us: Sequence[float]) -> None:
        """Takes note of a whole measurement of the baseline."""
        if baseline_us:
            median_us = median_interval(baseline_us).median
            self._fastest_us = median_us if self._fastest_us is None else min(median_us, self._fastest_us)

    def race(self, best_us: float | None, *, has_baseline: bool) -> Race | None:
        """A race against a time; None where there is none to beat, or no whole measurement to compare the GPU with."""
        if self._rule is None or best_us is None or (has_baseline and self._fastest_us is None):
            return None
        return Race(self._rule, best_us, self._fastest_us if has_baseline else None)


def lower_bound(samples: Sequence[float], confidence: float) -> float | None:
    """Lower confidence bound of the median, valid for all numbers of samples at once.

    Args:
        samples: so far.
        confidence: between 0 and 1.

    Returns:
        One of the samples; None while there are too few for any bound.
    """
    above = _needed_above(len(samples), confidence)
    return None if above > len(samples) or len(samples) < MIN_RACE else sorted(samples)[len(samples) - above]


@cache
def _needed_above(count: int, confidence: float) -> int:
    """Samples of so many that must be above a time to make the gambler's wealth ``1 / (1 - confidence)``."""
    goal = -math.log1p(-confidence) - count * math.log1p(-_STAKE)
    return max(0, math.ceil(goal / (math.log1p(_STAKE) - math.log1p(-_STAKE)) - 1e-12))
