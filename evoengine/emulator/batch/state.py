"""State of the CTAs of a batch apart from their memory: threads, asynchronous operations, barriers and the checks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, restricted
from evoengine.emulator.batch.async_copy import AsyncCopies
from evoengine.emulator.batch.barrier_votes import BarrierVotes
from evoengine.emulator.batch.bulk_copies import BulkCopies
from evoengine.emulator.batch.mbarriers import Mbarriers, Uses
from evoengine.emulator.batch.operand_reads import OperandReads
from evoengine.emulator.batch.register_pool import RegisterPool
from evoengine.emulator.batch.shared_memory import SharedMemory
from evoengine.emulator.batch.special_registers import LaunchShape, SpecialRegisters
from evoengine.emulator.checks.async_guard import AsyncGuard
from evoengine.emulator.checks.lane_order import LaneOrder
from evoengine.emulator.checks.publication import PublicationCheck
from evoengine.emulator.checks.race_observer import RaceObserver
from evoengine.emulator.faults import FaultKind, SiteFault

Target = int | tuple[Any, ...]
"""How lanes leave a block: the next block, ``(target, lanes, follower)``, or a barrier, switch or suspend tuple."""
JointClocks = tuple[Array | None, Array | None]
"""Joint clocks of lanes for the race observer and for the order of lanes, ``[ctas, agents]``."""


@dataclass(frozen=True)
class AsyncSettings:
    """How a batch executes asynchronous operations."""

    guarded: bool
    """Whether the kernel has operations of the async proxy, with which writes to shared memory may conflict."""
    overwrites: bool
    """Whether bulk copies are among them, which may overwrite what threads have read."""
    late: bool
    """Whether asynchronous operations execute as late as possible."""
    registers: int | None
    """Registers per thread at the launch, which ``setmaxnreg`` redistributes; None for any number."""


@dataclass(frozen=True)
class BatchChecks:
    """Checks of a batch; None skips one."""

    races: Callable[[int, int, int], RaceObserver] | None
    """Factory of a race observer from CTAs, threads and shared bytes."""
    publication: PublicationCheck | None
    """Check of the order of accesses to global memory, one for the whole launch."""
    lanes: Callable[[int, int, int], LaneOrder] | None
    """Factory of a check of the order between lanes of a warp, with the same arguments as that of races."""


class BatchState(SpecialRegisters):
    """State of the CTAs that run together, except registers and the contents of local and global memory.

    Masks are bool arrays that broadcast to ``[ctas, threads]``; None stands for all lanes. ``site`` is the index of the
    executing instruction in its entry.

    Args:
        shape: Sizes of the launch.
        params: Parameter block of the launch.
        ctas: Linear CTA numbers of the batch.
        checks: Checks of the batch.
        asynchrony: Settings of asynchronous operations.
    """

    def __init__(
        self, shape: LaunchShape, params: bytes, ctas: Array, checks: BatchChecks, asynchrony: AsyncSettings
    ) -> None:
        super().__init__(shape, params, ctas)
        smem_bytes, races, lanes = shape.smem_bytes, checks.races, checks.lanes
        self.publication = checks.publication
        watched = races is not None and self.warps > 1
        self.races = races(self.ctas, self.threads, smem_bytes) if races and watched else None
        sizes, overwritten = (self.ctas, smem_bytes, self.threads), asynchrony.overwrites
        guard = AsyncGuard(*sizes, overwritten=overwritten) if asynchrony.guarded else None
        self.shared = SharedMemory(self.ctas, smem_bytes, self.threads, self.races, guard)
        self.shared.lane_order = lanes(self.ctas, self.threads, smem_bytes) if lanes else None
        self._asynchrony = asynchrony
        given = asynchrony.registers
        self.registers = RegisterPool(self.ctas, self.warps, given) if given is not None else None
        self.copies = AsyncCopies(self.shared)
        self.alive = np.broadcast_to(
            np.arange(self.threads)[None, :] < self.real_threads, (self.ctas, self.threads)
        ).copy()
        self.all_lanes = np.ones((1, 1), np.bool_)
        self.split_barriers: dict[int, Array] = {}
        """By member mask: how often each lane has executed a ``bar.warp.sync`` without all lanes of the mask."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the batch to some of the CTAs, without changing state shared with a shallow copy of it."""
        if "votes" in self.__dict__:
            self.votes = restricted(self.votes, rows)
        super().restrict(rows)
        self.races = restricted(self.races, rows) if self.races is not None else None
        self.shared = restricted(self.shared, rows)
        self.shared.races = self.races
        self.copies = copy.copy(self.copies)
        self.copies.restrict(rows, self.shared)
        self._restrict_asynchronous(rows)
        self.alive = self.alive[rows]
        self.split_barriers = {members: count[rows] for members, count in self.split_barriers.items()}

    def _restrict_asynchronous(self, rows: CtaRows) -> None:
        if "operands" in self.__dict__:
            self.operands = copy.copy(self.operands)
            self.operands.restrict(rows, self.shared)
        if "mbarriers" in self.__dict__:
            self.mbarriers = copy.copy(self.mbarriers)
            self.mbarriers.restrict(rows, self.shared)
        if "bulk" in self.__dict__:
            self.bulk = copy.copy(self.bulk)
            self.bulk.restrict(rows, self.shared, self.mbarriers)
        if self.registers is not None:
            self.registers = restricted(self.registers, rows)

    # --- asynchronous operations --------------------------------------------------------------------------------

    @functools.cached_property
    def operands(self) -> OperandReads:
        return OperandReads(self.shared)

    @functools.cached_property
    def mbarriers(self) -> Mbarriers:
        return Mbarriers(self.shared)

    @functools.cached_property
    def bulk(self) -> BulkCopies:
        return BulkCopies(self.shared, self.mbarriers, late=self._asynchrony.late)

    @property
    def has_bulk_copies(self) -> bool:
        return "bulk" in self.__dict__

    def lanes(self, mask: Array | None) -> Array:
        """The active lanes that have not exited, bool ``[ctas, threads]``."""
        return self.alive if mask is None else np.broadcast_to(mask, self.alive.shape) & self.alive

    def observe(self, uses: Uses, target: Array) -> None:
        """Records that threads have seen the completion of mbarrier phases, and so acquired what was released there."""
        if not uses.lanes.size:
            return
        self.mbarriers.observe(uses, target)
        self.bulk.forget_observed()
        if self.publication is not None:
            seen = np.zeros_like(self.alive)
            seen[uses.ctas, uses.lanes] = True
            self.publication.shared_atomic(self.cta_numbers, seen)

    def proxy_fence(self, mask: Array | None, space: str | None) -> None:
        """Executes ``fence.proxy.async`` for a space, ``shared`` or ``global``; None for both."""
        if space != "shared" and self.publication is not None:
            self.publication.proxy_fence(self.cta_numbers, mask)
        if space != "global" and self.shared.guard is not None:
            fenced = self.shared.guard.fence(mask)
            self.mbarriers.fence(mask)
            if self.races is not None and self._asynchrony.overwrites:
                self.races.fence(mask, fenced)

    def release_registers(self, count: int, mask: Array | None, site: int) -> None:
        """Executes ``setmaxnreg.dec``."""
        if self.registers is not None:
            active = self.lanes(mask)
            self.registers.check(count, active, site, increases=False)
            self.registers.release(count, active)

    # --- control ------------------------------------------------------------------------------------------------

    @staticmethod
    def branch(lanes: Array, mask: Array | None, target: int, follower: int) -> Target:
        """Continuation of the masked lanes after a conditional branch: one block, or ``(target, lanes, follower)``."""
        if mask is not None:
            on = lanes & mask
            if not on.any():
                return follower
            return (target, lanes, follower) if (~lanes & mask).any() else target
        if lanes.size == 1:
            return target if lanes[0, 0] else follower
        if lanes.all():
            return target
        return (target, lanes, follower) if lanes.any() else follower

    def active(self, mask: Array | None) -> Array:
        """The mask as an array; ``[[True]]`` for None."""
        return self.all_lanes if mask is None else mask

    def record_barrier(
        self, number: int, lanes: Array | None, arrived: Array | None = None, clocks: JointClocks = (None, None)
    ) -> None:
        """Records that the masked lanes have synchronised at one barrier of their CTA.

        Args:
            number: Number of the barrier.
            lanes: Lanes that have waited at the barrier.
            arrived: Lanes that have only arrived, bool ``[ctas, threads]``; None without any.
            clocks: Joint clocks of the latter.
        """
        if self.races is not None:
            self.races.barrier(lanes, clocks[0])
        if self.shared.lane_order is not None:
            self.shared.lane_order.barrier(lanes, clocks[1], number)
        if self.publication is not None:
            together = lanes if lanes is None or arrived is None else lanes | arrived
            self.publication.barrier(self.cta_numbers, together)

    def warp_barrier(self, mask: Array | None) -> None:
        """Records that the masked lanes have passed a barrier of their warps."""
        if self.shared.lane_order is not None:
            self.shared.lane_order.warp_barrier(mask)

    def part_barrier(self, lanes: Array, named: Array) -> None:
        """Records a barrier of parts of warps; see :meth:`LaneOrder.part_barrier`."""
        if self.shared.lane_order is not None and lanes.any():
            self.shared.lane_order.part_barrier(lanes, named)

    def converge(self, mask: Array | None) -> None:
        """Records that the masked lanes have come to an instruction of their whole warps."""
        if self.races is not None:
            self.races.converge(mask)

    def fence(self, mask: Array | None) -> None:
        """Executes a fence of at least GPU scope: memory operations are in order already, so it is only recorded."""
        if self.publication is not None:
            self.publication.fence(self.cta_numbers, mask)

    def record_block(self, block: int, mask: Array | None, result: Target) -> None:
        """Records that the masked lanes have run a block; a hook for batches that count."""

    def record_tile_access(
        self, space: str, address: Array, pitch: Array, size: int, mask: Array | None, site: int, what: str
    ) -> None:
        """Records a ``wmma`` tile access; a hook for batches that count.

        ``what`` is ``operand`` for a load of A or B, and ``load`` or ``store`` for an accumulator.
        """

    @functools.cached_property
    def votes(self) -> BarrierVotes:
        return BarrierVotes(self.ctas, self.threads)

    def trap(self, mask: Array | None, site: int) -> None:
        """Executes ``trap``: raises :class:`SiteFault` for the first active lane."""
        active = self.alive if mask is None else np.broadcast_to(mask, self.alive.shape)
        if active.any():
            cta, lane = np.unravel_index(int(active.argmax()), active.shape)
            raise SiteFault(FaultKind.TRAP, "the kernel executed a trap", site, int(cta), int(lane))

    def jump_index(self, index: Array, count: int, mask: Array | None, site: int) -> None:
        """Checks the index of ``brx``: raises :class:`SiteFault` for the first lane whose index has no target."""
        outside = self.lanes(mask) & (index >= count)
        if outside.any():
            cta, lane = np.unravel_index(int(outside.argmax()), outside.shape)
            detail = f"brx.idx {np.broadcast_to(index, outside.shape)[cta, lane]} of {count} targets"
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(lane))

    def lane_count(self, mask: Array | None) -> int:
        """Number of active lanes."""
        total = self.ctas * self.threads
        return total if mask is None else int(np.count_nonzero(mask)) * total // mask.size
