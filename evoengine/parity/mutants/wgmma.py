"""Mutants of the wgmma family, which needs ``sm_90a``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evoengine.model import Value, parse_problem
from evoengine.parity.mutants.common_mistakes import Spelling, selected_mutants
from evoengine.parity.mutants.mutant import Mutant, MutantEdit, MutantSetup
from evoengine.parity.mutants.rescale import integer_maxima_mutants, rescale_mutants
from evoengine.parity.mutants.scale import scale_mutants

BASE: Final[Mapping[str, Value]] = {
    "WARPS_M": 4,
    "WARPS_N": 1,
    "BLOCK_N": 32,
    "PACK_GQA": False,
    "KEY_ORDER": "forward",
    "TILE_ORDER": "natural",
    "PERSISTENT": False,
    "STAGES_K": 1,
    "STAGES_V": 1,
    "CACHE_OP": "cg",
    "L2_PREFETCH_BYTES": 0,
    "STORE_OP": "plain",
    "EXP_WITH_PV": False,
    "OVERLAP": False,
    "PV_KEYS": 16,
    "EXP2_POLY": 0,
    "PEEL_FIRST": False,
    "MERGE": "rows",
    "EPILOGUE": "direct",
    "MIN_CTAS": 1,
    "MAXRREGCOUNT": 0,
    "UNROLL": 1,
}
"""Small, plain config."""
GROUPS: Final[Mapping[str, Value]] = {"WARPS_N": 2}
EXCHANGED: Final[Mapping[str, Value]] = {"WARPS_N": 2, "MERGE": "threads", "BLOCK_N": 96}
OVERLAP: Final[Mapping[str, Value]] = {"STAGES_K": 2, "STAGES_V": 2, "OVERLAP": True}


_SPELLING: Final = Spelling(
    prefix="wgmma-",
    setup="wgmma plain",
    sequence="sequence",
    head="head",
    group_of="work.head",
    tile_count="(visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N",
    keys="visible_keys",
    tile="Cfg::BLOCK_N",
    uses={"v_row_stride": 2, "o_row_stride": 2, "o_head_stride": 2},
)


def _setup(overrides: Mapping[str, Value], *, lse: bool = False, causal: bool = False) -> MutantSetup:
    return MutantSetup("wgmma", parse_problem("1x1x64x64", seq_kv=150, lse=lse, causal=causal), {**BASE, **overrides})


SETUPS: Final[Mapping[str, MutantSetup]] = {
    "wgmma plain": _setup({}, lse=True),
    "wgmma overlap": _setup(OVERLAP),
    "wgmma merge by threads": _setup(EXCHANGED),
    "wgmma two groups": _setup(GROUPS),
    "wgmma walk": MutantSetup("wgmma", parse_problem("1x136x128x16"), {**BASE, "PERSISTENT": True, "WARPS_M": 8}),
    "wgmma masks by words": _setup({"BLOCK_N": 160}, causal=True),
}

_LOGIT_SCALE: Final = "return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale;"
_RAISED: Final = "const Raised raised = raise_where_needed(s, acc, limits, scale, [] {});"
_LAST_V: Final = "group_barrier(group);  // V of the last tile is visible\n        start"
_SEND_STATISTICS: Final = "if (to != group) slot[0] = stats[atom];"
_DESCRIPTOR: Final = "tile_descriptor(s_v + done * 2 * EIGHT_ROWS_BYTES)"

MUTANTS: Final[tuple[Mutant, ...]] = (
    *selected_mutants(_SPELLING),
    *scale_mutants("wgmma-", "wgmma plain", "wgmma plain", _LOGIT_SCALE),
    Mutant(
        "wgmma-second-word-as-the-first",
        "mask",
        "wgmma masks by words",
        (MutantEdit("keys_before(end - 8 * tile)", "keys_before(end)"),),
    ),
    *rescale_mutants("wgmma-", "wgmma overlap"),
    *integer_maxima_mutants("wgmma-", "wgmma plain"),
    Mutant(
        "wgmma-rescaled-while-values-are-under-way",
        "registers",
        "wgmma overlap",
        (MutantEdit(_RAISED, f"{_RAISED}\n            rescale_output(acc, raised);"),),
        hazard=True,
    ),
    Mutant(
        "wgmma-no-barrier-before-the-last-v", "pipeline", "wgmma overlap", (MutantEdit(_LAST_V, "start"),), hazard=True
    ),
    Mutant(
        "wgmma-no-fence-before-the-values",
        "registers",
        "wgmma plain",
        (MutantEdit("            warpgroup_fence();\n            const int first", "            const int first"),),
        hazard=True,
    ),
    Mutant(
        "wgmma-next-work-over-memory-still-read",
        "pipeline",
        "wgmma walk",
        (MutantEdit("__syncthreads();  // all threads are done with shared memory", "// all threads"),),
        hazard=True,
    ),
    Mutant(
        "wgmma-statistics-not-sent",
        "merge",
        "wgmma merge by threads",
        (MutantEdit(_SEND_STATISTICS, _SEND_STATISTICS.replace("!=", "<")),),
    ),
    Mutant(
        "wgmma-first-v-for-all-keys",
        "fragments",
        "wgmma two groups",
        (MutantEdit(_DESCRIPTOR, "tile_descriptor(s_v)"),),
    ),
    Mutant(
        "wgmma-q-and-k-skewed",
        "fragments",
        "wgmma two groups",
        (MutantEdit("step / 4 * ATOM_BYTES + step % 4 * 32", "step * 16"),),
    ),
)
