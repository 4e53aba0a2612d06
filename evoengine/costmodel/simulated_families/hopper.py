"""Predicts the family ``hopper``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Final

import numpy as np

from evoengine.costmodel.family_counts import KernelFacts, Setting, merge_threads
from evoengine.costmodel.key_tiles import (
    is_bounded_right,
    masked_share,
    masked_tiles,
    packed_heads,
    passed_tiles,
    tile_counts,
)
from evoengine.costmodel.l2_cache import miss_clocks
from evoengine.costmodel.simulation.hopper_programs import HopperKernel, HopperPrograms
from evoengine.costmodel.simulation.launch import REMEMBERED, CopyPath, Order, Pieces, SimulatedLaunch, simulate_launch
from evoengine.costmodel.simulation.machine import Resource, Timeline, busy_clocks
from evoengine.costmodel.simulation.schedule import Array
from evoengine.costmodel.simulation.shared_pieces import shared_pieces, sharing_of
from evoengine.costmodel.simulation.warpgroup import ROWS, Tile, WarpgroupWork
from evoengine.model import Problem, Value

_LOADED_OF_SPLITS: Final = 8, 1
"""Numbers of splits and rows whose partial results a thread loads at once where pieces are split."""
_LOADED_OF_LAST_ROUND: Final = 2, 4
"""The same where CTAs share the last round."""
_PARTIAL_BYTES: Final = 4
_PARTIAL_LINE_BYTES: Final = 64
"""Bytes of partial results by which their transfer through L2 is counted: `split_line` of the constants."""
_WARPGROUP_THREADS: Final = 128
_ORDERS: Final[Mapping[str, Order]] = {"static": "first free", "dynamic": "tickets", "persistent": "rounds"}


class HopperSimulation:
    """Predicts the shipped kernels of the family."""

    needed: ClassVar = frozenset(
        (
            "CONSUMERS",
            "BLOCK_M",
            "BLOCK_N",
            "SCHEDULE",
            "HEAD_GROUP",
            "CTAS_PER_SM",
            "STAGES",
            "SHARE_QO",
            "Q_SOURCE",
            "OVERLAP",
            "PINGPONG",
            "EXP2_POLY",
            "SMEM_BYTES",
            "THREADS",
            "ENTRY_REGISTERS",
        )
    )
    defaults: ClassVar[Mapping[str, Value]] = {
        "BESIDE_VALUES": 100,
        "KEY_GROUPS": 1,
        "PACK_GQA": False,
        "Q_SLOTS": 1,
        "SHARE_LAST_ROUND": False,
        "SPLIT_WAVES": 0,
        "SPLIT_TILES": 1,
        "RESIDENT_CTAS": 0,
    }
    partition: ClassVar[tuple[str, ...]] = (
        "CONSUMERS",
        "KEY_GROUPS",
        "BLOCK_N",
        "SCHEDULE",
        "CTAS_PER_SM",
        "SPLIT_WAVES",
    )

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._timeline = lru_cache(REMEMBERED)(self._simulated)

    @staticmethod
    def covers(problem: Problem) -> bool:
        return not problem.packed

    def registers(self, names: Mapping[str, Any]) -> tuple[Any, Any]:
        """Registers per thread at the launch, from which the CTAs per SM follow; the space admits no spills."""
        return names["ENTRY_REGISTERS"], names["ENTRY_REGISTERS"] * 0

    def launch(self, names: Mapping[str, Any], facts: KernelFacts) -> SimulatedLaunch:
        """Simulates the main launch of one config."""
        problem, target, constants = self._setting.problem, self._setting.target, self._setting.simulation
        names = {**self.defaults, **names}
        kernel = self._kernel(names, facts.spilled)
        resident = min(facts.ctas_per_sm, int(names["CTAS_PER_SM"])) if kernel.stays else facts.ctas_per_sm
        packed = packed_heads(problem, names)
        rows = kernel.query_groups * (ROWS // packed * packed)
        tiles = tile_counts(problem, problem.seq_q * packed, rows, kernel.tile.keys)

        pieces = self._pieces(tiles, names)
        shares = shared_pieces(pieces, names)
        missed = miss_clocks(problem, target, float(pieces.tiles.sum()) * kernel.tile.keys)
        run = partial(self._timeline, kernel, facts.instructions)
        simulated = simulate_launch(run, shares, resident, target, constants.l2_share, missed)
        code = self.issued(names, min(2, int(tiles.max()))) / kernel.consumers  # the first tile is outside the loop
        merge = 0.0 if shares is pieces else self._merge_clocks(names, len(pieces.tiles), int(tiles.max()))
        if shares is not pieces and names["SHARE_LAST_ROUND"]:
            merge += constants.share_start
        more = code * constants.fetch + merge
        return replace(simulated, clocks=simulated.clocks + more, edges=simulated.edges + more)

    def _merge_clocks(self, names: Mapping[str, Any], pieces: int, tiles: int) -> float:
        """Computes the clocks in which a CTA leaves its partial results and merges those of all that share a piece.

        Args:
            names: Tunables and derived values.
            pieces: Number of pieces of work.
            tiles: Key tiles of the longest.
        """
        problem, constants = self._setting.problem, self._setting.simulation
        together, rows_together = _LOADED_OF_SPLITS if names["SPLIT_WAVES"] else _LOADED_OF_LAST_ROUND
        sharing = sharing_of(names, pieces, tiles)
        if sharing.splits == 1 and not names["SPLIT_WAVES"]:  # the last round has pieces of one tile
            return 0.0
        rows = min(int(names["BLOCK_M"]), problem.seq_q * packed_heads(problem, names))
        row_threads = merge_threads(problem.head_dim)
        turns = math.ceil(math.ceil(rows * row_threads / (int(names["THREADS"]) - _WARPGROUP_THREADS)) / rows_together)
        lines = rows * problem.head_dim * sharing.splits * _PARTIAL_BYTES / _PARTIAL_LINE_BYTES
        waits = turns * max(1.0, sharing.splits / together)
        merge = waits * constants.split_wait + lines * constants.split_line
        return sharing.parts * constants.split_merge + sharing.merges * merge

    def _simulated(
        self, kernel: HopperKernel, instructions: float, pieces: tuple[int, ...], ctas: int, path: CopyPath
    ) -> Timeline:
        return self._programs(kernel, instructions, path).run(pieces, ctas)

    def issued(self, names: Mapping[str, Any], tiles: int) -> float:
        """Counts the instructions that a scheduler executes for one piece of work."""
        programs = self._programs(self._kernel({**self.defaults, **names}, 0.0), 1.0, CopyPath(1.0)).of([tiles])
        return busy_clocks(programs, Resource.ISSUE) / self._setting.simulation.issue

    def _programs(self, kernel: HopperKernel, instructions: float, path: CopyPath) -> HopperPrograms:
        target, constants = self._setting.target, self._setting.simulation
        return HopperPrograms(kernel, WarpgroupWork(kernel.tile, target, constants, instructions), path, constants)

    def _kernel(self, names: Mapping[str, Any], spilled: float) -> HopperKernel:
        problem = self._setting.problem
        consumers, groups, keys = int(names["CONSUMERS"]), int(names["KEY_GROUPS"]), int(names["BLOCK_N"])
        tile = Tile(
            keys=keys,
            head_dim=problem.head_dim,
            polynomial=int(names["EXP2_POLY"]),
            q_in_registers=names["Q_SOURCE"] == "registers",
            softcap=problem.softcap > 0,
            spilled=spilled,
            masked_share=float(masked_share(problem, keys)),
        )
        return HopperKernel(
            consumers=consumers,
            tile=tile,
            stages=int(names["STAGES"]),
            overlap=bool(names["OVERLAP"]),
            pingpong=bool(names["PINGPONG"]),
            stays=names["SCHEDULE"] != "static",
            share_qo=bool(names["SHARE_QO"]),
            masked=masked_tiles(problem, keys, consumers // groups, packed_heads(problem, names)),
            groups=groups,
            q_slots=int(names["Q_SLOTS"]),
            beside_values=int(names["BESIDE_VALUES"]) / 100,
            passed=self._passed(names, keys, consumers // groups),
        )

    def _passed(self, names: Mapping[str, Any], keys: int, query_groups: int) -> tuple[tuple[int, int], ...]:
        problem = self._setting.problem
        if query_groups == 1 or (not is_bounded_right(problem) and problem.window_left is None):
            return ()
        packed = packed_heads(problem, names)
        return passed_tiles(problem, packed, keys, query_groups, ROWS // packed * packed)

    def _pieces(self, tiles: Array, names: Mapping[str, Any]) -> Pieces:
        """Pieces of work in the order of their numbers."""
        problem = self._setting.problem
        heads = problem.heads * problem.batch // packed_heads(problem, names)
        order = _ORDERS[names["SCHEDULE"]]
        if not is_bounded_right(problem) or problem.window_left is not None:
            return Pieces(np.tile(tiles, heads), order)
        size = heads
        if names["HEAD_GROUP"] > 0:
            head_bytes = problem.seq_kv * problem.head_dim * 2 * problem.dtype.bytes
            shared_by = problem.heads // problem.kv_heads // packed_heads(problem, names)
            fitting = (int(names["HEAD_GROUP"]) << 20) // head_bytes * shared_by
            size = min(max(fitting, 1), heads)
        groups = [min(size, heads - first) for first in range(0, heads, size)]
        return Pieces(
            np.concatenate([np.repeat(tiles[::-1], group) for group in groups]), "snake" if order == "rounds" else order
        )


SIMULATION: Final = HopperSimulation
