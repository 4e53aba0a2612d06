"""What a config is expected to cost, from the config and the problem alone: no source, no compiler, no execution.

For the family mma the counts that the emulator would find follow from the algorithm: how many key tiles a warp walks
over, and how many mma, ldmatrix, exponentials, copies and barriers a tile takes. The latency model then is the same as
for executed kernels. Registers are the search space's estimate of what is live, so spills and occupancy are estimates
too. A prediction takes well below a millisecond; it orders a queue, it is no verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.latency import FITTED, Constants, Demand, Work, estimate
from evoengine.kernel.resources import WARP, occupancy
from evoengine.model import Config, Problem, Resources, Value
from evoengine.space.space import SearchSpace
from evoengine.target import Target

_ATOM: Final = 16
"""Rows, and depth, of one mma; keys of one ldmatrix.x4."""
_LINES: Final = 4
"""Wavefronts of a conflict-free ldmatrix.x4 or of a warp's 16-byte copies."""
_SCORE_INSTRUCTIONS: Final = 1.9
"""Per score of a lane besides its exponential: scale and subtract, maximum, half of a conversion."""
_RESCALE_INSTRUCTIONS: Final = 1.4
_LINE_BYTES: Final = 128
_MMA_FLOPS: Final = 4096
_COPY_INSTRUCTIONS: Final = 6
_TILE_INSTRUCTIONS: Final = 80
"""Loop, addresses, waits, masks: per tile, whatever its size."""
_CTA_INSTRUCTIONS: Final = 250
_END_INSTRUCTIONS: Final = 5.6
"""Per value of O in 16 rows: merge or epilogue. This and the five above: means over kernels that the emulator ran."""
# fmt: off
_NEEDED: Final = frozenset((
    "WARPS_M", "WARPS_N", "M_ATOMS", "BLOCK_N", "SPLITS", "COMBINE", "PERSISTENT", "Q_LOCATION", "EXP_WITH_PV",
    "ROW_SUM", "PEEL_FIRST", "EXP2_POLY", "EPILOGUE", "STAGES_K", "STAGES_V", "SMEM_LAYOUT", "MIN_CTAS",
    "MAXRREGCOUNT", "SMEM_BYTES", "THREADS", "BLOCK_M", "ROW_HALVES", "TILE_ROWS", "TILE_CTAS", "PERSISTENT_CTAS",
    "LIVE_REGISTERS",
))
# fmt: on
"""Tunables and derived values that the counts are made from."""
_CUT: Final = ("WARPS_M", "WARPS_N", "M_ATOMS", "BLOCK_N", "SPLITS")
_POLYNOMIAL_INSTRUCTIONS: Final = 9


@dataclass(frozen=True)
class _Names:
    """A config's tunables and derived values, as numbers."""

    scope: dict[str, int | bool | str]

    def __getitem__(self, name: str) -> int:
        return int(self.scope[name])

    def text(self, name: str) -> str:
        return str(self.scope[name])


class Prospect:
    """Expected times of one family's configs.

    Args:
        space: the family's search space, as its file defines it.
        problem: what is to be computed.
        target: the GPU.
    """

    def __init__(self, space: SearchSpace, problem: Problem, target: Target, constants: Constants = FITTED) -> None:
        self._space = space
        self._problem = problem
        self._target = target
        self._constants = constants

    @staticmethod
    def covers(space: SearchSpace, problem: Problem) -> bool:
        """Whether there are analytic counts: for the family mma as it ships, and sequences of one length."""
        known = {tunable.name for tunable in space.tunables} | {derived.name for derived in space.derived}
        return space.family == "mma" and known >= _NEEDED and not problem.packed

    def us(self, config: Config) -> float:
        """Expected device time, in microseconds; infinite where no CTA is expected to fit on an SM.

        Raises:
            UsageError: the config is not of this space.
        """
        names = _Names(self._space.scope(config.as_dict(), self._problem, self._target))
        registers, spilled = _registers(names)
        resources = Resources(
            registers=registers,
            spill_bytes=8 * spilled,
            stack_bytes=0,
            static_smem_bytes=0,
            dynamic_smem_bytes=names["SMEM_BYTES"],
            threads=names["THREADS"],
        )
        room = occupancy(resources, self._target)
        if room.blocks_per_sm == 0:
            return math.inf
        asked = _mma_demand(names, self._problem, self._target, resources.spill_bytes, self._constants)
        us = estimate(asked, room, self._target, unique_bytes=self._problem.min_bytes, constants=self._constants).us
        if names["SPLITS"] > 1 and names.text("COMBINE") == "kernel":
            step = self._constants.phase + self._constants.exchange  # a launch of its own: reads, merges, writes
            us += self._target.launch_overhead_us + step / self._target.clock_mhz
        return us

    def demand(self, config: Config) -> Demand:
        """The counts behind :meth:`us`, of the main launch.

        Raises:
            UsageError: the config is not of this space.
        """
        names = _Names(self._space.scope(config.as_dict(), self._problem, self._target))
        return _mma_demand(names, self._problem, self._target, 8 * _registers(names)[1], self._constants)

    def kind(self, config: Config) -> tuple[Value, ...]:
        """How a config cuts the work, which decides most of its time: configs that agree in it err alike."""
        return tuple(config[name] for name in _CUT if name in config)


def _registers(names: _Names) -> tuple[int, int]:
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


def _tiles(names: _Names, problem: Problem) -> tuple[float, float]:
    """Key tiles of a CTA: of the mean one, and of the busiest."""
    rows = np.arange(0, names["TILE_ROWS"], names["BLOCK_M"])
    group = max(1, names["TILE_ROWS"] // problem.seq_q)
    last = np.minimum(rows + names["BLOCK_M"], names["TILE_ROWS"]) - 1
    first, final = rows // group, last // group
    shift = problem.seq_kv - problem.seq_q
    ends = np.full(len(rows), problem.seq_kv)
    if problem.causal or problem.window_right is not None:
        right = 0 if problem.causal else problem.window_right or 0
        ends = np.minimum(ends, final + 1 + shift + right)
    begins = np.zeros(len(rows), np.int64)
    if problem.window_left is not None:
        begins = np.maximum(0, first + shift - problem.window_left)
    tiles = np.maximum(0, -(-(ends - begins) // names["BLOCK_N"])) / names["SPLITS"]
    return float(tiles.mean()), float(tiles.max())


def _mma_demand(names: _Names, problem: Problem, target: Target, spill_bytes: int, constants: Constants) -> Demand:
    tiles, most_tiles = _tiles(names, problem)
    groups = names["WARPS_N"]
    pieces = names["TILE_CTAS"] * names["SPLITS"]
    ctas = min(pieces, names["PERSISTENT_CTAS"]) if names["PERSISTENT"] else pieces
    share = pieces / ctas  # of a CTA
    mean = tiles / groups * share  # key tiles of the mean warp
    most = math.ceil(most_tiles / groups) * math.ceil(share)
    tile_bytes = names["BLOCK_N"] * names["ROW_HALVES"] * problem.dtype.bytes
    return Demand(
        ctas=ctas,
        warps_per_cta=groups * names["WARPS_M"],
        loop=_loop(names, problem, target, mean, share, constants),
        edges=_edges(names, problem, target, share, constants),
        spill_bytes=spill_bytes,
        busiest_cta=max(1.0, most_tiles / tiles if tiles else 1.0),
        busiest_warp=max(1.0, most / mean if mean else 1.0),
        l2_bytes=2 * tile_bytes * tiles * pieces,
    )


def _loop(names: _Names, problem: Problem, target: Target, tiles: float, pieces: float, constants: Constants) -> Work:
    """A warp's work on its key tiles."""
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
    mufu = exponentials * tiles * WARP * target.schedulers_per_sm / target.mufu_per_clk_per_sm
    lines = _LINES * (ldmatrix * _conflicts(names) + copies)
    return Work(
        phases=2 * tiles,
        tensor=mma * tiles * _MMA_FLOPS * target.schedulers_per_sm / target.mma_flops_per_clk_per_sm,
        mufu=mufu,
        lone_mufu=mufu * (min(1.0, _ATOM / keys) if names["EXP_WITH_PV"] else 1.0),
        issue=(mma + ldmatrix + exponentials + plain) * tiles + _RESCALE_INSTRUCTIONS * rescaled,
        shared=lines * tiles * _LINE_BYTES / target.smem_bytes_per_clk_per_sm,
        memory=max(constants.request, WARP * 16 / 64) * copies * max(0.0, tiles - pieces * _ahead(names)),
    )


def _edges(names: _Names, problem: Problem, target: Target, pieces: float, constants: Constants) -> Work:
    """What a warp does before its first tile and after its last."""
    values = names["M_ATOMS"] * problem.head_dim
    merged_lines = 2 * values * _ATOM * 4 / _LINE_BYTES if names["WARPS_N"] > 1 else 0.0
    return Work(
        phases=pieces * _further_phases(names),
        issue=pieces * (_CTA_INSTRUCTIONS + _END_INSTRUCTIONS * values),
        shared=pieces * merged_lines * _LINE_BYTES / target.smem_bytes_per_clk_per_sm,
        memory=pieces * (_requests(names, problem) + _ahead(names) * _copies(names, problem)) * constants.request,
        exchanges=pieces * 3 if names["SPLITS"] > 1 and names.text("COMBINE") == "last" else 0.0,
    )


def _copies(names: _Names, problem: Problem) -> float:
    """A warp's copies of a key tile and its values, each 16 bytes a lane."""
    tile_bytes = 2 * names["BLOCK_N"] * names["ROW_HALVES"] * problem.dtype.bytes
    return tile_bytes / 16 / (WARP * names["WARPS_M"])


def _ahead(names: _Names) -> float:
    """Tiles that are asked for before the loop begins."""
    return (names["STAGES_K"] + names["STAGES_V"]) / 2


def _further_phases(names: _Names) -> float:
    """Barriers of a CTA besides those of its tiles."""
    own = names.text("Q_LOCATION")
    return (
        2 * (names["WARPS_N"] > 1)
        + {"direct": 0, "registers": 1, "shared": 1, "shares_k": 2}[own]
        + (2 if names["SPLITS"] > 1 else 0)
    )


def _requests(names: _Names, problem: Problem) -> float:
    """A warp's accesses to global memory outside the tiles: Q in, O out."""
    fragments = names["M_ATOMS"] * math.ceil(problem.head_dim / _ATOM)
    queries = 4 * fragments if names.text("Q_LOCATION") == "direct" else fragments / names["WARPS_N"]
    straight = names["WARPS_N"] == 1 and names.text("EPILOGUE") == "direct"
    return queries + (4 * fragments if straight else 2 * fragments / names["WARPS_N"])


def _conflicts(names: _Names) -> float:
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
