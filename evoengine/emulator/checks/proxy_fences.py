"""Check of the order between the proxy fences of threads and the operations of the async proxy.

Bulk copies read or overwrite shared memory through the async proxy, and ``wgmma`` reads it. After its accesses there a
thread must execute a ``fence.proxy.async``, and the fence must be ordered before the operation, by a barrier that
follows it or by an arrival at an mbarrier. A fence of the issuing warp suffices, too, if the accesses are ordered
before that fence. Source: PTX ISA 9.0, "Proxy-preserved base causality order". The module
:mod:`evoengine.emulator.checks.async_guard` checks that there is a fence at all.

There is a record for every 16 bytes and warp: the epoch, as in :mod:`evoengine.emulator.checks.race_detector`, in which
a thread of the warp has executed the last fence after an access of its own. The record of an access holds only the last
of several threads. So mistakes may be missed, but none is reported falsely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count

CHUNK: Final = 16
"""Bytes of a record."""
_MAX_UNRELEASED: Final = 64
"""Limit on the fences that are kept for the lanes that arrive at mbarriers; older ones are forgotten."""


@dataclass(frozen=True)
class FencedChunks:
    """Accesses that threads have put behind a proxy fence, one element for each thread and 16 bytes."""

    ctas: Array
    lanes: Array
    chunks: Array
    writes: bool
    """Whether the accesses were writes."""

    def only(self, keep: Array) -> FencedChunks:
        """The elements that are set in a bool array."""
        return FencedChunks(self.ctas[keep], self.lanes[keep], self.chunks[keep], self.writes)


class ProxyFences:
    """Fences of one batch.

    Clocks are those of the race detector: ``[c, w, v]`` is the last epoch of warp ``v`` that is ordered before warp
    ``w``, and ``[c, w, w]`` the epoch of warp ``w``.

    Args:
        ctas: CTAs of the batch.
        warps: Warps per CTA.
        chunks: 16-byte chunks of the shared memory of a CTA.
    """

    def __init__(self, ctas: int, warps: int, chunks: int) -> None:
        self._after = {writes: np.zeros((ctas, warps, chunks), np.int32) for writes in (False, True)}
        """Epoch of each warp's last fence after a read, or a write, of each chunk; 0 for none."""
        self.seen = np.zeros((ctas, warps, warps), np.int32)
        """Clock of each warp at its last fence, ``[ctas, warps, warps]``."""
        self._unreleased: list[FencedChunks] = []
        """Fences since the last instruction of the whole warp, which an arrival of another lane does not release."""

    def note(self, fenced: FencedChunks, clocks: Array) -> None:
        """Records the fence of threads in the present epoch of their warps."""
        if fenced.lanes.size:
            self._record(fenced, clocks)
            self._unreleased.append(fenced)
            del self._unreleased[:-_MAX_UNRELEASED]

    def see(self, present: Array, clocks: Array) -> None:
        """Records what is ordered before the fence of the present warps, bool ``[ctas, warps]``."""
        warps = self.seen.shape[1]
        self.seen = np.where(present[:, :, None], clocks[:, :, :warps], self.seen)

    def _record(self, fenced: FencedChunks, clocks: Array) -> None:
        warps = fenced.lanes // 32
        self._after[fenced.writes][fenced.ctas, warps, fenced.chunks] = clocks[fenced.ctas, warps, warps]

    def note_again(self, clocks: Array) -> None:
        """Records fences that an arrival has not released in the epoch that follows it."""
        for fenced in self._unreleased:
            self._record(fenced, clocks)

    def forget(self, lanes: Array | None) -> None:
        """Forgets fences that a later arrival releases, whichever lane of the warp it is."""
        if lanes is None:
            self._unreleased = []
            return
        left = (fenced.only(~lanes[fenced.ctas, fenced.lanes]) for fenced in self._unreleased)
        self._unreleased = [fenced for fenced in left if fenced.lanes.size]

    def late(self, ctas: Array, warps: Array, chunks: Array, clocks: Array, *, writes: bool) -> Array:
        """Whether fences of other warps are not ordered before an operation of the async proxy, bool ``[n, warps]``.

        Args:
            ctas: CTA of each chunk that the operation accesses.
            warps: Issuing warps.
            chunks: The chunks.
            clocks: Clocks of all warps.
            writes: Whether to look at fences after writes or after reads.
        """
        after = self._after[writes][ctas, :, chunks]
        late: Array = after > clocks[ctas, warps, : after.shape[1]]
        late[np.arange(warps.size), warps] = False
        return late

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the records to some of the CTAs."""
        number = np.full(len(self.seen), -1)
        number[rows] = np.arange(row_count(rows))
        kept = (fenced.only(number[fenced.ctas] >= 0) for fenced in self._unreleased)
        self._unreleased = [replace(fenced, ctas=number[fenced.ctas]) for fenced in kept if fenced.lanes.size]
        self._after = {writes: table[rows].copy() for writes, table in self._after.items()}
        self.seen = self.seen[rows].copy()
