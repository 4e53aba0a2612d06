"""The objective of a candidate on its device: measured beside the baseline, or predicted."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.bench.baseline import Baseline, BaselineRow, open_baseline
from evoengine.bench.energy import energy_per_call_uj
from evoengine.bench.racing import Drop, Pacemaker
from evoengine.bench.sampling import Patience, take_samples
from evoengine.bench.telemetry import Blind, Monitor
from evoengine.bench.timer import TimingPlan, measured_timing, sample_interleaved, spin_up
from evoengine.device.protocols import KernelStopwatch, LoadedKernel, PredictedKernel, Stopwatch, TimedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.model import Duel, Problem, Timing

_LOOKS: Final = 5


@dataclass(frozen=True)
class Measured:
    """What the benchmark says of one kernel."""

    timing: Timing
    drop: Drop | None = None
    """Why it was dropped after a few samples, which are those of the timing; None when it was measured in full."""


class Benchmark:
    """Times kernels on one input; holds the baseline, which is captured once and sampled beside every candidate.

    Args:
        problem: what is predicted for; a measuring device is given its inputs.
        inputs: what is timed on.
        plan: how.
        monitor: of the GPU; it is closed with the benchmark.
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
        self._monitor: Monitor = monitor or Blind("nobody asked")
        self._pacemaker = Pacemaker(plan.race)
        self._patience = Patience()

    def time(self, loaded: LoadedKernel, then: Callable[[KernelStopwatch], None] | None = None) -> Timing:
        """Times one kernel that passed the parity gate, in full; see :meth:`measure`."""
        return self.measure(loaded, None, then).timing

    def measure(
        self, loaded: LoadedKernel, best_us: float | None, then: Callable[[KernelStopwatch], None] | None = None
    ) -> Measured:
        """Times one kernel that passed the parity gate, or drops it when it is hopeless. Predictions never drop one.

        Args:
            loaded: the kernel.
            best_us: the time to beat; None measures in full.
            then: is given the stopwatch after the last sample, to look at what was timed; not where none is measured,
                and not when the kernel was dropped.

        Raises:
            LaunchError: the kernel faulted while timed.
        """
        if isinstance(loaded, PredictedKernel):
            prediction = loaded.predict(self._problem)
            us = prediction.us
            return Measured(Timing(us, us, us, predicted=True, method=prediction.method))
        baseline = self._open_baseline()
        method = self._plan.stopwatch.method
        with closing(_timed(loaded).stopwatch(self._inputs, self._plan.stopwatch)) as stopwatch:
            self._spin_up_once(stopwatch)
            race = self._pacemaker.race(best_us, has_baseline=baseline is not None)
            watches = [stopwatch] if baseline is None else [stopwatch, baseline.stopwatch]
            taken = take_samples(
                watches, self._plan.samples, self._plan.warmup, self._monitor, race, self._patience.retries
            )
            self._patience.saw(taken.telemetry)
            own, *rivals = taken.columns
            rival = rivals[0] if rivals else ()
            name = "" if baseline is None else baseline.name
            timing = measured_timing(own, method, name, rival, taken.telemetry)
            if taken.drop is not None:
                return Measured(timing, taken.drop)
            self._pacemaker.saw(rival)
            if then is not None:
                then(stopwatch)
            return Measured(timing)

    def duel(self, challenger: LoadedKernel, champion: LoadedKernel, threshold: float) -> Duel:
        """Fresh pairs of two kernels that both passed the parity gate.

        Raises:
            LaunchError: one of them faulted while timed.
        """
        if isinstance(challenger, PredictedKernel) and isinstance(champion, PredictedKernel):
            ours_us, theirs_us = (loaded.predict(self._problem).us for loaded in (challenger, champion))
            return judge_predictions(ours_us, theirs_us, threshold)
        with ExitStack() as stack:
            watches = [
                stack.enter_context(closing(_timed(loaded).stopwatch(self._inputs, self._plan.stopwatch)))
                for loaded in (challenger, champion)
            ]
            self._spin_up_once(watches[0])
            spin_up(watches[0], self._plan.pair_warm_up_s, watches[1])
            taken = take_samples(watches, self._plan.pairs, self._plan.warmup, self._monitor)
        ours, theirs = taken.columns
        return replace(judge_duel(ours, theirs, threshold), telemetry=taken.telemetry)

    def energy_uj(self, loaded: LoadedKernel) -> float | None:
        """Energy per call; see :func:`~evoengine.bench.energy.energy_per_call_uj`.

        Returns:
            None where it cannot be known: a prediction, another objective than warm graphs, a driver that does not say.

        Raises:
            LaunchError: the kernel faulted meanwhile.
        """
        options = self._plan.stopwatch
        if isinstance(loaded, PredictedKernel) or options.cold or options.eager:
            return None
        with closing(_timed(loaded).stopwatch(self._inputs, options)) as stopwatch:
            return energy_per_call_uj(stopwatch, options.calls, self._monitor)

    def open(self, known: str = "") -> str:
        """Captures the baseline now rather than beside the first kernel.

        Args:
            known: its backend, where an earlier benchmark found it out.

        Returns:
            Its backend; empty where there is none.
        """
        baseline = self._open_baseline(known)
        return "" if baseline is None else baseline.name

    def baseline_us(self) -> float | None:
        """A first look at the baseline's time per call, good enough for deadlines; None where there is none."""
        baseline = self._open_baseline()
        if baseline is None:
            return None
        (samples,) = sample_interleaved([baseline.stopwatch], _LOOKS, warmup=1)
        return statistics.median(samples)

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Every SDPA backend on the same inputs, captured and timed on the first call; empty without a GPU or torch."""
        baseline = self._open_baseline()
        return () if baseline is None else baseline.rows

    def baseline_output(self) -> tuple[str, AttentionOutput] | None:
        """The baseline's name and what it computes on the same inputs; None where there is none."""
        baseline = self._open_baseline()
        return None if baseline is None or baseline.output is None else (baseline.name, baseline.output)

    def close(self) -> None:
        """Frees the baseline and lets go of the monitor."""
        if self._baseline is not None:
            self._baseline.close()
            self._baseline = None
        self._monitor.close()

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
