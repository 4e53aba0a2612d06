"""hopper family compared with fp64 attention on the emulator: features, code paths, mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

import numpy as np
import pytest

from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.mutants import hopper as one_group
from evoengine.parity.mutants import hopper_key_groups as key_groups
from evoengine.parity.mutants.hopper import BASE, TURNS
from evoengine.parity.mutants.hopper_key_groups import THREE, TWO
from evoengine.parity.mutants.mutant import Mutant, MutantSetup
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Case, FamilyBuilder, assert_rejected, controls, sample_of, spread

Judge = Callable[[Kernel, Problem], Verdict]

ARCH = "sm_90a"
SETUPS = {**one_group.SETUPS, **key_groups.SETUPS}
MUTANTS = (*one_group.MUTANTS, *key_groups.MUTANTS)
TARGET = get_target("h200").compiled_for(ARCH)


@pytest.fixture(scope="session")
def hopper(library: TemplateLibrary) -> FamilyBuilder:
    space = find_space("hopper")
    return FamilyBuilder(library.load("hopper"), space, BASE, Compiler(default_cache_dir()), TARGET)


EVERYTHING = parse_problem(
    "1x4x33x64", kv_heads=2, seq_kv=140, causal=True, window=(70, None), softcap=9.0, sink=True, lse=True
)
FEATURES: list[Case] = [
    (
        "tiles at both ends that a consumer does not see",
        parse_problem("1x1x128x64", seq_kv=320, window=(60, 20)),
        {**TURNS, "BLOCK_N": 48},
    ),
    (
        "packed sequences, tiles that a consumer does not see",
        Problem(2, 1, 150, 64, seq_kv=170, causal=True, lengths_q=(150, 40), lengths_kv=(170, 100)),
        {**TURNS, "CONSUMERS": 3, "BLOCK_N": 48},
    ),
    ("without overlap, bf16", parse_problem("1x1x64x72", seq_kv=150, dtype=DType.BF16), {"OVERLAP": False}),
    (
        "four CTAs on an SM",
        parse_problem("1x1x64x64", causal=True),
        {"CTAS_PER_SM": 4, "OVERLAP": False, "SHARE_QO": True},
    ),
    (
        "Q in registers",
        parse_problem("1x1x64x64", causal=True, lse=True),
        {"Q_SOURCE": "registers", "BESIDE_VALUES": 0},
    ),
    ("head_dim 40", parse_problem("1x1x64x40", lse=True), {"BLOCK_N": 48}),
    ("head_dim 128, O in Q's bytes", parse_problem("1x1x64x128", seq_kv=200), {"SHARE_QO": True}),
    ("two key groups, head_dim 72", parse_problem("1x1x64x72", seq_kv=200), {**TWO, "OVERLAP": False}),
    ("key groups, Q in registers", parse_problem("1x1x64x64", seq_kv=200), {**TWO, "Q_SOURCE": "registers"}),
    (
        "three key groups in turn",
        parse_problem("1x2x100x64", seq_kv=460, causal=True, lse=True),
        {**THREE, "PINGPONG": True, "BESIDE_VALUES": 25, "SHARE_QO": True},
    ),
    (
        "key groups by a counter",
        parse_problem("1x136x64x16", seq_kv=300),
        {**TWO, "BLOCK_N": 48, "SCHEDULE": "dynamic", "SHARE_QO": True},
    ),
    ("polynomial", parse_problem("1x1x64x64", seq_kv=200), {"EXP2_POLY": 25}),
    ("everything", EVERYTHING, {**TURNS, "BESIDE_VALUES": 0}),
    (
        "everything with key groups",
        EVERYTHING,
        {**TWO, "BLOCK_N": 48, "PINGPONG": True, "STORE_OP": "streaming"},
    ),
]


@pytest.mark.parametrize(("problem", "overrides"), spread(FEATURES))
def test_feature_passes_the_gate(
    hopper: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(hopper.build(overrides, problem, arch=ARCH), problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("setup", controls(MUTANTS, SETUPS))
def test_unchanged_setup_passes_the_gate(hopper: FamilyBuilder, judge: Judge, setup: MutantSetup) -> None:
    verdict = judge(hopper.build(setup.values, setup.problem, arch=ARCH), setup.problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "hopper"))
@pytest.mark.every(2)
def test_mutant_is_rejected(hopper: FamilyBuilder, judge: Judge, mutant: Mutant) -> None:
    assert_rejected(hopper, judge, SETUPS[mutant.setup], mutant, ARCH)


def test_only_sm_90a_is_supported(library: TemplateLibrary) -> None:
    template = library.load("hopper")
    assert template.supports(parse_problem("default"), ARCH) is None
    assert "needs sm_90 or newer" in str(template.supports(parse_problem("default"), "sm_89"))


@pytest.mark.gpu
def test_sampled_configs_pass_the_gate_on_hopper(hopper: FamilyBuilder) -> None:
    from evoengine.device.cuda.device import CudaDevice

    rng = np.random.default_rng(4)
    with closing(CudaDevice(ARCH)) as gpu:
        for _, problem, _ in FEATURES:
            valid, cases = hopper.space.build(problem, TARGET), draw_cases(problem, 3)
            for config in (valid.sample(rng) for _ in range(5)):
                with closing(gpu.load(hopper.build(config.as_dict(), problem, arch=ARCH))) as loaded:
                    verdict = run_gate(loaded, cases)
                    assert verdict.passed, f"{config}: {verdict.reason}"
