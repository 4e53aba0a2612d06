"""The statistics of a benchmark: a median with a distribution-free interval, and the gain of paired times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class MedianInterval:
    """A median and the ends of its confidence interval."""

    median: float
    low: float
    high: float


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> MedianInterval:
    """Median with a distribution-free confidence interval from order statistics.

    The number of samples below the true median is binomial(n, 1/2) whatever the distribution, so the k-th smallest and
    the k-th largest sample enclose it with probability ``1 - 2 P[binomial < k]`` (Conover, Practical Nonparametric
    Statistics, §3.2). With too few samples for the confidence (below 6 at 95 %) the interval is the whole range.

    Args:
        samples: at least one.
        confidence: between 0 and 1.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _interval_rank(len(ordered), confidence)
    return MedianInterval(statistics.median(ordered), ordered[rank], ordered[-1 - rank])


@cache
def _interval_rank(count: int, confidence: float) -> int:
    """How many samples may be cut at each end: the largest k with ``P[binomial <= k - 1] <= alpha/2``."""
    alpha_half = (1 - confidence) / 2
    below = 0
    for rank in range(count // 2 + 1):
        below += math.comb(count, rank)
        if below > alpha_half * 2**count:
            return max(0, rank - 1)
    return (count - 1) // 2


def paired_gain(
    challenger: Sequence[float], champion: Sequence[float], confidence: float = 0.95
) -> tuple[float, float]:
    """Gain of a challenger from paired times, with a one-sided lower bound.

    Works on log ratios, so that a gain and a loss of the same factor cancel: ``gain = 1 - exp(mean(log(a/b)))``; the
    bound takes Student's t for the mean.

    Args:
        challenger: positive times, at least two.
        champion: the other time of each pair.
        confidence: of the bound.

    Returns:
        ``(gain, low_gain)``: 0.03 is 3 % less time.

    Raises:
        ValueError: the lengths differ, or there are fewer than two pairs.
    """
    if len(challenger) != len(champion) or len(challenger) < 2:
        raise ValueError("paired times need two sequences of one length, at least two long")
    logs = [math.log(a / b) for a, b in zip(challenger, champion, strict=True)]
    mean = statistics.fmean(logs)
    margin = t_quantile(confidence, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return -math.expm1(mean), -math.expm1(mean + margin)


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t: bisection on its distribution function.

    Args:
        probability: above 0.5 and below 1.
        degrees: of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while t_distribution(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if t_distribution(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(t: float, degrees: int) -> float:
    """Distribution function of Student's t for whole degrees of freedom, in closed form.

    The finite series in ``theta = atan(t/sqrt(n))`` of Abramowitz & Stegun 26.7.3 and 26.7.4.
    """
    theta = math.atan(t / math.sqrt(degrees))
    cos2 = math.cos(theta) ** 2
    if degrees % 2:
        term = total = math.cos(theta) if degrees > 1 else 0.0
        for k in range(3, degrees - 1, 2):
            term *= cos2 * (k - 1) / k
            total += term
        between = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term = total = 1.0
        for k in range(2, degrees - 1, 2):
            term *= cos2 * (k - 1) / k
            total += term
        between = math.sin(theta) * total
    return 0.5 + between / 2
