"""Work of a warpgroup on one tile of scores, in clocks of each pipe: products, softmax, rescale.

A warpgroup has one warp on each scheduler, so the clocks of a scheduler for one of its warps are those of the SM for
the warpgroup. Rates come from the data sheet (:mod:`evoengine.target`); the counts follow from the templates, the
constants from the sources that :class:`SimulationConstants` names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from evoengine.costmodel.simulation.machine import Job, Resource, job
from evoengine.kernel.resources import WARP
from evoengine.target import Target

ROWS: Final = 64
"""Query rows of a warpgroup."""
WARPS: Final = 4
"""Warps of a warpgroup, one on each scheduler."""
COPY_INSTRUCTIONS: Final = 7
"""Instructions for one cp.async: address, predicate, copy."""
_STEP: Final = 16
"""Depth of one wgmma."""


@dataclass(frozen=True)
class SimulationConstants:
    """Constants that no data sheet states, in core clocks unless the name says otherwise."""

    pace: float = 1.25
    """Clocks between two instructions of a warp that has its scheduler for itself."""
    convert_per_clk: float = 18.0
    """Conversions of two f32 to a pair of 16-bit floats, per SM and clock."""
    maxima_latency: float = 150.0
    """Dependent steps of the row maxima: shuffles, first exponential."""
    product_latency: float = 60.0
    """From the end of a product to the first instruction that reads it, and the fence before a product."""
    sync: float = 40.0
    """A wait at a barrier that is complete, or the wake-up at its end."""
    copy_latency: float = 900.0
    """A bulk copy of no bytes from L2, with its barrier."""
    l2_share: float = 1.0
    """Share of the data sheet's L2 bandwidth that copies reach."""
    start: float = 1500.0
    """Start of a CTA until its first copy is issued."""
    stagger: float = 200.0
    """Time between the starts of two CTAs of an SM."""
    tile_instructions: float = 60.0
    """Loop, waits, descriptors, releases: instructions per tile and warp."""
    end_latency: float = 600.0
    """Dependent steps at the end of a piece of work: sums, reciprocal, stores to shared memory, barriers."""
    merge_latency: float = 400.0
    """Dependent steps of the merge of key groups, thread to thread."""
    merge_by_rows: float = 2.0
    """Ratio of the latency of a merge row by row to that."""
    tensor: float = 1.0
    """Share of the tensor peak that products reach."""


SIMULATION_FITTED: Final = SimulationConstants()


@dataclass(frozen=True)
class Tile:
    """What determines the work of a warpgroup on a tile."""

    keys: int
    head_dim: int
    polynomial: int
    """Percent of the exponentials that the FMA pipe computes."""
    q_in_registers: bool
    softcap: bool
    spilled: float = 0.0
    """Spilled registers per thread."""


class WarpgroupWork:
    """Jobs of one warpgroup for a tile.

    Args:
        tile: Tile and the way it is computed.
        target: Data sheet.
        constants: Constants of the simulation.
        scale: Factor on the number of instructions, for executed kernels.
    """

    def __init__(self, tile: Tile, target: Target, constants: SimulationConstants, scale: float = 1.0) -> None:
        self._tile = tile
        self._target = target
        self._constants = constants
        self._scale = scale
        self._scores = tile.keys / 2  # per lane
        self.product = constants.product_latency

    def scores(self) -> Job:
        """S = Q Kᵀ."""
        tile = self._tile
        steps = math.ceil(tile.head_dim / _STEP)
        operands = tile.keys + (0 if tile.q_in_registers else ROWS)
        return self._wgmma(steps, tile.keys, operands)

    def values(self, keys: int | None = None) -> Job:
        """O += P V over some keys, or all of the tile."""
        tile = self._tile
        return self._wgmma(math.ceil((keys or tile.keys) / _STEP), tile.head_dim, tile.head_dim)

    def _wgmma(self, steps: int, columns: int, operand_rows: int) -> Job:
        flops = 2 * ROWS * columns * _STEP * steps
        lines = operand_rows * _STEP * 2 * steps / self._target.smem_bytes_per_clk_per_sm
        rate = self._target.tensor_flops_per_clk_per_sm * self._constants.tensor
        return job(0.0, tensor=flops / rate, shared=lines)

    def _instructions(self, latency: float, issue: float, mufu: float = 0.0, alu: float = 0.0) -> Job:
        issue *= self._scale
        return job(latency, self._constants.pace, issue=issue, mufu=mufu, alu=alu * self._scale)

    def _mufu_clocks(self, executed: float) -> float:
        return executed * WARP * self._target.schedulers_per_sm / self._target.mufu_per_clk_per_sm

    def _alu_clocks(self, executed: float) -> float:
        return executed * WARP * self._target.schedulers_per_sm / self._target.int32_lanes_per_sm

    def _converted(self, pairs: float) -> float:
        return pairs * WARP * self._target.schedulers_per_sm / self._constants.convert_per_clk

    def maxima(self, *, masked: bool = False) -> Job:
        """Row maxima, with the mask or the softcap of the tile; instructions of the loop are counted here."""
        scores, constants = self._scores, self._constants
        issue, alu, mufu = scores + constants.tile_instructions, scores, 0.0
        if masked:
            issue, alu = issue + 3 * scores, alu + 3 * scores
        if self._tile.softcap:
            issue, mufu = issue + 3 * scores, self._mufu_clocks(scores)
        return self._instructions(constants.maxima_latency, issue, mufu, self._alu_clocks(alu))

    def exponentials(self, keys: int | None = None) -> Job:
        """P = 2^(S · scale - maximum) and its row sums, for some keys or all of the tile."""
        scores = self._scores if keys is None else keys / 2
        polynomial = scores * self._tile.polynomial / 100
        issue = 3 * scores + 9 * polynomial
        mufu = self._mufu_clocks(scores - polynomial)
        return self._instructions(20.0, issue, mufu, self._alu_clocks(3 * polynomial))

    def pack(self, keys: int | None = None) -> Job:
        """P as operands of 16 bits."""
        pairs = (self._scores if keys is None else keys / 2) / 2
        return self._instructions(10.0, pairs, self._converted(pairs))

    def rescale(self, *, lazy: bool) -> Job:
        """O scaled down to a raised maximum; a lazy rescale is only a vote."""
        spills = self._tile.spilled * 2
        return self._instructions(10.0 + spills * 20, spills + (8 if lazy else self._tile.head_dim / 2 + 4))

    def end(self) -> Job:
        """O normalised, converted and stored to shared memory."""
        pairs = self._tile.head_dim / 4
        return self._instructions(self._constants.end_latency, 4 * pairs + 100, self._converted(pairs))

    def copies(self, copied_bytes: float) -> Job:
        """Instructions of a warpgroup that start asynchronous copies of 16 bytes a lane (cp.async)."""
        executed = copied_bytes / 16 / (WARPS * WARP)  # by each warp
        lines = copied_bytes / self._target.smem_bytes_per_clk_per_sm
        return job(10.0, self._constants.pace, issue=self._scale * executed * COPY_INSTRUCTIONS, shared=lines)

    def leave_partial(self, groups: int) -> Job:
        """O of a key group stored to shared memory for the others."""
        values = self._tile.head_dim / 2
        stored = ROWS * self._tile.head_dim * 4 / self._target.smem_bytes_per_clk_per_sm
        return self._combined(self._instructions(200.0, values), stored * (groups - 1) / groups)

    def merge(self, groups: int, *, by_threads: bool) -> Job:
        """The partial results of all key groups read and added, by each warpgroup for its share of O."""
        values = self._tile.head_dim / 2
        read = ROWS * self._tile.head_dim * 4 / self._target.smem_bytes_per_clk_per_sm
        latency = self._constants.merge_latency * (1.0 if by_threads else self._constants.merge_by_rows)
        return self._combined(self._instructions(latency, values * 2 + 50), read)

    def _combined(self, work: Job, lines: float) -> Job:
        return replace(work, shares=(*work.shares, (int(Resource.SHARED), lines / work.alone)))
