"""Entry point of the emulator: parses PTX text and launches its kernels."""

from __future__ import annotations

import functools
import hashlib
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.batch.special_registers import LaunchShape
from evoengine.emulator.batch.state import AsyncSettings, BatchChecks
from evoengine.emulator.batch.traffic import Traffic
from evoengine.emulator.checks.global_writes import GlobalWrites
from evoengine.emulator.checks.lane_order import LaneOrder
from evoengine.emulator.checks.publication import PublicationCheck
from evoengine.emulator.checks.race_detector import RaceDetector
from evoengine.emulator.checks.race_observer import GRANULE, RaceObserver
from evoengine.emulator.checks.race_prefilter import PossibleRace, RacePrefilter
from evoengine.emulator.counters.counting_batch import CountingBatch, site_counts
from evoengine.emulator.counters.instruction_counters import InstructionCounter
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.execution.cta_order import CtaOrder
from evoengine.emulator.execution.executor import Executor, run_all
from evoengine.emulator.faults import EmulatorError
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.param_block import HostArrays, bad_launch, pack_arguments
from evoengine.emulator.ptx.dependency_analysis import Structure
from evoengine.emulator.ptx.parser import parse
from evoengine.emulator.ptx.pipes import BlockCounts, Pipe
from evoengine.emulator.translate.program import Program

Dims = int | np.integer[Any] | Sequence[int]
Asynchrony = Literal["early", "late"]
"""When bulk copies execute and operands of ``wgmma`` become free: as early as a GPU may do it, at the issue and at the
wait; or as late, when no thread can run before it."""
MAX_SMEM_BYTES: Final = 227 * 1024
MAX_THREADS: Final = 1024
_MAX_BLOCK: Final = (1024, 1024, 64)
_MAX_GRID: Final = (2**31 - 1, 65535, 65535)
"""Largest sizes per axis. Source: CUDA C++ Programming Guide, "Technical specifications per compute capability"."""
_MAX_CLUSTER: Final = 8
"""Largest cluster, in CTAs, of every GPU that has clusters. Source: the same guide, "Thread Block Clusters"."""
DEFAULT_BATCH_LANES: Final = 16384
DEFAULT_MAX_STEPS: Final = 2_000_000


@functools.lru_cache(maxsize=16)
def _program(ptx: str, entry: str | None, late: bool) -> Program:
    return Program(parse(ptx, entry), late=late)


def _dims(dims: Dims, what: str, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    try:
        values = tuple(operator.index(d) for d in (dims if isinstance(dims, Iterable) else (dims,)))
    except TypeError:
        values = ()
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise bad_launch(f"{what} must be one to three positive whole numbers, not {dims!r}")
    x, y, z = (*values, 1, 1)[:3]
    if any(size > limit for size, limit in zip((x, y, z), limits, strict=True)):
        raise bad_launch(f"{what} of {(x, y, z)}, the limits are {limits}")
    return x, y, z


def _check_launch_bounds(
    limits: Mapping[str, tuple[int, ...]], grid: tuple[int, int, int], block: tuple[int, int, int]
) -> None:
    """Raises :class:`EmulatorError` for sizes that ``.maxntid``, ``.reqntid`` or ``.reqnctapercluster`` rule out."""
    most, exactly = limits.get("maxntid"), limits.get("reqntid")
    if most is not None and math.prod(block) > math.prod(most):
        raise bad_launch(f"{math.prod(block)} threads per block, the launch bounds allow {math.prod(most)}")
    if exactly is not None and (*exactly, 1, 1)[:3] != block:
        raise bad_launch(f"block of {block}, the entry requires {(*exactly, 1, 1)[:3]}")
    cluster = (*limits.get("reqnctapercluster", ()), 1, 1, 1)[:3]
    if math.prod(cluster) > _MAX_CLUSTER or any(size % part for size, part in zip(grid, cluster, strict=True)):
        raise bad_launch(f"grid of {grid}, the entry requires whole clusters of {cluster}, {_MAX_CLUSTER} CTAs at most")


def _checked(memory: GlobalMemory | None, order_seed: object) -> GlobalMemory:
    """Returns the memory of a launch, new if none is given, after a check of types that come from any caller."""
    if not isinstance(memory, GlobalMemory | None):
        raise TypeError(f"memory must be a GlobalMemory or None, not a {type(memory).__name__}")
    if order_seed is not None and (not isinstance(order_seed, int) or order_seed < 0):
        raise TypeError("order_seed must be a whole number of at least 0, or None")
    return GlobalMemory() if memory is None else memory


class Emulator:
    """Executes one PTX entry in NumPy.

    Args:
        ptx: Text of a PTX module.
        entry: Name of the entry. None selects the only entry of the module.
        registers: Registers per thread of the binary, which ``setmaxnreg`` redistributes. None for those that the
            launch bounds in the PTX imply; without any, ``setmaxnreg`` is not checked.

    Raises:
        EmulatorError: The PTX is malformed, or there is no such entry. Unsupported instructions are reported when a
            launch reaches them, or by :meth:`check`.
    """

    def __init__(self, ptx: str, *, entry: str | None = None, registers: int | None = None) -> None:
        self._program = _program(ptx, entry, False)
        self._ptx, self._registers = ptx, registers
        self._module = hashlib.sha256(ptx.encode()).hexdigest()

    @property
    def entry(self) -> str:
        return self._program.entry.name

    @property
    def module(self) -> str:
        """Key of the module's variables in a :class:`GlobalMemory`."""
        return self._module

    @property
    def synchronises(self) -> bool:
        """Whether the order of CTAs, or of the lanes of an atomic, may matter.

        True for entries with atomics or other strong accesses to global memory, by which CTAs synchronise, with sums of
        floating-point numbers by atomics, or with an atomic on shared memory whose old value is used.
        """
        return bool(self._program.cut_points) or self._program.depends_on_turns

    @property
    def is_asynchronous(self) -> bool:
        """Whether results may depend on ``asynchrony`` of :meth:`launch` although no race is found.

        True for entries with bulk copies or mbarriers. The operands of ``wgmma`` count as read until the wait for
        them, so the race check covers every time of execution.
        """
        return self._program.uses_mbarriers

    def check(self) -> None:
        """Translates every block, so that any unsupported instruction is an error now."""
        for block in self._program.flow.blocks:
            self._program.source(block)

    def launch(
        self,
        grid: Dims,
        block: Dims,
        args: Sequence[Any],
        *,
        memory: GlobalMemory | None = None,
        smem_bytes: int = 0,
        max_batch_lanes: int = DEFAULT_BATCH_LANES,
        deadline_s: float | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
        races: bool = False,
        lanes: bool = False,
        counters: bool = False,
        conflicts: bool = False,
        order_seed: int | None = None,
        asynchrony: Asynchrony = "early",
    ) -> LaunchReport:
        """Runs all CTAs of a grid.

        Args:
            grid: CTAs per axis.
            block: Threads per axis.
            args: One value per parameter. For a pointer: a NumPy array, copied to the device and, after the launch,
                back; or a :class:`Buffer` of ``memory``. For a value: a NumPy scalar or 0-d record, a number, or bytes.
            memory: Memory for buffers that outlast the launch; None creates one for this launch.
            smem_bytes: Dynamic shared memory per CTA.
            max_batch_lanes: Approximate number of threads of the CTAs that run together, as at a barrier of the grid.
            deadline_s: Limit on the CPU time of this thread, in seconds.
            max_steps: Limit on the executed blocks of a batch.
            races: Whether to detect races between warps, within a CTA in shared memory and anywhere in global memory.
            lanes: Whether to detect races between lanes of a warp.
            counters: Whether to count bank conflicts, sectors and divergent warps of every instruction.
            conflicts: Whether to count bank conflicts of the whole launch: a cheap part of ``counters``.
            order_seed: Seed of a random order of the CTAs; with one, ``races`` checks only global memory.
            asynchrony: When asynchronous operations execute, "early" or "late"; see :data:`Asynchrony`.

        Raises:
            EmulatorError: A fault of the kernel, or a launch that no GPU would accept.
            EmulatorTimeoutError: The deadline or the step limit is exceeded.
        """
        shape, memory = self._shape(grid, block, smem_bytes), _checked(memory, order_seed)
        arrays = HostArrays(memory)
        params = pack_arguments(self._program.entry.params, arrays.upload(self._program.entry.params, args))
        limits = _Limits(max_batch_lanes, None if deadline_s is None else time.thread_time() + deadline_s, max_steps)
        modes = _Modes(counters, conflicts, races, lanes, order_seed, asynchrony, self._registers)
        report = _Launch(self._variant(asynchrony), shape, params, memory, self._symbols(memory), limits, modes).run()
        arrays.download()
        return report

    def _variant(self, asynchrony: Asynchrony) -> Program:
        return self._program if asynchrony == "early" else _program(self._ptx, self.entry, True)

    def _shape(self, grid: Dims, block: Dims, smem_bytes: int) -> LaunchShape:
        """Shape of a launch; raises :class:`EmulatorError` if no GPU would accept it, or the kernel is invalid."""
        wrong = self._program.pending_access or self._program.ignored_wait
        if wrong is not None:
            raise EmulatorError(wrong)
        threads, ctas = _dims(block, "block", _MAX_BLOCK), _dims(grid, "grid", _MAX_GRID)
        _check_launch_bounds(self._program.entry.limits, ctas, threads)
        shared_bytes = _checked_shared_bytes(threads, self._program.dynamic_start, smem_bytes)
        return LaunchShape(ctas, threads, shared_bytes, smem_bytes, self._program.local_bytes)

    def _symbols(self, memory: GlobalMemory) -> dict[str, int]:
        """Addresses of the module's global and constant variables that the entry uses.

        Unused ones are skipped, because NVRTC declares every ``constexpr`` of the source.
        """
        entry = self._program.entry
        return {
            variable.name: memory.symbol(self._module, variable).address
            for name, variable in entry.variables.items()
            if name in entry.referenced and variable.space in ("global", "const") and variable.data is not None
        }


@dataclass(frozen=True)
class _Modes:
    """Arguments of the same names of :meth:`Emulator.launch`."""

    counters: bool
    conflicts: bool
    races: bool
    lanes: bool
    order_seed: int | None
    asynchrony: Asynchrony
    registers: int | None


@dataclass(frozen=True)
class _Limits:
    """Limits of a launch; see :meth:`Emulator.launch`."""

    batch_lanes: int
    deadline: float | None
    """CPU time of the thread at which the launch is stopped, in seconds."""
    steps: int


@dataclass(frozen=True)
class _Launch:
    """A validated launch. It may run twice, with the race pre-filter and with the race detector."""

    program: Program
    shape: LaunchShape
    params: bytes
    memory: GlobalMemory
    symbols: dict[str, int]
    limits: _Limits
    modes: _Modes

    def run(self) -> LaunchReport:
        """Runs all CTAs with the requested checks.

        The fast race pre-filter is used first. If it suspects a race, or the launch faults, the launch runs again with
        the exact detector.
        """
        with np.errstate(all="ignore"):
            if not self.modes.races or self.modes.order_seed is not None:
                return self._run(None)
            granule, mbarriers = 1 if self.program.stores_bytes else GRANULE, self.program.uses_mbarriers
            strong = self.program.strong_beside_atomics
            detector = functools.partial(RaceDetector, granule=granule, mbarriers=mbarriers, strong=strong)
            if mbarriers:  # outside the model of the pre-filter
                return self._run(detector)
            before = self.memory.contents()
            try:
                return self._run(RacePrefilter)
            except (PossibleRace, EmulatorError):
                self.memory.restore(before)
                return self._run(detector)

    def _run(self, observer: Callable[[int, int, int], RaceObserver] | None) -> LaunchReport:
        """Runs all CTAs, batch by batch, with an optional race observer for each batch."""
        program, shape, limits, modes = self.program, self.shape, self.limits, self.modes
        ctas, lanes = math.prod(shape.grid), (math.prod(shape.block) + 31) // 32 * 32
        step = max(1, limits.batch_lanes // lanes)
        counter = InstructionCounter(conflicts_only=not modes.counters) if modes.counters or modes.conflicts else None
        make: Callable[..., Batch] = functools.partial(CountingBatch, counter, program.entry) if counter else Batch
        executed = [0] * len(program.flow.blocks)
        traffic = Traffic()
        cta_work, busiest_warp = np.zeros(ctas, np.int64), 0
        publication = PublicationCheck(program.entry, self.memory, shape.grid, lanes) if modes.races else None
        checks = BatchChecks(observer, publication, self._order_of_lanes(lanes) if modes.lanes else None)
        order = None if modes.order_seed is None else CtaOrder(modes.order_seed, program.cut_points)
        late = modes.asynchrony == "late"
        settings = AsyncSettings(program.uses_async_proxy, program.uses_mbarriers, late, self._registers())
        every = np.arange(ctas) if order is None else order.shuffled(ctas)
        for start in range(0, ctas, step):
            numbers = every[start : start + step]
            batch = make(shape, self.params, numbers, checks, settings, self.memory, self.symbols, traffic)
            batch.reverses_atomics = order is not None
            warp_work = run_all(Executor(program, batch, executed, limits.deadline, limits.steps, order), cta_work)
            busiest_warp = max(busiest_warp, warp_work)
        return _report(program, executed, traffic, cta_work, ctas * lanes // 32, busiest_warp, counter)

    def _order_of_lanes(self, threads: int) -> Callable[[int, int, int], LaneOrder]:
        """Returns the factory that creates the check of the order between lanes for each batch."""
        granule, writes = self.program.smallest_access, GlobalWrites(self.memory, threads)
        return functools.partial(LaneOrder, strong=self.program.strong, granule=granule, writes=writes)

    def _registers(self) -> int | None:
        """Registers per thread at the launch, if the entry has ``setmaxnreg`` and they are known."""
        if not self.program.sets_registers:
            return None
        return self.modes.registers or self.program.entry_registers


def _checked_shared_bytes(block: tuple[int, int, int], static_bytes: int, dynamic_bytes: int) -> int:
    """Bytes of shared memory per CTA; raises :class:`EmulatorError` for a launch that no GPU would accept."""
    if not isinstance(dynamic_bytes, int | np.integer):
        raise bad_launch(f"smem_bytes must be a whole number, not {dynamic_bytes!r}")
    threads, total = math.prod(block), static_bytes + dynamic_bytes
    if threads > MAX_THREADS:
        raise bad_launch(f"{threads} threads per block, the limit is {MAX_THREADS}")
    if dynamic_bytes < 0 or total > MAX_SMEM_BYTES:
        raise bad_launch(f"{total} bytes of shared memory per block, the limit is {MAX_SMEM_BYTES}")
    return total


_NO_STRUCTURE: Final = Structure()


@dataclass
class _Totals:
    """Counts of a launch: those of its blocks, times their executions. See :class:`LaunchReport`."""

    instructions: int = 0
    pipes: Counter[Pipe] = field(default_factory=Counter)
    barriers: int = 0
    tensor_flops: int = 0
    wgmma_flops: int = 0
    code: int = 0
    structure: Structure = _NO_STRUCTURE
    merging: list[int] = field(default_factory=list)
    """Executions of each block that belongs to a merge."""
    lines: Counter[int] = field(default_factory=Counter)

    def add(self, counts: BlockCounts, structure: Structure, times: int) -> None:
        """Adds a block that warps executed ``times`` times."""
        self.instructions += counts.size * times
        self.code += counts.size - counts.pipes.get(Pipe.MOVE, 0)
        self.barriers += counts.barriers * times
        for pipe, number in counts.pipes.items():
            self.pipes[pipe] += number * times
        self.tensor_flops += counts.tensor_flops * times
        self.wgmma_flops += counts.wgmma_flops * times
        if structure != _NO_STRUCTURE:
            self.structure = self.structure.plus(structure, times)
        self.merging += [times] * structure.merging
        for line, number in counts.lines.items():
            self.lines[line] += number * times


def _falls(work: npt.NDArray[np.int64]) -> bool:
    """Whether numbers fall, and never rise."""
    return bool(work[-1] < work[0] and np.all(np.diff(work) <= 0))


def _report(
    program: Program,
    executed: list[int],
    traffic: Traffic,
    cta_work: npt.NDArray[np.int64],
    warps: int,
    busiest_warp: int,
    counter: InstructionCounter | None,
) -> LaunchReport:
    totals = _Totals()
    for counts, structure, times in zip(program.counts, program.structures, executed, strict=True):
        if times:
            totals.add(counts, structure, times)
    ctas, work = len(cta_work), int(cta_work.sum())
    return LaunchReport(
        ctas=ctas,
        warps=warps,
        warp_instructions=totals.instructions,
        pipes=dict(totals.pipes),
        barriers=totals.barriers,
        global_read_bytes=traffic.global_read_bytes,
        global_written_bytes=traffic.global_written_bytes,
        cp_async_bytes=traffic.cp_async_bytes,
        shared_read_bytes=traffic.shared_read_bytes,
        shared_written_bytes=traffic.shared_written_bytes,
        local_bytes=traffic.local_bytes,
        tensor_flops=totals.tensor_flops,
        wgmma_flops=totals.wgmma_flops,
        code=totals.code,
        merging_warps=min(totals.merging, default=0) if totals.structure.merge_waits else 0,
        conflicts=counter.conflicts if counter else 1.0,
        structure=totals.structure,
        busiest_cta=float(cta_work.max()) * ctas / work if work else 1.0,
        busiest_warp=busiest_warp * warps / work if work else 1.0,
        longest_first=totals.tensor_flops > 0 and _falls(cta_work),
        instructions_by_line=dict(totals.lines),
        sites=site_counts(program, executed, counter) if counter and not counter.conflicts_only else (),
    )
