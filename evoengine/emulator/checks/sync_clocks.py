"""Knowledge of each warp of a launch about the earlier writes of other warps, for the publication check.

The clock of the launch counts barriers, fences and strong accesses. A write is stamped with the clock at which it
executes, and a warp's knowledge of another warp is the latest stamp whose writes are ordered before the warp's next
access:

- A barrier merges the knowledge of the warps of a CTA that pass it. An atomic, ``ld.acquire`` or ``st.release`` on
  shared memory, or a use of an mbarrier, merges it with what earlier ones of the CTA have published.
- A fence of at least GPU scope marks the knowledge of its warp as *fenced*: ready to be published. Fences are
  cumulative, so this includes the writes of other warps before the last barrier.
- An atomic, or another strong write, publishes at its address what its warp has fenced; one with release semantics
  publishes all knowledge of its warp. A warp that reads the address with an atomic or a strong load acquires all of it.

Source: PTX ISA, chapter "Memory Consistency Model", release and acquire patterns and causality order. Three rules are
weaker than there, so that no correct kernel is rejected: the lanes of a warp count as one thread, a fence may precede
the barrier instead of the atomic, and the reading side needs no fence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array


@dataclass(frozen=True, eq=False)
class _Release:
    """Knowledge that one strong write published."""

    cta: int
    known: Array
    """Published stamp of each warp of the CTA, ``[warps]``."""
    inherited: _Acquired
    """Acquisitions of the releasing warp."""


_Log = list[_Release]
"""Releases at one address, up to the present; a write that does not read the old value starts a new log."""
_Acquired = Mapping[int, tuple[_Log, int]]
"""Number of known releases of each log, by identity of the log. Never changed in place."""
_NOTHING: Final[_Acquired] = {}


class SyncClocks:
    """Clocks of all warps of one launch.

    Warps are numbered through the launch: ``cta * warps + warp``. Arrays of CTA numbers are distinct.

    Args:
        ctas: CTAs of the launch.
        warps: Warps per CTA.
    """

    def __init__(self, ctas: int, warps: int) -> None:
        self.now = 1
        """Clock; 0 stands for no knowledge."""
        self._warps = warps
        self._known = np.zeros((ctas, warps, warps), np.int32)
        """``[c, w, v]``: latest stamp of warp ``v`` of the same CTA that warp ``w`` knows."""
        self._fenced = np.zeros((ctas, warps, warps), np.int32)
        self._changed = np.zeros(ctas, np.bool_)
        """CTAs that wrote, fenced or acquired since their last barrier of all warps; others need no merge."""
        self._idle = True
        """Whether no CTA has changed so far."""
        self._acquired: dict[int, _Acquired] = {}
        """Acquisitions of each warp from other CTAs; warps without an entry have none."""
        self._logs: dict[int, _Log] = {}
        self._shares = np.zeros(ctas, np.bool_)
        """CTAs that have published knowledge on their shared memory."""
        self._shared_known = np.zeros((ctas, warps), np.int32)
        self._shared_fenced = np.zeros((ctas, warps), np.int32)
        """Stamps published there."""
        self._shared_acquired: dict[int, _Acquired] = {}
        """Acquisitions published there."""
        self._reach: dict[int, tuple[_Acquired, Array]] = {}
        """Knowledge about every warp of the launch that follows from acquisitions, by their identity."""
        self._latest_reach: tuple[bytes, Array] | None = None
        """Readers of the last query and what they know; None after a change."""

    def note_change(self, ctas: Array) -> None:
        """Notes that some CTAs have written to global memory."""
        self._changed[ctas] = True
        self._idle = False

    # --- events within a CTA ------------------------------------------------------------------------------------

    def barrier(self, ctas: Array, present: Array) -> None:
        """Merges the knowledge of the warps that pass a barrier.

        Args:
            ctas: CTAs with warps at the barrier.
            present: Whether each warp passes, bool ``[1 or ctas, warps]``.
        """
        if self._idle:
            return
        changed = self._changed[ctas]
        if not changed.any():
            return
        present = np.broadcast_to(present, (len(ctas), self._warps))[changed]
        ctas = ctas[changed]
        known = self._stamped(ctas, present)
        for table, values in ((self._known, known), (self._fenced, self._fenced[ctas])):
            joint = np.where(present[:, :, None], values, 0).max(axis=1, keepdims=True)
            table[ctas] = np.where(present[:, :, None], np.maximum(joint, values), table[ctas])
        if self._acquired:
            for cta, warps in zip(ctas.tolist(), present, strict=True):
                self._merge_acquired([cta * self._warps + warp for warp in np.flatnonzero(warps).tolist()])
        self._changed[ctas[present.all(axis=1)]] = False
        self.now += 1

    def fence(self, ctas: Array, present: Array) -> None:
        """Records a fence of at least GPU scope by the present warps, bool ``[ctas, warps]``."""
        known = self._stamped(ctas, present)
        self._fenced[ctas] = np.where(present[:, :, None], np.maximum(self._fenced[ctas], known), self._fenced[ctas])
        self.note_change(ctas)
        self.now += 1

    def shared_atomic(self, ctas: Array, present: Array) -> None:
        """Records an atomic on shared memory by the present warps, bool ``[ctas, warps]``, which orders them."""
        if self._idle:
            return
        concerned = self._changed[ctas] | self._shares[ctas]
        if concerned.any():
            self._share(ctas[concerned], present[concerned])
        self.now += 1

    def _share(self, ctas: Array, present: Array) -> None:
        """Merges what the present warps know with what is published on the shared memory of their CTAs."""
        mine = present[:, :, None]
        for table, shared, values in (
            (self._known, self._shared_known, self._stamped(ctas, present)),
            (self._fenced, self._shared_fenced, self._fenced[ctas]),
        ):
            joint = np.maximum(shared[ctas], np.where(mine, values, 0).max(axis=1))
            table[ctas] = np.where(mine, np.maximum(values, joint[:, None, :]), table[ctas])
            shared[ctas] = joint
        self._shares[ctas] = self._changed[ctas] = True
        for row, cta in enumerate(ctas.tolist() if self._acquired or self._shared_acquired else ()):
            warps = (cta * self._warps + np.flatnonzero(present[row])).tolist()
            own = (self._acquired.get(warp, _NOTHING) for warp in warps)
            acquired = _merged([self._shared_acquired.get(cta, _NOTHING), *own])
            self._set_acquired(warps, acquired)
            self._shared_acquired[cta] = acquired

    def _stamped(self, ctas: Array, present: Array) -> Array:
        """The knowledge of the warps of some CTAs, where present warps know all of their own writes."""
        known = self._known[ctas]
        diagonal = np.arange(self._warps)
        known[:, diagonal, diagonal] = np.where(present, self.now, known[:, diagonal, diagonal])
        return known

    # --- events between CTAs ------------------------------------------------------------------------------------

    @property
    def can_skip_relaxed(self) -> bool:
        """Whether strong accesses without release semantics have nothing to publish or acquire yet."""
        return self._idle and not self._logs

    def release(self, warp: int, address: int, *, releasing: bool, replaces: bool) -> None:
        """Publishes the knowledge of a warp, or the fenced part of it.

        Args:
            warp: Warp, numbered through the launch.
            address: Address of the strong write.
            releasing: Whether the write has release semantics.
            replaces: Whether the write does not read the old value, which ends the release sequence there.
        """
        cta, own = divmod(warp, self._warps)
        known = (self._known if releasing else self._fenced)[cta, own].copy()
        if releasing:
            known[own] = self.now
        inherited = self._acquired.get(warp, _NOTHING)
        if replaces:
            self._logs.pop(address, None)
        if inherited or known.any():
            self._logs.setdefault(address, []).append(_Release(cta, known, inherited))

    def acquire(self, warp: int, address: int) -> None:
        """Adds everything published at an address to the knowledge of a warp."""
        log = self._logs.get(address)
        if log is None:
            return
        old = self._acquired.get(warp, _NOTHING)
        if id(log) not in old or old[id(log)][1] < len(log):
            self._acquired[warp] = {**old, id(log): (log, len(log))}
            self._latest_reach = None
            self._changed[warp // self._warps] = True

    def has_observed(self, warp: int, address: int) -> bool:
        """Whether a warp has acquired all that is published at an address: writes there precede its next access."""
        log = self._logs.get(address)
        return log is not None and self._acquired.get(warp, _NOTHING).get(id(log), (log, -1))[1] == len(log)

    def forget(self, addresses: Iterable[int]) -> None:
        """Ends the release sequences at addresses that are overwritten by a weak store."""
        for address in self._logs.keys() & set(addresses):
            del self._logs[address]

    def ordered(self, readers: Array, writers: Array) -> Array:
        """The latest stamp of each writer that is ordered before the next access of the reader, for pairs of warps."""
        found = self._published(readers, writers)
        ctas, within = np.divmod(readers, self._warps)
        same = ctas == writers // self._warps
        if same.any():
            known = self._known[ctas[same], within[same], writers[same] % self._warps]
            found[same] = np.maximum(found[same], known)
        return found

    def _published(self, readers: Array, writers: Array) -> Array:
        """The latest stamp of each writer that was published to the reader by atomics or other strong accesses."""
        present = np.zeros(self._known.shape[0] * self._warps, np.bool_)
        present[readers] = True
        distinct = np.flatnonzero(present)
        key = distinct.tobytes()
        if self._latest_reach is None or self._latest_reach[0] != key:
            rows = [self._reach_of(self._acquired.get(reader, _NOTHING)) for reader in distinct.tolist()]
            self._latest_reach = (key, np.stack(rows))
        return np.array(self._latest_reach[1][(np.cumsum(present) - 1)[readers], writers])

    def _reach_of(self, acquired: _Acquired) -> Array:
        """The latest known stamp of every warp of the launch, following acquisitions of acquisitions."""
        found = self._reach.get(id(acquired))
        if found is not None:
            return found[1]
        reach = np.zeros(self._known.shape[:2], np.int32)
        seen: dict[int, int] = {}
        pending = list(acquired.values())
        while pending:
            log, count = pending.pop()
            for entry in log[seen.get(id(log), 0) : count]:
                np.maximum(reach[entry.cta], entry.known, out=reach[entry.cta])
                pending += entry.inherited.values()
            seen[id(log)] = max(seen.get(id(log), 0), count)
        self._reach[id(acquired)] = (acquired, reach.reshape(-1))
        return reach.reshape(-1)

    def _merge_acquired(self, warps: list[int]) -> None:
        own = [self._acquired.get(warp, _NOTHING) for warp in warps]
        if any(one is not own[0] for one in own):
            self._set_acquired(warps, _merged(own))

    def _set_acquired(self, warps: list[int], acquired: _Acquired) -> None:
        if acquired:
            self._latest_reach = None
            self._acquired.update(dict.fromkeys(warps, acquired))


def _merged(parts: Iterable[_Acquired]) -> _Acquired:
    """The union of several acquisitions, with the larger number of releases of each log."""
    whole: dict[int, tuple[_Log, int]] = {}
    for part in parts:
        for key, (log, count) in part.items():
            if key not in whole or whole[key][1] < count:
                whole[key] = (log, count)
    return whole
