"""Importance of tunables, by Optuna's evaluators and plots, one family at a time.

A study of several families is a conditional space: a tunable exists in its family only, so a plot over all families
would compare tunables that were never varied together.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from evoengine.leaderboard.records import Row
from evoengine.model import Value
from evoengine.report.facts import StudyFacts
from evoengine.report.figure import Figure, Table, plain

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import CategoricalDistribution

_FEWEST_ROWS: Final = 16
"""Minimum number of rows for the importance of about two dozen tunables."""
_SHOWN: Final = 10
"""Number of tunables in an importance plot."""
_TOGETHER: Final = 4
"""Number of tunables in the parallel-coordinate plot."""
_LINES: Final = 40
"""Number of rows in it; slower rows would stretch the time axis until the fast ones merge."""


@dataclass(frozen=True)
class Influence:
    """Importance of one family's tunables."""

    family: str
    rows: int
    """Number of correct rows that it is based on."""
    note: str
    """Reason why there are no figures; empty if there are."""
    figures: tuple[Figure, ...] = ()


def influences(facts: StudyFacts) -> list[Influence]:
    """Returns one entry per family with correct rows.

    Rows that were pruned while they were timed count with the median of their samples; without them, values that make
    every kernel slow would look untried.
    """
    return [_influence(facts, family) for family in sorted({row.family for row in facts.timed})]


def _influence(facts: StudyFacts, family: str) -> Influence:
    rows = _rows(facts, family)
    if len(rows) < _FEWEST_ROWS:
        return Influence(family, len(rows), f"{len(rows)} correct rows are too few to rank its tunables")
    distributions = _distributions(rows)
    if len(distributions) < 2 or len({row.median_us for row in rows}) == 1:
        return Influence(family, len(rows), "no tunable or time varied")
    return Influence(family, len(rows), "", tuple(_figures(facts, family, rows, distributions)))


def _rows(facts: StudyFacts, family: str) -> list[Row]:
    """Returns the timed rows of one family, fastest first."""
    rows = [row for row in (*facts.timed, *facts.dropped) if row.family == family]
    return sorted(rows, key=lambda row: (row.median_us or 0.0, row.id))


def _distributions(rows: Sequence[Row]) -> dict[str, CategoricalDistribution]:
    """Returns the tunables that vary, with the values that occurred."""
    from optuna.distributions import CategoricalDistribution

    found = {}
    for name in sorted(set.intersection(*(set(row.config) for row in rows))):
        if len(_sorted(rows, name)) > 1:
            found[name] = CategoricalDistribution(_sorted(rows, name))
    return found


def _study(rows: Sequence[Row], distributions: dict[str, CategoricalDistribution]) -> optuna.Study:
    """Builds an Optuna study of the rows in memory."""
    import optuna
    from optuna.trial import create_trial

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study()
    finally:
        optuna.logging.set_verbosity(before)
    for row in rows:
        params = {name: _value(row, name) for name in distributions}
        study.add_trial(create_trial(value=row.median_us, params=params, distributions=dict(distributions)))
    return study


def _figures(
    facts: StudyFacts, family: str, rows: Sequence[Row], distributions: dict[str, CategoricalDistribution]
) -> Iterator[Figure]:
    from optuna import visualization
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    study = _study(rows, distributions)
    shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())
    top = list(shares)[:_SHOWN]
    bars = visualization.plot_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=top)
    table = Table(("tunable", "share"), [(name, f"{shares[name]:.1%}") for name in shares], frozenset({1}))
    caption = f"{family}: importance of each tunable for being among the fastest tenth (PED-ANOVA)."
    yield Figure(f"importance-{family}", caption, _titled(bars, "share of importance", None), table)
    yield _pair(facts, family, rows, top[0], top[1])
    yield _together(facts, family, rows[:_LINES], top[:_TOGETHER])


def _together(facts: StudyFacts, family: str, rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """Plots the fastest rows with their values of the most important tunables."""
    from optuna import visualization

    study = _study(rows, {name: found for name, found in _distributions(rows).items() if name in names})
    varied = [name for name in names if len(_sorted(rows, name)) > 1]
    several = visualization.plot_parallel_coordinate(study, params=varied or None, target_name=facts.unit)
    caption = (
        f"{family}: each line is one of the {len(rows)} fastest rows: its time in {facts.unit} and its values of the "
        "most important tunables that differ."
    )
    cells = [(str(row.id), f"{row.median_us:.3f}", *(str(row.config[name]) for name in varied)) for row in rows]
    table = Table(("row", f"time, {facts.unit}", *varied), cells, frozenset({0, 1}))
    return Figure(f"together-{family}", caption, _titled(several, None, None), table)


def _pair(facts: StudyFacts, family: str, rows: Sequence[Row], first: str, second: str) -> Figure:
    """Plots the fastest row of each pair of values, to show interactions of two tunables."""
    import plotly.graph_objects as go

    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        cells.setdefault((str(_value(row, first)), str(_value(row, second))), []).append(float(row.median_us or 0.0))
    across, down = (list(dict.fromkeys(str(value) for value in _sorted(rows, name))) for name in (first, second))
    figure = go.Figure()
    figure.add_heatmap(
        x=across,
        y=down,
        z=[[min(cells[x, y]) if (x, y) in cells else None for x in across] for y in down],
        text=[
            [f"{min(cells[x, y]):.3f} of {len(cells[x, y])}" if (x, y) in cells else "" for x in across] for y in down
        ],
        texttemplate="%{text}",
        hovertemplate=f"{first} %{{x}}, {second} %{{y}}: %{{text}}",
        colorscale="Cividis",
        colorbar={"title": {"text": facts.unit}},
    )
    figure.update_layout(
        xaxis={"title": {"text": first}, "type": "category"}, yaxis={"title": {"text": second}, "type": "category"}
    )
    table = Table(
        (first, second, f"fastest, {facts.unit}", "rows"),
        [(*pair, f"{min(times):.3f}", str(len(times))) for pair, times in sorted(cells.items())],
        frozenset({2, 3}),
    )
    caption = (
        f"{family}: {first} and {second} together. A cell gives the fastest time in {facts.unit} and the number of "
        "rows with these values; empty cells were not tried."
    )
    return Figure(f"interaction-{family}", caption, plain(figure), table)


def _sorted(rows: Sequence[Row], name: str) -> list[Value]:
    return sorted({_value(row, name) for row in rows}, key=lambda value: (isinstance(value, str), value))


def _value(row: Row, name: str) -> Value:
    """Returns a value with texts escaped, since Plotly interprets texts as HTML."""
    value = row.config[name]
    return html.escape(value) if isinstance(value, str) else value


def _titled(figure: Any, x_title: str | None, y_title: str | None) -> dict[str, Any]:
    """Returns an Optuna plot without its title, which the caption replaces."""
    figure.update_layout(title=None, showlegend=False)
    if x_title is not None:
        figure.update_layout(xaxis_title=x_title, yaxis_title=y_title)
    return plain(figure)
