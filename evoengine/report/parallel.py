"""Parallel coordinates: the fastest rows with their values of the most important tunables.

The lines are ordinary scatter traces, not Plotly's ``parcoords``: that type needs three WebGL contexts a plot, of which
a browser has 8 to 16, and its labels overlap on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evoengine.leaderboard.records import Row
from evoengine.model import Value
from evoengine.report.facts import StudyFacts, row_us
from evoengine.report.figure import Figure, Table, plain, words

_NEXT: Final = 9
"""Number of rows after the fastest that have a colour of their own."""
_BAND: Final = 0.7
"""Share of a value's band in which its lines are spread, so that they do not cover each other."""
_LABEL_CHARACTERS: Final = 12
_MOST_LABELS: Final = 8
"""Number of labels on an axis; of more values, only every second or third is labelled."""


@dataclass(frozen=True)
class _Axis:
    """One vertical axis: places of the rows from 0, the bottom, to 1, and its labels."""

    title: str
    places: Sequence[float]
    labels: Sequence[tuple[float, str]]


def parallel_coordinates(facts: StudyFacts, family: str, rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Plots rows as lines over the axes of their time and of tunables.

    Args:
        facts: Data of the study.
        family: Family of the rows.
        rows: Rows with a time, fastest first.
        names: Tunables, the most important first; those with one value among the rows are left out.
    """
    import plotly.graph_objects as go

    values = {name: distinct(rows, name) for name in names}
    varied = {name: found for name, found in values.items() if len(found) > 1}
    axes = [_time_axis(rows), *(_tunable_axis(rows, name, found) for name, found in varied.items())]
    figure = go.Figure()
    groups = (
        ("other fast rows", range(1 + _NEXT, len(rows)), "quiet", 1, 0.45),
        (f"ranks 2 to {1 + _NEXT}", range(1, min(1 + _NEXT, len(rows))), "series-1", 1.5, 0.7),
        ("fastest", range(1), "series-2", 3.5, 1.0),
    )
    for name, members, colour, width, opacity in groups:
        if members:
            trace = _lines(facts, rows, axes, varied, members)
            line = {"width": width}
            figure.add_scatter(**trace, name=name, meta=colour, opacity=opacity, line=line)
    ends = {"range": [-0.35, len(axes) - 0.65], "zeroline": False, "showgrid": True, "fixedrange": True, "side": "top"}
    titles = {"tickvals": list(range(len(axes))), "ticktext": [axis.title for axis in axes]}
    figure.update_layout(
        legend={"y": -0.02, "yanchor": "top"},  # the titles of the axes are above
        xaxis={**ends, **titles},
        yaxis={"visible": False, "range": [-0.04, 1.04], "fixedrange": True},
        annotations=[_label(column, place, text) for column, axis in enumerate(axes) for place, text in axis.labels],
    )
    cells = [(str(row.id), f"{row.median_us:.3f}", *(str(row.config[name]) for name in varied)) for row in rows]
    table = Table(("row", f"time, {facts.unit}", *varied), cells, frozenset({0, 1}))
    caption = (
        f"{family}: each line is one of the {len(rows)} fastest rows: its time in {facts.unit}, the fastest at the "
        "bottom, and its values of the most important tunables that differ."
    )
    return Figure(f"together-{family}", caption, plain(figure), table, "Parallel coordinates of the fastest rows")


def distinct(rows: Sequence[Row], name: str) -> list[Value]:
    """Returns the values of a tunable that occur, numbers before texts, in order."""
    return sorted({row.config[name] for row in rows}, key=lambda value: (isinstance(value, str), value))


def _time_axis(rows: Sequence[Row]) -> _Axis:
    times = [row_us(row) for row in rows]
    least, span = times[0], max(times) - times[0] or 1.0
    decimals = 2 if least < 10 else 1 if least < 100 else 0
    labels = [(place, f"{least + place * span:.{decimals}f}") for place in (0.0, 0.5, 1.0)]
    return _Axis("time", [(time - least) / span for time in times], labels)


def _tunable_axis(rows: Sequence[Row], name: str, values: Sequence[Value]) -> _Axis:
    """Places each row in the band of its value; the rows of a band are spread, the fastest at the bottom."""
    places = [0.0] * len(rows)
    for band, value in enumerate(values):
        members = [index for index, row in enumerate(rows) if row.config[name] == value]
        for order, index in enumerate(members):
            offset = _BAND * (order / (len(members) - 1) - 0.5) if len(members) > 1 else 0.0
            places[index] = (band + 0.5 + offset) / len(values)
    step = math.ceil(len(values) / _MOST_LABELS)
    named = list(enumerate(values))[::step]
    labels = [((band + 0.5) / len(values), words(value, _LABEL_CHARACTERS)) for band, value in named]
    return _Axis(words(name, _LABEL_CHARACTERS + 4), places, labels)


def _lines(
    facts: StudyFacts, rows: Sequence[Row], axes: Sequence[_Axis], varied: Mapping[str, object], members: range
) -> dict[str, Any]:
    """Returns one trace with a line per row, separated by gaps."""
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[str] = []
    for index in members:
        row = rows[index]
        settings = "<br>".join(f"{words(name)} = {words(row.config[name], 40)}" for name in varied)
        x += [*range(len(axes)), None]
        y += [*(axis.places[index] for axis in axes), None]
        texts += [f"<b>row {row.id}</b>: {row.median_us:.3f} {facts.unit}<br>{settings}"] * (len(axes) + 1)
    return {"x": x, "y": y, "mode": "lines", "hovertext": texts, "hovertemplate": "%{hovertext}<extra></extra>"}


def _label(column: int, place: float, text: str) -> dict[str, Any]:
    """Returns the label of a value, which the page draws on a background of its own."""
    position = {"x": column, "y": place, "showarrow": False}
    return {**position, "text": text, "name": "label", "borderpad": 2, "captureevents": False}
