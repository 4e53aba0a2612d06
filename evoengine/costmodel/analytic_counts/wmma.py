"""Analytic counts of the wmma family: both products are tiled over the warps alike, softmax runs in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.family_counts import (
    COPY_LINES,
    Names,
    Setting,
    lines_clocks,
    live_registers,
    mufu_clocks,
    per_config,
    tensor_clocks,
)
from evoengine.costmodel.key_tiles import tile_counts
from evoengine.costmodel.l2_cache import SM_BYTES_PER_CLK
from evoengine.costmodel.latency import SPILLED_BYTES, Demand, Numbers, Work
from evoengine.kernel.resources import WARP
from evoengine.model import Problem, Value

_ATOM: Final = 16
_STORE_LINES: Final = 8
"""Wavefronts to store a 16x16 tile of f32 without bank conflicts."""
_UNPADDED_CONFLICTS: Final = 4
"""Conflict factor where rows of f32 begin in the same bank."""
_PAIR_INSTRUCTIONS: Final = 10
"""Softmax instructions for two neighbouring scores, without their exponentials."""
_ROW_INSTRUCTIONS: Final = 20
_COPY_INSTRUCTIONS: Final = 16
_TILE_INSTRUCTIONS: Final = 80
_CTA_INSTRUCTIONS: Final = 300
_ROUND_TRIPS: Final = 300
"""Clocks per tile for the round trips of S, P and factors through shared memory (about 30 each way), and shuffles."""


class WmmaCounts:
    """Counts for the shipped space."""

    needed: ClassVar = frozenset(
        (
            "BLOCK_M",
            "BLOCK_N",
            "WARPS_M",
            "WARPS_N",
            "THREADS_PER_ROW",
            "STAGING",
            "STAGES",
            "PAD_HALVES",
            "PAD_FLOATS",
            "Q_LOCATION",
            "O_LOCATION",
            "P_PITCH",
            "ROW_HALVES",
            "THREADS",
            "SMEM_BYTES",
            "LIVE_REGISTERS",
            "MIN_CTAS",
        )
    )
    defaults: ClassVar[Mapping[str, Value]] = {}
    partition: ClassVar[tuple[str, ...]] = ("BLOCK_M", "BLOCK_N", "WARPS_M", "WARPS_N", "O_LOCATION")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._tiles = lru_cache(partial(_tiles, setting.problem))

    @staticmethod
    def covers(problem: Problem) -> bool:
        return not problem.packed

    def registers(self, names: Names) -> tuple[npt.NDArray[np.int64], Numbers]:
        return live_registers(names, self._setting.target)

    def demand(self, names: Names, spilled: Numbers) -> Demand:
        """Computes the demand of the main launch."""
        setting, problem = self._setting, self._setting.problem
        tiles, most, query_tiles = per_config(self._tiles, names["BLOCK_M"], names["BLOCK_N"]).reshape(3, -1)
        ctas = query_tiles * problem.heads * problem.batch
        busiest = np.maximum(1.0, most / np.where(tiles > 0, tiles, 1.0))
        loop, edges = _loop(names, setting, tiles), _edges(names, setting)
        return Demand(
            ctas=ctas,
            warps_per_cta=names["WARPS_M"] * names["WARPS_N"],
            loop=loop,
            edges=edges,
            spill_bytes=SPILLED_BYTES * spilled,
            busiest_cta=busiest,
            busiest_warp=busiest,
            l2_bytes=2 * names["BLOCK_N"] * problem.head_dim * problem.dtype.bytes * tiles * ctas,
            code=loop.issue / np.maximum(1.0, tiles) + edges.issue,
        )

    def extra_launches_us(self, names: Names) -> Numbers:
        return 0.0


def _tiles(problem: Problem, block_m: int, block_n: int) -> tuple[float, float, float]:
    """Computes the mean and the largest number of key tiles per query tile, and the number of query tiles per head."""
    counts = tile_counts(problem, problem.seq_q, block_m, block_n)
    return float(counts.mean()), float(counts.max()), len(counts)


def _fragments(names: Names, problem: Problem) -> tuple[Numbers, Numbers, Numbers]:
    """Computes a warp's fragments: along its rows, along its keys of S, along its columns of O."""
    rows = names["BLOCK_M"] // names["WARPS_M"] // _ATOM
    return rows, names["BLOCK_N"] // names["WARPS_N"] // _ATOM, problem.head_dim // names["WARPS_N"] // _ATOM


def _loop(names: Names, setting: Setting, tiles: Numbers) -> Work:
    problem, target = setting.problem, setting.target
    rows, keys, columns = _fragments(names, problem)
    depth, steps = problem.head_dim // _ATOM, names["BLOCK_N"] // _ATOM
    mma = 2 * rows * (depth * keys + steps * columns)
    in_rows = depth * (keys + rows * (names["Q_LOCATION"] == "shared")) + steps * columns
    ldmatrix = in_rows * per_config(_conflict_factor, names["ROW_HALVES"])
    ldmatrix = ldmatrix + steps * rows * per_config(_conflict_factor, names["P_PITCH"])
    in_shared = names["O_LOCATION"] == "shared"
    width = names["THREADS_PER_ROW"]
    passes = names["BLOCK_M"] * width / names["THREADS"]
    pairs = names["BLOCK_N"] / width / 2
    rescale_accesses = np.where(in_shared, problem.head_dim / 2 / width * 4, _ATOM / width)
    tiles_of_f32 = rows * keys + np.where(in_shared, 2 * rows * columns, rows)
    copies = 2 * names["BLOCK_N"] * problem.head_dim * problem.dtype.bytes / 16 / names["THREADS"]
    conflicts = np.where(names["PAD_FLOATS"], 1, _UNPADDED_CONFLICTS)
    lines = COPY_LINES * (ldmatrix + copies) + tiles_of_f32 * _STORE_LINES * conflicts
    lines = lines + passes * (3 * pairs + rescale_accesses)
    exponentials = passes * (2 * pairs + 1)
    softmax = passes * (pairs * _PAIR_INSTRUCTIONS + _ROW_INSTRUCTIONS + 2 * np.log2(width) + rescale_accesses)
    plain = softmax + exponentials + _COPY_INSTRUCTIONS * copies + _TILE_INSTRUCTIONS + 8 * rows * columns
    mufu = mufu_clocks(exponentials * tiles, target)
    request_clocks = max(setting.constants.request, WARP * 16 / SM_BYTES_PER_CLK)
    return Work(
        phases=3 * tiles,
        waits=_ROUND_TRIPS * tiles,
        tensor=tensor_clocks(mma * tiles, target),
        mufu=mufu,
        lone_mufu=mufu,
        issue=(mma + in_rows + steps * rows + 4 * tiles_of_f32 + plain) * tiles,
        shared=lines_clocks(lines * tiles, target),
        memory=request_clocks * copies * np.maximum(0.0, tiles - names["STAGES"]),
    )


def _edges(names: Names, setting: Setting) -> Work:
    problem = setting.problem
    rows, _, columns = _fragments(names, problem)
    chunks = names["BLOCK_M"] * problem.head_dim * problem.dtype.bytes / 16 / names["THREADS"]
    ahead = 2 * names["STAGES"] * names["BLOCK_N"] * problem.head_dim * problem.dtype.bytes / 16 / names["THREADS"]
    return Work(
        phases=2.0 + (names["Q_LOCATION"] == "fragments"),
        issue=_CTA_INSTRUCTIONS + 40 * chunks + _COPY_INSTRUCTIONS * ahead,
        shared=lines_clocks(rows * columns * _STORE_LINES + 12 * chunks, setting.target),
        memory=(2 * chunks + ahead) * setting.constants.request,
    )


@lru_cache(1024)
def _conflict_factor(pitch_halves: int) -> float:
    """Computes the bank-conflict factor of ldmatrix from rows that start in the same 16-byte column of banks."""
    return 8 / len({row * pitch_halves * 2 // 16 % 8 for row in range(8)})


COUNTS: Final = WmmaCounts
