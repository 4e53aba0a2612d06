"""Plots of a study: best so far, rejections, roofline, time against energy."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from evoengine.bench.roofline_floor import floor_us
from evoengine.leaderboard.pareto import pareto_front
from evoengine.leaderboard.records import Row
from evoengine.report.facts import Rejection, StudyFacts, reigns
from evoengine.report.figure import Figure, Table, log_axis, number, plain

_LABEL_CHARACTERS: Final = 46


def best_so_far(facts: StudyFacts) -> Figure | None:
    """Plots times in the order of evaluation with the best so far; None if nothing was timed."""
    import plotly.graph_objects as go

    if not facts.timed:
        return None
    place = {row.id: number for number, row in enumerate(facts.rows, start=1)}
    bests = list(accumulate((_us(row) for row in facts.timed), min))
    figure = go.Figure()
    for family in sorted({row.family for row in facts.timed}):
        own = [row for row in facts.timed if row.family == family]
        figure.add_scatter(
            x=[place[row.id] for row in own],
            y=[_us(row) for row in own],
            mode="markers",
            name=html.escape(family),
            text=[f"row {row.id}" for row in own],
            hovertemplate="%{text}: %{y:.3f} " + facts.unit,
        )
    if facts.dropped:
        figure.add_scatter(**_dropped(facts, place))
    figure.add_scatter(
        x=[*(place[row.id] for row in facts.timed), len(facts.rows)],  # extends the line to the last candidate
        y=[*bests, bests[-1]],
        mode="lines",
        line_shape="hv",
        name="best so far",
        hoverinfo="skip",
    )
    figure.add_scatter(**_champions(facts, place))
    title, most = f"time per call, {facts.unit}", max(_us(row) for row in (*facts.timed, *facts.dropped))
    wide = most > 4 * bests[-1]
    axis = log_axis(title, bests[-1], most) if wide else {"title": {"text": title}}
    figure.update_layout(xaxis_title="candidate", yaxis=axis)
    caption = f"Time per call of each correct candidate, {facts.unit}."
    if facts.dropped:
        caption += " Candidates that could not win were dropped after a few samples."
    return Figure("best-so-far", caption, plain(figure), _improvements(facts, place, bests))


def _dropped(facts: StudyFacts, place: Mapping[int, int]) -> dict[str, Any]:
    """Returns the trace of rows that were pruned while they were timed."""
    return {
        "x": [place[row.id] for row in facts.dropped],
        "y": [_us(row) for row in facts.dropped],
        "mode": "markers",
        "marker": {"symbol": "x-thin-open", "size": 6, "color": "#8a939c"},
        "name": "dropped while timed",
        "text": [f"row {row.id}" for row in facts.dropped],
        "hovertemplate": "%{text}: about %{y:.3f} " + facts.unit,
    }


def _champions(facts: StudyFacts, place: Mapping[int, int]) -> dict[str, Any]:
    """Returns the trace of rows that became champion."""
    champions = [reign.row for reign in reigns(facts) if reign.row.id in place]
    return {
        "x": [place[row.id] for row in champions],
        "y": [_us(row) for row in champions],
        "mode": "markers",
        "marker": {"symbol": "star", "size": 14},
        "name": "champion",
        "text": [f"row {row.id} became champion" for row in champions],
        "hovertemplate": "%{text}: %{y:.3f} " + facts.unit,
    }


def _improvements(facts: StudyFacts, place: Mapping[int, int], bests: Sequence[float]) -> Table:
    """Returns the table of rows that were faster than all before them."""
    steps = [
        (row, best) for row, best, before in zip(facts.timed, bests, [None, *bests], strict=False) if best != before
    ]
    return Table(
        ("candidate", "row", "family", f"best so far, {facts.unit}"),
        [(str(place[row.id]), str(row.id), row.family, number(best)) for row, best in steps],
        frozenset({0, 1, 3}),
    )


def rejection_bars(found: Sequence[Rejection]) -> Figure | None:
    """Plots the number of rejected candidates by status and reason; None if none was rejected."""
    import plotly.graph_objects as go

    if not found:
        return None
    figure = go.Figure()
    for status in dict.fromkeys(one.status for one in found):
        own = [one for one in found if one.status is status]
        figure.add_bar(
            x=[one.count for one in own],
            y=[f"{html.escape(_short(one.reason))} ({one.example_id})" for one in own],
            orientation="h",
            name=status.value,
            hovertext=[html.escape(one.reason) for one in own],
            hovertemplate="%{x}: %{hovertext}",
        )
    figure.update_layout(
        xaxis_title="candidates", yaxis={"autorange": "reversed", "automargin": True}, height=120 + 30 * len(found)
    )
    table = Table(
        ("status", "reason", "candidates", "first row"),
        [(one.status.value, one.reason, str(one.count), str(one.example_id)) for one in found],
        frozenset({2, 3}),
    )
    return Figure("rejections", "Candidates that are not ranked, by status and reason.", plain(figure), table)


def _short(text: str) -> str:
    return text if len(text) <= _LABEL_CHARACTERS else f"{text[:_LABEL_CHARACTERS]}…"


def energy_plot(facts: StudyFacts) -> Figure | None:
    """Plots time against energy with the Pareto front; None if no energy was measured."""
    import plotly.graph_objects as go

    rows = sorted((row for row in facts.timed if row.energy_uj is not None), key=_us)
    if not rows:
        return None
    front = pareto_front(rows)
    figure = go.Figure()
    for name, mode, group in (("elite", "markers", rows), ("best of both", "lines+markers+text", front)):
        figure.add_scatter(
            x=[_us(row) for row in group],
            y=[row.energy_uj for row in group],
            mode=mode,
            name=name,
            line={"shape": "hv"},  # no row was found between two rows of the front
            text=[f"row {row.id}" for row in group],
            textposition="top right",
            cliponaxis=False,
            hovertemplate="%{text}: %{x:.3f} µs, %{y:.1f} µJ",
        )
    figure.update_layout(xaxis_title=f"time per call, {facts.unit}", yaxis_title="energy per call, µJ")
    cells = [(str(row.id), row.family, number(row.median_us), number(row.energy_uj, ".1f")) for row in front]
    table = Table(("row", "family", f"time, {facts.unit}", "energy, µJ"), cells, frozenset({0, 2, 3}))
    caption = "Time and energy of a call; no row is both faster and less energy-consuming than a row on the line."
    return Figure("energy", caption, plain(figure), table)


def roofline(facts: StudyFacts) -> Figure | None:
    """Plots the elites in the roofline of their GPU; None without data sheet or elites, and for workloads."""
    import plotly.graph_objects as go

    target, problem, elites = facts.target, facts.problem, [row for row in facts.elites if row.median_us]
    if target is None or not elites or facts.study.key.workload is not None:
        return None
    flops = floor_us(problem, target) * target.fp16_tensor_tflops * 1e6
    intensity = flops / problem.min_bytes
    peak, mma_peak = target.fp16_tensor_tflops, target.fp16_tensor_tflops * target.mma_sync_fraction
    l2_gbps = target.l2_bytes_per_clk * target.boost_clock_mhz / 1e3
    edge = peak * 1e3 / target.dram_gbps
    left, right = min(intensity, edge) / 10, max(intensity, edge) * 10
    figure = go.Figure()
    roofs = ((f"DRAM {target.dram_gbps:.0f} GB/s", target.dram_gbps), (f"L2 about {l2_gbps:.0f} GB/s", l2_gbps))
    for name, gbps in roofs:  # straight lines on logarithmic axes
        points = [left, peak * 1e3 / gbps, right] if left < peak * 1e3 / gbps < right else [left, right]
        figure.add_scatter(x=points, y=[min(peak, gbps * x / 1e3) for x in points], mode="lines", name=name)
    if mma_peak < peak:
        figure.add_scatter(x=[left, right], y=[mma_peak] * 2, mode="lines", name="mma.sync peak")
    rates = [flops / _us(row) / 1e6 for row in elites]
    figure.add_scatter(
        x=[intensity] * len(elites),
        y=rates,
        mode="markers",
        name="predicted elites" if facts.predicted else "elites",
        text=[f"rank {row.rank}, row {row.id}: {_us(row):.3f} {facts.unit}" for row in elites],
        hovertemplate="%{text}, %{y:.2f} TFLOP/s",
        marker={"size": 10},
    )
    figure.update_layout(
        xaxis=log_axis("FLOP per byte that must move", left, right),
        yaxis=log_axis("TFLOP/s", min(*rates, target.dram_gbps * left / 1e3), peak),
    )
    rows = [_share(row, rate, peak, facts) for row, rate in zip(elites, rates, strict=True)]
    head = ("rank", "row", f"time, {facts.unit}", "TFLOP/s", "of the peak", "of DRAM's rate")
    caption = (
        f"{'Predicted elites' if facts.predicted else 'Elites'} in the roofline of {target.marketing_name}: "
        f"{peak:.0f} TFLOP/s dense {problem.dtype.value}. With warm caches tensors may come from L2."
    )
    return Figure("roofline", caption, plain(figure), Table(head, rows, frozenset(range(6))))


def _share(row: Row, rate: float, peak: float, facts: StudyFacts) -> tuple[str, ...]:
    target = facts.target
    assert target is not None
    moved = facts.problem.min_bytes / (_us(row) * target.dram_gbps * 1e3)
    return (
        number(row.rank, "d"), str(row.id), number(row.median_us), number(rate, ".2f"), f"{rate / peak:.1%}",
        f"{moved:.1%}",
    )  # fmt: skip


def _us(row: Row) -> Any:
    return row.median_us
