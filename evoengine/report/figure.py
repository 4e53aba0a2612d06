"""Plots of the page, each with its numbers as a table for accessibility."""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Cells = tuple[str, ...]

_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "pentagon", "hexagon")
"""Marker symbols of series, so that they differ by more than their colour."""
_MOST_LINES: Final = 10
"""Number of lines in a hover text."""
_NARROW: Final = 8
"""Ratio of the ends of an axis up to which more ticks are labelled."""
_MANY_DECADES: Final = 5
"""Number of powers of ten from which only these are labelled."""


@dataclass(frozen=True)
class Table:
    """Table of texts."""

    head: Cells
    rows: Sequence[Cells]
    numeric: frozenset[int] = frozenset()
    """Indices of the numeric columns."""


@dataclass(frozen=True)
class Figure:
    """Plot with caption and table."""

    name: str
    """Id within its study."""
    caption: str
    """Description in one or two sentences."""
    plot: Mapping[str, Any] = field(repr=False)
    """Plotly's ``data`` and ``layout``.

    The ``meta`` of a trace names its colour, a custom property of the style sheet (``series-1``, ``quiet``), so that
    the page can draw it light, dark or on paper.
    """
    table: Table | None = None
    title: str = ""
    """Heading, where a section has several plots."""


def plain(figure: Any) -> dict[str, Any]:
    """Returns a Plotly figure as JSON values without its template, since the page has its own style.

    Args:
        figure: A ``plotly.graph_objects.Figure``.
    """
    document: dict[str, Any] = json.loads(figure.to_json())
    document.get("layout", {}).pop("template", None)
    document.pop("frames", None)
    return document


def words(text: object, most: int | None = None) -> str:
    """Returns a stored text for a plot; escaped, since Plotly interprets texts as HTML.

    Args:
        text: Text or value of a tunable.
        most: Number of characters that fit; None for all.
    """
    whole = str(text)
    return html.escape(whole if most is None or len(whole) <= most else f"{whole[: most - 1]}…")


def hover_lines(first: str, lines: Sequence[str]) -> str:
    """Returns a hover text with one line per change; long lists are cut.

    Args:
        first: First line, in markup that Plotly understands.
        lines: Stored texts.
    """
    shown = [words(line, 60) for line in lines[:_MOST_LINES]]
    more = [f"and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "<br>".join((first, *shown, *more))


def series(index: int) -> tuple[str, str]:
    """Returns the colour and the marker symbol of the series with this index."""
    place = index % len(_SYMBOLS)
    return f"series-{place + 1}", _SYMBOLS[place]


def log_axis(title: str, least: float, most: float) -> dict[str, Any]:
    """Returns a logarithmic axis with full numbers as ticks; Plotly labels ticks between powers of ten by one digit.

    Args:
        title: Title of the axis.
        least: Smallest value of the plot.
        most: Largest value of the plot.
    """
    last = min(math.ceil(math.log10(most)), sys.float_info.max_10_exp)
    decades = range(math.floor(math.log10(least)), last + 1)
    digits = (
        (1, 1.5, 2, 3, 4, 5, 6, 8) if most < _NARROW * least else (1, 2, 5) if len(decades) < _MANY_DECADES else (1,)
    )
    ticks = [tick for decade in decades for digit in digits if math.isfinite(tick := digit * 10.0**decade)]
    return {"title": {"text": title}, "type": "log", "tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def number(value: float | None, form: str = ".3f") -> str:
    """Formats a number for a table; a dash for None."""
    return "–" if value is None else format(value, form)
