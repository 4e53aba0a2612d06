"""Mutants of the hopper family: a shared last round, and Q of the next piece of work beside that of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.model import parse_problem
from evoengine.parity.mutants.hopper import BASE, hazard, wrong
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup

_SHARED: Final = {**BASE, "SCHEDULE": "persistent", "SHARE_LAST_ROUND": True}

SETUPS: Final[Mapping[str, MutantSetup]] = {
    # 132 pieces of a complete round, and 7 of four tiles for 28 CTAs.
    "hopper last round": MutantSetup("hopper", parse_problem("1x139x16x16", seq_kv=200, lse=True), _SHARED),
    # 45 pieces of four tiles for 132 CTAs: runs of one or two tiles, some of which cross from one piece to the next.
    "hopper crossing runs": MutantSetup("hopper", parse_problem("1x45x16x16", seq_kv=230, lse=True), _SHARED),
    "hopper two slots of Q": MutantSetup(
        "hopper",
        parse_problem("1x400x16x16"),
        {**BASE, "SCHEDULE": "persistent", "Q_SLOTS": 2, "SHARE_QO": True},
    ),
    "hopper Q in registers": MutantSetup(
        "hopper", parse_problem("1x400x16x16"), {**BASE, "SCHEDULE": "persistent", "Q_SOURCE": "registers"}
    ),
    # The producer copies Q two pieces ahead, so that only the barrier of the next pieces holds it back.
    "hopper next pieces": MutantSetup(
        "hopper", parse_problem("1x400x16x16"), {**BASE, "SCHEDULE": "dynamic", "Q_SLOTS": 2}
    ),
    "hopper packed rows in Q's bytes": MutantSetup(
        "hopper",
        parse_problem("100x4x16x16", lengths_q=(16, 9) * 50),
        {**BASE, "SCHEDULE": "persistent", "SHARE_QO": True},
    ),
}

_BEGIN: Final = "return each * first + left * first / ctas;"
_NEXT: Final = "return end < last_round.begin(blockIdx.x + 1) ? whole + end : count();"
_SPLIT_TILE: Final = (
    "return {piece, last - first + 1, static_cast<int>(blockIdx.x) - first, static_cast<long long>(first) + piece};"
)
_SHARE: Final = "all.keep(number - whole - first_tile, "
_SHARED_END: Final = "min((tile / length + 1) * length, begin(blockIdx.x + 1))"
_QUERIES: Final = "Queries q{s_base + me.q_slots.slot * Q_BYTES"
_OFFSET: Final = "Cfg::SHARE_QO ? me.q_slots.slot * Q_BYTES : 0"
_COPIED: Final = "load_queries(s_base + slot.slot * Q_BYTES"
_LOADED: Final = "if constexpr (Q_IN_REGISTERS && STAYS) me.q_slots.release_read(me.lane);  // Q of"
_COPIED_ROWS: Final = "me.q_slots.release_read(me.lane);  // threads"
_FENCED: Final = "        fence_async_proxy();\n        __syncwarp();  // all lanes"
_PIECE_READ: Final = "__syncwarp();  // all lanes have read it"
_READ: Final = "if constexpr (STAYS && Cfg::SHARE_QO) wait_stores_read();"


MUTANTS: Final[tuple[Mutant, ...]] = (
    wrong(
        "remainder-of-the-round-lost", "last round", "hopper crossing runs", MutantEdit(_BEGIN, "return each * first;")
    ),
    wrong("second-piece-of-a-run-lost", "last round", "hopper crossing runs", MutantEdit(_NEXT, "return count();")),
    hazard(
        "a-split-too-few",
        "last round",
        "hopper last round",
        MutantEdit(_SPLIT_TILE, _SPLIT_TILE.replace(" + 1,", ",", 1)),
    ),
    hazard(
        "partials-of-two-pieces-in-one-place",
        "last round",
        "hopper crossing runs",
        MutantEdit(_SPLIT_TILE, _SPLIT_TILE.replace(" + piece}", "}")),
    ),
    hazard(
        "one-counter-for-two-pieces",
        "last round",
        "hopper last round",
        MutantEdit(_SPLIT_TILE, _SPLIT_TILE.replace("{piece,", "{piece / 2,")),
    ),
    wrong("shares-from-the-first-tile", "last round", "hopper last round", MutantEdit(_SHARE, "all.keep(0, ")),
    wrong(
        "runs-past-the-piece", "last round", "hopper crossing runs", MutantEdit(_SHARED_END, "begin(blockIdx.x + 1)")
    ),
    wrong("q-of-the-first-slot", "slots of Q", "hopper two slots of Q", MutantEdit(_QUERIES, "Queries q{s_base")),
    hazard(
        "q-copied-to-the-first-slot", "slots of Q", "hopper two slots of Q", MutantEdit(_COPIED, "load_queries(s_base")
    ),
    hazard("o-over-the-other-q", "slots of Q", "hopper two slots of Q", MutantEdit(_OFFSET, "0")),
    hazard("q-over-o-still-read", "slots of Q", "hopper two slots of Q", MutantEdit(_READ, "")),
    hazard(
        "q-overtakes-its-readers",
        "reads before copies",
        "hopper Q in registers",
        MutantEdit(_LOADED, _LOADED.replace("release_read", "release")),
    ),
    hazard(
        "fence-of-the-releasing-lane",
        "reads before copies",
        "hopper Q in registers",
        MutantEdit(_FENCED, _FENCED.replace("fence", "if (lane == 0) fence")),
    ),
    hazard(
        "released-before-all-lanes-have-fenced",
        "reads before copies",
        "hopper Q in registers",
        MutantEdit(_FENCED, _FENCED.replace("__syncwarp();", "")),
    ),
    hazard(
        "fences-after-the-barrier-of-the-warp",
        "reads before copies",
        "hopper Q in registers",
        MutantEdit(_FENCED, "        __syncwarp();\n        fence_async_proxy();  // all lanes"),
    ),
    hazard(
        "piece-released-before-all-lanes-read",
        "next pieces",
        "hopper next pieces",
        MutantEdit(_PIECE_READ, "// all lanes"),
    ),
    hazard(
        "q-overtakes-readers-of-o",
        "reads before copies",
        "hopper packed rows in Q's bytes",
        MutantEdit(_COPIED_ROWS, _COPIED_ROWS.replace("release_read", "release")),
    ),
)
