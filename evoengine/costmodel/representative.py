"""Problems too large to emulate: a slice that stands for one, and its counters scaled up to the whole."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Final

from evoengine.emulator.counters.report import LaunchReport, Pipe, Structure
from evoengine.kernel.abi import ENTRY
from evoengine.kernel.records import LaunchPlan, LaunchSpec
from evoengine.model import Problem

TENSOR_CORE_FLOPS: Final = 6 * 10**8
"""What a kernel on tensor cores runs whole, to be predicted: a little more than the mission problem."""

SCALAR_FLOPS: Final = 3 * 10**7
"""Likewise any other kernel, which needs some twenty times as many instructions: half a head of the mission problem."""

_ROW_UNIT: Final = 256
"""Rows of a slice come in multiples of every query tile, so that its CTAs are as full as the problem's."""

_UNEVEN: Final = 0.01
"""Work that grows by so much more than the grid does goes to a persistent one; tiles that are not full explain less."""


def on_tensor_cores(ptx: str) -> bool:
    """Whether a kernel multiplies matrices by one instruction a warp, so that few instructions do its work."""
    return "mma.sync" in ptx


def representative(problem: Problem, max_flops: int) -> Problem:
    """The problem, or a slice of one kv head's group that needs at most about ``max_flops``; the keys stay.

    The rows that remain are the last ones, which see the most keys under a causal mask. Of packed sequences some remain
    whole, the longest among them; if that one alone is too long, its last rows.
    """
    if _work(problem) <= max_flops:
        return problem
    group = replace(problem, heads=problem.heads // problem.kv_heads, kv_heads=1)
    if problem.packed:
        return _last_rows(_some_sequences(group, max_flops), max_flops)
    return _last_rows(replace(group, batch=1), max_flops)


def one_group(problem: Problem, launch: LaunchSpec) -> Problem:
    """One kv head's group of one sequence, where that stands for all: every launch has so many times more CTAs.

    Elsewhere it is the problem itself: a persistent grid does not grow so, packed sequences have different lengths, and
    of CTAs that count which of them is last, it depends on all others who that is.
    """
    if problem.packed or launch.workspace(problem).counters:
        return problem
    group = replace(problem, batch=1, heads=problem.heads // problem.kv_heads, kv_heads=1)
    steps = zip(launch.steps(problem), launch.steps(group), strict=True)
    times = problem.batch * problem.kv_heads
    alike = all(math.prod(step.grid) == times * math.prod(one.grid) for step, one in steps)
    return group if alike else problem


def keys_per_row(problem: Problem) -> float:
    """Keys that a query row sees, on average."""
    return problem.seen_pairs / sum(queries for queries, _ in problem.sequences)


def scaled(report: LaunchReport, whole: Problem, part: Problem, plan: LaunchPlan) -> LaunchReport:
    """The counters of the whole problem's launch from those of a part of it.

    CTAs of different heads execute the same instructions, so CTAs count: the last of each row of them is as dear as the
    others, however full. Where rows were cut under a mask, those that remained see another number of keys than the
    average row; a kernel is taken to skip what is masked, and to begin and end alike for all rows. A persistent grid
    does not grow with the problem, and packed sequences leave CTAs without work: there the work counts instead. A
    persistent CTA takes whole pieces of the work, each of which one CTA of the part took.
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
        if isinstance(getattr(report, field.name), int)
    }
    edges, more = _edges(report.structure), max(0.0, begun - factor)
    pipes = {pipe: round(count * factor) for pipe, count in report.pipes.items()}
    if more:
        counts["warp_instructions"] += round(edges.edge_issued * more)
        counts["merging_warps"] += round(report.merging_warps * more)
        pipes[Pipe.LSU_GLOBAL] = pipes.get(Pipe.LSU_GLOBAL, 0) + round(edges.edge_requests * more)
        pipes[Pipe.LSU_SHARED] = pipes.get(Pipe.LSU_SHARED, 0) + round(edges.edge_shared_lines * more)
    cta = report.busiest_cta * ctas / (report.ctas * factor)
    if persistent:
        cta *= math.ceil(1 / cta - 1e-6)
    counts |= {"ctas": ctas, "warps": report.warps // report.ctas * ctas, "code": report.code}
    return replace(
        report,
        **counts,
        pipes=pipes,
        instructions_by_line={line: round(count * factor) for line, count in report.instructions_by_line.items()},
        busiest_cta=max(1.0, cta),
        busiest_warp=max(1.0, cta * report.busiest_warp / report.busiest_cta),
        structure=Structure().plus(report.structure, factor).plus(edges, more),
    )


def _edges(structure: Structure) -> Structure:
    """What comes before and after the loop over tiles."""
    return replace(structure, phases=structure.edge_phases, lone_mufu=0)


def _rows(problem: Problem) -> int:
    return problem.heads * problem.memory_batch * problem.rows_q


def _share(problem: Problem, plan: LaunchPlan) -> int:
    """What the work of a step grows with: pairs of a row and a key, or, after the main step, rows."""
    return problem.heads * (problem.seen_pairs if plan.entry == ENTRY else problem.memory_batch * problem.rows_q)


def _work(problem: Problem) -> int:
    return 4 * problem.heads * problem.head_dim * problem.seen_pairs


def _some_sequences(problem: Problem, max_flops: int) -> Problem:
    """So many of the packed sequences as the work allows, evenly by size, the largest first."""
    by_size = sorted(range(problem.batch), key=lambda index: problem.lengths_q[index] * problem.lengths_kv[index])
    count = max(1, min(problem.batch, problem.batch * max_flops // _work(problem)))
    kept = sorted(by_size[problem.batch - 1 - place * problem.batch // count] for place in range(count))
    return _packed(problem, [problem.lengths_q[i] for i in kept], [problem.lengths_kv[i] for i in kept])


def _last_rows(problem: Problem, max_flops: int) -> Problem:
    """As many rows of each sequence as the work allows, in whole tiles."""
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
