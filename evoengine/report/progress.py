"""Plot of a search: time of each correct candidate, the best so far, and the champions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from evoengine.leaderboard.records import Row
from evoengine.report.facts import StudyFacts, reigns, row_us
from evoengine.report.figure import Figure, Table, hover_lines, log_axis, number, plain, series, words

_NEAR: Final = (0.025, 1.1)
"""Two champions nearer than this share of all candidates and this ratio of times get one label, that of the later."""
_WIDE: Final = 2
"""Ratio of slowest to fastest time from which the axis is logarithmic."""


def best_so_far(facts: StudyFacts) -> Figure | None:
    """Plots times in the order of evaluation with the best so far; None if nothing was timed."""
    import plotly.graph_objects as go

    if not facts.timed:
        return None
    place = {row.id: number for number, row in enumerate(facts.rows, start=1)}
    bests = list(accumulate((row_us(row) for row in facts.timed), min))
    figure = go.Figure()
    figure.add_scatter(
        x=[*(place[row.id] for row in facts.timed), len(facts.rows)],  # extends the line to the last candidate
        y=[*bests, bests[-1]],
        mode="lines",
        line={"shape": "hv", "width": 2},
        name="best so far",
        meta="ink",
        hoverinfo="skip",
    )
    if facts.dropped:
        figure.add_scatter(**_dropped(facts, place))
    for index, family in enumerate(sorted({row.family for row in facts.timed})):
        figure.add_scatter(**_candidates(facts, place, family, index))
    figure.add_scatter(**_champions(facts, place))
    most = max(row_us(row) for row in (*facts.timed, *facts.dropped))
    title = f"time per call, {facts.unit}"
    axis = {"title": {"text": title}}
    if most > _WIDE * bests[-1]:
        axis = log_axis(f"{title}, log scale", bests[-1], most)
    figure.update_layout(xaxis_title="candidate, in order of evaluation", yaxis=axis)
    return Figure("best-so-far", _caption(facts), plain(figure), _improvements(facts, place, bests))


def _caption(facts: StudyFacts) -> str:
    caption = f"Time per call of each correct candidate, {facts.unit}; lower is faster."
    if facts.dropped:
        caption += " Candidates that could not win were dropped after a few samples."
    if any(True for _ in reigns(facts)):
        caption += " Stars are champions, numbered as in the champion history; point at one for its changes."
    return caption


def _candidates(facts: StudyFacts, place: Mapping[int, int], family: str, index: int) -> dict[str, Any]:
    """Returns the trace of one family's correct rows."""
    colour, symbol = series(index)
    own = [row for row in facts.timed if row.family == family]
    return {
        "x": [place[row.id] for row in own],
        "y": [row_us(row) for row in own],
        "mode": "markers",
        "marker": {"size": 6, "opacity": 0.8, "symbol": symbol},
        "meta": colour,
        "name": words(family, 24),
        "text": [f"row {row.id}" for row in own],
        "hovertemplate": "%{text}: %{y:.3f} " + facts.unit,
    }


def _dropped(facts: StudyFacts, place: Mapping[int, int]) -> dict[str, Any]:
    """Returns the trace of rows that were pruned while they were timed."""
    return {
        "x": [place[row.id] for row in facts.dropped],
        "y": [row_us(row) for row in facts.dropped],
        "mode": "markers",
        "marker": {"symbol": "x-thin-open", "size": 5, "opacity": 0.7},
        "meta": "quiet",
        "name": "dropped while timed",
        "text": [f"row {row.id}" for row in facts.dropped],
        "hovertemplate": "%{text}: about %{y:.3f} " + facts.unit,
    }


def _champions(facts: StudyFacts, place: Mapping[int, int]) -> dict[str, Any]:
    """Returns the trace of rows that became champion, with their numbers in the champion history."""
    champions = [(number, reign) for number, reign in enumerate(reigns(facts), 1) if reign.row.id in place]
    labelled = _labelled([reign.row for _, reign in champions], place)
    return {
        "x": [place[reign.row.id] for _, reign in champions],
        "y": [row_us(reign.row) for _, reign in champions],
        "mode": "markers+text",
        "marker": {"symbol": "star", "size": 14, "line": {"width": 1}},
        "meta": "champion",
        "name": "champion",
        "text": [f"<b>{number}</b>" if reign.row.id in labelled else "" for number, reign in champions],
        "textposition": "bottom left",  # free of candidates: none before is faster
        "cliponaxis": False,
        "hovertext": [
            hover_lines(
                f"<b>champion {number}</b>, row {reign.row.id}: {row_us(reign.row):.3f} {facts.unit}", reign.changed
            )
            for number, reign in champions
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


def _labelled(champions: Sequence[Row], place: Mapping[int, int]) -> set[int]:
    """Returns the ids of the champions whose labels do not overlap, preferring later ones."""
    share, ratio = _NEAR
    kept: list[Row] = []
    for row in reversed(champions):
        near = (
            kept and place[kept[-1].id] - place[row.id] < share * len(place) and row_us(row) < ratio * row_us(kept[-1])
        )
        if not near:
            kept.append(row)
    return {row.id for row in kept}


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
