"""Construction of valid spaces, compared with brute force, and moves between valid configs."""

from __future__ import annotations

import itertools
import pickle
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from evoengine.errors import SearchSpaceError, UsageError
from evoengine.model import Config, DType, Problem, Value, parse_problem
from evoengine.space.family_spaces import FamilySpaces
from evoengine.space.loader import find_space, load_space
from evoengine.space.search_space import SearchSpace
from evoengine.space.tunables import Boolean, Categorical, Ordinal
from evoengine.space.valid_space import ValidSpace
from evoengine.target import get_target

DRAFT = Path(__file__).with_name("draft.toml")
SMALL = """
family = "small"
doc = "small enough to enumerate by hand"
tunables.WARPS = { kind = "ordinal", values = [1, 2, 4, 8], unit = "warps", doc = "d" }
tunables.BLOCK = { kind = "ordinal", values = [16, 32, 64, 128], unit = "keys", doc = "d" }
tunables.STAGES = { kind = "ordinal", values = [0, 1, 2, 3], unit = "tiles", doc = "d" }
tunables.LAYOUT = { kind = "categorical", values = ["swizzle", "padded", "plain"], unit = "-", doc = "d" }
tunables.PAD = { kind = "ordinal", values = [0, 8], unit = "halves", doc = "d" }
tunables.FAST = { kind = "boolean", unit = "-", doc = "d" }
tunables.FREE = { kind = "ordinal", values = [1, 2, 3], unit = "-", doc = "in no constraint" }
tunables.LONE = { kind = "ordinal", values = [1, 2, 3], unit = "-", doc = "in a constraint of its own" }
[derived]
PITCH = { expr = "head_dim + PAD", unit = "halves", doc = "d" }
TILE = { expr = "BLOCK * PITCH * elem_bytes * max(STAGES, 1)", unit = "bytes", doc = "d" }
SMEM = { expr = "WARPS * TILE", unit = "bytes", doc = "d" }
TILES = { expr = "ceil_div(seq_kv, BLOCK)", unit = "tiles", doc = "d" }
[constraints]
smem = { rule = "SMEM <= smem_per_block", reason = "r" }
pad = { rule = "(LAYOUT == 'padded') == (PAD > 0)", reason = "r" }
stages = { rule = "STAGES == 0 or TILES % STAGES == 0", reason = "division behind an or" }
fast = { rule = "not FAST or STAGES > 1", reason = "r" }
lone = { rule = "LONE != 2", reason = "r" }
wide = { rule = "WARPS * 32 <= max_threads_per_block and (causal or WARPS != 8)", reason = "r" }
"""
L4 = get_target("l4")
PROBLEM = Problem(1, 8, 512, 64)
SPOKEN: dict[str, Callable[[dict[str, Any]], bool]] = {
    # The constraints of SMALL in plain Python.
    "smem": lambda c: c["WARPS"] * c["BLOCK"] * (64 + c["PAD"]) * 2 * max(c["STAGES"], 1) <= 99 * 1024,
    "pad": lambda c: (c["LAYOUT"] == "padded") == (c["PAD"] > 0),
    "stages": lambda c: c["STAGES"] == 0 or (512 // c["BLOCK"]) % c["STAGES"] == 0,
    "fast": lambda c: not c["FAST"] or c["STAGES"] > 1,
    "lone": lambda c: c["LONE"] != 2,
    "wide": lambda c: c["WARPS"] != 8,
}


@pytest.fixture
def small(tmp_path: Path) -> SearchSpace:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return load_space(path)


@pytest.fixture(scope="module")
def draft() -> ValidSpace:
    return load_space(DRAFT).build(PROBLEM, L4, overrides={"UNROLL": [1], "CACHE_OP": ["cg"], "MIN_CTAS": [0, 2]})


def _everything(space: SearchSpace) -> list[dict[str, Value]]:
    names = [tunable.name for tunable in space.tunables]
    return [dict(zip(names, row, strict=True)) for row in itertools.product(*(t.values for t in space.tunables))]


class TestBuild:
    def test_equals_brute_force(self, small: SearchSpace) -> None:
        everything = _everything(small)
        expected = {Config.of("small", c) for c in everything if all(rule(c) for rule in SPOKEN.values())}
        valid = small.build(PROBLEM, L4)
        assert set(valid) == expected
        assert valid.size == len(expected) == len(list(valid))
        assert valid.cartesian_size == len(everything)

    def test_removal_counts_are_exact(self, small: SearchSpace) -> None:
        everything = _everything(small)
        expected = {name: sum(not rule(c) for c in everything) for name, rule in SPOKEN.items()}
        removed = small.build(PROBLEM, L4).removed
        assert all(count.exact for count in removed.values())
        assert {name: count.value for name, count in removed.items()} == expected

    def test_check_agrees_with_brute_force(self, small: SearchSpace) -> None:
        for values in _everything(small)[::7]:
            violated = {constraint.name for constraint in small.check(values, PROBLEM, L4)}
            assert violated == {name for name, rule in SPOKEN.items() if not rule(values)}

    def test_size_depends_on_problem_and_target(self, small: SearchSpace) -> None:
        plain = small.build(PROBLEM, L4).size
        assert small.build(Problem(1, 8, 512, 64, causal=True), L4).size > plain
        assert small.build(Problem(1, 8, 512, 128), L4).size < plain
        assert small.build(PROBLEM, get_target("h200")).size > plain

    def test_overrides_restrict(self, small: SearchSpace) -> None:
        whole = small.build(PROBLEM, L4)
        part = small.build(PROBLEM, L4, overrides={"BLOCK": [64, 32], "LAYOUT": ["plain"], "FAST": [False]})
        wanted = {c for c in whole if c["BLOCK"] in (32, 64) and c["LAYOUT"] == "plain" and not c["FAST"]}
        assert set(part) == wanted
        assert part.cartesian_size == 4 * 2 * 4 * 1 * 2 * 1 * 3 * 3

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            ({"NOPE": [1]}, "NOPE.*WARPS, BLOCK"),
            ({"BLOCK": [48]}, r"^BLOCK .*\b48\b.*16, 32, 64, 128"),
            ({"BLOCK": []}, "^BLOCK "),
            ({"PAD": [True]}, "^PAD .*True"),
        ],
    )
    def test_bad_overrides(self, small: SearchSpace, overrides: dict[str, list[Value]], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            small.build(PROBLEM, L4, overrides=overrides)

    @pytest.mark.parametrize(
        ("overrides", "culprits"),
        [
            ({"LONE": [2]}, ["lone"]),
            ({"LAYOUT": ["padded"], "PAD": [0]}, ["pad"]),
            ({"BLOCK": [128], "WARPS": [4], "FAST": [True]}, ["smem", "fast"]),
        ],
    )
    def test_empty_space_names_the_constraints(
        self, small: SearchSpace, overrides: dict[str, list[Value]], culprits: list[str]
    ) -> None:
        with pytest.raises(SearchSpaceError) as caught:
            small.build(PROBLEM, L4, overrides=overrides)
        assert caught.value.key == "constraints"
        words = re.findall(r"\w+", caught.value.reason.partition(" exclude")[0])
        assert [word for word in words if word in {one.name for one in small.constraints}] == culprits

    def test_division_by_zero_names_the_rule(self, tmp_path: Path) -> None:
        path = tmp_path / "s.toml"
        path.write_text(SMALL.replace("STAGES == 0 or TILES % STAGES", "TILES % STAGES"))
        with pytest.raises(SearchSpaceError) as caught:
            load_space(path).build(PROBLEM, L4)
        assert caught.value.key == "constraints.stages.rule"
        assert "division by zero" in caught.value.reason

    def test_more_configs_than_can_be_numbered(self, small: SearchSpace, tmp_path: Path) -> None:
        def grown(count: int) -> SearchSpace:
            more = "\n".join(f"tunables.T{n} = {{ kind = 'boolean', unit = '-', doc = 'd' }}" for n in range(count))
            path = tmp_path / "grown.toml"
            path.write_text(SMALL.replace("[derived]", more + "\n[derived]"))
            return load_space(path)

        size = small.build(PROBLEM, L4).size
        largest = (2**62 - 1) // size
        fitting = largest.bit_length() - 1
        assert grown(fitting).build(PROBLEM, L4).size == size * 2**fitting
        with pytest.raises(SearchSpaceError, match="64 bits"):
            grown(fitting + 1).build(PROBLEM, L4)

    def test_space_without_constraints(self, tmp_path: Path) -> None:
        path = tmp_path / "s.toml"
        path.write_text(SMALL.split("[derived]", maxsplit=1)[0])
        valid = load_space(path).build(PROBLEM, L4)
        assert valid.size == valid.cartesian_size == 4 * 4 * 4 * 3 * 2 * 2 * 3 * 3

    def test_realistic_draft(self, draft: ValidSpace) -> None:
        space = load_space(DRAFT)
        rng = np.random.default_rng(1)
        outside = 0
        for _ in range(300):
            values = {tunable.name: tunable.sample(rng) for tunable in draft.tunables}
            violated = space.check(values, PROBLEM, L4)
            outside += bool(violated)
            assert draft.contains(space.config(values)) == (not violated)
        assert 0 < outside < 300

    @pytest.mark.parametrize(
        ("rule", "spoken"),
        [
            ("BLOCK + PAD <= BLOCK * PAD", lambda c: c["BLOCK"] + c["PAD"] <= c["BLOCK"] * c["PAD"]),
            ("(FREE < LONE) != (FREE > LONE)", lambda c: c["FREE"] != c["LONE"]),
            ("min(FREE, LONE) != max(FREE, LONE)", lambda c: c["FREE"] != c["LONE"]),
            ("FREE in (1, LONE) or FREE not in (1, LONE, 3)", lambda c: c["FREE"] in (1, 2, c["LONE"])),
            ("(FAST and STAGES > 1) or not (FAST or STAGES > 1)", lambda c: c["FAST"] == (c["STAGES"] > 1)),
            ("-FREE + LONE < +FREE - LONE", lambda c: c["LONE"] < c["FREE"]),
            ("FREE < 2 <= LONE", lambda c: c["FREE"] < 2 <= c["LONE"]),
        ],
    )
    def test_operations_on_equal_operands_are_distinguished(
        self, tmp_path: Path, rule: str, spoken: Callable[[dict[str, Any]], bool]
    ) -> None:
        path = tmp_path / "s.toml"
        path.write_text(
            SMALL.split("[constraints]", maxsplit=1)[0] + f"[constraints]\none = {{ rule = '{rule}', reason = 'r' }}"
        )
        space = load_space(path)
        assert set(space.build(PROBLEM, L4)) == {Config.of("small", c) for c in _everything(space) if spoken(c)}

    def test_summary_shows_sizes_and_reasons(self, small: SearchSpace) -> None:
        lines = small.build(PROBLEM, L4).summary()
        assert len(lines) == 1 + len(SPOKEN)
        assert re.search("6,912 .*8 tunables", lines[0])
        assert "division behind an or" in lines[3]
        assert "2,304" in next(line for line in lines if line.strip().startswith("lone"))


class TestDerive:
    VALUES: ClassVar[dict[str, Value]] = {
        "WARPS": 4,
        "BLOCK": 32,
        "STAGES": 2,
        "LAYOUT": "padded",
        "PAD": 8,
        "FAST": True,
        "FREE": 1,
        "LONE": 1,
    }

    def test_values_in_file_order(self, small: SearchSpace) -> None:
        derived = small.derive(self.VALUES, PROBLEM, L4)
        assert list(derived.items()) == [("PITCH", 72), ("TILE", 9216), ("SMEM", 36864), ("TILES", 16)]

    def test_shape_dependent_names(self, small: SearchSpace) -> None:
        assert small.shape_dependent == {"TILES"}

    def test_scope_has_problem_and_target(self, small: SearchSpace) -> None:
        scope = small.scope(self.VALUES, Problem(1, 4, 64, 32, kv_heads=2, dtype=DType.BF16, causal=True), L4)
        assert (scope["kv_heads"], scope["dtype"], scope["causal"], scope["elem_bytes"]) == (2, "bf16", True, 2)
        assert (scope["sms"], scope["FAST"], scope["PITCH"]) == (58, True, 40)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"NOPE": 1}, "family small .*NOPE"),
            ({"BLOCK": 33}, r"^BLOCK .*\b33\b.*16, 32, 64, 128"),
            ({"FAST": 1}, r"^FAST .*\b1\b"),
        ],
    )
    def test_wrong_values(self, small: SearchSpace, change: dict[str, Value], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            small.config({**self.VALUES, **change})

    def test_missing_value(self, small: SearchSpace) -> None:
        values = {name: value for name, value in self.VALUES.items() if name != "FREE"}
        with pytest.raises(UsageError, match=r"family small: .*tunable FREE"):
            small.check(values, PROBLEM, L4)

    def test_string_result_is_rejected(self, tmp_path: Path) -> None:
        path = tmp_path / "s.toml"
        path.write_text(SMALL.replace('"head_dim + PAD"', '"LAYOUT"'))
        with pytest.raises(SearchSpaceError, match=r"derived\.PITCH\.expr: .*'padded'"):
            load_space(path).derive(self.VALUES, PROBLEM, L4)


class TestMoves:
    def test_positions_round_trip(self, draft: ValidSpace) -> None:
        for index in range(0, draft.size, draft.size // 97):
            assert draft.index_of(draft.config(index)) == index
        for index in (-1, draft.size):
            with pytest.raises(IndexError):
                draft.config(index)

    def test_unknown_configs_are_not_contained(self, draft: ValidSpace) -> None:
        config = draft.config(0)
        values = config.as_dict()
        assert config in draft
        assert "x" not in draft
        assert not draft.contains(Config.of("other", values))
        assert not draft.contains(Config.of("draft", {**values, "BLOCK_N": 17}))
        assert not draft.contains(Config.of("draft", {**values, "MORE": 1}))
        assert not draft.contains(Config.of("draft", {k: v for k, v in values.items() if k != "BLOCK_N"}))
        assert not draft.contains(Config.of("draft", {**values, "UNROLL": True}))

    @pytest.mark.parametrize("seed", range(20))
    def test_all_moves_return_valid_configs(self, draft: ValidSpace, seed: int) -> None:
        rng = np.random.default_rng(seed)
        a, b = draft.sample(rng), draft.sample(rng)
        random_values = {tunable.name: tunable.sample(rng) for tunable in draft.tunables}
        child, mutant = draft.crossover(a, b, rng), draft.mutate(a, rng, 0.15)
        repaired = draft.repair(random_values, rng)
        for config in (a, b, child, mutant, repaired, draft.repair(random_values), *draft.neighbours(a)):
            assert draft.contains(config)
        assert mutant != a

    def test_a_mutation_never_repairs_back_to_its_parent(self, small: SearchSpace) -> None:
        valid = small.build(
            PROBLEM, L4, overrides={"WARPS": [2], "LONE": [1], "FREE": [3], "LAYOUT": ["padded", "plain"]}
        )
        rng = np.random.default_rng(0)
        for index in range(valid.size):
            parent = valid.config(index)
            assert all(valid.mutate(parent, rng, 0.0) != parent for _ in range(4))

    def test_moves_repeat_with_the_seed(self, draft: ValidSpace) -> None:
        def walk() -> list[Config]:
            rng = np.random.default_rng(3)
            config = draft.sample(rng)
            return [config := draft.mutate(config, rng, 0.2) for _ in range(10)]

        assert walk() == walk()

    def test_neighbours_by_brute_force(self, small: SearchSpace) -> None:
        valid = small.build(PROBLEM, L4)
        everything = list(valid)
        for config in everything[::31]:
            assert set(valid.neighbours(config)) == {c for c in everything if _steps(small, config, c) == 1}

    def test_repair_is_nearest_and_breaks_ties_at_random(self, small: SearchSpace) -> None:
        valid = small.build(PROBLEM, L4)
        everything = list(valid)
        rng = np.random.default_rng(5)
        spread = 0
        for values in _everything(small)[::501]:
            wanted = Config.of("small", values)
            steps = [_steps(small, wanted, config) for config in everything]
            nearest = {config for config, count in zip(everything, steps, strict=True) if count == min(steps)}
            got = {valid.repair(values, rng) for _ in range(12)}
            assert got <= nearest
            assert valid.repair(values) in nearest
            assert valid.repair(values) == valid.repair(values)
            spread = max(spread, len(got))
        assert spread > 1

    def test_repair_accepts_unknown_and_missing_values(self, draft: ValidSpace) -> None:
        rng = np.random.default_rng(0)
        fixed = draft.repair({"BLOCK_N": 70, "SMEM_LAYOUT": "other", "NOPE": 3, "WARPS_M": 1, "WARPS_N": 1}, rng)
        assert fixed["BLOCK_N"] in (64, 80)
        assert fixed in draft

    def test_crossover_mixes_its_parents(self, small: SearchSpace) -> None:
        valid = small.build(PROBLEM, L4)
        rng = np.random.default_rng(0)
        a, b = valid.config(0), valid.config(valid.size - 1)
        children = {valid.crossover(a, b, rng) for _ in range(50)}
        assert len(children - {a, b}) > 10
        assert all(child["FREE"] in (a["FREE"], b["FREE"]) for child in children)

    def test_every_valid_config_is_sampled(self, small: SearchSpace) -> None:
        valid = small.build(PROBLEM, L4, overrides={"WARPS": [1], "FREE": [1], "LONE": [1], "BLOCK": [16]})
        rng = np.random.default_rng(0)
        assert {valid.sample(rng) for _ in range(40 * valid.size)} == set(valid)
        many = valid.samples(rng, 400 * valid.size)
        assert set(many) == set(valid)
        assert len(many) == 400 * valid.size  # the space is exact
        assert all(200 < count < 600 for count in Counter(many).values()), "all are equally likely"

    def test_single_config_space(self, small: SearchSpace) -> None:
        only = {name: [value] for name, value in small.build(PROBLEM, L4).config(0).as_dict().items()}
        valid = small.build(PROBLEM, L4, overrides=only)
        rng = np.random.default_rng(0)
        config = valid.config(0)
        assert valid.size == 1
        assert valid.mutate(config, rng, 1.0) == valid.crossover(config, config, rng) == valid.sample(rng) == config
        assert valid.neighbours(config) == []


def _steps(space: SearchSpace, a: Config, b: Config) -> int:
    total = 0
    for tunable in space.tunables:
        if tunable.kind == "ordinal":
            total += abs(tunable.values.index(a[tunable.name]) - tunable.values.index(b[tunable.name]))
        else:
            total += a[tunable.name] != b[tunable.name]
    return total


class TestTunables:
    ORDINAL = Ordinal("N", (16, 32, 64, 128), "keys", "d")
    NAMES = Categorical("L", ("a", "b", "c"), "-", "d")
    FLAG = Boolean("F", (False, True), "-", "d")

    def test_neighbours(self) -> None:
        assert self.ORDINAL.neighbours(16) == (32,)
        assert self.ORDINAL.neighbours(64) == (32, 128)
        assert self.NAMES.neighbours("b") == ("a", "c")
        assert self.FLAG.neighbours(True) == (False,)

    def test_ordinal_mutation_is_mostly_a_step(self) -> None:
        rng = np.random.default_rng(0)
        seen = [self.ORDINAL.mutated(16, rng) for _ in range(500)]
        assert set(seen) == {32, 64, 128}
        assert seen.count(32) > 350

    def test_mutation_changes_the_value(self) -> None:
        rng = np.random.default_rng(0)
        assert {self.NAMES.mutated("a", rng) for _ in range(50)} == {"b", "c"}
        assert self.FLAG.mutated(False, rng) is True
        assert self.ORDINAL.restricted([32]).mutated(32, rng) == 32

    def test_encode_decode(self) -> None:
        assert [self.ORDINAL.decode(self.ORDINAL.encode(value)) for value in (16, 128)] == [16, 128]
        with pytest.raises(UsageError, match=r"F .*1.*False, True"):
            self.FLAG.encode(1)

    def test_distances(self) -> None:
        assert self.ORDINAL.distances(32).tolist() == [1, 0, 1, 2]
        assert self.ORDINAL.distances(100).tolist() == [3, 2, 1, 0]
        assert self.NAMES.distances("b").tolist() == [1, 0, 1]
        assert self.NAMES.distances("z").tolist() == [1, 1, 1]


def test_a_config_of_an_older_space_is_updated(small: SearchSpace) -> None:
    now = small.config({tunable.name: tunable.values[-1] for tunable in small.tunables})
    older = {name: value for name, value in now.as_dict().items() if name != "FREE"} | {"GONE": True}
    updated = small.updated(Config.of("small", older))
    assert updated.as_dict() == now.as_dict() | {"FREE": 1}
    with pytest.raises(UsageError, match="WARPS"):
        small.updated(Config.of("small", older | {"WARPS": 3}))


def test_default_problem_has_many_valid_configs() -> None:
    valid = load_space(DRAFT).build(parse_problem("default"), L4)
    assert valid.size >= 3000


@pytest.mark.parametrize("target", ["l4", "h200"])
@pytest.mark.parametrize(
    "problem",
    [
        parse_problem("default"),
        parse_problem("1x1x1x8"),
        parse_problem("4x16x2048x256", causal=True),
        Problem(8, 32, 1, 128, kv_heads=8, seq_kv=4096),
    ],
    ids=lambda problem: problem.key,
)
def test_starts_are_valid_for_every_problem(problem: Problem, target: str) -> None:
    space = find_space("mma")
    valid = space.build(problem, get_target(target))
    starts = valid.starts()
    assert 2 <= len(starts) <= len(space.starts)
    assert len(set(starts)) == len(starts)
    assert all(config in valid for config in starts)


def test_a_valid_start_is_unchanged() -> None:
    space = find_space("mma")
    valid = space.build(parse_problem("default"), get_target("h200"))
    named = dict(space.starts[0].values)
    first = valid.starts()[0]
    assert {name: first[name] for name in named} == named
    unnamed = [tunable for tunable in space.tunables if tunable.name not in named]
    assert all(first[tunable.name] == tunable.values[0] for tunable in unnamed)


def test_a_space_that_was_used_can_be_sent_to_a_worker() -> None:
    space, problem, target = find_space("mma"), parse_problem("default"), get_target("l4")
    values = space.build(problem, target).starts()[0].as_dict()
    assert space.check(values, problem, target) == []
    sent = pickle.loads(pickle.dumps(space))
    assert sent == space
    assert sent.check(values, problem, target) == []


def test_starts_of_all_families_are_spread_evenly() -> None:
    problem, target = parse_problem("4x16x2048x128"), get_target("h200").compiled_for("sm_90a")
    members = [find_space(family).build(problem, target) for family in ("hopper", "mma", "scalar", "wgmma")]
    starts = FamilySpaces(tuple(members)).starts()
    assert len(starts) == sum(len(member.starts()) for member in members)
    for member in members:
        own = member.starts()
        places = [starts.index(config) for config in own]
        assert places == sorted(places), member.family
        assert max(abs(place - len(starts) * (i + 0.5) / len(own)) for i, place in enumerate(places)) <= len(members)
    assert starts[0] == members[0].starts()[0]
