"""hopper family with packed heads, splits of the keys and packed sequences, compared with fp64 attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.contract import random_inputs
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.parity.mutants.hopper import BASE, TURNS
from evoengine.parity.mutants.hopper_work import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Case, FamilyBuilder, assert_rejected, controls, sample_of, spread

Judge = Callable[[Kernel, Problem], Verdict]

ARCH = "sm_90a"
TARGET = get_target("h200").compiled_for(ARCH)

HEADS: Mapping[str, Value] = {"PACK_GQA": True}
SPLIT: Mapping[str, Value] = {"SPLIT_WAVES": 1, "SPLIT_TILES": 2}


@pytest.fixture(scope="session")
def hopper(library: TemplateLibrary) -> FamilyBuilder:
    return FamilyBuilder(library.load("hopper"), find_space("hopper"), BASE, Compiler(default_cache_dir()), TARGET)


CASES: list[Case] = [
    (
        "decode",
        parse_problem("1x8x1x64", kv_heads=2, seq_kv=260, dtype=DType.BF16, lse=True),
        {**HEADS, **SPLIT, "STAGES": 3},
    ),
    (
        "window, sink, two consumers",
        parse_problem("1x6x40x64", kv_heads=2, seq_kv=300, causal=True, window=(150, None), sink=True, lse=True),
        {**HEADS, **SPLIT, **TURNS},
    ),
    ("more heads than queries", parse_problem("1x40x2x64", kv_heads=1, seq_kv=150, causal=True), HEADS),
    ("Q in registers", parse_problem("1x4x30x64", kv_heads=2, seq_kv=90), {**HEADS, "Q_SOURCE": "registers"}),
    ("O in Q's bytes", parse_problem("1x5x20x72", kv_heads=1, seq_kv=90, lse=True), {**HEADS, "SHARE_QO": True}),
    ("splits without keys", parse_problem("1x1x100x64", seq_kv=150, causal=True, lse=True), {"SPLIT_WAVES": 1}),
    ("eight stages", parse_problem("1x2x64x32", seq_kv=600, lse=True), {"BLOCK_N": 48, "STAGES": 8}),
    (
        "sequences of all kinds",
        Problem(
            4, 6, 150, 64, kv_heads=2, seq_kv=200, causal=True, softcap=9.0, sink=True, lse=True,
            lengths_q=(150, 0, 17, 64), lengths_kv=(90, 30, 200, 0),
        ),
        {**HEADS, **TURNS, "SCHEDULE": "dynamic"},
    ),
    (
        "split sequences",
        Problem(3, 1, 70, 64, seq_kv=300, window_left=100, lengths_q=(70, 1, 33), lengths_kv=(300, 90, 12)),
        SPLIT,
    ),
    (  # the first consumer passes the tile whose V past the end all consumers clear
        "turns of sequences",
        Problem(2, 1, 128, 64, seq_kv=130, causal=True, lengths_q=(128, 90), lengths_kv=(130, 70)),
        TURNS,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "overrides"), spread(CASES))
def test_case_passes_the_gate(
    hopper: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(hopper.build(overrides, problem, arch=ARCH), problem)
    assert verdict.passed, verdict.reason


@pytest.mark.thorough
@pytest.mark.parametrize("setup", controls(MUTANTS, SETUPS))
def test_unchanged_setup_passes_the_gate(hopper: FamilyBuilder, judge: Judge, setup: MutantSetup) -> None:
    """In CI, the case "decode" has packed heads and splits."""
    verdict = judge(hopper.build(setup.values, setup.problem, arch=ARCH), setup.problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "hopper"))
@pytest.mark.every(2)
def test_mutant_is_rejected(hopper: FamilyBuilder, judge: Judge, mutant: Mutant) -> None:
    assert_rejected(hopper, judge, SETUPS[mutant.setup], mutant, ARCH)


def others_stay_equal(kernel: Kernel) -> bool:
    """Whether NaN in all rows of the second of three sequences leaves the results of the others as they are."""
    problem = SEQUENCES
    first, second = problem.lengths_kv[0], sum(problem.lengths_kv[:2])
    inputs = random_inputs(problem, 1)
    q, k, v = (np.array(one) for one in (inputs.q, inputs.k, inputs.v))
    for one in (q, k, v):
        one[:, :, first:second] = 0x7FFF
    device, both = EmulatorDevice(TARGET, None), (inputs, AttentionInputs.of(problem, q, k, v))
    want, got = (device.load(kernel).attention(one).o for one in both)  # first calls, which have equal grids
    kept = np.r_[0:first, second : problem.rows_q]
    return bool((got[:, :, kept] == want[:, :, kept]).all())


SEQUENCES = Problem(3, 2, 70, 64, kv_heads=1, lengths_q=(70, 20, 33), lengths_kv=(70, 20, 33))


@pytest.mark.parametrize(
    "overrides",
    [
        {**HEADS, **TURNS, "SCHEDULE": "dynamic"},
        {},
        {"SPLIT_WAVES": 1},
    ],
)
@pytest.mark.thorough
def test_values_of_another_sequence_never_matter(hopper: FamilyBuilder, overrides: Mapping[str, Value]) -> None:
    assert others_stay_equal(hopper.build(overrides, SEQUENCES, arch=ARCH))


def test_a_weight_of_zero_does_not_hide_another_sequence(hopper: FamilyBuilder) -> None:
    """0 · NaN is not 0: values past the end must be cleared."""
    kept = MutantEdit("if (inside >= Cfg::BLOCK_N) return;", "return;")
    assert not others_stay_equal(hopper.build({}, SEQUENCES, (kept,), arch=ARCH))


def test_the_grid_has_the_pieces_and_splits_of_the_space(hopper: FamilyBuilder) -> None:
    """Template and space state the number of splits once each, and the axes of the grid."""
    axes: set[int] = set()
    rng = np.random.default_rng(3)
    for problem in [case[1] for case in CASES] + [parse_problem("8x32x1x128", kv_heads=8, seq_kv=4096)]:
        valid = hopper.space.build(problem, TARGET)
        for config in (valid.sample(rng) for _ in range(8)):
            facts = hopper.space.derive(config.as_dict(), problem, TARGET)
            launch = hopper.template.render(config, problem, hopper.space, TARGET).launch
            resident, ctas = int(facts["RESIDENT_CTAS"]), int(facts["TILE_CTAS"]) * int(facts["SPLITS"])
            rest = ctas % resident if config["SHARE_LAST_ROUND"] else 0
            grid = ctas if config["SCHEDULE"] == "static" else resident if rest else min(ctas, resident)
            partials = ctas if config["SPLIT_WAVES"] else resident + rest if rest else 0
            counters = facts["TILE_CTAS"] if config["SPLIT_WAVES"] else rest or config["SCHEDULE"] == "dynamic"
            memory = launch.workspace(problem)
            found = launch.plan(problem).grid
            assert math.prod(found) == grid, config
            if config["SCHEDULE"] == "static" and not config["SPLIT_WAVES"] and not config["HEAD_GROUP"]:
                assert sorted(found) == sorted((facts["QUERY_TILES"], facts["WORK_HEADS"], problem.batch)), config
                axes.add(found.index(problem.batch) if found.count(problem.batch) == 1 else -1)
            else:
                assert found == (grid, 1, 1), config
            assert memory.bytes == partials * int(facts["BLOCK_M"]) * (problem.head_dim + 2) * 4, config
            assert memory.counters == counters, config
    assert {1, 2} <= axes, "sequences are on the second axis where the longest tiles come first, else on the third"


def test_no_axis_of_a_grid_is_too_long(hopper: FamilyBuilder) -> None:
    rng = np.random.default_rng(3)
    for batch, schedules in ((64, {"static", "persistent", "dynamic"}), (70_000, {"persistent", "dynamic"})):
        valid = hopper.space.build(parse_problem(f"{batch}x8x64x64"), TARGET)
        assert {valid.sample(rng)["SCHEDULE"] for _ in range(60)} == schedules
