"""Pareto front of time and energy."""

from __future__ import annotations

from collections.abc import Sequence

from evoengine.leaderboard.records import Row


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows of one scope that no other row dominates in time and energy.

    Args:
        rows: Rows of one scope; those without a time or an energy are left out.

    Returns:
        Rows, fastest first, so that energy falls from row to row; the first of rows equal in both.
    """
    timed = [(row.median_us, row.energy_uj, place, row) for place, row in enumerate(rows)]
    comparable = [(us, uj, place, row) for us, uj, place, row in timed if us is not None and uj is not None]
    front: list[Row] = []
    least_uj = float("inf")
    for _, energy_uj, _, row in sorted(comparable, key=lambda entry: entry[:3]):
        if energy_uj < least_uj:
            front.append(row)
            least_uj = energy_uj
    return front
