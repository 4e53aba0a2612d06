"""Detection of data races between warps in shared memory, by vector clocks.

The *epoch* of a warp increases with each barrier that it passes or arrives at, each arrival at an mbarrier, and each
release by an atomic or ``st.release`` on shared memory. Each warp has a vector clock with the last epoch of every warp
that happens before its own current one; a barrier merges the clocks of the warps that pass it, and ``bar.arrive`` only
gives its own. Two accesses to the same bytes by different warps, one of them a write, are a race unless the clock of
the later warp covers the epoch of the earlier access. Shared memory has an access record for every two bytes, or for
every byte if the kernel stores single bytes: the last writer with its epoch, and for each warp the epoch of its last
read.

An mbarrier gathers the clocks of the warps that arrive; a warp that observes the completion of a phase acquires what
was gathered until then. Bulk copies to shared memory are writes by an agent of their own for each mbarrier, whose epoch
is the phase: only a warp that observes the phase has its writes before it. A warpgroup is an agent that reads the
operands of its ``wgmma`` groups; a warp that has waited for a group has these reads before it. What bulk stores read
counts as read twice, when they are issued and when a thread has waited for them.

Atomics, ``ld.acquire`` and ``st.release`` are ordered among themselves. A warp that accesses an address in this way
acquires what was released there, with or without the fences that a GPU needs beside an atomic. An atomic and an access
of another warp that is not strong (``volatile``, ``relaxed`` or stronger) are a race like two accesses of which one is
a write. ``ld.acquire`` and ``st.release`` are not recorded. Lanes of one warp count as ordered;
:mod:`evoengine.emulator.checks.lane_order` looks at them. Races of these kinds may be missed, but no race is reported
falsely.

Arrivals at mbarriers and atomics are an exception to the order of lanes. One lane often arrives for its whole warp: it
releases what the other lanes have done before the last instruction of the whole warp (``.sync``). Their later accesses
may happen after the arrival, and are recorded again in the epoch that follows it. In PTX only ``bar.warp.sync`` and
barriers order memory. Shuffles, votes and tensor instructions count too: all lanes have then issued what precedes
them, a GPU executes the accesses of a warp to shared memory in the order of issue, and kernels rely on it. The own
access of ``ldmatrix`` or ``stmatrix`` is not covered: the ``fence.proxy.async`` that the async proxy needs comes after
it.

The detector is slow. A launch runs first under :mod:`evoengine.emulator.checks.race_prefilter`, and under the detector
only if that suspects a race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, restricted, row_count
from evoengine.emulator.checks.proxy_fences import CHUNK, FencedChunks, ProxyFences
from evoengine.emulator.checks.race_observer import GRANULE, StoredWords
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.transfers import BulkAccess

_GROUP_WARPS: Final = 4
_BESIDE_ATOMICS: Final = ("_atomic", "_weak_read", "_weak_write")
_MBARRIERS: Final = 32
"""Number of mbarriers that clocks are extended by at a time."""
_MAX_UNCONVERGED: Final = 64
"""Limit on the accesses that are kept for the lanes that arrive at mbarriers; older ones are forgotten."""


@dataclass(frozen=True)
class _Lanes:
    """Active lanes of an access to shared memory, one element each."""

    cta: Array
    lane: Array
    warp: Array
    word: Array
    """Word of ``granules`` granules in the shared memory of the CTA."""
    granules: int

    def only(self, keep: Array) -> _Lanes:
        return _Lanes(self.cta[keep], self.lane[keep], self.warp[keep], self.word[keep], self.granules)


class RaceDetector:
    """Vector clocks and access records of one batch; implements :class:`.RaceObserver`.

    Its methods raise :class:`SiteFault` at the second access of a race.

    Args:
        ctas: CTAs of the batch.
        threads: Threads per CTA, a multiple of 32.
        smem_bytes: Shared memory per CTA.
        granule: Bytes that share an access record.
        mbarriers: Whether the kernel has mbarriers.
        strong: Instructions of a kernel with atomics that are strong loads or stores; None for a kernel without atomics
            on shared memory.
    """

    def __init__(
        self,
        ctas: int,
        threads: int,
        smem_bytes: int,
        granule: int = GRANULE,
        *,
        mbarriers: bool = False,
        strong: frozenset[int] | None = None,
    ) -> None:
        self._ctas, self._threads, self._granule = ctas, threads, granule
        self._strong = strong
        self._has_mbarriers, self._one_lane_releases = mbarriers, mbarriers or strong is not None
        self._unconverged: list[tuple[_Lanes, bool]] = []
        """Accesses since the last instruction of the whole warp, and whether they write: see :meth:`end_arrival`."""
        warps = threads // 32
        granules = (smem_bytes + 15) // 16 * 16 // granule
        self._warp_count = warps
        self._readers = warps + -(-warps // _GROUP_WARPS)
        self._known = np.zeros((ctas, warps, self._readers), np.int16)
        """Vector clocks: ``[c, w, a]`` is the last epoch of agent ``a`` that is ordered before warp ``w``.

        Agents are the warps, then the warpgroups, then the mbarriers.
        """
        self._known[:, np.arange(warps), np.arange(warps)] = 1
        self._gathered = np.zeros((ctas, 0, self._readers), np.int16)
        """Joint clock of all arrivals at each mbarrier, ``[ctas, mbarriers, agents]``."""
        self._completed = self._gathered
        """The same at the end of the last complete phase."""
        self._released: dict[int, Array] = {}
        """Joint clock of what atomics and ``st.release`` have released at each address, ``[ctas, agents]``."""
        self._writer = np.zeros((ctas, granules), np.uint16)
        self._written = np.zeros((ctas, granules), np.int16)
        self._read = np.zeros((ctas, self._readers, granules), np.int16)
        beside = (0 if strong is None else ctas, warps, granules)
        self._atomic, self._weak_read, self._weak_write = (np.zeros(beside, np.int16) for _ in range(3))
        """Epoch of each warp's last atomic, and of its last read and write that was neither strong nor an atomic."""
        self._fences = ProxyFences(ctas, warps, granules * granule // CHUNK if mbarriers else 0)
        self._latest = 1
        """Upper limit of all epochs so far."""

    def barrier(self, lanes: Array | None, arrived: Array | None = None) -> None:
        """Merges the clocks of the warps of the masked lanes, in each CTA, and advances their epochs."""
        present = self._present(lanes)
        joint = np.where(present[:, :, None], self._known, 0).max(axis=1, keepdims=True)
        if arrived is not None:
            joint = np.maximum(joint, self._widened(arrived)[:, None, :])
        self._known = np.where(present[:, :, None], np.maximum(joint, self._known), self._known)
        self._advance(present)

    def arrive(self, lanes: Array) -> Array:
        """Returns the clocks of all warps, ``[ctas, warps, agents]``, and advances the epochs of those with lanes."""
        clocks = self._known.copy()
        self._advance(self._present(lanes))
        return clocks

    def _present(self, lanes: Array | None) -> Array:
        """Whether each warp has a masked lane, bool ``[ctas, warps]``."""
        warps = self._warp_count
        if lanes is None:
            return np.ones((self._ctas, warps), np.bool_)
        spread: Array = np.broadcast_to(lanes, (self._ctas, self._threads)).reshape(self._ctas, warps, 32)
        return np.asarray(spread.any(axis=2))

    def _advance(self, present: Array) -> None:
        self._reach(self._latest + 1)
        diagonal = np.arange(self._warp_count)
        self._known[:, diagonal, diagonal] += present.astype(np.int16)

    def _reach(self, epoch: int) -> None:
        """Widens clocks and records to 32 bits once an epoch does not fit 16; few kernels synchronise that often."""
        self._latest = max(self._latest, epoch)
        if self._latest > np.iinfo(self._known.dtype).max:
            for name in ("_known", "_gathered", "_completed", "_written", "_read", *_BESIDE_ATOMICS):
                setattr(self, name, getattr(self, name).astype(np.int32))
            self._released = {at: clock.astype(np.int32) for at, clock in self._released.items()}

    # --- mbarriers ----------------------------------------------------------------------------------------------

    def signal(self, mbarrier: int, ctas: Array, warps: Array, phases: Array, site: int) -> None:
        """Adds the clocks of arriving warps to the mbarrier and advances their epochs.

        An arrival that does not follow the end of the previous phase may count for it in another execution. It follows
        if the warp has observed that end, or if it follows all arrivals of that phase and the phase waited for no copy.
        """
        self._reserve(mbarrier)
        known, threads, agent = self._known[ctas, warps], slice(self._warp_count), self._readers + mbarrier
        copied = self._gathered[ctas, mbarrier, agent] == phases
        early = copied | (known[:, threads] < self._completed[ctas, mbarrier, threads]).any(axis=1)
        early &= known[:, agent] < phases
        if early.any():
            first = int(early.argmax())
            warp, phase = int(warps[first]), int(phases[first])
            detail = (
                f"warp {warp} arrives at an mbarrier in phase {phase}, but a GPU may count it in phase {phase - 1}: "
                "nothing orders the end of that phase before the arrival"
            )
            raise SiteFault(FaultKind.DATA_RACE, detail, site, int(ctas[first]), warp * 32)
        for cta, warp in zip(ctas.tolist(), warps.tolist(), strict=True):
            gathered = self._gathered[cta, mbarrier]
            np.maximum(gathered, self._known[cta, warp], out=gathered)
        self._reach(self._latest + 1)
        self._known[ctas, warps, warps] += 1

    def end_arrival(self, ctas: Array, lanes: Array) -> None:
        """Records again what the other lanes have done since the last instruction of their whole warp.

        Nothing orders it before the arrival, which has advanced the epoch of its warp. What the arriving lanes
        themselves have done is released.
        """
        arrived = np.zeros((self._ctas, self._threads), np.bool_)
        arrived[ctas, lanes] = True
        self._forget(arrived)
        self._fences.note_again(self._known)
        for access, writes in self._unconverged:
            if writes:
                self._record(access)
            else:
                self._note(self._read, access)

    def converge(self, lanes: Array | None) -> None:
        """Forgets the accesses of lanes that a later arrival releases, whichever lane of their warp it is."""
        if lanes is None:
            self._unconverged = []
            self._fences.forget(None)
        else:
            self._forget(np.broadcast_to(lanes, (self._ctas, self._threads)))

    def fence(self, lanes: Array | None, fenced: Sequence[FencedChunks]) -> None:
        """Records a proxy fence."""
        self._fences.see(self._present(lanes), self._known)
        for chunks in fenced:
            self._fences.note(chunks, self._known)

    def _forget(self, lanes: Array) -> None:
        self._fences.forget(lanes)
        left = ((access.only(~lanes[access.cta, access.lane]), writes) for access, writes in self._unconverged)
        self._unconverged = [(access, writes) for access, writes in left if access.lane.size]

    def _keep(self, lanes: _Lanes, *, writes: bool) -> None:
        """Keeps an access for :meth:`end_arrival`, but not one of a single lane per CTA, probably the arriving one."""
        if self._one_lane_releases and lanes.lane.size > self._ctas:
            self._unconverged.append((lanes, writes))
            del self._unconverged[:-_MAX_UNCONVERGED]

    def complete(self, mbarrier: int, ctas: Array, phases: Array) -> None:
        """Makes what an mbarrier has gathered available to the warps that observe these phases."""
        self._reserve(mbarrier)
        self._reach(int(phases.max(initial=0)) + 1)
        self._completed[ctas, mbarrier] = self._gathered[ctas, mbarrier]
        self._completed[ctas, mbarrier, self._readers + mbarrier] = phases + 1

    def acquire(self, mbarrier: int, ctas: Array, warps: Array) -> None:
        """Adds what the last complete phase has gathered to the clocks of warps."""
        self._reserve(mbarrier)
        self._known[ctas, warps] = np.maximum(self._known[ctas, warps], self._completed[ctas, mbarrier])

    def _reserve(self, mbarrier: int) -> None:
        """Extends the clocks by the agents of further mbarriers."""
        have = self._gathered.shape[1]
        if mbarrier < have:
            return
        more = (mbarrier + 1 - have + _MBARRIERS - 1) // _MBARRIERS * _MBARRIERS
        self._known = np.pad(self._known, ((0, 0), (0, 0), (0, more)))
        self._gathered = np.pad(self._gathered, ((0, 0), (0, more), (0, more)))
        self._completed = np.pad(self._completed, ((0, 0), (0, more), (0, more)))

    def _widened(self, clocks: Array) -> Array:
        """Clocks that may have been read before an extension, extended to all agents."""
        return np.pad(clocks, ((0, 0), (0, self._known.shape[2] - clocks.shape[1])))

    # --- bulk copies --------------------------------------------------------------------------------------------

    def bulk_write(self, access: BulkAccess, mbarrier: int, phases: Array) -> None:
        """Checks the issue of a copy against earlier accesses and records it as a write of the mbarrier's agent."""
        self._reserve(mbarrier)
        agent = self._readers + mbarrier
        for number, (cta, part) in enumerate(self._regions(access)):
            self._check_bulk(access, number, part, "overwrites what")
            warp = int(access.lanes[number]) // 32
            late = self._read[cta, :, part] > self._known[cta, warp, : self._readers, None]
            late[warp] = False
            if late.any():
                other = int(late.any(axis=1).argmax())
                self._fail_bulk(access, number, part, late[other], f"overwrites what {self._name(other)} reads")
            for writes in (True, False):
                self._check_fences(self._chunks(access, number), access.site, "a bulk copy overwrites", writes=writes)
            self._writer[cta, part] = agent
            self._written[cta, part] = self._gathered[cta, mbarrier, agent] = phases[number] + 1

    def bulk_read(self, access: BulkAccess) -> None:
        """Checks a copy from shared memory against earlier writes and records it as a read of the issuing warp."""
        for number, (cta, part) in enumerate(self._regions(access)):
            self._check_bulk(access, number, part, "reads what")
            self._check_fences(self._chunks(access, number), access.site, "a bulk copy reads", writes=True)
            warp = int(access.lanes[number]) // 32
            self._read[cta, warp, part] = self._known[cta, warp, warp]

    def _regions(self, access: BulkAccess) -> list[tuple[int, slice]]:
        """CTA and granules of each region."""
        starts = (access.first // self._granule).tolist()
        return [
            (cta, slice(start, start + access.size // self._granule))
            for cta, start in zip(access.ctas.tolist(), starts, strict=True)
        ]

    def _check_bulk(self, access: BulkAccess, number: int, part: slice, verb: str) -> None:
        """Checks one region against earlier writes."""
        cta, warp = int(access.ctas[number]), int(access.lanes[number]) // 32
        writer = self._writer[cta, part]
        late = (self._written[cta, part] > self._known[cta, warp].take(writer)) & (writer != warp)
        if late.any():
            what = f"{verb} {self._name(int(writer[int(late.argmax())]))} writes"
            self._fail_bulk(access, number, part, late, what)

    def _fail_bulk(self, access: BulkAccess, number: int, part: slice, late: Array, what: str) -> None:
        cta, lane = int(access.ctas[number]), int(access.lanes[number])
        address = (part.start + int(late.argmax())) * self._granule
        detail = f"a bulk copy issued by warp {lane // 32} {what} with no barrier between them"
        raise SiteFault(FaultKind.DATA_RACE, detail, access.site, cta, lane, address)

    def _chunks(self, access: BulkAccess, number: int) -> _Lanes:
        """The 16-byte words of one region, as accesses of the issuing lane."""
        word = np.arange(access.first[number] // CHUNK, -(-(access.first[number] + access.size) // CHUNK))
        cta, lane = (np.full(word.size, of[number]) for of in (access.ctas, access.lanes))
        return _Lanes(cta, lane, lane // 32, word, CHUNK // self._granule)

    def _check_fences(self, lanes: _Lanes, site: int, does: str, *, writes: bool) -> None:
        """Checks that fences after reads, or writes, of 16-byte words come before what the async proxy does there."""
        late, others = np.nonzero(self._fences.late(lanes.cta, lanes.warp, lanes.word, self._known, writes=writes))
        if not late.size:
            return
        cta, word = lanes.cta[late], lanes.word[late]
        seen = self._fences.seen[cta, lanes.warp[late], others][:, None]  # before a fence of the issuing warp
        if writes:
            unseen = _in_words(self._written, lanes.granules)[cta, word] > seen
            unseen &= _in_words(self._writer, lanes.granules)[cta, word] == others[:, None]
        else:
            unseen = _in_words(self._read, lanes.granules)[cta, others, word] > seen
        bad = unseen.any(axis=1)
        if bad.any():
            first = int(bad.argmax())
            did = "wrote" if writes else "read"
            detail = f"{does} what warp {int(others[first])} {did}, whose fence.proxy.async may come later"
            lane = int(lanes.lane[late[first]])
            where = int(word[first]) * CHUNK
            raise SiteFault(FaultKind.MISSING_PROXY_FENCE, detail, site, int(cta[first]), lane, where)

    def _name(self, agent: int) -> str:
        if agent < self._warp_count:
            return f"warp {agent}"
        return f"a wgmma of warpgroup {agent - self._warp_count}" if agent < self._readers else "a bulk copy"

    # --- operands of wgmma --------------------------------------------------------------------------------------

    def read_operand(self, index: Array, mask: Array | None, site: int, groups: Array) -> None:
        """Checks a read against earlier writes and records it as one of the warpgroup's next group."""
        lanes = self._select(index, 16, mask)
        self._check_writes(lanes, site, "reads what")
        if self._has_mbarriers:
            self._check_fences(lanes, site, "a wgmma reads", writes=True)
        group = lanes.warp // _GROUP_WARPS
        reads = _in_words(self._read, lanes.granules)
        reads[lanes.cta, self._warp_count + group, lanes.word] = (groups[lanes.cta, group] + 1)[:, None]

    def finish_operands(self, accesses: Sequence[tuple[Array, Array | None, int]], done: Array) -> None:
        """Adds the reads of complete groups to the clocks of the warps that have waited."""
        group = np.arange(self._warp_count) // _GROUP_WARPS
        agent = self._warp_count + group
        warps = np.arange(self._warp_count)
        self._known[:, warps, agent] = np.maximum(self._known[:, warps, agent], done[:, group])

    # --- accesses of threads ------------------------------------------------------------------------------------

    def _select(self, index: Array, size: int, mask: Array | None) -> _Lanes:
        """The active lanes of an access to words of ``size`` bytes."""
        shape = (self._ctas, self._threads)
        cta, lane = np.nonzero(np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape))
        word: Array = np.broadcast_to(index, shape)[cta, lane]
        granules = max(size // self._granule, 1)
        return _Lanes(cta, lane, lane // 32, word if size >= self._granule else word // self._granule, granules)

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a read against earlier writes, and records it."""
        self._keep(self._read_by(index, size, mask, site), writes=False)

    def touch(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks and records a use of mbarriers as a read."""
        self._read_by(index, size, mask, site)

    def _read_by(self, index: Array, size: int, mask: Array | None, site: int) -> _Lanes:
        lanes = self._select(index, size, mask)
        self._check_writes(lanes, site, "reads what")
        self._check_atomics(lanes, site, "reads what", self._weak_read)
        self._note(self._read, lanes)
        return lanes

    def write(
        self, index: Array, size: int, mask: Array | None, site: int, words: Callable[[], StoredWords] | None = None
    ) -> None:
        """Checks a write against earlier accesses, and records it."""
        lanes = self._select(index, size, mask)
        try:
            self._check_overwritten(lanes, site)
        except SiteFault:
            if words is None:
                raise
            self._check_overwritten(lanes.only(~words().unchanged[lanes.cta, lanes.lane]), site)
        self._record(lanes)
        clash = _in_words(self._writer, lanes.granules)[lanes.cta, lanes.word] != lanes.warp[:, None]
        if clash.any():
            clash &= True if words is None else ~words().agreed[lanes.cta, lanes.lane][:, None]
        if clash.any():
            self._fail(clash, lanes, site, "and another warp write different values to the same bytes")
        self._keep(lanes, writes=True)

    def _check_overwritten(self, lanes: _Lanes, site: int) -> None:
        self._check_writes(lanes, site, "overwrites what")
        self._check_atomics(lanes, site, "overwrites what", self._weak_write)
        self._check_epochs(self._read, lanes, site, "overwrites what {} reads")

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Records the completion of a cp.async as a write."""
        lanes = self._select(index, size, mask)
        self._record(lanes)
        self._keep(lanes, writes=True)

    def _check_atomics(self, lanes: _Lanes, site: int, verb: str, table: Array) -> None:
        """Checks an access that is no atomic against earlier atomics, and records it in a table."""
        if self._strong is not None and site not in self._strong:
            self._check_epochs(self._atomic, lanes, site, f"{verb} an atomic of {{}} changes")
            self._note(table, lanes)

    def _check_epochs(self, table: Array, lanes: _Lanes, site: int, what: str) -> None:
        """Checks an access against those in a table of epochs, ``[ctas, agents, granules]``."""
        epochs = _in_words(table, lanes.granules)[lanes.cta, :, lanes.word]
        late = epochs > self._known[lanes.cta, lanes.warp, : epochs.shape[1], None]
        late[np.arange(lanes.warp.size), lanes.warp] = False
        if late.any():
            other = int(late.any(axis=(0, 2)).argmax())
            self._fail(late[:, other], lanes, site, what.format(self._name(other)))

    def _note(self, table: Array, lanes: _Lanes) -> None:
        """Records the epoch of an access in a table."""
        epoch = self._known[lanes.cta, lanes.warp, lanes.warp]
        _in_words(table, lanes.granules)[lanes.cta, lanes.warp, lanes.word] = epoch[:, None]

    def synchronise(
        self, index: Array, size: int, mask: Array | None, site: int, *, acquires: bool, releases: bool
    ) -> None:
        """Passes clocks on through addresses; of one instruction, warp after warp."""
        lanes = self._select(index, size, mask)
        if acquires and releases and self._strong is not None:
            # Before this warp acquires: other accesses of the same address are not ordered by atomics at that address.
            self._check_epochs(self._weak_write, lanes, site, "changes with an atomic what {} writes")
            self._check_epochs(self._weak_read, lanes, site, "changes with an atomic what {} reads")
            self._note(self._atomic, lanes)
        places = zip(lanes.cta.tolist(), lanes.warp.tolist(), (lanes.word * lanes.granules).tolist(), strict=True)
        for cta, warp, at in dict.fromkeys(places):
            found = self._released.get(at)
            clock = np.zeros_like(self._known[:, 0]) if found is None else self._widened(found)
            known = self._known[cta, warp]
            if acquires:
                np.maximum(known, clock[cta], out=known)
            if releases:
                np.maximum(clock[cta], known, out=clock[cta])
                self._released[at] = clock
        if releases:
            released = np.zeros((self._ctas, self._threads), np.bool_)
            released[lanes.cta, lanes.lane] = True
            self._advance(self._present(released))
            self.end_arrival(lanes.cta, lanes.lane)

    def finish(self) -> None:
        """Does nothing: every access has been checked already."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the detector to some of the CTAs."""
        if self._unconverged:
            number = np.full(self._ctas, -1)
            number[rows] = np.arange(row_count(rows))
            kept = ((access.only(number[access.cta] >= 0), writes) for access, writes in self._unconverged)
            self._unconverged = [(replace(one, cta=number[one.cta]), writes) for one, writes in kept if one.lane.size]
        self._ctas = row_count(rows)
        self._fences = restricted(self._fences, rows)
        beside = _BESIDE_ATOMICS if self._strong is not None else ()
        for name in ("_known", "_gathered", "_completed", "_writer", "_written", "_read", *beside):
            setattr(self, name, getattr(self, name)[rows].copy())
        self._released = {at: clock[rows].copy() for at, clock in self._released.items()}

    def _record(self, lanes: _Lanes) -> None:
        epoch = self._known[lanes.cta, lanes.warp, lanes.warp]
        _in_words(self._writer, lanes.granules)[lanes.cta, lanes.word] = lanes.warp[:, None]
        _in_words(self._written, lanes.granules)[lanes.cta, lanes.word] = epoch[:, None]

    def _check_writes(self, lanes: _Lanes, site: int, verb: str) -> None:
        writer = _in_words(self._writer, lanes.granules)[lanes.cta, lanes.word]
        written = _in_words(self._written, lanes.granules)[lanes.cta, lanes.word]
        if lanes.granules > 1 and (writer == writer[:, :1]).all():  # nearly always: then one comparison per word
            late = written.max(axis=1) > self._known[lanes.cta, lanes.warp, writer[:, 0]]
            if not (late & (writer[:, 0] != lanes.warp)).any():
                return
        late = written > self._known[lanes.cta[:, None], lanes.warp[:, None], writer]
        late &= writer != lanes.warp[:, None]
        if late.any():
            row = int(late.any(axis=1).argmax())
            other = int(writer[row, int(late[row].argmax())])
            self._fail(late, lanes, site, f"{verb} {self._name(other)} writes")

    def _fail(self, bad: Array, lanes: _Lanes, site: int, what: str) -> None:
        row = int(bad.any(axis=1).argmax())
        granule = int(lanes.word[row]) * lanes.granules + int(bad[row].argmax())
        detail = f"warp {int(lanes.warp[row])} {what} with no barrier between them"
        cta, lane = int(lanes.cta[row]), int(lanes.lane[row])
        raise SiteFault(FaultKind.DATA_RACE, detail, site, cta, lane, granule * self._granule)


def _in_words(table: Array, granules: int) -> Array:
    """A view of records, ``[..., granules]``, by words of several granules: ``[..., words, granules]``."""
    return table.reshape(*table.shape[:-1], -1, granules)
