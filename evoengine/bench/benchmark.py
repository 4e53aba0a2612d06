"""The objective of a candidate on its device: time measured interleaved with the baseline, or predicted time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.bench.baseline import Baseline, BaselineRow, open_baseline
from evoengine.bench.energy import energy_per_call_uj
from evoengine.bench.gpu_monitor import Monitor, NullMonitor
from evoengine.bench.racing import BaselineSpeed, Drop
from evoengine.bench.sampling import (
    RETRIES,
    SparseStopwatch,
    ThrottleHistory,
    rounds_per_reading,
    rounds_per_steady_reading,
    take_samples,
)
from evoengine.bench.timer import TimingPlan, measured_timing, sample_interleaved, spin_up
from evoengine.device.protocols import KernelStopwatch, LoadedKernel, PredictedKernel, Stopwatch, TimedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import Duel, Problem, Timing

_ROUGH_SAMPLES: Final = 5
"""Samples of the baseline for a rough time."""


@dataclass(frozen=True)
class Measured:
    """Result of timing one kernel."""

    timing: Timing
    drop: Drop | None = None
    """Reason for dropping the kernel after the few samples in ``timing``; None when it was measured in full."""


class Benchmark:
    """Times kernels on one input; holds the baseline, which is captured once and sampled beside every candidate.

    Args:
        problem: Problem to predict for; a measuring device uses the inputs instead.
        inputs: Inputs of every timed call.
        plan: Numbers of samples, pairs and warm-up rounds, and the kind of stopwatch.
        monitor: GPU monitor; the benchmark closes it.
    """

    def __init__(
        self, problem: Problem, inputs: AttentionInputs, plan: TimingPlan, monitor: Monitor | None = None
    ) -> None:
        self._problem = problem
        self._inputs = inputs
        self._plan = plan
        self._baseline: Baseline | None = None
        self._baseline_tried = False
        self._spun_up = False
        self._monitor: Monitor = monitor or NullMonitor("no monitor was opened")
        self._baseline_speed = BaselineSpeed(plan.race)
        self._throttling = ThrottleHistory()

    def time(self, loaded: LoadedKernel, then: Callable[[KernelStopwatch], None] | None = None) -> Timing:
        """Times one kernel in full; see :meth:`measure`."""
        return self.measure(loaded, None, then).timing

    def measure(
        self, loaded: LoadedKernel, best_us: float | None, then: Callable[[KernelStopwatch], None] | None = None
    ) -> Measured:
        """Times one kernel that passed the parity gate, or drops it early if it is clearly slow.

        A prediction is never dropped.

        Args:
            loaded: Kernel to time.
            best_us: Time to beat; None measures in full.
            then: Callback that receives the stopwatch after the last sample, to inspect the timed calls. It is not
                called for a prediction or a dropped kernel.

        Raises:
            LaunchError: The kernel faulted while it was timed.
        """
        if isinstance(loaded, PredictedKernel):
            prediction = loaded.predict(self._problem)
            us = prediction.us
            return Measured(Timing(us, us, us, predicted=True, method=prediction.method))
        baseline = self._open_baseline()
        method = self._plan.stopwatch.method
        with closing(_timed(loaded).stopwatch(self._inputs, self._plan.stopwatch)) as stopwatch:
            self._spin_up_once(stopwatch)
            plan = self._plan.with_calls(stopwatch.calls)
            race = self._baseline_speed.race(best_us, has_baseline=baseline is not None)
            own_us = stopwatch.sample_us()
            if plan.samples_for(own_us) < plan.samples:  # it is slow, or the GPU was interrupted
                own_us = min(own_us, stopwatch.sample_us())
            samples = plan.samples_for(own_us)
            beside, rests = self._beside(own_us, samples, plan)
            watches: list[Stopwatch] = [stopwatch, *beside]
            warmup = max(1, plan.warmup * samples // plan.samples)
            retries = self._throttling.retries if samples == plan.samples else 0
            taken = take_samples(watches, samples, warmup, self._monitor, race, retries, rests=rests)
            self._throttling.observe(taken.telemetry, rested=rests)
            own, *rivals = taken.columns
            rival = rivals[0] if rivals else ()
            name = "" if baseline is None else baseline.name
            timing = measured_timing(own, method, name, rival, taken.telemetry)
            if taken.drop is not None:
                return Measured(timing, taken.drop)
            self._baseline_speed.observe(rival)
            if then is not None:
                then(stopwatch)
            return Measured(timing)

    def duel(self, challenger: LoadedKernel, champion: LoadedKernel, threshold: float, *, fresh: bool = False) -> Duel:
        """Times two kernels that both passed the parity gate in fresh interleaved pairs.

        Args:
            challenger: Kernel that would replace the champion.
            champion: Kernel to beat.
            threshold: Minimum relative speed-up, 0.03 for 3 %.
            fresh: Whether all calls of both have inputs of their own, because the source of one is untrusted.

        Raises:
            LaunchError: One of them faulted while it was timed.
        """
        if isinstance(challenger, PredictedKernel) and isinstance(champion, PredictedKernel):
            ours_us, theirs_us = (loaded.predict(self._problem).us for loaded in (challenger, champion))
            return judge_predictions(ours_us, theirs_us, threshold)
        options = replace(self._plan.stopwatch, fresh=fresh)
        with ExitStack() as stack:
            watches = [
                stack.enter_context(closing(_timed(loaded).stopwatch(self._inputs, options)))
                for loaded in (challenger, champion)
            ]
            self._spin_up_once(watches[0])
            spin_up(watches[0], self._plan.pair_warm_up_s, watches[1])
            plan = self._plan.with_calls(max(watch.calls for watch in watches))
            pairs = plan.pairs_for(sum(watch.sample_us() for watch in watches))
            warmup = max(1, self._plan.warmup * pairs // self._plan.pairs)
            retries = RETRIES if pairs == self._plan.pairs else 0
            taken = take_samples(watches, pairs, warmup, self._monitor, retries=retries)
        ours, theirs = taken.columns
        return replace(judge_duel(ours, theirs, threshold), telemetry=taken.telemetry)

    def energy_uj(self, loaded: LoadedKernel) -> float | None:
        """Measures the energy per call; see :func:`~evoengine.bench.energy.energy_per_call_uj`.

        Returns:
            Energy in microjoules; None for a prediction, for an objective other than warm graphs, and for a driver that
            does not report energy.

        Raises:
            LaunchError: The kernel faulted meanwhile.
        """
        options = self._plan.stopwatch
        if isinstance(loaded, PredictedKernel) or options.cold or options.eager:
            return None
        with closing(_timed(loaded).stopwatch(self._inputs, options)) as stopwatch:
            return energy_per_call_uj(stopwatch, self._monitor)

    def open(self, known: str = "") -> str:
        """Captures the baseline now rather than with the first kernel.

        Args:
            known: Name of the fastest backend if an earlier benchmark determined it.

        Returns:
            Name of the backend; empty if there is no baseline.
        """
        baseline = self._open_baseline(known)
        return "" if baseline is None else baseline.name

    def baseline_us(self) -> float | None:
        """Returns a rough time per call of the baseline, sufficient for deadlines; None if there is no baseline."""
        baseline = self._open_baseline()
        if baseline is None:
            return None
        (samples,) = sample_interleaved([baseline.stopwatch], _ROUGH_SAMPLES, warmup=1)
        return statistics.median(samples)

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Returns every SDPA backend on the same inputs; empty without a GPU or torch."""
        baseline = self._open_baseline()
        return () if baseline is None else baseline.rows

    def baseline_output(self) -> tuple[str, AttentionOutput] | None:
        """Returns the baseline's name and its output on the same inputs; None if there is no baseline."""
        baseline = self._open_baseline()
        return None if baseline is None or baseline.output is None else (baseline.name, baseline.output)

    def close(self) -> None:
        """Frees the baseline and closes the monitor."""
        if self._baseline is not None:
            self._baseline.close()
            self._baseline = None
        self._monitor.close()

    def _beside(self, own_us: float, samples: int, plan: TimingPlan) -> tuple[list[Stopwatch], bool]:
        """Returns the baseline's stopwatch, if there is one, and whether the GPU rests after each round."""
        baseline = self._open_baseline()
        if baseline is None:
            return [], self._may_throttle and plan.rests(own_us, samples)
        beside_us = (self._baseline_speed.fastest_us or own_us) * baseline.calls / plan.stopwatch.calls
        rounds = rounds_per_reading(own_us, beside_us, samples)
        rests = self._may_throttle and plan.rests(own_us + beside_us / rounds, samples)
        return [SparseStopwatch(baseline.stopwatch, rounds_per_steady_reading(samples) if rests else rounds)], rests

    @property
    def _may_throttle(self) -> bool:
        """Whether load may make the GPU slower; True without telemetry, which leaves this unknown."""
        return self._throttling.limits or bool(self._monitor.missing)

    def _spin_up_once(self, stopwatch: Stopwatch) -> None:
        if not self._spun_up:
            spin_up(stopwatch, self._plan.spin_up_s)
            self._spun_up = True

    def _open_baseline(self, known: str = "") -> Baseline | None:
        if not self._baseline_tried:
            self._baseline_tried = True
            self._baseline = open_baseline(self._inputs, self._plan.stopwatch, known)
        return self._baseline


def _timed(loaded: LoadedKernel) -> TimedKernel:
    if not isinstance(loaded, TimedKernel):
        raise LaunchError("this device neither measures nor predicts")
    return loaded
