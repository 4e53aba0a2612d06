"""Statistics shared by benchmarks and searches: median interval, paired gain, Student's t and rank correlation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


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
        samples: Measurements, at least one.
        confidence: Coverage of the interval, between 0 and 1.

    Raises:
        ValueError: ``samples`` is empty.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _interval_rank(len(ordered), confidence)
    return MedianInterval(statistics.median(ordered), ordered[rank], ordered[-1 - rank])


@cache
def _interval_rank(count: int, confidence: float) -> int:
    """Returns the largest k with ``P[binomial <= k - 1] <= alpha/2``: samples outside the interval at each end."""
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
    """Returns the gain of a challenger from paired times, with a one-sided lower bound.

    The mean is taken over log ratios, so that a gain and a loss by the same factor cancel:
    ``gain = 1 - exp(mean(log(a/b)))``. The bound uses Student's t distribution for the mean.

    Args:
        challenger: Positive times, at least two.
        champion: Positive times, paired with those of ``challenger`` by position.
        confidence: Confidence of the lower bound.

    Returns:
        Gain and its lower bound; 0.03 is 3 % less time.

    Raises:
        ValueError: The lengths differ, or there are fewer than two pairs.
    """
    if len(challenger) != len(champion) or len(challenger) < 2:
        raise ValueError(
            f"paired times need two sequences of equal length >= 2, not {len(challenger)} and {len(champion)}"
        )
    logs = [math.log(a / b) for a, b in zip(challenger, champion, strict=True)]
    mean = statistics.fmean(logs)
    margin = t_quantile(confidence, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return -math.expm1(mean), -math.expm1(mean + margin)


@cache
def t_quantile(probability: float, degrees: int) -> float:
    """Returns a quantile of Student's t distribution, by bisection on its distribution function.

    Args:
        probability: Probability above 0.5 and below 1.
        degrees: Degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while t_distribution(high, degrees) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        if t_distribution(middle, degrees) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_distribution(t: float, degrees: int) -> float:
    """Returns the distribution function of Student's t for whole degrees of freedom, in closed form.

    Source: the finite series in ``theta = atan(t/sqrt(n))`` of Abramowitz & Stegun, 26.7.3 and 26.7.4.
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


def normal_distribution(z: Array) -> Array:
    """Cumulative distribution of the standard normal variable, within 1e-7 (Abramowitz & Stegun 7.1.26)."""
    x = z / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(0.5 * (1 + np.sign(x) * (1 - poly * np.exp(-(x**2)))))


def rank_correlation(a: Array, b: Array) -> float | None:
    """Returns Spearman's rank correlation, with ties at their mean rank; None where one side is constant."""
    ranks_a, ranks_b = _mean_ranks(a), _mean_ranks(b)
    if np.ptp(ranks_a) == 0 or np.ptp(ranks_b) == 0:
        return None
    return float(np.corrcoef(ranks_a, ranks_b)[0, 1])


def _mean_ranks(values: Array) -> Array:
    _, positions, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(counts) - (counts - 1) / 2)[positions]
    return ranks
