"""The public door: PTX text in, launches out."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from evoengine.emulator import wmma
from evoengine.emulator.batch import Batch
from evoengine.emulator.executor import Executor
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind
from evoengine.emulator.memory import Buffer, GlobalMemory
from evoengine.emulator.numerics import Array
from evoengine.emulator.parser import parse
from evoengine.emulator.ptx import Param
from evoengine.emulator.report import LaunchReport, Pipe, Traffic
from evoengine.emulator.translate.program import Program

Dims = int | Sequence[int]
MAX_SMEM_BYTES: Final = 227 * 1024
MAX_THREADS: Final = 1024
DEFAULT_BATCH_LANES: Final = 16384
DEFAULT_MAX_STEPS: Final = 2_000_000


@functools.lru_cache(maxsize=16)
def _program(ptx: str, entry: str | None) -> Program:
    return Program(parse(ptx, entry))


def _refuse(detail: str) -> EmulatorError:
    return EmulatorError(Fault(FaultKind.BAD_LAUNCH, detail))


def _dims(dims: Dims, what: str) -> tuple[int, int, int]:
    values = (dims,) if isinstance(dims, int) else tuple(int(d) for d in dims)
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise _refuse(f"{what} must be one to three positive sizes, not {dims}")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


class Emulator:
    """Executes one PTX entry in NumPy.

    Args:
        ptx: A module's text.
        entry: The entry's name; may be None where the module has exactly one.

    Raises:
        EmulatorError: malformed PTX or no such entry. Unsupported instructions are reported when a launch reaches
        them, or
            by :meth:`check`.
    """

    def __init__(self, ptx: str, *, entry: str | None = None) -> None:
        self._program = _program(ptx, entry)
        self._module = hashlib.sha256(ptx.encode()).hexdigest()

    @property
    def entry(self) -> str:
        """Name of the entry."""
        return self._program.entry.name

    def check(self) -> None:
        """Translates every block, so that an unsupported instruction anywhere is an error now."""
        for block in self._program.flow.blocks:
            self._program.source(block, False)

    def launch(
        self,
        grid: Dims,
        block: Dims,
        args: Sequence[Any],
        *,
        memory: GlobalMemory,
        smem_bytes: int = 0,
        max_batch_lanes: int = DEFAULT_BATCH_LANES,
        deadline_s: float | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
        races: bool = False,
    ) -> LaunchReport:
        """Runs all CTAs of a grid.

        Args:
            grid: CTAs per axis.
            block: Threads per axis.
            args: One value per parameter: NumPy scalars or structured records, Python integers (addresses and integers
                of the parameter's size), floats, :class:`Buffer` or bytes.
            memory: Where the buffers live.
            smem_bytes: Dynamic shared memory per CTA.
            max_batch_lanes: Lanes that run together; CTAs are taken in batches of about this many threads.
            deadline_s: CPU seconds of this thread after which the launch is given up; a busy machine does not matter.
            max_steps: Block executions after which a batch is given up.
            races: Also look for races between warps in shared memory; takes a few times longer.

        Raises:
            EmulatorError: a fault of the kernel, or a launch that no GPU would accept.
            EmulatorTimeoutError: past the deadline or the step limit.
        """
        program = self._program
        grid3, block3 = _dims(grid, "grid"), _dims(block, "block")
        shared_bytes = _checked_shared_bytes(block3, program.dynamic_start, smem_bytes)
        params = pack_arguments(program.entry.params, args)
        symbols = self._place_symbols(memory)
        ctas, threads = math.prod(grid3), math.prod(block3)
        lanes = (threads + 31) // 32 * 32
        step = max(1, max_batch_lanes // lanes)
        executed = [0] * len(program.flow.blocks)
        traffic = Traffic()
        busiest = 0
        deadline = None if deadline_s is None else time.thread_time() + deadline_s
        with np.errstate(all="ignore"):
            for start in range(0, ctas, step):
                numbers = np.arange(start, min(ctas, start + step))
                sizes = (shared_bytes, smem_bytes, program.local_bytes)
                batch = Batch(grid3, block3, numbers, *sizes, params, memory, symbols, traffic, races)
                executor = Executor(program, batch, executed, deadline, max_steps)
                executor.run()
                busiest = max(busiest, int(executor.cta_work.max()))
        return _report(program, executed, traffic, ctas, ctas * lanes // 32, busiest)

    def _place_symbols(self, memory: GlobalMemory) -> dict[str, int]:
        """Addresses of the module's global and constant variables."""
        return {
            variable.name: memory.symbol(self._module, variable).address
            for variable in self._program.entry.variables.values()
            if variable.space in ("global", "const") and variable.data is not None
        }


def _checked_shared_bytes(block: tuple[int, int, int], static_bytes: int, dynamic_bytes: int) -> int:
    """Shared memory per CTA of a launch that a GPU would accept."""
    threads, total = math.prod(block), static_bytes + dynamic_bytes
    if threads > MAX_THREADS:
        raise _refuse(f"{threads} threads per block, the limit is {MAX_THREADS}")
    if dynamic_bytes < 0 or total > MAX_SMEM_BYTES:
        raise _refuse(f"{total} bytes of shared memory per block, the limit is {MAX_SMEM_BYTES}")
    return total


def _report(
    program: Program, executed: list[int], traffic: Traffic, ctas: int, warps: int, busiest: int
) -> LaunchReport:
    pipes: Counter[Pipe] = Counter()
    lines: Counter[int] = Counter()
    total = barriers = flops = 0
    for block, counts, times in zip(program.flow.blocks, program.counts, executed, strict=True):
        if not times:
            continue
        total += counts.size * times
        barriers += counts.barriers * times
        for pipe, number in counts.pipes.items():
            pipes[pipe] += number * times
        for ins in program.entry.instructions[block.start : block.end]:
            lines[ins.source[1] if ins.source else 0] += times
            if ins.name == "mma":
                flops += times * (4096 if "m16n8k16" in ins.parts else 2048)
            elif ins.parts[:2] == ("wmma", "mma"):
                flops += times * wmma.FLOPS
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
        busiest_cta=busiest * ctas / total if total else 1.0,
        instructions_by_line=dict(lines),
    )


def _argument_bytes(value: Any, param: Param) -> bytes:
    if isinstance(value, Buffer):
        value = value.address
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, bool | int):
        return (int(value) & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
    if isinstance(value, float):
        return np.array(value, np.float64 if param.size == 8 else np.float32).tobytes()
    if isinstance(value, np.generic | np.ndarray):
        raw: Array = np.asarray(value)
        return raw.tobytes()
    raise _refuse(f"argument {param.name}: cannot pass a {type(value).__name__}")


def pack_arguments(params: Sequence[Param], args: Sequence[Any]) -> bytes:
    """The parameter block of a launch.

    Raises:
        EmulatorError: the number of arguments or the size of one does not match the entry.
    """
    if len(params) != len(args):
        raise _refuse(f"{len(args)} arguments for {len(params)} parameters")
    block = bytearray(max((p.offset + p.size for p in params), default=0))
    for param, value in zip(params, args, strict=True):
        raw = _argument_bytes(value, param)
        if len(raw) != param.size:
            raise _refuse(f"argument {param.name}: {len(raw)} bytes given, {param.size} expected")
        block[param.offset : param.offset + param.size] = raw
    return bytes(block)
