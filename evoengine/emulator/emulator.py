"""Entry point of the emulator: parses PTX text and launches its kernels."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evoengine.emulator.checks.faults import EmulatorError
from evoengine.emulator.checks.publication import PublicationCheck
from evoengine.emulator.checks.race_detector import RaceDetector
from evoengine.emulator.checks.race_prefilter import PossibleRace, RacePrefilter
from evoengine.emulator.counters.counting_batch import CountingBatch, site_counts
from evoengine.emulator.counters.instruction_counters import InstructionCounter
from evoengine.emulator.counters.report import LaunchReport, Pipe, Structure, Traffic
from evoengine.emulator.execution.batch import Batch
from evoengine.emulator.execution.cta_order import CtaOrder
from evoengine.emulator.execution.executor import Executor, run_all
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.param_block import HostArrays, bad_launch, pack_arguments
from evoengine.emulator.ptx.parser import parse
from evoengine.emulator.translate.program import Program

Dims = int | Sequence[int]
MAX_SMEM_BYTES: Final = 227 * 1024
MAX_THREADS: Final = 1024
DEFAULT_BATCH_LANES: Final = 16384
DEFAULT_MAX_STEPS: Final = 2_000_000


@functools.lru_cache(maxsize=16)
def _program(ptx: str, entry: str | None) -> Program:
    return Program(parse(ptx, entry))


def _dims(dims: Dims, what: str) -> tuple[int, int, int]:
    values = (dims,) if isinstance(dims, int) else tuple(int(d) for d in dims)
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise bad_launch(f"{what} must be one to three positive sizes, not {dims}")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


class Emulator:
    """Executes one PTX entry in NumPy.

    Args:
        ptx: Text of a PTX module.
        entry: Name of the entry. None selects the only entry of the module.

    Raises:
        EmulatorError: The PTX is malformed, or there is no such entry. Unsupported instructions are reported when a
            launch reaches them, or by :meth:`check`.
    """

    def __init__(self, ptx: str, *, entry: str | None = None) -> None:
        self._program = _program(ptx, entry)
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
        """Whether CTAs may synchronise: the entry has atomics on global memory, so the order of CTAs may matter."""
        return bool(self._program.cut_points)

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
        counters: bool = False,
        conflicts: bool = False,
        order_seed: int | None = None,
    ) -> LaunchReport:
        """Runs all CTAs of a grid.

        Args:
            grid: CTAs per axis.
            block: Threads per axis.
            args: One value per parameter. For a pointer: a NumPy array, which is copied to the device before the launch
                and back after it; or a :class:`Buffer` of ``memory``. For a value: a NumPy scalar or 0-d record, a
                Python integer or float (of the parameter's size), or bytes.
            memory: Memory for buffers that outlast the launch; None creates one for this launch.
            smem_bytes: Dynamic shared memory per CTA.
            max_batch_lanes: Approximate number of threads in a batch of CTAs, which run together.
            deadline_s: Limit on the CPU time of this thread, in seconds; independent of other load on the machine.
            max_steps: Limit on the executed blocks of a batch.
            races: Whether to detect races between warps in shared memory, and between CTAs in global memory.
            counters: Whether to count bank conflicts, sectors and divergent warps of every instruction.
            conflicts: Whether to count bank conflicts of the launch as a whole; included in ``counters``, but cheaper.
            order_seed: Seed of a random order of the CTAs; None for the order of their numbers. With a seed, ``races``
                checks only global memory, because races in shared memory do not depend on the order.

        Raises:
            EmulatorError: A fault of the kernel, or a launch that no GPU would accept.
            EmulatorTimeoutError: The deadline or the step limit is exceeded.
        """
        program, block3 = self._program, _dims(block, "block")
        shared_bytes = _checked_shared_bytes(block3, program.dynamic_start, smem_bytes)
        memory = GlobalMemory() if memory is None else memory
        arrays = HostArrays(memory)
        launch = _Launch(
            program=program,
            grid=_dims(grid, "grid"),
            block=block3,
            sizes=(shared_bytes, smem_bytes, program.local_bytes),
            params=pack_arguments(program.entry.params, arrays.upload(program.entry.params, args)),
            memory=memory,
            symbols=self._place_symbols(memory),
            max_batch_lanes=max_batch_lanes,
            deadline=None if deadline_s is None else time.thread_time() + deadline_s,
            max_steps=max_steps,
            modes=_Modes(counters, conflicts, races, order_seed),
        )
        report = launch.run()
        arrays.download()
        return report

    def _place_symbols(self, memory: GlobalMemory) -> dict[str, int]:
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
    order_seed: int | None


@dataclass(frozen=True)
class _Launch:
    """A validated launch."""

    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    sizes: tuple[int, int, int]
    """Bytes of shared memory per CTA, of its dynamic part, and of local memory per thread."""
    params: bytes
    memory: GlobalMemory
    symbols: dict[str, int]
    max_batch_lanes: int
    deadline: float | None
    max_steps: int
    modes: _Modes

    def run(self) -> LaunchReport:
        """Runs all CTAs with the requested checks.

        The fast race pre-filter is used first. If it suspects a race, or the launch faults, the launch runs again with
        the exact detector.
        """
        with np.errstate(all="ignore"):
            if not self.modes.races or self.modes.order_seed is not None:
                return self._run(None)
            before = self.memory.contents()
            try:
                return self._run(RacePrefilter)
            except (PossibleRace, EmulatorError):
                self.memory.restore(before)
                return self._run(RaceDetector)

    def _run(self, observer: type[RacePrefilter | RaceDetector] | None) -> LaunchReport:
        """Runs all CTAs, batch by batch, with an optional race observer for each batch."""
        modes, program, ctas = self.modes, self.program, math.prod(self.grid)
        lanes = (math.prod(self.block) + 31) // 32 * 32
        step = max(1, self.max_batch_lanes // lanes)
        counter = InstructionCounter(conflicts_only=not modes.counters) if modes.counters or modes.conflicts else None
        make: Callable[..., Batch] = functools.partial(CountingBatch, counter, program.entry) if counter else Batch
        executed = [0] * len(program.flow.blocks)
        traffic = Traffic()
        busiest_cta = busiest_warp = 0
        publication = PublicationCheck(program.entry, self.memory, self.grid, lanes) if modes.races else None
        order = None if modes.order_seed is None else CtaOrder(modes.order_seed, program.cut_points)
        every = np.arange(ctas) if order is None else order.shuffled(ctas)
        for start in range(0, ctas, step):
            numbers = every[start : start + step]
            data = (self.params, self.memory, self.symbols)
            batch = make(self.grid, self.block, numbers, *self.sizes, *data, traffic, observer, publication)
            cta, warp = run_all(Executor(program, batch, executed, self.deadline, self.max_steps, order))
            busiest_cta, busiest_warp = max(busiest_cta, cta), max(busiest_warp, warp)
        return _report(program, executed, traffic, ctas, ctas * lanes // 32, (busiest_cta, busiest_warp), counter)


def _checked_shared_bytes(block: tuple[int, int, int], static_bytes: int, dynamic_bytes: int) -> int:
    """Bytes of shared memory per CTA; raises :class:`EmulatorError` for a launch that no GPU would accept."""
    threads, total = math.prod(block), static_bytes + dynamic_bytes
    if threads > MAX_THREADS:
        raise bad_launch(f"{threads} threads per block, the limit is {MAX_THREADS}")
    if dynamic_bytes < 0 or total > MAX_SMEM_BYTES:
        raise bad_launch(f"{total} bytes of shared memory per block, the limit is {MAX_SMEM_BYTES}")
    return total


def _report(
    program: Program,
    executed: list[int],
    traffic: Traffic,
    ctas: int,
    warps: int,
    busiest: tuple[int, int],
    counter: InstructionCounter | None,
) -> LaunchReport:
    pipes: Counter[Pipe] = Counter()
    lines: Counter[int] = Counter()
    total = barriers = flops = wgmma = code = 0
    structure = nothing = Structure()
    merging: list[int] = []
    for counts, own, times in zip(program.counts, program.structures, executed, strict=True):
        if not times:
            continue
        total += counts.size * times
        code += counts.size - counts.pipes.get(Pipe.MOVE, 0)
        barriers += counts.barriers * times
        for pipe, number in counts.pipes.items():
            pipes[pipe] += number * times
        flops += counts.tensor_flops * times
        wgmma += counts.wgmma_flops * times
        if own != nothing:
            structure = structure.plus(own, times)
        merging += [times] * own.merging
        for line, number in counts.lines.items():
            lines[line] += number * times
    return LaunchReport(
        ctas=ctas,
        warps=warps,
        warp_instructions=total,
        pipes=dict(pipes),
        barriers=barriers,
        global_read_bytes=traffic.global_read_bytes,
        global_written_bytes=traffic.global_written_bytes,
        cp_async_bytes=traffic.cp_async_bytes,
        shared_read_bytes=traffic.shared_read_bytes,
        shared_written_bytes=traffic.shared_written_bytes,
        local_bytes=traffic.local_bytes,
        tensor_flops=flops,
        wgmma_flops=wgmma,
        code=code,
        merging_warps=min(merging, default=0) if structure.merge_waits else 0,
        conflicts=counter.conflicts if counter else 1.0,
        structure=structure,
        busiest_cta=busiest[0] * ctas / total if total else 1.0,
        busiest_warp=busiest[1] * warps / total if total else 1.0,
        instructions_by_line=dict(lines),
        sites=site_counts(program, executed, counter) if counter and not counter.conflicts_only else (),
    )
