"""Interleaved sampling: rivals take turns, so that a clock that drifts drifts for all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from evoengine.bench.racing import RaceRule
from evoengine.device.protocols import Stopwatch, StopwatchOptions
from evoengine.model import Problem, Telemetry, Timing
from evoengine.statistics import median_interval

MIN_SAMPLES: Final = 30
"""A median of fewer samples is not stored."""

_SAMPLE_US: Final = 200.0
_TYPICAL_TFLOPS: Final = 100.0
_MAX_CALLS: Final = 20


@dataclass(frozen=True)
class TimingPlan:
    """How a candidate is timed."""

    samples: int = MIN_SAMPLES
    warmup: int = 5
    """Rounds of samples that are thrown away first."""
    spin_up_s: float = 0.3
    """Seconds of load, once per process, before the first sample: an idle GPU needs them to raise its clocks."""
    pairs: int = 20
    """Fresh pairs in a duel."""
    pair_warm_up_s: float = 0.05
    """Seconds of load just before the pairs of a duel, of both kernels in turns: the GPU may have waited for it."""
    race: RaceRule | None = field(default_factory=RaceRule)
    """When a hopeless candidate is dropped; None measures all in full."""
    stopwatch: StopwatchOptions = field(default_factory=StopwatchOptions)


def plan_for(
    problem: Problem,
    *,
    cold: bool = False,
    eager: bool = False,
    racing: bool = True,
    sample_us: float = _SAMPLE_US,
) -> TimingPlan:
    """A plan whose samples last about as long each: 20 calls of a small problem, one call of a long one.

    Args:
        problem: what is timed.
        cold: with a flushed L2 cache.
        eager: call by call from the host, without a graph.
        racing: drop hopeless candidates after a few samples.
        sample_us: how long; a graph's own start, some 2 µs, is part of each sample.
    """
    estimate_us = problem.flops / (_TYPICAL_TFLOPS * 1e6)
    calls = max(1, min(_MAX_CALLS, round(sample_us / max(estimate_us, 1.0))))
    return TimingPlan(race=RaceRule() if racing else None, stopwatch=StopwatchOptions(calls, cold, eager))


def sample_interleaved(
    stopwatches: Sequence[Stopwatch], samples: int, warmup: int = 0
) -> tuple[tuple[float, ...], ...]:
    """Samples all stopwatches in turns; every other round runs backwards, so that no one always follows the same rival.

    Args:
        stopwatches: at least one.
        samples: rounds that are kept, all of them.
        warmup: rounds before them that are not.

    Returns:
        One tuple of microseconds per stopwatch.
    """
    taken: list[list[float]] = [[] for _ in stopwatches]
    order = list(range(len(stopwatches)))
    for turn in range(warmup + samples):
        for index in order if turn % 2 == 0 else reversed(order):
            sample_us = stopwatches[index].sample_us()
            if turn >= warmup:
                taken[index].append(sample_us)
    return tuple(tuple(column) for column in taken)


def spin_up(stopwatch: Stopwatch, seconds: float, *others: Stopwatch) -> None:
    """Keeps the device busy for a while, with all stopwatches in turns; what they measure is thrown away."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for watch in (stopwatch, *others):
            watch.sample_us()


def measured_timing(
    samples_us: Sequence[float],
    method: str,
    baseline: str = "",
    baseline_us: Sequence[float] = (),
    telemetry: Telemetry | None = None,
) -> Timing:
    """A timing from samples, those of the interleaved baseline included."""
    interval = median_interval(samples_us)
    return Timing(
        median_us=interval.median,
        low_us=interval.low,
        high_us=interval.high,
        predicted=False,
        method=method,
        samples_us=tuple(samples_us),
        baseline_us=median_interval(baseline_us).median if baseline_us else None,
        baseline=baseline,
        telemetry=telemetry,
    )
