"""Boosted trees: the value of a row is the sum of the leaves that it reaches."""

from __future__ import annotations

import numpy as np

from evoengine.costmodel.boosted_trees import parse_trees

TREES = parse_trees(
    {
        "start": 0.5,
        "feature": [[0, 1, 1], [1, 0, 0]],
        "threshold": [[2.0, 5.0, 7.0], [6.0, 1.0, 3.0]],
        "value": [[1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]],
    }
)


def by_hand(x: float, y: float) -> float:
    first = (1.0 if y <= 5 else 2.0) if x <= 2 else (3.0 if y <= 7 else 4.0)
    second = (10.0 if x <= 1 else 20.0) if y <= 6 else (30.0 if x <= 3 else 40.0)
    return 0.5 + first + second


def test_each_row_gets_the_leaves_that_it_reaches() -> None:
    rows = np.array([[x, y] for x in (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 9.0) for y in (4.0, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0)])
    found = TREES(rows)
    assert found.tolist() == [by_hand(*row) for row in rows.tolist()]
    assert [TREES(row[None])[0] for row in rows] == found.tolist(), "a row's value depends on it alone"
