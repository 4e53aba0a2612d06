"""mbarrier objects: phases with pending arrivals and pending transaction bytes.

A phase is complete when no arrival and no transaction byte is missing; the next one then expects as many arrivals. The
objects are kept apart from shared memory, where their bytes are marked. Source: PTX ISA 9.0, "mbarrier".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count
from evoengine.emulator.batch.shared_memory import MBARRIER, UNWRITTEN, SharedMemory
from evoengine.emulator.faults import FaultKind, SiteFault

SIZE: Final = 8
"""Bytes of an mbarrier object."""
MAX_COUNT: Final = (1 << 20) - 1
"""Largest number of arrivals, and of transaction bytes in either direction."""
_GROWTH: Final = 16
"""Mbarriers for which space is made at a time."""

_FIELDS: Final = ("_valid", "_visible", "_maker", "_expected", "_pending", "_bytes", "_phase", "_observed")


@dataclass(frozen=True)
class Uses:
    """Threads that execute an mbarrier instruction, one element each."""

    ctas: Array
    """Row of the CTA in its batch."""
    lanes: Array
    slots: Array
    """Number of the mbarrier."""
    site: int

    def only(self, keep: Array) -> Uses:
        """The elements that are set in a bool array."""
        return Uses(self.ctas[keep], self.lanes[keep], self.slots[keep], self.site)


class Mbarriers:
    """The mbarriers of one batch.

    Args:
        shared: Shared memory of the batch, whose bytes the objects occupy.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._slots: dict[int, int] = {}
        self._addresses: list[int] = []
        self.changed = False
        """Whether a phase has completed since the executor last looked."""
        shape = (shared.ctas, 0)
        self._valid: Array = np.zeros(shape, np.bool_)
        self._visible: Array = np.zeros(shape, np.bool_)
        """Whether a fence has made the initialised object visible to the async proxy."""
        self._maker: Array = np.zeros(shape, np.int64)
        """Thread that initialised the object."""
        self._expected: Array = np.zeros(shape, np.int64)
        self._pending: Array = np.zeros(shape, np.int64)
        self._bytes: Array = np.zeros(shape, np.int64)
        """Missing transaction bytes of the phase; negative if more have arrived than are expected."""
        self._phase: Array = np.zeros(shape, np.int64)
        """Number of complete phases."""
        self._observed: Array = np.zeros(shape, np.int64)
        """Number of complete phases that a thread has waited for."""
        self._given_up: dict[int, Array] = {}
        """Lanes that have given up at each ``try_wait``, bool ``[ctas, threads]``."""

    def restrict(self, rows: CtaRows, shared: SharedMemory) -> None:
        """Restricts the mbarriers to some of the CTAs, with their shared memory."""
        self._shared = shared
        self._slots, self._addresses = dict(self._slots), list(self._addresses)
        for name in _FIELDS:
            setattr(self, name, getattr(self, name)[rows].copy())
        self._given_up = {site: lanes[rows].copy() for site, lanes in self._given_up.items()}
        assert len(self._phase) == row_count(rows)

    # --- selection ----------------------------------------------------------------------------------------------

    def uses(self, address: Array, active: Array, site: int, *, new: bool = False) -> Uses:
        """The threads that use mbarriers.

        Args:
            address: Shared address per lane.
            active: Active lanes, bool ``[ctas, threads]``.
            site: Index of the instruction.
            new: Whether the objects are about to be initialised.

        Raises:
            SiteFault: An address is misaligned, out of bounds, or not that of an initialised mbarrier.
        """
        index = self._shared.index(address, SIZE, active, site)
        ctas, lanes = np.nonzero(active)
        at = np.broadcast_to(index, active.shape)[ctas, lanes] * SIZE
        if at.size and (at == at[0]).all():  # nearly always; sorting takes longer than the question
            distinct, inverse = at[:1], np.zeros(at.size, np.int64)
        else:
            distinct, inverse = np.unique(at, return_inverse=True)
        known = [self._slots.get(one, -1) for one in distinct.tolist()]
        if new:
            known = [self._add(one) if slot < 0 else slot for one, slot in zip(distinct.tolist(), known, strict=True)]
        slots: Array = np.array(known, np.int64)[inverse.reshape(-1)]
        bad = slots < 0
        if not new and not bad.any():
            bad = ~self._valid[ctas, slots]
        if bad.any():
            first = int(bad.argmax())
            detail = "no mbarrier has been initialised at this address"
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(ctas[first]), int(lanes[first]), int(at[first]))
        if self._shared.races is not None and not new:
            self._shared.races.touch(index, SIZE, active, site)
        return Uses(ctas, lanes, slots, site)

    def _add(self, address: int) -> int:
        slot = self._slots[address] = len(self._addresses)
        self._addresses.append(address)
        if slot == self._valid.shape[1]:
            for name in _FIELDS:
                setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, _GROWTH))))
        return slot

    # --- operations ---------------------------------------------------------------------------------------------

    def init(self, address: Array, active: Array, count: Array, site: int) -> None:
        """Executes ``mbarrier.init``."""
        uses = self.uses(address, active, site, new=True)
        counts = self._amounts(count, active, uses, "the count of an mbarrier", 1)
        if self._valid[uses.ctas, uses.slots].any():
            self._fail(
                uses, self._valid[uses.ctas, uses.slots], "init of an mbarrier that is in use; invalidate it first"
            )
        self._shared.note_write(self._shared.index(address, SIZE, active, site), SIZE, active, site)
        self._mark(address, active, MBARRIER, site)
        at = uses.ctas, uses.slots
        self._valid[at], self._visible[at], self._maker[at] = True, False, uses.lanes
        self._expected[at] = self._pending[at] = counts
        self._bytes[at] = self._phase[at] = self._observed[at] = 0

    def invalidate(self, address: Array, active: Array, site: int) -> None:
        """Executes ``mbarrier.inval``."""
        uses = self.uses(address, active, site)
        self._valid[uses.ctas, uses.slots] = False
        self._mark(address, active, UNWRITTEN, site)
        self._shared.note_write(self._shared.index(address, SIZE, active, site), SIZE, active, site)

    def _mark(self, address: Array, active: Array, state: int, site: int) -> None:
        self._shared.mark(self._shared.index(address, SIZE, active, site), state, SIZE, active)

    def fence(self, mask: Array | None) -> None:
        """Makes the objects that the active lanes initialised visible to the async proxy."""
        if mask is None:
            self._visible[:] = True
        elif self._addresses:
            lanes = np.broadcast_to(mask, (len(self._maker), self._shared.threads))
            self._visible |= np.take_along_axis(lanes, self._maker, axis=1)

    def require_visible(self, uses: Uses) -> None:
        """Raises :class:`SiteFault` if the async proxy cannot use an mbarrier yet."""
        missing = ~self._visible[uses.ctas, uses.slots]
        if missing.any():
            detail = (
                "bulk copy with an mbarrier whose initialisation is not followed by fence.mbarrier_init or "
                "fence.proxy.async"
            )
            self._fail(uses, missing, detail, FaultKind.MISSING_PROXY_FENCE)

    def expect(self, uses: Uses, count: Array, active: Array, sign: int) -> None:
        """Executes ``expect_tx`` (``sign`` 1) or ``complete_tx`` (-1)."""
        self.transact(uses, sign * self._amounts(count, active, uses, "a transaction count", 0))

    def transact(self, uses: Uses, amounts: Array) -> None:
        """Adds to the missing transaction bytes."""
        at = uses.ctas, uses.slots
        np.add.at(self._bytes, at, amounts)
        over = np.abs(self._bytes[at]) > MAX_COUNT
        if over.any():
            self._fail(uses, over, f"more than {MAX_COUNT} pending transaction bytes at an mbarrier")
        self._advance(uses)

    def expect_arrivals(self, uses: Uses) -> None:
        """Raises the pending count of the current phase by one per thread."""
        at = uses.ctas, uses.slots
        np.add.at(self._pending, at, 1)
        over = self._pending[at] > MAX_COUNT
        if over.any():
            self._fail(uses, over, f"more than {MAX_COUNT} pending arrivals at an mbarrier")

    def drop(self, uses: Uses, counts: Array) -> None:
        """Lowers the number of arrivals that the phases after the current one expect."""
        at = uses.ctas, uses.slots
        np.subtract.at(self._expected, at, counts)
        below = self._expected[at] < 0
        if below.any():
            self._fail(uses, below, "arrive_drop of more arrivals than the mbarrier expects")

    def require_incomplete(self, uses: Uses, phases: Array) -> None:
        """Raises :class:`SiteFault` if arrivals with ``.noComplete`` have completed the given phases."""
        complete = self.phases(uses.ctas, uses.slots) != phases
        if complete.any():
            self._fail(uses, complete, "an arrival with .noComplete completes the phase of the mbarrier")

    def arrive(self, uses: Uses, counts: Array) -> Array:
        """Executes ``mbarrier.arrive``; returns the state token of each thread, which is the number of its phase."""
        if self._shared.races is not None:
            for slot, ctas, warps in self._warps_by_slot(uses):
                self._shared.races.signal(slot, ctas, warps, self._phase[ctas, slot], uses.site)
            self._shared.races.end_arrival(uses.ctas, uses.lanes)
        if self._shared.lane_order is not None:
            for slot, lanes in self._lanes_by_slot(uses):
                self._shared.lane_order.arrive(slot, lanes)
        tokens = self._phase[uses.ctas, uses.slots].copy()
        key = uses.ctas * len(self._addresses) + uses.slots
        total = np.zeros(self._phase.shape[0] * len(self._addresses), np.int64)
        np.add.at(total, key, counts)
        first = np.full(total.size, -1)
        first[key[::-1]] = np.arange(key.size)[::-1]
        each = uses.only(first[first >= 0])
        left = total[first >= 0]
        at = each.ctas, each.slots
        while left.any():
            now = np.minimum(left, self._pending[at])
            if ((now == 0) & (left > 0)).any():
                self._fail(each, (now == 0) & (left > 0), "arrival at an mbarrier beyond the count of its phase")
            self._pending[at] -= now
            left = left - now
            self._advance(each)
        return tokens

    def counts(self, count: Array, active: Array, uses: Uses) -> Array:
        """Numbers of arrivals of each thread."""
        return self._amounts(count, active, uses, "an arrival count", 1)

    def _amounts(self, count: Array, active: Array, uses: Uses, what: str, lowest: int) -> Array:
        amounts = np.broadcast_to(count, active.shape)[uses.ctas, uses.lanes].astype(np.int64)
        bad = (amounts < lowest) | (amounts > MAX_COUNT)
        if bad.any():
            self._fail(uses, bad, f"{what} of {int(amounts[bad.argmax()])}; {lowest} to {MAX_COUNT} are possible")
        return amounts

    def _advance(self, uses: Uses) -> None:
        """Completes the phases that miss nothing any more."""
        at = uses.ctas, uses.slots
        done = (self._pending[at] == 0) & (self._bytes[at] == 0)
        if not done.any():
            return
        complete = np.zeros(self._phase.shape, np.bool_)
        complete[uses.ctas[done], uses.slots[done]] = True
        ctas, slots = np.nonzero(complete)
        for slot in np.flatnonzero(complete.any(axis=0)).tolist():
            rows = np.flatnonzero(complete[:, slot])
            if self._shared.races is not None:
                self._shared.races.complete(slot, rows, self._phase[rows, slot])
            if self._shared.lane_order is not None:
                self._shared.lane_order.complete(slot, rows)
        self._phase[ctas, slots] += 1
        self._pending[ctas, slots] = self._expected[ctas, slots]
        self.changed = True

    # --- waits --------------------------------------------------------------------------------------------------

    def target(self, uses: Uses, token: Array, active: Array, *, parity: bool) -> Array:
        """Number of the phase that each thread waits for: it waits until that phase is complete.

        Args:
            uses: Waiting threads.
            token: Per lane, the token of an arrival, or the parity of a phase.
            active: Active lanes.
            parity: Whether ``token`` is a parity. It then names the current phase or the one before.

        Raises:
            SiteFault: A token is not that of the current phase or of the one before.
        """
        tokens = np.broadcast_to(token, active.shape)[uses.ctas, uses.lanes].astype(np.int64)
        current = self._phase[uses.ctas, uses.slots]
        if parity:
            if (bad := (tokens != 0) & (tokens != 1)).any():
                self._fail(uses, bad, f"the parity of a phase is 0 or 1, not {int(tokens[bad.argmax()])}")
            return np.asarray(np.where((current & 1) == (tokens & 1), current, current - 1))
        bad = (tokens != current) & (tokens != current - 1)
        if bad.any():
            self._fail(
                uses,
                bad,
                f"wait for phase {int(tokens[bad.argmax()])} of an mbarrier in phase {int(current[bad.argmax()])}",
            )
        return tokens

    def give_up(self, uses: Uses, target: Array) -> Array:
        """Whether threads return from a ``try_wait`` before the phase is complete: once at each instruction."""
        if uses.site not in self._given_up:
            self._given_up[uses.site] = np.zeros((self._shared.ctas, self._shared.threads), np.bool_)
        before, at = self._given_up[uses.site], (uses.ctas, uses.lanes)
        now = ~before[at] & ~self.is_complete(uses, target)
        before[at] |= now
        return np.asarray(now)

    def is_complete(self, uses: Uses, target: Array) -> Array:
        """Whether the phases that threads wait for are complete."""
        return np.asarray(self._phase[uses.ctas, uses.slots] > target)

    def observe(self, uses: Uses, target: Array) -> None:
        """Records that threads have seen the completion of phases."""
        np.maximum.at(self._observed, (uses.ctas, uses.slots), target + 1)
        if self._shared.lane_order is not None:
            for slot, lanes in self._lanes_by_slot(uses):
                self._shared.lane_order.wait(slot, lanes)
        if self._shared.races is not None:
            for slot, ctas, warps in self._warps_by_slot(uses):
                self._shared.races.acquire(slot, ctas, warps)

    def _warps_by_slot(self, uses: Uses) -> Iterator[tuple[int, Array, Array]]:
        """For each mbarrier in use, the pairs of CTA and warp that use it."""
        for slot, lanes in self._lanes_by_slot(uses):
            ctas, warps = np.nonzero(lanes.reshape(self._shared.ctas, -1, 32).any(axis=2))
            yield slot, ctas, warps

    def _lanes_by_slot(self, uses: Uses) -> Iterator[tuple[int, Array]]:
        """For each mbarrier in use, the lanes that use it, bool ``[ctas, threads]``."""
        for slot in np.unique(uses.slots).tolist():
            same = uses.slots == slot
            lanes = np.zeros((self._shared.ctas, self._shared.threads), np.bool_)
            lanes[uses.ctas[same], uses.lanes[same]] = True
            yield slot, lanes

    def phases(self, ctas: Array, slots: Array) -> Array:
        """Numbers of the current phases."""
        return np.asarray(self._phase[ctas, slots])

    def observed(self, ctas: Array, slots: Array) -> Array:
        """Number of phases that threads have waited for."""
        return np.asarray(self._observed[ctas, slots])

    def describe(self, cta: int, slot: int) -> str:
        """State of an mbarrier, for messages."""
        missing = int(self._pending[cta, slot]), int(self._bytes[cta, slot])
        return (
            f"mbarrier {self._addresses[slot]:#x} in phase {int(self._phase[cta, slot])}, where "
            f"{missing[0]} of {int(self._expected[cta, slot])} arrivals and {missing[1]} bytes are missing"
        )

    @staticmethod
    def _fail(uses: Uses, bad: Array, detail: str, kind: FaultKind = FaultKind.ILLEGAL_VALUE) -> None:
        first = int(bad.argmax())
        raise SiteFault(kind, detail, uses.site, int(uses.ctas[first]), int(uses.lanes[first]))
