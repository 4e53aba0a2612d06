"""Calls of a kernel on the emulator, with every memory access checked and some calls repeated in other ways.

A repetition must give the same bits: in other orders of the CTAs, with late instead of early asynchronous operations,
or with the rows of the tensors so far apart that offsets need more than 32 bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evoengine.costmodel.emulation.far_strides import LARGEST_TILE, MANY_ROWS, can_spread, shown_heads, spread_tensors
from evoengine.costmodel.emulation.fault_source_lines import with_lines
from evoengine.costmodel.emulation.limits import CONFLICT_COUNT_FLOPS, launch_limit_s
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.emulator import Asynchrony, Emulator
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.memory.far_memory import FarMemory
from evoengine.emulator.memory.global_memory import Symbols
from evoengine.emulator.memory.tensor_map import TensorMap
from evoengine.emulator.memory.uniform_memory import UniformMemory
from evoengine.errors import LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.call_memory import Role, call_output, call_params, call_regions
from evoengine.kernel.records import Kernel, LaunchPlan
from evoengine.kernel.tensor_maps import TensorMapGeometry, encode_maps

CTA_ORDERS: Final = 1
"""Default number of random orders of the CTAs in which a checked call is repeated if CTAs synchronise."""

LATE_GROWTH: Final = 4
"""Ratio of FLOPs from one checked call that also runs with late asynchronous operations to the next such call."""

_Contents = Mapping[str, NDArray[np.uint8]]
"""Bytes of each region of a call by its name."""


@dataclass(frozen=True)
class CheckOptions:
    """Checks and counters of the calls of a kernel."""

    race_check_flops: int
    """Largest problem that is checked for races."""
    cta_orders: int = CTA_ORDERS
    """Random orders of the CTAs in which calls that are checked for races are repeated, if CTAs synchronise."""
    thorough: bool = False
    """Whether every call that is checked for races, instead of only the first, is launched as on a GPU of few SMs with
    a check of the order between lanes."""
    counters: bool = False
    """Whether to count per instruction."""
    orders_only: bool = False
    """Whether calls are repeated in random orders of the CTAs alone, because another process makes the other checks."""


@dataclass(frozen=True)
class CheckedCall:
    """Results of a call that passed its checks."""

    output: AttentionOutput
    reports: tuple[LaunchReport, ...] | None
    """Counters of each launch; None for a call that was launched as on a GPU of few SMs."""


@dataclass(frozen=True)
class _Mode:
    """How a call is executed; all but ``far`` are arguments of the same names of :meth:`Emulator.launch`."""

    races: bool = False
    lanes: bool = False
    order_seed: int | None = None
    asynchrony: Asynchrony = "early"
    far: bool = False
    """Whether rows are so far apart that offsets need more than 32 bits."""


@dataclass(frozen=True)
class _Execution:
    """Results of one execution of a call."""

    after: _Contents
    reports: tuple[LaunchReport, ...]
    symbols: Symbols


class CheckedCalls:
    """Executes the calls of one kernel and checks them; created by :meth:`of`.

    Buffers are separated by unmapped gaps, so that any access outside a buffer is an error at its instruction; so is a
    read of uninitialised workspace. Module variables persist between calls, as on a GPU, and must have their old
    contents after a call: a kernel that counts its calls could fail at any later one.

    Small problems are checked for races. The first checked call is launched as on a GPU of few SMs, so that the CTAs of
    a persistent grid take several pieces of work, and with a check of the order between lanes of a warp; with
    :attr:`CheckOptions.thorough` this holds for all checked calls. Checked calls are repeated in other ways, which must
    give the same bits: kernels whose CTAs synchronise in random orders of the CTAs, some calls with late instead of
    early asynchronous operations, and up to three, four of a thorough check, with the order between lanes checked, with
    rows so far apart that offsets need more than 32 bits. None of this is repeated if the same inputs are passed twice
    in a row.
    """

    def __init__(self, kernel: Kernel, options: CheckOptions) -> None:
        self._kernel = kernel
        self._options = options
        self._launch = self._current = kernel.source.launch
        binary = kernel.binary
        self._emulators = {
            entry: Emulator(binary.ptx, entry=entry, registers=binary.needs(entry).registers)
            for entry in self._launch.entries
        }
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
        """Entries that the latest execution of a call has launched, in order."""

    @classmethod
    def of(cls, kernel: Kernel, options: CheckOptions) -> CheckedCalls:
        """Parses the PTX of a kernel.

        Raises:
            LaunchError: The PTX has no kernel, or an instruction that the emulator does not support.
        """
        try:
            return cls(kernel, options)
        except EmulatorError as error:
            raise with_lines(error, kernel, lambda lined: cls(lined, options)) from None

    @property
    def synchronises(self) -> bool:
        """Whether CTAs synchronise, so that their order may matter."""
        return any(emulator.synchronises for emulator in self._emulators.values())

    def run(
        self, inputs: AttentionInputs, before: AttentionOutput | None = None, *, counting: bool = False
    ) -> CheckedCall:
        """Runs all CTAs of all launches of a call; a fault has its source line even if the binary has no lines.

        Args:
            inputs: Inputs of the call.
            before: Results of the same shape that the outputs hold before the call, instead of poison.
            counting: Whether only the counters of the target's own launch matter; then fewer checks are made.

        Raises:
            LaunchError: The kernel faulted, changed an input, a gap of an output, a counter or a module variable, or
                a repetition gave other bits.
            CandidateTimeoutError: A launch exceeded its limit on CPU time.
        """
        try:
            return self._run(inputs, before, counting=counting)
        except EmulatorError as error:
            again = partial(self._run_lined, inputs, before, counting=counting)
            raise with_lines(error, self._kernel, again) from None

    def _run_lined(
        self, inputs: AttentionInputs, before: AttentionOutput | None, kernel: Kernel, *, counting: bool
    ) -> CheckedCall:
        """Runs a call of another binary of the same source, with the state of this one."""
        return self._twin(kernel).run(inputs, before, counting=counting)

    def _twin(self, kernel: Kernel) -> CheckedCalls:
        """Loads another binary of the same source, with the module state of this one."""
        twin = CheckedCalls(kernel, self._options)
        module = next(iter(twin._emulators.values())).module
        twin._symbols = {(module, name): contents for (_, name), contents in self._symbols.items()}
        twin._latest, twin._current = self._latest, self._current
        twin._checked, twin._spread_heads, twin._spread_rows = self._checked, self._spread_heads, self._spread_rows
        return twin

    def _run(self, inputs: AttentionInputs, before: AttentionOutput | None, *, counting: bool) -> CheckedCall:
        problem, repeated = inputs.problem, inputs is self._latest
        races = problem.flops <= self._options.race_check_flops and not repeated
        others = not self._options.orders_only
        first = races and not counting and not self._checked
        close = first or (races and not counting and self._options.thorough)
        far = races and not counting and others and self._is_due(inputs)
        if not repeated:
            self._current = (self._launch.on_few_sms if close else None) or self._launch
        call = self._execute(inputs, _Mode(races=races, lanes=close and others), before)
        if races and not counting and self.synchronises:
            self._check_orders(inputs, call.after)
        if races and others and any(emulator.is_asynchronous for emulator in self._emulators.values()):
            self._check_late(inputs, call.after)
        if far:
            mode = _Mode(lanes=True, far=True)
            self._repeat(inputs, mode, call.after, "the strides", "offsets beyond 32 bits", before)
            self._spread_heads = max(self._spread_heads, shown_heads(inputs))
            self._spread_rows = max(self._spread_rows, problem.seq_q)
        self._checked = self._checked or first
        self._latest = inputs
        self._symbols = call.symbols
        return CheckedCall(call_output(inputs, call.after), call.reports if self._current is self._launch else None)

    def _is_due(self, inputs: AttentionInputs) -> bool:
        """Whether to repeat a call with large strides.

        True for the first call in which any wrong offset shows, the first such call with several heads per K/V head,
        and the first with more than :data:`MANY_ROWS` query rows; of a thorough check also the first with more than
        :data:`LARGEST_TILE`.
        """
        if not can_spread(inputs):
            return False
        limits = (MANY_ROWS, LARGEST_TILE) if self._options.thorough else (MANY_ROWS,)
        several_tiles = any(self._spread_rows <= rows < inputs.problem.seq_q for rows in limits)
        return several_tiles or self._spread_heads < shown_heads(inputs)

    def _check_orders(self, inputs: AttentionInputs, expected: _Contents) -> None:
        """Repeats a call in random orders of the CTAs; they follow from the kernel's source and the problem."""
        for number in range(self._options.cta_orders):
            text = f"{self._kernel.source.source_hash}/{inputs.problem}/{number}"
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
            cause = "the order of the CTAs, or of the lanes of an atomic"
            self._repeat(inputs, _Mode(races=True, order_seed=seed), expected, cause, f"CTA order {seed}")

    def _check_late(self, inputs: AttentionInputs, expected: _Contents) -> None:
        """Repeats a call with late asynchronous operations, if no call of similar size has run so."""
        if inputs.problem.flops < LATE_GROWTH * self._late_flops:
            return
        self._late_flops = inputs.problem.flops
        mode = _Mode(races=True, lanes=self._options.thorough, asynchrony="late")
        self._repeat(inputs, mode, expected, "the time of asynchronous operations", "late asynchronous operations")

    def _repeat(
        self,
        inputs: AttentionInputs,
        mode: _Mode,
        expected: _Contents,
        cause: str,
        run: str,
        before: AttentionOutput | None = None,
    ) -> None:
        """Repeats a call in another way, which must give the same bits.

        Args:
            inputs: Inputs of the call.
            mode: Other way.
            expected: Bytes of each region after the call in the usual way.
            cause: What the outputs would depend on, for the message.
            run: Name of the repetition, for the message.
            before: As in :meth:`run`.

        Raises:
            LaunchError: The kernel faults, or its outputs have other bits.
        """
        try:
            after = self._execute(inputs, mode, before).after
        except EmulatorError as error:
            if mode.far and error.kind is FaultKind.DATA_RACE:  # between lanes: the strides are not its cause
                raise
            raise EmulatorError(replace(error.fault, detail=f"{error.fault.detail} ({run})")) from None
        for name in ("o", "lse"):
            if name in after and not np.array_equal(after[name], expected[name]):
                first = int((after[name] != expected[name]).argmax())
                detail = f"{name.upper()} depends on {cause}, first at byte {first} ({run})"
                raise EmulatorError(Fault(FaultKind.ORDER_DEPENDENT, detail))

    def _execute(self, inputs: AttentionInputs, mode: _Mode, before: AttentionOutput | None) -> _Execution:
        """Runs all launches of a call on fresh buffers, with the module variables that the last call left."""
        problem = inputs.problem
        memory = FarMemory(self._symbols) if mode.far else UniformMemory(self._symbols)
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
        conflicts = problem.flops > CONFLICT_COUNT_FLOPS
        self.launched = ()
        reports = []
        for step, count in zip(steps, threads, strict=True):
            deadline_s = launch_limit_s(problem, count, lanes=mode.lanes)
            reports.append(self._execute_step(step, args, memory, mode, deadline_s, conflicts=conflicts))
        after = {name: memory.read(buffer, np.uint8) for name, buffer in buffers.items()}
        for region in regions:
            region.check(after[region.name])
        if memory.changed_symbols:
            raise LaunchError(
                f"the kernel changed its module variable {memory.changed_symbols[0]}: a later call would depend on "
                "this one, use counters or a workspace"
            )
        return _Execution(after, tuple(reports), memory.symbols())

    def _execute_step(
        self,
        step: LaunchPlan,
        args: tuple[np.ndarray, ...],
        memory: UniformMemory,
        mode: _Mode,
        deadline_s: float,
        *,
        conflicts: bool,
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
            counters=self._options.counters,
            conflicts=conflicts,
            order_seed=mode.order_seed,
            asynchrony=mode.asynchrony,
        )
        self.launched += (emulator.entry,)
        return report


def _encode_map(geometry: TensorMapGeometry) -> bytes:
    address, sizes, strides, box = geometry.address, geometry.sizes, geometry.strides_bytes, geometry.box
    return TensorMap(address, sizes, strides, box, geometry.element.bytes, geometry.swizzle_bytes).encode()
