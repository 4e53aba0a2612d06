"""Check of the order between lanes of one warp in shared memory.

Lanes of a warp need not run in lockstep. What one lane has written, another lane of its warp may read or overwrite only
after a ``bar.warp.sync`` or a barrier of the CTA; so it is with what one has read and another overwrites. Source: CUDA
C++ Programming Guide, "Independent Thread Scheduling". A ``bar.warp.sync`` of some lanes counts for these. Shuffles and
votes order no memory. An instruction of the whole warp, such as ``ldmatrix`` or ``stmatrix``, begins after what its
lanes have done before: no later write overtakes its read, and its write overtakes no earlier access.

For every granule, four bytes or, in a kernel with accesses of two bytes, two, there is a record of the last lane that
wrote and the last that read it, each with the number of barriers that its warp had passed. Accesses of one byte, such
as a flag, are not recorded, nor are the reads of several warps. So races may be missed, but none is reported falsely.

A lane that waits at an mbarrier waits for itself alone. What a bulk copy or another warp has written, other lanes of
its warp may access only after a wait of their own or a barrier, or, as the lanes of a warp count as one thread there,
after an atomic or a strong load of their warp. A write of one byte is not recorded here either.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evoengine.emulator.checks.faults import FaultKind, SiteFault
from evoengine.emulator.checks.race_detector import BulkAccess
from evoengine.emulator.execution.cta_split import CtaRows, row_count
from evoengine.emulator.semantics.floats import Array

_Lanes = tuple[Array, Array, Array, Array]
"""The granules that active lanes access: CTA, lane, number of the granule, barriers that the lane's warp has passed."""


class LaneOrder:
    """Access records of one batch. Its methods raise :class:`SiteFault` at the second access of a race.

    Masks and indices are as in :class:`~evoengine.emulator.checks.race_detector.RaceObserver`.

    Args:
        ctas: CTAs of the batch.
        threads: Threads per CTA, a multiple of 32.
        smem_bytes: Shared memory per CTA.
        strong: Numbers of the loads and stores with ``volatile``, ``relaxed`` or ``acquire``.
        halves: Whether the kernel has accesses of two bytes.
    """

    def __init__(self, ctas: int, threads: int, smem_bytes: int, *, strong: frozenset[int], halves: bool) -> None:
        self._strong, self._granule = strong, 2 if halves else 4
        words = (-(-smem_bytes // 16) + 1) * 16 // self._granule
        self._shape = (ctas, threads)
        self._passed = np.ones((ctas, threads // 32), np.int32)
        """Barriers that each warp has passed, plus 1."""
        self._writer, self._reader = np.zeros((2, ctas, words), np.int16)
        self._written, self._read = np.zeros((2, ctas, words), np.int32)
        """Value of ``_passed`` at the last access; 0 for none."""
        self._shared_read = np.zeros((ctas, words), np.bool_)
        """Whether several lanes of the reader's warp have read it since the last barrier."""
        self._changes = 0
        """Writes and bulk copies so far."""
        self._change = np.zeros((ctas, words), np.int32)
        """Number of the last one of each word; 0 for none, or where it is not known."""
        self._author = np.zeros((ctas, words), np.int16)
        """Warp that executed it; -1 for a bulk copy."""
        self._informed = np.zeros((ctas, threads), np.int32)
        """Number of the last one that each lane may know of."""
        self._met: Array | None = None
        """Number of changes when two lanes of a warp last met at a barrier of a part of it, ``[ctas, warps, 32, 32]``;
        None before the first of them."""
        self._read_after = np.zeros((ctas, words), np.int32)
        """Number of changes at the last read, recorded from then on."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the records to some of the CTAs."""
        self._shape = (row_count(rows), self._shape[1])
        records = ("_writer", "_reader", "_written", "_read", "_shared_read", "_change", "_author", "_read_after")
        for name in ("_passed", "_informed", *records):
            setattr(self, name, getattr(self, name)[rows].copy())
        self._met = None if self._met is None else self._met[rows].copy()

    def barrier(self, mask: Array | None) -> None:
        """Observes a barrier that the masked lanes have passed, of their warps or the CTA, or a wait at an mbarrier."""
        if mask is None:
            self._passed += 1
            self._informed[:] = self._changes
        else:
            lanes = np.broadcast_to(mask, self._shape)
            self._passed += self._warps(lanes)
            self._informed[lanes] = self._changes

    def part_barrier(self, lanes: Array, named: Array) -> None:
        """Observes a barrier of parts of warps.

        Args:
            lanes: Lanes that have passed it, bool ``[ctas, threads]``.
            named: Lanes of its warp that each lane waits for, as bits, uint32 ``[ctas, threads]``.
        """
        ctas, threads = self._shape
        if self._met is None:
            self._met = np.zeros((ctas, threads // 32, 32, 32), np.int32)
        self._changes += 1
        pairs = lanes[..., None] & (named[..., None] >> np.arange(32, dtype=np.uint32) & np.uint32(1) != 0)
        self._met[pairs.reshape(self._met.shape)] = self._changes
        self._informed[lanes] = self._changes

    def _unmet(self, lanes: _Lanes, others: Array, since: Array) -> Array | bool:
        """Whether lanes have not met others of their warps at a barrier of a part of it since a number of changes."""
        cta, lane, _, _ = lanes
        return True if self._met is None else self._met[cta, lane // 32, lane % 32, others % 32] <= since

    def atomic(self, mask: Array | None) -> None:
        """Observes an atomic or a strong load of the masked lanes, which informs all lanes of their warps."""
        if mask is None:
            self._informed[:] = self._changes
        else:
            self._informed[np.repeat(self._warps(np.broadcast_to(mask, self._shape)), 32, axis=1)] = self._changes

    def load_global(self, mask: Array | None, site: int) -> None:
        """Observes a load from global memory; a strong one informs as an atomic does."""
        if site in self._strong:
            self.atomic(mask)

    def _warps(self, lanes: Array) -> Array:
        """Whether each warp has one of the lanes, bool ``[ctas, warps]``."""
        return np.asarray(lanes.reshape(self._shape[0], -1, 32).any(axis=2))

    def read(self, index: Array, size: int, mask: Array | None, site: int, *, whole_warp: bool) -> None:
        """Checks a read, and records it unless it is one instruction of the whole warp."""
        if site in self._strong:
            self.atomic(mask)
        cta, lane, word, passed = lanes = self._flatten(index, size, mask)
        if not whole_warp:
            self._check_informed(lanes, site, "reads")
        if size < self._granule:
            return
        self._check_written(lanes, site, "reads")
        if whole_warp:
            return
        at = cta, word
        before, known = self._reader[at], self._read[at] == passed
        known &= before // 32 == lane // 32
        self._shared_read[at] = known & (self._shared_read[at] | (before != lane))
        self._reader[at] = lane
        self._read[at] = passed
        if self._met is not None:
            self._read_after[at] = self._changes
        several = self._reader[at] != lane  # lanes of this instruction
        self._shared_read[cta[several], word[several]] = True

    def write(self, index: Array, size: int, mask: Array | None, site: int, *, whole_warp: bool) -> None:
        """Records a write, or the issue of a cp.async, and checks it unless it is one instruction of the whole warp."""
        cta, lane, word, passed = lanes = self._flatten(index, size, mask)
        if not whole_warp and site not in self._strong:
            self._check_informed(lanes, site, "overwrites")
        if size < self._granule:
            self._change[cta, word] = 0
            return
        self._changes += 1
        self._change[cta, word] = self._changes
        self._author[cta, word] = lane // 32
        if not whole_warp:
            self._check_overwritten(lanes, site)
        self._writer[cta, word] = lane
        self._written[cta, word] = passed

    def _check_overwritten(self, lanes: _Lanes, site: int) -> None:
        cta, lane, word, passed = lanes
        self._check_written(lanes, site, "overwrites")
        reader = self._reader[cta, word]
        bad = (self._read[cta, word] == passed) & (reader // 32 == lane // 32)
        bad &= (reader != lane) | self._shared_read[cta, word]
        bad &= self._unmet(lanes, reader, self._read_after[cta, word])
        self._require(bad, lanes, site, "overwrites what another lane of its warp reads")

    def bulk_read(self, access: BulkAccess) -> None:
        """Checks the issue of bulk copies from shared memory."""
        for copied in self._copied(access):
            self._check_informed(copied, access.site, "copies")
            self._check_written(copied, access.site, "copies")

    def bulk_write(self, access: BulkAccess) -> None:
        """Checks the issue of bulk copies to shared memory."""
        for copied in self._copied(access):
            self._check_informed(copied, access.site, "overwrites")
            self._check_overwritten(copied, access.site)

    def _copied(self, access: BulkAccess) -> Iterator[_Lanes]:
        """The words of each copy, as if its issuing lane accessed them."""
        words = np.arange(access.size // self._granule)
        for cta, lane, first in zip(access.ctas, access.lanes, access.first // self._granule, strict=True):
            ctas, lanes, passed = (np.full_like(words, one) for one in (cta, lane, self._passed[cta, lane // 32]))
            yield ctas, lanes, first + words, passed

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Records the completion of a cp.async as a write."""
        self.write(index, size, mask, 0, whole_warp=True)

    def land_bulk(self, ctas: Array, first: int, size: int) -> None:
        """Records the completion of bulk copies to ``size`` bytes from byte ``first`` on, in some CTAs."""
        self._changes += 1
        words = slice(first // self._granule, (first + size) // self._granule)
        self._change[ctas, words] = self._changes
        self._author[ctas, words] = -1

    def _check_informed(self, lanes: _Lanes, site: int, verb: str) -> None:
        cta, lane, word, _ = lanes
        author = self._author[cta, word]
        bad = (self._change[cta, word] > self._informed[cta, lane]) & (author != lane // 32)
        if not bad.any():
            return
        at = int(bad.argmax())
        kind, who = FaultKind.DATA_RACE, f"warp {author[at]}"
        if author[at] < 0:
            kind, who = FaultKind.BULK_COPY_NOT_WAITED, "a bulk copy"
        detail = f"a lane {verb} what {who} has written, for which only another lane of its warp has waited"
        raise SiteFault(kind, detail, site, int(cta[at]), int(lane[at]), int(word[at]) * self._granule)

    def _flatten(self, index: Array, size: int, mask: Array | None) -> _Lanes:
        cta, lane = np.nonzero(np.ones(self._shape, np.bool_) if mask is None else np.broadcast_to(mask, self._shape))
        word = np.broadcast_to(index, self._shape)[cta, lane] * size // self._granule
        words = size // self._granule
        passed = self._passed[cta, lane // 32]
        if words > 1:
            parts = np.repeat(word, words) + np.tile(np.arange(words), word.size)
            return np.repeat(cta, words), np.repeat(lane, words), parts, np.repeat(passed, words)
        return cta, lane, word, passed

    def _check_written(self, lanes: _Lanes, site: int, verb: str) -> None:
        cta, lane, word, passed = lanes
        writer = self._writer[cta, word]
        bad = (self._written[cta, word] == passed) & (writer // 32 == lane // 32) & (writer != lane)
        bad &= self._unmet(lanes, writer, self._change[cta, word])
        self._require(bad, lanes, site, f"{verb} what another lane of its warp writes")

    def _require(self, bad: Array, lanes: _Lanes, site: int, what: str) -> None:
        if bad.any():
            cta, lane, word, _ = (int(each[bad.argmax()]) for each in lanes)
            detail = f"a lane {what}, with no barrier of the warp between them"
            raise SiteFault(FaultKind.DATA_RACE, detail, site, cta, lane, word * self._granule)
