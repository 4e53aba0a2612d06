"""Mutants of the wmma family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from evoengine.model import DType, Problem, Value, parse_problem
from evoengine.parity.mutants.bias import scaled_by
from evoengine.parity.mutants.common_mistakes import Spelling, selected_mutants
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup
from evoengine.parity.mutants.scale import scale_mutants

BASE: Final[Mapping[str, Value]] = {
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
"""Small, plain config: 32x32 tiles, 2x2 warps, rows padded by eight elements."""
RINGS: Final[Mapping[str, Value]] = {"STAGES": 2}
O_SHARED: Final[Mapping[str, Value]] = {"O_LOCATION": "shared"}
PLAIN_COPIES: Final[Mapping[str, Value]] = {"STAGING": "plain"}
TALL: Final[Mapping[str, Value]] = {
    **PLAIN_COPIES, "BLOCK_M": 64, "BLOCK_N": 16, "WARPS_M": 4, "WARPS_N": 1, "THREADS_PER_ROW": 2
}  # fmt: skip
"""Many rows and few keys: the f32 staging tile of O overlays V, S and P."""

_PLAIN: Final = parse_problem("1x2x64x64")
_CAUSAL: Final = parse_problem("1x2x64x64", causal=True)
_RAGGED: Final = parse_problem("1x1x40x64", seq_kv=150)

_CAUSAL_END: Final = "min(p.seq_kv, query + 1 + p.seq_kv - p.seq_q)"
_TILE_COUNT: Final = "(visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N"
_VISIBLE: Final = "visible - first_key, p.positive_scale"
_VALUES: Final = "Element, wmma::row_major>;\nusing Accumulator"
_WAIT_K: Final = "wait_for_copies<2 * Cfg::STAGES - 1>();\n        } else"
_WAIT_LAST_K: Final = "wait_for_copies<2 * Cfg::STAGES - 2>();"
_BARRIER_C: Final = "__syncthreads();  // C"
_WAIT_V: Final = f"wait_for_copies<2 * Cfg::STAGES - 1>();\n        {_BARRIER_C}"
_MAXIMUM_BEFORE: Final = "float maximum = row_maximum;"
_ROW_MAXIMUM: Final = "maximum = row_max(maximum);"
_INVERSE: Final = "__fdividef(1.0f, sum)"
_START: Final = "    RowState rows;"
_O_OF_THE_TILE: Final = (
    "*static_cast<const volatile unsigned short*>(g_o + static_cast<long long>(cta_row) * p.o_row_stride)"
)
_ROWS: Final = "cta_row + row < p.seq_q"


_SPELLING: Final = Spelling(
    prefix="wmma-",
    setup="wmma plain",
    sequence="blockIdx.z",
    head="blockIdx.y",
    group_of="blockIdx.y",
    tile_count=_TILE_COUNT,
    keys="visible_keys",
    tile="Cfg::BLOCK_N",
    uses={"v_row_stride": 2},
)


def _setup(problem: Problem, overrides: Mapping[str, Value]) -> MutantSetup:
    return MutantSetup("wmma", problem, {**BASE, **overrides})


SETUPS: Final[Mapping[str, MutantSetup]] = {
    "wmma plain": _setup(_PLAIN, {}),
    "wmma bf16, head_dim 128": _setup(replace(_PLAIN, dtype=DType.BF16, head_dim=128), {}),
    "wmma causal": _setup(_CAUSAL, {}),
    "wmma O in shared memory": _setup(_PLAIN, O_SHARED),
    "wmma P over S": _setup(_PLAIN, {"P_LOCATION": "scores"}),
    "wmma ragged": _setup(_RAGGED, {}),
    "wmma ragged, rings": _setup(_RAGGED, RINGS),
    "wmma ragged, plain copies": _setup(_RAGGED, PLAIN_COPIES),
    "wmma ragged, tall": _setup(_RAGGED, TALL),
    "wmma ragged, O in shared memory": _setup(_RAGGED, O_SHARED),
}


def _of(breaks: str, *rows: tuple[str, str, *tuple[MutantEdit, ...]]) -> tuple[Mutant, ...]:
    """Creates mutants of one part of the kernel from rows (name, setup, edits)."""
    return tuple(Mutant(f"wmma-{name}", breaks, f"wmma {setup}", tuple(edits)) for name, setup, *edits in rows)


def _hazard(name: str, breaks: str, setup: str, *edits: MutantEdit) -> Mutant:
    return Mutant(f"wmma-{name}", breaks, f"wmma {setup}", edits, hazard=True)


MUTANTS: Final[tuple[Mutant, ...]] = (
    *selected_mutants(_SPELLING),
    *_of(
        "softmax",
        ("output-in-fragments-never-rescaled", "plain",
         MutantEdit("o[m][n].x[i] *= factors.x[i]", "o[m][n].x[i] *= 1.0f")),
        ("output-in-shared-memory-never-rescaled", "O in shared memory",
         MutantEdit("make_float2(pair.x * factor, pair.y * factor)", "pair")),
        ("sum-never-rescaled", "plain", MutantEdit("sum *= rescale;", "")),
        ("scale-off-by-10-percent", "plain", MutantEdit(_VISIBLE, f"{_VISIBLE} * 0.9f")),
    ),
    *scale_mutants("wmma-", "wmma plain", "wmma plain", _VISIBLE),
    *_of(
        "maximum",
        ("maximum-not-carried", "plain", MutantEdit(_MAXIMUM_BEFORE, "float maximum = negative_infinity();")),
        ("maximum-of-the-first-tile", "plain",
         MutantEdit(_ROW_MAXIMUM, "maximum = row_maximum == negative_infinity() ? row_max(maximum) : row_maximum;")),
        ("sums-of-the-last-tile", "plain", MutantEdit("row_maximum = maximum;", "")),
    ),
    *_of(
        "bias",
        ("scale-of-one-more-dim", "bf16, head_dim 128", scaled_by(_VISIBLE, "0.996116f")),
        ("weights-sum-to-1.003", "bf16, head_dim 128", MutantEdit(_INVERSE, "__fdividef(1.003f, sum)")),
    ),
    *_of("state", ("writes-only-over-poison", "plain",
                   MutantEdit(_START, f"{_START}\n    if ({_O_OF_THE_TILE} != 0x7fed) return;"))),
    *_of(
        "keys",
        ("last-key-tile-skipped", "plain", MutantEdit(_TILE_COUNT, "visible_keys / Cfg::BLOCK_N")),
        ("tail-keys-not-masked", "plain", MutantEdit(_VISIBLE, "Cfg::BLOCK_N, p.positive_scale")),
        ("one-key-dropped", "plain", MutantEdit(_VISIBLE, "visible - first_key - 1, p.positive_scale")),
        ("k-of-the-first-head", "plain", MutantEdit("kv_head * p.k_head_stride", "0 * p.k_head_stride")),
        ("v-loaded-transposed", "plain", MutantEdit(_VALUES, _VALUES.replace("row", "col"))),
        ("half-of-the-keys-left-out-of-p-v", "plain", MutantEdit("step < V_STEPS", "step < V_STEPS / 2")),
    ),
    *_of(
        "mask",
        ("mask-one-to-the-right", "causal", MutantEdit(_CAUSAL_END, _CAUSAL_END.replace("+ 1", "+ 2"))),
        ("mask-one-to-the-left", "causal", MutantEdit(_CAUSAL_END, _CAUSAL_END.replace("+ 1 ", ""))),
        ("mask-aligned-top-left", "causal", MutantEdit(_CAUSAL_END, "min(p.seq_kv, query + 1)")),
    ),
    *_of("store", ("last-query-row-not-written", "plain", MutantEdit(_ROWS, "cta_row + row + 1 < p.seq_q"))),
    _hazard("k-not-waited-for", "pipeline", "ragged, rings",
            MutantEdit(_WAIT_K, "} else"), MutantEdit(_WAIT_LAST_K, "")),
    _hazard("v-not-waited-for", "pipeline", "ragged, rings", MutantEdit(_WAIT_V, _BARRIER_C)),
    _hazard("no-barrier-before-k-is-read", "pipeline", "ragged", MutantEdit("__syncthreads();  // A", "// A")),
    _hazard("no-barrier-between-s-and-softmax", "pipeline", "ragged, plain copies",
            MutantEdit("__syncthreads();  // B", "// B")),
    _hazard("no-barrier-between-p-and-p-v", "pipeline", "ragged, plain copies", MutantEdit(_BARRIER_C, "// C")),
    _hazard("lanes-write-p-over-s-of-other-lanes", "pipeline", "P over S",
            MutantEdit("if constexpr (P_OVER_SCORES) __syncwarp();", "")),
    _hazard("no-barrier-before-o-takes-the-bytes", "pipeline", "ragged, tall",
            MutantEdit("__syncthreads();  // D", "// D")),
    _hazard("no-barrier-before-o-is-read", "pipeline", "ragged, O in shared memory",
            MutantEdit("__syncthreads();  // E", "// E")),
    _hazard("reads-keys-past-the-end", "memory", "ragged",
            MutantEdit("min(row, valid_rows - 1)", "row"), MutantEdit("row < valid_rows ? CHUNK * 2 : 0", "16")),
    _hazard("writes-rows-past-the-end", "memory", "ragged", MutantEdit(_ROWS, "true")),
)  # fmt: skip
