"""Mutants of the hopper family: which rows and keys a CTA computes with packed heads, splits and packed sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.model import Problem, parse_problem
from evoengine.parity.mutants.hopper import BASE, TURNS, hazard, wrong
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup

_PACKED: Final = Problem(
    3, 1, 70, 64, seq_kv=100, lse=True, lengths_q=(70, 0, 33), lengths_kv=(70, 20, 100)
)  # the last tile of keys of each sequence has rows of the next one

SETUPS: Final[Mapping[str, MutantSetup]] = {
    # Three heads of 30 queries: 63 rows of a tile are used, 21 queries.
    "hopper heads": MutantSetup(
        "hopper", parse_problem("1x6x30x64", kv_heads=2, seq_kv=90, causal=True, lse=True), {**BASE, "PACK_GQA": True}
    ),
    # Five key tiles: splits of two and of three.
    "hopper splits": MutantSetup(
        "hopper", parse_problem("1x1x70x64", seq_kv=300, lse=True), {**BASE, "SPLIT_WAVES": 1, "SPLIT_TILES": 2}
    ),
    "hopper sequences": MutantSetup("hopper", _PACKED, BASE),
    "hopper sequences, two consumers": MutantSetup("hopper", _PACKED, {**BASE, "CONSUMERS": 2}),
    # The first consumer passes the tile whose rows of V past the end all consumers clear.
    "hopper turns of sequences": MutantSetup(
        "hopper",
        Problem(2, 1, 128, 64, seq_kv=130, causal=True, lengths_q=(128, 90), lengths_kv=(130, 70)),
        {**BASE, **TURNS},
    ),
}

_COUNT: Final = "atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
_LAST: Final = "s_last = count_up(p.counters + tile.counter, last) == last;"
_WRITTEN: Final = "barrier();  // the CTA's partial result is written"
_TOLD: Final = "barrier();  // s_last is visible to all threads"
_BEFORE: Final = "begin += first * Cfg::BLOCK_N;"
_SHARE: Final = "all.count * (split + 1) / splits)"
_NUMBER: Final = "* query_tiles(p) + work.tile;"
_PARTIAL_ROWS: Final = "first_row + thread % WARPGROUP / WARP * WARP_ROWS, thread % WARP"
_STORED_AT: Final = "place.first_query + rows.query(first_row), place.head"
_LOADED_FROM: Final = "place.first_query + rows.query(cta_row + group * consumer_rows(rows.p)), place.head"
_Q_EXPECTED: Final = "cta_rows(rows.p) * PANELS * PANEL_ROW_BYTES"
_TURN: Final = "return Cfg::PACK_GQA ? row - query(row) * group : 0;"
_IDLE: Final = "if (consumer_rows(p) < WARPGROUP_ROWS) {"
_TAIL: Final = "if (Cfg::PACKED && first_row + consumer_rows(rows.p) > rows.count()) {"
_PASSED: Final = "        me.wait_turn();\n        me.end_turn();\n        if (Cfg::PACKED"
_INSIDE: Final = "const int inside = rows.keys - first_key;"
_CLEARED: Final = (
    "Cfg::CONSUMERS * WARPGROUP);\n    fence_async_proxy();\n    cleared.wait(threadIdx.x % WARP);  // the zeros"
)
_MEETING: Final = (
    "        __syncwarp();  // all lanes have written: lane 0 arrives for them\n"
    "        barrier_arrive_if(lane == 0, barrier);"
)
_ARRIVED: Final = "v_slots.wait_full();\n    clear_rows("
_K_FROM: Final = "maps.k, k_slots.full(),\n                                        place.first_key + "


_HEADS: Final = (
    wrong("stored-by-row", "packed heads", "hopper heads", MutantEdit(_STORED_AT, "first_row, place.head")),
    wrong("loaded-by-row", "packed heads", "hopper heads", MutantEdit(_LOADED_FROM, "cta_row, place.head")),
    wrong("heads-by-blocks", "packed heads", "hopper heads", MutantEdit(_TURN, "return row / queries;")),
    wrong("bytes-of-idle-rows", "packed heads", "hopper heads", MutantEdit(_Q_EXPECTED, "Q_BYTES")),
    hazard("idle-rows-never-written", "packed heads", "hopper heads", MutantEdit(_IDLE, "if (false) {")),
)
_SPLITS: Final = (
    wrong("split-counter-not-reset", "splits", "hopper splits", MutantEdit(_COUNT, _COUNT.replace("inc", "add"))),
    hazard("merged-by-the-first", "splits", "hopper splits", MutantEdit(_LAST, _LAST.replace("== last", "== 0"))),
    hazard("count-without-order", "splits", "hopper splits", MutantEdit(_COUNT, _COUNT.replace("acq_rel", "relaxed"))),
    hazard("counted-before-all-have-written", "splits", "hopper splits", MutantEdit(_WRITTEN, "// the partial result")),
    hazard("merged-before-all-know", "splits", "hopper splits", MutantEdit(_TOLD, "// s_last")),
    wrong("splits-of-the-first-keys", "splits", "hopper splits", MutantEdit(_BEFORE, "")),
    wrong(
        "remainder-of-the-splits-lost",
        "splits",
        "hopper splits",
        MutantEdit(_SHARE, "all.count * split / splits + all.count / splits)"),
    ),
    wrong("workspace-shared-by-tiles", "splits", "hopper splits", MutantEdit(_NUMBER, "* query_tiles(p);")),
    wrong(
        "partial-rows-of-one-warp",
        "splits",
        "hopper splits",
        MutantEdit(_PARTIAL_ROWS, _PARTIAL_ROWS.replace("thread % WARPGROUP / WARP * WARP_ROWS", "0")),
    ),
)
_SEQUENCES: Final = (
    wrong("rows-of-the-next-sequence-stored", "sequences", "hopper sequences", MutantEdit(_TAIL, "if (false) {")),
    wrong(
        "meets-before-its-turn",
        "turns",
        "hopper turns of sequences",
        MutantEdit(_PASSED, "        if constexpr (Cfg::PACKED) consumers_barrier();\n" + _PASSED),
    ),
    wrong("keys-of-the-first-sequence", "sequences", "hopper sequences", MutantEdit(_K_FROM, _K_FROM[:-18])),
    wrong("one-value-too-many-cleared", "sequences", "hopper sequences", MutantEdit(_INSIDE, f"{_INSIDE[:-1]} - 1;")),
    wrong(
        "values-never-cleared",
        "sequences",
        "hopper sequences",
        MutantEdit("if (inside >= Cfg::BLOCK_N) return;", "return;"),
    ),
    hazard("values-cleared-before-they-arrive", "sequences", "hopper sequences", MutantEdit(_ARRIVED, "clear_rows(")),
    hazard(
        "values-cleared-without-a-fence",
        "sequences",
        "hopper sequences",
        MutantEdit(_CLEARED, _CLEARED.replace("fence_async_proxy();", "")),
    ),
    hazard(
        "values-cleared-without-a-barrier",
        "sequences",
        "hopper sequences",
        MutantEdit(_CLEARED, _CLEARED.replace("cleared.wait(threadIdx.x % WARP);", "")),
    ),
    hazard(
        "values-cleared-by-one-lane-suffice",
        "sequences",
        "hopper sequences, two consumers",
        MutantEdit(_MEETING, "        barrier_arrive_if(lane == 0, barrier);"),
    ),
    hazard(
        "values-cleared-by-one-consumer-suffice",
        "sequences",
        "hopper sequences, two consumers",
        MutantEdit("barrier_init(barrier, Cfg::CONSUMERS * WARPS)", "barrier_init(barrier, WARPS)"),
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*_HEADS, *_SPLITS, *_SEQUENCES)
