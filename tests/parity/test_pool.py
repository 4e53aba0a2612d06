"""Pool of cases: shapes and profiles of a draw, its dependence on seeds, slices of large problems."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.memory_layout import AXES, POISON_BITS
from evoengine.kernel.records import LaunchSpec
from evoengine.kernel.tensor_maps import MapSpec, MapTensor
from evoengine.model import DType, Problem
from evoengine.parity.compare import judge
from evoengine.parity.float_bits import from_bits
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.case import ParityCase
from evoengine.parity.inputs.cases import (
    VARIANTS,
    deal_profiles,
    large_plans,
    limited,
    pieces_plan,
    plans_for,
    problem_case,
    residue_plans,
    steep_cases,
)
from evoengine.parity.inputs.pool import CasePool, build_pool, draw_cases, fresh_seed
from evoengine.parity.inputs.profiles import PROFILES, make_inputs
from evoengine.space.loader import family_names, find_space
from evoengine.target import get_target
from tests.parity.numpy_kernel import Mistake, NumPyKernel

PROBLEM = Problem(1, 4, 64, 16)

TRAITS = {
    "plain": PROBLEM,
    "bf16": replace(PROBLEM, dtype=DType.BF16),
    "causal": replace(PROBLEM, causal=True, lse=True),
    "window": replace(PROBLEM, window_left=30, window_right=10),
    "left": replace(PROBLEM, window_left=0, causal=True, lse=True),
    "right": replace(PROBLEM, window_right=3, sink=True),
    "softcap": replace(PROBLEM, softcap=20.0, lse=True),
    "sink": replace(PROBLEM, sink=True, lse=True),
    "packed": replace(PROBLEM, batch=3, lengths_q=(64, 1, 0), lengths_kv=(64, 7, 3)),
    "everything": Problem(
        2, 4, 30, 40, seq_kv=50, window_left=9, window_right=2, softcap=9.0, sink=True, lse=True,
        lengths_q=(30, 5), lengths_kv=(20, 50), dtype=DType.BF16,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> CasePool:
    return build_pool(PROBLEM, 11)


@pytest.mark.parametrize("trait", TRAITS)
def test_some_case_has_four_key_tiles_of_the_largest_width(trait: str) -> None:
    """More than three splits of a split-KV kernel then have keys, whatever its tile."""
    (widths,) = (tunable.values for tunable in find_space("mma").tunables if tunable.name == "BLOCK_N")
    decode = plans_for(TRAITS[trait])[-1].problem(TRAITS[trait], 0)
    left = decode.seq_kv if decode.window_left is None else decode.window_left
    keys_seen = min(decode.seq_kv, left + decode.seq_q)
    assert keys_seen > 3 * max(width for width in widths if isinstance(width, int))


def test_the_callers_threads_for_matrix_products_are_as_before() -> None:
    with threadpool_limits(2, user_api="blas"):
        build_pool(Problem(1, 1, 2, 16), 1)
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {2}


def names(cases: tuple[ParityCase, ...]) -> list[str]:
    return [case.name for case in cases]


def test_a_draw_follows_from_the_pools_seed_and_the_source(pool: CasePool) -> None:
    draw, again = pool.draw("abc"), build_pool(PROBLEM, 11).draw("abc")
    assert names(draw.gate) == names(again.gate)
    for case, same in zip((*draw.gate, draw.recheck), (*again.gate, again.recheck), strict=True):
        assert np.array_equal(case.inputs.q, same.inputs.q)
        assert np.array_equal(case.inputs.v, same.inputs.v)
    other_seed = build_pool(PROBLEM, 12)
    assert not np.array_equal(other_seed.problem.inputs.q, pool.problem.inputs.q)
    assert any(names(other_seed.draw(name).gate) != names(pool.draw(name).gate) for name in "abc")
    assert len({tuple(names(pool.draw(f"{number}").gate)) for number in range(40)}) > 30


def test_every_draw_has_all_shapes_and_over_draws_every_shape_has_every_profile(pool: CasePool) -> None:
    met: Counter[str] = Counter()
    for number in range(300):
        draw = pool.draw(f"source {number}")
        shapes, profiles = zip(*(name.split("/") for name in names(draw.gate[:-1])), strict=True)
        assert shapes == ("single", "few-keys", "ragged", "multi-tile", "decode")
        assert len(set(profiles)) == len(profiles)
        assert draw.gate[-1] is pool.problem
        met.update(names(draw.gate[:-1]))
    assert len(met) == 5 * len(PROFILES)
    assert min(met.values()) > 10
    assert len({id(pool.draw(f"source {number}").recheck) for number in range(30)}) == len(pool.rechecks) == 3


def test_inputs_checked_after_timing_were_not_timed(pool: CasePool) -> None:
    for case in pool.rechecks:
        assert case.inputs.problem == PROBLEM
        assert not np.array_equal(case.inputs.q, pool.problem.inputs.q)
        kinds = [np.abs(case.inputs.v[0, head].astype(np.int64)).max() for head in range(4)]
        assert len(set(kinds)) == 4, "each head has a different profile"


def test_a_draw_and_the_others_are_all_small_cases(pool: CasePool) -> None:
    drawn, others = pool.draw("abc").gate[:-1], pool.others("abc")
    small = [*(case for cases in pool.shapes for case in cases), *pool.steep]
    assert {id(case) for case in (*drawn, *others)} == {id(case) for case in small}
    assert len(drawn) + len(others) == len(small)


def test_all_rows_of_a_large_output_are_compared_for_finalists(pool: CasePool) -> None:
    assert pool.all_rows == (), "a small problem is compared whole"
    problem = Problem(2, 8, 1024, 64, seq_kv=8)
    own = problem_case(problem, 1)
    (whole,) = CasePool(1, (), own, (own,)).all_rows
    assert len(whole.sample.row) == 2 * 8 * 1024
    right = NumPyKernel().attention(whole.inputs)
    assert (judge(own, right).reason, judge(whole, right).reason) == ("", "")
    taken = set(own.sample.row[(own.sample.batch == 1) & (own.sample.head == 3)].tolist())
    right.o[1, 3, next(row for row in range(1024) if row not in taken)] += 64
    assert judge(own, right).reason == ""
    assert "batch 1, head 3" in judge(whole, right).reason


def test_all_heads_of_a_large_batch_are_compared_for_finalists() -> None:
    problem = Problem(300, 1, 4, 16)
    own, again = problem_case(problem, 1), problem_case(problem, 1, profiles=("offset",))
    assert len(own.sample.blocks) == len(again.sample.blocks) == 256
    taken, others = (set(case.sample.batch.tolist()) for case in (own, again))
    assert {0, 299} <= taken
    assert taken != others
    (whole,) = CasePool(1, (), own, (again,)).all_rows
    right = NumPyKernel().attention(whole.inputs)
    assert (judge(own, right).reason, judge(whole, right).reason) == ("", "")
    left_out = next(batch for batch in range(300) if batch not in taken)
    right.o[left_out] += 64
    assert judge(own, right).reason == ""
    assert f"batch {left_out}" in judge(whole, right).reason


def placed_by_reciprocal(o: np.ndarray) -> np.ndarray:
    """O of packed heads, where row ``query * heads + head`` is divided by means of a reciprocal of 16 bits."""
    heads, queries = o.shape[1:3]
    row = np.arange(heads * queries)
    query = np.minimum(row * (65536 // heads + 1) >> 16, queries - 1)
    placed = np.full_like(o, np.nan)
    placed[:, row - query * heads, query] = o[:, row % heads, row // heads]
    return placed


def test_finalists_meet_more_packed_rows_than_16_bits_divide(pool: CasePool) -> None:
    few = np.arange(8 * 1000.0).reshape(1, 8, 1000, 1)
    assert np.array_equal(placed_by_reciprocal(few), few)
    assert pool.large[0].inputs.problem.kv_heads == 1
    verdict = run_gate(NumPyKernel(Mistake(o=placed_by_reciprocal)), pool.large)
    assert verdict.reason.startswith("many-rows/")


@pytest.mark.parametrize("divisor", [4, 64, 256])
def test_finalists_meet_more_sequences_than_a_small_power_of_two(pool: CasePool, divisor: int) -> None:
    wrong = NumPyKernel(Mistake(o=lambda o: o[np.arange(len(o)) % divisor]))
    verdict = run_gate(wrong, pool.large)
    assert verdict.reason.startswith("many-sequences/")


@pytest.mark.parametrize("divisor", [32, 64, 256])
def test_finalists_meet_more_heads_than_a_small_power_of_two(pool: CasePool, divisor: int) -> None:
    wrong = NumPyKernel(Mistake(o=lambda o: o[:, np.arange(o.shape[1]) % divisor]))
    verdict = run_gate(wrong, pool.large)
    assert verdict.reason.startswith("many-short-heads/")


@functools.cache
def large_cases(problem: Problem) -> tuple[ParityCase, ...]:
    own = problem_case(problem, 1)
    return CasePool(1, (), own, (own,)).large


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.every(2)
def test_finalists_meet_thousands_of_small_weights(dtype: DType) -> None:
    cases = large_cases(Problem(1, 2, 64, 64, dtype=dtype))
    lost = Mistake(weights=lambda weights: np.where(weights < 2.0**-14, np.float32(0), weights))
    verdict = run_gate(NumPyKernel(lost), cases)
    assert verdict.reason.startswith("faint: ")
    assert run_gate(NumPyKernel(), cases).passed


@pytest.mark.parametrize("octaves", [3, 7, 13])
def test_finalists_are_checked_where_all_rows_follow_one_key(octaves: int) -> None:
    """A tile is skipped if the weights of all rows are small, which is wrong however few rows decide together."""
    crowds = large_cases(Problem(1, 2, 64, 64))[-2:]
    skips = Mistake(weights=lambda weights: weights * (weights.max() >= 2.0**-octaves))
    wrong = [case.name for case in crowds if not run_gate(NumPyKernel(skips), (case,)).passed]
    assert wrong == ["crowd", "crowd"]
    assert all(case.inputs.problem.seq_q in (64, 256) for case in crowds)


def one_key_less_at(residue: int) -> Mistake:
    """A diagonal that is one key too early where the keys have this residue modulo 8."""
    return Mistake(diagonal=lambda _, queries, keys: keys - queries - (keys % 8 == residue))


@pytest.mark.parametrize("trait", ["causal", "packed"])
@pytest.mark.every(2)
def test_finalists_are_checked_on_lengths_of_every_residue(trait: str) -> None:
    cases = large_cases(replace(TRAITS[trait], causal=True))
    cases = tuple(sorted(cases, key=lambda case: not case.name.startswith("residues/")))  # to find it soon
    for residue in range(2, 7):
        assert not run_gate(NumPyKernel(one_key_less_at(residue)), cases).passed, residue


def of_one_sequence(o: np.ndarray) -> np.ndarray:
    """O of a kernel that takes all pieces of work for those of one sequence, where heads have several tiles of rows."""
    return o[np.zeros(len(o), np.intp)] if o.shape[2] > 256 else o


@pytest.mark.parametrize("trait", ["plain", pytest.param("causal", marks=pytest.mark.thorough), "window"])
@pytest.mark.every(2)
def test_finalists_meet_several_tiles_of_several_sequences(trait: str) -> None:
    verdict = run_gate(NumPyKernel(Mistake(o=of_one_sequence)), large_cases(TRAITS[trait]))
    assert verdict.reason.startswith("pieces/")


def test_rows_of_the_first_of_several_tiles_see_keys_under_a_mask() -> None:
    for trait in ("causal", "window", "left", "packed", "everything"):
        problem = pieces_plan(TRAITS[trait]).problem(TRAITS[trait], 0)
        first, end = problem.seen_keys(127, problem.seq_q, problem.seq_kv)
        assert first < end, trait
        assert (problem.heads, problem.kv_heads, problem.batch) == (4, 2, 2)


EXTREME_MISTAKES: dict[str, Mistake] = {
    "scores limited to those of fp16": Mistake(scores=lambda scores: np.clip(scores, -65504, 65504)),
    "scores of zero taken for hidden": Mistake(scores=lambda scores: np.where(scores == 0, np.float32(-1e9), scores)),
    "tiny scale taken for none": Mistake(
        softmax_scale=lambda call: call.softmax_scale * (abs(call.softmax_scale) > 1e-5)
    ),
}


@pytest.mark.parametrize("name", EXTREME_MISTAKES)
def test_finalists_meet_extreme_scores(name: str) -> None:
    cases = large_cases(Problem(1, 2, 64, 64))
    assert run_gate(NumPyKernel(EXTREME_MISTAKES[name]), cases).reason.startswith("extreme: ")


def test_finalists_meet_sinks_that_matter_where_all_logits_are_below_zero() -> None:
    shape = plans_for(TRAITS["sink"])[0]
    mistake = Mistake(sink=lambda sinks: np.where(sinks < -10, -np.inf, sinks))
    for seed in range(4):
        cases = (shape.case(TRAITS["sink"], number, seed) for number in range(len(PROFILES)))
        assert not run_gate(NumPyKernel(mistake), cases).passed, seed


@pytest.mark.parametrize("trait", ["causal", "packed"])
@pytest.mark.parametrize("group", [4, 6, 7, None])
def test_finalists_meet_common_groups_and_single_rows(trait: str, group: int | None) -> None:
    """A kernel that is wrong for some number of heads that share K and V, or for one row of many keys."""

    def wrong(call: AttentionInputs) -> bool:
        problem = call.problem
        if group is None:
            return problem.seq_q == 1 and problem.seq_kv > 64
        return problem.heads // problem.kv_heads == group

    mistake = Mistake(softmax_scale=lambda call: call.softmax_scale * (2 if wrong(call) else 1))
    cases = (plan.case(TRAITS[trait], 0, 1) for plan in residue_plans(TRAITS[trait]))
    verdict = run_gate(NumPyKernel(mistake), cases)
    assert not verdict.passed


@pytest.mark.parametrize("bits", [3, 4])
def test_finalists_meet_many_heads_that_share_keys(pool: CasePool, bits: int) -> None:
    """A place within the group of heads that has few bits."""

    def placed(o: np.ndarray) -> np.ndarray:
        return o[:, np.arange(o.shape[1]) % (1 << bits)] if o.shape[2] > 16 and o.shape[2] < 1000 else o

    verdict = run_gate(NumPyKernel(Mistake(o=placed)), pool.large)
    assert verdict.reason.startswith("residues/" if bits == 3 else "large-group/")


def test_finalists_meet_more_heads_that_share_keys_than_five_bits_hold(pool: CasePool) -> None:
    def placed(o: np.ndarray) -> np.ndarray:
        return o[:, np.arange(o.shape[1]) % 32] if o.shape[2] == 2 else o

    verdict = run_gate(NumPyKernel(Mistake(o=placed)), pool.large)
    assert verdict.reason.startswith("wide-group/")


@pytest.mark.parametrize("trait", TRAITS)
def test_finalists_meet_strides_of_zero(trait: str) -> None:
    problem = TRAITS[trait]
    own = problem_case(problem, 1)
    pool, met = CasePool(1, (), own, (own,)), set()
    launch = LaunchSpec(("1", "1", "1"), 32, 0, ())
    for case in pool.expanded_for(launch):
        inputs, layout = case.inputs, case.inputs.layout
        shapes = {"q": inputs.output_shape, "k": inputs.kv_shape, "v": inputs.kv_shape}
        for name, shape in shapes.items():
            tensor, strides = getattr(inputs, name), getattr(layout, name).strides(shape)
            (axis,) = (number for number in range(3) if strides[number] == 0)
            assert shape[axis] > 1
            assert (tensor == tensor.take([0], axis)).all()
            assert not (tensor == POISON_BITS).any()
            met.add((name, AXES[axis]))
    axes = ("head", "row") if problem.packed else ("batch", "head", "row")
    assert met == {(name, axis) for name in "qkv" for axis in axes}
    assert run_gate(NumPyKernel(), pool.expanded).passed
    mapped: tuple[MapTensor, ...] = ("k", "o")
    maps = tuple(MapSpec(name, 64, 16, 0) for name in mapped)
    assert pool.expanded_for(replace(launch, maps=maps)) == ()
    assert pool.expanded_for(replace(launch, maps=maps[1:])) == pool.expanded


@pytest.mark.parametrize("trait", ["packed", "everything"])
def test_keys_without_queries_lie_before_all_sequences_and_after_them(trait: str) -> None:
    case = next(plan for plan in plans_for(TRAITS[trait]) if plan.name == "lengths").case(TRAITS[trait], 0, 3)
    sequences, v = case.inputs.problem.sequences, case.inputs.v[0]
    (first, before), (last, after) = sequences[0], sequences[-1]
    assert first == last == 0
    assert (v[:, :before] == POISON_BITS).all()
    assert (v[:, -after:] == POISON_BITS).all()
    queries, keys = sequences[-2]
    assert queries > 0
    assert after >= 256 - keys, "the longest tile of keys has no other rows than these after its sequence"


@pytest.mark.parametrize("trait", TRAITS)
def test_finalists_compute_a_case_of_grouped_heads_with_a_negative_scale(trait: str) -> None:
    own = problem_case(TRAITS[trait], 1)
    case = CasePool(3, (), own, (own,)).grouped
    problem = case.inputs.problem
    assert run_gate(NumPyKernel(), (case,)).passed
    assert not run_gate(NumPyKernel(Mistake(softmax_scale=lambda inputs: -inputs.softmax_scale)), (case,)).passed
    assert case.inputs.softmax_scale < 0
    assert problem.batch > 1
    assert problem.heads > problem.kv_heads > 1
    assert problem.seq_q > 16, "offsets of rows need more than 32 bits"


def test_a_window_after_the_diagonal_needs_more_than_8_bits() -> None:
    for trait in ("right", "window"):
        variants = [
            plan.problem(TRAITS[trait], number) for plan in plans_for(TRAITS[trait]) for number in range(VARIANTS)
        ]
        assert any(255 < (one.window_right or 0) < one.seq_q - 1 for one in variants), trait


def test_many_rows_have_a_negative_scale(pool: CasePool) -> None:
    verdict = run_gate(NumPyKernel(Mistake(softmax_scale=lambda inputs: abs(inputs.softmax_scale))), pool.large[:1])
    assert verdict.reason.startswith("many-rows/")


def test_the_rechecks_of_a_single_head_have_different_profiles() -> None:
    pool = build_pool(Problem(1, 4, 1, 64, kv_heads=1, seq_kv=300), 0)
    largest = [np.abs(from_bits(case.inputs.k, DType.FP16)).max() for case in pool.rechecks]
    assert largest[0] > 30, "the first one is peaky"
    assert max(largest[1:]) < 10


@pytest.mark.parametrize("trait", ["causal", "right"])
def test_finalists_meet_a_last_group_of_heads_that_is_smaller(trait: str) -> None:
    (sizes,) = (tunable.values for tunable in find_space("hopper").tunables if tunable.name == "HEAD_GROUP")
    problem = large_plans(TRAITS[trait])[-1].problem(TRAITS[trait], 0)
    group = (min(int(size) for size in sizes if size) << 20) // (4 * problem.seq_kv * problem.head_dim)
    assert 1 < group < problem.kv_heads
    assert problem.kv_heads % group
    assert problem.seq_q > 4 * 64, "two query tiles of four consumers"


@pytest.mark.parametrize(
    "trait",
    [
        pytest.param(trait, marks=[] if trait in ("plain", "causal", "packed") else [pytest.mark.thorough])
        for trait in TRAITS
    ],
)
@pytest.mark.every(2)
def test_a_correct_kernel_passes_the_large_cases(trait: str) -> None:
    problem = TRAITS[trait]
    cases = large_cases(problem)
    assert len(cases) == 3 + (trait in ("causal", "right")) + (2 if problem.packed else 8) + 8
    verdict = run_gate(NumPyKernel(tile=128), cases)
    assert verdict.passed, verdict.reason


def test_fresh_seeds_differ() -> None:
    seeds = {fresh_seed() for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**48 for seed in seeds)


def test_a_pool_survives_pickling(pool: CasePool) -> None:
    copy = pickle.loads(pickle.dumps(pool))
    assert names(copy.everything) == names(pool.everything)
    assert names(copy.draw("x").gate) == names(pool.draw("x").gate)


_USES_ALL = """
import pickle, sys
pool = pickle.load(sys.stdin.buffer)
cases = (*pool.all_rows, *pool.large, *pool.expanded, pool.grouped, pool.tall)
print(len(cases), "torch" in sys.modules)
"""


def test_a_process_that_receives_a_complete_pool_needs_no_torch(pool: CasePool) -> None:
    pool.complete()
    done = subprocess.run(
        [sys.executable, "-c", _USES_ALL], input=pickle.dumps(pool), capture_output=True, check=True, timeout=300
    )
    cases = (*pool.all_rows, *pool.large, *pool.expanded, pool.grouped, pool.tall)
    assert done.stdout.split() == [str(len(cases)).encode(), b"False"]


@pytest.mark.parametrize("problem", TRAITS.values(), ids=TRAITS.keys())
def test_cases_share_compiled_in_properties_and_cover_edge_shapes(problem: Problem) -> None:
    cases = draw_cases(problem, 0)
    shapes = [case.inputs.problem for case in cases]
    for shape in shapes:
        assert (shape.head_dim, shape.dtype, shape.causal) == (problem.head_dim, problem.dtype, problem.causal)
        assert (shape.sink, shape.lse, shape.packed) == (problem.sink, problem.lse, problem.packed)
        assert (shape.softcap > 0) == (problem.softcap > 0)
        assert (shape.window_left is None) == (problem.window_left is None)
        assert (shape.window_right is None) == (problem.window_right is None)
    assert shapes[-1] == problem
    pairs = [pair for shape in shapes[:-1] for pair in shape.sequences]
    assert (1, 1) in pairs
    assert any(n % 16 and m % 16 and n != m for n, m in pairs)
    assert any(n > m > 0 for n, m in pairs)
    assert any(1 < n < 5 and m > 500 for n, m in pairs)
    assert any(m > 2 * 128 and m % 128 for n, m in pairs)
    groups = {shape.heads // shape.kv_heads for shape in shapes}
    assert {1, 8} <= groups
    assert groups & {3, 5}
    assert any(shape.kv_heads == 3 and shape.seq_kv > 500 for shape in shapes)
    assert any(shape.batch >= 3 and shape.seq_kv > 64 for shape in shapes)
    assert {float(np.sign(case.inputs.softmax_scale)) for case in cases} == {-1, 0, 1}
    assert cases[-1].inputs.scale is None
    assert len({case.inputs.softmax_scale for case in cases}) >= 5
    if problem.masked:
        assert any(n > 256 and m > 256 for n, m in pairs), "query tiles skip key tiles"
    if problem.causal:
        assert any(case.keyless.any() for case in cases)
    if problem.packed:
        assert 0 in {n for n, _ in pairs}
        assert 0 in {m for _, m in pairs}
    if problem.sink:
        sinks = np.concatenate([case.inputs.sink for case in cases if case.inputs.sink is not None])
        assert sinks.max() > 88
        assert sinks.min() < -1000


LARGEST = {"rows": {256, 512}, "keys": {2048}}
"""Sizes that the spaces allow but few valid configs have."""


@functools.cache
def tile_sizes() -> dict[str, frozenset[int]]:
    """Returns the sizes of query and key tiles of 300 configs of each family: values above 2 in rows or keys."""
    found: dict[str, set[int]] = {"rows": set(), "keys": set()}
    target, large = get_target("h200").compiled_for("sm_90a"), Problem(1, 4, 4096, 32)
    for family in family_names():
        space = find_space(family)
        units = {one.name: one.unit for one in space.tunables} | {one.name: one.unit for one in space.derived}
        valid = space.build(large, target)
        rng = np.random.default_rng(1)
        for values in (dict(valid.sample(rng).values) for _ in range(300)):
            for name, value in (values | space.derive(values, large, target)).items():
                if units[name] in found and name not in space.shape_dependent and isinstance(value, int) and value > 2:
                    found[units[name]].add(value)
    return {unit: frozenset(sizes) for unit, sizes in found.items()}


def steps(problem: Problem, variants: Iterable[int], side: int, size: int) -> set[int]:
    """Returns which of -1, 0 and 1 the lengths of a side are modulo a tile size; a single row or key does not count."""
    pairs = (pair for plan in plans_for(problem) for v in variants for pair in plan.problem(problem, v).sequences)
    return {(pair[side] + 1) % size - 1 for pair in pairs if pair[side] >= size - 1} & {-1, 0, 1}


@pytest.mark.parametrize("problem", TRAITS.values(), ids=TRAITS.keys())
def test_the_variants_have_lengths_at_the_edges_of_every_tile_size(problem: Problem) -> None:
    assert {16, 64, 80, 112, 128, 176, 192, 256, 512, 1024} <= tile_sizes()["keys"]
    assert {16, 32, 64, 128, 192} <= tile_sizes()["rows"]
    for side, name in enumerate(("rows", "keys")):
        for size in tile_sizes()[name] | LARGEST[name]:
            assert steps(problem, range(VARIANTS), side, size) == {-1, 0, 1}, (name, size)


@pytest.mark.parametrize("problem", TRAITS.values(), ids=TRAITS.keys())
def test_every_draw_has_lengths_at_the_edges_of_common_tiles(problem: Problem) -> None:
    for seed in range(12):
        dealt = deal_profiles(plans_for(problem), np.random.default_rng(seed))
        drawn = [p.problem(problem, (n + seed) % VARIANTS) for p, n in zip(plans_for(problem), dealt, strict=True)]
        for side, size in ((0, 16), (0, 32), (0, 64), (1, 16), (1, 32), (1, 64)):
            lengths = [pair[side] for shape in drawn for pair in shape.sequences]
            found = {(length + 1) % size - 1 for length in lengths if length >= size - 1}
            assert {-1, 0, 1} <= found, (seed, side, size)


@pytest.mark.parametrize("problem", TRAITS.values(), ids=TRAITS.keys())
@pytest.mark.every(3)
def test_every_draw_has_strides_that_follow_from_nothing(problem: Problem) -> None:
    for case in draw_cases(problem, 3):
        if not case.name.startswith("ragged"):
            continue
        layout, dim = case.inputs.layout, problem.head_dim
        shapes = {"q": case.inputs.output_shape, "k": case.inputs.kv_shape}
        shapes |= {"v": shapes["k"], "o": shapes["q"]}
        strides = {name: getattr(layout, name).strides(shape) for name, shape in shapes.items()}
        for axis in range(3):
            assert len({found[axis] for found in strides.values()}) == 4, "each tensor has its own"
        for name, (batch, head, row) in strides.items():
            _, heads, rows, _ = shapes[name]
            assert batch not in (heads * head, rows * row)
            assert row not in (dim, heads * dim)
            assert head not in (rows * dim, rows * row)
        return
    pytest.fail("no ragged case")


@pytest.mark.parametrize("problem", [TRAITS["window"], TRAITS["left"], TRAITS["everything"]], ids=str)
def test_every_draw_has_a_window_that_begins_at_the_diagonal(problem: Problem) -> None:
    shapes = [plan.problem(problem, 0) for plan in plans_for(problem)]
    assert any(shape.window_left == 0 and shape.seq_kv > 16 for shape in shapes)
    assert any((shape.window_left or 0) > 16 for shape in shapes)


def masks_of(problem: Problem) -> list[tuple[int, int]]:
    """First key and end of the keys that row 0 of the longest sequence sees, in every variant of the wide windows."""
    found = []
    for plan in plans_for(problem):
        for shape in (plan.problem(problem, variant) for variant in range(VARIANTS)):
            queries, keys = max(shape.sequences, key=lambda pair: pair[0] * pair[1])
            if max(shape.window_left or 0, shape.window_right or 0) > 16 or (problem.causal and keys > 128):
                end = 0 if shape.causal else shape.window_right or 0
                found.append((keys - queries - (shape.window_left or 0), keys - queries + 1 + end))
    return found


@pytest.mark.parametrize("trait", ["window", "right", "everything"])
@pytest.mark.parametrize("tile", [16, 64])
def test_the_edges_of_wide_windows_lie_at_the_borders_of_tiles(trait: str, tile: int) -> None:
    """A guard that is wrong by one key shows nowhere else."""
    begins, ends = (set(places) for places in zip(*masks_of(TRAITS[trait]), strict=True))
    assert {-1, 0, 1} <= {(end + 1) % tile - 1 for end in ends}
    if TRAITS[trait].window_left is not None:
        assert {-1, 0, 1} <= {(begin + 1) % tile - 1 for begin in begins}


@pytest.mark.parametrize("trait", ["causal", "left"])
def test_the_diagonal_ends_one_key_before_the_border_of_a_tile(trait: str) -> None:
    assert 63 in {end % 64 for _, end in masks_of(TRAITS[trait])}


def test_keys_of_sequences_without_queries_are_not_numbers() -> None:
    poisoned = 0
    for case in build_pool(TRAITS["packed"], 1).everything:
        inputs, first = case.inputs, 0
        for queries, keys in inputs.problem.sequences:
            for tensor in (inputs.k, inputs.v):
                values = from_bits(tensor[:, :, first : first + keys], inputs.problem.dtype)
                unused = queries == 0 and not case.name.startswith("problem")
                assert np.isnan(values).all() if unused else np.isfinite(values).all()
                poisoned += unused and keys > 0
            first += keys
    assert poisoned > 0


def test_finalists_meet_a_steep_scale_on_several_tiles(pool: CasePool) -> None:
    steep = [case for case in pool.others("x") if case.inputs.softmax_scale > 16 * PROBLEM.softmax_scale]
    assert max(case.inputs.problem.seq_kv for case in steep) > 100
    assert all(case.inputs.softmax_scale < 16 * PROBLEM.softmax_scale for case in pool.draw("x").gate)


@pytest.mark.parametrize("seed", range(3))
def test_finalists_meet_a_scale_below_minus_one(seed: int) -> None:
    def without_its_sign(call: AttentionInputs) -> float:
        return abs(call.softmax_scale) if call.softmax_scale < -1 else call.softmax_scale

    steep = steep_cases(PROBLEM, seed)
    assert run_gate(NumPyKernel(), steep).passed
    assert not run_gate(NumPyKernel(Mistake(softmax_scale=without_its_sign)), steep).passed


def from_number(lowest: float) -> Mistake:
    """A maximum over visible keys that begins at a number instead of -inf."""

    def maximum(top: np.ndarray, own: np.ndarray, _: int) -> np.ndarray:
        both = np.maximum(top, own)
        return np.asarray(np.where(np.isfinite(both), np.maximum(both, np.float32(lowest)), both))

    return Mistake(maximum=maximum)


@pytest.mark.parametrize("trait", TRAITS)
@pytest.mark.every(3)
def test_finalists_meet_logits_below_a_number_at_which_a_maximum_may_begin(trait: str) -> None:
    steep = steep_cases(TRAITS[trait], 4)
    for right in (Mistake(), from_number(-1e38)):
        verdict = run_gate(NumPyKernel(right), steep)
        assert verdict.passed, verdict.reason
    if not TRAITS[trait].softcap:
        for lowest in (-3e4, -1e6):
            assert not run_gate(NumPyKernel(from_number(lowest)), steep).passed


@pytest.mark.parametrize("problem", TRAITS.values(), ids=TRAITS.keys())
@pytest.mark.every(3)
def test_a_correct_kernel_is_far_within_tolerance_on_every_draw(problem: Problem) -> None:
    for seed in range(3):
        cases = draw_cases(problem, seed)
        verdict = run_gate(NumPyKernel(tile=16 << seed), cases, seed)
        assert verdict.passed, verdict.reason
        assert verdict.cases == len(cases)
        assert verdict.max_error < 0.8 * verdict.tolerance
        assert verdict.worst_case in names(cases)
        assert verdict.inputs_seed == seed


def test_a_correct_kernel_passes_every_shape_with_every_profile(pool: CasePool) -> None:
    verdict = run_gate(NumPyKernel(), pool.everything)
    assert verdict.passed, verdict.reason
    assert verdict.cases == 5 * len(PROFILES) + len(pool.steep) + 1 + 3


@pytest.mark.parametrize("head_dim", [8, 24, 40, 96, 200, 256])
@pytest.mark.every(3)
def test_any_head_dim_has_cases(head_dim: int) -> None:
    verdict = run_gate(NumPyKernel(), draw_cases(Problem(1, 2, 40, head_dim, causal=True, lse=True), head_dim))
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("profile", PROFILES)
def test_inputs_are_seeded_finite_and_independent(profile: str, dtype: DType) -> None:
    problem = Problem(2, 4, 37, 16, kv_heads=2, seq_kv=50, dtype=dtype, sink=True)
    first, again, other = (make_inputs(problem, profile, seed) for seed in (1, 1, 2))
    infinite = 0x7C00 if dtype is DType.FP16 else 0x7F80
    for name in ("q", "k", "v"):
        tensor, same, another = (getattr(inputs, name) for inputs in (first, again, other))
        assert np.array_equal(tensor, same)
        assert not np.array_equal(tensor, another)
        assert ((tensor & infinite) != infinite).all()
    assert not np.array_equal(first.k, first.v)
    assert not np.array_equal(first.k[0], first.k[1])
    assert first.sink is not None
    assert len(set(first.sink.tolist())) == 4


def test_profiles_alternate_over_kv_heads() -> None:
    problem = Problem(2, 4, 30, 16, kv_heads=2)
    inputs = make_inputs(problem, ("normal", "tiny"), 5)
    loud = np.abs(inputs.v.view(np.float16)).max(axis=(2, 3))
    assert (loud[:, 0] > 1).all()
    assert (loud[:, 1] < 1e-3).all()


def test_large_inputs_do_not_depend_on_threads() -> None:
    problem = Problem(2, 8, 64, 128, kv_heads=4, seq_kv=2100)  # drawn by several threads
    inputs, again = (make_inputs(problem, "normal", 7) for _ in range(2))
    assert np.array_equal(inputs.k, again.k)
    alone = make_inputs(replace(problem, seq_kv=2000), "normal", 7)
    assert len({inputs.k[b, h, :50].tobytes() for b in range(2) for h in range(4)}) == 8
    assert not np.array_equal(alone.k[0, 0, :50], inputs.k[0, 0, :50]), "another problem has other inputs"


@pytest.mark.parametrize(
    "problem",
    [
        Problem(1, 8, 4096, 64, causal=True),
        Problem(16, 32, 512, 64, kv_heads=8),
        Problem(4, 16, 16384, 128),
        Problem(1, 32, 1, 128, kv_heads=4, seq_kv=100_000),
        Problem(4, 8, 900, 64, kv_heads=2, seq_kv=2000, lengths_q=(900, 0, 3, 500), lengths_kv=(2000, 9, 50, 700)),
    ],
    ids=lambda problem: problem.key,
)
def test_large_problems_are_cut_to_a_slice(problem: Problem) -> None:
    cut = limited(problem, 10**8)
    work = 4 * cut.heads * cut.head_dim * sum(queries * keys for queries, keys in cut.sequences)
    assert work <= 1.01 * 10**8 or cut.seq_q == cut.heads == 1
    assert work >= 10**7
    assert (cut.seq_kv, cut.head_dim, cut.causal, cut.dtype, cut.packed) == (
        problem.seq_kv,
        problem.head_dim,
        problem.causal,
        problem.dtype,
        problem.packed,
    )
    assert limited(PROBLEM, 10**9) is PROBLEM


def test_a_slice_is_named_as_one() -> None:
    assert problem_case(PROBLEM, 0).name == "problem"
    assert problem_case(PROBLEM, 0, 10**5).name == "problem-slice"
    assert build_pool(PROBLEM, 0, 10**5).rechecks[0].name == "problem-slice"


@pytest.mark.parametrize("trait", ["plain", "bf16", "causal"])
@pytest.mark.every(2)
def test_every_draw_has_dominant_keys_early_and_late_in_cases_of_several_tiles(trait: str) -> None:
    """One key exceeds all of another part by more than f32's exponential can hold, in either order."""
    for seed in range(6):
        for case in draw_cases(TRAITS[trait], seed)[-3:-1]:  # multi-tile and decode
            logits = logits_of_the_first_head(case)
            keys = logits.shape[1]
            quarter = keys - keys // 4 - 1  # the first place of the late key
            early, late = (logits[:, part].max(axis=1) for part in (slice(16), slice(quarter, keys)))
            middle = logits[:, 16:quarter].max(axis=1)
            assert (early > np.maximum(middle, late) + 89).any()
            assert (late > np.maximum(early, middle) + 89).any()
            assert ((late > middle + 40) & (middle > early + 40)).any()
            assert ((early > middle + 40) & (middle > late + 40)).any()
            assert (np.maximum(early, late) < 89).any(), "rows without one remain"


def test_some_window_has_hundreds_of_keys() -> None:
    (*_, decode), variants = plans_for(TRAITS["window"]), range(VARIANTS)
    found = [decode.problem(TRAITS["window"], variant) for variant in variants]
    assert {(one.window_left or 0) // 400 for one in found} == {1, 4}
    assert all(one.seq_kv > (one.window_left or 0) + (one.window_right or 0) or one.seq_kv < 520 for one in found)


def logits_of_the_first_head(case: ParityCase) -> np.ndarray:
    """Returns the logits of the query heads that share the first K/V head ``[rows, keys]``; -inf for hidden keys."""
    problem = case.inputs.problem
    q, k = (from_bits(bits, problem.dtype)[0] for bits in (case.inputs.q, case.inputs.k))
    group = problem.heads // problem.kv_heads
    logits = case.inputs.softmax_scale * q[:group] @ k[0].T
    if problem.causal:
        hidden = np.triu(np.ones(logits.shape[1:], np.bool_), problem.seq_kv - problem.seq_q + 1)
        logits[:, hidden] = -np.inf
    return np.asarray(logits.reshape(-1, problem.seq_kv))


@pytest.mark.parametrize("trait", ["plain", "bf16", "softcap"])
@pytest.mark.every(2)
def test_every_draw_begins_with_rows_of_one_negative_logit(trait: str) -> None:
    for seed in range(3):
        logits = logits_of_the_first_head(draw_cases(TRAITS[trait], seed)[0])
        assert logits.shape == (8, 1)
        assert (logits < -150).any()


def test_the_first_head_of_every_recheck_has_dominant_keys(pool: CasePool) -> None:
    for case in pool.rechecks:
        assert logits_of_the_first_head(case).max() > 300
