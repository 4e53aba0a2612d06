"""Interleaved timing: the kernels take turns, so that clock drift affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from evoengine.bench.racing import MIN_INTERVAL_SAMPLES, RaceRule
from evoengine.device.protocols import Stopwatch, StopwatchOptions
from evoengine.model import Problem, Telemetry, Timing
from evoengine.statistics import median_interval

MIN_SAMPLES: Final = 30
"""Smallest number of samples of a stored median; kernels that take long have fewer (:meth:`TimingPlan.samples_for`)."""

_FEW_SAMPLES: Final = 10
"""The limit :data:`_BRIEF_S` does not reduce the number of samples below this."""

_BRIEF_S: Final = 0.012
"""Total time of a kernel's samples, in seconds, above which fewer of them are taken."""

_HEATING_S: Final = 0.03
"""Seconds of load that take a GPU to its power limit: an H200 and an H100 got slower after 20 to 60 ms."""

_SAMPLE_US: Final = 180.0
_TYPICAL_TFLOPS: Final = 500.0
"""Rate of good kernels on an H200. Elsewhere samples take longer, and there are fewer of them."""
_TYPICAL_TBPS: Final = 4.0
_MAX_CALLS: Final = 20


@dataclass(frozen=True)
class TimingPlan:
    """Settings for timing a candidate."""

    samples: int = MIN_SAMPLES
    kernel_s: float = 0.4
    """Limit on the kernel time of all samples of one candidate or of a duel; kernels that would exceed it get fewer."""
    warmup: int = 5
    """Warm-up rounds, which are discarded; their number falls in proportion to that of the samples."""
    spin_up_s: float = 0.3
    """Seconds of load before the first sample of a process: an idle GPU may need them to raise its clocks."""
    pairs: int = 20
    """Fresh pairs in a duel."""
    pair_warm_up_s: float = 0.05
    """Seconds of load of both kernels before the pairs of a duel, because the GPU may have been idle."""
    race: RaceRule | None = field(default_factory=RaceRule)
    """Rule for dropping slow candidates early; None measures all in full."""
    stopwatch: StopwatchOptions = field(default_factory=StopwatchOptions)

    def with_calls(self, calls: int) -> TimingPlan:
        """Returns the plan for stopwatches with this number of calls in a sample."""
        return replace(self, stopwatch=replace(self.stopwatch, calls=calls))

    def samples_for(self, kernel_us: float) -> int:
        """Returns the number of samples for a kernel with this time per call; at least ``MIN_INTERVAL_SAMPLES``."""
        affordable = min(self.samples, self._affordable(kernel_us))
        if self.stopwatch.eager:  # the host's part of a time varies from call to call
            return affordable
        return min(affordable, max(_FEW_SAMPLES, int(_BRIEF_S / self._round_s(kernel_us))))

    def rests(self, round_us: float, rounds: int) -> bool:
        """Returns whether the GPU rests after each round, because so many in a row would make it slower.

        Args:
            round_us: Time of all kernels of a round, each called once.
            rounds: Number of rounds.
        """
        return rounds * self._round_s(round_us) > _HEATING_S

    def pairs_for(self, kernels_us: float) -> int:
        """Returns the number of pairs in a duel, given the sum of both kernels' times per call."""
        return min(self.pairs, self._affordable(kernels_us))

    def _affordable(self, round_us: float) -> int:
        return max(MIN_INTERVAL_SAMPLES, int(self.kernel_s / self._round_s(round_us)))

    def _round_s(self, round_us: float) -> float:
        """Returns the time of a round in which each kernel gets one sample and the calls before it."""
        return 1e-6 * round_us * (self.stopwatch.calls + self.stopwatch.lead_calls)


def plan_for(
    problem: Problem,
    *,
    cold: bool = False,
    eager: bool = False,
    racing: bool = True,
    sample_us: float = _SAMPLE_US,
) -> TimingPlan:
    """Returns a plan whose samples take about equally long: 20 calls of a small problem, one call of a long one.

    Args:
        problem: Problem to time.
        cold: Whether the L2 cache is flushed before every call.
        eager: Whether every call is launched from the host, without a graph.
        racing: Whether slow candidates are dropped after a few samples.
        sample_us: Duration of a sample in microseconds. The start and the end of a graph, 3 to 7 µs, are part of it,
            and calls in a row can take longer than one alone.
    """
    estimate_us = max(problem.flops / (_TYPICAL_TFLOPS * 1e6), problem.min_bytes / (_TYPICAL_TBPS * 1e6))
    calls = max(1, min(_MAX_CALLS, round(sample_us / max(estimate_us, 1.0))))
    return TimingPlan(race=RaceRule() if racing else None, stopwatch=StopwatchOptions(calls, cold, eager))


def sample_interleaved(
    stopwatches: Sequence[Stopwatch], samples: int, warmup: int = 0
) -> tuple[tuple[float, ...], ...]:
    """Samples all stopwatches in turns; every other round runs backwards, so that none always follows the same one.

    Args:
        stopwatches: Stopwatches, at least one.
        samples: Number of rounds to keep.
        warmup: Number of warm-up rounds, which are discarded.

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
    """Keeps the device busy for a while with all stopwatches in turns, and discards the samples."""
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
    """Builds a timing from samples and those of the interleaved baseline."""
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
