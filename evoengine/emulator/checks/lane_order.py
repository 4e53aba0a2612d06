"""Check of the order between lanes of one warp in shared and global memory.

Lanes of a warp need not run in lockstep. What one lane has written, another lane of its warp may read or overwrite only
after something that orders both: a ``bar.warp.sync`` of these lanes, a barrier of the CTA, or an mbarrier at which the
one has arrived before the other has waited, directly or through other warps. The same holds for what one lane has read
and another overwrites. Source: CUDA C++ Programming Guide, "Independent Thread Scheduling"; PTX ISA, "Memory
Consistency Model", causality order. Shuffles and votes order no memory. An instruction of the whole warp, such as
``ldmatrix`` or ``stmatrix``, begins after what its lanes have done before: no later write overtakes its read, and its
write overtakes no earlier access.

For every granule, the smallest access of the kernel, there is a record of the last thread that wrote and the last two
that read it, each with the number of the access. Vector clocks tell which numbers are ordered before the next access of
a thread (Mattern, "Virtual Time and Global States of Distributed Systems", 1989). More readers than two are not kept,
so races may be missed, but none is reported falsely.

A wait at an mbarrier, an atomic or a strong load synchronises only the lane that executes it. What a bulk copy or
another warp has written, other lanes of its warp may access only after a wait of their own or a barrier. Between warps,
where the race detector examines the order, the lanes of the writing warp count as one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count
from evoengine.emulator.checks.global_writes import GlobalWrites
from evoengine.emulator.checks.race_observer import StoredWords
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.address_space import GLOBAL_BASE
from evoengine.emulator.memory.transfers import BulkAccess

_Accesses = tuple[Array, Array, Array]
"""CTA and lane of each access to a granule, and place of its record: CTA times number of granules plus granule."""
_Recorded = tuple[Array, Array, Array, Array, Array]
"""CTA, lane and place of each access, and agent and number of an earlier one that is recorded there."""
_COPY: Final = -1
"""Writer of what a bulk copy has written, and the last agent of a clock."""


class LaneOrder:
    """Clocks and access records of one batch. Its methods raise :class:`SiteFault` at the second access of a race.

    Masks and indices are as in :class:`~evoengine.emulator.checks.race_observer.RaceObserver`.

    Args:
        ctas: CTAs of the batch.
        threads: Threads per CTA, a multiple of 32.
        smem_bytes: Shared memory per CTA.
        strong: Numbers of the loads and stores with ``volatile``, ``relaxed`` or ``acquire``.
        granule: Bytes that share a record: those of the kernel's smallest access, at most four.
        writes: Record of all writes of the launch to global memory.
    """

    def __init__(
        self, ctas: int, threads: int, smem_bytes: int, *, strong: frozenset[int], granule: int, writes: GlobalWrites
    ) -> None:
        self._strong, self._granule, self._globals = strong, granule, writes
        self._granules = granules = (-(-smem_bytes // 16) + 1) * 16 // granule
        self._shape = (ctas, threads)
        self._lanes: dict[int, tuple[Array, Array]] = {}
        """Results of :meth:`_all_lanes`."""
        self._now = 0
        """Number of the latest access or copy."""
        agents = threads + threads // 32 + 1
        self._known = np.zeros((ctas, threads, agents), np.int32)
        """Vector clocks: ``[c, t, a]`` is the latest access of agent ``a`` that precedes the next one of thread ``t``.

        Agents are the threads, then the warps as seen by other warps, then all bulk copies.
        """
        self._floor = np.zeros(ctas, np.int32)
        """Latest access before the last barrier of all threads of a CTA, ``[ctas]``. All accesses up to it, except bulk
        copies, precede the next one of every thread, whatever its clock: such a barrier need not write the clocks."""
        self._phases: dict[int, tuple[Array, Array]] = {}
        """For each barrier of the CTA, the end of its last phase, ``[ctas]``, and the lanes that have passed it."""
        self._gathered = np.zeros((ctas, 0, agents), np.int32)
        """Joint clock of all arrivals at each mbarrier, ``[ctas, mbarriers, agents]``."""
        self._completed = self._gathered
        """The same at the end of the last complete phase."""
        self._landed_bulk = False
        """Whether some writer is :data:`_COPY`."""
        self._writer, self._written = np.zeros((ctas, granules), np.int16), np.zeros((ctas, granules), np.int32)
        """Last writing thread, or :data:`_COPY`, and number of its write; 0 for none."""
        self._reader, self._read = np.zeros((2, ctas, granules), np.int16), np.zeros((2, ctas, granules), np.int32)
        """Last two reading threads and numbers of their reads; 0 for none."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts clocks and records to some of the CTAs."""
        self._shape, self._lanes = (row_count(rows), self._shape[1]), {}
        for name in ("_known", "_floor", "_gathered", "_completed", "_writer", "_written"):
            setattr(self, name, getattr(self, name)[rows].copy())
        self._reader, self._read = self._reader[:, rows].copy(), self._read[:, rows].copy()
        self._phases = {
            number: (ended[rows].copy(), members[rows].copy()) for number, (ended, members) in self._phases.items()
        }

    # --- what orders threads ------------------------------------------------------------------------------------

    def check_arrival(self, numbers: Array | int, lanes: Array, site: int) -> None:
        """Checks arrivals of lanes, bool ``[ctas, threads]``, at barriers of the CTA of these numbers.

        A barrier counts arrivals, not particular threads. An arrival must therefore be ordered after the end of the
        previous phase; otherwise a GPU may count it in that phase.
        """
        for number, (ended, members) in self._phases.items():
            lost = lanes & (numbers == number) & ~members & (ended > self._floor)[:, None]
            if not lost.any():
                continue
            cta, lane = np.nonzero(lost)
            warps = members.reshape(len(members), -1, 32).any(axis=2)
            agents = np.concatenate([members, warps, np.zeros((len(members), 1), np.bool_)], axis=1)
            informed = ((self._known[cta, lane] >= ended[cta][:, None]) & agents[cta]).any(axis=1)
            if not informed.all():
                first = int((~informed).argmax())
                detail = (
                    f"a warp arrives at barrier {number}, but a GPU may count it in the phase that others have ended: "
                    "nothing orders the end of that phase before the arrival"
                )
                raise SiteFault(FaultKind.DATA_RACE, detail, site, int(cta[first]), int(lane[first]))

    def release(self, lanes: Array) -> Array:
        """Returns the joint clock, ``[ctas, agents]``, of the masked lanes, bool ``[ctas, threads]``."""
        joint = np.zeros((self._shape[0], self._known.shape[2]), np.int32)
        ctas, clocks = self._joint(lanes)
        joint[ctas] = clocks
        return joint

    def barrier(self, mask: Array | None, released: Array | None, number: int) -> None:
        """Observes the end of a phase of a barrier of the CTA.

        Args:
            mask: Lanes that have passed it.
            released: Joint clock of those that have only arrived, ``[ctas, agents]``; None without any.
            number: Number of the barrier.
        """
        passed = self._spread(mask)
        self._now += 1  # what the lanes do from here on comes after the phase
        ended, members = self._phases.setdefault(
            number, (np.zeros(self._shape[0], np.int32), np.zeros(self._shape, np.bool_))
        )
        some = np.asarray(passed.any(axis=1))
        ended[some], members[some] = self._now, passed[some]
        if released is None:
            whole = np.asarray(passed.all(axis=1))
            self._floor[whole] = self._now
            self._known[whole, :, -1] = self._known[whole, :, -1].max(axis=1, keepdims=True)
            passed = passed & ~whole[:, None]
            if not passed.any():
                return
        joint = self.release(passed) if released is None else np.maximum(self.release(passed), released)
        at = np.nonzero(passed)
        self._known[at] = np.maximum(self._known[at], joint[at[0]])

    def warp_barrier(self, mask: Array | None) -> None:
        """Observes a barrier at which the masked lanes of each warp wait for each other."""
        inside = self._spread(mask).reshape(-1, 32)
        warps = np.flatnonzero(inside.any(axis=1))
        clocks, present = self._clocks(warps), inside[warps][:, :, None]
        joint = np.where(present, clocks, 0).max(axis=1, keepdims=True)
        self._known.reshape(-1, *clocks.shape[1:])[warps] = np.where(present, joint, clocks)

    def part_barrier(self, lanes: Array, named: Array) -> None:
        """Observes a barrier of parts of warps.

        Args:
            lanes: Lanes that have passed it, bool ``[ctas, threads]``.
            named: Lanes of its warp that each lane waits for, as bits, uint32 ``[ctas, threads]``.
        """
        pairs = lanes[..., None] & (named[..., None] >> np.arange(32, dtype=np.uint32) & np.uint32(1) != 0)
        pairs = pairs.reshape(-1, 32, 32)
        warps = np.flatnonzero(pairs.any(axis=(1, 2)))
        clocks = self._clocks(warps)
        joint, waits = clocks.copy(), pairs[warps]
        for lane in range(32):
            np.maximum(joint, clocks[:, lane, None], out=joint, where=waits[:, :, lane, None])
        self._known.reshape(-1, *clocks.shape[1:])[warps] = joint

    def atomic(self, mask: Array | None) -> None:
        """Observes an atomic or an ``ld.acquire``: all accesses so far may precede what the masked lanes do next."""
        self._known[self._spread(mask)] = self._now

    def load(self, mask: Array | None, site: int) -> None:
        """Observes a load; after a strong one, such as of a flag, earlier writes of other warps may be visible."""
        if site in self._strong:
            self._known[self._spread(mask), self._shape[1] :] = self._now

    def arrive(self, mbarrier: int, lanes: Array) -> None:
        """Observes arrivals of lanes, bool ``[ctas, threads]``, which release their clocks and their own accesses."""
        self._reserve(mbarrier)
        ctas, clocks = self._joint(lanes)
        self._gathered[ctas, mbarrier] = np.maximum(self._gathered[ctas, mbarrier], clocks)

    def complete(self, mbarrier: int, ctas: Array) -> None:
        """Observes the end of a phase of an mbarrier in some CTAs."""
        self._reserve(mbarrier)
        self._completed[ctas, mbarrier] = self._gathered[ctas, mbarrier]

    def wait(self, mbarrier: int, lanes: Array) -> None:
        """Observes that lanes, bool ``[ctas, threads]``, have waited for a phase of an mbarrier."""
        self._reserve(mbarrier)
        at = np.nonzero(lanes)
        self._known[at] = np.maximum(self._known[at], self._completed[at[0], mbarrier])
        self._known[lanes, -1] = self._now

    def _spread(self, mask: Array | None) -> Array:
        return np.broadcast_to(True if mask is None else mask, self._shape)

    def _clocks(self, warps: Array) -> Array:
        """Clocks of the lanes of some warps of the batch, ``[n, 32, agents]``, their own accesses included."""
        threads = np.arange(self._shape[1])
        self._known[:, threads, threads] = self._known[:, threads, len(threads) + threads // 32] = self._now
        clocks = self._known.reshape(-1, 32, self._known.shape[2])[warps]
        floor = self._floor[warps // (self._shape[1] // 32)]
        np.maximum(clocks[..., :-1], floor[:, None, None], out=clocks[..., :-1])
        return clocks

    def _joint(self, lanes: Array) -> tuple[Array, Array]:
        """The CTAs with some of the lanes, and the joint clock of these in each, ``[n, agents]``."""
        warps = np.flatnonzero(lanes.reshape(-1, 32).any(axis=1))
        clocks = self._clocks(warps)[lanes.reshape(-1, 32)[warps]]
        ctas, first = np.unique(np.nonzero(lanes)[0], return_index=True)
        return ctas, np.maximum.reduceat(clocks, first, axis=0) if first.size else clocks

    def _reserve(self, mbarrier: int) -> None:
        """Makes space for the clocks of further mbarriers."""
        more = mbarrier + 1 - self._gathered.shape[1]
        if more > 0:
            self._gathered = np.pad(self._gathered, ((0, 0), (0, more), (0, 0)))
            self._completed = np.pad(self._completed, ((0, 0), (0, more), (0, 0)))

    # --- accesses -----------------------------------------------------------------------------------------------

    def read(self, index: Array, size: int, mask: Array | None, site: int, *, whole_warp: bool) -> None:
        """Checks a read, and records it unless it is one instruction of the whole warp."""
        self.load(mask, site)
        accesses = self._flatten(index, size, mask)
        written = self._open(accesses, self._writer, self._written)
        if not whole_warp:
            self._check_informed(written, site, "reads")
        self._check_written(written, site, "reads")
        if not whole_warp:
            self._note_read(accesses)

    def write(
        self,
        index: Array,
        size: int,
        mask: Array | None,
        site: int,
        *,
        whole_warp: bool,
        words: Callable[[], StoredWords] | None = None,
    ) -> None:
        """Records a write, or the issue of a cp.async, and checks it unless it is one instruction of the whole warp."""
        accesses = self._flatten(index, size, mask)
        if not whole_warp:
            try:
                self._check_write(accesses, site)
            except SiteFault:
                if words is None:
                    raise
                changing = ~words().unchanged[accesses[:2]]
                self._check_write((accesses[0][changing], accesses[1][changing], accesses[2][changing]), site)
        self._now += 1
        _, lane, place = accesses
        self._writer.reshape(-1)[place], self._written.reshape(-1)[place] = lane, self._now

    def _check_write(self, accesses: _Accesses, site: int) -> None:
        written = self._open(accesses, self._writer, self._written)
        if site not in self._strong:
            self._check_informed(written, site, "overwrites")
        self._check_written(written, site, "overwrites")
        for reader, read in zip(self._reader, self._read, strict=True):
            self._check_other(
                self._open(accesses, reader, read), site, "overwrites what another lane of its warp reads"
            )

    def bulk_read(self, access: BulkAccess) -> None:
        """Checks the issue of bulk copies from shared memory."""
        for copied in self._copied(access):
            written = self._open(copied, self._writer, self._written)
            self._check_informed(written, access.site, "copies")
            self._check_written(written, access.site, "copies")

    def end_bulk_read(self, access: BulkAccess) -> None:
        """Records the wait for bulk copies from shared memory as a read by the issuing lanes, which alone waited."""
        for copied in self._copied(access):
            self._note_read(copied)

    def bulk_write(self, access: BulkAccess) -> None:
        """Checks the issue of bulk copies to shared memory."""
        for copied in self._copied(access):
            self._check_write(copied, access.site)

    def _copied(self, access: BulkAccess) -> Iterator[_Accesses]:
        """The granules of each copy, as if its issuing lane accessed them."""
        granules = np.arange(access.size // self._granule)
        for cta, lane, first in zip(access.ctas, access.lanes, access.first // self._granule, strict=True):
            yield np.full_like(granules, cta), np.full_like(granules, lane), cta * self._granules + first + granules

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Records the completion of a cp.async as a write."""
        self.write(index, size, mask, 0, whole_warp=True)

    def land_bulk(self, ctas: Array, first: int, size: int) -> None:
        """Records the completion of bulk copies to ``size`` bytes from byte ``first`` on, in some CTAs."""
        self._now += 1
        self._landed_bulk = True
        granules = slice(first // self._granule, (first + size) // self._granule)
        self._writer[ctas, granules], self._written[ctas, granules] = _COPY, self._now

    def load_global(self, ctas: Array, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a load from global memory by the CTAs of these numbers, after its bounds check."""
        self.load(mask, site)
        if site not in self._strong and self._globals.may_be_written(size):
            self._check_global(ctas, index, None, size, mask, site)

    def store_global(self, ctas: Array, index: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks and records a store of words to global memory; to be called before it, after its bounds check."""
        if site not in self._strong:
            row, lane, word = self._check_global(ctas, index, words, size, mask, site)
            self._now += 1
            self._globals.note(ctas[row] * self._shape[1] + lane, word, size, self._now)

    def _check_global(
        self, ctas: Array, index: Array, words: Array | None, size: int, mask: Array | None, site: int
    ) -> tuple[Array, Array, Array]:
        row, lane = np.nonzero(self._spread(mask))
        word = np.broadcast_to(index, self._shape)[row, lane]
        found = self._globals.found(ctas[row] * self._shape[1] + lane, word, size)
        if found is None:
            return row, lane, word
        agent, number = found
        bad = ((number > self._floor[row]) & (self._known[row, lane, agent] < number)).any(axis=0)
        if words is not None and bad.any():
            bad &= self._globals.changes(word, np.broadcast_to(words, self._shape)[row, lane], size)
        if bad.any():
            first = int(bad.argmax())
            does = "reads" if words is None else "overwrites with another value"
            detail = f"a lane {does} what another lane of its warp writes, with no barrier of the warp between them"
            where = GLOBAL_BASE + int(word[first]) * size
            raise SiteFault(FaultKind.DATA_RACE, detail, site, int(row[first]), int(lane[first]), where)
        return row, lane, word

    def _flatten(self, index: Array, size: int, mask: Array | None) -> _Accesses:
        """Returns the accesses of the masked lanes, to words of ``size`` bytes at these indices in their CTA."""
        count = size // self._granule
        if mask is None:
            cta, lane = self._all_lanes(count)
            first = np.broadcast_to(index, self._shape).reshape(-1)
        else:
            cta, lane = np.nonzero(self._spread(mask))
            first = np.broadcast_to(index, self._shape)[cta, lane]
            cta, lane = (cta, lane) if count == 1 else (np.repeat(cta, count), np.repeat(lane, count))
        granule = first if count == 1 else (first[:, None] * count + np.arange(count)).reshape(-1)
        return cta, lane, cta * self._granules + granule

    def _all_lanes(self, count: int) -> tuple[Array, Array]:
        """CTA and lane of all lanes of the batch, each ``count`` times."""
        if count not in self._lanes:
            cta, lane = np.nonzero(np.ones(self._shape, np.bool_))
            self._lanes[count] = np.repeat(cta, count), np.repeat(lane, count)
        return self._lanes[count]

    def _note_read(self, accesses: _Accesses) -> None:
        self._now += 1
        _, lane, place = accesses
        (reader, second_reader), (read, second_read) = self._reader.reshape(2, -1), self._read.reshape(2, -1)
        before = reader.take(place)
        other = before != lane
        at = place[other]
        second_reader[at], second_read[at] = before[other], read[at]
        reader[place], read[place] = lane, self._now
        other = reader.take(place) != lane  # lanes of this instruction
        at = place[other]
        second_reader[at], second_read[at] = lane[other], self._now

    # --- checks -------------------------------------------------------------------------------------------------

    def _open(self, accesses: _Accesses, agents: Array, numbers: Array) -> _Recorded | None:
        """Returns the records, of those ``[ctas, granules]``, that no barrier of the CTA orders before accesses."""
        cta, lane, place = accesses
        agents, number = agents.reshape(-1), numbers.reshape(-1).take(place)
        low = self._floor.min()  # mostly that of all CTAs, which spares an array as long as the accesses
        found = number > (low if low == self._floor.max() else self._floor.take(cta))
        if self._landed_bulk:
            found |= agents.take(place) == _COPY
        if not found.any():
            return None
        open_place = place[found]
        return cta[found], lane[found], open_place, agents.take(open_place), number[found]

    def _check_informed(self, writes: _Recorded | None, site: int, verb: str) -> None:
        """Checks accesses against recorded writes of other warps and of bulk copies."""
        if writes is None:
            return
        cta, lane, place, writer, written = writes
        copied, warp = writer == _COPY, writer // 32
        bad = self._known[cta, lane, np.where(copied, _COPY, self._shape[1] + warp)] < written
        bad &= copied | (warp != lane // 32)
        if not bad.any():
            return
        at = int(bad.argmax())
        kind, who = FaultKind.DATA_RACE, f"warp {warp[at]}"
        if copied[at]:
            kind, who = FaultKind.BULK_COPY_NOT_WAITED, "a bulk copy"
        detail = f"a lane {verb} what {who} has written, for which only another lane of its warp has waited"
        raise SiteFault(kind, detail, site, int(cta[at]), int(lane[at]), self._address(int(place[at])))

    def _check_written(self, writes: _Recorded | None, site: int, verb: str) -> None:
        self._check_other(writes, site, f"{verb} what another lane of its warp writes")

    def _check_other(self, records: _Recorded | None, site: int, what: str) -> None:
        """Checks accesses against recorded ones of other lanes of the same warps."""
        if records is None:
            return
        cta, lane, place, other, number = records
        bad = (other // 32 == lane // 32) & (other != lane)
        bad[bad] = self._known[cta[bad], lane[bad], other[bad]] < number[bad]
        if bad.any():
            at = int(bad.argmax())
            detail = f"a lane {what}, with no barrier of the warp between them"
            where = self._address(int(place[at]))
            raise SiteFault(FaultKind.DATA_RACE, detail, site, int(cta[at]), int(lane[at]), where)

    def _address(self, place: int) -> int:
        """Address in shared memory of a place's granule."""
        return place % self._granules * self._granule
