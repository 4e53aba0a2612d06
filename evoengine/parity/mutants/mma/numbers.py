"""Mutants of the mma family with wrong results in a single call, which are visible on any device."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.bias import FACTOR, IN_BF16, ONE_MORE_DIM, scaled_by
from evoengine.parity.mutants.common_mistakes import Spelling, common_mutants
from evoengine.parity.mutants.mutant import Mutant, MutantEdit
from evoengine.parity.mutants.rescale import rescale_mutants
from evoengine.parity.mutants.scale import scale_mutants

_TILE_COUNT: Final = "(visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N"
_CAUSAL_END: Final = "return min(keys, query + 1 + keys - queries);"
_WINDOW_END: Final = "return min(keys, query + 1 + keys - queries + p.window_right);"
_WINDOW_BEGIN: Final = "max(0, query + keys - queries - p.window_left)"
_O_RESCALE: Final = "acc.o[atom][tile][2 * half + i] *= rescale"
_SUM_RESCALE: Final = "acc.sum[atom][2 * half] *= rescale"
_EXPONENT: Final = "fmaf(score, scale, "
_LOGIT_SCALE: Final = "return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale;"
_GROUP_SUM: Final = "merged.add_sum(stats[group].y, weight);"
_GROUP_WEIGHT: Final = "exp2_approx(fmaf(stats[group].x, scale, -subtrahend))"
_SPLIT_SUM: Final = "merged[r].add_sum(parts[r][i].y, weight);"
_QUERY: Final = '"r"(row + 1), "r"(inverse)'
_K_MMA: Final = "q.r[atom][step], b[i][0], b[i][1]"
_V_MMA: Final = "acc.o[atom][2 * pair + 1], a[atom], "
_P_PAIR: Final = "pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1])"
_P_OF_8_BITS: Final = """pack_16bit(rintf(pair[(i % 2) * 2] * 255.0f) / 255.0f,
                                      rintf(pair[(i % 2) * 2 + 1] * 255.0f) / 255.0f)"""
_ADDED_MMA: Final = "    mma_16x8x16(d, a, b0, b1, d[0], d[1], d[2], d[3]);"
_V_HEAD: Final = "kv_head * p.v_head_stride"
_TILE_START: Final = "    if (Cfg::PACKED && cta_row >= rows.count()) return;"
_LAST_ROWS: Final = "row < rows_left; row +="
_CAPPED: Final = "fmaf(-2.0f * cap, reciprocal, cap)"
_SINK_SUM: Final = "sum = fmaf(sum, weight, exp2_approx(sink - top));"
_LSE: Final = "(top + log2_approx(sum)) * LN_2"
_FACTOR: Final = "weight * reciprocal_or_zero(sum)"
_STATS: Final = "make_float2(acc.maximum[atom][half], sum);"

_MAXIMUM_BEFORE: Final = "FIRST ? negative_infinity() : acc.maximum[atom][half];"
_ROW_MAXIMUM: Final = "maximum = quad_max(maximum);"
_RESCALE: Final = "exp2_approx(fmaf(acc.maximum[atom][half], scale, -subtrahend));"
_SUBTRAHEND: Final = "const float subtrahend = finite_max(maximum) * scale;\n            if constexpr"
_FIRST_TILE: Final = "acc.maximum[atom][half] == negative_infinity()"
_GROUP_MAXIMUM: Final = "merged.maximum = fmaxf(merged.maximum, stats[group].x);"
_SPLIT_MAXIMUM: Final = "maximum = fmaxf(maximum, parts[r][i].x);"

_ROUND_TO_16_BITS: Final = """
    const float2 low = unpack_16bit(pack_16bit(d[0], d[1])), high = unpack_16bit(pack_16bit(d[2], d[3]));
    d[0] = low.x, d[1] = low.y, d[2] = high.x, d[3] = high.y;"""

_SPELLING: Final = Spelling(
    prefix="",
    setup="plain",
    sequence="sequence",
    head="head",
    group_of="work.head",
    tile_count=_TILE_COUNT,
    keys="visible_keys",
    tile="Cfg::BLOCK_N",
    uses={"v_row_stride": 2, "o_row_stride": 2, "o_head_stride": 2},
)


def _of(breaks: str, *rows: tuple[str, str, *tuple[MutantEdit, ...]]) -> tuple[Mutant, ...]:
    """Creates mutants of one part of the kernel from rows (name, setup, edits)."""
    return tuple(Mutant(name, breaks, setup, tuple(edits)) for name, setup, *edits in rows)


NUMBERS: Final[tuple[Mutant, ...]] = (
    *common_mutants(_SPELLING),
    *_of(
        "softmax",
        ("output-never-rescaled", "plain", MutantEdit(_O_RESCALE, "acc.o[atom][tile][2 * half + i] *= 1.0f")),
        ("sum-never-rescaled", "plain", MutantEdit(_SUM_RESCALE, "acc.sum[atom][2 * half] *= 1.0f")),
        ("rescaled-once-too-often", "plain", MutantEdit(_O_RESCALE, f"{_O_RESCALE} * rescale")),
        ("raised-by-half-of-the-rows", "lazy, two atoms",
         MutantEdit("above |= !(highest[atom][half]", "if (half == 0) above |= !(highest[atom][half]")),
        ("scale-off-by-10-percent", "plain", MutantEdit(_EXPONENT, "fmaf(score, scale * 0.9f, ")),
        ("mean-of-v", "plain", MutantEdit(_LOGIT_SCALE, "return 1e-30f;")),
        ("no-normalisation", "plain", MutantEdit(_FACTOR, "weight")),
        ("peeled-tile-counted-twice", "peeled", MutantEdit("int index = Cfg::PEEL_FIRST ? 1 : 0", "int index = 0")),
        ("sums-of-the-first-eight-rows", "tensor sums", MutantEdit("? acc.sum[atom][2 * half]", "? acc.sum[atom][0]")),
    ),
    *rescale_mutants("lazy-", "lazy"),
    *scale_mutants("", "plain", "one group", _LOGIT_SCALE),
    *_of(
        "scale",
        ("shared-q-not-negated", "Q in shared memory", MutantEdit("negate_queries(smem, thread);", ";")),
        ("softcap-ignores-the-scale", "softcap",
         MutantEdit("p.softcap_scale, p.softcap_log2", "0.125f * 1.442695f / p.softcap_log2, p.softcap_log2")),
    ),
    *_of(
        "maximum",
        ("maximum-not-carried", "plain", MutantEdit(_MAXIMUM_BEFORE, "negative_infinity();")),
        ("maximum-of-the-first-tile", "plain",
         MutantEdit(_ROW_MAXIMUM, f"maximum = {_FIRST_TILE} ? quad_max(maximum) : acc.maximum[atom][half];")),
        ("maximum-of-each-lane-pair", "plain",
         MutantEdit(_ROW_MAXIMUM, "maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));")),
        ("rescale-at-least-a-thousandth", "plain", MutantEdit(_RESCALE, f"fmaxf(1e-3f, {_RESCALE[:-1]});")),
        ("rescale-at-most-one", "plain",
         MutantEdit(_MAXIMUM_BEFORE, "negative_infinity();"), MutantEdit(_RESCALE, f"fminf(1.0f, {_RESCALE[:-1]});")),
        ("first-tile-with-a-limited-maximum", "plain",
         MutantEdit(_SUBTRAHEND,
              _SUBTRAHEND.replace("finite_max(maximum) * scale",
                                  f"fminf(finite_max(maximum) * scale, {_FIRST_TILE} ? 64.0f : 1e30f)"))),
        ("maximum-of-the-first-group", "plain",
         MutantEdit(_GROUP_MAXIMUM, "if (group == 0) merged.maximum = stats[0].x;")),
        ("maximum-of-the-first-split", "split",
         MutantEdit(_SPLIT_MAXIMUM, "if (from + i == 0) maximum = parts[r][0].x;")),
    ),
    *_of(
        "bias",
        ("scale-of-one-more-dim", "bf16, head_dim 256", scaled_by(_LOGIT_SCALE, ONE_MORE_DIM)),
        ("scale-in-bf16", "plain", MutantEdit(_LOGIT_SCALE, _LOGIT_SCALE.replace(FACTOR, IN_BF16))),
        ("scale-off-by-half-a-percent", "bf16, head_dim 8", scaled_by(_LOGIT_SCALE, "1.005f")),
        ("weights-sum-to-0.997", "bf16, head_dim 8", MutantEdit(_FACTOR, f"{_FACTOR} * 0.997f")),
        ("weights-sum-to-1.003", "bf16, head_dim 256", MutantEdit(_FACTOR, f"{_FACTOR} * 1.003f")),
        ("weights-never-below-2e-5", "plain",
         MutantEdit("exp2_polynomial(x) : exp2_approx(x);", "exp2_polynomial(x) : fmaxf(2e-5f, exp2_approx(x));")),
        ("coefficient-off-by-half-a-percent", "polynomial", MutantEdit("0.693124193260f", "0.6897f")),
    ),
    *_of(
        "precision",
        ("weights-of-8-bits", "plain", MutantEdit(_P_PAIR, _P_OF_8_BITS)),
        ("sums-in-fp16", "plain", MutantEdit(_ADDED_MMA, _ADDED_MMA + _ROUND_TO_16_BITS)),
        ("coefficient-off-by-2-percent", "polynomial", MutantEdit("0.693124193260f", "0.68f")),
        ("one-of-the-ones-a-half", "tensor sums", MutantEdit("0x3c003c00u", "0x3c003800u")),
    ),
    *_of(
        "keys",
        ("last-key-tile-skipped", "plain", MutantEdit(_TILE_COUNT, "visible_keys / Cfg::BLOCK_N")),
        ("tail-keys-not-masked", "plain", MutantEdit("crosses_end || crosses_begin", "crosses_begin")),
        ("one-key-dropped", "plain", MutantEdit("i % 2 >= lane_keys_left", "i % 2 >= lane_keys_left - 1")),
        ("last-keys-of-an-eight-not-masked", "plain",
         MutantEdit("8 * tile + 8 <= keys_left", "8 * tile <= keys_left")),
        ("backward-past-the-last-tile", "backward", MutantEdit("tiles - 1 - place", "tiles - place")),
    ),
    *_of(
        "mask",
        ("mask-one-to-the-right", "causal", MutantEdit(_CAUSAL_END, _CAUSAL_END.replace("+ 1", "+ 2"))),
        ("mask-one-to-the-left", "causal", MutantEdit(_CAUSAL_END, _CAUSAL_END.replace("+ 1 ", ""))),
        ("mask-aligned-top-left", "causal", MutantEdit(_CAUSAL_END, "return min(keys, query + 1);")),
        ("left-window-of-0-ignored", "windows",
         MutantEdit("Cfg::HAS_WINDOW_LEFT ? max(", "Cfg::HAS_WINDOW_LEFT && p.window_left ? max(")),
        ("left-window-too-wide", "windows", MutantEdit(_WINDOW_BEGIN, _WINDOW_BEGIN.replace("left", "left - 1"))),
        ("left-window-too-narrow", "windows", MutantEdit(_WINDOW_BEGIN, _WINDOW_BEGIN.replace("left", "left + 1"))),
        ("right-window-too-wide", "windows", MutantEdit(_WINDOW_END, _WINDOW_END.replace("+ 1", "+ 2"))),
        ("right-window-too-narrow", "windows", MutantEdit(_WINDOW_END, _WINDOW_END.replace("+ 1 ", ""))),
        ("left-edge-of-the-first-row", "windows",
         MutantEdit("rows.begin_of(warp_last_query)", "rows.begin_of(warp_first_query)")),
        ("keys-begin-with-the-last-row", "windows", MutantEdit("rows.query(cta_row));", "rows.query(last_row));")),
        ("one-visible-key-masked", "causal", MutantEdit("key < end &&", "key < end - 1 &&")),
        ("mask-without-its-begin", "masks by words", MutantEdit("seen &= ~keys_before(begin - 8 * tile);", ";")),
        ("mask-of-every-second-key", "masks by words", MutantEdit("min(end & 7, 2)", "min(end & 7, 1)")),
        ("mask-one-bit-further", "masks by words", MutantEdit("return next - 1;", "return 2 * next - 1;")),
    ),
    *_of(
        "addresses",
        ("k-of-the-first-head", "plain", MutantEdit("kv_head * p.k_head_stride", "0 * p.k_head_stride")),
        ("v-of-the-neighbour-head", "plain",
         MutantEdit(_V_HEAD, "((kv_head + 1) % (p.heads / p.heads_per_kv_head)) * p.v_head_stride")),
        ("rows-of-the-neighbour-sequence", "packed",
         MutantEdit("p.cu_seqlens_q[sequence];", "p.cu_seqlens_q[sequence] / 2;")),
        ("keys-of-the-longest-sequence", "packed", MutantEdit("keys = p.cu_seqlens_kv[sequence + 1] - first_key;", "")),
        ("q-of-the-next-head", "heads", MutantEdit("g_q + turn(row) *", "g_q + turn(row + 1) *")),
        ("o-of-the-first-head", "heads", MutantEdit("g_o + turn(row) *", "g_o + 0 *")),
        ("heads-take-turns-as-queries", "heads", MutantEdit("return quotient;", "return row % queries;")),
        ("first-head-as-of-the-query-before", "heads", MutantEdit(_QUERY, '"r"(row), "r"(inverse)')),
        ("last-head-as-of-the-next-query", "heads", MutantEdit(_QUERY, '"r"(row + 1), "r"(inverse + 1)')),
        ("head-dim-filled-with-data", "head_dim 40", MutantEdit("chunk < CHUNKS ? CHUNK_BYTES : 0", "CHUNK_BYTES")),
    ),
    *_of(
        "fragments",
        ("fragments-of-k-swapped", "plain", MutantEdit(_K_MMA, "q.r[atom][step], b[i][1], b[i][0]", times=2)),
        ("fragments-of-v-swapped", "plain", MutantEdit(f"{_V_MMA}b[i][2], b[i][3]", f"{_V_MMA}b[i][3], b[i][2]")),
    ),
    *_of(
        "merge",
        ("one-group-left-out", "plain", MutantEdit(_GROUP_SUM, f"if (group == 1) continue;\n{_GROUP_SUM}")),
        ("groups-without-weights", "plain", MutantEdit(_GROUP_WEIGHT, "1.0f")),
        ("one-split-left-out", "split", MutantEdit(_SPLIT_SUM, f"if (from + i == 1) continue;\n{_SPLIT_SUM}")),
        ("splits-without-weights", "split", MutantEdit("exp2_approx(fmaf(parts[r][i].x, scale, -subtrahend))", "1.0f")),
        ("splits-overlap", "split", MutantEdit("/ Cfg::SPLITS - first;", "/ Cfg::SPLITS - first + 1;")),
        ("all-splits-the-first-keys", "split", MutantEdit("begin += first * Cfg::BLOCK_N;", "")),
        ("splits-of-another-tile", "two kernels", MutantEdit("static_cast<long long>(number) * splits", "0")),
        ("sink-in-every-split", "two kernels", MutantEdit(_STATS, _STATS.replace("sum)", "sum + 1.0f)"))),
    ),
    *_of(
        "features",
        ("softcap-without-scale", "softcap", MutantEdit("s * (argument_scale * ", "s * (")),
        ("softcap-without-tanh", "softcap", MutantEdit(_CAPPED, "s * argument_scale * cap")),
        ("softcap-left-out-above-50", "softcap",
         MutantEdit(_CAPPED, f"cap > 72.0f ? s * argument_scale * cap : {_CAPPED}")),
        ("sink-left-out", "sink", MutantEdit(_SINK_SUM, "sum = sum * weight;")),
        ("sink-not-in-base-2", "sink", MutantEdit("rows.sink(row) * LOG2_E", "rows.sink(row)")),
        ("sink-not-in-the-weight", "sink", MutantEdit("return {weight * reciprocal", "return {reciprocal")),
        ("sink-of-minus-infinity-as-a-maximum", "sink",
         MutantEdit("finite_max(fmaxf(logit, sink))", "fmaxf(logit, sink)")),
        ("sink-of-minus-infinity-in-an-empty-row", "sink", MutantEdit("return sum > 0.0f ?", "return sum >= 0.0f ?")),
        ("sink-of-the-first-head", "heads", MutantEdit("p.sink[head + turn(row)]", "p.sink[head]")),
        ("lse-in-base-2", "one group", MutantEdit(_LSE, "(top + log2_approx(sum))")),
        ("lse-without-the-maximum", "one group", MutantEdit(_LSE, "log2_approx(sum) * LN_2")),
        ("lse-of-the-first-head", "heads", MutantEdit("(head + turn(row)) *", "head *")),
    ),
    *_of(
        "store",
        ("no-op", "plain", MutantEdit("        attend(p, work_of_block(), smem);\n", "")),
        ("last-query-tile-skipped", "plain",
         MutantEdit(_TILE_START, f"    if (cta_row > 0 && work.tile == query_tiles(p) - 1) return;\n{_TILE_START}")),
        *(
            (f"last-query-row-skipped-{name}-a-multiple", "plain",
             MutantEdit(_TILE_START, f"    if (rows.count() % Cfg::BLOCK_M == {rest} && cta_row > 0 && "
                               f"cta_row + Cfg::BLOCK_M >= rows.count()) return;\n{_TILE_START}"))
            for name, rest in (("one-below", "Cfg::BLOCK_M - 1"), ("at", "0"), ("one-above", "1"))
        ),
        ("last-query-row-not-written", "plain", MutantEdit(_LAST_ROWS, "row + 1 < rows_left; row +=")),
        ("last-columns-not-written", "head_dim 40",
         MutantEdit("column(piece, thread) < Cfg::HEAD_DIM", "piece < PIECES - 1")),
        ("lse-not-written", "one group", MutantEdit("*rows.lse(row) = end.lse", "(void)rows.lse(row)", times=2)),
        ("longest-first-past-the-last", "longest first", MutantEdit("count - 1 - place", "count - place")),
        ("every-other-piece-of-work", "persistent", MutantEdit("number += gridDim.x", "number += 2 * gridDim.x")),
    ),
)  # fmt: skip
