"""Spaces of 1e10 configs and more: exact size without enumeration, and valid moves."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from evoengine.errors import SearchSpaceError
from evoengine.model import Config, Problem, Value
from evoengine.space.diagram.config_count import Count
from evoengine.space.index_rows import RowSet
from evoengine.space.language.rules import support_of
from evoengine.space.loader import load_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target

H200 = get_target("h200")
PROBLEM = Problem(1, 8, 512, 64)
SPACE = load_space(Path(__file__).with_name("large.toml"))


@pytest.fixture(scope="module")
def large() -> ValidSpace:
    return SPACE.build(PROBLEM, H200)


def largest_component(space: SearchSpace) -> int:
    """Returns the number of combinations of the largest group of tunables linked by rules."""
    sizes = {tunable.name: len(tunable.values) for tunable in space.tunables}
    groups = [{name} for name in sizes]
    for constraint in space.constraints:
        tied = support_of(constraint.rule, space.derived).names & sizes.keys()
        joined = set[str]().union(*(group for group in groups if group & tied))
        groups = [group for group in groups if not group & tied] + [joined]
    return max(math.prod(sizes[name] for name in group) for group in groups)


class TestLarge:
    def test_size_is_exact(self, large: ValidSpace) -> None:
        assert largest_component(SPACE) > 10**12
        assert large.size > 10**10
        assert large.count.exact
        assert all(count.exact for count in large.removed.values())
        assert large.diagram.nodes < 10_000, "the diagram is small"

    @pytest.mark.parametrize("seed", range(4))
    def test_subspaces_equal_brute_force(self, seed: int) -> None:
        """A random subspace with one or two values per tunable is small enough for brute force."""
        rng = np.random.default_rng(seed)
        whole = SPACE.build(PROBLEM, H200)
        anchor = whole.sample(rng)
        free = set(rng.permutation([tunable.name for tunable in SPACE.tunables])[:12])
        cut: dict[str, list[Value]] = {}
        for tunable in SPACE.tunables:
            other = [tunable.sample(rng)] if tunable.name in free else []
            cut[tunable.name] = list(dict.fromkeys([anchor[tunable.name], *other]))
        part = SPACE.build(PROBLEM, H200, overrides=cut)
        combinations = (dict(zip(cut, values, strict=True)) for values in itertools.product(*cut.values()))
        expected = {Config.of("large", c) for c in combinations if not SPACE.check(c, PROBLEM, H200)}
        assert set(part) == expected
        assert part.size == len(expected) >= 1
        assert all(config in whole for config in expected)

    @pytest.mark.slow
    def test_sizes_of_parts_add_up(self, large: ValidSpace) -> None:
        for tunable in SPACE.tunables[::10]:
            parts = []
            for value in tunable.values:
                try:
                    parts.append(SPACE.build(PROBLEM, H200, overrides={tunable.name: [value]}).size)
                except SearchSpaceError:
                    parts.append(0)
            assert sum(parts) == large.size, tunable.name

    @pytest.mark.thorough
    @pytest.mark.slow
    def test_samples_are_uniform(self, large: ValidSpace) -> None:
        """Shares of values equal those of exact counts; rejection sampling would accept less than 1e-4 here."""
        assert large.size / large.cartesian_size < 1e-4
        rng = np.random.default_rng(0)
        drawn = [large.sample(rng) for _ in range(2000)]
        assert len(set(drawn)) == len(drawn)
        for name in ("WARPS_M", "BLOCK_N", "SPLITS", "MIN_CTAS", "COMBINE"):
            for value in large.tunables[[t.name for t in large.tunables].index(name)].values:
                share = SPACE.build(PROBLEM, H200, overrides={name: [value]}).size / large.size
                hits = sum(config[name] == value for config in drawn)
                assert abs(hits - 2000 * share) <= 5 * math.sqrt(2000 * share * (1 - share)) + 1, (name, value)

    @pytest.mark.parametrize("seed", range(8))
    def test_all_moves_return_valid_configs(self, large: ValidSpace, seed: int) -> None:
        rng = np.random.default_rng(seed)
        a, b = large.sample(rng), large.sample(rng)
        wild = {tunable.name: tunable.sample(rng) for tunable in SPACE.tunables}
        mutant = large.mutate(a, rng, 0.1)
        for config in (a, b, mutant, large.crossover(a, b, rng), large.repair(wild, rng), *large.neighbours(a)):
            assert SPACE.check(config.as_dict(), PROBLEM, H200) == []
            index = large.index_of(config)
            assert index is not None
            assert 0 <= index < large.size
            assert large.config(index) == config
        assert mutant != a

    @pytest.mark.slow
    @pytest.mark.thorough
    def test_nearest_configs_come_in_order_of_distance(self, large: ValidSpace) -> None:
        """Repeated search for the nearest unseen config returns all configs at one distance before the next."""
        rng = np.random.default_rng(1)
        centre = large.sample(rng)
        seen = RowSet(len(large.tunables))
        distances = []
        for _ in range(150):
            config = large.nearest_outside(centre.as_dict(), rng, seen)
            assert config is not None
            assert config in large
            distances.append(_steps(large, centre, config))
            row = large.row_of(config)
            assert row is not None
            assert row not in seen
            seen.add(row)
        assert distances == sorted(distances)
        assert distances[0] == 0
        assert distances[-1] >= 2
        settled = [c for c in large.neighbours(centre) if _steps(large, centre, c) == 1]
        assert distances.count(1) == len(settled)


def _steps(space: ValidSpace, a: Config, b: Config) -> int:
    total = 0
    for tunable in space.tunables:
        x, y = (tunable.values.index(config[tunable.name]) for config in (a, b))
        total += abs(x - y) if tunable.kind == "ordinal" else x != y
    return total


# -- a rule that no diagram holds -------------------------------------------------------------------------------------

WEIGHTS = (1, 7, 51, 350, 2403, 16808, 117650, 823545, 5764803, 40353610, 282475252)
"""Nearly all weighted sums with factors 0 to 6 differ, so no prefixes of the rule are equivalent."""


def loose_space(folder: Path, percent: int) -> SearchSpace:
    """Returns a space of eleven tunables with seven values and a rule that ``percent`` of all combinations satisfy."""
    values = ", ".join(map(str, range(7)))
    tunables = "\n".join(
        f"tunables.T{n} = {{ kind = 'ordinal', values = [{values}], unit = '-', doc = 'd' }}" for n in range(11)
    )
    total = " + ".join(f"{weight} * T{n}" for n, weight in enumerate(WEIGHTS))
    path = folder / "loose.toml"
    path.write_text(
        f"family = 'loose'\ndoc = 'd'\n{tunables}\n[constraints]\n"
        f"mixed = {{ rule = '({total}) * 7919 % 10007 * 104729 % 100 < {percent}', reason = 'r' }}\n"
        "first = { rule = 'T0 + T1 <= 6', reason = 'r' }\n"
    )
    return load_space(path)


def true_share(percent: int) -> float:
    """Returns the share of valid combinations, from a convolution of the residues of all sums."""
    modulus = 10007
    residues = np.zeros(modulus)
    for a, b in itertools.product(range(7), repeat=2):
        if a + b <= 6:
            residues[(a * WEIGHTS[0] + b * WEIGHTS[1]) % modulus] += 1
    for weight in WEIGHTS[2:]:
        residues = sum(np.roll(residues, value * weight % modulus) for value in range(7))  # type: ignore[assignment]
    allowed = np.array([r * 7919 % modulus * 104729 % 100 < percent for r in range(modulus)])
    return float(residues[allowed].sum()) / 7**11


class TestLoose:
    @pytest.mark.parametrize("percent", [50, 2])
    def test_the_estimated_size_covers_the_true_size(self, tmp_path: Path, percent: int) -> None:
        space = loose_space(tmp_path, percent).build(PROBLEM, H200)
        truth = 7**11 * true_share(percent)
        assert [constraint.name for constraint in space.loose] == ["mixed"]
        assert not space.count.exact
        assert space.count.error is not None
        assert abs(space.size - truth) <= 1.5 * space.count.error
        assert space.count.relative_error < 0.06
        assert space.removed["first"] == Count(7**11 * 21 // 49)
        mixed = space.removed["mixed"]
        assert mixed.error is not None
        assert abs(mixed.value - 7**11 * (1 - percent / 100)) <= 1.5 * mixed.error + 7**11 * 0.005
        assert f"about {space.count.value:.1e}".replace("e+0", "e") in space.summary()[0]
        assert "valid configs (±" in space.summary()[0]

    @pytest.mark.slow
    def test_moves_are_valid_and_exclude_seen_configs(self, tmp_path: Path) -> None:
        definition = loose_space(tmp_path, 5)
        space = definition.build(PROBLEM, H200)
        rng = np.random.default_rng(0)
        seen = RowSet(11)
        config = space.sample(rng)
        for step in range(30):
            values = space.mutate(config, rng, 0.2).as_dict()
            moved = space.nearest_outside(values, rng, seen) if step % 2 else space.sample_outside(rng, seen)
            assert moved is not None
            config = moved
            row = space.row_of(config)
            assert row is not None
            assert row not in seen
            assert definition.check(config.as_dict(), PROBLEM, H200) == []
            seen.add(row)

    def test_a_config_may_have_no_neighbours(self, tmp_path: Path) -> None:
        names, values = "ABCDEF", list(range(1, 257))
        tunables = "".join(
            f"tunables.{name} = {{ kind = 'ordinal', values = {values}, unit = '-', doc = 'd' }}\n" for name in names
        )
        mixed = "(A * 7919 + C * 104729 + E * 1299709 + A * C * E * 31) % 1000003 % 2 == 0"
        rules = {"ab": "A == B", "cd": "C == D", "ef": "E == F", "mixed": mixed}
        lines = "".join(f"{name} = {{ rule = '{rule}', reason = 'r' }}\n" for name, rule in rules.items())
        path = tmp_path / "pairs.toml"
        path.write_text(f"family = 'pairs'\ndoc = 'd'\n{tunables}[constraints]\n{lines}")
        space = load_space(path).build(PROBLEM, H200)
        assert [constraint.name for constraint in space.loose] == ["mixed"]
        assert len(space.neighbours(space.sample(np.random.default_rng(0)))) == 0

    def test_some_positions_are_unused(self, tmp_path: Path) -> None:
        space = loose_space(tmp_path, 50).build(PROBLEM, H200)
        found = 0
        for place in range(40):
            try:
                assert space.index_of(space.config(place)) == place
                found += 1
            except IndexError:
                pass
        assert 5 < found < 35

    def test_a_loose_rule_that_excludes_everything_is_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(SearchSpaceError, match=r"mixed .*split"):
            loose_space(tmp_path, 0).build(PROBLEM, H200)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (Count(1234567), "1,234,567 things"),
        (Count(3_123_456_789, 60_000_000), "about 3.1e9 things (±2 %)"),
        (Count(5000, 1), "about 5,000 things (±1 %)"),
        (Count(0, 40), "about 0 things (at most 40)"),
    ],
)
def test_counts_show_their_error(count: Count, text: str) -> None:
    assert count.of("things") == text
    assert str(count) == text.replace(" things", "")


def test_confidence_interval_covers_95_percent() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for share in (0.5, 0.01, 0.999, 0.0001):
        for hits in rng.binomial(5000, share, size=250):
            guess = Count.estimated(10**9, int(hits), 5000)
            assert guess.error is not None
            covered += abs(guess.value - share * 10**9) <= guess.error
    assert 920 <= covered <= 1000


def test_counts_add_up() -> None:
    assert Count.sum([Count(3), Count(4)]) == Count(7)
    assert Count.sum([Count(3), Count(40, 3), Count(50, 4)]) == Count(93, 5)
