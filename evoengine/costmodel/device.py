"""Emulator device: loads kernels for checked execution, and predicts their times on a target GPU."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from evoengine.costmodel.emulation.checked_calls import CTA_ORDERS, CheckedCalls, CheckOptions
from evoengine.costmodel.emulation.limits import CONFLICT_COUNT_FLOPS, RACE_CHECK_FLOPS
from evoengine.costmodel.forecast import AnalyticForecast
from evoengine.costmodel.forecast_error import is_corrected
from evoengine.costmodel.latency import METHOD, LatencyEstimate, predict_us
from evoengine.costmodel.representative import (
    FAST_FLOPS,
    SLOW_FLOPS,
    is_fast_on_emulator,
    one_group,
    representative,
    scaled,
)
from evoengine.costmodel.simulated_kernel import SimulatedKernel, covers, estimate_kernel, simulation_input
from evoengine.emulator.counters.report import LaunchReport
from evoengine.errors import LaunchError, UsageError
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.call import AttentionInputs, AttentionOutput, Prediction
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import occupancy
from evoengine.model import DeviceInfo, Problem, Resources, base_family
from evoengine.space.loader import family_space
from evoengine.target import Target

_REMEMBERED: Final = 16
"""Number of forecasts, by family, problem and GPU, that are kept."""

MAX_REPORTS: Final = 64
"""Number of calls whose counters are kept; the oldest are dropped."""

_Reports = OrderedDict[tuple[str, Problem], tuple[LaunchReport, ...]]
"""Counters of past calls, one per launch, by code hash and problem; the latest call is last."""


@dataclass(frozen=True)
class CallProfile:
    """Counters of one call and its predicted time."""

    prediction: Prediction
    ran: Problem
    """Executed problem: the requested one, or a representative slice of it."""
    reports: tuple[LaunchReport, ...]
    """Counters of each launch of the executed call."""


@dataclass(frozen=True)
class CountedStep:
    """Input of the latency model for one launch of a call."""

    report: LaunchReport
    """Counters of the launch, scaled to the whole problem."""
    resources: Resources
    unique_bytes: int
    """Bytes that must come from DRAM at least once if they do not fit in L2."""


class EmulatorDevice:
    """Executes PTX in NumPy and predicts the time on a GPU that need not be present.

    Args:
        target: GPU to predict for.
        arch: Architecture to compile for; None for the target's own.
        representative_flops: Largest problem that is run whole for a prediction; only a slice of a larger one is. None
            selects a limit by the kernel's speed, and runs only one group of equal CTAs where that is representative.
        counters: Whether to count per instruction, which :meth:`EmulatedKernel.profile` needs.
        race_check_flops: Largest problem that is checked for races; None for :data:`RACE_CHECK_FLOPS`.
        cta_orders: Random orders of the CTAs in which calls that are checked for races are repeated, if CTAs
            synchronise.
        thorough: Whether every call that is checked for races, instead of only the first, is launched as on a GPU of
            few SMs with a check of the order between lanes; for finalists.
        orders_only: Whether the random orders of the CTAs are the only check of a call besides that for races.
    """

    def __init__(
        self,
        target: Target,
        arch: str | None = None,
        *,
        representative_flops: int | None = None,
        counters: bool = False,
        race_check_flops: int | None = None,
        cta_orders: int = CTA_ORDERS,
        thorough: bool = False,
        orders_only: bool = False,
    ) -> None:
        races = RACE_CHECK_FLOPS if race_check_flops is None else race_check_flops
        self._checks = CheckOptions(races, cta_orders, thorough, counters, orders_only)
        self._representative_flops = representative_flops
        self._target = target
        self._reports: _Reports = OrderedDict()
        self._info = DeviceInfo("emulator", target.marketing_name, arch or target.arch, predicted=True)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def target(self) -> Target:
        return self._target

    @property
    def healthy(self) -> bool:
        return True  # a kernel's fault is only an exception here

    def load(self, kernel: Kernel) -> EmulatedKernel:
        """Parses the PTX of a kernel.

        Raises:
            LaunchError: The PTX has no kernel, or an instruction that the emulator does not support.
        """
        calls = CheckedCalls.of(kernel, self._checks)
        return EmulatedKernel(kernel, calls, self._target, self._reports, self._representative_flops)

    def close(self) -> None:
        pass


class EmulatedKernel:
    """Kernel that is ready to be emulated; created by :meth:`EmulatorDevice.load`."""

    def __init__(
        self,
        kernel: Kernel,
        calls: CheckedCalls,
        target: Target,
        reports: _Reports,
        representative_flops: int | None,
    ) -> None:
        affordable = FAST_FLOPS if is_fast_on_emulator(kernel.binary.ptx) else SLOW_FLOPS
        self._representative_flops = affordable if representative_flops is None else representative_flops
        self._groups = representative_flops is None
        self._kernel = kernel
        self._calls = calls
        self._launch = kernel.source.launch
        self._target = target
        self._reports = reports

    @property
    def launched(self) -> tuple[str, ...]:
        return self._calls.launched

    @property
    def synchronises(self) -> bool:
        """Whether CTAs synchronise, so that their order may matter."""
        return self._calls.synchronises

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        """Runs and checks a call; see :class:`~evoengine.costmodel.emulation.checked_calls.CheckedCalls`.

        Raises:
            LaunchError: The kernel faulted, changed an input, a gap of an output, a counter or a module variable, or
                a repetition gave other bits.
            CandidateTimeoutError: A launch exceeded its limit on CPU time.
        """
        return self._attend(inputs, before)

    def _attend(
        self, inputs: AttentionInputs, before: AttentionOutput | None = None, *, counting: bool = False
    ) -> AttentionOutput:
        """Runs a call and keeps its counters; ``counting`` as of :meth:`CheckedCalls.run`."""
        call = self._calls.run(inputs, before, counting=counting)
        if call.reports is not None:
            key = self._kernel.binary.code_hash, inputs.problem
            self._reports[key] = call.reports
            self._reports.move_to_end(key)
            while len(self._reports) > MAX_REPORTS:
                self._reports.popitem(last=False)
        return call.output

    def _known(self, problem: Problem) -> tuple[LaunchReport, ...] | None:
        """Returns the counters of each launch of a past call; None if no call with this problem is kept."""
        return self._reports.get((self._kernel.binary.code_hash, problem))

    def _counted(self, problem: Problem) -> tuple[LaunchReport, ...]:
        """Returns the counters of each launch of a call, which is executed unless they are known.

        Raises:
            LaunchError: The kernel faulted; see :meth:`attention`.
        """
        if self._known(problem) is None:
            self._attend(_zeros(problem), counting=True)
        return self._reports[self._kernel.binary.code_hash, problem]

    def executed(self, problem: Problem) -> int:
        """Counts warp instructions; see :class:`~evoengine.device.protocols.PredictedKernel`."""
        return sum(report.warp_instructions for report in self._known(problem) or ())

    def predict(self, problem: Problem) -> Prediction:
        """Predicts the time of a call from its counters; see :class:`~evoengine.device.protocols.PredictedKernel`.

        Counters come from the parity gate if it has run the problem; otherwise from a run of one kv head's group where
        that is representative, or of a slice if the problem is too large. Launches of a call run in sequence, so their
        times add up.

        Raises:
            LaunchError: No CTA fits on an SM, or the kernel faulted; see :meth:`attention`.
            CandidateTimeoutError: As for :meth:`attention`.
        """
        terms: Counter[str] = Counter()
        total_us = 0.0
        estimates = [*self._estimates(problem)]
        for estimate in estimates:
            if not math.isfinite(estimate.us):
                raise LaunchError(f"no CTA fits on an SM of {self._target.marketing_name}: {estimate.limiter}")
        correction = self._correction(problem, sum(estimate.busy_us for estimate in estimates))
        for estimate in estimates:
            total_us += estimate.corrected_us(correction)
            terms.update(estimate.terms)
            if correction != 1.0:
                terms.update({"correction": estimate.corrected_us(correction) - estimate.us})
        return Prediction(total_us, METHOD, dict(terms))

    def _correction(self, problem: Problem, executed_us: float) -> float:
        """Factor by which predictions of such kernels are expected to be wrong; 1 where nothing is known."""
        config, resources = self._kernel.config, self._kernel.binary.resources
        forecast = _forecast(base_family(config.family), problem, self._target)
        try:
            return 1.0 if forecast is None else forecast.correction(config, resources, executed_us)
        except UsageError:  # a value that only a space of the user's own has
            return 1.0

    def _estimates(self, problem: Problem) -> Iterator[LatencyEstimate]:
        """Estimates each launch of a call."""
        resident = occupancy(self._kernel.binary.resources, self._target)
        if resident.blocks_per_sm and covers(self._kernel, problem):
            yield estimate_kernel(self._kernel.config.family, self.simulation_input(problem), resident, self._target)
            return
        for step in self.counted_steps(problem):
            yield predict_us(step.report, step.resources, self._target, unique_bytes=step.unique_bytes)

    def simulation_input(self, problem: Problem) -> SimulatedKernel:
        """Returns the input of the simulation of a kernel that :func:`covers` accepts; one piece of work is executed.

        Raises:
            LaunchError: The kernel faulted; see :meth:`attention`.
        """
        return simulation_input(self._kernel, problem, self._target, lambda part: self._counted(part)[0])

    def counted_steps(self, problem: Problem) -> tuple[CountedStep, ...]:
        """Returns the latency model's input for each launch of a call; see :meth:`predict`.

        A later launch reads what the previous one wrote, each byte once.

        Raises:
            LaunchError: The kernel faulted; see :meth:`attention`.
        """
        steps = self._launch.steps(problem)
        reports, part = self._known(problem), problem
        if reports is None:
            part = self._representative(problem)
            pairs = zip(self._counted(part), steps, strict=True)
            reports = tuple(scaled(report, problem, part, step) for report, step in pairs)
        return tuple(
            CountedStep(
                report if part.flops > CONFLICT_COUNT_FLOPS else replace(report, conflicts=1.0),
                self._kernel.binary.needs(step.entry),
                problem.min_bytes if step.entry == ENTRY else report.global_bytes,
            )
            for report, step in zip(reports, steps, strict=True)
        )

    def profile(self, problem: Problem) -> CallProfile:
        """Returns the prediction with the counters that it is based on.

        Raises:
            LaunchError: The kernel faulted; see :meth:`attention`.
        """
        is_known = self._known(problem) is not None
        ran = problem if is_known else representative(problem, self._representative_flops)
        reports = self._counted(ran)
        return CallProfile(self.predict(problem), ran, reports)

    def _representative(self, problem: Problem) -> Problem:
        """Chooses the problem to run for a prediction: the whole, one group of equal CTAs, or a slice."""
        part = representative(problem, self._representative_flops)
        if part != problem or not self._groups or self._known(part) is not None:
            return part
        return one_group(problem, self._launch)

    def close(self) -> None:
        pass


@lru_cache(_REMEMBERED)
def _forecast(family: str, problem: Problem, target: Target) -> AnalyticForecast | None:
    """Returns the forecast of a family whose expected error is known for the GPU; None for others."""
    if not is_corrected(family, target):
        return None
    space = family_space(family)
    return AnalyticForecast(space, problem, target) if AnalyticForecast.covers(space, problem) else None


def _zeros(problem: Problem) -> AttentionInputs:
    """Creates inputs for a run in which only the counters matter."""
    q = np.zeros((problem.memory_batch, problem.heads, problem.rows_q, problem.head_dim), np.uint16)
    kv = np.zeros((problem.memory_batch, problem.kv_heads, problem.rows_kv, problem.head_dim), np.uint16)
    sink = np.zeros(problem.heads, np.float32) if problem.sink else None
    return AttentionInputs.of(problem, q, kv, kv, sink=sink)
