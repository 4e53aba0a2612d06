"""Spaces with random rules, compared with brute force: valid configs, removal counts, samples, nearest configs."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from evoengine.errors import SearchSpaceError
from evoengine.model import Config, Problem, Value
from evoengine.space import space_builder as building
from evoengine.space.diagram import rule_compilation as compilation
from evoengine.space.index_rows import RowSet
from evoengine.space.loader import load_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target
from tests.space.random_rules import condition, number

L4 = get_target("l4")
PROBLEM = Problem(1, 8, 512, 64)
TUNABLES = """
family = "any"
doc = "random rules"
tunables.X = { kind = "ordinal", values = [-2, 0, 1, 5], unit = "-", doc = "d" }
tunables.Y = { kind = "ordinal", values = [0, 3], unit = "-", doc = "d" }
tunables.Z = { kind = "ordinal", values = [1, 2, 7], unit = "-", doc = "d" }
tunables.F = { kind = "boolean", unit = "-", doc = "d" }
tunables.T = { kind = "categorical", values = ["a", "b", "c"], unit = "-", doc = "d" }
tunables.U = { kind = "ordinal", values = [1, 2, 3], unit = "-", doc = "in few rules" }
"""
SEEDS = range(120)


def random_space(folder: Path, seed: int) -> SearchSpace:
    """Returns a space with random rules, one of them on a derived value, and one that links it to the last tunable."""
    rng = np.random.default_rng(seed)
    path = folder / "any.toml"
    while True:
        rules = [condition(rng, 3), condition(rng, 3), f"D <= {rng.integers(-3, 9)} or F", "U != 2 or D > 0"]
        text = TUNABLES + f'[derived]\nD = {{ expr = "{number(rng, 3)} + X", unit = "-", doc = "d" }}\n[constraints]\n'
        for place, rule in enumerate(rules):
            text += f'rule_{place} = {{ rule = "{rule}", reason = "r" }}\n'
        path.write_text(text)
        with contextlib.suppress(SearchSpaceError):  # some rules calculate with strings or depend on no tunable
            return load_space(path)


def valid_of(space: SearchSpace) -> ValidSpace | None:
    """Returns the valid space; None if it is empty or a rule cannot be evaluated."""
    with contextlib.suppress(SearchSpaceError):
        return space.build(PROBLEM, L4)
    return None


def everything(space: SearchSpace) -> list[dict[str, Value]]:
    """Returns all combinations."""
    names = [tunable.name for tunable in space.tunables]
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*(t.values for t in space.tunables))]


def distance(space: SearchSpace, a: Config, b: Config) -> int:
    """Returns the steps between two configs, computed independently."""
    total = 0
    for tunable in space.tunables:
        x, y = (tunable.values.index(config[tunable.name]) for config in (a, b))
        total += abs(x - y) if tunable.kind == "ordinal" else x != y
    return total


def set_of(valid: ValidSpace, configs: list[Config]) -> RowSet:
    """Returns the rows of configs."""
    rows = RowSet(len(valid.tunables))
    for config in configs:
        row = valid.row_of(config)
        assert row is not None
        rows.add(row)
    return rows


def violations(space: SearchSpace, combinations: list[dict[str, Value]]) -> list[set[str]] | None:
    """Returns the constraints that each combination violates; None if an expression fails for one."""
    with contextlib.suppress(SearchSpaceError):
        return [{constraint.name for constraint in space.check(c, PROBLEM, L4)} for c in combinations]
    return None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.every(3)
def test_random_rules_by_brute_force(tmp_path: Path, seed: int) -> None:
    space = random_space(tmp_path, seed)
    combinations = everything(space)
    violated = violations(space, combinations)
    if violated is None:
        with pytest.raises(SearchSpaceError, match=r"(division by zero|compares or combines|cannot calculate).* in `"):
            space.build(PROBLEM, L4)
        return
    expected = {Config.of("any", c) for c, names in zip(combinations, violated, strict=True) if not names}
    if not expected:
        with pytest.raises(SearchSpaceError, match="every config"):
            space.build(PROBLEM, L4)
        return
    valid = space.build(PROBLEM, L4)
    assert (set(valid), valid.size, valid.count.exact) == (expected, len(expected), True)
    counts = Counter(name for names in violated for name in names)
    assert {name: count.value for name, count in valid.removed.items()} == {
        c.name: counts[c.name] for c in space.constraints
    }
    assert [valid.index_of(config) for config in valid] == list(range(valid.size))
    assert [valid.config(index) for index in range(valid.size)] == list(valid)
    assert all(
        valid.contains(Config.of("any", c)) == (not names) for c, names in zip(combinations, violated, strict=True)
    )


@pytest.mark.slow
def test_random_rules_cover_empty_invalid_and_partial_spaces(tmp_path: Path) -> None:
    sizes = []
    for seed in SEEDS:
        try:
            sizes.append(random_space(tmp_path, seed).build(PROBLEM, L4).size)
        except SearchSpaceError as error:
            sizes.append(-1 if "every config" in error.reason else -2)
    assert sizes.count(-1) > 2
    assert sizes.count(-2) > 5
    assert sum(0 < size < 432 for size in sizes) > 40


@pytest.mark.parametrize("seed", SEEDS[:40])
@pytest.mark.every(3)
def test_samples_and_nearest_configs_exclude_seen_ones(tmp_path: Path, seed: int) -> None:
    space = random_space(tmp_path, seed)
    valid = valid_of(space)
    if valid is None:
        return
    rng = np.random.default_rng(seed)
    configs = list(valid)
    for share in (0.0, 0.5, 0.97, 1.0):
        order = rng.permutation(len(configs))
        seen = [configs[place] for place in order[: int(share * len(configs))]]
        rows = set_of(valid, seen)
        left = set(configs) - set(seen)
        drawn = {valid.sample_outside(rng, rows) for _ in range(30)}
        assert drawn == {None} if not left else drawn <= left
        for _ in range(6):
            values = {tunable.name: tunable.sample(rng) for tunable in space.tunables}
            wanted = Config.of("any", values)
            found = {valid.nearest_outside(values, rng, rows) for _ in range(6)}
            least = min((distance(space, wanted, config) for config in left), default=0)
            nearest = {config for config in left if distance(space, wanted, config) == least}
            assert found == {None} if not left else found <= nearest


def test_samples_are_uniform_with_excluded_configs(tmp_path: Path) -> None:
    valid = random_space(tmp_path, 8).build(PROBLEM, L4)
    configs = list(valid)
    rng = np.random.default_rng(0)
    rows = set_of(valid, configs[::3])
    left = [config for config in configs if config not in configs[::3]]
    draws = 60 * len(left)
    counts = Counter(valid.sample_outside(rng, rows) for _ in range(draws))
    assert set(counts) == set(left)
    chi_square = sum((counts[config] - 60) ** 2 / 60 for config in left)
    freedom = len(left) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.thorough
@pytest.mark.slow
def test_ties_are_broken_evenly(tmp_path: Path) -> None:
    valid = random_space(tmp_path, 8).build(PROBLEM, L4)
    rng = np.random.default_rng(0)
    counts = Counter(valid.repair({}, rng) for _ in range(60 * valid.size))
    assert set(counts) == set(valid)
    chi_square = sum((count - 60) ** 2 / 60 for count in counts.values())
    assert abs(chi_square - valid.size + 1) < 5 * (2 * valid.size) ** 0.5


@pytest.mark.parametrize(
    ("seed", "states"),
    [
        pytest.param(seed, states, marks=[] if seed % 3 == number else [pytest.mark.thorough])
        for seed in SEEDS[:50]
        for number, states in enumerate((1, 6, 16))
    ],
)
@pytest.mark.every(3)
def test_loose_rules_leave_the_same_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, states: int
) -> None:
    """With a very small state limit, rules are checked row by row; few combinations are still counted exactly."""
    space = random_space(tmp_path, seed)
    expected = valid_of(space)
    if expected is None:
        return
    monkeypatch.setattr(compilation, "MAX_STATES", states)
    tight = space.build(PROBLEM, L4)
    assert (set(tight), tight.count) == (set(expected), expected.count)
    assert not tight.loose
    for name, count in tight.removed.items():
        assert abs(count.value - expected.removed[name].value) <= 2 * (count.error or 0)
    monkeypatch.setattr(building, "MAX_ENUMERATED", 0)
    loose = space.build(PROBLEM, L4)
    assert set(loose) == set(expected)
    assert abs(loose.size - expected.size) <= 2 * (loose.count.error or 0)
    assert loose.count.exact == (not loose.loose)
    assert all(config in loose for config in expected)
    assert all(config in expected for config in everything_as_configs(space) if config in loose)


def test_rules_too_large_for_a_joint_diagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules between all pairs of tunables: each diagram is small, their conjunction is large."""
    names = [f"T{n}" for n in range(6)]
    tunables = "".join(
        f"tunables.{name} = {{ kind = 'ordinal', values = [0, 1, 2], unit = '-', doc = 'd' }}\n" for name in names
    )
    rules = [f"{a} != {b} or {a} + {place % 3} >= 2" for place, (a, b) in enumerate(itertools.combinations(names, 2))]
    lines = "".join(f"rule_{place} = {{ rule = '{rule}', reason = 'r' }}\n" for place, rule in enumerate(rules))
    path = tmp_path / "any.toml"
    path.write_text(f"family = 'any'\ndoc = 'd'\n{tunables}[constraints]\n{lines}")
    space = load_space(path)
    expected = {Config.of("any", c) for c in everything(space) if not space.check(c, PROBLEM, L4)}
    assert 20 < len(expected) < 300
    assert set(space.build(PROBLEM, L4)) == expected
    monkeypatch.setattr(compilation, "MAX_STATES", 6)
    tight = space.build(PROBLEM, L4)
    assert (set(tight), tight.count.exact) == (expected, True)
    monkeypatch.setattr(building, "MAX_ENUMERATED", 0)
    loose = space.build(PROBLEM, L4)
    assert 0 < len(loose.loose) < len(rules)
    assert set(loose) == expected
    assert abs(loose.size - len(expected)) <= 2 * (loose.count.error or 0)
    assert all(count.exact for count in loose.removed.values()), "each rule alone is counted"


def everything_as_configs(space: SearchSpace) -> list[Config]:
    """Returns all combinations as configs."""
    return [Config.of("any", values) for values in everything(space)]
