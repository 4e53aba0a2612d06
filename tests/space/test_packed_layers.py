"""Vectorised traversal of several layers at a time, compared with traversal of one row layer by layer."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.model import parse_problem
from evoengine.space.diagram.decision_diagram import Diagram
from evoengine.space.index_rows import IndexRows
from evoengine.space.loader import find_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target


@pytest.fixture(scope="module", params=["mma", "wmma", "scalar"])
def space(request: pytest.FixtureRequest) -> ValidSpace:
    """Spaces of several sizes; the largest has billions of configs."""
    return find_space(request.param).build(parse_problem("default"), get_target("h200"))


def changed(rows: IndexRows, space: ValidSpace, rng: np.random.Generator) -> IndexRows:
    """Returns rows with another value of one tunable, possibly invalid or beyond its values."""
    sizes = np.array([len(tunable.values) for tunable in space.tunables])
    axes = rng.integers(len(sizes), size=len(rows))
    others = rows.copy()
    others[np.arange(len(rows)), axes] = rng.integers(sizes[axes] + 1)
    return others


def one_by_one(diagram: Diagram, rows: IndexRows) -> list[int | None]:
    return [diagram.position(row) for row in rows]


def test_positions_round_trip_for_many_rows(space: ValidSpace) -> None:
    diagram, rng = space.diagram, np.random.default_rng(0)
    places = np.concatenate([[0, diagram.count - 1], rng.integers(diagram.count, size=200)])
    rows = diagram.rows(places)
    assert one_by_one(diagram, rows) == places.tolist()
    assert diagram.positions(rows).tolist() == places.tolist()


def test_membership_equals_single_look_ups(space: ValidSpace) -> None:
    diagram, rng = space.diagram, np.random.default_rng(1)
    rows = diagram.rows(rng.integers(diagram.count, size=200))
    asked = np.concatenate([rows, changed(rows, space, rng), changed(changed(rows, space, rng), space, rng)])
    truth = [place is not None for place in one_by_one(diagram, asked)]
    assert diagram.contains(asked).tolist() == truth
    assert {True, False} == set(truth)


def test_a_tunable_of_256_values() -> None:
    rows = np.arange(256, dtype=np.uint8)[:, None]
    diagram = Diagram.of_rows([0], rows[rows[:, 0] != 7])
    assert diagram.contains(rows).sum() == 255
    assert diagram.rows(np.array([6, 7, 254])).tolist() == [[6], [8], [255]]
