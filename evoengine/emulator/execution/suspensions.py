"""Lanes that wait for something other than a barrier: an mbarrier phase, registers, or an asynchronous operation.

The records of these waits are those of :mod:`evoengine.emulator.instructions.waits`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.batch.mbarriers import Uses
from evoengine.emulator.instructions.bulk_copy import execute_late_loads, wait_bulk
from evoengine.emulator.instructions.waits import GroupWait, PhaseWait, RegisterWait, Wait


@dataclass(frozen=True)
class _Suspended:
    """Lanes that wait at one instruction."""

    wait: Wait
    lanes: Array
    """bool ``[ctas, threads]``."""
    follower: int
    site: int
    uses: Uses | None
    """Waiting threads of a :class:`PhaseWait`."""
    target: Array | None
    """Phase of each."""


class Suspensions:
    """Suspended lanes of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._suspended: list[_Suspended] = []
        self._positions: Array | None = None
        """Last result of :meth:`positions`; None after a change."""

    def __bool__(self) -> bool:
        return bool(self._suspended)

    def add(self, wait: Wait, lanes: Array, follower: int, site: int) -> None:
        """Suspends lanes, which :meth:`released` may release at once."""
        x = self._batch
        uses = target = None
        if isinstance(wait, PhaseWait):
            uses = x.mbarriers.uses(wait.address, lanes, site)
            target = x.mbarriers.target(uses, wait.token, lanes, parity=wait.parity)
        elif isinstance(wait, RegisterWait) and x.registers is not None:
            x.registers.check(wait.count, lanes, site, increases=True)
        self._suspended.append(_Suspended(wait, lanes, follower, site, uses, target))
        self._positions = None

    def released(self) -> list[tuple[int, Array]]:
        """Removes the lanes whose wait is over; returns them with the block that they continue at."""
        moves, kept = [], []
        for one in self._suspended:
            lanes = self._passing(one)
            if lanes is None or not lanes.any():
                kept.append(one)
                continue
            moves.append((one.follower, lanes))
            if not lanes[one.lanes].all():
                rest = one.lanes & ~lanes
                keep = rest[one.uses.ctas, one.uses.lanes] if one.uses is not None else None
                kept.append(
                    replace(
                        one,
                        lanes=rest,
                        uses=None if one.uses is None or keep is None else one.uses.only(keep),
                        target=None if one.target is None or keep is None else one.target[keep],
                    )
                )
        self._suspended = kept
        if moves:
            self._positions = None
        return moves

    def _passing(self, one: _Suspended) -> Array | None:
        x = self._batch
        if isinstance(one.wait, RegisterWait):
            return one.lanes if x.registers is None else x.registers.take(one.wait.count, one.lanes)
        if one.uses is None or one.target is None:
            return None
        done = x.mbarriers.is_complete(one.uses, one.target)
        if not done.any():
            return None
        uses = one.uses.only(done)
        x.observe(uses, one.target[done])
        lanes = np.zeros_like(one.lanes)
        lanes[uses.ctas, uses.lanes] = True
        return lanes

    def advance(self) -> list[tuple[int, Array]]:
        """Executes late operations that lanes wait for, when nothing else can run; returns the lanes that continue."""
        x = self._batch
        waiting = [one.uses for one in self._suspended if one.uses is not None]
        while waiting and execute_late_loads(x, waiting):
            if moves := self.released():
                return moves
        moves, kept = [], []
        for one in self._suspended:
            if not isinstance(one.wait, GroupWait):
                kept.append(one)
                continue
            if one.wait.wgmma:
                x.operands.wait(one.wait.newest, one.lanes)
            else:
                wait_bulk(x, one.wait.newest, one.wait.read_only, one.lanes)
            moves.append((one.follower, one.lanes))
        self._suspended, self._positions = kept, None
        return moves

    def positions(self) -> Array:
        """Lowest block that a suspended lane of each warp continues at, ``[ctas, warps]``; very high without any."""
        if self._positions is not None:
            return self._positions
        x = self._batch
        lowest = np.full((x.ctas, x.warps), np.iinfo(np.int64).max)
        for one in self._suspended:
            present = one.lanes.reshape(x.ctas, x.warps, 32).any(axis=2)
            lowest = np.where(present, np.minimum(lowest, one.follower), lowest)
        self._positions = lowest
        return lowest

    def first(self) -> tuple[int, int, int]:
        """Instruction, CTA and lane of one suspended thread."""
        one = self._suspended[0]
        cta, lane = np.unravel_index(int(one.lanes.argmax()), one.lanes.shape)
        return one.site, int(cta), int(lane)

    def describe(self, cta: int) -> list[tuple[int, str]]:
        """Waits of the suspended lanes of a CTA: index of the instruction and description."""
        found = []
        for one in self._suspended:
            if not one.lanes[cta].any():
                continue
            if isinstance(one.wait, RegisterWait):
                text = f"{_warps(one.lanes[cta])} at setmaxnreg.inc to {one.wait.count}"
                if self._batch.registers is not None:
                    text += f", {self._batch.registers.describe(cta)}"
                found.append((one.site, text))
                continue
            assert one.uses is not None
            mine = one.uses.ctas == cta
            for slot in np.unique(one.uses.slots[mine]).tolist():
                lanes = np.zeros_like(one.lanes[cta])
                lanes[one.uses.lanes[mine & (one.uses.slots == slot)]] = True
                found.append((one.site, f"{_warps(lanes)} at {self._batch.mbarriers.describe(cta, slot)}"))
        return found


def _warps(lanes: Array) -> str:
    return f"warps {sorted({int(lane) // 32 for lane in np.flatnonzero(lanes)})}"
