"""Plots of the page, each with its numbers as a table for accessibility."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Cells = tuple[str, ...]


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
    """Id on the page."""
    caption: str
    """Description in one sentence."""
    plot: Mapping[str, Any] = field(repr=False)
    """Plotly's ``data`` and ``layout``; the page sets the colours, light or dark."""
    table: Table | None = None


def plain(figure: Any) -> dict[str, Any]:
    """Returns a Plotly figure as JSON values without its template, since the page has its own style.

    Args:
        figure: A ``plotly.graph_objects.Figure``.
    """
    document: dict[str, Any] = json.loads(figure.to_json())
    document.get("layout", {}).pop("template", None)
    document.pop("frames", None)
    return document


def log_axis(title: str, least: float, most: float) -> dict[str, Any]:
    """Returns a logarithmic axis with full numbers as ticks; Plotly labels ticks between powers of ten by one digit.

    Args:
        title: Title of the axis.
        least: Smallest value of the plot.
        most: Largest value of the plot.
    """
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return {"title": {"text": title}, "type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def number(value: float | None, form: str = ".3f") -> str:
    """Formats a number for a table; a dash for None."""
    return "–" if value is None else format(value, form)
