"""Importance of tunables, by Optuna's evaluator, one family at a time.

A study of several families is a conditional space: a tunable exists in its family only, so a plot over all families
would compare tunables that were never varied together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from evoengine.leaderboard.records import Row
from evoengine.report.facts import StudyFacts, row_us
from evoengine.report.figure import Figure, Table, plain, words
from evoengine.report.parallel import distinct, parallel_coordinates

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import CategoricalDistribution

_FEWEST_ROWS: Final = 16
"""Minimum number of rows for the importance of about two dozen tunables."""
_SHOWN: Final = 10
"""Number of tunables in an importance plot."""
_TOGETHER: Final = 4
"""Number of tunables in the parallel-coordinate plot."""
_LINES: Final = (10, 40)
"""Minimum and maximum number of rows in it, which is half of all rows between; slower rows would stretch the time axis
until the fast ones merge."""
_SLOW: Final = 2.0
"""Ratio to the fastest time from which all cells have the same colour, so that one slow cell does not hide the rest."""
_MOST_COLUMNS: Final = 6
"""Number of values up to which the cells of a plot of two tunables have texts."""
_LABEL_CHARACTERS: Final = 18


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
        few = f"{len(rows)} correct rows are too few to rank its tunables: {_FEWEST_ROWS} are needed"
        return Influence(family, len(rows), few)
    distributions = _distributions(rows)
    if len(distributions) < 2 or len({row.median_us for row in rows}) == 1:
        return Influence(family, len(rows), "no tunable or time varied")
    return Influence(family, len(rows), "", tuple(_figures(facts, family, rows, distributions)))


def _rows(facts: StudyFacts, family: str) -> list[Row]:
    """Returns the timed rows of one family, fastest first."""
    rows = [row for row in (*facts.timed, *facts.dropped) if row.family == family]
    return sorted(rows, key=lambda row: (row_us(row), row.id))


def _distributions(rows: Sequence[Row]) -> dict[str, CategoricalDistribution]:
    """Returns the tunables that vary, with the values that occurred."""
    from optuna.distributions import CategoricalDistribution

    found = {}
    for name in sorted(set.intersection(*(set(row.config) for row in rows))):
        values = distinct(rows, name)
        if len(values) > 1:
            found[name] = CategoricalDistribution(values)
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
        params = {name: row.config[name] for name in distributions}
        study.add_trial(create_trial(value=row.median_us, params=params, distributions=dict(distributions)))
    return study


def _figures(
    facts: StudyFacts, family: str, rows: Sequence[Row], distributions: dict[str, CategoricalDistribution]
) -> Iterator[Figure]:
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    shares = get_param_importances(_study(rows, distributions), evaluator=PedAnovaImportanceEvaluator())
    names = list(shares)
    yield _importance(family, shares)
    yield parallel_coordinates(facts, family, rows[: _shown_rows(len(rows))], names[:_TOGETHER])
    yield _pair(facts, family, rows, names[0], names[1])


def _importance(family: str, shares: Mapping[str, float]) -> Figure:
    """Plots the most important tunables as bars."""
    import plotly.graph_objects as go

    top = list(shares)[:_SHOWN]
    figure = go.Figure()
    figure.add_bar(
        x=[100 * shares[name] for name in top],
        y=list(range(len(top))),
        orientation="h",
        meta="series-1",
        text=[f"{shares[name]:.0%}" for name in top],
        textposition="outside",
        cliponaxis=False,
        hovertext=[f"{words(name)}: {shares[name]:.1%}" for name in top],
        hovertemplate="%{hovertext}<extra></extra>",
    )
    figure.update_layout(
        xaxis={"title": {"text": "share of importance, %"}, "range": [0, 115 * shares[top[0]]]},
        yaxis={**_named_ticks(top), "autorange": "reversed"},
        height=110 + 26 * len(top),
        bargap=0.35,
    )
    table = Table(("tunable", "share"), [(name, f"{share:.1%}") for name, share in shares.items()], frozenset({1}))
    caption = (
        f"{family}: importance of each tunable for being among the fastest tenth, by PED-ANOVA. The shares of all "
        "tunables add up to 100 %."
    )
    return Figure(f"importance-{family}", caption, plain(figure), table, "Importance by PED-ANOVA")


def _pair(facts: StudyFacts, family: str, rows: Sequence[Row], first: str, second: str) -> Figure:
    """Plots the fastest row of each pair of values, to show interactions of two tunables."""
    import plotly.graph_objects as go

    cells: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        cells.setdefault((str(row.config[first]), str(row.config[second])), []).append(row_us(row))
    across, down = (list(dict.fromkeys(map(str, distinct(rows, name)))) for name in (first, second))
    texts = {pair: f"{min(times):.3f}<br>{_rows_text(times)}" for pair, times in cells.items()}
    labelled = len(across) <= _MOST_COLUMNS and len(down) <= _MOST_COLUMNS
    times = [min(found) for found in cells.values()]
    fastest, slowest = min(times), max(times)
    figure = go.Figure()
    figure.add_heatmap(
        z=[[min(cells[x, y]) if (x, y) in cells else None for x in across] for y in down],
        text=[[texts.get((x, y), "") for x in across] for y in down],
        texttemplate="%{text}" if labelled else None,
        hovertext=[
            [f"{words(f'{first} {x}, {second} {y}')}:<br>{texts.get((x, y), '–')}" for x in across] for y in down
        ],
        hovertemplate="%{hovertext}<extra></extra>",
        hoverongaps=False,
        colorscale="Cividis",
        zmin=fastest,
        zmax=min(slowest, _SLOW * fastest),
        showscale=not labelled,
        colorbar={"thickness": 14},
        xgap=2,
        ygap=2,
    )
    figure.update_layout(
        xaxis={"title": {"text": words(first)}, "showgrid": False, **_named_ticks(across)},
        yaxis={"title": {"text": words(second)}, "showgrid": False, **_named_ticks(down)},
    )
    table = Table(
        (first, second, f"fastest, {facts.unit}", "rows"),
        [(*pair, f"{min(times):.3f}", str(len(times))) for pair, times in sorted(cells.items())],
        frozenset({2, 3}),
    )
    caption = (
        f"{family}: {first} and {second} together. A cell gives the fastest time in {facts.unit} and the number of "
        "rows with these values; darker is faster, empty cells were not tried."
    )
    return Figure(f"interaction-{family}", caption, plain(figure), table, f"{first} and {second}")


def _named_ticks(names: Sequence[str]) -> dict[str, Any]:
    return {"tickvals": list(range(len(names))), "ticktext": [words(name, _LABEL_CHARACTERS) for name in names]}


def _shown_rows(count: int) -> int:
    """Returns the number of rows in the parallel-coordinate plot."""
    fewest, most = _LINES
    return min(most, max(fewest, count // 2))


def _rows_text(times: Sequence[float]) -> str:
    return f"{len(times)} row{'' if len(times) == 1 else 's'}"
