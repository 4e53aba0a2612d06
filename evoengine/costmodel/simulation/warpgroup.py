"""Work of a warpgroup on one tile of scores, in clocks of each pipe: products, softmax, rescale.

A warpgroup has one warp on each scheduler, so the clocks of a scheduler for one of its warps are those of the SM for
the warpgroup. Rates come from the data sheet (:mod:`evoengine.target`); the counts follow from the templates, the
constants from the sources that :class:`SimulationConstants` names.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Final

from evoengine.costmodel.simulation.machine import Job, Resource, Run, job
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
    maxima_latency: float = 100.0
    """Dependent steps of the row maxima: shuffles, first exponential."""
    product_latency: float = 30.0
    """From the end of a product to the first instruction that reads it, and the fence before a product."""
    sync: float = 40.0
    """A wait at a barrier that is complete, or the wake-up at its end."""
    copy_latency: float = 650.0
    """A bulk copy of no bytes from L2, with its barrier."""
    l2_share: float = 0.9
    """Share of the data sheet's L2 bandwidth that copies reach."""
    start: float = 600.0
    """Start of a CTA until its first copy is issued."""
    stagger: float = 200.0
    """Time between the starts of two CTAs of an SM."""
    tile_instructions: float = 120.0
    """Loop, waits, descriptors, releases: instructions per tile and warp."""
    end_latency: float = 350.0
    """Dependent steps at the end of a piece of work: sums, reciprocal, stores to shared memory, barriers."""
    merge_latency: float = 400.0
    """Dependent steps of the merge of key groups, thread to thread."""
    merge_by_rows: float = 2.0
    """Ratio of the latency of a merge row by row to that."""
    eldest: float = 1.0
    issue: float = 1.6
    lines: float = 0.5
    fma_per_clk: float = 60.0
    alu_per_clk: float = 58.0
    tensor: float = 0.8
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


@dataclass(frozen=True)
class Instructions:
    """Instructions of a warp by pipe."""

    fma: float = 0.0
    alu: float = 0.0
    mufu: float = 0.0
    convert: float = 0.0
    other: float = 0.0

    def __add__(self, more: Instructions) -> Instructions:
        return Instructions(
            self.fma + more.fma,
            self.alu + more.alu,
            self.mufu + more.mufu,
            self.convert + more.convert,
            self.other + more.other,
        )


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
        return job(0.0, tensor=flops / rate, shared=lines * self._constants.lines)

    def _instructions(
        self, latency: float, *, fma: float = 0.0, alu: float = 0.0, mufu: float = 0.0, convert: float = 0.0, other: float = 0.0
    ) -> Job:
        """Makes a job from warp instructions by pipe."""
        constants = self._constants
        issue = (fma + alu + mufu + convert + other) * self._scale * constants.issue
        if os.environ.get("CVT"):
            extra, convert = convert, 0.0
        else:
            extra = 0.0
        return job(
            latency,
            constants.pace,
            issue=issue,
            fma=fma * self._scale * self._clocks(constants.fma_per_clk),
            alu=alu * self._scale * self._clocks(constants.alu_per_clk),
            mufu=mufu * self._clocks(self._target.mufu_per_clk_per_sm) + extra * self._clocks(constants.convert_per_clk),
            convert=convert * self._clocks(constants.convert_per_clk),
        )

    def _clocks(self, lanes: float) -> float:
        """Clocks of a warp instruction on a pipe with that many lanes per SM."""
        return WARP * self._target.schedulers_per_sm / lanes

    def maxima(self, *, masked: bool = False) -> Job:
        """Row maxima, with the mask or the softcap of the tile; instructions of the loop are counted here."""
        scores, constants = self._scores, self._constants
        alu = scores * (4 if masked else 1)
        fma, mufu = (3 * scores, 2 * scores) if self._tile.softcap else (0.0, 0.0)
        return self._instructions(constants.maxima_latency, alu=alu, fma=fma, mufu=mufu, other=constants.tile_instructions)

    def exponentials(self, keys: int | None = None) -> Instructions:
        """P = 2^(S · scale - maximum) and its row sums, for some keys or all of the tile."""
        scores = self._scores if keys is None else keys / 2
        polynomial = scores * self._tile.polynomial / 100
        return Instructions(fma=2 * scores + 7 * polynomial, alu=2 * polynomial, mufu=scores - polynomial)

    def pack(self, keys: int | None = None) -> Instructions:
        """P as operands of 16 bits."""
        return Instructions(convert=(self._scores if keys is None else keys / 2) / 2)

    def rescale(self, *, lazy: bool) -> Instructions:
        """O scaled down to a raised maximum; a lazy rescale is only a vote."""
        return Instructions(fma=0.0 if lazy else self._tile.head_dim / 2, other=8)

    def run(self, *parts: Instructions) -> Run:
        """Executes instructions that the compiler interleaves."""
        total = sum(parts, Instructions())
        spills = self._tile.spilled
        return Run(self._instructions(20.0 + spills * 20, fma=total.fma, alu=total.alu, mufu=total.mufu, convert=total.convert, other=total.other + spills))

    def end(self) -> Job:
        """O normalised, converted and stored to shared memory."""
        pairs = self._tile.head_dim / 4
        return self._instructions(self._constants.end_latency, fma=2 * pairs, convert=pairs, other=pairs + 100)

    def copies(self, copied_bytes: float) -> Job:
        """Instructions of a warpgroup that start asynchronous copies of 16 bytes a lane (cp.async)."""
        executed = copied_bytes / 16 / (WARPS * WARP)  # by each warp
        lines = copied_bytes / self._target.smem_bytes_per_clk_per_sm
        return job(10.0, self._constants.pace, issue=self._scale * executed * COPY_INSTRUCTIONS, shared=lines)

    def leave_partial(self, groups: int) -> Job:
        """O of a key group stored to shared memory for the others."""
        values = self._tile.head_dim / 2
        stored = ROWS * self._tile.head_dim * 4 / self._target.smem_bytes_per_clk_per_sm
        return self._combined(self._instructions(200.0, other=values), stored * (groups - 1) / groups)

    def merge(self, groups: int, *, by_threads: bool) -> Job:
        """The partial results of all key groups read and added, by each warpgroup for its share of O."""
        values = self._tile.head_dim / 2
        read = ROWS * self._tile.head_dim * 4 / self._target.smem_bytes_per_clk_per_sm
        latency = self._constants.merge_latency * (1.0 if by_threads else self._constants.merge_by_rows)
        return self._combined(self._instructions(latency, fma=values, other=values + 50), read)

    def _combined(self, work: Job, lines: float) -> Job:
        return replace(work, shares=(*work.shares, (int(Resource.SHARED), lines / work.alone)))
