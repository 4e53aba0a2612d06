"""wmma family compared with fp64 attention on the emulator: features, code paths, mutants."""

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
from evoengine.parity.mutants.wmma import BASE, MUTANTS, O_SHARED, PLAIN_COPIES, RINGS, SETUPS
from evoengine.space.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Case, FamilyBuilder, assert_rejected, controls, other_archs, sample_of, spread

Judge = Callable[[Kernel, Problem], Verdict]

Q_KEPT: Mapping[str, Value] = {"Q_LOCATION": "fragments"}
P_OVER_S: Mapping[str, Value] = {"P_LOCATION": "scores"}
UNPADDED: Mapping[str, Value] = {"PAD_HALVES": 0, "PAD_FLOATS": 0}


@pytest.fixture(scope="session")
def wmma(library: TemplateLibrary, tmp_path_factory: pytest.TempPathFactory) -> FamilyBuilder:
    compiler = Compiler(default_cache_dir())
    return FamilyBuilder(library.load("wmma"), find_space("wmma"), BASE, compiler, get_target("l4"))


FEATURES: list[Case] = [
    ("bf16", parse_problem("1x2x96x64", dtype=DType.BF16), {}),
    ("causal bf16, O in shared memory", parse_problem("1x1x80x64", causal=True, dtype=DType.BF16), O_SHARED),
    ("head_dim 32", parse_problem("1x1x70x32"), Q_KEPT),
    ("head_dim 96", parse_problem("1x1x70x96", causal=True), {**P_OVER_S, "WARPS_N": 1}),
    ("head_dim 128", parse_problem("1x1x70x128"), {"BLOCK_N": 64, "WARPS_N": 4, "THREADS_PER_ROW": 8}),
    ("grouped queries", parse_problem("1x4x64x64", kv_heads=2), PLAIN_COPIES),
    ("more keys than queries", parse_problem("1x1x40x64", seq_kv=200, causal=True), {**RINGS, **Q_KEPT}),
    ("fewer keys than queries", parse_problem("1x1x90x64", seq_kv=30, causal=True), {**O_SHARED, **PLAIN_COPIES}),
    ("one by one", parse_problem("1x1x1x64"), {"BLOCK_M": 16, "WARPS_M": 1, "BLOCK_N": 64, "THREADS_PER_ROW": 16}),
    ("deep rings, unrolled", parse_problem("1x1x64x64", seq_kv=300), {"STAGES": 3, "UNROLL": 2, **P_OVER_S}),
    ("two threads a row, no padding", parse_problem("1x1x64x64"), {"THREADS_PER_ROW": 2, "BLOCK_M": 128, **UNPADDED}),
    ("through L1, prefetch", parse_problem("1x1x32x64"), {"CACHE_OP": "ca", "L2_PREFETCH_BYTES": 128, **P_OVER_S}),
]


@pytest.mark.parametrize(("problem", "overrides"), spread(FEATURES))
def test_feature_passes_the_gate(
    wmma: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(wmma.build(overrides, problem), problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("seed", [20, pytest.param(21, marks=pytest.mark.thorough)])
def test_a_sampled_valid_config_passes_the_gate(wmma: FamilyBuilder, judge: Judge, seed: int) -> None:
    problem = parse_problem("1x1x48x64", seq_kv=272)
    config = wmma.space.build(problem, wmma.target).sample(np.random.default_rng(seed))
    verdict = judge(wmma.build(config.as_dict(), problem), problem)
    assert verdict.passed, f"{config}: {verdict.reason}"


def test_the_mission_problem_has_many_valid_configs(wmma: FamilyBuilder) -> None:
    assert wmma.space.build(parse_problem("mission"), wmma.target).size >= 200


@pytest.mark.parametrize(("arch", "head_dims"), other_archs((32, 64), (96, 128)))
def test_compiles_for_other_architectures(wmma: FamilyBuilder, arch: str, head_dims: tuple[int, int]) -> None:
    for head_dim, dtype in zip(head_dims, DType, strict=True):
        problem = Problem(1, 1, 64, head_dim, dtype=dtype, causal=head_dim == 96)
        kernel = wmma.build({**RINGS, "WARPS_N": 1}, problem, arch=arch)
        assert kernel.binary.arch == arch
        assert 0 < kernel.binary.resources.registers <= 255
        assert kernel.binary.resources.spill_bytes == 0


@pytest.mark.parametrize("setup", controls(MUTANTS, SETUPS))
def test_unchanged_setup_passes_the_gate(wmma: FamilyBuilder, judge: Judge, setup: MutantSetup) -> None:
    verdict = judge(wmma.build(setup.values, setup.problem), setup.problem)
    assert verdict.passed, verdict.reason


@pytest.mark.parametrize("mutant", sample_of(MUTANTS, "wmma"))
@pytest.mark.every(2)
def test_mutant_is_rejected(wmma: FamilyBuilder, judge: Judge, mutant: Mutant) -> None:
    assert_rejected(wmma, judge, SETUPS[mutant.setup], mutant)


ONE_ATOM: Mapping[str, Value] = {"WARPS_N": 1, "MIN_CTAS": 2}
"""One row fragment per warp: a version of ptxas for sm_90 doubled the offset of the warp's rows of P."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    "overrides",
    [
        ONE_ATOM,
        {**ONE_ATOM, "Q_LOCATION": "fragments", "STAGES": 2, "THREADS_PER_ROW": 2},
        {**ONE_ATOM, "P_LOCATION": "scores", "PAD_HALVES": 0, "BLOCK_M": 64, "WARPS_M": 4, "THREADS_PER_ROW": 8},
        {**ONE_ATOM, "P_LOCATION": "scores", "PAD_HALVES": 0, "BLOCK_N": 64, "Q_LOCATION": "fragments"},
        {**ONE_ATOM, "P_LOCATION": "scores", "PAD_HALVES": 0, "BLOCK_M": 128, "WARPS_M": 8, "MIN_CTAS": 1},
    ],
    ids=["own", "two-stages", "scores", "wide", "tall"],
)
def test_every_warp_reads_its_own_rows_of_p_on_a_gpu(wmma: FamilyBuilder, overrides: Mapping[str, Value]) -> None:
    from evoengine.device.cuda.device import CudaDevice

    problem = parse_problem("1x2x96x64")
    with closing(CudaDevice()) as gpu, closing(gpu.load(wmma.build(overrides, problem, arch=gpu.info.arch))) as loaded:
        verdict = run_gate(loaded, draw_cases(problem, 3))
    assert verdict.passed, verdict.reason
