"""The benchmark as a whole: it races only measured kernels, and keeps the driver's telemetry."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from evoengine.bench import benchmark as bench_module
from evoengine.bench.baseline import Baseline
from evoengine.bench.benchmark import Benchmark
from evoengine.bench.gpu_monitor import open_monitor
from evoengine.bench.racing import RaceRule
from evoengine.bench.timer import TimingPlan, plan_for
from evoengine.device.protocols import StopwatchOptions
from evoengine.kernel.call import AttentionInputs, AttentionOutput, Prediction
from evoengine.model import GpuReading, Problem, parse_problem
from evoengine.parity.inputs.profiles import make_inputs
from tests.bench.fake_nvml import BUS, POWER_CAP, FakeNvml

PROBLEM = Problem(1, 1, 8, 16)
PLAN = TimingPlan(30, warmup=2, spin_up_s=0.0, pairs=10, pair_warm_up_s=0.0)


class Steady:
    """A kernel on a measuring device with a constant time; replays are counted."""

    def __init__(self, us: float) -> None:
        self.us = us
        self.calls = 1
        self.replays = 0

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        return AttentionOutput(inputs.q)

    def stopwatch(self, inputs: AttentionInputs, options: StopwatchOptions) -> Steady:
        self.calls = options.calls_for(self.us)
        return self

    def sample_us(self) -> float:
        return self.us

    def replay(self, inputs: AttentionInputs) -> AttentionOutput:
        self.replays += 1
        return AttentionOutput(inputs.q)

    def spin(self, replays: int) -> None:
        pass

    def close(self) -> None:
        pass


class Busy(Steady):
    """A kernel whose samples take as long as they say, one call each; it keeps the times at which they began."""

    def __init__(self, us: float) -> None:
        super().__init__(us)
        self.began_s: list[float] = []

    def sample_us(self) -> float:
        self.began_s.append(time.perf_counter())
        time.sleep(1e-6 * self.us)
        return self.us


class Foretold:
    """A kernel on a device that predicts."""

    launched: tuple[str, ...] = ()

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        return AttentionOutput(inputs.q)

    def executed(self, problem: Problem) -> int:
        return 0

    def predict(self, problem: Problem) -> Prediction:
        return Prediction(90.0, "model-v1")

    def close(self) -> None:
        pass


def benchmark(plan: TimingPlan = PLAN) -> Benchmark:
    return Benchmark(PROBLEM, make_inputs(PROBLEM, "normal", 0), plan)


def test_a_slow_kernel_is_dropped_before_the_full_measurement() -> None:
    looked: list[object] = []
    measured = benchmark().measure(Steady(9.0), 5.0, looked.append)
    assert measured.drop is not None
    assert measured.drop.slower == pytest.approx(0.8)
    assert measured.timing.samples_us == (9.0,) * 8
    assert (measured.timing.low_us, measured.timing.median_us, measured.timing.high_us) == (9.0, 9.0, 9.0)
    assert looked == []


@pytest.mark.parametrize(("us", "best_us"), [(5.4, 5.0), (4.0, 5.0), (9.0, None)])
def test_contenders_are_measured_in_full(us: float, best_us: float | None) -> None:
    looked: list[object] = []
    measured = benchmark().measure(Steady(us), best_us, looked.append)
    assert measured.drop is None
    assert len(measured.timing.samples_us) == 30
    assert len(looked) == 1


class Interrupted(Steady):
    """A kernel whose first call waits for something else on the GPU."""

    def __init__(self, us: float, first_us: float) -> None:
        super().__init__(us)
        self.first_us = first_us

    def sample_us(self) -> float:
        us, self.first_us = self.first_us, self.us
        return us


def test_an_interrupted_first_call_costs_no_samples() -> None:
    """A worker that takes fewer samples than a kernel's time allows is not believed."""
    assert len(benchmark().time(Interrupted(4.0, 50_000.0)).samples_us) == 30


@pytest.mark.parametrize(("us", "samples"), [(200.0, 30), (300.0, 20), (1_000.0, 10), (50_000.0, 6)])
def test_a_kernel_that_takes_long_gets_fewer_samples(us: float, samples: int) -> None:
    plan = replace(PLAN, kernel_s=0.6, stopwatch=StopwatchOptions(1))
    assert len(benchmark(plan).measure(Steady(us), None).timing.samples_us) == samples
    assert plan.samples_for(us) == samples
    eager = replace(plan, stopwatch=StopwatchOptions(1, eager=True))
    assert eager.samples_for(us) == (30 if samples >= 10 else 6), "eager times vary more"


@pytest.mark.parametrize(("us", "calls"), [(250.0, 20), (260.0, 4), (999.0, 2), (25_000.0, 1)])
def test_a_sample_of_a_kernel_that_takes_very_long_has_fewer_calls(us: float, calls: int) -> None:
    kernel = Steady(us)
    timing = benchmark(replace(PLAN, stopwatch=StopwatchOptions(20))).measure(kernel, None).timing
    assert kernel.calls == calls
    assert timing.median_us == us
    assert len(timing.samples_us) == (8 if us == 25_000 else 10)


@pytest.mark.parametrize(("us", "pairs"), [(100.0, 10), (15_000.0, 9), (50_000.0, 6)])
def test_a_duel_of_kernels_that_take_long_has_fewer_pairs(us: float, pairs: int) -> None:
    plan = replace(PLAN, kernel_s=0.6, stopwatch=StopwatchOptions(1))
    duel = benchmark(plan).duel(Steady(us), Steady(1.2 * us), 0.03)
    assert len(duel.challenger_us) == len(duel.champion_us) == pairs
    assert duel.accepted


@pytest.mark.parametrize(("us", "discarded"), [(5.0, 20), (50_000.0, 0)])
def test_samples_of_a_kernel_that_takes_long_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch, us: float, discarded: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([0, POWER_CAP, 0]))
    bench = Benchmark(PROBLEM, make_inputs(PROBLEM, "normal", 0), PLAN, open_monitor(BUS))
    telemetry = bench.measure(Steady(us), None).timing.telemetry
    assert telemetry is not None
    assert telemetry.discarded == discarded
    bench.close()


@pytest.mark.parametrize(
    ("us", "reason", "earlier", "rests"),
    [
        (3_000.0, POWER_CAP, 1, True),
        (3_000.0, POWER_CAP, 0, False),
        (3_000.0, 0, 1, False),
        (100.0, POWER_CAP, 1, False),
    ],
)
def test_a_gpu_that_was_throttled_rests_after_samples_that_take_long(
    monkeypatch: pytest.MonkeyPatch, us: float, reason: int, earlier: int, rests: bool
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([reason]))
    plan = replace(PLAN, stopwatch=StopwatchOptions(1))
    bench = Benchmark(PROBLEM, make_inputs(PROBLEM, "normal", 0), plan, open_monitor(BUS))
    for _ in range(earlier):
        bench.measure(Steady(us), None)
    kernel = Busy(us)
    samples = len(bench.measure(kernel, None).timing.samples_us)
    bench.close()
    began_s = kernel.began_s[-samples:]
    gaps_us = [1e6 * (later - sooner) for sooner, later in pairwise(began_s)]
    assert (min(gaps_us) >= 2 * us) is rests, "a sample, and a pause of the same length"


def test_a_gpu_without_telemetry_rests_too() -> None:
    plan = replace(PLAN, stopwatch=StopwatchOptions(1))
    kernel = Busy(3_000.0)
    benchmark(plan).measure(kernel, None)
    assert min(later - sooner for sooner, later in pairwise(kernel.began_s[-10:])) >= 0.006


@pytest.mark.parametrize(("reason", "readings"), [(POWER_CAP, 4), (0, 10)])
def test_the_baseline_is_read_less_often_where_the_gpu_rests(
    monkeypatch: pytest.MonkeyPatch, reason: int, readings: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([reason]))
    baseline = Busy(2_000.0)
    monkeypatch.setattr(bench_module, "open_baseline", lambda *_: Baseline("sdpa", baseline, 1, ()))
    plan = replace(PLAN, stopwatch=StopwatchOptions(1))
    bench = Benchmark(PROBLEM, make_inputs(PROBLEM, "normal", 0), plan, open_monitor(BUS))
    bench.measure(Steady(2_000.0), None)
    earlier = len(baseline.began_s)
    timing = bench.measure(Steady(2_000.0), None).timing
    bench.close()
    assert len(timing.samples_us) == 10
    assert timing.speedup == 1.0
    warm_up_readings = 1 if reason == 0 else 0
    assert len(baseline.began_s) - earlier == readings + warm_up_readings


@pytest.mark.parametrize(("calls", "readings"), [(20, 7), (4, 8), (1, 31)])
def test_a_baseline_is_read_as_often_as_its_samples_take_no_longer(
    monkeypatch: pytest.MonkeyPatch, calls: int, readings: int
) -> None:
    """A candidate's sample takes 20 times 10 us, the baseline's 200 us for each of its calls."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([0]))
    baseline = Busy(200.0)
    monkeypatch.setattr(bench_module, "open_baseline", lambda *_: Baseline("sdpa", baseline, calls, ()))
    plan = replace(PLAN, warmup=1, stopwatch=StopwatchOptions(20), race=None)
    bench = Benchmark(PROBLEM, make_inputs(PROBLEM, "normal", 0), plan, open_monitor(BUS))
    bench.measure(Steady(10.0), None)
    earlier = len(baseline.began_s)
    timing = bench.measure(Steady(10.0), None).timing
    bench.close()
    assert len(timing.samples_us) == 30
    assert timing.speedup == 20.0
    assert len(baseline.began_s) - earlier == readings, "in 30 rounds and one of warm-up"


def test_racing_can_be_turned_off() -> None:
    assert benchmark(replace(PLAN, race=None)).measure(Steady(9.0), 5.0).drop is None
    assert plan_for(parse_problem("mission"), racing=False).race is None
    assert plan_for(parse_problem("mission")).race == RaceRule()


def test_predictions_never_prune() -> None:
    measured = benchmark().measure(Foretold(), 5.0)
    assert measured.drop is None
    assert measured.timing.predicted
    assert measured.timing.telemetry is None
    assert benchmark().energy_uj(Foretold()) is None


def test_telemetry_goes_with_timings_and_duels(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml([0, POWER_CAP, 0])
    monkeypatch.setitem(sys.modules, "pynvml", library)
    bench = Benchmark(PROBLEM, make_inputs(PROBLEM, "normal", 0), PLAN, open_monitor(BUS))
    timing = bench.measure(Steady(5.0), None).timing
    assert timing.telemetry is not None
    assert timing.telemetry.before == GpuReading(1980, 3201, 41, 312.4)
    assert timing.telemetry.discarded == 20
    duel = bench.duel(Steady(4.5), Steady(5.0), 0.03)
    assert duel.accepted
    assert duel.telemetry is not None
    assert duel.telemetry.discarded == 0
    assert len(duel.challenger_us) == len(duel.champion_us) == 10
    bench.close()
    assert library.users == 0


def test_a_missing_monitor_is_recorded() -> None:
    telemetry = benchmark().measure(Steady(5.0), None).timing.telemetry
    assert telemetry is not None
    assert telemetry.missing


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (StopwatchOptions(), "graph-warm"),
        (StopwatchOptions(cold=True), "graph-cold"),
        (StopwatchOptions(eager=True), "eager-warm"),
        (StopwatchOptions(cold=True, eager=True), "eager-cold"),
    ],
)
def test_an_objective_has_a_name(options: StopwatchOptions, name: str) -> None:
    assert options.method == name
    assert benchmark(replace(PLAN, stopwatch=options)).measure(Steady(5.0), None).timing.method == name
    plan = plan_for(parse_problem("mission"), cold=options.cold, eager=options.eager)
    assert plan.stopwatch.method == name
