"""Setups of the mma family: a small, plain config, and a problem for each feature that mutants break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from evoengine.model import DType, Problem, Value, parse_problem
from evoengine.parity.mutants.mutant import MutantSetup

BASE: Final[Mapping[str, Value]] = {
    "WARPS_M": 2,
    "WARPS_N": 2,
    "M_ATOMS": 1,
    "BLOCK_N": 32,
    "STAGES_K": 1,
    "STAGES_V": 1,
    "PACK_GQA": False,
    "SPLITS": 1,
    "COMBINE": "last",
    "KEY_ORDER": "forward",
    "TILE_ORDER": "natural",
    "PERSISTENT": False,
    "SMEM_LAYOUT": "swizzle128",
    "PAD_HALVES": 0,
    "Q_LOCATION": "direct",
    "LDMATRIX_BATCH": 1,
    "CACHE_OP": "cg",
    "L2_PREFETCH_BYTES": 0,
    "STORE_OP": "plain",
    "EPILOGUE": "direct",
    "MIN_CTAS": 1,
    "MAXRREGCOUNT": 0,
    "UNROLL": 1,
    "EXP_WITH_PV": False,
    "EXP2_POLY": 0,
    "ROW_SUM": "registers",
    "LAZY_RESCALE": False,
    "PEEL_FIRST": False,
    "MERGE": "rows",
}
"""Small, plain config."""

PLAIN: Final = parse_problem("1x2x64x64")
CAUSAL: Final = replace(PLAIN, causal=True)
DECODE: Final = Problem(1, 6, 3, 64, kv_heads=2, seq_kv=200, causal=True)
PACKED: Final = Problem(3, 2, 40, 64, seq_kv=90, causal=True, lengths_q=(40, 0, 17), lengths_kv=(40, 9, 90))
WALKED: Final = parse_problem("1x32x96x32")
"""Problem with more pieces of work than any GPU has SMs, so that persistent CTAs process several."""

ONE_GROUP: Final[Mapping[str, Value]] = {"WARPS_N": 1}
LONGEST: Final[Mapping[str, Value]] = {"TILE_ORDER": "longest_first"}
SPLIT: Final[Mapping[str, Value]] = {"SPLITS": 3, "BLOCK_N": 16}
MANY_SPLITS: Final[Mapping[str, Value]] = {"SPLITS": 8, "BLOCK_N": 16}
TWO_KERNELS: Final[Mapping[str, Value]] = {**SPLIT, "COMBINE": "kernel"}
PERSISTENT: Final[Mapping[str, Value]] = {"PERSISTENT": True, "WARPS_M": 1}
HEADS_PACKED: Final[Mapping[str, Value]] = {"PACK_GQA": True}


def _setup(problem: Problem, overrides: Mapping[str, Value]) -> MutantSetup:
    return MutantSetup("mma", problem, {**BASE, **overrides})


SETUPS: Final[Mapping[str, MutantSetup]] = {
    "plain": _setup(PLAIN, {}),
    "causal": _setup(CAUSAL, {}),
    "one group": _setup(replace(PLAIN, lse=True), ONE_GROUP),
    "head_dim 40": _setup(replace(PLAIN, head_dim=40), {"SMEM_LAYOUT": "swizzle64", "Q_LOCATION": "registers"}),
    "windows": _setup(replace(PLAIN, window_left=9, window_right=5), {}),
    "masks by words": _setup(replace(PLAIN, seq_kv=130, window_left=60, window_right=5), {"BLOCK_N": 64}),
    "softcap": _setup(replace(PLAIN, softcap=5.0), {}),
    "sink": _setup(replace(CAUSAL, sink=True, lse=True), {}),
    "packed": _setup(PACKED, {}),
    "heads": _setup(replace(DECODE, sink=True, lse=True), {**HEADS_PACKED, "WARPS_M": 1}),
    "split": _setup(DECODE, {**SPLIT, "WARPS_M": 1}),
    "many splits": _setup(DECODE, {**MANY_SPLITS, "WARPS_M": 1}),
    "two kernels": _setup(replace(DECODE, sink=True, lse=True), {**TWO_KERNELS, "WARPS_M": 1, "WARPS_N": 1}),
    "backward": _setup(CAUSAL, {"KEY_ORDER": "backward", "BLOCK_N": 16}),
    "longest first": _setup(CAUSAL, {**LONGEST, "WARPS_M": 1}),
    "persistent": _setup(WALKED, PERSISTENT),
    "peeled": _setup(PLAIN, {"PEEL_FIRST": True, "BLOCK_N": 16}),
    "lazy": _setup(PLAIN, {"LAZY_RESCALE": True, "BLOCK_N": 16, "WARPS_N": 1}),
    "lazy, two atoms": _setup(PLAIN, {"LAZY_RESCALE": True, "M_ATOMS": 2, "WARPS_N": 1}),
    "polynomial": _setup(PLAIN, {"EXP2_POLY": 50}),
    "tensor sums": _setup(PLAIN, {"ROW_SUM": "tensor"}),
    "bf16, head_dim 256": _setup(replace(PLAIN, dtype=DType.BF16, head_dim=256), {"WARPS_N": 1, "BLOCK_N": 16}),
    "bf16, head_dim 8": _setup(replace(PLAIN, dtype=DType.BF16, head_dim=8), {"SMEM_LAYOUT": "swizzle64"}),
    "rings": _setup(parse_problem("1x1x40x64", seq_kv=150), {"STAGES_K": 2, "STAGES_V": 2, "BLOCK_N": 16}),
    "rings of one warp": _setup(
        parse_problem("1x1x40x64", seq_kv=150), {"WARPS_M": 1, "STAGES_K": 2, "STAGES_V": 2, "BLOCK_N": 16}
    ),
    "staged by one group": _setup(PLAIN, {**ONE_GROUP, "EPILOGUE": "shared"}),
    "Q in shared memory": _setup(PLAIN, {"Q_LOCATION": "shared"}),
    "Q before K": _setup(PLAIN, {"Q_LOCATION": "shares_k"}),
    "walk": _setup(WALKED, {**PERSISTENT, "Q_LOCATION": "registers"}),
}
