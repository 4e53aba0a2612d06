"""mma family compared with fp64 attention on the emulator: features and the values of every tunable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.kernel.records import Kernel
from evoengine.model import DType, Problem, Value, Verdict, parse_problem
from evoengine.parity.compare import judge as judge_case
from evoengine.parity.inputs.case import make_case
from evoengine.parity.inputs.pool import draw_cases
from evoengine.parity.inputs.profiles import make_inputs
from evoengine.parity.mutants.mma.setups import (
    CAUSAL,
    DECODE,
    HEADS_PACKED,
    LONGEST,
    ONE_GROUP,
    PACKED,
    PERSISTENT,
    PLAIN,
    SPLIT,
    TWO_KERNELS,
)
from evoengine.space.search_space import SearchSpace
from evoengine.target import get_target
from tests.templates.building import Case, other_archs, spread
from tests.templates.mma_setups import EVERYTHING, PADDED

Build = Callable[..., Kernel]
Judge = Callable[[Kernel, Problem], Verdict]

EXCHANGED: Mapping[str, Value] = {"MERGE": "threads", "BLOCK_N": 64}
LONG = parse_problem("1x1x64x64", seq_kv=300, causal=True)
TALL = parse_problem("1x1x140x64")
SEVENTY_TWO = parse_problem("1x1x70x72")
NINETY_SIX = parse_problem("1x1x70x96", causal=True)
# References are computed once per problem, so tests share problems where the shape does not matter. The base config on
# plain, causal, packed and sink problems runs in test_mma_mutants.py.

FEATURES: list[Case] = [
    ("bf16, one group", replace(CAUSAL, dtype=DType.BF16), ONE_GROUP),
    ("head_dim 8", parse_problem("1x1x70x8"), {**PADDED, "Q_LOCATION": "registers"}),
    ("head_dim 32", parse_problem("1x1x70x32"), {"Q_LOCATION": "registers", "SMEM_LAYOUT": "swizzle64"}),
    ("head_dim 40", parse_problem("1x1x70x40"), {"SMEM_LAYOUT": "swizzle64"}),
    ("head_dim 72, staged", SEVENTY_TWO, {"EPILOGUE": "shared", "WARPS_N": 1}),
    ("head_dim 96", NINETY_SIX, {"Q_LOCATION": "shared", "SMEM_LAYOUT": "swizzle64"}),
    ("head_dim 128", parse_problem("1x1x70x128"), {"BLOCK_N": 48}),
    ("head_dim 248", parse_problem("1x1x40x248", dtype=DType.BF16), {"Q_LOCATION": "shared", "BLOCK_N": 16}),
    ("grouped queries", parse_problem("1x4x64x64", kv_heads=2), {}),
    ("more keys than queries", LONG, {"WARPS_N": 4, "BLOCK_N": 16}),
    ("fewer keys than queries", parse_problem("1x1x90x64", seq_kv=30, causal=True), ONE_GROUP),
    ("one by one", parse_problem("1x1x1x64"), {"WARPS_M": 1, "WARPS_N": 1}),
    ("left window", replace(CAUSAL, seq_q=150, seq_kv=150, window_left=33), {"KEY_ORDER": "backward"}),
    ("right window", replace(PLAIN, window_right=20), LONGEST),
    ("both windows", replace(PLAIN, seq_q=150, seq_kv=150, window_left=20, window_right=9, lse=True), ONE_GROUP),
    ("softcap", replace(PLAIN, softcap=15.0), {"EXP_WITH_PV": True}),
    ("sink and log-sum-exp, one group", replace(PLAIN, sink=True, lse=True), ONE_GROUP),
    ("packed sequences, longest first", PACKED, {**LONGEST, "WARPS_M": 1}),
    ("folded tile order", LONG, {"TILE_ORDER": "folded", "WARPS_M": 1}),
    ("folded tile order, an odd count", replace(CAUSAL, seq_q=80, seq_kv=80), {"TILE_ORDER": "folded", "WARPS_M": 1}),
    ("folded tile order, persistent", parse_problem("1x16x96x32", causal=True), {**PERSISTENT, "TILE_ORDER": "folded"}),
    ("packed heads", DECODE, HEADS_PACKED),
    ("packed heads in shared memory", replace(DECODE, sink=True), {**HEADS_PACKED, "Q_LOCATION": "shared"}),
    ("split keys", replace(DECODE, lse=True), {**SPLIT, "WARPS_M": 1}),
    ("split keys, one group", replace(PLAIN, sink=True), {**SPLIT, **ONE_GROUP}),
    ("split keys, second kernel", replace(DECODE, head_dim=72), {**TWO_KERNELS, **HEADS_PACKED}),
    ("thirty-two splits", replace(DECODE, seq_kv=600), {"SPLITS": 32, "WARPS_N": 1, "BLOCK_N": 16, **HEADS_PACKED}),
    ("everything, one launch", EVERYTHING, {**SPLIT, **HEADS_PACKED, "Q_LOCATION": "registers", "WARPS_M": 1}),
    ("everything, two kernels", EVERYTHING, {**TWO_KERNELS, **HEADS_PACKED, "KEY_ORDER": "backward", "WARPS_N": 1}),
    ("everything, no split", EVERYTHING, {"Q_LOCATION": "shares_k", "PEEL_FIRST": True, **LONGEST}),
    ("persistent grid", parse_problem("1x16x96x32", causal=True), {**PERSISTENT, **LONGEST}),
    ("persistent grid, natural order, splits", replace(PACKED, heads=16, kv_heads=16), {**PERSISTENT, **SPLIT}),
    ("two atoms a warp", TALL, {"M_ATOMS": 2}),
    ("four atoms a warp", parse_problem("1x1x128x32"), {"M_ATOMS": 4, "BLOCK_N": 16, "WARPS_N": 1}),
    ("deep rings", LONG, {"STAGES_K": 3, "STAGES_V": 4, "BLOCK_N": 16}),
    ("uneven rings", LONG, {"STAGES_K": 2, "WARPS_N": 1}),
    ("backward rings", LONG, {"STAGES_V": 2, "KEY_ORDER": "backward"}),
    ("padded rows", PLAIN, PADDED),
    ("plain rows", PLAIN, {"SMEM_LAYOUT": "padded"}),
    ("padded rows, head_dim 96", NINETY_SIX, {**PADDED, "Q_LOCATION": "registers"}),
    ("Q before K", PLAIN, {"Q_LOCATION": "shares_k", "STAGES_K": 2}),
    ("a tall Q before K", TALL, {"Q_LOCATION": "shares_k", "WARPS_M": 8, "BLOCK_N": 16}),
    ("staged epilogue", TALL, {"EPILOGUE": "shared", "WARPS_N": 1}),
    (
        "staged epilogue over Q",
        NINETY_SIX,
        {"EPILOGUE": "shared", "WARPS_N": 1, "Q_LOCATION": "shared"},
    ),
    ("64-byte swizzle, streaming stores", PLAIN, {"SMEM_LAYOUT": "swizzle64", "STORE_OP": "streaming", "WARPS_N": 1}),
    (
        "through L1, prefetch, fragments two by two",
        PLAIN,
        {"CACHE_OP": "ca", "L2_PREFETCH_BYTES": 256, "LDMATRIX_BATCH": 2, "BLOCK_N": 48},
    ),
    ("register cap", PLAIN, {"MAXRREGCOUNT": 96}),
    ("polynomial exponentials among the mma's", LONG, {"EXP_WITH_PV": True, "STAGES_V": 2, "EXP2_POLY": 50}),
    ("a quarter of them", PLAIN, {"EXP2_POLY": 25, "EXP_WITH_PV": True}),
    ("peeled first tile, unrolled loop", LONG, {"PEEL_FIRST": True, "UNROLL": 4, "STAGES_K": 2, "STAGES_V": 2}),
    ("sums on the tensor core", LONG, {"ROW_SUM": "tensor", "M_ATOMS": 2}),
    ("sums on the tensor core, bf16", replace(CAUSAL, dtype=DType.BF16), {"ROW_SUM": "tensor", **ONE_GROUP}),
    ("lazy rescale", LONG, {"LAZY_RESCALE": True, "M_ATOMS": 2, "ROW_SUM": "tensor", "EXP_WITH_PV": True}),
    ("lazy rescale, everything", EVERYTHING, {**SPLIT, **HEADS_PACKED, "LAZY_RESCALE": True, "PEEL_FIRST": True}),
    ("fragments four by four", SEVENTY_TWO, {"LDMATRIX_BATCH": 4, "BLOCK_N": 80, "M_ATOMS": 2}),
    ("eight key groups", LONG, {"WARPS_N": 8, "WARPS_M": 1, "BLOCK_N": 16}),
    ("eight query warps", TALL, {"WARPS_N": 1, "WARPS_M": 8}),
    ("merge by threads", LONG, {**EXCHANGED, "WARPS_N": 4}),
    ("merge by threads, uneven shares", replace(SEVENTY_TWO, sink=True, lse=True), {**EXCHANGED, "WARPS_N": 4}),
    ("merge by threads, sums on the tensor core", TALL, {**EXCHANGED, "WARPS_M": 1, "M_ATOMS": 2, "ROW_SUM": "tensor"}),
    ("merge by threads, everything", EVERYTHING, {**EXCHANGED, **LONGEST}),
]


@pytest.mark.parametrize(("problem", "overrides"), spread(FEATURES))
@pytest.mark.every(2)
def test_feature_passes_the_gate(build: Build, judge: Judge, problem: Problem, overrides: Mapping[str, Value]) -> None:
    verdict = judge(build(overrides, problem), problem)
    assert verdict.passed, verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", [20, pytest.param(21, marks=pytest.mark.thorough)])
def test_a_sampled_valid_config_passes_the_gate(build: Build, judge: Judge, mma_space: SearchSpace, seed: int) -> None:
    problem = parse_problem("1x1x48x64", seq_kv=272, causal=True)
    config = mma_space.build(problem, get_target("l4")).sample(np.random.default_rng(seed))
    verdict = judge(build(config.as_dict(), problem), problem)
    assert verdict.passed, f"{config}: {verdict.reason}"


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "head_dims"), other_archs((32, 64), (104, 128)))
def test_compiles_for_other_architectures(build: Build, arch: str, head_dims: tuple[int, int]) -> None:
    for head_dim, dtype in zip(head_dims, DType, strict=True):
        problem = Problem(1, 1, 64, head_dim, dtype=dtype, causal=head_dim == 104)
        kernel = build({"Q_LOCATION": "registers", "SMEM_LAYOUT": "padded"}, problem, arch=arch)
        assert kernel.binary.arch == arch
        assert 0 < kernel.binary.resources.registers <= 255
        assert kernel.binary.resources.spill_bytes == 0
    if 32 in head_dims:  # once per architecture
        kernel = build({**TWO_KERNELS, **HEADS_PACKED, "Q_LOCATION": "shares_k"}, EVERYTHING, arch=arch)
        assert kernel.binary.resources.spill_bytes == 0


@pytest.mark.parametrize("scale", [1e-40, -1e-40, 1e-30, -1e5])
def test_tiny_and_large_scales(build: Build, scale: float) -> None:
    case = make_case("scale", make_inputs(replace(PLAIN, seq_kv=75), "normal", 1, scale=scale), 1)
    with closing(EmulatorDevice(get_target("l4")).load(build({}, PLAIN))) as loaded:
        assert judge_case(case, loaded.attention(case.inputs)).reason == ""


def test_features_that_are_off_leave_no_trace(build: Build) -> None:
    """Unused features are not compiled: no window, sink or offsets, and a single exponential unit."""
    ptx = build({}, PLAIN).binary.ptx
    assert "lg2.approx" not in ptx
    assert ptx.count("rcp.approx.ftz") == 1, "that of a row's sum"
    assert "atom." not in ptx
    rich = build({**SPLIT}, replace(PLAIN, softcap=3.0, lse=True)).binary.ptx
    assert all(text in rich for text in ("lg2.approx", "atom."))
    assert rich.count("rcp.approx.ftz") > 8, "and those of the eight scores of a lane"


def test_both_ways_to_combine_splits_give_the_same_bits(build: Build) -> None:
    """Partial results are merged in the order of the splits, whichever ends last."""
    problem = replace(DECODE, lse=True)
    inputs = draw_cases(problem, 3)[-1].inputs
    outputs = []
    for overrides in (SPLIT, TWO_KERNELS):
        with closing(EmulatorDevice(get_target("l4")).load(build(overrides, problem))) as loaded:
            outputs.append(loaded.attention(inputs))
    one, other = outputs
    assert one.lse is not None
    assert other.lse is not None
    np.testing.assert_array_equal(one.o, other.o)
    np.testing.assert_array_equal(one.lse, other.lse)
