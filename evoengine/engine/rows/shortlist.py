"""Shortlists: the predicted rows to measure first, chosen so that the fastest kernel is likely to be among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from evoengine.errors import EvoEngineError
from evoengine.leaderboard.records import Row
from evoengine.leaderboard.store import Leaderboard
from evoengine.search.forecast.choice import Forecast, forecasts_for
from evoengine.search.forecast.decision_set import decision_set
from evoengine.space.loader import find_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import TARGETS

SHORTLIST: Final = 20
"""Number of rows that a search without a GPU lists and that ``verify`` measures by default."""


def shortlisted(board: Leaderboard, ranking: Sequence[Row], count: int) -> list[Row]:
    """Chooses predicted rows of one ranking; machine code that several rows share counts once.

    Args:
        board: Leaderboard of the rows.
        ranking: Rows of one ranking.
        count: Maximum number of rows.

    Returns:
        The chosen rows, fastest prediction first; simply the fastest ones if their GPU has no data sheet.
    """
    rows = [row for row in ranking if row.predicted and row.median_us]
    rows = sorted(rows, key=lambda row: (row.median_us or 0.0, row.id))
    distinct = list({row.code_hash or str(row.id): row for row in reversed(rows)}.values())[::-1]
    if len(distinct) <= count:
        return distinct
    configs = [row.full_config for row in distinct]
    times = [row.median_us or 0.0 for row in distinct]
    chosen = decision_set(configs, times, _errors(board, distinct[0], {row.family for row in distinct}), count)
    return [distinct[place] for place in sorted(chosen)]


def _errors(board: Leaderboard, row: Row, families: set[str]) -> Mapping[str, Forecast]:
    """Returns the forecasts that model the errors of a ranking's predictions, by family; empty without a data sheet."""
    target = next((one for one in TARGETS.values() if one.marketing_name == row.device), None)
    problem = next((study.key.problem for study in board.studies() if study.scope.problem == row.problem), None)
    if target is None or problem is None:
        return {}
    return forecasts_for(_spaces(families), problem, target.compiled_for(row.arch))


def _spaces(families: set[str]) -> list[SearchSpace]:
    """Loads the search spaces of those families that are installed."""
    found = []
    for family in sorted(families):
        try:
            found.append(find_space(family))
        except EvoEngineError:  # a family of another installation; its errors are taken as independent of the model's
            continue
    return found
