"""``cp.async``: fetched when issued, written when the issuing thread's wait covers it, readable after a barrier.

Each lane counts its committed groups. A copy belongs to the group that its lane commits next; ``wait_group n`` lands
the copies of all but the last ``n`` committed groups. Landed data becomes visible to other warps when the issuing warp
passes a barrier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evoengine.emulator.execution.cta_split import Rows, of_rows
from evoengine.emulator.memory.shared_memory import LANDED, PENDING, READY, SharedMemory
from evoengine.emulator.semantics.floats import Array


@dataclass
class _Copy:
    index: Array
    words: Array
    size: int
    mask: Array | None
    """Lanes still concerned; None for all."""
    group: int | Array

    def part(self, rows: Rows, ctas: int) -> _Copy:
        mask = None if self.mask is None else of_rows(self.mask, rows, ctas)
        group = self.group if isinstance(self.group, int) else of_rows(self.group, rows, ctas)
        return _Copy(of_rows(self.index, rows, ctas), of_rows(self.words, rows, ctas), self.size, mask, group)


class AsyncCopies:
    """Copies in flight and copies that await a barrier, for one batch."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._groups: int | Array = 0
        self._in_flight: list[_Copy] = []
        self._landed: list[_Copy] = []

    def issue(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Starts a copy of one word per active lane."""
        index = self._shared.index(address, size, mask, site)
        if index.shape[1] == 1:
            index = np.broadcast_to(index, (index.shape[0], self._shared.threads))
        if self._shared.races is not None:
            self._shared.races.write(index, size, mask, site)
        self._shared.mark(index, PENDING, size, mask)
        self._in_flight.append(_Copy(index, words, size, mask, self._groups))

    def commit(self, mask: Array | None) -> None:
        """Ends the current group of the active lanes."""
        self._groups = self._groups + (1 if mask is None else mask.astype(np.int64))

    def wait(self, newest: int | None, mask: Array | None) -> None:
        """Lands all but the ``newest`` groups of the active lanes; None lands everything, committed or not."""
        left = []
        for copy in self._in_flight:
            done = True if newest is None else copy.group < self._groups - newest
            if isinstance(done, bool | np.bool_):
                if not done:
                    left.append(copy)
                    continue
                lanes = mask
            else:
                lanes = done if mask is None else done & mask
            rest = self._split(copy, lanes)
            if rest is not None:
                left.append(rest)
        self._in_flight = left

    def _split(self, copy: _Copy, lanes: Array | None) -> _Copy | None:
        """Lands the copy for the given lanes; returns what stays in flight."""
        if lanes is None:
            self._land(copy, copy.mask)
            return None
        now = lanes if copy.mask is None else copy.mask & lanes
        if now.any():
            self._land(copy, now)
        later = ~lanes if copy.mask is None else copy.mask & ~lanes
        return _Copy(copy.index, copy.words, copy.size, later, copy.group) if later.any() else None

    def _land(self, copy: _Copy, mask: Array | None) -> None:
        shared = self._shared
        shared.put(copy.index, copy.words, copy.size, mask)
        alone = shared.threads == 32  # a CTA of one warp has nobody to hide the data from
        shared.mark(copy.index, READY if alone else LANDED, copy.size, mask)
        shared.own(copy.index, copy.size, mask)
        if shared.races is not None:
            shared.races.land(copy.index, copy.size, mask)
        if not alone:
            self._landed.append(_Copy(copy.index, copy.words, copy.size, mask, copy.group))

    def publish(self, mask: Array | None) -> None:
        """The masked lanes have passed a barrier: what they landed is now visible to all."""
        if not self._landed:
            return
        left = []
        for copy in self._landed:
            now = copy.mask if mask is None else mask if copy.mask is None else mask & copy.mask
            self._shared.mark(copy.index, READY, copy.size, now)
            if mask is not None:
                later = ~mask if copy.mask is None else copy.mask & ~mask
                if later.any():
                    left.append(_Copy(copy.index, copy.words, copy.size, later, copy.group))
        self._landed = left

    def keep(self, rows: Rows, shared: SharedMemory) -> None:
        """Goes on with some of the CTAs only, and their shared memory."""
        ctas, self._shared = self._shared.ctas, shared
        if not isinstance(self._groups, int):
            self._groups = of_rows(self._groups, rows, ctas)
        self._in_flight = [copy.part(rows, ctas) for copy in self._in_flight]
        self._landed = [copy.part(rows, ctas) for copy in self._landed]
