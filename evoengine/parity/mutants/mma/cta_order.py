"""Mutants of the mma family with errors in the order between CTAs; with CTAs in one order they may be correct."""

from __future__ import annotations

from typing import Final

from evoengine.parity.mutants.mutant import Mutant, MutantEdit

_COUNT: Final = "count_up(p.counters + tile.counter, last)"
_IS_LAST: Final = f"s_last = {_COUNT} == last;"
_ATOMIC: Final = "atom.acq_rel.gpu.global.inc.u32"
_ASM: Final = f'asm volatile("{_ATOMIC}'
_WRITTEN: Final = "barrier();  // the CTA's partial result is written"
_SHARED_FLAG: Final = MutantEdit("bool& s_last = *reinterpret_cast<bool*>(smem);", "__shared__ bool s_last;")
_TILE: Final = "    const SplitTile tile = split_tile(rows.p, work, Cfg::SPLITS);\n"
_LAST: Final = "last_split(rows.p, tile, s_last, thread, [] { __syncthreads(); })"
_EARLY: Final = _LAST.replace("s_last", "s_early")
_SPLIT_SUM: Final = "merged[r].add_sum(parts[r][i].y, weight);"
_PLACE: Final = "(tile.first_partial + split)"
_WALK: Final = "for (int number = blockIdx.x; number < count; number += gridDim.x)"
_DYNAMIC_WALK: Final = """
        __shared__ int s_number;
        auto next_number = [&] {
            if (threadIdx.x == 0) s_number = atomicAdd(&evo_next, 1u);
            __syncthreads();  // s_number is visible to all threads
            const int number = s_number;
            __syncthreads();  // all threads have read s_number
            return number;
        };
        for (int number = next_number(); number < count; number = next_number())"""


def _count(name: str, *edits: MutantEdit, setup: str = "split") -> Mutant:
    return Mutant(name, "order of CTAs", setup, edits, hazard=True)


CTA_ORDER: Final[tuple[Mutant, ...]] = (
    _count("counter-shared-by-all-tiles", MutantEdit(_COUNT, "count_up(p.counters, last)")),
    _count("counter-shared-by-two-tiles", MutantEdit(_COUNT, _COUNT.replace("counter,", "counter / 2,"))),
    _count("combined-by-the-second", MutantEdit(_IS_LAST, _IS_LAST.replace("== last", "== 1"))),
    _count("combined-by-the-last-but-one", MutantEdit(_IS_LAST, _IS_LAST.replace("== last", "== last - 1")),
           setup="many splits"),
    _count("combined-by-the-last-keys", MutantEdit(_IS_LAST, f"{_COUNT}, s_last = tile.split == tile.splits - 1;")),
    _count("counted-before-all-have-written", _SHARED_FLAG, MutantEdit(_WRITTEN, "// the partial result")),
    _count("counted-before-the-merge", MutantEdit(f"if ({_LAST})", "if (last)"),
           MutantEdit(_TILE, f"{_TILE}    __shared__ bool s_early;\n    const bool last = {_EARLY};\n")),
    _count("count-without-release", MutantEdit(_ATOMIC, "atom.relaxed.gpu.global.inc.u32")),
    _count("fence-for-its-own-cta", MutantEdit(_ASM, '__threadfence_block();\n    asm volatile("atom.global.inc.u32')),
    _count("partials-through-the-read-only-cache",
           MutantEdit("__ldcg(partial.stats(row))", "__ldg(partial.stats(row))")),
    _count("partials-of-two-tiles-in-one-place", MutantEdit(_PLACE, "(tile.counter / 2 * tile.splits + split)")),
    Mutant("splits-after-the-fourth-left-out", "order of CTAs", "many splits",
           (MutantEdit(_SPLIT_SUM, f"if (from + i >= 4) continue;\n{_SPLIT_SUM}"),)),
    Mutant("next-split-left-out", "order of CTAs", "many splits",
           (MutantEdit(_SPLIT_SUM, f"if (from + i == (tile.split + 1) % tile.splits) continue;\n{_SPLIT_SUM}"),)),
    Mutant("work-counter-not-set-back", "order of CTAs", "persistent",
           (MutantEdit("using Scores = ", "__device__ unsigned evo_next;  // work that is taken\nusing Scores = "),
            MutantEdit(_WALK, _DYNAMIC_WALK))),
)  # fmt: skip
