"""Analytic counts of the family mma: what a tile takes follows from the algorithm, how many there are from the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.emulator.latency import Demand, Work
from evoengine.emulator.prospect_names import (
    COPY_LINES,
    LINE_BYTES,
    Names,
    Setting,
    lines_clocks,
    mufu_clocks,
    tensor_clocks,
)
from evoengine.kernel.resources import WARP
from evoengine.model import Problem

_ATOM: Final = 16
"""Rows, and depth, of one mma; keys of one ldmatrix.x4."""
_SCORE_INSTRUCTIONS: Final = 1.9
"""Per score of a lane besides its exponential: scale and subtract, maximum, half of a conversion."""
_RESCALE_INSTRUCTIONS: Final = 1.4
_COPY_INSTRUCTIONS: Final = 6
_TILE_INSTRUCTIONS: Final = 80
"""Loop, addresses, waits, masks: per tile, whatever its size."""
_CTA_INSTRUCTIONS: Final = 250
_END_INSTRUCTIONS: Final = 5.6
"""Per value of O in 16 rows: merge or epilogue. This and the five above: means over kernels that the emulator ran."""
_CTA_CODE: Final = 360
_END_CODE: Final = 1.3
"""Per value of O in 16 rows. These two: least squares over 280 kernels that the emulator ran."""
_MASK_INSTRUCTIONS: Final = 3
"""Per score of a tile that a mask or the end of the keys crosses: two comparisons or their share, and a choice."""
_POLYNOMIAL_INSTRUCTIONS: Final = 10
_POLYNOMIAL_LATENCY: Final = 40
"""Ten operations that depend on each other, four clocks each, in each step of 16 keys."""
_ROW_THREADS: Final = ((64, 32), (32, 16), (0, 8))
"""Threads that merge a row of splits, where head_dim is above a width."""


class MmaCounts:
    """Of the space as it ships, and sequences of one length."""

    needed = frozenset(
        (
            "WARPS_M",
            "WARPS_N",
            "M_ATOMS",
            "BLOCK_N",
            "SPLITS",
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
    cut = ("WARPS_M", "WARPS_N", "M_ATOMS", "BLOCK_N", "SPLITS")

    def covers(self, problem: Problem) -> bool:
        """See :class:`~evoengine.emulator.prospect_names.FamilyCounts`."""
        return not problem.packed

    def registers(self, names: Names) -> tuple[int, int]:
        """See :class:`~evoengine.emulator.prospect_names.FamilyCounts`."""
        return _registers(names)

    def demand(self, names: Names, setting: Setting) -> Demand:
        """See :class:`~evoengine.emulator.prospect_names.FamilyCounts`."""
        return _demand(names, setting)

    def further_us(self, names: Names, setting: Setting) -> float:
        """The merge of splits in a kernel of its own."""
        return _combine_us(names, setting) if names["SPLITS"] > 1 and names.text("COMBINE") == "kernel" else 0.0


def _merge_clocks(names: Names, setting: Setting, turns: int) -> float:
    """What the last CTA of a tile adds; a persistent one that is late by a merge is the last of its next tile again."""
    if names["SPLITS"] == 1 or names.text("COMBINE") == "kernel":
        return 0.0
    return turns * _rows_clocks(names, setting, names["BLOCK_M"], names["THREADS"])


def _combine_us(names: Names, setting: Setting) -> float:
    """A second kernel, which merges all tiles at once: a launch of its own, which reads, merges, writes."""
    clocks = setting.constants.phase + setting.constants.exchange
    clocks += _rows_clocks(names, setting, names["COMBINE_ROWS"], names["COMBINE_THREADS"])
    return setting.target.launch_overhead_us + clocks / setting.target.clock_mhz


def _rows_clocks(names: Names, setting: Setting, rows: int, threads: int) -> float:
    """Clocks to merge rows, one after the other: the partial results of some splits are waited for together."""
    constants = setting.constants
    row_threads = next(threads for width, threads in _ROW_THREADS if setting.problem.head_dim > width)
    waits = math.ceil(rows * row_threads / threads) * math.ceil(names["SPLITS"] / constants.merge_together)
    return waits * constants.merge_wait


def _registers(names: Names) -> tuple[int, int]:
    """Registers of a thread, and how many spill.

    ptxas loads ahead where it has registers left, and needs some of these in any case; more where a key group is one
    warp, whose barriers it may move code across. The shares are means over what ptxas made of 13,000 configs.
    """
    by_count = names["regs_per_sm"] // (names["THREADS"] * names["MIN_CTAS"]) // 8 * 8
    cap = min(names["max_regs_per_thread"], names["MAXRREGCOUNT"] or by_count, by_count)
    live, scores = names["LIVE_REGISTERS"], names["M_ATOMS"] * names["BLOCK_N"] // 2
    alone = names["WARPS_M"] == 1
    wanted = live + 20 + scores // 2 + (names["BLOCK_N"] * 3 // 10 if alone else 0)
    needed = live + round(scores * (0.5 if alone else 0.15))
    return min(wanted, cap), max(0, needed - cap)


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Key tiles of a piece of work; there is one of each kind (see :func:`_tiles`)."""

    mean: float
    most: float
    turns: npt.NDArray[np.float64]
    """Turns of a key group, by query tile."""
    most_turns: float


@lru_cache(maxsize=4096)
def _tiles(tile_rows: int, block_m: int, block_n: int, splits: int, groups: int, problem: Problem) -> _Tiles:
    """From rows of all query tiles and of one, keys of a tile, splits and key groups, which many configs share."""
    rows = np.arange(0, tile_rows, block_m)
    group = max(1, tile_rows // problem.seq_q)
    last = np.minimum(rows + block_m, tile_rows) - 1
    first, final = rows // group, last // group
    shift = problem.seq_kv - problem.seq_q
    ends = np.full(len(rows), problem.seq_kv)
    if problem.causal or problem.window_right is not None:
        right = 0 if problem.causal else problem.window_right or 0
        ends = np.minimum(ends, final + 1 + shift + right)
    begins = np.zeros(len(rows), np.int64)
    if problem.window_left is not None:
        begins = np.maximum(0, first + shift - problem.window_left)
    counts: npt.NDArray[np.float64] = np.maximum(0, -(-(ends - begins) // block_n)) / splits
    turns = np.ceil(counts / groups)
    return _Tiles(float(counts.mean()), float(counts.max()), turns, float(turns.max()))


@lru_cache(maxsize=4096)
def _most_turns(tiles: _Tiles, longest_first: bool, pieces: int, ctas: int) -> float:
    """Turns of a key group of the busiest CTA of a persistent grid, from those of a piece by query tile."""
    turns, numbers = tiles.turns, np.arange(pieces)
    places = len(turns) - 1 - numbers // (pieces // len(turns)) if longest_first else numbers % len(turns)
    return float(np.bincount(numbers % ctas, turns[places]).max())


def _demand(names: Names, setting: Setting) -> Demand:
    problem = setting.problem
    groups = names["WARPS_N"]
    found = _tiles(names["TILE_ROWS"], names["BLOCK_M"], names["BLOCK_N"], names["SPLITS"], groups, problem)
    tiles = found.mean
    pieces = names["TILE_CTAS"] * names["SPLITS"]
    ctas = min(pieces, names["PERSISTENT_CTAS"]) if names["PERSISTENT"] else pieces
    share = pieces / ctas  # of a CTA
    most_pieces = math.ceil(share)
    mean = tiles / groups * share  # key tiles of the mean warp
    longest_first = names.text("TILE_ORDER") == "longest_first"
    most = _most_turns(found, longest_first, pieces, ctas) if most_pieces > 1 else found.most_turns
    busiest = max(1.0, most / mean if mean else 1.0)
    loop = _loop(names, setting, mean, share)
    tile_bytes = names["BLOCK_N"] * names["ROW_HALVES"] * problem.dtype.bytes
    return Demand(
        ctas=ctas,
        warps_per_cta=groups * names["WARPS_M"],
        loop=loop,
        edges=_edges(names, setting, most_pieces),
        spill_bytes=8 * _registers(names)[1],
        busiest_cta=busiest if most_pieces > 1 else max(1.0, found.most / tiles if tiles else 1.0),
        busiest_warp=busiest,
        l2_bytes=2 * tile_bytes * tiles * pieces,
        merge_clocks=_merge_clocks(names, setting, most_pieces),
        merging=1 / names["SPLITS"],
        code=_code(names, loop.issue / mean if mean else 0.0, mean / share, problem),
        longest_first=longest_first,
    )


def _code(names: Names, tile_instructions: float, tiles: float, problem: Problem) -> float:
    """Different instructions: a tile's, as often as they are written out and come up, and those of the edges."""
    written = min(tiles, names["PEEL_FIRST"] + names["UNROLL"])
    return tile_instructions * written + _END_CODE * names["M_ATOMS"] * problem.head_dim + _CTA_CODE


def _loop(names: Names, setting: Setting, tiles: float, pieces: float) -> Work:
    """A warp's work on its key tiles."""
    problem, target = setting.problem, setting.target
    atoms, keys = names["M_ATOMS"], names["BLOCK_N"]
    depth = math.ceil(problem.head_dim / _ATOM)
    tensor_sum = names.text("ROW_SUM") == "tensor"
    mma = atoms * keys / 8 * depth + atoms * keys / _ATOM * (problem.head_dim / 8 + tensor_sum)
    ldmatrix = 2 * keys / _ATOM * depth + atoms * depth * (names.text("Q_LOCATION") == "shared")
    scores = atoms * keys / 2  # of a lane
    polynomial = scores * names["EXP2_POLY"] / 100
    exponentials = scores - polynomial + 2 * atoms
    copies = _copies(names, problem)
    plain = scores * (_SCORE_INSTRUCTIONS + (not tensor_sum)) + _POLYNOMIAL_INSTRUCTIONS * polynomial
    plain += _COPY_INSTRUCTIONS * copies + _TILE_INSTRUCTIONS
    rescaled = atoms * problem.head_dim / 2 * max(0.0, tiles - pieces * names["PEEL_FIRST"])
    masked = _MASK_INSTRUCTIONS * scores * pieces * _is_masked(names, problem)
    mufu = mufu_clocks(exponentials * tiles, target)
    lines = COPY_LINES * (ldmatrix * _conflicts(names) + copies)
    return Work(
        phases=2 * tiles,
        waits=masked + (_POLYNOMIAL_LATENCY * keys / _ATOM * tiles if polynomial else 0.0),
        tensor=tensor_clocks(mma * tiles, target),
        mufu=mufu,
        lone_mufu=mufu * (min(1.0, _ATOM / keys) if names["EXP_WITH_PV"] else 1.0),
        issue=(mma + ldmatrix + exponentials + plain) * tiles + _RESCALE_INSTRUCTIONS * rescaled + masked,
        shared=lines_clocks(lines * tiles, target),
        memory=max(setting.constants.request, WARP * 16 / 64) * copies * max(0.0, tiles - pieces * _ahead(names)),
    )


def _is_masked(names: Names, problem: Problem) -> bool:
    """Whether a CTA has a tile of which some rows do not see all keys."""
    bounded = problem.causal or problem.window_left is not None or problem.window_right is not None
    return bounded or problem.seq_kv % names["BLOCK_N"] > 0


def _edges(names: Names, setting: Setting, pieces: int) -> Work:
    """What a warp does before its first tile and after its last."""
    problem = setting.problem
    values = names["M_ATOMS"] * problem.head_dim
    merged_lines = 2 * values * _ATOM * 4 / LINE_BYTES if names["WARPS_N"] > 1 else 0.0
    return Work(
        phases=pieces * _further_phases(names),
        issue=pieces * (_CTA_INSTRUCTIONS + _END_INSTRUCTIONS * values),
        shared=lines_clocks(pieces * merged_lines, setting.target),
        memory=pieces
        * (_requests(names, problem) + _ahead(names) * _copies(names, problem))
        * setting.constants.request,
        exchanges=3.0 * pieces if names["SPLITS"] > 1 and names.text("COMBINE") == "last" else 0.0,
    )


def _copies(names: Names, problem: Problem) -> float:
    """A warp's copies of a key tile and its values, each 16 bytes a lane."""
    tile_bytes = 2 * names["BLOCK_N"] * names["ROW_HALVES"] * problem.dtype.bytes
    return tile_bytes / 16 / (WARP * names["WARPS_M"])


def _ahead(names: Names) -> float:
    """Tiles that are asked for before the loop begins."""
    return (names["STAGES_K"] + names["STAGES_V"]) / 2


def _further_phases(names: Names) -> float:
    """Barriers of a CTA besides those of its tiles."""
    own = names.text("Q_LOCATION")
    return (
        2 * (names["WARPS_N"] > 1)
        + {"direct": 0, "registers": 1, "shared": 1, "shares_k": 2}[own]
        + (2 if names["SPLITS"] > 1 else 0)
    )


def _requests(names: Names, problem: Problem) -> float:
    """A warp's accesses to global memory outside the tiles: Q in, O out."""
    fragments = names["M_ATOMS"] * math.ceil(problem.head_dim / _ATOM)
    queries = 4 * fragments if names.text("Q_LOCATION") == "direct" else fragments / names["WARPS_N"]
    straight = names["WARPS_N"] == 1 and names.text("EPILOGUE") == "direct"
    return queries + (4 * fragments if straight else 2 * fragments / names["WARPS_N"])


def _conflicts(names: Names) -> float:
    """Wavefronts of ldmatrix over those without bank conflicts: rows that start in the same 16-byte column of banks."""
    layout, pitch = names.text("SMEM_LAYOUT"), names["ROW_HALVES"] * 2
    if layout == "swizzle128":
        return 1.0
    columns = {(row * pitch // 16 + _swizzle(layout, row, pitch)) % 8 for row in range(8)}
    return 8 / len(columns)


def _swizzle(layout: str, row: int, pitch: int) -> int:
    if layout == "padded":
        return 0
    return row & 3 if pitch % 128 == 0 else (row >> 1) & 3
