"""A plot of the page, and its own numbers as a table for those who cannot see it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Text in rows and columns."""

    head: Cells
    rows: Sequence[Cells]
    numeric: frozenset[int] = frozenset()
    """Columns that hold numbers."""


@dataclass(frozen=True)
class Figure:
    """One plot."""

    name: str
    """Its id on the page."""
    caption: str
    """What it shows, in a sentence."""
    plot: Mapping[str, Any] = field(repr=False)
    """``data`` and ``layout`` as Plotly takes them; colours come from the page, which may be light or dark."""
    table: Table | None = None


def plain(figure: Any) -> dict[str, Any]:
    """A Plotly figure as JSON values, without its template: the page has a look of its own.

    Args:
        figure: ``plotly.graph_objects.Figure``.
    """
    document: dict[str, Any] = json.loads(figure.to_json())
    document.get("layout", {}).pop("template", None)
    document.pop("frames", None)
    return document


def log_axis(title: str, least: float, most: float) -> dict[str, Any]:
    """A logarithmic axis whose ticks are whole numbers: Plotly's own repeat single digits between the powers of ten.

    Args:
        title: what the axis shows.
        least: smallest value of the plot.
        most: largest.
    """
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return {"title": {"text": title}, "type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def number(value: float | None, form: str = ".3f") -> str:
    """A number for a table; a dash where there is none."""
    return "–" if value is None else format(value, form)
