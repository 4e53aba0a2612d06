"""Dependency analysis of basic blocks: which instructions a warp can overlap with others of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from evoengine.emulator.ptx.control_flow import Block, innermost_loops, successors
from evoengine.emulator.ptx.pipes import Pipe, pipe_of
from evoengine.emulator.ptx.records import TYPE_BITS, Entry, Instruction, Mem, Operand, Reg, Vec

_WARP: Final = 32
_LINE_BYTES: Final = 128
_VECTOR: Final = {"v2": 2, "v4": 4}
_BARRIERS: Final = ("bar", "barrier")
_ORDERED: Final = ("st", "atom", "red")
_PREDICATED: Final = 20
"""Longest block, in PTX instructions, that ptxas predicates. In machine code of NVRTC 13.0 for sm_89 and sm_90a, loads
in blocks of up to 20 are predicated, and blocks of 24 are branched around."""
_MATRICES: Final = {"x1": 1, "x2": 2, "x4": 4}


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


def structures_of(entry: Entry, blocks: Sequence[Block]) -> list[Structure]:
    """Dependency structure of each block, for one warp.

    Edges are the blocks before the first and after the last block with tensor instructions, in the order of the PTX,
    except blocks that are in one loop with it.
    """
    all_pipes = [pipe_of(ins) for ins in entry.instructions]
    runs = [_run(entry, block) for block in blocks]
    pipes = [all_pipes[block.start : block.end] for block in blocks]
    on_tensor = [number for number, own in enumerate(pipes) if Pipe.TENSOR in own]
    loop = set(range(on_tensor[0], on_tensor[-1] + 1) if on_tensor else range(len(runs)))
    loop |= _tile_loops(entry, blocks, on_tensor)
    found = [_structure(run, own, n not in loop) for n, (run, own) in enumerate(zip(runs, pipes, strict=True))]
    _add_waits_before([n for n in range(on_tensor[0] if on_tensor else 0) if n not in loop], runs, found)
    merging = _merging(found, pipes)
    waits = {
        part[0]: _waits([ins for number in part for ins in runs[number]])
        for part in _predicated(entry, blocks, merging)
    }
    for number in merging:
        found[number] = replace(found[number], merging=1, merge_waits=waits.get(number, 0))
    return found


def _add_waits_before(numbers: Sequence[int], runs: Sequence[Sequence[Instruction]], found: list[Structure]) -> None:
    """Adds the waits for loads to registers before the loop, each like a barrier, to the first block that loads.

    A warp that loads queries itself waits for them; copies to shared memory end at a barrier, which counts.
    """
    loading = [n for n in numbers if any(map(_loads_global, runs[n]))]
    if loading:
        waits = _waits([ins for n in numbers for ins in runs[n]])
        old = found[loading[0]]
        found[loading[0]] = replace(old, phases=old.phases + waits, edge_phases=old.edge_phases + waits)


def _loads_global(ins: Instruction) -> bool:
    return ins.name == "ld" and pipe_of(ins) is Pipe.LSU_GLOBAL


def _predicated(entry: Entry, blocks: Sequence[Block], numbers: range) -> list[list[int]]:
    """Joins blocks that a warp executes without a branch: ptxas predicates a short block that is only skipped.

    Returns:
        The blocks of ``numbers`` in order, each in one part, which is executed as often as its first block.
    """
    if not numbers:
        return []
    after = {number: successors(entry, blocks, blocks[number]) for number in range(len(blocks))}
    into = Counter(target for targets in after.values() for target in targets)
    parts: list[list[int]] = []
    number = numbers.start
    while number < numbers.stop:
        part = [number]
        while part[-1] + 2 < numbers.stop and _is_skip(blocks, after, into, part[-1]):
            part += [part[-1] + 1, part[-1] + 2]
        parts.append(part)
        number = part[-1] + 1
    return parts


def _is_skip(blocks: Sequence[Block], after: Mapping[int, set[int]], into: Mapping[int, int], number: int) -> bool:
    """Whether a block may only skip the next one, which is short, and both go on at the one behind it."""
    skipped, behind = number + 1, number + 2
    is_short = blocks[skipped].end - blocks[skipped].start <= _PREDICATED
    alone = into[skipped] == 1 and into[behind] == 2
    return is_short and alone and after[number] == {skipped, behind} and after[skipped] == {behind}


def _tile_loops(entry: Entry, blocks: Sequence[Block], on_tensor: Sequence[int]) -> frozenset[int]:
    """Blocks of the innermost loops around tensor instructions; none if one stores to global memory.

    A loop over tiles may begin before its tensor instructions, with the wait for a tile. A loop that stores to global
    memory iterates over outputs instead.
    """
    found = innermost_loops(entry, blocks, on_tensor) if on_tensor else frozenset()
    stores = any(ins.name == "st" and pipe_of(ins) is Pipe.LSU_GLOBAL for n in found for ins in _run(entry, blocks[n]))
    return frozenset() if stores else found


def _run(entry: Entry, block: Block) -> tuple[Instruction, ...]:
    return entry.instructions[block.start : block.end]


def _merging(structures: Sequence[Structure], pipes: Sequence[Sequence[Pipe]]) -> range:
    """Blocks that merge partial results of other CTAs.

    These are the blocks after the last exchange, or all blocks of a kernel that only merges; such a kernel uses neither
    tensor instructions nor shared memory.
    """
    if not any({Pipe.TENSOR, Pipe.LSU_SHARED} & set(own) for own in pipes):
        return range(len(structures))
    working = [number for number, own in enumerate(pipes) if Pipe.TENSOR in own]
    last = max((number for number, structure in enumerate(structures) if structure.edge_exchanges), default=-1)
    return range(last + 1, len(structures)) if working and last > working[-1] else range(0)


def _waits(run: Sequence[Instruction]) -> int:
    """Number of times that a warp waits for global memory, with loads scheduled as ptxas does.

    ptxas hoists a load above uses of other loads, but not above a store, a barrier or the load of its address.
    """
    waits = before = 0
    behind: dict[int, int] = {}  # waits before the value of a register is available
    for ins in run:
        sources = set().union(*map(_registers, ins.operands[1:]))
        wait = max([before, *(behind[number] for number in sources if number in behind)])
        if _loads_global(ins):
            wait += 1
            waits = max(waits, wait)
        elif _is_barrier(ins) or (ins.name in _ORDERED and pipe_of(ins) is Pipe.LSU_GLOBAL) or _exchanges(ins):
            before = waits
        if wait and ins.operands and ins.name != "st":
            behind |= dict.fromkeys(_registers(ins.operands[0]), wait)
    return waits


def _registers(operand: Operand) -> set[int]:
    items = operand.items if isinstance(operand, Vec) else (operand.base,) if isinstance(operand, Mem) else (operand,)
    return {item.index for item in items if isinstance(item, Reg)}


def _structure(run: Sequence[Instruction], pipes: Sequence[Pipe], edge: bool) -> Structure:
    phases = sum(_is_barrier(ins) and "arrive" not in ins.parts for ins in run)
    lone_mufu = _lone_mufu(run, pipes) if Pipe.MUFU in pipes else 0
    if not edge:
        return Structure(phases=phases, lone_mufu=lone_mufu)
    return Structure(
        phases=phases,
        lone_mufu=lone_mufu,
        edge_phases=phases,
        edge_issued=sum(pipe is not Pipe.MOVE for pipe in pipes),
        edge_requests=pipes.count(Pipe.LSU_GLOBAL),
        edge_shared_lines=sum(_shared_lines(ins, pipe) for ins, pipe in zip(run, pipes, strict=True)),
        edge_exchanges=sum(map(_exchanges, run)),
    )


def _is_barrier(ins: Instruction) -> bool:
    return ins.parts[0] in _BARRIERS


def _exchanges(ins: Instruction) -> int:
    """Number of waits for memory that all CTAs share: for fences of a wider scope than the CTA, and atomic results.

    A releasing atomic implies a fence before it, an acquiring one a fence after it.
    """
    if ins.name in ("membar", "fence"):
        return not {"cta", "proxy", "mbarrier_init"} & set(ins.parts)
    if ins.name != "atom" or any(part.startswith("shared") for part in ins.parts):
        return 0
    return 1 + 2 * ("acq_rel" in ins.parts) + ("acquire" in ins.parts) + ("release" in ins.parts)


def _lone_mufu(run: Sequence[Instruction], pipes: Sequence[Pipe]) -> int:
    """Number of special functions that a warp cannot overlap with tensor instructions of its own.

    A special function can overlap if there are tensor instructions before and after it, without a barrier or a wait for
    copies in between.
    """
    lone = waiting = 0
    after_tensor = False
    for ins, pipe in zip(run, pipes, strict=True):
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
    """Wavefronts of a warp's access to shared memory without bank conflicts."""
    if pipe is not Pipe.LSU_SHARED:
        return 0
    matrices = next((_MATRICES[part] for part in ins.parts if part in _MATRICES), 0)
    words = next((_VECTOR[part] for part in ins.parts if part in _VECTOR), 1)
    lane_bytes = words * TYPE_BITS.get(ins.parts[-1], 32) // 8
    return matrices or max(1, _WARP * lane_bytes // _LINE_BYTES)
