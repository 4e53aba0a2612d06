"""How instructions of a block follow each other: what a warp can overlap with work of its own, and what it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from evoengine.emulator.cfg import Block
from evoengine.emulator.ptx import TYPE_BITS, Entry, Instruction
from evoengine.emulator.report import Pipe, Structure, pipe_of

_WARP: Final = 32
_LINE_BYTES: Final = 128
_VECTOR: Final = {"v2": 2, "v4": 4}
_MATRICES: Final = {"x1": 1, "x2": 2, "x4": 4}


def structures_of(entry: Entry, blocks: Sequence[Block]) -> list[Structure]:
    """The structure of each block, for one warp.

    Edges are the blocks before the first one with tensor work, and those after the last, in the order of the PTX: what
    comes before the loop over tiles, and after it.
    """
    runs = [entry.instructions[block.start : block.end] for block in blocks]
    on_tensor = [number for number, run in enumerate(runs) if any(pipe_of(ins) is Pipe.TENSOR for ins in run)]
    loop = range(on_tensor[0], on_tensor[-1] + 1) if on_tensor else range(len(runs))
    return [_structure(run, number not in loop) for number, run in enumerate(runs)]


def _structure(run: Sequence[Instruction], edge: bool) -> Structure:
    phases = sum(_is_barrier(ins) and "arrive" not in ins.parts for ins in run)
    if not edge:
        return Structure(phases=phases, lone_mufu=_lone_mufu(run))
    pipes = [pipe_of(ins) for ins in run]
    return Structure(
        phases=phases,
        lone_mufu=_lone_mufu(run),
        edge_phases=phases,
        edge_issued=sum(pipe is not Pipe.MOVE for pipe in pipes),
        edge_requests=pipes.count(Pipe.LSU_GLOBAL),
        edge_shared_lines=sum(_shared_lines(ins, pipe) for ins, pipe in zip(run, pipes, strict=True)),
        edge_exchanges=sum(_is_exchange(ins) for ins in run),
    )


def _is_barrier(ins: Instruction) -> bool:
    return ins.name in ("bar", "barrier")


def _is_exchange(ins: Instruction) -> bool:
    """Whether a warp waits for memory that all CTAs share: a fence wider than its own, or an atomic's result."""
    if ins.name in ("membar", "fence"):
        return not {"cta", "proxy"} & set(ins.parts)
    return ins.name == "atom" and not any(part.startswith("shared") for part in ins.parts)


def _lone_mufu(run: Sequence[Instruction]) -> int:
    """Special functions that a warp cannot overlap with tensor work of its own.

    Those are the ones without a tensor instruction both before and after them, with no barrier and no wait for copies
    in between.
    """
    lone = waiting = 0
    after_tensor = False
    for ins in run:
        pipe = pipe_of(ins)
        if pipe is Pipe.MUFU:
            waiting += 1
        elif pipe is Pipe.TENSOR:
            lone += 0 if after_tensor else waiting
            after_tensor, waiting = True, 0
        elif _is_barrier(ins) or ins.parts[-1] in ("wait_group", "wait_all"):
            lone += waiting
            after_tensor, waiting = False, 0
    return lone + waiting


def _shared_lines(ins: Instruction, pipe: Pipe) -> int:
    """Wavefronts of shared memory that a warp's access takes without bank conflicts."""
    if pipe is not Pipe.LSU_SHARED:
        return 0
    matrices = next((_MATRICES[part] for part in ins.parts if part in _MATRICES), 0)
    words = next((_VECTOR[part] for part in ins.parts if part in _VECTOR), 1)
    lane_bytes = words * TYPE_BITS.get(ins.parts[-1], 32) // 8
    return matrices or max(1, _WARP * lane_bytes // _LINE_BYTES)
