"""Hotspots: the most expensive source lines of a kernel, its bottleneck, and findings in plain sentences.

The cost of an instruction is the time for which it keeps one SM's pipe busy at the data sheet's throughput: issue slots
for all, tensor operations, lanes of the arithmetic pipes, wavefronts of shared memory, sectors of global memory. Moves
and parameter loads cost nothing, because ptxas removes most of them. Costs of different pipes overlap in a kernel, so
their sum ranks lines but is not a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evoengine.costmodel.l2_cache import SM_BYTES_PER_CLK
from evoengine.costmodel.latency import FP64_LANES_PER_SM, WAVEFRONT_BYTES
from evoengine.emulator.counters.instruction_counters import by_line
from evoengine.emulator.counters.report import InstructionCounts, LaunchReport
from evoengine.emulator.ptx.pipes import Pipe, mma_flops
from evoengine.kernel.resources import WARP
from evoengine.target import Target

_SECTOR_BYTES: Final = 32
_NOTICEABLE: Final = 0.02
"""Share of a total below which a finding is not reported."""
_CAUSES: Final = {
    "tensor": "tensor-bound: the tensor cores are the busiest pipe",
    "fma": "compute-bound: multiply-adds are the busiest pipe",
    "alu": "compute-bound: integer and logic instructions are the busiest pipe",
    "mufu": "compute-bound: exponentials and other special functions are the busiest pipe",
    "fp64": "compute-bound: f64 arithmetic is the busiest pipe",
    "shared": "shared-memory-bound: loads and stores of shared memory are the busiest pipe",
    "global": "memory-bound: loads and stores between the SMs and L2 are the busiest pipe",
    "l2": "memory-bound: the L2 cache's bandwidth limits it",
    "dram": "memory-bound: the DRAM's bandwidth limits it",
    "issue": "issue-bound: the schedulers have no free slots",
    "chain": "latency-bound: a warp waits for its own results and at barriers, and too few other warps fill the gaps",
}
_NOT_CAUSES: Final = ("launch", "start", "waves")


@dataclass(frozen=True)
class LineCounts:
    """Counters of all instructions of one source line."""

    file: str
    line: int
    """Line number; 0 for instructions without one."""
    cost: float
    """Clocks of one SM's pipes over the whole launch."""
    executions: int
    pipes: Mapping[Pipe, int]
    """Warp instructions by pipe."""
    wavefronts: int
    conflicts: int
    sectors: int
    ideal_sectors: int
    split_warps: int
    barriers: int


def line_counts(sites: Iterable[InstructionCounts], target: Target) -> tuple[LineCounts, ...]:
    """Sums a launch's counters by source line, the most expensive line first."""
    lines = [_sum(file, line, found, target) for (file, line), found in by_line(sites).items()]
    return tuple(sorted(lines, key=lambda counts: -counts.cost))


def _sum(file: str, line: int, sites: Sequence[InstructionCounts], target: Target) -> LineCounts:
    pipes: Counter[Pipe] = Counter()
    for site in sites:
        pipes[site.pipe] += site.executions
    return LineCounts(
        file=file,
        line=line,
        cost=sum(_cost_clocks(site, target) for site in sites),
        executions=sum(site.executions for site in sites),
        pipes=dict(pipes),
        wavefronts=sum(site.wavefronts for site in sites),
        conflicts=sum(site.conflicts for site in sites),
        sectors=sum(site.sectors for site in sites),
        ideal_sectors=sum(site.ideal_sectors for site in sites),
        split_warps=sum(site.split_warps for site in sites),
        barriers=sum(site.executions for site in sites if _is_barrier(site)),
    )


def _is_barrier(site: InstructionCounts) -> bool:
    """Returns whether an instruction is a barrier between warps of a CTA."""
    head, _, rest = site.opcode.partition(".")
    return head in ("bar", "barrier") and not rest.startswith("warp")


def _cost_clocks(site: InstructionCounts, target: Target) -> float:
    """Computes the clocks for which all executions of an instruction keep their pipe of one SM busy."""
    if site.pipe is Pipe.MOVE:
        return 0.0
    lanes = {
        Pipe.FMA: target.fp32_lanes_per_sm,
        Pipe.FP16: target.fp32_lanes_per_sm,
        Pipe.ALU: target.int32_lanes_per_sm,
        Pipe.MUFU: target.mufu_per_clk_per_sm,
        Pipe.FP64: FP64_LANES_PER_SM,
    }.get(site.pipe)
    issue = site.executions / target.schedulers_per_sm
    if lanes is not None:
        return max(issue, site.executions * WARP / lanes)
    if site.pipe is Pipe.TENSOR:
        flops = mma_flops(tuple(site.opcode.split(".")))
        return max(issue, site.executions * flops / target.mma_flops_per_clk_per_sm)
    shared = site.wavefronts * WAVEFRONT_BYTES / target.smem_bytes_per_clk_per_sm
    if site.opcode.startswith("shfl"):
        shared = site.executions * WAVEFRONT_BYTES / target.smem_bytes_per_clk_per_sm
    return max(issue, shared + site.sectors * _SECTOR_BYTES / SM_BYTES_PER_CLK)


def bottleneck(terms: Mapping[str, float]) -> str:
    """Describes the largest part of a prediction.

    Args:
        terms: Parts of a :class:`~evoengine.costmodel.latency.LatencyEstimate`, in microseconds.
    """
    parts = {name: us for name, us in terms.items() if name not in _NOT_CAUSES}
    if not parts:
        return "no part of the prediction stands out"
    first = max(parts, key=lambda name: parts[name])
    return _CAUSES.get(first, f"bound by {first}")


def findings(report: LaunchReport) -> list[str]:
    """Describes avoidable costs of a launch: bank conflicts, uncoalesced accesses, divergence, imbalance."""
    lines = by_line(report.sites)
    found = [
        _conflicts(lines, sum(site.wavefronts for site in report.sites)),
        _sectors(lines, sum(site.sectors for site in report.sites)),
        _splits(lines),
        _imbalance(report),
    ]
    return [sentence for sentence in found if sentence]


_Lines = Mapping[tuple[str, int], Sequence[InstructionCounts]]


def _worst(lines: _Lines, field: str) -> tuple[int, str]:
    """Finds the line with the largest sum of a field; returns the sum and the line's name."""
    return _largest({line: sum(getattr(site, field) for site in sites) for line, sites in lines.items()})


def _largest(sums: Mapping[tuple[str, int], int]) -> tuple[int, str]:
    line = max(sums, key=lambda key: sums[key])
    return sums[line], f"line {line[1]}" if line[1] else "code without a line"


def _conflicts(lines: _Lines, wavefronts: int) -> str:
    lost = sum(site.conflicts for sites in lines.values() for site in sites)
    if lost <= _NOTICEABLE * wavefronts:
        return "" if not wavefronts else f"Shared memory: {wavefronts:,} wavefronts, hardly any bank conflict."
    most, where = _worst(lines, "conflicts")
    share = lost / wavefronts
    return f"Bank conflicts: {lost:,} of {wavefronts:,} wavefronts ({share:.0%}) are lost, {most:,} of them at {where}."


def _sectors(lines: _Lines, sectors: int) -> str:
    ideal = sum(site.ideal_sectors for sites in lines.values() for site in sites)
    extra = sectors - ideal
    if extra <= _NOTICEABLE * sectors:
        return "" if not sectors else f"Global memory: {sectors:,} sectors of 32 bytes, all accesses coalesced."
    most, where = _largest({line: sum(s.sectors - s.ideal_sectors for s in sites) for line, sites in lines.items()})
    return (
        f"Coalescing: {sectors:,} sectors move where {ideal:,} could hold what is used; {most:,} too many at {where}."
    )


def _splits(lines: _Lines) -> str:
    total = sum(site.split_warps for sites in lines.values() for site in sites)
    if not total:
        return ""
    most, where = _worst(lines, "split_warps")
    return f"Divergence: branches split warps {total:,} times, {most:,} of them at {where}."


def _imbalance(report: LaunchReport) -> str:
    if report.busiest_cta <= 1 + 5 * _NOTICEABLE:
        return ""
    return f"Imbalance: the busiest CTA executes {report.busiest_cta:.2f} times the mean."
