"""Mutants of the scalar family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from evoengine.model import DType, Problem, Value, parse_problem
from evoengine.parity.mutants.common_mistakes import Spelling, selected_mutants
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup

BASE: Final[Mapping[str, Value]] = {
    "THREADS": 128,
    "LANES_PER_KEY": 8,
    "KEYS_PER_STEP": 2,
    "MERGE": "shuffle",
    "VECTOR": 4,
    "STAGING": "direct",
    "STAGES": 1,
    "PAD_HALVES": 0,
    "CACHE_OP": "ca",
    "L2_PREFETCH_BYTES": 0,
    "MIN_CTAS": 1,
    "UNROLL": 1,
}
"""Small, plain config."""
STAGED: Final[Mapping[str, Value]] = {"STAGING": "shared", "STAGES": 2, "PAD_HALVES": 8}

_PLAIN: Final = parse_problem("1x2x40x64")
_CAUSAL: Final = parse_problem("1x2x40x64", causal=True)

_CAUSAL_END: Final = "min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q)"
_VISIBLE: Final = "score[j] = key < visible ?"
_WEIGHT: Final = "const float weight = exp2_approx(stats.x - subtrahend);"
_MAXIMUM: Final = "const float subtrahend = finite_max(maximum);\n    const float rescale"
_FIRST_MAXIMUM: Final = f"if (stream.maximum != negative_infinity()) maximum = stream.maximum;\n    {_MAXIMUM}"
_VISIBLE_KEYS: Final = "    const int visible = Cfg::CAUSAL"
_FIRST_O: Final = "*static_cast<const volatile unsigned short*>(g_o + static_cast<long long>(row) * p.o_row_stride)"
_ONLY_OVER_POISON: Final = f"    if ({_FIRST_O} != 0x7fed) return;\n"
_TILES: Final = "(visible + Cfg::TILE_KEYS - 1) / Cfg::TILE_KEYS"


_SPELLING: Final = Spelling(
    prefix="scalar-",
    setup="scalar plain",
    sequence="blockIdx.z",
    head="blockIdx.y",
    group_of="blockIdx.y",
    tile_count=_TILES,
    keys="visible",
    tile="Cfg::TILE_KEYS",
    uses={"v_row_stride": 2},
)


def _setup(problem: Problem, overrides: Mapping[str, Value]) -> MutantSetup:
    return MutantSetup("scalar", problem, {**BASE, **overrides})


SETUPS: Final[Mapping[str, MutantSetup]] = {
    "scalar plain": _setup(_PLAIN, {}),
    "scalar bf16, head_dim 128": _setup(replace(_PLAIN, dtype=DType.BF16, head_dim=128), {}),
    "scalar causal": _setup(_CAUSAL, {}),
    # Each warp reads tiles that other warps have copied.
    "scalar staged": _setup(_PLAIN, {**STAGED, "LANES_PER_KEY": 4}),
}


def _of(breaks: str, setup: str, *rows: tuple[str, MutantEdit], hazard: bool = False) -> tuple[Mutant, ...]:
    """Creates mutants of one part of the kernel and one setup from rows (name, edit)."""
    return tuple(Mutant(f"scalar-{name}", breaks, f"scalar {setup}", (edit,), hazard) for name, edit in rows)


def _scaled_by(factor: str) -> MutantEdit:
    """Replaces the factor on Q."""
    return MutantEdit("* p.scale_log2;", f"* {factor};", times=2)


_HIDDEN_KEYS_SCALED: Final = (
    _scaled_by("1.0f"),
    MutantEdit("struct Stream {", "struct Stream {\n    float scale;"),
    MutantEdit("    stream.sum = 0.0f;", "    stream.sum = 0.0f, stream.scale = p.scale_log2;"),
    MutantEdit(
        "= key < visible ? dot : negative_infinity();", "= (key < visible ? dot : negative_infinity()) * stream.scale;"
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (
    *selected_mutants(_SPELLING),
    *_of(
        "softmax",
        "plain",
        ("output-never-rescaled", MutantEdit("stream.o[d] *= rescale", "stream.o[d] *= 1.0f")),
        ("sum-never-rescaled", MutantEdit("stream.sum *= rescale", "stream.sum *= 1.0f")),
        ("scale-off-by-10-percent", _scaled_by("p.scale_log2 * 0.9f")),
    ),
    *_of(
        "maximum",
        "plain",
        ("maximum-not-carried", MutantEdit("float maximum = stream.maximum;", "float maximum = negative_infinity();")),
        ("maximum-of-the-first-tile", MutantEdit(_MAXIMUM, _FIRST_MAXIMUM)),
    ),
    *_of(
        "bias",
        "bf16, head_dim 128",
        ("scale-of-one-more-dim", _scaled_by("p.scale_log2 * 0.996116f")),
        ("weights-sum-to-1.003", MutantEdit("__fdividef(1.0f, sum)", "__fdividef(1.003f, sum)")),
    ),
    *_of("state", "plain", ("writes-only-over-poison", MutantEdit(_VISIBLE_KEYS, _ONLY_OVER_POISON + _VISIBLE_KEYS))),
    *_of(
        "scale",
        "plain",
        ("scale-of-the-caller-ignored", _scaled_by("0.125f * 1.442695f")),
        ("scale-without-its-sign", _scaled_by("fabsf(p.scale_log2)")),
        ("scale-in-fp16", _scaled_by("unpack_16bit(pack_16bit(p.scale_log2, 0.0f)).x")),
    ),
    Mutant("scalar-hidden-keys-scaled", "scale", "scalar plain", _HIDDEN_KEYS_SCALED),
    *_of(
        "keys",
        "plain",
        ("last-key-tile-skipped", MutantEdit(_TILES, "visible / Cfg::TILE_KEYS")),
        ("tail-keys-not-masked", MutantEdit(_VISIBLE, "score[j] = true ?")),
        ("one-key-dropped", MutantEdit(_VISIBLE, "score[j] = key < visible - 1 ?")),
        ("k-of-the-first-head", MutantEdit("kv_head * p.k_head_stride", "0 * p.k_head_stride")),
    ),
    *_of(
        "mask",
        "causal",
        ("mask-one-to-the-right", MutantEdit(_CAUSAL_END, _CAUSAL_END.replace("+ 1", "+ 2"))),
        ("mask-one-to-the-left", MutantEdit(_CAUSAL_END, _CAUSAL_END.replace("+ 1 ", ""))),
        ("mask-aligned-top-left", MutantEdit(_CAUSAL_END, "min(p.seq_kv, row + 1)")),
    ),
    *_of(
        "merge",
        "plain",
        ("one-lanes-columns-left-out", MutantEdit("offset < Cfg::LANES_PER_KEY", "offset < Cfg::LANES_PER_KEY / 2")),
        ("one-warp-left-out", MutantEdit(_WEIGHT, f"if (partial == 1) continue;\n{_WEIGHT}")),
        ("warps-without-weights", MutantEdit(_WEIGHT, "const float weight = 1.0f;")),
    ),
    *_of(
        "pipeline",
        "staged",
        ("tile-not-waited-for", MutantEdit("copy_async_wait<Cfg::STAGES - 1>();", "")),
        ("no-barrier-before-a-tile-is-read", MutantEdit("__syncthreads();  // A", "// A")),
        ("no-barrier-before-a-tile-is-overwritten", MutantEdit("__syncthreads();  // B", "// B")),
        ("no-barrier-before-the-merge", MutantEdit("__syncthreads();  // C", "// C")),
        ("reads-keys-past-the-end", MutantEdit("min(first_key + row, visible - 1)", "first_key + row")),
        hazard=True,
    ),
)
