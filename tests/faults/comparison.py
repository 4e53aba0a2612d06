"""Compares the times of good candidates between searches with and without faults.

Times of a kernel differ between searches because of clocks, temperature and other load. This noise is measured: the
search without faults runs twice. Times are compared as multiples of the baseline sampled interleaved with each kernel,
so that a slowdown of both cancels.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.model import Config, Evaluation, Timing

NEGLIGIBLE: Final = 0.03
"""Minimum speed-up needed to replace a champion; smaller differences change no result."""
NOISE_FACTOR: Final = 1.5
"""Allowed ratio of the differences with faults to those without: both are estimates."""


@dataclass(frozen=True)
class Spread:
    """Times of the same kernels in one search, over those in another."""

    kernels: int
    median: float
    p5: float
    p95: float
    off95: float
    """19 of 20 kernels differ by this share or less."""
    same: int
    """Kernels with exactly the same time."""


def spread(rows: Mapping[Config, Evaluation], others: Mapping[Config, Evaluation], *, to_baseline: bool) -> Spread:
    """Compares the times of all configs that have one in both searches.

    Args:
        rows: Evaluations of one search.
        others: Evaluations of the other search, the divisor.
        to_baseline: Whether to compare multiples of the baseline instead of microseconds.

    Raises:
        ValueError: No config has a time in both searches.
    """
    pairs = [(row.timing, others[config].timing) for config, row in rows.items() if config in others]
    ratios = [
        _value(ours, to_baseline=to_baseline) / _value(theirs, to_baseline=to_baseline)
        for ours, theirs in pairs
        if ours is not None and theirs is not None
    ]
    if not ratios:
        raise ValueError("no config has a time in both searches")
    off = [abs(ratio - 1) for ratio in ratios]
    return Spread(
        kernels=len(ratios),
        median=statistics.median(ratios),
        p5=_quantile(ratios, 0.05),
        p95=_quantile(ratios, 0.95),
        off95=_quantile(off, 0.95),
        same=ratios.count(1.0),
    )


def within_noise(disturbed: Spread, undisturbed: Spread | None) -> bool:
    """Whether the times of good candidates differ by no more than noise.

    Args:
        disturbed: Times with faults over times without.
        undisturbed: Times of two searches without faults; None for predictions, which have no noise.
    """
    if undisturbed is None:
        return disturbed.same == disturbed.kernels
    return disturbed.off95 <= max(NEGLIGIBLE, NOISE_FACTOR * undisturbed.off95)


def _value(timing: Timing, *, to_baseline: bool) -> float:
    if not to_baseline or timing.baseline_us is None:
        return timing.median_us
    return timing.median_us / timing.baseline_us


def _quantile(values: Sequence[float], share: float) -> float:
    """Nearest-rank quantile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
