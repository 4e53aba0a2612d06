"""hopper family with a shared last round and two slots of Q, compared with fp64 attention on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

import pytest

from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.parity.inputs.cases import problem_case
from evoengine.parity.mutants.hopper import BASE, TURNS
from evoengine.parity.mutants.hopper_rounds import MUTANTS, SETUPS
from evoengine.parity.mutants.mutant import Mutant, MutantSetup
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Case, FamilyBuilder, assert_rejected, controls, sample_of, spread

Judge = Callable[[Kernel, Problem], Verdict]

ARCH = "sm_90a"
TARGET = get_target("h200").compiled_for(ARCH)
FOUR_SMS = replace(TARGET, sms=4)
EIGHT_SMS = replace(TARGET, sms=8)
SHARED: Mapping[str, Value] = {"SCHEDULE": "persistent", "SHARE_LAST_ROUND": True}


@pytest.fixture(scope="session")
def hopper(library: TemplateLibrary) -> FamilyBuilder:
    return FamilyBuilder(library.load("hopper"), find_space("hopper"), BASE, Compiler(default_cache_dir()), FOUR_SMS)


CASES: list[Case] = [
    ("a round and three pieces", parse_problem("1x7x64x64", seq_kv=200, lse=True), {}),
    ("a round and one piece", parse_problem("1x5x60x64", seq_kv=300, dtype=DType.BF16), {"BESIDE_VALUES": 25}),
    ("no complete round", parse_problem("1x3x50x64", seq_kv=230, sink=True, lse=True), {}),
    ("fewer tiles than CTAs", parse_problem("1x1x64x64", seq_kv=150, lse=True), {}),
    ("Q in registers", parse_problem("1x6x64x64", seq_kv=200, softcap=9.0), {"Q_SOURCE": "registers"}),
    ("packed heads", parse_problem("3x4x30x64", kv_heads=2, seq_kv=200, lse=True), {"PACK_GQA": True}),
    ("no rest", parse_problem("1x4x64x64", seq_kv=90), {}),
    ("tiles of the next piece ahead", parse_problem("1x11x64x64", seq_kv=50), {"STAGES": 2, "BLOCK_N": 64}),
    ("two slots of Q, which O takes", parse_problem("1x11x64x40"), {"Q_SLOTS": 2, "SHARE_QO": True}),
    (
        "four consumers in turn, O in Q's bytes",
        parse_problem("1x3x256x64", seq_kv=130),
        {**TURNS, "CONSUMERS": 4, "SHARE_QO": True},
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("problem", "overrides"), spread(CASES))
def test_case_passes_the_gate(
    hopper: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    """Further problems than those of the unchanged setups, which CI runs."""
    verdict = judge(hopper.build({**SHARED, **overrides}, problem, arch=ARCH), problem)
    assert verdict.passed, verdict.reason


FEWER: Mapping[str, Problem] = {
    # Eight pieces of a complete round, and two of four tiles for eight CTAs.
    "hopper last round": parse_problem("1x10x16x16", seq_kv=200, lse=True),
    # Three pieces of four tiles for eight CTAs: runs of one or two tiles, some of which cross to the next piece.
    "hopper crossing runs": parse_problem("1x3x16x16", seq_kv=230, lse=True),
    **dict.fromkeys(
        ("hopper two slots of Q", "hopper Q in registers", "hopper next pieces"), parse_problem("1x25x16x16")
    ),
    "hopper packed rows in Q's bytes": parse_problem("6x4x16x16", lengths_q=(16, 9) * 3),
}
"""Problems of the setups with as many pieces per SM on eight SMs as theirs have on 132."""
FEW_SETUPS = {name: replace(setup, problem=FEWER[name]) for name, setup in SETUPS.items()}


@pytest.fixture(scope="session")
def eight(library: TemplateLibrary) -> FamilyBuilder:
    return FamilyBuilder(library.load("hopper"), find_space("hopper"), BASE, Compiler(default_cache_dir()), EIGHT_SMS)


@pytest.mark.thorough
@pytest.mark.parametrize("setup", controls(MUTANTS, FEW_SETUPS))
def test_unchanged_setup_passes_the_gate(eight: FamilyBuilder, judge: Judge, setup: MutantSetup) -> None:
    """On the problem of each setup with the same config, so that a complete round before the shared one is among them.

    These are one kernel, whose small cases run once.
    """
    for problem in {one.problem: None for one in FEW_SETUPS.values() if one.values == setup.values}:
        verdict = judge(eight.build(setup.values, problem, arch=ARCH), problem)
        assert verdict.passed, (problem.key, verdict.reason)


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "hopper"))
@pytest.mark.every(3)
def test_mutant_is_rejected(eight: FamilyBuilder, judge: Judge, mutant: Mutant) -> None:
    assert_rejected(eight, judge, FEW_SETUPS[mutant.setup], mutant, ARCH)


@pytest.mark.gpu
def test_reads_of_q_are_done_before_the_next_copy(library: TemplateLibrary) -> None:
    """Many pieces of one key tile: where Q was released early, about one call in a hundred gave other bits."""
    from evoengine.device.cuda.device import CudaDevice

    problem = parse_problem("4x20x777x128", causal=True)
    values = {**TURNS, "BLOCK_N": 128, "SCHEDULE": "persistent", "Q_SOURCE": "registers", "HEAD_GROUP": 16, "STAGES": 2}
    hopper = FamilyBuilder(library.load("hopper"), find_space("hopper"), BASE, Compiler(default_cache_dir()), TARGET)
    kernel = hopper.build(values, problem, arch=ARCH)
    with closing(CudaDevice(ARCH)) as gpu, closing(gpu.load(kernel)) as loaded:
        call = loaded.first_unequal(problem_case(problem, 0).inputs, 2.0)
    assert call is None
