"""Representative slices of problems too large to emulate, and scaling of their counters to the whole problem."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Final

from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.ptx.dependency_analysis import Structure
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.records import LaunchPlan, LaunchSpec
from evoengine.model import Problem

FAST_FLOPS: Final = 6 * 10**8
"""Largest problem that a kernel which is fast on the emulator runs whole for a prediction; a little above the default
problem."""

SLOW_FLOPS: Final = 3 * 10**7
"""Largest problem that any other kernel runs whole; a scalar kernel needs about twenty times as many instructions."""

_ROW_UNIT: Final = 256
"""Rows of a slice are a multiple of this, and so of every query tile: its CTAs are as full as the problem's."""

_UNEVEN: Final = 0.01
"""Tolerance for partial tiles: work that grows by a larger factor than the grid indicates a persistent grid."""


def is_fast_on_emulator(ptx: str) -> bool:
    """Returns whether the emulator runs a kernel fast enough for larger problems as a whole.

    Kernels of ``mma.sync`` and ``wmma.mma.sync`` are fast. Scalar kernels need many instructions for their work, and
    those of ``wgmma`` have asynchronous operations, whose checks take time.
    """
    return "mma.sync" in ptx


def representative(problem: Problem, max_flops: int) -> Problem:
    """Returns the problem, or a slice of one kv head's group that needs at most about ``max_flops``.

    A slice keeps all keys and the last rows, which attend to the most keys under a causal mask. A slice of packed
    sequences keeps some of them whole, the longest among them, or only the last rows of the longest.
    """
    if _work(problem) <= max_flops:
        return problem
    group = replace(problem, heads=problem.heads // problem.kv_heads, kv_heads=1)
    if problem.packed:
        return _last_rows(_some_sequences(group, max_flops), max_flops)
    return _last_rows(replace(group, batch=1), max_flops)


def one_group(problem: Problem, launch: LaunchSpec) -> Problem:
    """Returns one kv head's group of one sequence if every launch of the whole is a multiple of the group's.

    Returns the problem itself otherwise: a persistent grid does not grow with the problem, packed sequences have
    different lengths, and where CTAs count to find the last one, its work depends on all the others.
    """
    if problem.packed or launch.workspace(problem).counters:
        return problem
    group = replace(problem, batch=1, heads=problem.heads // problem.kv_heads, kv_heads=1)
    steps = zip(launch.steps(problem), launch.steps(group), strict=True)
    times = problem.batch * problem.kv_heads
    alike = all(math.prod(step.grid) == times * math.prod(one.grid) for step, one in steps)
    return group if alike else problem


def keys_per_row(problem: Problem) -> float:
    """Computes the mean number of visible keys per query row."""
    return problem.seen_pairs / (problem.memory_batch * problem.rows_q)


def scaled(report: LaunchReport, whole: Problem, part: Problem, plan: LaunchPlan) -> LaunchReport:
    """Scales the counters of a part's launch to the whole problem.

    CTAs of different heads execute the same instructions, so counters scale with the number of CTAs; a partial tile
    costs as much as a full one. If rows were cut under a mask, the remaining rows attend to a different number of keys
    than the average row; the kernel is assumed to skip masked tiles, and to have the same prologue and epilogue for all
    rows. A persistent grid does not grow with the problem, and packed sequences leave CTAs without work: there counters
    scale with the work instead. A persistent CTA processes whole pieces of work, each equal to one CTA of the part.

    Args:
        report: Counters of the part's launch.
        whole: Problem to scale to.
        part: Problem that was executed.
        plan: Launch of the whole problem.
    """
    ctas = plan.grid[0] * plan.grid[1] * plan.grid[2]
    factor = begun = _share(whole, plan) / _share(part, plan)
    persistent = False
    if not whole.packed:
        begun = ctas / report.ctas
        grown = begun * (keys_per_row(whole) / keys_per_row(part) if plan.entry == ENTRY else 1.0)
        persistent = factor > (1 + _UNEVEN) * grown
        factor, begun = max(factor, grown), _rows(whole) / _rows(part) if persistent else begun
    counts = {
        field.name: round(getattr(report, field.name) * factor)
        for field in fields(report)
        if type(getattr(report, field.name)) is int  # a truth value is no count
    }
    edges, more = _edges(report.structure), max(0.0, begun - factor)
    pipes = {pipe: round(count * factor) for pipe, count in report.pipes.items()}
    if more:
        counts["warp_instructions"] += round(edges.edge_issued * more)
        counts["merging_warps"] += round(report.merging_warps * more)
        pipes[Pipe.LSU_GLOBAL] = pipes.get(Pipe.LSU_GLOBAL, 0) + round(edges.edge_requests * more)
        pipes[Pipe.LSU_SHARED] = pipes.get(Pipe.LSU_SHARED, 0) + round(edges.edge_shared_lines * more)
    cta = report.busiest_cta * (ctas / (report.ctas * factor))
    if persistent:
        cta *= math.ceil(1 / cta - 1e-6)
    counts |= {"ctas": ctas, "warps": report.warps // report.ctas * ctas, "code": report.code}
    return replace(
        report,
        **counts,
        pipes=pipes,
        instructions_by_line={line: round(count * factor) for line, count in report.instructions_by_line.items()},
        busiest_cta=max(1.0, cta),
        busiest_warp=max(1.0, report.busiest_warp * (cta / report.busiest_cta)),
        structure=Structure().plus(report.structure, factor).plus(edges, more),
    )


def _edges(structure: Structure) -> Structure:
    """Returns the counts outside the loop over tiles."""
    return replace(structure, phases=structure.edge_phases, lone_mufu=0)


def _rows(problem: Problem) -> int:
    return problem.heads * problem.memory_batch * problem.rows_q


def _share(problem: Problem, plan: LaunchPlan) -> int:
    """Computes the work measure of a launch: visible (row, key) pairs of the main launch, rows of later launches."""
    return problem.heads * (problem.seen_pairs if plan.entry == ENTRY else problem.memory_batch * problem.rows_q)


def _work(problem: Problem) -> int:
    return 4 * problem.heads * problem.head_dim * problem.seen_pairs


def _some_sequences(problem: Problem, max_flops: int) -> Problem:
    """Keeps as many packed sequences as the work allows, spread evenly over the sizes, the largest included."""
    by_size = sorted(range(problem.batch), key=lambda index: problem.lengths_q[index] * problem.lengths_kv[index])
    count = max(1, min(problem.batch, problem.batch * max_flops // _work(problem)))
    kept = sorted(by_size[problem.batch - 1 - place * problem.batch // count] for place in range(count))
    return _packed(problem, [problem.lengths_q[i] for i in kept], [problem.lengths_kv[i] for i in kept])


def _last_rows(problem: Problem, max_flops: int) -> Problem:
    """Keeps as many of the last rows of each sequence as the work allows, in whole tiles."""
    if problem.packed and problem.batch > 1:
        return problem
    rows = int(max_flops / (4 * problem.heads * problem.head_dim * keys_per_row(problem)))
    most = max(1, rows // _ROW_UNIT) * _ROW_UNIT
    if problem.packed:
        return _packed(problem, [min(length, most) for length in problem.lengths_q], list(problem.lengths_kv))
    return replace(problem, seq_q=min(problem.seq_q, most))


def _packed(problem: Problem, lengths_q: list[int], lengths_kv: list[int]) -> Problem:
    return replace(
        problem,
        batch=len(lengths_q),
        seq_q=max(lengths_q),
        seq_kv=max(lengths_kv),
        lengths_q=tuple(lengths_q),
        lengths_kv=tuple(lengths_kv),
    )
