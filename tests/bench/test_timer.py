"""Interleaving and timing plans, on stopwatches that read a simulated clock."""

from __future__ import annotations

import pytest

from evoengine.bench.benchmark import Benchmark
from evoengine.bench.gpu_monitor import NullMonitor
from evoengine.bench.sampling import (
    SparseStopwatch,
    rounds_per_reading,
    rounds_per_steady_reading,
    take_samples,
)
from evoengine.bench.timer import TimingPlan, measured_timing, plan_for, sample_interleaved
from evoengine.device.protocols import StopwatchOptions
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import Problem, parse_problem
from evoengine.parity.inputs.profiles import make_inputs


class DriftingClock:
    """A GPU whose clock slows down from sample to sample."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.log: list[str] = []


class SimulatedStopwatch:
    """Takes a known time on a drifting clock."""

    calls = 20

    def __init__(self, clock: DriftingClock, name: str, us: float) -> None:
        self._clock, self._name, self._us = clock, name, us
        self.closed = False

    def sample_us(self) -> float:
        self._clock.log.append(self._name)
        self._clock.factor *= 1.01
        return self._us * self._clock.factor

    def close(self) -> None:
        self.closed = True


class SimulatedKernel:
    """A timed kernel without a device."""

    def __init__(self, clock: DriftingClock, name: str, us: float) -> None:
        self.watches: list[SimulatedStopwatch] = []
        self._clock, self._name, self._us = clock, name, us

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        return AttentionOutput(inputs.q)

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> SimulatedStopwatch:
        assert inputs.problem.seq_q == 8
        assert options.calls >= 1
        self.watches.append(SimulatedStopwatch(self._clock, self._name, self._us))
        return self.watches[-1]

    def close(self) -> None:
        pass


def test_stopwatches_take_turns_and_all_samples_are_kept() -> None:
    clock = DriftingClock()
    taken = sample_interleaved([SimulatedStopwatch(clock, name, 1.0) for name in "ab"], samples=3, warmup=1)
    assert clock.log == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [len(column) for column in taken] == [3, 3]


@pytest.mark.parametrize(
    ("own_us", "baseline_us", "samples", "rounds"),
    [
        (10.0, 9.0, 30, 1),
        (10.0, 19.0, 30, 1),
        (10.0, 31.0, 30, 3),
        (1.0, 99.0, 30, 5),
        (1.0, 99.0, 6, 1),
    ],
)
def test_a_slow_baseline_is_read_in_every_few_rounds(
    own_us: float, baseline_us: float, samples: int, rounds: int
) -> None:
    assert rounds_per_reading(own_us, baseline_us, samples) == rounds
    clock = DriftingClock()
    baseline = SparseStopwatch(SimulatedStopwatch(clock, "baseline", 1.0), rounds)
    taken = take_samples([SimulatedStopwatch(clock, "own", 1.0), baseline], samples, 0, NullMonitor("no GPU"))
    own, theirs = taken.columns
    assert len(own) == len(theirs) == len(set(own)) == samples
    assert clock.log.count("baseline") == len(set(theirs)) == -(-samples // rounds)


def test_a_baseline_at_steady_clocks_is_read_at_least_three_times() -> None:
    for samples in (6, 10, 20, 30):
        assert -(-samples // rounds_per_steady_reading(samples)) >= 3
    assert rounds_per_steady_reading(30) == 10


def test_interleaving_cancels_clock_drift() -> None:
    clock = DriftingClock()
    slow, fast = sample_interleaved(
        [SimulatedStopwatch(clock, "slow", 10.0), SimulatedStopwatch(clock, "fast", 9.0)], samples=40
    )
    assert sum(slow) / sum(fast) == pytest.approx(10 / 9, rel=0.01)


def test_a_timing_has_median_interval_and_baseline() -> None:
    timing = measured_timing([5.0, 6.0, 7.0], "graph-warm", "sdpa-flash", [12.0, 12.0])
    assert (timing.low_us, timing.median_us, timing.high_us) == (5.0, 6.0, 7.0)
    assert timing.speedup == 2.0
    assert not timing.predicted
    assert timing.samples_us == (5.0, 6.0, 7.0)


def test_a_sample_lasts_about_as_long_for_any_problem() -> None:
    assert plan_for(parse_problem("mission")).stopwatch.calls == 20
    assert plan_for(parse_problem("1x32x1024x128", causal=True, kv_heads=8)).stopwatch.calls == 10, "20 us on an H200"
    assert plan_for(parse_problem("1x32x2048x128", causal=True, kv_heads=8)).stopwatch.calls == 3, "56 us"
    assert plan_for(parse_problem("4x16x8192x128")).stopwatch.calls == 1
    assert plan_for(parse_problem("4x16x2048x128"), sample_us=1500.0).stopwatch.calls == 5
    assert plan_for(parse_problem("16x32x1x128", seq_kv=4096)).stopwatch.calls == 1, "it reads 1 GB"
    assert plan_for(parse_problem("mission")).samples >= 30
    assert plan_for(parse_problem("mission"), cold=True).stopwatch.method == "graph-cold"


def test_a_benchmark_measures_and_judges_and_frees() -> None:
    problem = Problem(1, 1, 8, 16)
    clock = DriftingClock()
    slow, fast = SimulatedKernel(clock, "slow", 10.0), SimulatedKernel(clock, "fast", 9.0)
    plan = TimingPlan(30, warmup=2, spin_up_s=0.0, pairs=10, pair_warm_up_s=0.0)
    benchmark = Benchmark(problem, make_inputs(problem, "normal", 0), plan)
    timing = benchmark.time(fast)
    assert len(timing.samples_us) == 30
    assert timing.method == "graph-warm"
    assert benchmark.duel(fast, slow, 0.03).accepted
    assert not benchmark.duel(slow, fast, 0.03).accepted
    assert all(watch.closed for kernel in (slow, fast) for watch in kernel.watches)
    benchmark.close()
