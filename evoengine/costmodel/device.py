"""Emulator device: executes a binary's PTX, checks every memory access, and predicts its time on a target GPU."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.costmodel.emulation_limits import RACE_CHECK_FLOPS, launch_limit_s
from evoengine.costmodel.far_strides import LARGEST_TILE, MANY_ROWS, can_spread, shown_heads, spread_tensors
from evoengine.costmodel.fault_source_lines import with_lines
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
from evoengine.emulator.emulator import Asynchrony, Emulator
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.memory.far_memory import FarMemory
from evoengine.emulator.memory.global_memory import Symbols
from evoengine.emulator.memory.tensor_map import TensorMap
from evoengine.emulator.memory.uniform_memory import UniformMemory
from evoengine.errors import LaunchError, UsageError
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.call import AttentionInputs, AttentionOutput, Prediction
from evoengine.kernel.call_memory import Role, call_output, call_params, call_regions
from evoengine.kernel.records import Kernel, LaunchPlan
from evoengine.kernel.resources import occupancy
from evoengine.kernel.tensor_maps import TensorMapGeometry, encode_maps
from evoengine.model import DeviceInfo, Problem, Resources, base_family
from evoengine.space.loader import packaged_space
from evoengine.target import Target

COUNTED_FLOPS: Final = 10**7
"""Problems of more FLOPs count bank conflicts for the prediction: slices are larger, most parity cases smaller.

The prediction of a smaller problem ignores conflicts even if a profile counts them, so that it is the same with and
without a profile."""

CTA_ORDERS: Final = 1
"""Random orders of the CTAs in which a checked call of a kernel with synchronising CTAs is repeated."""

LATE_GROWTH: Final = 4
"""Ratio of FLOPs from one checked call that also runs with late asynchronous operations to the next such call."""

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
    ) -> None:
        races = RACE_CHECK_FLOPS if race_check_flops is None else race_check_flops
        self._checks = _Checks(races, cta_orders, thorough)
        self._counters = counters
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
        try:
            return self._loaded(kernel)
        except EmulatorError as error:
            raise with_lines(error, kernel, self._loaded) from None

    def _loaded(self, kernel: Kernel) -> EmulatedKernel:
        return EmulatedKernel(
            kernel, self._target, self._reports, self._representative_flops, self._counters, self._checks
        )

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class _Checks:
    """Arguments of the same names of :class:`EmulatorDevice`."""

    race_check_flops: int
    cta_orders: int
    thorough: bool


@dataclass(frozen=True)
class _Mode:
    """Arguments of the same names of :meth:`Emulator.launch`."""

    races: bool
    lanes: bool
    order_seed: int | None
    asynchrony: Asynchrony


@dataclass(frozen=True)
class _Call:
    """Results of one call."""

    after: dict[str, NDArray[np.uint8]]
    """Bytes of each region."""
    reports: tuple[LaunchReport, ...]
    symbols: Symbols


class EmulatedKernel:
    """Kernel that is ready to be emulated; created by :meth:`EmulatorDevice.load`."""

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        reports: _Reports,
        representative_flops: int | None,
        counters: bool,
        checks: _Checks,
    ) -> None:
        self._counters = counters
        self._checks = checks
        affordable = FAST_FLOPS if is_fast_on_emulator(kernel.binary.ptx) else SLOW_FLOPS
        self._representative_flops = affordable if representative_flops is None else representative_flops
        self._groups = representative_flops is None
        self._kernel = kernel
        self._launch = self._current = kernel.source.launch
        self._target = target
        binary = kernel.binary
        self._emulators = {
            entry: Emulator(binary.ptx, entry=entry, registers=binary.needs(entry).registers)
            for entry in self._launch.entries
        }
        self._reports = reports
        self._symbols: Symbols = {}
        self._latest: AttentionInputs | None = None
        self._checked = False
        """Whether a call has been checked."""
        self._spread_heads = 0
        """Largest :func:`shown_heads` of the calls that were repeated with large strides."""
        self._spread_rows = 0
        """Most query rows of these calls."""
        self._late_flops = 0
        """FLOPs of the largest call that has run with late asynchronous operations."""
        self.launched: tuple[str, ...] = ()

    def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
        """Runs all CTAs of all launches; see :class:`~evoengine.device.protocols.LoadedKernel`.

        Buffers are separated by unmapped gaps, so that any access outside a buffer is an error at its instruction; so
        is a read of uninitialised workspace. Module variables persist between calls, as on a GPU, and must have their
        old contents after a call: a kernel that counts its calls could fail at any later one. A fault is reported with
        its source line, even if the binary has no line information.

        Small problems are checked for races. The first checked call is launched as on a GPU of few SMs, so that the
        CTAs of a persistent grid take several pieces of work, and with a check of the order between lanes of a warp. On
        a thorough device this holds for all checked calls. Checked calls are repeated in other ways, which must give
        the same bits: kernels whose CTAs synchronise in random orders of the CTAs, some calls with late instead of
        early asynchronous operations, and up to three, four on a thorough device, with the order between lanes checked,
        with rows so far apart that offsets need more than 32 bits. None of this is repeated if the same inputs are
        passed twice in a row.

        Raises:
            LaunchError: The kernel faulted, changed an input, a gap of an output, a counter or a module variable, or
                a repetition gave other bits.
            CandidateTimeoutError: A launch exceeded its limit on CPU time.
        """
        return self.attend(inputs, before)

    def attend(
        self, inputs: AttentionInputs, before: AttentionOutput | None = None, *, counting: bool = False
    ) -> AttentionOutput:
        """Implements :meth:`attention`.

        Args:
            inputs: Inputs of the call.
            before: As in :meth:`attention`.
            counting: Whether only the counters of the target's own launch matter; then fewer checks are made.

        Raises:
            LaunchError: As for :meth:`attention`.
            CandidateTimeoutError: As for :meth:`attention`.
        """
        try:
            return self._attention(inputs, before, counting)
        except EmulatorError as error:
            raise with_lines(
                error, self._kernel, lambda lined: self._twin(lined).attend(inputs, before, counting=counting)
            ) from None

    def _twin(self, kernel: Kernel) -> EmulatedKernel:
        """Loads another binary of the same source, with the module state of this one."""
        twin = EmulatedKernel(
            kernel, self._target, OrderedDict(), self._representative_flops, self._counters, self._checks
        )
        module = next(iter(twin._emulators.values())).module
        twin._symbols = {(module, name): contents for (_, name), contents in self._symbols.items()}
        twin._latest, twin._current = self._latest, self._current
        twin._checked, twin._spread_heads, twin._spread_rows = self._checked, self._spread_heads, self._spread_rows
        return twin

    def _attention(self, inputs: AttentionInputs, before: AttentionOutput | None, counting: bool) -> AttentionOutput:
        problem, repeated = inputs.problem, inputs is self._latest
        races = problem.flops <= self._checks.race_check_flops and not repeated
        first = races and not counting and not self._checked
        close = first or (races and not counting and self._checks.thorough)
        far = races and not counting and self._is_due(inputs)
        if not repeated:
            self._current = (self._launch.on_few_sms if close else None) or self._launch
        call = self._call(inputs, races=races, lanes=close, before=before)
        if races and not counting and any(emulator.synchronises for emulator in self._emulators.values()):
            self._check_orders(inputs, call.after, self._checks.cta_orders)
        if races and any(emulator.is_asynchronous for emulator in self._emulators.values()):
            self._check_late(inputs, call.after)
        if far:
            self._check_far(inputs, before, call.after)
            self._spread_heads = max(self._spread_heads, shown_heads(inputs))
            self._spread_rows = max(self._spread_rows, problem.seq_q)
        self._checked = self._checked or first
        self._latest = inputs
        if self._current is self._launch:
            self._remember(problem, call.reports)
        self._symbols = call.symbols
        return call_output(inputs, call.after)

    def _is_due(self, inputs: AttentionInputs) -> bool:
        """Whether to repeat a call with large strides.

        True for the first call in which any wrong offset shows, the first such call with several heads per K/V head,
        and the first with more than :data:`MANY_ROWS` query rows; on a thorough device also the first with more than
        :data:`LARGEST_TILE`.
        """
        if not can_spread(inputs):
            return False
        limits = (MANY_ROWS, LARGEST_TILE) if self._checks.thorough else (MANY_ROWS,)
        several_tiles = any(self._spread_rows <= rows < inputs.problem.seq_q for rows in limits)
        return several_tiles or self._spread_heads < shown_heads(inputs)

    def _check_orders(self, inputs: AttentionInputs, expected: Mapping[str, NDArray[np.uint8]], orders: int) -> None:
        """Repeats a call in random orders of the CTAs; they follow from the kernel's source and the problem.

        Args:
            inputs: Inputs of the call.
            expected: Bytes of each region after the call in the usual order.
            orders: Number of random orders.

        Raises:
            LaunchError: The kernel faults in some order, or its outputs have other bits.
        """
        for number in range(orders):
            text = f"{self._kernel.source.source_hash}/{inputs.problem}/{number}"
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
            try:
                after = self._call(inputs, races=True, order_seed=seed).after
            except EmulatorError as error:
                raise EmulatorError(replace(error.fault, detail=f"{error.fault.detail} (CTA order {seed})")) from None
            _require_equal(after, expected, "the order of the CTAs, or of the lanes of an atomic", f"CTA order {seed}")

    def _check_late(self, inputs: AttentionInputs, expected: Mapping[str, NDArray[np.uint8]]) -> None:
        """Repeats a call with late asynchronous operations, if no call of similar size has run so.

        Raises:
            LaunchError: The kernel faults, or its outputs have other bits.
        """
        if inputs.problem.flops < LATE_GROWTH * self._late_flops:
            return
        self._late_flops = inputs.problem.flops
        try:
            after = self._call(inputs, races=True, lanes=self._checks.thorough, asynchrony="late").after
        except EmulatorError as error:
            detail = f"{error.fault.detail} (late asynchronous operations)"
            raise EmulatorError(replace(error.fault, detail=detail)) from None
        _require_equal(after, expected, "the time of asynchronous operations", "late asynchronous operations")

    def _check_far(
        self, inputs: AttentionInputs, before: AttentionOutput | None, expected: Mapping[str, NDArray[np.uint8]]
    ) -> None:
        """Repeats a call with rows so far apart that offsets need more than 32 bits.

        Raises:
            LaunchError: The kernel faults, or its outputs have other bits.
        """
        try:
            after = self._call(inputs, races=False, lanes=True, far=True, before=before).after
        except EmulatorError as error:
            if error.kind is FaultKind.DATA_RACE:  # between lanes
                raise
            detail = f"{error.fault.detail} (offsets beyond 32 bits)"
            raise EmulatorError(replace(error.fault, detail=detail)) from None
        _require_equal(after, expected, "the strides", "offsets beyond 32 bits")

    def _call(
        self,
        inputs: AttentionInputs,
        *,
        races: bool,
        lanes: bool = False,
        far: bool = False,
        order_seed: int | None = None,
        asynchrony: Asynchrony = "early",
        before: AttentionOutput | None = None,
    ) -> _Call:
        """Runs all launches of a call on fresh buffers, with the module variables that the last call left."""
        problem = inputs.problem
        memory = FarMemory(self._symbols) if far else UniformMemory(self._symbols)
        regions = call_regions(inputs, self._current.workspace(problem), before)
        buffers = {
            one.name: memory.alloc(one.contents, initialised=one.role is not Role.SCRATCH, name=one.name.upper())
            for one in regions
        }
        params = call_params(inputs, {name: buffer.address for name, buffer in buffers.items()})
        if isinstance(memory, FarMemory):
            spread_tensors(inputs, memory, buffers, params)
        maps = self._launch.maps
        args = (params, encode_maps(maps, problem, params, _encode_map)) if maps else (params,)
        # On few SMs, fewer CTAs do the same work, one piece after the other: the limits are those of all SMs.
        steps, on_all_sms = self._current.steps(problem), self._launch.steps(problem)
        threads = [math.prod(step.grid) * step.threads for step in on_all_sms]
        self.launched = ()
        mode = _Mode(races, lanes, order_seed, asynchrony)
        reports = tuple(
            self._run(step, args, memory, problem, mode, launch_limit_s(problem, count, lanes=lanes))
            for step, count in zip(steps, threads, strict=True)
        )
        after = {name: memory.read(buffer, np.uint8) for name, buffer in buffers.items()}
        for region in regions:
            region.check(after[region.name])
        if memory.changed_symbols:
            raise LaunchError(
                f"the kernel changed its module variable {memory.changed_symbols[0]}: a later call would depend on "
                "this one, use counters or a workspace"
            )
        return _Call(after, reports, memory.symbols())

    def _run(
        self,
        step: LaunchPlan,
        args: tuple[np.ndarray, ...],
        memory: UniformMemory,
        problem: Problem,
        mode: _Mode,
        deadline_s: float,
    ) -> LaunchReport:
        emulator = self._emulators[step.entry]
        report = emulator.launch(
            step.grid,
            step.threads,
            args,
            memory=memory,
            smem_bytes=step.smem_bytes,
            deadline_s=deadline_s,
            races=mode.races,
            lanes=mode.lanes,
            counters=self._counters,
            conflicts=problem.flops > COUNTED_FLOPS,
            order_seed=mode.order_seed,
            asynchrony=mode.asynchrony,
        )
        self.launched += (emulator.entry,)
        return report

    def executed(self, problem: Problem) -> int:
        """Counts warp instructions; see :class:`~evoengine.device.protocols.PredictedKernel`."""
        reports = self._reports.get((self._kernel.binary.code_hash, problem), ())
        return sum(report.warp_instructions for report in reports)

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
        return simulation_input(self._kernel, problem, self._target, self._executed)

    def _executed(self, problem: Problem) -> LaunchReport:
        """Returns the counters of the main launch of a problem that is small enough to run whole."""
        key = self._kernel.binary.code_hash, problem
        if key not in self._reports:
            self.attend(_zeros(problem), counting=True)
        return self._reports[key][0]

    def counted_steps(self, problem: Problem) -> tuple[CountedStep, ...]:
        """Returns the latency model's input for each launch of a call; see :meth:`predict`.

        A later launch reads what the previous one wrote, each byte once.

        Raises:
            LaunchError: The kernel faulted; see :meth:`attention`.
        """
        key, steps = self._kernel.binary.code_hash, self._launch.steps(problem)
        reports, part = self._reports.get((key, problem)), problem
        if reports is None:
            part = self._representative(problem)
            if (key, part) not in self._reports:
                self.attend(_zeros(part), counting=True)
            reports = tuple(
                scaled(report, problem, part, step)
                for report, step in zip(self._reports[key, part], steps, strict=True)
            )
        return tuple(
            CountedStep(
                report if part.flops > COUNTED_FLOPS else replace(report, conflicts=1.0),
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
        key, ran = self._kernel.binary.code_hash, problem
        if (key, problem) not in self._reports:
            ran = representative(problem, self._representative_flops)
            if (key, ran) not in self._reports:
                self.attend(_zeros(ran), counting=True)
        return CallProfile(self.predict(problem), ran, self._reports[key, ran])

    def _representative(self, problem: Problem) -> Problem:
        """Chooses the problem to run for a prediction: the whole, one group of equal CTAs, or a slice."""
        part = representative(problem, self._representative_flops)
        known = (self._kernel.binary.code_hash, part) in self._reports
        return part if known or part != problem or not self._groups else one_group(problem, self._launch)

    def _remember(self, problem: Problem, reports: tuple[LaunchReport, ...]) -> None:
        key = self._kernel.binary.code_hash, problem
        self._reports[key] = reports
        self._reports.move_to_end(key)
        while len(self._reports) > MAX_REPORTS:
            self._reports.popitem(last=False)

    def close(self) -> None:
        pass


@lru_cache(_REMEMBERED)
def _forecast(family: str, problem: Problem, target: Target) -> AnalyticForecast | None:
    """Returns the forecast of a family whose expected error is known for the GPU; None for others."""
    if not is_corrected(family, target):
        return None
    space = packaged_space(family)
    return AnalyticForecast(space, problem, target) if AnalyticForecast.covers(space, problem) else None


def _encode_map(geometry: TensorMapGeometry) -> bytes:
    address, sizes, strides, box = geometry.address, geometry.sizes, geometry.strides_bytes, geometry.box
    return TensorMap(address, sizes, strides, box, geometry.element.bytes, geometry.swizzle_bytes).encode()


def _require_equal(
    after: Mapping[str, NDArray[np.uint8]], expected: Mapping[str, NDArray[np.uint8]], cause: str, run: str
) -> None:
    """Raises :class:`EmulatorError` if the outputs of two runs of a call have different bits."""
    for name in ("o", "lse"):
        if name in after and not np.array_equal(after[name], expected[name]):
            first = int((after[name] != expected[name]).argmax())
            detail = f"{name.upper()} depends on {cause}, first at byte {first} ({run})"
            raise EmulatorError(Fault(FaultKind.ORDER_DEPENDENT, detail))


def _zeros(problem: Problem) -> AttentionInputs:
    """Creates inputs for a run in which only the counters matter."""
    q = np.zeros((problem.memory_batch, problem.heads, problem.rows_q, problem.head_dim), np.uint16)
    kv = np.zeros((problem.memory_batch, problem.kv_heads, problem.rows_kv, problem.head_dim), np.uint16)
    sink = np.zeros(problem.heads, np.float32) if problem.sink else None
    return AttentionInputs.of(problem, q, kv, kv, sink=sink)
