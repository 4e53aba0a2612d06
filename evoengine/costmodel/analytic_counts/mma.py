"""Analytic counts of the mma family: work per tile from the algorithm, number of tiles from the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.family_counts import (
    COPY_LINES,
    Names,
    Setting,
    lines_clocks,
    merge_threads,
    mufu_clocks,
    per_config,
    register_cap,
    tensor_clocks,
)
from evoengine.costmodel.key_tiles import masked_share, tile_counts, tiles_in_order
from evoengine.costmodel.l2_cache import SM_BYTES_PER_CLK, miss_clocks
from evoengine.costmodel.latency import EXCHANGES_OF_A_PIECE, SPILLED_BYTES, WAVEFRONT_BYTES, Demand, Numbers, Work
from evoengine.kernel.resources import WARP
from evoengine.model import Problem, Value

_ATOM: Final = 16
"""Rows and depth of one mma; keys of one ldmatrix.x4."""
_SCORE_INSTRUCTIONS: Final = 1.9
"""Instructions per score of a lane, without its exponential: scale and subtract, maximum, half a conversion."""
_RESCALE_INSTRUCTIONS: Final = 1.4
"""Instructions per value of O of a lane, where a tile rescales it."""
_COPY_INSTRUCTIONS: Final = 6
"""Instructions per copy of 16 bytes a lane."""
_UNEVEN_COPY_INSTRUCTIONS: Final = 8
"""The same where the threads of a key group are no multiple of a row's chunks: some idle, and offsets of the swizzle
are computed for each copy."""
_TILE_INSTRUCTIONS: Final = 80
"""Loop, addresses, waits and masks: instructions per tile, independent of its size."""
_CTA_INSTRUCTIONS: Final = 250
_END_INSTRUCTIONS: Final = 5.6
"""Instructions per value of O in 16 rows: merge or epilogue. This and the six above: means over emulated kernels."""
_CTA_CODE: Final = 360
_END_CODE: Final = 1.3
"""Instructions per value of O in 16 rows. Both from a least-squares fit to 280 emulated kernels."""
_MASK_INSTRUCTIONS: Final = 2
"""Instructions per score that a mask examines: a comparison, or its share of a word of bits, and a select."""
_POLYNOMIAL_INSTRUCTIONS: Final = 10
_POLYNOMIAL_LATENCY: Final = 40
"""Ten dependent operations of four clocks each, in each step of 16 keys."""
_REMEMBERED: Final = 4096
"""Cached work partitions, which many configs share."""


class MmaCounts:
    """Counts for the shipped space and sequences of one length."""

    needed: ClassVar = frozenset(
        (
            "WARPS_M",
            "WARPS_N",
            "M_ATOMS",
            "BLOCK_N",
            "SPLITS",
            "SPLITS_TOGETHER",
            "COMBINE",
            "PERSISTENT",
            "Q_LOCATION",
            "EXP_WITH_PV",
            "ROW_SUM",
            "PEEL_FIRST",
            "UNROLL",
            "EXP2_POLY",
            "EPILOGUE",
            "STAGES_K",
            "STAGES_V",
            "SMEM_LAYOUT",
            "MIN_CTAS",
            "MAXRREGCOUNT",
            "SMEM_BYTES",
            "THREADS",
            "BLOCK_M",
            "ROW_HALVES",
            "TILE_ROWS",
            "TILE_CTAS",
            "PERSISTENT_CTAS",
            "LIVE_REGISTERS",
            "COMBINE_THREADS",
            "COMBINE_ROWS",
            "TILE_ORDER",
        )
    )
    defaults: ClassVar[Mapping[str, Value]] = {"LAZY_RESCALE": False}
    partition: ClassVar[tuple[str, ...]] = ("WARPS_M", "WARPS_N", "M_ATOMS", "BLOCK_N", "SPLITS")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._counts = lru_cache(_REMEMBERED)(partial(_tile_counts, setting.problem))
        self._tiles = lru_cache(_REMEMBERED)(self._mean_and_most_tiles)
        self._turns = lru_cache(_REMEMBERED)(self._most_turns)

    @staticmethod
    def covers(problem: Problem) -> bool:
        return not problem.packed

    def registers(self, names: Names) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Estimates registers and spills per thread.

        ptxas uses spare registers to load ahead, and needs some of them in any case. It needs more where a key group is
        one warp, because it may move code across the barriers of a single warp. The shares are means over the ptxas
        output of 13,000 configs.
        """
        cap = register_cap(names, self._setting.target)
        live, scores = names["LIVE_REGISTERS"], names["M_ATOMS"] * names["BLOCK_N"] // 2
        alone = names["WARPS_M"] == 1
        wanted = live + 20 + scores // 2 + np.where(alone, names["BLOCK_N"] * 3 // 10, 0)
        needed = live + np.rint(scores * np.where(alone, 0.5, 0.15))
        return np.minimum(wanted, cap), np.maximum(0, needed - cap)

    def demand(self, names: Names, spilled: Numbers) -> Demand:
        """Computes the demand of the main launch."""
        setting = self._setting
        problem, groups, splits = setting.problem, names["WARPS_N"], names["SPLITS"]
        tiling = (names["TILE_ROWS"], names["BLOCK_M"], names["BLOCK_N"], splits)
        tiles, most_tiles = per_config(self._tiles, *tiling).reshape(2, -1)
        pieces = names["TILE_CTAS"] * splits
        ctas = np.where(names["PERSISTENT"], np.minimum(pieces, names["PERSISTENT_CTAS"]), pieces)
        share = pieces / ctas  # pieces of work per CTA
        most_pieces = np.ceil(share)
        mean = tiles / groups * share  # key tiles of an average warp
        longest_first = names["TILE_ORDER"] == "longest_first"
        turns = np.ceil(most_tiles / groups)  # key tiles of the busiest warp
        shared_ctas = np.flatnonzero(most_pieces > 1)
        walks = (*tiling, groups, names["TILE_ORDER"], pieces, ctas)
        turns[shared_ctas] = per_config(self._turns, *(column[shared_ctas] for column in walks))
        busiest = _over(turns, mean)
        alone = (names["STAGES_K"] == 1) * 1 + (names["STAGES_V"] == 1)  # copies of a tile whose latency nothing hides
        missed = miss_clocks(problem, setting.target, tiles * pieces * names["BLOCK_N"])
        loop = _loop(names, setting, mean, share)
        loop = replace(loop, waits=loop.waits + mean * alone * missed)
        tile_bytes = names["BLOCK_N"] * names["ROW_HALVES"] * problem.dtype.bytes
        return Demand(
            ctas=ctas,
            warps_per_cta=groups * names["WARPS_M"],
            loop=loop,
            edges=_edges(names, setting, most_pieces),
            spill_bytes=SPILLED_BYTES * spilled,
            busiest_cta=np.where(most_pieces > 1, busiest, _over(most_tiles, tiles)),
            busiest_warp=busiest,
            l2_bytes=2 * tile_bytes * tiles * pieces,
            merge_clocks=_merge_clocks(names, setting, most_pieces),
            merging=1 / splits,
            code=_code(names, loop.issue / np.where(mean > 0, mean, 1.0), mean / share, problem),
            longest_first=longest_first,
        )

    def extra_launches_us(self, names: Names) -> Numbers:
        """Computes the time of the kernel that merges splits, where there is one."""
        apart = (names["SPLITS"] > 1) & (names["COMBINE"] == "kernel")
        return np.where(apart, _combine_us(names, self._setting), 0.0) if apart.any() else 0.0

    def _mean_and_most_tiles(self, rows: int, block_m: int, block_n: int, splits: int) -> tuple[float, float]:
        counts = self._counts(rows, block_m, block_n, splits)
        return float(counts.mean()), float(counts.max())

    def _most_turns(
        self, rows: int, block_m: int, block_n: int, splits: int, groups: int, order: str, pieces: int, ctas: int
    ) -> float:
        """Computes the loop iterations of a key group in the busiest CTA of a persistent grid."""
        turns = np.ceil(self._counts(rows, block_m, block_n, splits) / groups)
        loads = tiles_in_order(turns, pieces // len(turns), order)
        return float(np.bincount(np.arange(pieces) % ctas, loads).max())


def _over(most: Numbers, mean: Numbers) -> Numbers:
    """Computes the ratio of the largest to the mean work; 1 where there is no work."""
    return np.maximum(1.0, most / np.where(mean > 0, mean, 1.0))


def _merge_clocks(names: Names, setting: Setting, turns: Numbers) -> Numbers:
    """Computes the clocks that merging adds to the last CTA of a tile.

    A persistent CTA that is late because of a merge is the last CTA of its next tile as well: it merges in each turn.
    """
    merges = (names["SPLITS"] > 1) & (names["COMBINE"] != "kernel")
    return np.where(merges, turns * _rows_clocks(names, setting, names["BLOCK_M"], names["THREADS"]), 0.0)


def _combine_us(names: Names, setting: Setting) -> Numbers:
    """Computes the time of a second kernel that merges all tiles: launch, read, merge, write."""
    begins = setting.constants.phase + setting.constants.exchange
    clocks = begins + _rows_clocks(names, setting, names["COMBINE_ROWS"], names["COMBINE_THREADS"])
    return setting.target.launch_overhead_us + clocks / setting.target.clock_mhz


def _rows_clocks(names: Names, setting: Setting, rows: Numbers, threads: Numbers) -> Numbers:
    """Computes the clocks to merge rows one after the other; partial results of several splits are loaded together."""
    row_threads = merge_threads(setting.problem.head_dim)
    rows = np.minimum(rows, names["TILE_ROWS"])
    waits = np.ceil(rows * row_threads / threads) * np.ceil(names["SPLITS"] / names["SPLITS_TOGETHER"])
    return waits * setting.constants.merge_wait


def _tile_counts(problem: Problem, tile_rows: int, block_m: int, block_n: int, splits: int) -> npt.NDArray[np.float64]:
    """Computes the key tiles of one split, for each query tile; arguments as of :func:`tile_counts`."""
    return tile_counts(problem, tile_rows, block_m, block_n) / splits


def _code(names: Names, tile_instructions: Numbers, tiles: Numbers, problem: Problem) -> Numbers:
    """Estimates the distinct instructions that execute: unrolled copies of a tile, prologue and epilogue."""
    written: Numbers = np.minimum(tiles, names["PEEL_FIRST"] + names["UNROLL"])
    return tile_instructions * written + _END_CODE * names["M_ATOMS"] * problem.head_dim + _CTA_CODE


def _loop(names: Names, setting: Setting, tiles: Numbers, pieces: Numbers) -> Work:
    """Computes a warp's work in the loop over its key tiles."""
    problem, target = setting.problem, setting.target
    atoms, keys = names["M_ATOMS"], names["BLOCK_N"]
    depth = math.ceil(problem.head_dim / _ATOM)
    tensor_sum = names["ROW_SUM"] == "tensor"
    mma = atoms * keys / 8 * depth + atoms * keys / _ATOM * (problem.head_dim / 8 + tensor_sum)
    ldmatrix = 2 * keys / _ATOM * depth + atoms * depth * (names["Q_LOCATION"] == "shared")
    scores = atoms * keys / 2  # per lane
    polynomial = scores * names["EXP2_POLY"] / 100
    exponentials = scores - polynomial + 2 * atoms
    copies = _copies(names, problem)
    plain = scores * (_SCORE_INSTRUCTIONS + ~tensor_sum) + _POLYNOMIAL_INSTRUCTIONS * polynomial
    plain = plain + _copy_instructions(names, problem) * copies + _TILE_INSTRUCTIONS
    lazy = np.asarray(names.get("LAZY_RESCALE", MmaCounts.defaults["LAZY_RESCALE"]), dtype=bool)
    rescaled = atoms * problem.head_dim / 2 * np.where(lazy, 0.0, np.maximum(0.0, tiles - pieces * names["PEEL_FIRST"]))
    masked = _MASK_INSTRUCTIONS * scores * pieces * masked_share(problem, names["BLOCK_N"])
    mufu = mufu_clocks(exponentials * tiles, target)
    conflicts = per_config(_conflict_factor, names["SMEM_LAYOUT"], names["ROW_HALVES"])
    lines = COPY_LINES * (ldmatrix * conflicts + copies)
    request_clocks = max(setting.constants.request, WARP * 16 / SM_BYTES_PER_CLK)
    return Work(
        phases=2 * tiles,
        waits=masked + np.where(polynomial > 0, _POLYNOMIAL_LATENCY * keys / _ATOM * tiles, 0.0),
        tensor=tensor_clocks(mma * tiles, target),
        mufu=mufu,
        lone_mufu=mufu * np.where(names["EXP_WITH_PV"], np.minimum(1.0, _ATOM / keys), 1.0),
        issue=(mma + ldmatrix + exponentials + plain) * tiles + _RESCALE_INSTRUCTIONS * rescaled + masked,
        shared=lines_clocks(lines * tiles, target),
        memory=request_clocks * copies * np.maximum(0.0, tiles - pieces * _ahead(names)),
    )


def _edges(names: Names, setting: Setting, pieces: Numbers) -> Work:
    """Computes a warp's work before its first tile and after its last."""
    problem = setting.problem
    values = names["M_ATOMS"] * problem.head_dim
    merged_lines = np.where(names["WARPS_N"] > 1, 2 * values * _ATOM * 4 / WAVEFRONT_BYTES, 0.0)
    exchanges = (names["SPLITS"] > 1) & (names["COMBINE"] == "last")
    return Work(
        phases=pieces * _further_phases(names),
        issue=pieces * (_CTA_INSTRUCTIONS + _END_INSTRUCTIONS * values),
        shared=lines_clocks(pieces * merged_lines, setting.target),
        memory=pieces
        * (_requests(names, problem) + _ahead(names) * _copies(names, problem))
        * setting.constants.request,
        exchanges=np.where(exchanges, EXCHANGES_OF_A_PIECE * pieces, 0.0),
    )


def _copies(names: Names, problem: Problem) -> Numbers:
    """Computes a warp's copy instructions for one tile of K and V, 16 bytes per lane each.

    The threads of a key group take whole rows of chunks; those that are too few for one more row idle.
    """
    rows: Numbers = WARP * names["WARPS_M"] // _row_chunks(problem)
    return 2 * np.ceil(names["BLOCK_N"] / rows)


def _row_chunks(problem: Problem) -> int:
    """Returns the chunks of 16 bytes of a tile's row, filled up to whole mma steps."""
    return math.ceil(problem.head_dim / _ATOM) * _ATOM * problem.dtype.bytes // 16


def _copy_instructions(names: Names, problem: Problem) -> Numbers:
    """Computes the instructions of a copy: where rows do not divide the threads, its place takes more of them."""
    is_even = WARP * names["WARPS_M"] % _row_chunks(problem) == 0
    return np.where(is_even, _COPY_INSTRUCTIONS, _UNEVEN_COPY_INSTRUCTIONS)


def _ahead(names: Names) -> Numbers:
    """Computes the tiles that are prefetched before the loop."""
    return (names["STAGES_K"] + names["STAGES_V"]) / 2


def _further_phases(names: Names) -> Numbers:
    """Computes the waits of a CTA outside its loop over tiles: barriers, and loads of Q to registers."""
    for_queries = np.where(names["Q_LOCATION"] == "shares_k", 2, 1)
    return 2 * (names["WARPS_N"] > 1) + for_queries + 2 * (names["SPLITS"] > 1)


def _requests(names: Names, problem: Problem) -> Numbers:
    """Computes a warp's global-memory accesses outside the loop: loads of Q, stores of O."""
    fragments, groups = names["M_ATOMS"] * math.ceil(problem.head_dim / _ATOM), names["WARPS_N"]
    queries = np.where(names["Q_LOCATION"] == "direct", 4 * fragments, fragments / groups)
    straight = (groups == 1) & (names["EPILOGUE"] == "direct")
    return queries + np.where(straight, 4 * fragments, 2 * fragments / groups)


@lru_cache(_REMEMBERED)
def _conflict_factor(layout: str, row_halves: int) -> float:
    """Computes the bank-conflict factor of ldmatrix from rows that start in the same 16-byte column of banks."""
    if layout == "swizzle128":
        return 1.0
    pitch = row_halves * 2
    columns = {(row * pitch // 16 + _swizzle(layout, row, pitch)) % 8 for row in range(8)}
    return 8 / len(columns)


def _swizzle(layout: str, row: int, pitch: int) -> int:
    if layout == "padded":
        return 0
    return row & 3 if pitch % 128 == 0 else (row >> 1) & 3


COUNTS: Final = MmaCounts
