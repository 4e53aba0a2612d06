"""Plot of time against energy with the Pareto front."""

from __future__ import annotations

from evoengine.leaderboard.pareto import pareto_front
from evoengine.report.facts import StudyFacts, row_us
from evoengine.report.figure import Figure, Table, number, plain


def energy_plot(facts: StudyFacts) -> Figure | None:
    """Plots time against energy with the Pareto front; None if no energy was measured."""
    import plotly.graph_objects as go

    rows = sorted((row for row in facts.timed if row.energy_uj is not None), key=row_us)
    if not rows:
        return None
    front = pareto_front(rows)
    figure = go.Figure()
    named = (("elite", "markers", rows, "series-1"), ("best of both", "lines+markers+text", front, "series-2"))
    for name, mode, group, colour in named:
        figure.add_scatter(
            x=[row.median_us for row in group],
            y=[row.energy_uj for row in group],
            mode=mode,
            name=name,
            meta=colour,
            marker={"size": 8, "symbol": "circle" if group is rows else "diamond"},
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
