"""Mutants of the hopper family, which needs ``sm_90a``: mistakes of its asynchronous protocol above all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.model import Value, parse_problem
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup
from evoengine.parity.mutants.rescale import integer_maxima_mutants, rescale_mutants
from evoengine.parity.mutants.scale import scale_mutants

BASE: Final[Mapping[str, Value]] = {
    "CONSUMERS": 1,
    "KEY_GROUPS": 1,
    "BLOCK_N": 64,
    "SCHEDULE": "static",
    "HEAD_GROUP": 0,
    "CTAS_PER_SM": 1,
    "PACK_GQA": False,
    "SPLIT_WAVES": 0,
    "SPLIT_TILES": 1,
    "SHARE_LAST_ROUND": False,
    "STAGES": 2,
    "Q_SLOTS": 1,
    "SHARE_QO": False,
    "STORE_OP": "plain",
    "Q_SOURCE": "smem",
    "OVERLAP": True,
    "PINGPONG": False,
    "BESIDE_VALUES": 50,
    "EXP2_POLY": 0,
}
"""Small config with one consumer."""
TURNS: Final[Mapping[str, Value]] = {"CONSUMERS": 2, "PINGPONG": True}


def _setup(shape: str, overrides: Mapping[str, Value], *, lse: bool = False, causal: bool = False) -> MutantSetup:
    return MutantSetup("hopper", parse_problem(shape, lse=lse, causal=causal), {**BASE, **overrides})


SETUPS: Final[Mapping[str, MutantSetup]] = {
    "hopper plain": _setup("1x2x64x64", {}, lse=True),
    "hopper head_dim 128": _setup("1x1x64x128", {}),
    "hopper turns": _setup("1x1x128x64", TURNS, causal=True),
    # The first consumer passes one of five tiles; the rings hold two.
    "hopper passes": MutantSetup(
        "hopper", parse_problem("1x1x128x64", seq_kv=320, causal=True), {**BASE, **TURNS, "BLOCK_N": 64}
    ),
    # More pieces of work than an H200 has SMs: its CTAs take a second one.
    "hopper persistent": _setup("1x136x64x16", {"SCHEDULE": "persistent"}),
    "hopper shared": _setup("1x136x64x16", {"SCHEDULE": "persistent", "SHARE_QO": True}),
    "hopper dynamic": _setup("1x136x64x16", {"SCHEDULE": "dynamic"}),
    "hopper backward rounds": _setup("1x136x64x16", {"SCHEDULE": "persistent"}, causal=True),
    "hopper idle consumer": _setup("1x136x128x16", {"SCHEDULE": "persistent", "CONSUMERS": 2}),
}

_LOGIT_SCALE: Final = "return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale;"
_K_DONE: Final = "warpgroup_wait<1>();\n            pin(s[0]);\n            end_k();"
_V_DONE: Final = "end_values(acc, weights);\n                end_v();"
_RAISED: Final = "                exponentiate_steps(limits.subtrahends, 0, BESIDE);"
_KV_HEAD: Final = "kv_head = alone ? work.head : work.head / p.heads_per_kv_head;"
_LAST_PACK: Final = "        pack_weights(s, weights);\n    }\n    if constexpr (!Q_IN_REGISTERS"
_STAGED: Final = (
    "stage_output(me, rows, first_row, s_rows, acc);\n    fence_async_proxy();\n    consumer_barrier(me.index);"
)
_RESET: Final = "if (ticket + 1 == static_cast<unsigned>(count())) atomicExch(p.counters, 0u);"
_NEXT: Final = "next_pieces[me.work_slots.slot]"
_EXPECT_K: Final = "barrier_expect(k_slots.full(), KEYS_BYTES);"
_END_TURN: Final = "named_barrier_arrive(TURN_BARRIER + (index + 1) % Cfg::CONSUMERS, 2 * WARPGROUP);"
_TILES: Final = "(visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N"
_FEWER: Final = f"({_TILES} - (visible_keys > Cfg::BLOCK_N && visible_keys % Cfg::BLOCK_N == 1))"
_RELEASE: Final = "barrier_arrive_if(lane == 0, empty());"
_WAIT_FULL: Final = "barrier_wait(full(), phase);"
_READ: Final = "if constexpr (STAYS && Cfg::SHARE_QO) wait_stores_read();"
_ACCUMULATE: Final = "        Accumulators acc;\n        if (seen"
_SEEN: Final = "max(seen_keys + Cfg::BLOCK_N - 1, 0) / Cfg::BLOCK_N"
_PASSED_V: Final = "me.v_slots.wait_full();\n        me.v_slots.release(me.lane);"
_PASSED_TURN: Final = "        me.wait_turn();\n        me.end_turn();\n        if (Cfg::PACKED"
_FIRST_TURN: Final = "    me.wait_turn();\n    start_scores(s, q, s_k());\n    me.end_turn();\n"
_MASKED_FROM: Final = "> rows.end_of(rows.query(first_row));"
_COORDINATE: Final = '"r"(barrier), "r"(panel * PANEL_COLUMNS), "r"(row)'
_SCORES_FENCE: Final = "warpgroup_fence();\n    wgmma_scores("
_VALUES_FENCE: Final = "pin(weights);\n    warpgroup_fence();"
_IDLE_RELEASE: Final = (
    "            if constexpr (!Q_IN_REGISTERS && !Cfg::SHARE_QO) me.q_slots.release(me.lane);\n            pass_tiles("
)
_NEGATED: Final = (
    "negate_rows(smem + me.q_slots.slot * Q_BYTES + me.query_group * ROWS_BYTES, me.thread);\n"
    "            fence_async_proxy();"
)


def hazard(name: str, breaks: str, setup: str, *edits: MutantEdit) -> Mutant:
    """Returns a mutant that may compute correct results on a GPU all the same."""
    return Mutant(f"hopper-{name}", breaks, setup, edits, hazard=True)


def wrong(name: str, breaks: str, setup: str, *edits: MutantEdit) -> Mutant:
    """Returns a mutant that computes wrong results."""
    return Mutant(f"hopper-{name}", breaks, setup, edits)


_PROTOCOL: Final = (
    hazard(
        "k-released-before-it-is-read",
        "pipeline",
        "hopper plain",
        MutantEdit(_K_DONE, "end_k();\n            warpgroup_wait<1>();\n            pin(s[0]);"),
    ),
    hazard(
        "v-released-before-it-is-read",
        "pipeline",
        "hopper plain",
        MutantEdit(_V_DONE, "end_v();\n                end_values(acc, weights);"),
    ),
    hazard("wrong-phase", "pipeline", "hopper plain", MutantEdit(_WAIT_FULL, _WAIT_FULL.replace("phase", "phase ^ 1"))),
    hazard(
        "bytes-short", "pipeline", "hopper plain", MutantEdit(_EXPECT_K, _EXPECT_K.replace("BYTES)", "BYTES - 128)"))
    ),
    wrong(
        "bytes-too-many", "pipeline", "hopper plain", MutantEdit(_EXPECT_K, _EXPECT_K.replace("BYTES)", "BYTES + 128)"))
    ),
    wrong(
        "release-by-one-warp",
        "pipeline",
        "hopper plain",
        MutantEdit(_RELEASE, _RELEASE.replace("lane == 0", "threadIdx.x % WARPGROUP == 0")),
    ),
    hazard(
        "no-fence-before-the-scores",
        "registers",
        "hopper plain",
        MutantEdit(_SCORES_FENCE, _SCORES_FENCE.replace("warpgroup_fence();\n    ", "")),
    ),
    hazard(
        "no-fence-before-the-values",
        "registers",
        "hopper plain",
        MutantEdit(_VALUES_FENCE, _VALUES_FENCE.replace("warpgroup_fence();", "")),
    ),
    hazard(
        "passed-v-released-before-it-arrives",
        "pipeline",
        "hopper passes",
        MutantEdit(_PASSED_V, _PASSED_V.replace("me.v_slots.wait_full();\n        ", "")),
    ),
    wrong(
        "second-round-for-all-later-ones",
        "schedule",
        "hopper backward rounds",
        MutantEdit("(round + 1) * gridDim.x - 1 - blockIdx.x", "2 * gridDim.x - 1 - blockIdx.x"),
    ),
    wrong(
        "idle-consumer-keeps-q",
        "schedule",
        "hopper idle consumer",
        MutantEdit(_IDLE_RELEASE, "            pass_tiles("),
    ),
    hazard(
        "no-fence-before-the-store",
        "store",
        "hopper plain",
        MutantEdit(_STAGED, _STAGED.replace("fence_async_proxy();", "")),
    ),
    hazard(
        "no-barrier-before-the-store",
        "store",
        "hopper plain",
        MutantEdit(f"{_STAGED}  // the rows", f"{_STAGED.replace('consumer_barrier(me.index);', '')}// the rows"),
    ),
    hazard(
        "no-fence-after-negation",
        "scale",
        "hopper plain",
        MutantEdit(_NEGATED, _NEGATED.replace("fence_async_proxy();", "")),
    ),
    hazard("ends-before-its-stores", "store", "hopper plain", MutantEdit("if (me.thread == 0) wait_stores();", "")),
    wrong("turn-never-ends", "turns", "hopper turns", MutantEdit(_END_TURN, "{}")),
    wrong("passed-tile-never-released", "pipeline", "hopper passes", MutantEdit(_PASSED_V, "me.v_slots.wait_full();")),
    wrong(
        "turn-of-a-passed-tile-left-out", "turns", "hopper passes", MutantEdit(_PASSED_TURN, "        if (Cfg::PACKED")
    ),
    wrong(
        "turn-of-the-first-tile-never-ends",
        "turns",
        "hopper turns",
        MutantEdit(_FIRST_TURN, _FIRST_TURN.replace("    me.end_turn();\n", "")),
    ),
    wrong(
        "first-turn-never-begins",
        "turns",
        "hopper turns",
        MutantEdit("named_barrier_arrive(TURN_BARRIER, 2 * WARPGROUP);", "{}"),
    ),
    hazard(
        "store-over-rows-still-read",
        "store",
        "hopper persistent",
        MutantEdit("if (me.thread == 0) wait_stores_read();  // of", "// of"),
    ),
    hazard("q-over-rows-still-stored", "store", "hopper shared", MutantEdit(_READ, "")),
    hazard(
        "q-released-before-s",
        "pipeline",
        "hopper persistent",
        MutantEdit(_ACCUMULATE, f"me.q_slots.release(me.lane);\n{_ACCUMULATE}"),
    ),
    wrong(
        "work-of-the-other-slot",
        "schedule",
        "hopper dynamic",
        MutantEdit(_NEXT, _NEXT.replace("me.work_slots.slot", "me.work_slots.slot ^ 1")),
    ),
    wrong(
        "work-waited-for-by-one-lane",
        "schedule",
        "hopper dynamic",
        MutantEdit("me.work_slots.wait_full();", "if (me.lane == 0) me.work_slots.wait_full();"),
    ),
    wrong("counter-not-reset", "schedule", "hopper dynamic", MutantEdit(_RESET, "")),
    wrong(
        "work-left-out",
        "schedule",
        "hopper dynamic",
        MutantEdit("return gridDim.x + ticket;", "return gridDim.x + ticket + (ticket > 1);"),
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (
    *scale_mutants("hopper-", "hopper plain", "hopper plain", _LOGIT_SCALE),
    *_PROTOCOL,
    wrong(
        "stale-weights",
        "softmax",
        "hopper plain",
        MutantEdit(_LAST_PACK, _LAST_PACK.replace("pack_weights(s, weights);", "")),
    ),
    *rescale_mutants("hopper-", "hopper plain"),
    *integer_maxima_mutants("hopper-", "hopper plain"),
    hazard(
        "rescaled-while-values-are-under-way",
        "registers",
        "hopper plain",
        MutantEdit(_RAISED, f"                rescale_output(acc, raised);\n{_RAISED}"),
    ),
    wrong("values-from-k", "addresses", "hopper plain", MutantEdit("maps.v, v_slots", "maps.k, v_slots")),
    wrong(
        "heads-as-sequences",
        "schedule",
        "hopper plain",
        MutantEdit(
            "static_cast<int>(blockIdx.x), blockIdx.y, blockIdx.z, 0", "static_cast<int>(blockIdx.x), 0, blockIdx.y, 0"
        ),
    ),
    wrong("group-ignored", "addresses", "hopper plain", MutantEdit(_KV_HEAD, "kv_head = work.head;")),
    wrong(
        "first-panel-twice",
        "fragments",
        "hopper head_dim 128",
        MutantEdit(_COORDINATE, '"r"(barrier), "r"(0), "r"(row)'),
    ),
    wrong(
        "panels-of-v-a-tile-apart", "fragments", "hopper head_dim 128", MutantEdit("values(s_v)", "values(s_v + 128)")
    ),
    wrong(
        "mask-by-the-last-row",
        "mask",
        "hopper turns",
        MutantEdit(_MASKED_FROM, "> rows.end_of(first_row + WARPGROUP_ROWS - 1);"),
    ),
    wrong(
        "passes-a-tile-that-it-sees", "keys", "hopper passes", MutantEdit(_SEEN, "max(seen_keys - 1, 0) / Cfg::BLOCK_N")
    ),
    wrong(
        "lse-past-the-end",
        "store",
        "hopper plain",
        MutantEdit("if (Cfg::HAS_LSE && inside && me", "if (Cfg::HAS_LSE && me"),
    ),
    wrong(
        "last-tile-skipped-one-above-a-multiple",
        "keys",
        "hopper plain",
        MutantEdit(f"? {_TILES} : 0", f"? {_FEWER} : 0"),
    ),
)
