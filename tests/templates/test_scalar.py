"""Scalar family compared with fp64 attention on the emulator: features, code paths, mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.parity.mutants.mutant import Mutant, MutantSetup
from evoengine.parity.mutants.scalar import BASE, MUTANTS, SETUPS, STAGED
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Case, FamilyBuilder, assert_rejected, controls, other_archs, sample_of, spread

Judge = Callable[[Kernel, Problem], Verdict]

FEW_LANES: Mapping[str, Value] = {"LANES_PER_KEY": 2, "THREADS": 32, "MERGE": "shared", "KEYS_PER_STEP": 1}


@pytest.fixture(scope="session")
def scalar(library: TemplateLibrary, tmp_path_factory: pytest.TempPathFactory) -> FamilyBuilder:
    compiler = Compiler(default_cache_dir())
    return FamilyBuilder(library.load("scalar"), find_space("scalar"), BASE, compiler, get_target("l4"))


FEATURES: list[Case] = [
    ("bf16", parse_problem("1x1x40x32", dtype=DType.BF16), {"MERGE": "shared"}),
    ("head_dim 32, whole warp on a key", parse_problem("1x1x33x32"), {"LANES_PER_KEY": 16, "VECTOR": 2}),
    ("head_dim 96, tiles", parse_problem("1x1x33x96"), {**STAGED, "LANES_PER_KEY": 4, "VECTOR": 8}),
    ("head_dim 128, warps merged", parse_problem("1x1x33x128", causal=True), {"LANES_PER_KEY": 32, "THREADS": 256}),
    ("grouped queries", parse_problem("1x4x20x64", kv_heads=2), {"CACHE_OP": "cg", "L2_PREFETCH_BYTES": 128}),
    ("more keys than queries", parse_problem("1x1x9x64", seq_kv=200), {**STAGED, "STAGES": 3, "UNROLL": 2}),
    ("fewer keys than queries", parse_problem("1x1x50x64", seq_kv=20, causal=True), {**STAGED, "MERGE": "shared"}),
    ("two lanes a key", parse_problem("1x1x5x32"), FEW_LANES),
    ("plain tiles", parse_problem("1x1x20x64"), {"STAGING": "shared", "VECTOR": 2}),
]


@pytest.mark.parametrize(("problem", "overrides"), spread(FEATURES))
def test_feature_passes_the_gate(
    scalar: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(scalar.build(overrides, problem), problem)
    assert verdict.passed, verdict.reason


def test_a_sampled_valid_config_passes_the_gate(scalar: FamilyBuilder, judge: Judge) -> None:
    problem = parse_problem("1x1x16x32", seq_kv=100)
    valid = scalar.space.build(problem, scalar.target)
    config = valid.sample(np.random.default_rng(20))
    verdict = judge(scalar.build(config.as_dict(), problem), problem)
    assert verdict.passed, f"{config}: {verdict.reason}"


def test_the_mission_problem_has_many_valid_configs(scalar: FamilyBuilder) -> None:
    assert scalar.space.build(parse_problem("mission"), scalar.target).size >= 200


@pytest.mark.parametrize(("arch", "head_dims"), other_archs((32, 64), (96, 128)))
def test_compiles_for_other_architectures(scalar: FamilyBuilder, arch: str, head_dims: tuple[int, int]) -> None:
    for head_dim, dtype in zip(head_dims, DType, strict=True):
        kernel = scalar.build(STAGED, Problem(1, 1, 64, head_dim, dtype=dtype, causal=head_dim == 96), arch=arch)
        assert kernel.binary.arch == arch
        assert 0 < kernel.binary.resources.registers <= 255
        assert kernel.binary.resources.spill_bytes == 0


@pytest.mark.parametrize("setup", controls(MUTANTS, SETUPS))
def test_unchanged_setup_passes_the_gate(scalar: FamilyBuilder, judge: Judge, setup: MutantSetup) -> None:
    assert judge(scalar.build(setup.values, setup.problem), setup.problem).passed


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_staged_config_passes_the_gate(scalar: FamilyBuilder, judge: Judge, causal: bool) -> None:
    problem = parse_problem("1x2x40x64", causal=causal)
    assert judge(scalar.build({**STAGED, "LANES_PER_KEY": 4}, problem), problem).passed


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "scalar"))
@pytest.mark.every(2)
def test_mutant_is_rejected(scalar: FamilyBuilder, judge: Judge, mutant: Mutant) -> None:
    assert_rejected(scalar, judge, SETUPS[mutant.setup], mutant)
