"""The wmma family against fp64 attention, on the emulator: every feature, every path, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

import numpy as np
import pytest

from evoengine.errors import LaunchError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.kernel.template.renderer import TemplateLibrary
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.parity.gate import run_gate
from evoengine.parity.inputs.pool import draw_cases
from evoengine.space.language.loader import find_space
from evoengine.target import get_target
from tests.templates.building import Edit, FamilyBuilder

Judge = Callable[[Kernel, Problem], Verdict]

BASE: Mapping[str, Value] = {
    "BLOCK_M": 32,
    "BLOCK_N": 32,
    "WARPS_M": 2,
    "WARPS_N": 2,
    "THREADS_PER_ROW": 4,
    "STAGING": "async",
    "STAGES": 1,
    "PAD_HALVES": 8,
    "PAD_FLOATS": 4,
    "Q_LOCATION": "shared",
    "P_LOCATION": "own",
    "O_LOCATION": "fragments",
    "CACHE_OP": "cg",
    "L2_PREFETCH_BYTES": 0,
    "MIN_CTAS": 1,
    "UNROLL": 1,
}
"""The notes' kernel: 32x32 tiles, 2x2 warps, rows padded by eight."""

RINGS: Mapping[str, Value] = {"STAGES": 2}
O_SHARED: Mapping[str, Value] = {"O_LOCATION": "shared"}
Q_KEPT: Mapping[str, Value] = {"Q_LOCATION": "fragments"}
P_OVER_S: Mapping[str, Value] = {"P_LOCATION": "scores"}
PLAIN: Mapping[str, Value] = {"STAGING": "plain"}
TALL: Mapping[str, Value] = {**PLAIN, "BLOCK_M": 64, "BLOCK_N": 16, "WARPS_M": 4, "WARPS_N": 1, "THREADS_PER_ROW": 2}
"""Many rows and few keys: O in f32 lies over V, S and P on its way out."""
UNPADDED: Mapping[str, Value] = {"PAD_HALVES": 0, "PAD_FLOATS": 0}


@pytest.fixture(scope="session")
def wmma(library: TemplateLibrary, tmp_path_factory: pytest.TempPathFactory) -> FamilyBuilder:
    compiler = Compiler(tmp_path_factory.mktemp("cache"))
    return FamilyBuilder(library.load("wmma"), find_space("wmma"), BASE, compiler, get_target("l4"))


FEATURES: list[tuple[str, Problem, Mapping[str, Value]]] = [
    ("the mutants' problem", parse_problem("1x2x64x64"), {}),
    ("the mutants' problem, causal", parse_problem("1x2x64x64", causal=True), {}),
    ("the mutants' problem, O in shared memory", parse_problem("1x2x64x64"), O_SHARED),
    ("the hazards' problem, rings", parse_problem("1x1x40x64", seq_kv=150), RINGS),
    ("the hazards' problem, tall", parse_problem("1x1x40x64", seq_kv=150), TALL),
    ("the hazards' problem, plain copies", parse_problem("1x1x40x64", seq_kv=150), PLAIN),
    ("bf16", parse_problem("1x2x96x64", dtype=DType.BF16), {}),
    ("causal bf16, O in shared memory", parse_problem("1x1x80x64", causal=True, dtype=DType.BF16), O_SHARED),
    ("head_dim 32", parse_problem("1x1x70x32"), Q_KEPT),
    ("head_dim 96", parse_problem("1x1x70x96", causal=True), {**P_OVER_S, "WARPS_N": 1}),
    ("head_dim 128", parse_problem("1x1x70x128"), {"BLOCK_N": 64, "WARPS_N": 4, "THREADS_PER_ROW": 8}),
    ("grouped queries", parse_problem("1x4x64x64", kv_heads=2), PLAIN),
    ("more keys than queries", parse_problem("1x1x40x64", seq_kv=200, causal=True), {**RINGS, **Q_KEPT}),
    ("fewer keys than queries", parse_problem("1x1x90x64", seq_kv=30, causal=True), {**O_SHARED, **PLAIN}),
    ("one by one", parse_problem("1x1x1x64"), {"BLOCK_M": 16, "WARPS_M": 1, "BLOCK_N": 64, "THREADS_PER_ROW": 16}),
    ("deep rings, unrolled", parse_problem("1x1x64x64", seq_kv=300), {"STAGES": 3, "UNROLL": 2, **P_OVER_S}),
    ("two threads a row, no padding", parse_problem("1x1x64x64"), {"THREADS_PER_ROW": 2, "BLOCK_M": 128, **UNPADDED}),
    ("through L1, prefetch", parse_problem("1x1x32x64"), {"CACHE_OP": "ca", "L2_PREFETCH_BYTES": 128, **P_OVER_S}),
]


@pytest.mark.parametrize(("problem", "overrides"), [f[1:] for f in FEATURES], ids=[f[0] for f in FEATURES])
def test_feature_passes_the_gate(
    wmma: FamilyBuilder, judge: Judge, problem: Problem, overrides: Mapping[str, Value]
) -> None:
    verdict = judge(wmma.build(overrides, problem), problem)
    assert verdict.passed, verdict.reason


def test_sampled_valid_configs_pass_the_gate(wmma: FamilyBuilder, judge: Judge) -> None:
    problem = parse_problem("1x1x48x64", seq_kv=272)
    valid = wmma.space.build(problem, wmma.target)
    rng = np.random.default_rng(20)
    for config in (valid.sample(rng) for _ in range(3)):
        verdict = judge(wmma.build(config.as_dict(), problem), problem)
        assert verdict.passed, f"{config}: {verdict.reason}"


def test_the_mission_problem_has_many_valid_configs(wmma: FamilyBuilder) -> None:
    assert wmma.space.build(parse_problem("mission"), wmma.target).size >= 200


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_compiles_for_every_architecture(wmma: FamilyBuilder, arch: str) -> None:
    for head_dim, dtype in zip((32, 64, 96, 128), (*DType, *DType), strict=True):
        problem = Problem(1, 1, 64, head_dim, dtype=dtype, causal=head_dim == 96)
        kernel = wmma.build({**RINGS, "WARPS_N": 1}, problem, arch=arch)
        assert kernel.binary.arch == arch
        assert 0 < kernel.binary.resources.registers <= 255
        assert kernel.binary.resources.spill_bytes == 0


CAUSAL_END = "min(p.seq_kv, query + 1 + p.seq_kv - p.seq_q)"
TILE_COUNT = "(visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N"
VISIBLE = "visible - first_key, p.scale_log2"
VALUES = "Element, wmma::row_major>;\nusing Accumulator"

MUTANTS: dict[str, tuple[bool, Mapping[str, Value], Edit]] = {
    "O in fragments never rescaled": (False, {}, ("o[m][n].x[i] *= factors.x[i]", "o[m][n].x[i] *= 1.0f")),
    "O in shared memory never rescaled": (False, O_SHARED, ("make_float2(pair.x * factor, pair.y * factor)", "pair")),
    "sum never rescaled": (False, {}, ("sum *= rescale;", "")),
    "scale off by 10 %": (False, {}, (VISIBLE, "visible - first_key, p.scale_log2 * 0.9f")),
    "last key tile skipped": (False, {}, (TILE_COUNT, "visible_keys / Cfg::BLOCK_N")),
    "tail keys not masked": (False, {}, (VISIBLE, "Cfg::BLOCK_N, p.scale_log2")),
    "one key dropped": (False, {}, (VISIBLE, "visible - first_key - 1, p.scale_log2")),
    "mask shifted right by one": (True, {}, (CAUSAL_END, "min(p.seq_kv, query + 2 + p.seq_kv - p.seq_q)")),
    "mask shifted left by one": (True, {}, (CAUSAL_END, "min(p.seq_kv, query + p.seq_kv - p.seq_q)")),
    "mask aligned top-left": (True, {}, (CAUSAL_END, "min(p.seq_kv, query + 1)")),
    "K of the wrong head": (False, {}, ("kv_head * p.k_head_stride", "0 * p.k_head_stride")),
    "V loaded transposed": (False, {}, (VALUES, VALUES.replace("row", "col"))),
    "last query row not written": (False, {}, ("cta_row + row < p.seq_q", "cta_row + row + 1 < p.seq_q")),
    "one half of the keys left out of P V": (False, {}, ("step < V_STEPS", "step < V_STEPS / 2")),
}


@pytest.mark.parametrize(("causal", "overrides", "edit"), MUTANTS.values(), ids=MUTANTS.keys())
def test_broken_kernel_is_rejected(
    wmma: FamilyBuilder, judge: Judge, causal: bool, overrides: Mapping[str, Value], edit: Edit
) -> None:
    problem = parse_problem("1x2x64x64", causal=causal)
    verdict = judge(wmma.build(overrides, problem, (edit,)), problem)
    assert not verdict.passed
    assert verdict.reason


HAZARDS: dict[str, tuple[Mapping[str, Value], tuple[Edit, ...]]] = {
    "K read before its copy was waited for": (
        RINGS,
        (
            ("wait_for_copies<2 * Cfg::STAGES - 1>();\n        } else", "} else"),
            ("wait_for_copies<2 * Cfg::STAGES - 2>();", ""),
        ),
    ),
    "V read before its copy was waited for": (
        RINGS,
        (("wait_for_copies<2 * Cfg::STAGES - 1>();\n        __syncthreads();  // C", "__syncthreads();  // C"),),
    ),
    "no barrier before K is read": ({}, (("__syncthreads();  // A", "// A"),)),
    "no barrier between S and the softmax": (PLAIN, (("__syncthreads();  // B", "// B"),)),
    "no barrier between P and P V": (PLAIN, (("__syncthreads();  // C", "// C"),)),
    "no barrier before O takes the bytes": (TALL, (("__syncthreads();  // D", "// D"),)),
    "no barrier before O is read": (O_SHARED, (("__syncthreads();  // E", "// E"),)),
    "reads keys past the end": ({}, (("min(row, valid_rows - 1)", "row"), ("row < valid_rows ? CHUNK * 2 : 0", "16"))),
    "writes rows past the end": ({}, (("cta_row + row < p.seq_q", "true"),)),
}


@pytest.mark.parametrize(("overrides", "edits"), HAZARDS.values(), ids=HAZARDS.keys())
def test_hazard_is_an_error_not_luck(
    wmma: FamilyBuilder, judge: Judge, overrides: Mapping[str, Value], edits: tuple[Edit, ...]
) -> None:
    problem = parse_problem("1x1x40x64", seq_kv=150)
    broken = wmma.build(overrides, problem, edits)
    with pytest.raises(LaunchError):
        judge(broken, problem)


ONE_ATOM: Mapping[str, Value] = {"WARPS_N": 1, "MIN_CTAS": 2}
"""A fragment of rows a warp: ptxas for sm_90 once gave the warp's rows of P twice their offset."""


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
