"""Mutants of the hopper family's key groups: shared rings, turns of unequal length, and the merge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.model import Value, parse_problem
from evoengine.parity.mutants.hopper import BASE, hazard, wrong
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup

TWO: Final[Mapping[str, Value]] = {"CONSUMERS": 2, "KEY_GROUPS": 2}
THREE: Final[Mapping[str, Value]] = {"CONSUMERS": 3, "KEY_GROUPS": 3, "BLOCK_N": 48, "STAGES": 6}
_MANY: Final[Mapping[str, Value]] = {**TWO, "BLOCK_N": 48, "STAGES": 2, "SCHEDULE": "persistent"}


def _setup(shape: str, seq_kv: int, overrides: Mapping[str, Value], *, lse: bool = False) -> MutantSetup:
    return MutantSetup("hopper", parse_problem(shape, seq_kv=seq_kv, lse=lse), {**BASE, **overrides})


SETUPS: Final[Mapping[str, MutantSetup]] = {
    "hopper key groups": _setup("1x1x64x64", 460, THREE, lse=True),
    "hopper key groups in the rings": _setup("1x1x64x64", 300, {**TWO, "SHARE_QO": True}),
    # More pieces of work than an H200 has SMs: its CTAs take a second one.
    "hopper key groups in turn": _setup("1x136x16x16", 140, {**_MANY, "PINGPONG": True}),
    "hopper key groups, persistent": _setup("1x136x16x16", 140, {**_MANY, "SHARE_QO": True}),
}

_FREE: Final = "if constexpr (STAYS || Cfg::SHARE_QO) consumers_barrier();"
_RELEASE: Final = "    if constexpr (STAYS && Cfg::SHARE_QO) me.q_slots.release_read(me.lane);\n"
_EXCHANGE: Final = "    exchange_and_store(acc, rows, smem + O_OFFSET"
_WAIT: Final = "+ me.thread, [] { consumers_barrier(); }"
_NEGATE: Final = "if (me.key_group == 0) negate_rows"
_NEGATED: Final = "if constexpr (Cfg::KEY_GROUPS > 1) consumers_barrier();"
_WEIGHT: Final = "exp2_approx(fmaf(parts[from].x, scale, -subtrahends[0]))"
_STATISTICS: Final = "if (to != group) slot[0] = stats[atom];"
_FIRST_KEY: Final = "all.first_key(group + index * Cfg::KEY_GROUPS)"
_END_V: Final = "auto end_v = [&] {\n        me.v_slots.release(me.lane);\n        next_tile(me.v_slots);"
_SEEK_V: Final = "me.v_slots.seek(first_tile + me.key_group);"
_ROUND: Final = "for (int index = first; index < end; ++index) load_v(index);"


MUTANTS: Final[tuple[Mutant, ...]] = (
    hazard("groups-results-over-rings-still-read", "merge", "hopper key groups in the rings", MutantEdit(_FREE, "")),
    hazard("groups-results-over-results-still-read", "merge", "hopper key groups in turn", MutantEdit(_FREE, "")),
    hazard(
        "groups-no-barrier-before-the-merge",
        "merge",
        "hopper key groups",
        MutantEdit(_WAIT, _WAIT.replace("consumers_barrier();", "")),
    ),
    hazard(
        "groups-barrier-of-one-group-before-the-merge",
        "merge",
        "hopper key groups",
        MutantEdit(_WAIT, _WAIT.replace("[] { consumers_barrier()", "[&] { consumer_barrier(me.index)")),
    ),
    hazard(
        "groups-copies-over-results-still-read",
        "merge",
        "hopper key groups, persistent",
        MutantEdit(_RELEASE, ""),
        MutantEdit(_EXCHANGE, f"{_RELEASE}{_EXCHANGE}"),
    ),
    wrong(
        "groups-maximum-of-the-first-for-all",
        "merge",
        "hopper key groups",
        MutantEdit(_WEIGHT, _WEIGHT.replace("parts[from]", "parts[0]")),
    ),
    wrong(
        "groups-statistics-not-sent",
        "merge",
        "hopper key groups",
        MutantEdit(_STATISTICS, _STATISTICS.replace("!=", "<")),
    ),
    wrong("groups-tiles-in-a-row", "keys", "hopper key groups", MutantEdit(_FIRST_KEY, "all.first_key(index)")),
    wrong(
        "groups-tiles-left-out",
        "keys",
        "hopper key groups",
        MutantEdit("max(tiles - group + Cfg::KEY_GROUPS - 1, 0)", "tiles"),
    ),
    hazard(
        "groups-v-of-the-first-group",
        "pipeline",
        "hopper key groups",
        MutantEdit(_SEEK_V, "me.v_slots.seek(first_tile);"),
    ),
    hazard(
        "groups-slot-of-the-next-tile-released",
        "pipeline",
        "hopper key groups",
        MutantEdit(_END_V, "auto end_v = [&] {\n        next_tile(me.v_slots);\n        me.v_slots.release(me.lane);"),
    ),
    wrong(
        "groups-slot-awaits-all-groups",
        "pipeline",
        "hopper key groups",
        MutantEdit("READERS * WARPS", "Cfg::CONSUMERS * WARPS"),
    ),
    wrong(
        "groups-rings-from-the-start-again",
        "pipeline",
        "hopper key groups, persistent",
        MutantEdit("first_tile += tiles.all.count;", ""),
    ),
    wrong(
        "groups-v-of-one-group-not-loaded",
        "pipeline",
        "hopper key groups",
        MutantEdit(_ROUND, _ROUND.replace("< end", "< end - 1")),
    ),
    wrong("groups-turn-left-out", "turns", "hopper key groups in turn", MutantEdit("tiles.one_fewer()", "false")),
    hazard("groups-q-negated-by-all", "scale", "hopper key groups", MutantEdit(_NEGATE, "negate_rows")),
    hazard(
        "groups-no-barrier-of-all-after-negation",
        "scale",
        "hopper key groups",
        MutantEdit(_NEGATED, "consumer_barrier(me.index);"),
    ),
)
