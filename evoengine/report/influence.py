"""Which tunables matter, by Optuna's evaluators and plots, one family at a time.

A study of several families is a conditional space: a tunable exists only where its family was chosen, so a plot over
all of them would compare what was never varied together.
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
"""Of fewer rows nothing can be said about two dozen tunables."""
_SHOWN: Final = 10
"""Tunables of an importance plot."""
_TOGETHER: Final = 4
"""Tunables of the plot that shows them together."""
_LINES: Final = 40
"""Its rows; of more, the slow ones would stretch the axis of times until the fast ones are one line."""


@dataclass(frozen=True)
class Influence:
    """What one family's rows say about its tunables."""

    family: str
    rows: int
    """Correct rows that it rests on."""
    note: str
    """Why there are no figures; empty where there are."""
    figures: tuple[Figure, ...] = ()


def influences(facts: StudyFacts) -> list[Influence]:
    """One entry per family that has correct rows.

    Rows that were dropped while they were timed count with the median of the samples that they had: without them,
    values that make every kernel slow would look as if nobody had tried them.
    """
    return [_influence(facts, family) for family in sorted({row.family for row in facts.timed})]


def _influence(facts: StudyFacts, family: str) -> Influence:
    rows = _rows(facts, family)
    if len(rows) < _FEWEST_ROWS:
        return Influence(family, len(rows), f"{len(rows)} correct rows are too few to rank its tunables")
    distributions = _distributions(rows)
    if len(distributions) < 2 or len({row.median_us for row in rows}) == 1:
        return Influence(family, len(rows), "nothing varied in them")
    return Influence(family, len(rows), "", tuple(_figures(facts, family, rows, distributions)))


def _rows(facts: StudyFacts, family: str) -> list[Row]:
    """Of one family, fastest first."""
    rows = [row for row in (*facts.timed, *facts.dropped) if row.family == family]
    return sorted(rows, key=lambda row: (row.median_us or 0.0, row.id))


def _distributions(rows: Sequence[Row]) -> dict[str, CategoricalDistribution]:
    """The tunables that vary, as lists of the values that occurred."""
    from optuna.distributions import CategoricalDistribution

    found = {}
    for name in sorted(set.intersection(*(set(row.config) for row in rows))):
        if len(_sorted(rows, name)) > 1:
            found[name] = CategoricalDistribution(_sorted(rows, name))
    return found


def _study(rows: Sequence[Row], distributions: dict[str, CategoricalDistribution]) -> optuna.Study:
    """The rows as a study in memory."""
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
    caption = f"{family}: how much each tunable decides whether a row is among the fastest tenth (PED-ANOVA)."
    yield Figure(f"importance-{family}", caption, _titled(bars, "share of importance", None), table)
    yield _pair(facts, family, rows, top[0], top[1])
    yield _together(facts, family, rows[:_LINES], top[:_TOGETHER])


def _together(facts: StudyFacts, family: str, rows: Sequence[Row], names: Sequence[str]) -> Figure:
    """The fastest rows and their values of the tunables that matter most."""
    from optuna import visualization

    study = _study(rows, {name: found for name, found in _distributions(rows).items() if name in names})
    varied = [name for name in names if len(_sorted(rows, name)) > 1]
    several = visualization.plot_parallel_coordinate(study, params=varied or None, target_name=facts.unit)
    caption = (
        f"{family}: each line is one of the {len(rows)} fastest rows, from its time in {facts.unit} through those of "
        "the most important tunables that differ between them."
    )
    cells = [(str(row.id), f"{row.median_us:.3f}", *(str(row.config[name]) for name in varied)) for row in rows]
    table = Table(("row", f"time, {facts.unit}", *varied), cells, frozenset({0, 1}))
    return Figure(f"together-{family}", caption, _titled(several, None, None), table)


def _pair(facts: StudyFacts, family: str, rows: Sequence[Row], first: str, second: str) -> Figure:
    """The fastest row of each pair of values: where the best value of one tunable depends on the other."""
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
        f"{family}: {first} and {second} together. A cell is the fastest row with these values in {facts.unit}, and of "
        "how many; empty cells were not tried."
    )
    return Figure(f"interaction-{family}", caption, plain(figure), table)


def _cell(times: Sequence[float]) -> str:
    return f"{min(times):.3f} of {len(times)}" if times else ""


def _sorted(rows: Sequence[Row], name: str) -> list[Value]:
    return sorted({_value(row, name) for row in rows}, key=lambda value: (isinstance(value, str), value))


def _value(row: Row, name: str) -> Value:
    """The value, a text escaped: Plotly reads texts as a kind of HTML."""
    value = row.config[name]
    return html.escape(value) if isinstance(value, str) else value


def _titled(figure: Any, x_title: str | None, y_title: str | None) -> dict[str, Any]:
    """A plot of Optuna's without its title, which the page says itself."""
    figure.update_layout(title=None, showlegend=False)
    if x_title is not None:
        figure.update_layout(xaxis_title=x_title, yaxis_title=y_title)
    return plain(figure)
