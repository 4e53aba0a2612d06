"""Execution pipes of an SM: which of them executes an instruction, and the instructions of a block by pipe."""

from __future__ import annotations

import enum
import functools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
    """Shared loads and stores, ldmatrix, wmma loads and stores, shuffles, mbarriers."""
    LSU_GLOBAL = "lsu_global"
    """Global, local and constant accesses, cp.async, atomics on global memory."""
    CONTROL = "control"
    """Branches, barriers, votes, fences, the issue of bulk copies, group commits and waits."""
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
