"""wgmma family compared with fp64 attention on the emulator: features, code paths, mutants."""

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
from evoengine.parity.mutants.mutant import Mutant, MutantSetup
from evoengine.parity.mutants.wgmma import BASE, EXCHANGED, GROUPS, MUTANTS, OVERLAP, SETUPS
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Case, FamilyBuilder, assert_rejected, controls, sample_of, spread

Judge = Callable[[Kernel, Problem], Verdict]

ARCH = "sm_90a"
TARGET = get_target("h200").compiled_for(ARCH)


@pytest.fixture(scope="session")
def wgmma(library: TemplateLibrary, tmp_path_factory: pytest.TempPathFactory) -> FamilyBuilder:
    space = find_space("wgmma")
    return FamilyBuilder(library.load("wgmma"), space, BASE, Compiler(default_cache_dir()), TARGET)


FEATURES: list[Case] = [
    ("two key groups", parse_problem("1x1x64x64", seq_kv=150), {**GROUPS, "EXP_WITH_PV": True, "PEEL_FIRST": True}),
    ("bf16, four key groups, uneven shares", parse_problem("1x1x64x72", seq_kv=150, dtype=DType.BF16), {"WARPS_N": 4}),
    ("two key groups, merge by threads", parse_problem("1x1x64x64", seq_kv=150, lse=True), EXCHANGED),
    ("causal, two warpgroups of rows", parse_problem("1x1x130x64", causal=True), {"WARPS_M": 8, "EPILOGUE": "shared"}),
    ("head_dim 40", parse_problem("1x1x64x40", lse=True), {"BLOCK_N": 48}),
    ("head_dim 128, two groups", parse_problem("1x1x64x128"), {"BLOCK_N": 64, **GROUPS}),
    ("overlap, causal", parse_problem("1x1x64x64", seq_kv=200, causal=True), OVERLAP),
    ("overlap, deep rings, groups", parse_problem("1x1x40x64", seq_kv=330), {**OVERLAP, **GROUPS, "STAGES_V": 3}),
    ("exponentials beside values", parse_problem("1x1x64x64", seq_kv=200), {"EXP_WITH_PV": True, **GROUPS}),
    ("overlap, no mask", parse_problem("1x1x64x64", seq_kv=200, lse=True), OVERLAP),
    ("overlap, head_dim 136", parse_problem("1x1x64x136", seq_kv=100), OVERLAP),
    (
        "everything",
        parse_problem(
            "1x4x33x64", kv_heads=2, seq_kv=140, causal=True, window=(70, None), softcap=9.0, sink=True, lse=True
        ),
        {**GROUPS, "PACK_GQA": True},
    ),
    (
        "packed sequences",
        Problem(3, 2, 70, 64, lengths_q=(70, 1, 33), lengths_kv=(70, 1, 33)),
        {**OVERLAP, "TILE_ORDER": "natural"},
    ),
]


@pytest.mark.parametrize(("problem", "overrides"), spread(FEATURES))
def test_feature_passes_the_gate(
    wgmma: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(wgmma.build(overrides, problem, arch=ARCH), problem)
    assert verdict.passed, verdict.reason


def test_a_sampled_valid_config_passes_the_gate(wgmma: FamilyBuilder, judge: Judge) -> None:
    problem = parse_problem("1x1x48x64", seq_kv=272)
    valid = wgmma.space.build(problem, TARGET)
    config = valid.sample(np.random.default_rng(20))
    verdict = judge(wgmma.build(config.as_dict(), problem, arch=ARCH), problem)
    assert verdict.passed, f"{config}: {verdict.reason}"


@pytest.mark.parametrize("setup", controls(MUTANTS, SETUPS))
def test_unchanged_setup_passes_the_gate(wgmma: FamilyBuilder, judge: Judge, setup: MutantSetup) -> None:
    verdict = judge(wgmma.build(setup.values, setup.problem, arch=ARCH), setup.problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "wgmma"))
@pytest.mark.every(2)
def test_mutant_is_rejected(wgmma: FamilyBuilder, judge: Judge, mutant: Mutant) -> None:
    assert_rejected(wgmma, judge, SETUPS[mutant.setup], mutant, ARCH)


def test_only_sm_90a_is_supported(library: TemplateLibrary) -> None:
    template = library.load("wgmma")
    assert template.supports(parse_problem("mission"), ARCH) is None
    assert "--arch sm_90a" in str(template.supports(parse_problem("mission"), "sm_90"))
    assert "needs sm_90 or newer" in str(template.supports(parse_problem("mission"), "sm_89"))


@pytest.mark.gpu
def test_sampled_configs_pass_the_gate_on_hopper(wgmma: FamilyBuilder) -> None:
    from evoengine.device.cuda.device import CudaDevice

    rng = np.random.default_rng(4)
    with closing(CudaDevice(ARCH)) as gpu:
        for _, problem, _ in FEATURES:
            valid, cases = wgmma.space.build(problem, TARGET), draw_cases(problem, 3)
            for config in (valid.sample(rng) for _ in range(5)):
                with closing(gpu.load(wgmma.build(config.as_dict(), problem, arch=ARCH))) as loaded:
                    verdict = run_gate(loaded, cases)
                    assert verdict.passed, f"{config}: {verdict.reason}"
