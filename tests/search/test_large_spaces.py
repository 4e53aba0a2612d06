"""Strategies on spaces that cannot be enumerated: 1e10 valid configs, and a rule outside the decision diagram."""

from __future__ import annotations

from pathlib import Path

import pytest

from evoengine.model import Config, Status
from evoengine.search.strategies.registry import STRATEGIES, make_strategy
from evoengine.space import space_builder as building
from evoengine.space.diagram import rule_compilation as compilation
from evoengine.space.loader import load_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from tests.search.landscape import SPACE_TOML, noise
from tests.space.test_scale import H200, PROBLEM, SPACE, loose_space

pytestmark = pytest.mark.slow

TINY = {"TILE_M": (16, 64), "TILE_N": (64, 128), "WARPS": (1, 4), "STAGES": (2, 4), "PAD": (0,), "CTAS": (1, 2)}


def drive(space: ValidSpace, name: str, trials: int) -> list[Config]:
    """Runs a sequential search until the space is exhausted."""
    strategy = make_strategy(name, space, seed=1)
    asked = []
    for _ in range(trials):
        proposal = strategy.ask()
        if proposal is None:
            break
        asked.append(proposal.config)
        strategy.tell(proposal, 5.0 + noise(proposal.config, "large", 1.0), Status.OK)
    return asked


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.every(2)
def test_proposals_are_new_and_valid_in_a_large_space(name: str) -> None:
    asked = drive(SPACE.build(PROBLEM, H200), name, 80)
    assert len(set(asked)) == 80
    assert all(SPACE.check(config.as_dict(), PROBLEM, H200) == [] for config in asked)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.every(2)
def test_proposals_are_new_and_valid_in_a_loose_space(tmp_path: Path, name: str) -> None:
    space = loose_space(tmp_path, 20)
    valid = space.build(PROBLEM, H200)
    assert valid.loose
    asked = drive(valid, name, 45)
    assert len(set(asked)) == 45
    assert all(space.check(config.as_dict(), PROBLEM, H200) == [] for config in asked)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.every(2)
def test_an_exhausted_loose_space_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected = set(tiny_space(tmp_path).build(PROBLEM, H200, overrides=TINY))
    monkeypatch.setattr(compilation, "MAX_STATES", 1)
    monkeypatch.setattr(building, "MAX_ENUMERATED", 0)
    loose = tiny_space(tmp_path).build(PROBLEM, H200, overrides=TINY)
    assert loose.loose
    asked = drive(loose, name, len(expected) + 10)
    assert len(asked) == len(expected)
    assert set(asked) == expected


def tiny_space(folder: Path) -> SearchSpace:
    """The synthetic search space."""
    file = folder / "synthetic.toml"
    file.write_text(SPACE_TOML)
    return load_space(file)
