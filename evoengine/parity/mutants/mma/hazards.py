"""Mutants of the mma family with memory errors or with state between calls; a single call may be correct."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.mutant import Mutant, MutantEdit

_MERGE_BARRIER: Final = "__syncthreads();  // the partial results of all groups are visible to all threads"
_RING_BARRIER: Final = "group_barrier(group);  // all warps of the group are done with its rings"
_BARRIER_A: Final = "group_barrier(group);  // A: K of this tile is visible"
_BARRIER_B: Final = "group_barrier(group);  // B: V of this tile is visible"
_Q_BARRIER: Final = "__syncthreads();  // all warps have read Q"
_ONE_WARP_BARRIER: Final = "        __syncwarp();\n    } else if constexpr (Cfg::WARPS_N == 1)"
_WALK_BARRIER: Final = "__syncthreads();  // all threads are done with shared memory"
_ATTEND: Final = "        attend(p, work_of_block(), smem);\n"
_COPY: Final = "rows.g_{0}, p.{0}_row_stride, tiles.first_key(index), "
_WRITE_K: Final = "        if (threadIdx.x == 0) *static_cast<unsigned short*>(const_cast<void*>(p.k)) = 1;\n"
_LAST_ROWS: Final = "row < rows_left; row +="
_SCORES: Final = "using Scores = "
_LOGIT_SCALE: Final = "return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale;"
_FACTOR: Final = "weight * reciprocal_or_zero(sum)"

_TILE_START: Final = "    const Rows rows(p, work);\n    if (Cfg::PACKED && cta_row >= rows.count()) return;"
_ONLY_OVER_POISON: Final = "\n    if (*static_cast<const volatile unsigned short*>(rows.o(cta_row)) != 0x7fed) return;"

_STATE: Final = MutantEdit(_SCORES, f"__device__ unsigned evo_calls, evo_ctas;  // calls before this one\n{_SCORES}")
_COUNT_CALLS: Final = """
        __syncthreads();  // no thread of the CTA asks for the number of calls any more
        const unsigned last = gridDim.x * gridDim.y * gridDim.z - 1;
        if (threadIdx.x == 0 && atomicInc(&evo_ctas, last) == last) ++evo_calls;
"""


def _no(barrier_or_wait: str) -> MutantEdit:
    """Removes a statement, but keeps its comment."""
    comment = barrier_or_wait.partition("  // ")[2]
    return MutantEdit(barrier_or_wait, f"// {comment}" if comment else "")


def _races() -> tuple[Mutant, ...]:
    rows = (
        ("k-not-waited-for", "rings", ("copy_async_wait<2 * PROLOGUE_PAIRS - 1>();",
                                       "copy_async_wait<2 * Cfg::STAGES_K - 2>();")),
        ("v-not-waited-for", "rings", ("copy_async_wait<2 * Cfg::STAGES_V - 2>();",)),
        ("no-barrier-before-k-is-read", "rings", (_BARRIER_A,)),
        ("no-barrier-before-v-is-read", "rings", (_BARRIER_B,)),
        ("no-barrier-before-the-merge", "rings", (_MERGE_BARRIER,)),
        ("partials-over-rings-still-read", "rings", (_RING_BARRIER,)),
        ("k-over-q-still-read", "Q before K", (_Q_BARRIER,)),
        ("next-work-over-memory-still-read", "walk", (_WALK_BARRIER,)),
        ("lanes-store-rows-of-other-lanes", "staged by one group", ("__syncwarp();  // the warp's rows",)),
    )  # fmt: skip
    return tuple(
        Mutant(name, "pipeline", setup, tuple(_no(statement) for statement in statements), hazard=True)
        for name, setup, statements in rows
    )


def _reads_past(name: str, *, hazard: bool) -> Mutant:
    """Creates a mutant that copies whole tiles of K or V past the last row."""
    copy = _COPY.format(name)
    edit = MutantEdit(f"{copy}rows.keys);", f"{copy}tiles.first_key(index) + Cfg::BLOCK_N);")
    return Mutant(f"reads-past-the-end-of-{name}", "memory", "rings", (edit,), hazard)


HAZARDS: Final[tuple[Mutant, ...]] = (
    *_races(),
    Mutant(
        "lanes-read-v-of-other-lanes",
        "pipeline",
        "rings of one warp",
        (MutantEdit(_ONE_WARP_BARRIER, _ONE_WARP_BARRIER.partition("\n")[2]),),
        hazard=True,
    ),
    # Scores of rows behind K are masked. Rows behind V are multiplied by zero, which gives NaN for the NaN there.
    _reads_past("k", hazard=True),
    _reads_past("v", hazard=False),
    Mutant("writes-past-the-end-of-o", "memory", "rings", (MutantEdit(_LAST_ROWS, "row < Cfg::BLOCK_M; row +="),)),
    Mutant(
        "offset-of-a-row-in-32-bits",
        "memory",
        "plain",
        (MutantEdit("static_cast<unsigned long long>(source) * row_bytes", "source * row_bytes"),),
        hazard=True,
    ),
    Mutant(
        "offset-of-a-sequence-in-32-bits",
        "memory",
        "plain",
        (MutantEdit("sequence * p.k_batch_stride", "static_cast<int>(sequence * p.k_batch_stride)"),),
        hazard=True,
    ),
    Mutant(
        "changes-its-input",
        "memory",
        "plain",
        (MutantEdit(_ATTEND, _ATTEND + _WRITE_K),),
    ),
    Mutant(
        "workspace-never-written",
        "memory",
        "split",
        (MutantEdit("merged.leave(", "if (work.split == 99) merged.leave("),),
    ),
    Mutant(
        "counter-not-set-back",
        "state",
        "split",
        (MutantEdit("inc.u32 %0, [%1], %2;", "add.u32 %0, [%1], 1;"),),
    ),
    Mutant(
        "later-calls-wrong",
        "state",
        "plain",
        (
            _STATE,
            MutantEdit(_LOGIT_SCALE, "return p.positive_scale * (evo_calls ? 0.5f : 1.0f);"),
            MutantEdit(_ATTEND, _ATTEND + _COUNT_CALLS),
        ),
    ),
    Mutant(
        "later-calls-not-written",
        "state",
        "plain",
        (_STATE, MutantEdit(_ATTEND, f"        if (evo_calls == 0)\n    {_ATTEND}{_COUNT_CALLS}")),
    ),
    Mutant("writes-only-over-poison", "state", "plain", (MutantEdit(_TILE_START, _TILE_START + _ONLY_OVER_POISON),)),
    Mutant(
        "wrong-from-the-40th-call-on",
        "state",
        "plain",
        (
            _STATE,
            MutantEdit(_LOGIT_SCALE, "return p.scale_log2 * (evo_calls >= 39 ? 0.5f : 1.0f);"),
            MutantEdit(_ATTEND, _ATTEND + _COUNT_CALLS),
        ),
    ),
    Mutant(
        "last-bit-depends-on-the-call",
        "state",
        "plain",
        (
            _STATE,
            MutantEdit(_FACTOR, f"{_FACTOR} * (evo_calls % 2 ? 1.0002f : 1.0f)"),
            MutantEdit(_ATTEND, _ATTEND + _COUNT_CALLS),
        ),
    ),
)
