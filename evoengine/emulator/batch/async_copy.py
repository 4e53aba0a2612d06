"""Asynchronous copies (``cp.async``).

A copy reads global memory when it is issued and writes shared memory when a wait of the issuing thread completes it.
Each lane counts its committed groups. A copy belongs to the group that its lane commits next; ``wait_group n``
completes the copies of all but the last ``n`` committed groups. Completed data becomes visible to other warps when the
issuing warp passes a barrier; until then it is called *landed*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, select_rows
from evoengine.emulator.batch.shared_memory import LANDED, PENDING, READY, SharedMemory
from evoengine.emulator.memory.words import SHIFT


@dataclass
class _Copy:
    """Copies of the lanes of one ``cp.async`` instruction."""

    index: Array
    """Word index in shared memory, per lane."""
    words: Array
    size: int
    """Bytes per word."""
    mask: Array | None
    """Lanes whose copies are still in this state; None for all."""
    group: int | Array
    """Number of the group, per lane."""

    def restricted(self, rows: CtaRows, ctas: int) -> _Copy:
        mask = None if self.mask is None else select_rows(self.mask, rows, ctas)
        group = self.group if isinstance(self.group, int) else select_rows(self.group, rows, ctas)
        return _Copy(select_rows(self.index, rows, ctas), select_rows(self.words, rows, ctas), self.size, mask, group)


class AsyncCopies:
    """Copies of one batch that are in flight, or landed and not yet behind a barrier."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._groups: int | Array = 0
        self._in_flight: list[_Copy] = []
        self._landed: list[_Copy] = []

    def issue(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Issues a copy of one word per active lane.

        Raises:
            SiteFault: An active lane's shared address is out of bounds or misaligned.
        """
        index = self._shared.index(address, size, mask, site)
        if index.shape[1] == 1:
            index = np.broadcast_to(index, (index.shape[0], self._shared.threads))
        self._shared.note_write(index, size, mask, site)
        self._shared.mark(index, PENDING, size, mask)
        self._in_flight.append(_Copy(index, words, size, mask, self._groups))
        self._shared.copying = True

    def commit(self, mask: Array | None) -> None:
        """Commits the current group of the active lanes."""
        self._groups = self._groups + (1 if mask is None else mask.astype(np.int64))

    def wait(self, newest: int | None, mask: Array | None, *, by_any: bool = False) -> None:
        """Completes all but the ``newest`` groups of the active lanes; None completes all copies, committed or not.

        With ``by_any``, an mbarrier completes the copies instead of a waiting thread. A proxy fence of any thread then
        suffices before the async proxy reads the data.
        """
        in_flight = []
        for copy in self._in_flight:
            done = True if newest is None else copy.group < self._groups - newest
            if isinstance(done, bool | np.bool_):
                if not done:
                    in_flight.append(copy)
                    continue
                lanes = mask
            else:
                lanes = done if mask is None else done & mask
            rest = self._split(copy, lanes, by_any)
            if rest is not None:
                in_flight.append(rest)
        self._in_flight = in_flight
        self._shared.copying = bool(in_flight)

    def _split(self, copy: _Copy, lanes: Array | None, by_any: bool) -> _Copy | None:
        """Completes the copy for the given lanes; returns the part that stays in flight."""
        if lanes is None:
            self._land(copy, copy.mask, by_any)
            return None
        now = lanes if copy.mask is None else copy.mask & lanes
        if now.any():
            self._land(copy, now, by_any)
        later = ~lanes if copy.mask is None else copy.mask & ~lanes
        return _Copy(copy.index, copy.words, copy.size, later, copy.group) if later.any() else None

    def _land(self, copy: _Copy, mask: Array | None, by_any: bool) -> None:
        shared = self._shared
        shared.put(copy.index, copy.words, copy.size, mask)
        alone = shared.threads == 32  # in a CTA of one warp no other warp can read the data too early
        shared.mark(copy.index, READY if alone else LANDED, copy.size, mask)
        shared.set_owner(copy.index, copy.size, mask)
        if shared.guard is not None:
            shared.guard.note_write(copy.index >> (4 - SHIFT[copy.size]), mask, by_any=by_any)
        if shared.races is not None:
            shared.races.land(copy.index, copy.size, mask)
        if shared.lane_order is not None:
            shared.lane_order.land(copy.index, copy.size, mask)
        if not alone:
            self._landed.append(_Copy(copy.index, copy.words, copy.size, mask, copy.group))

    def publish(self, mask: Array | None, *, by_warp: bool = False) -> None:
        """Makes the landed copies of the masked lanes visible to all warps; called when the lanes pass a barrier.

        With ``by_warp``, a lane publishes the copies of its whole warp, whose order the race check examines.
        """
        if not self._landed:
            return
        if by_warp and mask is not None:
            mask = np.repeat(mask.reshape(len(mask), -1, 32).any(axis=2), 32, axis=1)
        landed = []
        for copy in self._landed:
            now = copy.mask if mask is None else mask if copy.mask is None else mask & copy.mask
            self._shared.mark(copy.index, READY, copy.size, now)
            if mask is not None:
                later = ~mask if copy.mask is None else copy.mask & ~mask
                if later.any():
                    landed.append(_Copy(copy.index, copy.words, copy.size, later, copy.group))
        self._landed = landed

    def restrict(self, rows: CtaRows, shared: SharedMemory) -> None:
        """Restricts the copies to some of the CTAs, with their shared memory."""
        ctas, self._shared = self._shared.ctas, shared
        if not isinstance(self._groups, int):
            self._groups = select_rows(self._groups, rows, ctas)
        self._in_flight = [copy.restricted(rows, ctas) for copy in self._in_flight]
        self._landed = [copy.restricted(rows, ctas) for copy in self._landed]
