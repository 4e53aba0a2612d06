"""Report of a launch: warp instructions by pipe, bytes by memory, and the classification of instructions by pipe."""

from __future__ import annotations

import enum
import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from evoengine.emulator.ptx.control_flow import Block
from evoengine.emulator.ptx.records import Entry, Instruction


class Pipe(enum.Enum):
    """Execution pipe of an SM."""

    TENSOR = "tensor"
    FMA = "fma"
    """Multiply-adds of f32 and integers."""
    ALU = "alu"
    """Integer, logic, comparisons, selections, min/max, most conversions."""
    FP16 = "fp16"
    FP64 = "fp64"
    MUFU = "mufu"
    """Special functions and float/integer conversions."""
    LSU_SHARED = "lsu_shared"
    """Shared loads and stores, ldmatrix, shuffles."""
    LSU_GLOBAL = "lsu_global"
    """Global, local and constant accesses, cp.async, atomics on global memory."""
    CONTROL = "control"
    """Branches, barriers, votes, fences."""
    MOVE = "move"
    """Register moves and parameter loads, most of which ptxas removes."""


_CONTROL: Final = frozenset(
    (
        "bra",
        "brx",
        "call",
        "ret",
        "exit",
        "bar",
        "barrier",
        "barrier_note",
        "barrier_look",
        "vote",
        "membar",
        "fence",
        "trap",
        "activemask",
        "elect",
        "griddepcontrol",
        "nanosleep",
        "match",
        "setmaxnreg",
    )
)
_MMA_SHAPE: Final = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_MUFU: Final = frozenset(("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"))
_SHARED_OPS: Final = frozenset(("ldmatrix", "stmatrix", "shfl", "movmatrix"))


def pipe_of(ins: Instruction) -> Pipe:
    """Pipe of an instruction, from the throughput tables of the CUDA programming guide."""
    return _pipe(ins.parts)


@functools.cache
def _pipe(parts: tuple[str, ...]) -> Pipe:
    name = parts[0]
    if name == "mma" or parts[:2] in (("wmma", "mma"), ("wgmma", "mma_async")):
        return Pipe.TENSOR
    if name == "wgmma":
        return Pipe.CONTROL
    if name == "wmma":
        return Pipe.LSU_GLOBAL if "global" in parts else Pipe.LSU_SHARED  # NVRTC emits generic ones for bf16
    if name in _MUFU:
        return Pipe.MUFU
    if name in _CONTROL:
        return Pipe.CONTROL
    if parts[:3] == ("cp", "async", "bulk") or parts[:2] == ("cp", "reduce"):
        return Pipe.CONTROL  # one thread issues it; no warp instruction moves the data
    if name in _SHARED_OPS or name == "mbarrier" or parts[:3] == ("cp", "async", "mbarrier"):
        return Pipe.LSU_SHARED
    if name in ("ld", "st", "atom", "red", "cp", "prefetch", "ldu"):
        if "param" in parts:
            return Pipe.MOVE
        if name == "cp" and parts[-1] in ("commit_group", "wait_group", "wait_all"):
            return Pipe.CONTROL
        shared = ("shared" in parts or "shared::cta" in parts) and name != "cp"
        return Pipe.LSU_SHARED if shared else Pipe.LSU_GLOBAL
    if name in ("mov", "cvta"):
        return Pipe.MOVE
    return _arithmetic_pipe(name, parts)


def _arithmetic_pipe(name: str, parts: tuple[str, ...]) -> Pipe:
    kind = parts[-1]
    if kind == "f64":
        return Pipe.FP64
    if name == "cvt":
        integral = sum(part[0] in "su" and part[1:].isdigit() for part in parts[-2:])
        return Pipe.MUFU if integral == 1 else Pipe.ALU
    if name in ("add", "sub", "mul", "fma", "mad", "div", "neg", "abs"):
        if kind in ("f16", "f16x2", "bf16", "bf16x2"):
            return Pipe.FP16
        if kind == "f32" or name in ("mul", "mad"):
            return Pipe.FMA
    return Pipe.ALU


@functools.cache
def mma_flops(parts: tuple[str, ...]) -> int:
    """Operations per warp of one ``mma``, ``wmma.mma`` or ``wgmma.mma_async``; 0 for other instructions.

    A multiply-add counts as two operations.
    """
    if parts[0] != "mma" and parts[:2] not in (("wmma", "mma"), ("wgmma", "mma_async")):
        return 0
    shape = next((found for found in map(_MMA_SHAPE.match, parts) if found), None)
    warps = 4 if parts[0] == "wgmma" else 1
    return 2 * math.prod(int(size) for size in shape.groups()) // warps if shape else 0


@dataclass(frozen=True)
class BlockCounts:
    """Counts of one execution of a basic block by one warp."""

    pipes: Mapping[Pipe, int]
    size: int
    barriers: int
    tensor_flops: int
    wgmma_flops: int
    lines: Mapping[int, int]
    """Instructions by source line (0: unknown)."""


def count_block(entry: Entry, block: Block) -> BlockCounts:
    """Counts the instructions of a block."""
    instructions = entry.instructions[block.start : block.end]
    pipes: Counter[Pipe] = Counter()
    barriers = flops = wgmma = 0
    for parts, times in Counter([ins.parts for ins in instructions]).items():
        pipes[_pipe(parts)] += times
        barriers += times * (parts[0] in ("bar", "barrier") and parts[1] != "warp")
        flops += times * mma_flops(parts)
        wgmma += times * mma_flops(parts) * (parts[0] == "wgmma")
    lines = Counter([ins.source[1] if ins.source else 0 for ins in instructions])
    return BlockCounts(pipes, len(instructions), barriers, flops, wgmma, lines)


@dataclass(frozen=True)
class Structure:
    """Dependency structure of a kernel: which instructions can overlap. Counts per warp of a block, or for a launch.

    *Edges* are the prologue and epilogue of a kernel: the code before and after its main loop of tensor instructions.
    A *merge* is the code in which a CTA combines partial results that other CTAs have written to global memory.
    """

    phases: int = 0
    """Barriers that warps wait at, warp-level ones included; instructions are reordered only between them."""
    lone_mufu: int = 0
    """Special functions that cannot overlap with tensor instructions of the same warp."""
    edge_phases: int = 0
    """Barriers in edges."""
    edge_issued: int = 0
    """Instructions in edges, without moves."""
    edge_requests: int = 0
    """Accesses to global memory in edges."""
    edge_shared_lines: int = 0
    """Wavefronts of shared memory in edges, without bank conflicts."""
    edge_exchanges: int = 0
    """Waits for memory that all CTAs share, in edges: fences and atomics with a result."""
    merging: int = 0
    """Blocks that belong to a merge."""
    merge_waits: int = 0
    """Waits for global memory in a merge."""

    def plus(self, other: Structure, times: float) -> Structure:
        """Sum of this structure and ``times`` executions of another one, rounded to whole numbers."""
        return Structure(
            phases=round(self.phases + other.phases * times),
            lone_mufu=round(self.lone_mufu + other.lone_mufu * times),
            edge_phases=round(self.edge_phases + other.edge_phases * times),
            edge_issued=round(self.edge_issued + other.edge_issued * times),
            edge_requests=round(self.edge_requests + other.edge_requests * times),
            edge_shared_lines=round(self.edge_shared_lines + other.edge_shared_lines * times),
            edge_exchanges=round(self.edge_exchanges + other.edge_exchanges * times),
            merging=round(self.merging + other.merging * times),
            merge_waits=round(self.merge_waits + other.merge_waits * times),
        )


@dataclass
class Traffic:
    """Bytes moved by a launch so far."""

    global_read_bytes: int = 0
    global_written_bytes: int = 0
    cp_async_bytes: int = 0
    """Bytes that cp.async and bulk copies read from global memory; not included in ``global_read_bytes``."""
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    local_bytes: int = 0


@dataclass(frozen=True)
class InstructionCounts:
    """Counts of one PTX instruction in a launch."""

    ptx_line: int
    ptx_text: str
    source_line: int
    """Line of the CUDA source; 0 if the PTX has no line information."""
    source_file: str
    opcode: str
    pipe: Pipe
    executions: int
    """Executions by warps, including those in which the guard disables all lanes."""
    lanes: int
    """Active lanes, over all executions."""
    wavefronts: int = 0
    """Wavefronts of shared memory."""
    ideal_wavefronts: int = 0
    """Wavefronts of the same accesses without bank conflicts."""
    sectors: int = 0
    """Sectors of 32 bytes of global and local memory."""
    ideal_sectors: int = 0
    """Fewest sectors that can hold the bytes each warp accesses."""
    split_warps: int = 0
    """Executions of a branch in which the lanes of the warp diverge."""

    @property
    def conflicts(self) -> int:
        """Additional wavefronts caused by bank conflicts."""
        return self.wavefronts - self.ideal_wavefronts


@dataclass(frozen=True)
class LaunchReport:
    """Counters of one launch. An instruction counts once per warp with at least one active lane."""

    ctas: int
    warps: int
    warp_instructions: int
    pipes: Mapping[Pipe, int]
    """Warp instructions by pipe."""
    barriers: int
    """Arrivals of warps at barriers."""
    global_read_bytes: int
    global_written_bytes: int
    cp_async_bytes: int
    shared_read_bytes: int
    shared_written_bytes: int
    local_bytes: int
    tensor_flops: int
    wgmma_flops: int = 0
    """Part of ``tensor_flops`` that ``wgmma`` executes."""
    merging_warps: int = 0
    """Warps that merge partial results of other CTAs, counted once per merge."""
    busiest_cta: float = 1.0
    """Tensor operations of the busiest CTA, relative to the mean; above 1 under a causal mask, for example. In a kernel
    without tensor operations its instructions."""
    busiest_warp: float = 1.0
    """The same of the busiest warp of the grid."""
    longest_first: bool = False
    """Whether CTAs have less of that work the later they start."""
    code: int = 0
    """Distinct instructions that were executed, without moves: the code that an SM fetches."""
    conflicts: float = 1.0
    """Wavefronts of shared memory, relative to conflict-free accesses; 1 if they were not counted."""
    structure: Structure = field(default_factory=Structure)
    """Dependency structure, summed over the launch."""
    instructions_by_line: Mapping[int, int] = field(default_factory=dict)
    """Warp instructions by source line (0: unknown)."""
    sites: tuple[InstructionCounts, ...] = ()
    """Counts of every executed instruction, in PTX order, if the launch was run with ``counters=True``."""

    @property
    def global_bytes(self) -> int:
        """All bytes read from or written to global memory, including those of cp.async."""
        return self.global_read_bytes + self.global_written_bytes + self.cp_async_bytes
