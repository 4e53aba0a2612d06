"""Structure-aware moves, compared with validity and neighbours of the space."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.space.diagram.decision_diagram import Diagram
from evoengine.space.index_rows import RowSet
from evoengine.space.moves.neighbourhood import Neighbourhood
from evoengine.space.valid_space import ValidSpace
from tests.space.test_scale import H200, PROBLEM, SPACE


@pytest.fixture(scope="module")
def space() -> ValidSpace:
    return SPACE.build(PROBLEM, H200)


def test_vectorised_membership_equals_single_look_ups(space: ValidSpace) -> None:
    rng = np.random.default_rng(0)
    sizes = [len(tunable.values) for tunable in space.tunables]
    anything = rng.integers(sizes, size=(400, len(sizes))).astype(np.uint8)
    rows = np.concatenate([anything, space.diagram.rows(rng.integers(space.diagram.count, size=50))])
    assert space.diagram.contains(rows).tolist() == [space.diagram.position(row) is not None for row in rows]


def test_unused_value_is_not_in_the_diagram() -> None:
    diagram = Diagram.of_rows(range(2), np.array([[0, 1], [1, 0]], np.uint8))
    asked = np.array([[0, 1], [1, 0], [1, 1], [2, 0], [0, 2]], np.uint8)
    assert diagram.contains(asked).tolist() == [True, True, False, False, False]


def test_a_sweep_finds_every_neighbour(space: ValidSpace) -> None:
    hood, rng = Neighbourhood(space), np.random.default_rng(1)
    for _ in range(5):
        config = space.sample(rng)
        row = space.row_of(config)
        assert row is not None
        found = [space.config_of(near) for near in hood.neighbours(row)]
        assert set(space.neighbours(config)) <= set(found)
        assert config not in found
        assert len(set(found)) == len(found)
        assert all(near in space for near in found)


def test_seen_rows_are_excluded(space: ValidSpace) -> None:
    hood, seen, rng = Neighbourhood(space), RowSet(len(space.tunables)), np.random.default_rng(2)
    rows = hood.random_rows(20, rng)
    for row in rows[:5]:
        seen.add(row)
    assert [row.tobytes() for row in seen.without(rows)] == [row.tobytes() for row in rows[5:]]


def test_moves_stay_near_their_parents(space: ValidSpace) -> None:
    hood, rng = Neighbourhood(space), np.random.default_rng(3)
    parents = hood.random_rows(300, rng)
    moved = (hood.linked_moves(parents, rng) != parents).sum(axis=1)
    assert moved.max() <= 5
    assert moved.mean() > 1
    others = hood.random_rows(300, rng)
    children = hood.crossings(parents, others, rng)
    assert ((children == parents) | (children == others)).all()
