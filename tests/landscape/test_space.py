"""Recorded configs as a search space: exactly these are valid, and every move yields one of them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from evoengine.landscape.file import read_landscape
from evoengine.model import Config, Problem, Value
from evoengine.space.explicit_space import listed_space
from evoengine.space.index_rows import RowSet
from evoengine.space.language.rules import problem_scope
from evoengine.space.loader import find_space
from evoengine.space.space_builder import build_space
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.landscape.making import RECORDED, config, toy

PROBLEM = Problem(1, 1, 32, 64)
ONLY: dict[str, list[Value]] = {
    "THREADS": [32, 64],
    "L2_PREFETCH_BYTES": [0],
    "CACHE_OP": ["cg"],
    "KEYS_PER_STEP": [1, 2],
    "MIN_CTAS": [1, 2],
}


@pytest.fixture(scope="module")
def ruled() -> ValidSpace:
    """A small space defined by its rules."""
    return build_space(find_space("scalar"), PROBLEM, get_target("l4"), ONLY)


@pytest.fixture(scope="module")
def listed(ruled: ValidSpace) -> ValidSpace:
    """The same configs given as a list, in another order."""
    rows = ruled.diagram.rows(np.random.default_rng(3).permutation(ruled.diagram.count))
    constants = {**problem_scope(PROBLEM), **get_target("l4").scope()}
    space = find_space("scalar")
    narrowed = type(space)(space.family, space.doc, ruled.tunables, space.derived, space.constraints, space.file)
    return listed_space(narrowed, constants, rows)


def test_exactly_the_recorded_configs_are_valid() -> None:
    landscape = toy()
    spaces = landscape.spaces
    assert set(spaces) == set(landscape.by_config)
    assert spaces.size == 5
    assert spaces.count.exact
    assert config(16, "plain", False) in spaces
    assert config(32, "padded", False) not in spaces  # in the product space, but not recorded
    assert spaces.of("toy").starts() == [config(32, "plain", False)]


def test_a_list_has_the_same_configs_and_consistent_indices(ruled: ValidSpace, listed: ValidSpace) -> None:
    assert set(listed) == set(ruled)
    assert [listed.index_of(listed.config(index)) for index in range(listed.size)] == list(range(listed.size))
    assert listed.summary() == [f"scalar: {listed.size:,} configs of 12 tunables, given as a list"]


def test_the_nearest_config_is_that_of_the_rules(ruled: ValidSpace, listed: ValidSpace) -> None:
    """The search in the decision diagram is the independent reference for the distance and the set of ties."""
    rng = np.random.default_rng(0)
    everything = list(ruled)
    for _ in range(40):
        wish = {tunable.name: tunable.sample(rng) for tunable in ruled.tunables}
        seen = RowSet(len(ruled.tunables))
        for index in rng.choice(len(everything), size=len(everything) // 3, replace=False):
            row = ruled.row_of(everything[int(index)])
            assert row is not None
            seen.add(row)
        found = {listed.nearest_outside(wish, np.random.default_rng(turn), seen) for turn in range(25)}
        truth = ruled.nearest_outside(wish, rng, seen)
        assert truth is not None
        far = _steps(ruled, wish, truth)
        for near in found:
            assert near is not None
            assert near in ruled
            assert _steps(ruled, wish, near) == far
            row = ruled.row_of(near)
            assert row is not None
            assert row not in seen


def _steps(space: ValidSpace, wish: dict[str, int | str | bool], near: Config) -> int:
    settled = space.conditions.normalised(wish)
    return sum(
        int(tunable.distances(settled[tunable.name])[tunable.encode(near[tunable.name])]) for tunable in space.tunables
    )


def test_ties_are_broken_evenly() -> None:
    (space,) = toy().spaces.members
    rng = np.random.default_rng(1)
    draws = Counter(space.repair({}, rng) for _ in range(1000))
    assert len(draws) == 5  # an empty wish has the same distance to all
    assert all(150 < count < 250 for count in draws.values())


def test_an_exhausted_list_has_no_nearest_config(listed: ValidSpace) -> None:
    seen = RowSet(len(listed.tunables))
    for one in listed:
        row = listed.row_of(one)
        assert row is not None
        seen.add(row)
    assert listed.nearest_outside({}, np.random.default_rng(0), seen) is None
    assert listed.sample_outside(np.random.default_rng(0), seen) is None


def test_moves_in_a_recorded_space_stay_in_it() -> None:
    (space,) = read_landscape(RECORDED).spaces.members
    rng = np.random.default_rng(0)
    parents = [space.sample(rng) for _ in range(20)]
    for a, b in pairwise(parents):
        assert space.mutate(a, rng, 0.2) in space
        assert space.mutate(a, rng, 0.2) != a
        assert space.crossover(a, b, rng) in space
        assert all(near in space for near in space.neighbours(a))


def test_a_tunable_without_effect_costs_no_steps() -> None:
    """UNROLL has an effect only with more than one loop: with TILE 64 and 64 keys its value adds no distance."""
    (space,) = toy().spaces.members
    wish: dict[str, Value] = {"TILE": 64, "LAYOUT": "plain", "UNROLL": True}
    assert space.repair(wish) == config(64, "plain", False)
