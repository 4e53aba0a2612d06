"""The mma family against fp64 attention, on the emulator: every feature, every tunable's values, and known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from evoengine.errors import LaunchError
from evoengine.kernel.artifact import Kernel
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.space.space import SearchSpace
from evoengine.target import get_target

Build = Callable[..., Kernel]
Judge = Callable[[Kernel, Problem], Verdict]
Edit = tuple[str, str]

PADDED: Mapping[str, Value] = {"SMEM_LAYOUT": "padded", "PAD_HALVES": 8}

FEATURES: list[tuple[str, Problem, Mapping[str, Value]]] = [
    ("fp16", parse_problem("1x2x96x64"), {}),
    ("bf16", parse_problem("1x2x96x64", dtype=DType.BF16), {}),
    ("causal", parse_problem("1x2x96x64", causal=True), {}),
    ("causal bf16, one group", parse_problem("1x1x80x64", causal=True, dtype=DType.BF16), {"WARPS_N": 1}),
    ("head_dim 32", parse_problem("1x1x70x32"), {"Q_LOCATION": "registers"}),
    ("head_dim 96", parse_problem("1x1x70x96", causal=True), {"Q_LOCATION": "shared"}),
    ("head_dim 128", parse_problem("1x1x70x128"), {"BLOCK_N": 48}),
    ("grouped queries", parse_problem("1x4x64x64", kv_heads=2), {}),
    ("more keys than queries", parse_problem("1x1x40x64", seq_kv=200, causal=True), {"WARPS_N": 4, "BLOCK_N": 16}),
    ("fewer keys than queries", parse_problem("1x1x90x64", seq_kv=30, causal=True), {"WARPS_N": 1}),
    ("one by one", parse_problem("1x1x1x64"), {"WARPS_M": 1, "WARPS_N": 1}),
    ("two atoms a warp", parse_problem("1x1x128x64"), {"M_ATOMS": 2}),
    ("deep rings", parse_problem("1x1x64x64", seq_kv=400), {"STAGES_K": 3, "STAGES_V": 4, "BLOCK_N": 16}),
    ("uneven rings", parse_problem("1x1x64x64", seq_kv=400, causal=True), {"STAGES_K": 2, "WARPS_N": 1}),
    ("padded rows", parse_problem("1x1x64x64"), PADDED),
    ("plain rows", parse_problem("1x1x64x64"), {"SMEM_LAYOUT": "padded"}),
    ("padded rows, head_dim 96", parse_problem("1x1x64x96"), {**PADDED, "Q_LOCATION": "registers"}),
    ("staged epilogue", parse_problem("1x1x70x64"), {"EPILOGUE": "shared", "WARPS_N": 1}),
    (
        "staged epilogue over Q",
        parse_problem("1x1x70x96"),
        {"EPILOGUE": "shared", "WARPS_N": 1, "Q_LOCATION": "shared"},
    ),
    ("through L1, prefetch", parse_problem("1x1x64x64"), {"CACHE_OP": "ca", "L2_PREFETCH_BYTES": 128}),
    ("register cap", parse_problem("1x1x64x64"), {"MAXRREGCOUNT": 96}),
    ("unrolled loop", parse_problem("1x1x64x64", seq_kv=200), {"UNROLL": 2, "STAGES_K": 2, "STAGES_V": 2}),
    ("exponentials among the mma's", parse_problem("1x1x64x64", seq_kv=200), {"EXP_WITH_PV": True, "STAGES_V": 2}),
    ("eight key groups", parse_problem("1x1x32x64", seq_kv=300), {"WARPS_N": 8, "WARPS_M": 1, "BLOCK_N": 16}),
    ("eight query warps", parse_problem("1x1x140x64"), {"WARPS_N": 1, "WARPS_M": 8}),
]


@pytest.mark.parametrize(("problem", "overrides"), [f[1:] for f in FEATURES], ids=[f[0] for f in FEATURES])
def test_feature_passes_the_gate(build: Build, judge: Judge, problem: Problem, overrides: Mapping[str, Value]) -> None:
    verdict = judge(build(overrides, problem), problem)
    assert verdict.passed, verdict.reason


def test_sampled_valid_configs_pass_the_gate(build: Build, judge: Judge, mma_space: SearchSpace) -> None:
    problem = parse_problem("1x1x48x64", seq_kv=272, causal=True)
    valid = mma_space.build(problem, get_target("l4"))
    rng = np.random.default_rng(20)
    for config in (valid.sample(rng) for _ in range(12)):
        verdict = judge(build(config.as_dict(), problem), problem)
        assert verdict.passed, f"{config}: {verdict.reason}"


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_compiles_for_every_architecture(build: Build, arch: str) -> None:
    for head_dim in (32, 64, 96, 128):
        for dtype in DType:
            problem = Problem(1, 1, 64, head_dim, dtype=dtype, causal=head_dim == 96)
            kernel = build({"Q_LOCATION": "registers"}, problem, arch=arch)
            assert kernel.binary.arch == arch
            assert 0 < kernel.binary.resources.registers <= 255
            assert kernel.binary.resources.spill_bytes == 0


TILE_COUNT = "(visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N"
CAUSAL_END = "min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q)"
MERGE_BARRIER = "__syncthreads();  // the partial"
RING_BARRIER = "group_barrier(group);  // all warps of"
BARRIER_A = "group_barrier(group);  // A"
BARRIER_B = "group_barrier(group);  // B"

O_RESCALE = "acc.o[atom][tile][2 * half + i] *= rescale"
SUM_RESCALE = "acc.sum[atom][half] *= rescale"
EXPONENT = "fmaf(score, scale_log2, "
MERGED_SUM = "sum = fmaf(stats[group].y, weight, sum);"
MERGE_WEIGHT = "exp2_approx(fmaf(stats[group].x, p.scale_log2, -subtrahend))"
V_MMA = "acc.o[atom][2 * pair + 1], a[atom], "
LAST_ROWS = "first_row + row < p.seq_q"

MUTANTS: dict[str, tuple[bool, Edit]] = {
    "output never rescaled": (False, (O_RESCALE, "acc.o[atom][tile][2 * half + i] *= 1.0f")),
    "sum never rescaled": (False, (SUM_RESCALE, "acc.sum[atom][half] *= 1.0f")),
    "scale off by 10 %": (False, (EXPONENT, "fmaf(score, scale_log2 * 0.9f, ")),
    "last key tile skipped": (False, (TILE_COUNT, "visible_keys / Cfg::BLOCK_N")),
    "tail keys not masked": (False, ("crosses_end || crosses_diagonal", "crosses_diagonal")),
    "one key dropped": (False, ("+ i >= visible)", "+ i >= visible - 1)")),
    "mask shifted right by one": (True, (CAUSAL_END, "min(p.seq_kv, row + 2 + p.seq_kv - p.seq_q)")),
    "mask shifted left by one": (True, (CAUSAL_END, "min(p.seq_kv, row + p.seq_kv - p.seq_q)")),
    "mask aligned top-left": (True, (CAUSAL_END, "min(p.seq_kv, row + 1)")),
    "one group left out of the merge": (False, (MERGED_SUM, f"if (group == 1) continue;\n{MERGED_SUM}")),
    "groups merged without weights": (False, (MERGE_WEIGHT, "1.0f")),
    "K of the wrong head": (False, ("kv_head * p.k_head_stride", "0 * p.k_head_stride")),
    "swapped fragments of V": (False, (f"{V_MMA}b[2], b[3]", f"{V_MMA}b[3], b[2]")),
    "last query row not written": (False, (LAST_ROWS, "first_row + row + 1 < p.seq_q")),
}


@pytest.mark.parametrize(("causal", "edit"), MUTANTS.values(), ids=MUTANTS.keys())
def test_broken_kernel_is_rejected(build: Build, judge: Judge, causal: bool, edit: Edit) -> None:
    problem = parse_problem("1x2x64x64", causal=causal)
    assert judge(build({}, problem), problem).passed
    verdict = judge(build({}, problem, (edit,)), problem)
    assert not verdict.passed
    assert verdict.reason


HAZARDS: dict[str, tuple[Edit, ...]] = {
    "K read before its copy was waited for": (
        ("copy_async_wait<2 * PROLOGUE_PAIRS - 1>();", ""),
        ("copy_async_wait<2 * Cfg::STAGES_K - 2>();", ""),
    ),
    "V read before its copy was waited for": (("copy_async_wait<2 * Cfg::STAGES_V - 2>();", ""),),
    "no barrier before K is read": ((BARRIER_A, "// A"),),
    "no barrier before V is read": ((BARRIER_B, "// B"),),
    "reads keys past the end": (("min(row, valid_rows - 1)", "row"), ("row < valid_rows ? CHUNK_BYTES : 0", "16")),
    "no barrier before the partial results are merged": ((MERGE_BARRIER, "// the partial"),),
    "partial results left in rings that are still read": ((RING_BARRIER, "// all warps of"),),
    "writes rows past the end": ((LAST_ROWS, "true"),),
}


@pytest.mark.parametrize("edits", HAZARDS.values(), ids=HAZARDS.keys())
def test_hazard_is_an_error_not_luck(build: Build, judge: Judge, edits: tuple[Edit, ...]) -> None:
    """The emulator runs warps in step, so the numbers might come out right by luck: it must notice all the same."""
    problem = parse_problem("1x1x40x64", seq_kv=150)
    overrides = {"STAGES_K": 2, "STAGES_V": 2, "BLOCK_N": 16}
    assert judge(build(overrides, problem), problem).passed
    broken = build(overrides, problem, edits)
    with pytest.raises(LaunchError):
        judge(broken, problem)
