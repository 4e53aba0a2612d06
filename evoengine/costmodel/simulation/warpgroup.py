"""Work of a warpgroup on one tile of scores: the products, the softmax, the rescale, the end of a piece of work.

A warpgroup has one warp on each scheduler, so the clocks of a scheduler for one of its warps are those of the SM for
the warpgroup. Rates come from the data sheet (:mod:`evoengine.target`), counts of instructions from the templates.

The constants were fitted to samples of the families ``hopper`` and ``wgmma`` on an H200, and again, where copies arrive
in order, on an H100 and an H200; those of copies by threads, of direct stores and of the merge on ``wgmma`` alone.
docs/results/latency-model-hopper.md judges the first fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from evoengine.costmodel.simulation.machine import Job, Run, make_job
from evoengine.kernel.resources import WARP
from evoengine.target import Target

ROWS: Final = 64
"""Query rows of a warpgroup."""
WARPS: Final = 4
"""Warps of a warpgroup, one on each scheduler."""
_STEP: Final = 16
"""Depth of one wgmma."""
_POLYNOMIAL: Final = 9
"""Instructions of an exponential by polynomial, without its scaling and its sum."""
_MASK: Final = 2
"""Instructions per score that a mask examines: a comparison, or its share of a word of bits, and a select."""
_SOFTCAP: Final = 5


@dataclass(frozen=True)
class SimulationConstants:
    """Constants that no data sheet states, in core clocks unless the name states a unit; fitted, see the module."""

    issue: float = 1.4
    """Time of a scheduler for one instruction."""
    product_issue: float = 1.0
    """Share of a scheduler that a running product takes. At 1, instructions and products hardly overlap: both use the
    register ports, and a busy SM is held back by its power limit; the measurements do not separate the two causes."""
    convert_per_clk: float = 18.0
    """Conversions of two f32 to 16 bits per SM and clock, on the pipe of the special functions: measured on an H200."""
    tile_instructions: float = 61.0
    """Instructions of the loop over tiles, per tile: waits, descriptors, releases, branches."""
    maxima_latency: float = 22.0
    """Dependent steps of the row maxima that nothing hides."""
    product_latency: float = 70.0
    """From the end of a product to the first instruction that reads it."""
    sync: float = 230.0
    """Wake-up from an mbarrier, and what precedes a product: fences, descriptors."""
    copy_latency: float = 520.0
    """Bulk copy of no bytes from L2 to shared memory, until its mbarrier completes."""
    l2_share: float = 1.2
    """Ratio of the L2 bandwidth that copies reach to the estimate in the data sheet."""
    start: float = 970.0
    """Start of a CTA until its first copy is issued."""
    end_latency: float = 545.0
    """Dependent steps at the end of a piece of work: sums, reciprocals, stores to shared memory, barriers."""
    stagger: float = 200.0
    """Time between the starts of two CTAs of an SM; not fitted."""
    fetch: float = 0.549
    """Fetch of one instruction that an SM executes for the first time; see :mod:`evoengine.costmodel.latency`."""
    load_instructions: float = 26.0
    """Copies by threads (cp.async): instruction slots for one, address and path to global memory included."""
    load_latency: float = 140.0
    """Copy of no bytes by threads, beside the barrier that follows."""
    load_sync: float = 240.0
    """Barrier of a key group, with the wait for copies by threads and the fences around it."""
    direct_store: float = 30.0
    """Store of a fragment of O from registers to global memory."""
    exchange_latency: float = 700.0
    """Barrier of all consumers and dependent steps around the merge of key groups in ``hopper``."""
    merge_latency: float = 100.0
    """Dependent steps of the merge of key groups."""
    split_merge: float = 4600.0
    """Partial results of CTAs that share keys, through L2: left and counted. This, the next two and ``share_start``
    were fitted on kernels with splits or a shared last round, after the other constants."""
    split_wait: float = 1150.0
    """Dependent read of partial results of several splits and rows, and their merge."""
    split_line: float = 1.5
    """64 bytes of the partial results that one CTA merges."""
    share_start: float = 1670.0
    """Time that a shared last round adds to a CTA, merged or not: probably divisions by which it finds its share."""
    spilled_word: float = 4.6
    """Store and load of one spilled register."""


SIMULATION_FITTED: Final = SimulationConstants()


@dataclass(frozen=True)
class Tile:
    """Properties that determine the work of a warpgroup on a tile."""

    keys: int
    head_dim: int
    polynomial: int
    """Percent of the exponentials that the FMA pipe computes."""
    q_in_registers: bool
    softcap: bool
    spilled: float = 0.0
    """Spilled registers per thread."""
    masked_share: float = 1.0
    """Share of the scores that a mask examines, in a tile that it crosses."""


@dataclass(frozen=True)
class Instructions:
    """Instructions of a warp."""

    plain: float = 0.0
    mufu: float = 0.0
    converts: float = 0.0

    def __add__(self, more: Instructions) -> Instructions:
        return Instructions(self.plain + more.plain, self.mufu + more.mufu, self.converts + more.converts)


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
        self._scores = tile.keys / 2  # of a lane

    def scores(self) -> Job:
        """S = Q Kᵀ."""
        tile = self._tile
        operands = tile.keys + (0 if tile.q_in_registers else ROWS)
        return self._wgmma(math.ceil(tile.head_dim / _STEP), tile.keys, operands)

    def values(self, keys: int | None = None) -> Job:
        """O += P V for some keys, or all of the tile."""
        tile = self._tile
        return self._wgmma(math.ceil((keys or tile.keys) / _STEP), tile.head_dim, tile.head_dim)

    def _wgmma(self, steps: int, columns: int, operand_rows: int) -> Job:
        """Product of 64 rows; ``operand_rows`` of each step are read from shared memory."""
        target = self._target
        tensor = 2 * ROWS * columns * _STEP * steps / target.tensor_flops_per_clk_per_sm
        lines = operand_rows * _STEP * 2 * steps / target.smem_bytes_per_clk_per_sm
        return make_job(tensor=tensor, shared=lines, issue=tensor * self._constants.product_issue)

    def maxima(self, *, masked: bool = False) -> Run:
        """Highest scores, two an instruction, with mask and softcap; the instructions of the loop are counted here."""
        plain = self._scores * (0.5 + _MASK * self._tile.masked_share * masked + _SOFTCAP * self._tile.softcap)
        mufu = 2 * self._scores * self._tile.softcap
        return self._run(self._constants.maxima_latency, Instructions(plain + self._constants.tile_instructions, mufu))

    def exponentials(self, keys: float | None = None) -> Instructions:
        """P = 2^(S · scale - maximum) and its row sums, for some keys or all of the tile."""
        scores = self._scores if keys is None else keys / 2
        polynomial = scores * self._tile.polynomial / 100
        return Instructions(2 * scores + _POLYNOMIAL * polynomial, scores - polynomial)

    def pack(self, keys: int | None = None) -> Instructions:
        """P as operands of 16 bits."""
        return Instructions(converts=(self._scores if keys is None else keys / 2) / 2)

    def run(self, *parts: Instructions) -> Run:
        """Executes instructions that the compiler interleaves; spilled registers are loaded in between."""
        spilled = self._tile.spilled
        return self._run(self._constants.spilled_word * spilled, sum(parts, Instructions()))

    def end(self, *, direct: bool = False) -> Run:
        """O normalised, converted and stored to shared memory, or ``direct`` from the fragments to global memory.

        A store of a fragment touches eight rows, a sector of each.
        """
        pairs = self._tile.head_dim / 4
        stored = direct * pairs * self._constants.direct_store
        return self._run(self._constants.end_latency + stored, Instructions(3 * pairs + 100, 0.0, pairs))

    def copies(self, copied_bytes: float) -> Run:
        """Starts copies of 16 bytes a lane (cp.async)."""
        executed = copied_bytes / 16 / (WARPS * WARP)  # by each warp
        return self._run(0.0, Instructions(executed * self._constants.load_instructions), copied_bytes)

    def leave_partial(self, groups: int) -> Run:
        """Stores the part of O that other key groups end, to shared memory."""
        values = self._tile.head_dim / 2 * (groups - 1) / groups
        return self._run(self._constants.merge_latency / 2, Instructions(values), values * WARPS * WARP * 4)

    def merge(self) -> Run:
        """Reads the parts of the key groups and adds them, each warpgroup a share of O."""
        values = self._tile.head_dim / 2
        return self._run(self._constants.merge_latency, Instructions(2 * values + 50), values * WARPS * WARP * 4)

    def _run(self, latency: float, executed: Instructions, shared_bytes: float = 0.0) -> Run:
        constants, target = self._constants, self._target
        lanes = WARP * target.schedulers_per_sm
        total = executed.plain + executed.mufu + executed.converts
        mufu = executed.mufu / target.mufu_per_clk_per_sm + executed.converts / constants.convert_per_clk
        return Run(
            make_job(
                latency,
                issue=total * self._scale * constants.issue,
                mufu=mufu * lanes,
                shared=shared_bytes / target.smem_bytes_per_clk_per_sm,
            )
        )
