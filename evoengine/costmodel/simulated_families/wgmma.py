"""Predicts the family ``wgmma``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Final

import numpy as np

from evoengine.costmodel.family_counts import KernelFacts, Setting, register_cap
from evoengine.costmodel.key_tiles import masked_share, masked_tiles, packed_heads, tile_counts, tiles_in_order
from evoengine.costmodel.l2_cache import miss_clocks
from evoengine.costmodel.simulation.launch import REMEMBERED, CopyPath, Order, Pieces, SimulatedLaunch, simulate_launch
from evoengine.costmodel.simulation.machine import Resource, Timeline, busy_clocks
from evoengine.costmodel.simulation.schedule import Array
from evoengine.costmodel.simulation.warpgroup import Tile, WarpgroupWork
from evoengine.costmodel.simulation.wgmma_programs import WgmmaKernel, WgmmaPrograms
from evoengine.model import Problem, Value


class WgmmaSimulation:
    """Predicts the shipped kernels of the family."""

    needed: ClassVar = frozenset(
        (
            "WARPS_M",
            "WARPS_N",
            "BLOCK_M",
            "BLOCK_N",
            "TILE_ORDER",
            "PACK_GQA",
            "PERSISTENT",
            "STAGES_K",
            "STAGES_V",
            "OVERLAP",
            "EXP_WITH_PV",
            "PV_KEYS",
            "EXP2_POLY",
            "PEEL_FIRST",
            "MIN_CTAS",
            "MAXRREGCOUNT",
            "UNROLL",
            "SMEM_BYTES",
            "THREADS",
            "LIVE_REGISTERS",
        )
    )
    defaults: ClassVar[Mapping[str, Value]] = {"EPILOGUE": "shared"}
    partition: ClassVar[tuple[str, ...]] = ("WARPS_M", "WARPS_N", "BLOCK_N", "OVERLAP")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._timeline = lru_cache(REMEMBERED)(self._simulated)

    @staticmethod
    def covers(problem: Problem) -> bool:
        return not problem.packed

    def registers(self, names: Mapping[str, Any]) -> tuple[Any, Any]:
        """Estimates registers and spills per thread; a least-squares fit to ptxas' reports of 204 kernels."""
        cap = register_cap(names, self._setting.target)
        wanted = np.rint(25 + 0.61 * self._setting.problem.head_dim + 0.80 * names["BLOCK_N"]).astype(np.int64)
        return np.minimum(wanted, cap), np.maximum(0, names["LIVE_REGISTERS"] - cap)

    def launch(self, names: Mapping[str, Any], facts: KernelFacts) -> SimulatedLaunch:
        """Simulates the main launch of one config."""
        problem, target, constants = self._setting.problem, self._setting.target, self._setting.simulation
        kernel = self._kernel(names, facts.spilled)
        persistent = bool(names["PERSISTENT"])
        resident = min(facts.ctas_per_sm, int(names["MIN_CTAS"])) if persistent else facts.ctas_per_sm
        packed = packed_heads(problem, names)
        tile_rows = problem.seq_q * packed
        tiles = tile_counts(problem, tile_rows, int(names["BLOCK_M"]), kernel.tile.keys)
        heads = problem.batch * problem.heads // packed
        order: Order = "rounds" if persistent else "first free"

        pieces = Pieces(tiles_in_order(tiles, heads, str(names["TILE_ORDER"])), order)
        missed = miss_clocks(problem, target, float(pieces.tiles.sum()) * kernel.tile.keys)
        run = partial(self._timeline, kernel, facts.instructions)
        simulated = simulate_launch(run, pieces, resident, target, constants.l2_share, missed)
        fetch = self._code(names, tiles, kernel) * constants.fetch
        return replace(simulated, clocks=simulated.clocks + fetch, edges=simulated.edges + fetch)

    def _code(self, names: Mapping[str, Any], tiles: Array, kernel: WgmmaKernel) -> float:
        """Estimates the distinct instructions that execute: unrolled copies of a tile, begin and end."""
        copies = 2 if kernel.overlap else int(names["UNROLL"]) + kernel.peeled
        executed = min(copies * kernel.groups, int(tiles.max()))
        return self.issued(names, executed) / kernel.agents

    def _simulated(
        self, kernel: WgmmaKernel, instructions: float, pieces: tuple[int, ...], ctas: int, path: CopyPath
    ) -> Timeline:
        return self._programs(kernel, instructions, path).run(pieces, ctas)

    def issued(self, names: Mapping[str, Any], tiles: int) -> float:
        """Counts the instructions that a scheduler executes for one piece of work."""
        programs = self._programs(self._kernel(names, 0.0), 1.0, CopyPath(1.0)).of([tiles])
        return busy_clocks(programs, Resource.ISSUE) / self._setting.simulation.issue

    def _programs(self, kernel: WgmmaKernel, instructions: float, path: CopyPath) -> WgmmaPrograms:
        target, constants = self._setting.target, self._setting.simulation
        return WgmmaPrograms(kernel, WarpgroupWork(kernel.tile, target, constants, instructions), path, constants)

    def _kernel(self, names: Mapping[str, Any], spilled: float) -> WgmmaKernel:
        problem = self._setting.problem
        keys, warpgroups = int(names["BLOCK_N"]), int(names["WARPS_M"]) // 4
        tile = Tile(
            keys=keys,
            head_dim=problem.head_dim,
            polynomial=int(names["EXP2_POLY"]),
            q_in_registers=False,
            softcap=problem.softcap > 0,
            spilled=spilled,
            masked_share=float(masked_share(problem, keys)),
        )
        return WgmmaKernel(
            warpgroups=warpgroups,
            groups=int(names["WARPS_N"]),
            tile=tile,
            stages_k=int(names["STAGES_K"]),
            stages_v=int(names["STAGES_V"]),
            overlap=bool(names["OVERLAP"]),
            exp_with_pv=bool(names["EXP_WITH_PV"]),
            pv_keys=int(names["PV_KEYS"]),
            peeled=bool(names["PEEL_FIRST"]),
            masked=masked_tiles(problem, keys, warpgroups, packed_heads(problem, names)),
            direct=names.get("EPILOGUE") == "direct" and int(names["WARPS_N"]) == 1,
        )


SIMULATION: Final = WgmmaSimulation
