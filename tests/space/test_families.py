"""Union of families: content, and moves within a family."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.model import Config, Problem
from evoengine.space.diagram.config_count import Count
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space, load_space
from evoengine.target import get_target

PROBLEM = Problem(1, 8, 512, 64)
L4 = get_target("l4")
TOY = """
family = "toy"
doc = "shares a tunable's name with others, and little else"
tunables.STAGES = { kind = "ordinal", values = [1, 2], unit = "-", doc = "d" }
tunables.MODE = { kind = "categorical", values = ["a", "b"], unit = "-", doc = "d" }
[constraints]
one = { rule = "STAGES == 1 or MODE == 'a'", reason = "r" }
"""


@pytest.fixture(scope="module")
def spaces(tmp_path_factory: pytest.TempPathFactory) -> FamilySpaces:
    toy = tmp_path_factory.mktemp("toy") / "toy.toml"
    toy.write_text(TOY)
    members = [space.build(PROBLEM, L4) for space in (find_space("scalar"), load_space(toy), find_space("wmma"))]
    return FamilySpaces(tuple(members))


def test_content_of_the_union(spaces: FamilySpaces) -> None:
    scalar, toy, wmma = spaces.members
    assert spaces.families == ("scalar", "toy", "wmma")
    assert spaces.of("toy") is toy
    assert spaces.count == Count(scalar.size + 3 + wmma.size)
    assert spaces.size == spaces.count.value
    for config in (scalar.config(7), toy.config(1), wmma.config(99)):
        assert config in spaces
        assert Config.of("other", config.as_dict()) not in spaces
        assert Config.of("toy" if config.family != "toy" else "wmma", config.as_dict()) not in spaces
    assert "toy" not in spaces
    only = FamilySpaces.around(toy)
    assert list(only) == list(toy)
    assert FamilySpaces.around(only) is only


def test_families_are_sampled_uniformly(spaces: FamilySpaces) -> None:
    rng = np.random.default_rng(0)
    drawn = [spaces.sample(rng).family for _ in range(900)]
    assert all(abs(drawn.count(family) - 300) < 5 * 200**0.5 for family in spaces.families)


@pytest.mark.parametrize("seed", range(12))
def test_moves_stay_within_their_family(spaces: FamilySpaces, seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = spaces.sample(rng)
    other = spaces.of(config.family).sample(rng)
    wild = {tunable.name: tunable.sample(rng) for tunable in spaces.of(config.family).tunables}
    moved = [
        spaces.mutate(config, rng, 0.3),
        spaces.crossover(config, other, rng),
        spaces.repair(config.family, wild, rng),
        *spaces.neighbours(config),
    ]
    assert {one.family for one in moved} == {config.family}
    assert all(one in spaces for one in moved)


def test_crossover_of_families_is_rejected(spaces: FamilySpaces) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"scalar .*toy "):
        spaces.crossover(spaces.of("scalar").config(0), spaces.of("toy").config(0), rng)
