"""The objective of a candidate on its device: measured beside the baseline, or predicted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

from evoengine.bench.acceptance import judge_duel, judge_predictions
from evoengine.bench.baseline import Baseline, BaselineRow, open_baseline
from evoengine.bench.timer import TimingPlan, measured_timing, sample_interleaved, spin_up
from evoengine.device.base import KernelStopwatch, LoadedKernel, PredictedKernel, Stopwatch, TimedKernel
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs
from evoengine.model import Duel, Problem, Timing


class Benchmark:
    """Times kernels on one input; holds the baseline, which is captured once and sampled beside every candidate.

    Args:
        problem: what is predicted for; a measuring device is given its inputs.
        inputs: what is timed on.
        plan: how.
    """

    def __init__(self, problem: Problem, inputs: AttentionInputs, plan: TimingPlan) -> None:
        self._problem = problem
        self._inputs = inputs
        self._plan = plan
        self._baseline: Baseline | None = None
        self._baseline_tried = False
        self._spun_up = False

    def time(self, loaded: LoadedKernel, then: Callable[[KernelStopwatch], None] | None = None) -> Timing:
        """Times one kernel that passed the parity gate.

        Args:
            loaded: the kernel.
            then: is given the stopwatch after the last sample, to look at what was timed; not where none is measured.

        Raises:
            LaunchError: the kernel faulted while timed.
        """
        if isinstance(loaded, PredictedKernel):
            prediction = loaded.predict(self._problem)
            us = prediction.us
            return Timing(us, us, us, predicted=True, method=prediction.method)
        baseline = self._open_baseline()
        method = self._plan.stopwatch.method
        with closing(_timed(loaded).stopwatch(self._inputs, self._plan.stopwatch)) as stopwatch:
            self._spin_up_once(stopwatch)
            if baseline is None:
                (own,) = sample_interleaved([stopwatch], self._plan.samples, self._plan.warmup)
                timing = measured_timing(own, method)
            else:
                watches = [stopwatch, baseline.stopwatch]
                own, rival = sample_interleaved(watches, self._plan.samples, self._plan.warmup)
                timing = measured_timing(own, method, baseline.name, rival)
            if then is not None:
                then(stopwatch)
            return timing

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
            ours, theirs = sample_interleaved(watches, self._plan.pairs, self._plan.warmup)
        return judge_duel(ours, theirs, threshold)

    def open(self, known: str = "") -> str:
        """Captures the baseline now rather than beside the first kernel.

        Args:
            known: its backend, where an earlier benchmark found it out.

        Returns:
            Its backend; empty where there is none.
        """
        baseline = self._open_baseline(known)
        return "" if baseline is None else baseline.name

    def baselines(self) -> tuple[BaselineRow, ...]:
        """Every SDPA backend on the same inputs, captured and timed on the first call; empty without a GPU or torch."""
        baseline = self._open_baseline()
        return () if baseline is None else baseline.rows

    def close(self) -> None:
        """Frees the baseline."""
        if self._baseline is not None:
            self._baseline.close()
            self._baseline = None

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
