"""Conditional tunables: one config per kernel, and moves that respect the conditions."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from evoengine.errors import SearchSpaceError
from evoengine.model import Config, Problem, Value
from evoengine.space.loader import load_space
from evoengine.space.search_space import SearchSpace
from evoengine.target import Target, get_target

SPLITTING = """
family = "splitting"
doc = "some tunables matter only with others"
tunables.SPLITS = { kind = "ordinal", values = [1, 2, 4], unit = "CTAs", doc = "d" }
tunables.DEPTH = { kind = "ordinal", values = [2, 3, 5], unit = "-", doc = "d", when = "COMBINE == 'chain'" }
tunables.COMBINE = { kind = "categorical", values = ["tree", "chain"], unit = "-", doc = "d", when = "SPLITS > 1" }
tunables.MASKED = { kind = "boolean", unit = "-", doc = "d", when = "causal" }
tunables.ASYNC = { kind = "boolean", unit = "-", doc = "d", when = "arch_number >= 90 and BYTES > 4096" }
tunables.BLOCK = { kind = "ordinal", values = [16, 32, 64], unit = "keys", doc = "d" }
[derived]
BYTES = { expr = "BLOCK * head_dim * elem_bytes", unit = "bytes", doc = "d" }
[constraints]
small = { rule = "BLOCK * SPLITS <= 128", reason = "r" }
"""
PLAIN, CAUSAL = Problem(1, 8, 512, 64), Problem(1, 8, 512, 64, causal=True)
L4, H200 = get_target("l4"), get_target("h200")


@pytest.fixture
def space(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "splitting.toml"
    path.write_text(SPLITTING)
    return load_space(path)


def name_of(values: dict[str, Value], problem: Problem, target: Target) -> tuple[Value, ...]:
    """Returns the values that affect the kernel, computed in plain Python."""
    split = int(values["SPLITS"]) > 1
    wide = target.arch_number >= 90 and int(values["BLOCK"]) * 64 * 2 > 4096
    return (
        values["SPLITS"],
        values["BLOCK"],
        values["COMBINE"] if split else "",
        values["DEPTH"] if split and values["COMBINE"] == "chain" else "",
        values["MASKED"] if problem.causal else "",
        values["ASYNC"] if wide else "",
    )


@pytest.mark.parametrize("problem", [PLAIN, CAUSAL], ids=lambda problem: problem.key)
@pytest.mark.parametrize("target", [L4, H200], ids=lambda target: target.name)
def test_every_kernel_has_exactly_one_config(space: SearchSpace, problem: Problem, target: Target) -> None:
    names = [tunable.name for tunable in space.tunables]
    every = [dict(zip(names, row, strict=True)) for row in itertools.product(*(t.values for t in space.tunables))]
    kernels = {
        name_of(values, problem, target) for values in every if int(values["BLOCK"]) * int(values["SPLITS"]) <= 128
    }
    valid = space.build(problem, target)
    assert len({name_of(config.as_dict(), problem, target) for config in valid}) == valid.size == len(kernels)
    for config in valid:
        assert space.check(config.as_dict(), problem, target) == []


def test_conditions_use_the_compiled_architecture(space: SearchSpace) -> None:
    assert space.build(PLAIN, H200.compiled_for("sm_90a")).size == space.build(PLAIN, H200).size
    assert space.build(PLAIN, H200.compiled_for("sm_80")).size == space.build(PLAIN, L4).size
    assert space.build(PLAIN, H200).size > space.build(PLAIN, L4).size


def test_the_violated_condition_is_named(space: SearchSpace) -> None:
    values: dict[str, Value] = {
        "SPLITS": 1,
        "COMBINE": "chain",
        "DEPTH": 5,
        "MASKED": False,
        "ASYNC": False,
        "BLOCK": 16,
    }
    (violated,) = space.check(values, PLAIN, L4)
    assert violated.name == "combine_when"
    assert "SPLITS > 1" in violated.reason


def test_a_tunable_without_effect_costs_no_step(space: SearchSpace) -> None:
    """With one split, COMBINE and DEPTH have no effect: repair resets them and changes nothing else."""
    valid = space.build(PLAIN, L4)
    rng = np.random.default_rng(0)
    wish: dict[str, Value] = {
        "SPLITS": 1,
        "COMBINE": "chain",
        "DEPTH": 5,
        "MASKED": True,
        "ASYNC": True,
        "BLOCK": 64,
    }
    settled = Config.of("splitting", {**wish, "COMBINE": "tree", "DEPTH": 2, "MASKED": False, "ASYNC": False})
    assert {valid.repair(wish, rng) for _ in range(20)} == {settled}


def test_moves_are_valid_and_reach_every_config(space: SearchSpace) -> None:
    valid = space.build(CAUSAL, H200)
    rng = np.random.default_rng(0)
    config = valid.sample(rng)
    reached = set()
    for _ in range(60 * valid.size):
        before, config = config, valid.mutate(config, rng, 0.2)
        assert config in valid
        assert config != before
        reached.add(config)
    assert reached == set(valid)


def test_restricted_conditional_tunable(space: SearchSpace) -> None:
    """Without its first value, a conditional tunable has no valid value where its condition is false."""
    whole = space.build(PLAIN, L4)
    part = space.build(PLAIN, L4, overrides={"COMBINE": ["chain"]})
    assert set(part) == {config for config in whole if config["COMBINE"] == "chain"}
    assert {config["SPLITS"] for config in part} == {2, 4}
    rng = np.random.default_rng(0)
    assert all(part.mutate(config, rng, 0.3) in whole for config in part)
    with pytest.raises(SearchSpaceError, match="combine_when"):
        space.build(PLAIN, L4, overrides={"COMBINE": ["chain"], "SPLITS": [1]})


def test_the_summary_shows_conditions(space: SearchSpace) -> None:
    lines = space.build(PLAIN, L4).summary()
    assert any("combine_when" in line and "matters only when SPLITS > 1" in line for line in lines)
