"""Elites in the roofline of their GPU, and the lower bound on the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evoengine.bench.roofline_floor import floor_us
from evoengine.leaderboard.records import Row
from evoengine.model import Problem
from evoengine.report.facts import StudyFacts, row_us
from evoengine.report.figure import Figure, Table, log_axis, number, plain
from evoengine.target import Target


@dataclass(frozen=True)
class Roof:
    """Peaks of a GPU and the work of one call."""

    target: Target
    flops: float
    """Floating-point operations of the unmasked pairs."""
    moved: int
    """Least traffic in bytes: Q, K and V read once, O written once."""

    @property
    def peak(self) -> float:
        """Dense tensor peak in TFLOP/s."""
        return self.target.fp16_tensor_tflops

    @property
    def intensity(self) -> float:
        """FLOP per byte that must move."""
        return self.flops / self.moved

    @property
    def l2_gbps(self) -> float:
        """L2 read bandwidth in GB/s at the boost clock."""
        return self.target.l2_bytes_per_clk * self.target.boost_clock_mhz / 1e3

    @property
    def tensor_us(self) -> float:
        """Time of the call at the tensor peak."""
        return self.flops / (self.peak * 1e6)

    @property
    def dram_us(self) -> float:
        """Time to move the tensors at DRAM's rate."""
        return self.moved / (self.target.dram_gbps * 1e3)


def roof_of(facts: StudyFacts) -> Roof | None:
    """Returns the roof over a study; None without data sheet or visible pairs, and for workloads."""
    target, problem = facts.target, facts.problem
    if target is None or facts.study.key.workload is not None or not problem.seen_pairs:
        return None
    return Roof(target, _flops(problem, target), problem.min_bytes)


def _flops(problem: Problem, target: Target) -> float:
    return floor_us(problem, target) * target.fp16_tensor_tflops * 1e6


def peak_facts(roof: Roof) -> Iterator[tuple[str, str]]:
    """Yields the peaks of the GPU and their source."""
    target = roof.target
    yield "tensor cores", f"{roof.peak:g} TFLOP/s, dense fp16 or bf16 with fp32 accumulation"
    if target.mma_sync_fraction < 1:
        share = f"{target.mma_sync_fraction:.0%} of it"
        yield "mma.sync", f"{roof.peak * target.mma_sync_fraction:.0f} TFLOP/s: {share}; only wgmma reaches the peak"
    yield "DRAM", f"{target.dram_gbps:g} GB/s"
    yield "L2", f"about {roof.l2_gbps:.0f} GB/s: {target.l2_bytes_per_clk} bytes per clock at the boost clock"
    yield "boost clock", f"{target.boost_clock_mhz} MHz, {target.sms} SMs"
    yield "source", target.source


def roofline(facts: StudyFacts) -> Figure | None:
    """Plots the elites in the roofline of their GPU; None without data sheet or elites, and for workloads."""
    import plotly.graph_objects as go

    roof, elites = roof_of(facts), [row for row in facts.elites if row.median_us]
    if roof is None or not elites:
        return None
    left, right = _span(roof)
    figure = go.Figure()
    for trace in _roofs(roof, left, right):
        figure.add_scatter(**trace)
    rates = [roof.flops / row_us(row) / 1e6 for row in elites]
    figure.add_scatter(**_elites(facts, roof, elites, rates))
    lowest = min(*rates, roof.target.dram_gbps * left / 1e3)
    figure.update_layout(
        xaxis=log_axis("FLOP per byte that must move, log scale", left, right),
        yaxis=log_axis("TFLOP/s, log scale", lowest, roof.peak),
    )
    rows = [_share(row, rate, roof) for row, rate in zip(elites, rates, strict=True)]
    head = ("rank", "row", f"time, {facts.unit}", "TFLOP/s", "of the tensor peak", "of DRAM's rate")
    caption = (
        f"{'Predicted elites' if facts.predicted else 'Elites'} in the roofline of {roof.target.marketing_name}: "
        f"{roof.peak:g} TFLOP/s dense {facts.problem.dtype.value}, {roof.target.dram_gbps:g} GB/s DRAM. "
        "With warm caches tensors may come from L2."
    )
    return Figure("roofline", caption, plain(figure), Table(head, rows, frozenset(range(6))))


def _span(roof: Roof) -> tuple[float, float]:
    edge = roof.peak * 1e3 / roof.target.dram_gbps
    return min(roof.intensity, edge) / 10, max(roof.intensity, edge) * 10


def _roofs(roof: Roof, left: float, right: float) -> Iterator[dict[str, Any]]:
    peak, dram, l2 = roof.peak, roof.target.dram_gbps, roof.l2_gbps
    lines = ((f"DRAM {dram:g} GB/s", dram, "ink", "solid"), (f"L2 about {l2:.0f} GB/s", l2, "series-3", "dash"))
    for name, gbps, colour, dash in lines:  # straight lines on logarithmic axes
        edge = peak * 1e3 / gbps
        x = [left, edge, right] if left < edge < right else [left, right]
        y = [min(peak, gbps * one / 1e3) for one in x]
        yield {"x": x, "y": y, "mode": "lines", "name": name, "meta": colour, "line": {"dash": dash, "width": 2}}
    if roof.target.mma_sync_fraction < 1:
        y = [peak * roof.target.mma_sync_fraction] * 2
        line = {"dash": "dot", "width": 2}
        yield {"x": [left, right], "y": y, "mode": "lines", "name": "mma.sync peak", "meta": "series-4", "line": line}


def _elites(facts: StudyFacts, roof: Roof, elites: list[Row], rates: list[float]) -> dict[str, Any]:
    share = f"  rank {elites[0].rank}: {rates[0]:.3g} TFLOP/s"
    return {
        "x": [roof.intensity] * len(elites),
        "y": rates,
        "mode": "markers+text",
        "name": "predicted elites" if facts.predicted else "elites",
        "meta": "series-1",
        "marker": {"size": 9, "opacity": 0.85},
        "text": [share, *[""] * (len(elites) - 1)],
        "textposition": "middle right",
        "hovertext": [f"rank {row.rank}, row {row.id}: {row_us(row):.3f} {facts.unit}" for row in elites],
        "hovertemplate": "%{hovertext}, %{y:.2f} TFLOP/s<extra></extra>",
    }


def _share(row: Row, rate: float, roof: Roof) -> tuple[str, ...]:
    shares = (f"{rate / roof.peak:.1%}", f"{roof.dram_us / row_us(row):.1%}")
    return number(row.rank, "d"), str(row.id), number(row.median_us), number(rate, ".2f"), *shares
