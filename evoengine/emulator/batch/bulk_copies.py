"""Bulk copies in flight (``cp.async.bulk``), and when they execute.

A copy to shared memory makes its destination *loading* from the issue to the end of the mbarrier phase that its bytes
belong to. A copy from shared memory has pending sources until a thread has waited for its read. Between these points a
GPU may execute a copy at any time. The emulator executes all copies at one of the two ends:

- *early*: when they are issued;
- *late*: copies to shared memory when no thread can run before them, those of the newest mbarrier first; copies from
  shared memory at the wait for their group, and if there is none, when the CTA has exited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count
from evoengine.emulator.batch.mbarriers import Mbarriers, Uses
from evoengine.emulator.batch.shared_memory import LOADING, READY, SharedMemory
from evoengine.emulator.checks.proxy_fences import CHUNK
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.transfers import Transfer


@dataclass(frozen=True)
class _Load:
    """Copies to shared memory."""

    transfer: Transfer
    slots: Array
    """mbarrier of each row."""
    phases: Array
    """Phase that the bytes belong to, once the copy has executed; -1 before."""

    def only(self, keep: Array) -> _Load:
        return _Load(self.transfer.only(keep), self.slots[keep], self.phases[keep])


@dataclass(frozen=True)
class _Store:
    """Copies from shared memory."""

    transfer: Transfer
    groups: Array
    """Number of the bulk group of each row."""
    words: Array | None
    """Words that a late store has read; None before the read, and for early stores."""
    reading: bool
    """Whether the sources are pending."""

    def only(self, keep: Array) -> _Store:
        words = self.words if self.words is None or len(self.words) == 1 else self.words[keep]
        return replace(self, transfer=self.transfer.only(keep), groups=self.groups[keep], words=words)


ReadGlobal = Callable[[Transfer], Array]
"""Reads the words of a copy from global memory."""
WriteGlobal = Callable[[Transfer, Array], None]
"""Writes words of a copy to global memory."""


class BulkCopies:
    """Bulk copies of one batch.

    Args:
        shared: Shared memory of the batch.
        mbarriers: mbarriers of the batch.
        late: Whether copies execute as late as possible.
    """

    def __init__(self, shared: SharedMemory, mbarriers: Mbarriers, *, late: bool) -> None:
        self._shared, self._mbarriers = shared, mbarriers
        self.late = late
        self._issued: list[_Load] = []
        """Loads that have not executed."""
        self._landing: list[_Load] = []
        """Loads whose phase is not complete."""
        self._unobserved: list[_Load] = []
        """Loads whose phase is complete, but no thread has waited for it."""
        self._committed: Array = np.zeros((shared.ctas, shared.threads), np.int64)
        """Bulk groups that each thread has committed."""
        self._stores: list[_Store] = []

    def restrict(self, rows: CtaRows, shared: SharedMemory, mbarriers: Mbarriers) -> None:
        """Restricts the copies to some of the CTAs, with their shared memory and mbarriers."""
        number = np.full(self._shared.ctas, -1)
        number[rows] = np.arange(row_count(rows))
        self._shared, self._mbarriers = shared, mbarriers
        self._committed = self._committed[rows].copy()

        def kept(copy: _Load) -> _Load:
            part = copy.only(number[copy.transfer.ctas] >= 0)
            return replace(part, transfer=replace(part.transfer, ctas=number[part.transfer.ctas]))

        for name in ("_issued", "_landing", "_unobserved"):
            parts = [kept(load) for load in getattr(self, name)]
            setattr(self, name, [load for load in parts if load.slots.size])
        stores = [store.only(number[store.transfer.ctas] >= 0) for store in self._stores]
        self._stores = [
            replace(store, transfer=replace(store.transfer, ctas=number[store.transfer.ctas]))
            for store in stores
            if store.groups.size
        ]

    # --- to shared memory ---------------------------------------------------------------------------------------

    def load(self, transfer: Transfer, uses: Uses, read: ReadGlobal) -> None:
        """Issues copies to shared memory that complete transaction bytes at mbarriers.

        Raises:
            SiteFault: A destination is in use by another asynchronous operation, or not ordered after its last use.
        """
        self._mbarriers.require_visible(uses)
        phases = self._mbarriers.phases(uses.ctas, uses.slots)
        shared, guard = self._shared, self._shared.guard
        assert guard is not None
        for rows, first in self._by_region(transfer):
            chunks = np.arange(first, first + transfer.size, CHUNK)[None, :] // CHUNK
            states = shared.region_states(transfer.ctas[rows], first, transfer.size)
            if states.max(initial=0) >= LOADING:
                self._fail(transfer, rows, "bulk copy over an mbarrier or over what another bulk copy is writing")
            guard.require_unread(chunks, self._active(transfer, rows), transfer.site)
        if shared.races is not None:
            for slot in np.unique(uses.slots).tolist():
                same = uses.slots == slot
                shared.races.bulk_write(transfer.only(same).access, slot, phases[same])
        if shared.lane_order is not None:
            shared.lane_order.bulk_write(transfer.access)
        for rows, first in self._by_region(transfer):
            chunks = np.arange(first, first + transfer.size, CHUNK)[None, :] // CHUNK
            guard.require_replaceable(chunks, self._active(transfer, rows), transfer.site)
            shared.mark_region(transfer.ctas[rows], first, transfer.size, LOADING)
        load = _Load(transfer, uses.slots, np.full(uses.slots.size, -1))
        if self.late:
            self._issued.append(load)
        else:
            self._execute(load, read)

    def _active(self, transfer: Transfer, rows: Array) -> Array | None:
        """CTAs of some rows, bool ``[ctas, 1]``; None for all."""
        active = np.zeros((self._shared.ctas, 1), np.bool_)
        active[transfer.ctas[rows]] = True
        return None if active.all() else active

    def _by_region(self, transfer: Transfer) -> list[tuple[Array, int]]:
        """Rows by the first byte of their region."""
        return [(np.flatnonzero(transfer.first == first), int(first)) for first in np.unique(transfer.first)]

    @staticmethod
    def _fail(transfer: Transfer, rows: Array, detail: str, kind: FaultKind = FaultKind.BULK_COPY_NOT_WAITED) -> None:
        row = int(rows[0])
        where = int(transfer.first[row])
        raise SiteFault(kind, detail, transfer.site, int(transfer.ctas[row]), int(transfer.lanes[row]), where)

    def _execute(self, load: _Load, read: ReadGlobal) -> None:
        transfer = load.transfer
        words = read(transfer)
        if (np.bincount(transfer.ctas) > 1).any():  # several threads of a CTA: their regions may differ
            for row in range(transfer.ctas.size):
                one = transfer.only(np.arange(transfer.ctas.size) == row)
                self._shared.put_words(
                    one.ctas, one.local, words if len(words) == 1 else words[row : row + 1], one.word
                )
        else:
            self._shared.put_words(transfer.ctas, transfer.local, words, transfer.word)
        uses = Uses(transfer.ctas, transfer.lanes, load.slots, transfer.site)
        phases = self._mbarriers.phases(uses.ctas, uses.slots)
        self._landing.append(replace(load, phases=phases))
        self._mbarriers.transact(uses, np.full(uses.slots.size, -transfer.size))
        self.settle()

    def settle(self) -> None:
        """Marks the destinations of loads whose phase is complete as ready; called when phases may have completed."""
        landing = []
        for load in self._landing:
            done = self._mbarriers.phases(load.transfer.ctas, load.slots) > load.phases
            if not done.any():
                landing.append(load)
                continue
            whole = load.only(done)
            for rows, first in self._by_region(whole.transfer):
                ctas = np.unique(whole.transfer.ctas[rows])
                self._shared.mark_region(ctas, first, whole.transfer.size, READY)
                if self._shared.lane_order is not None:
                    self._shared.lane_order.land_bulk(ctas, first, whole.transfer.size)
                assert self._shared.guard is not None
                self._shared.guard.overwrite(ctas, first // CHUNK, (first + whole.transfer.size) // CHUNK)
            self._unobserved.append(whole)
            if not done.all():
                landing.append(load.only(~done))
        self._landing = landing

    def forget_observed(self) -> None:
        """Forgets loads whose phase a thread has waited for."""
        kept = []
        for load in self._unobserved:
            missing = self._mbarriers.observed(load.transfer.ctas, load.slots) <= load.phases
            if missing.any():
                kept.append(load if missing.all() else load.only(missing))
        self._unobserved = kept

    def execute_issued(self, ctas: Array, slots: Array, read: ReadGlobal) -> bool:
        """Executes a late load of one waiting mbarrier of each CTA; returns whether there was one.

        Copies may end in any order. The mbarrier whose load was issued last comes first, so that its threads run ahead
        of those that wait for earlier loads.

        Args:
            ctas: CTAs with waiting threads, one element for each pair of CTA and mbarrier.
            slots: The mbarriers.
            read: Reads from global memory.
        """
        wanted = self._newest(set(zip(ctas.tolist(), slots.tolist(), strict=True)))
        issued, self._issued = self._issued, []
        found = False
        for load in issued:
            pairs = list(zip(load.transfer.ctas.tolist(), load.slots.tolist(), strict=True))
            now = np.array([pair in wanted for pair in pairs])
            wanted.difference_update(pairs)
            if now.any():
                self._execute(load if now.all() else load.only(now), read)
                found = True
            if not now.all():
                self._issued.append(load.only(~now))
        return found

    def _newest(self, waiting: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Selects one pair of CTA and mbarrier of each CTA: the one whose oldest load was issued last."""
        newest: dict[int, int] = {}
        for load in self._issued:
            for cta, slot in zip(load.transfer.ctas.tolist(), load.slots.tolist(), strict=True):
                if (cta, slot) in waiting:
                    waiting.remove((cta, slot))
                    newest[cta] = slot
        return set(newest.items())

    # --- from shared memory -------------------------------------------------------------------------------------

    def store(self, transfer: Transfer, write: WriteGlobal) -> None:
        """Issues copies from shared memory."""
        self._read(transfer)  # the checks of the source
        self._lock(transfer, 1)
        if self._shared.races is not None:
            self._shared.races.bulk_read(transfer.access)
        if self._shared.lane_order is not None:
            self._shared.lane_order.bulk_read(transfer.access)
        groups = self._committed[transfer.ctas, transfer.lanes]
        if self.late:
            self._stores.append(_Store(transfer, groups, None, True))
            return
        words = self._read(transfer)
        write(transfer, words)
        self._stores.append(_Store(transfer, groups, None, True))

    def commit(self, mask: Array | None) -> None:
        """Executes ``cp.async.bulk.commit_group``."""
        self._committed = self._committed + (1 if mask is None else mask.astype(np.int64))

    def wait(self, newest: int, mask: Array, write: WriteGlobal, *, read_only: bool) -> None:
        """Executes ``cp.async.bulk.wait_group`` for the active lanes, bool ``[ctas, threads]``.

        Args:
            newest: Number of latest groups that are not waited for.
            mask: Active lanes.
            write: Writes to global memory.
            read_only: Whether to wait only for the reads.
        """
        kept: list[_Store] = []
        for store in reversed(self._stores):  # copies that one wait completes have no defined order
            at = store.transfer.ctas, store.transfer.lanes
            done = mask[at] & (store.groups < self._committed[at] - newest)
            if not done.any():
                kept.append(store)
                continue
            rest = self._finish(store if done.all() else store.only(done), write, read_only=read_only)
            kept += [rest] if rest is not None else []
            if not done.all():
                kept.append(store.only(~done))
        self._stores = kept[::-1]

    def _finish(self, store: _Store, write: WriteGlobal, *, read_only: bool) -> _Store | None:
        """Completes the read of a store, and the store; returns it if its write is still pending."""
        if store.reading:
            self._lock(store.transfer, -1)
            if self._shared.races is not None:
                self._shared.races.bulk_read(store.transfer.access)
            if self._shared.lane_order is not None:
                self._shared.lane_order.end_bulk_read(store.transfer.access)
        if not self.late:
            return None
        words = self._read(store.transfer) if store.words is None else store.words
        if read_only:
            return replace(store, words=words, reading=False)
        _write_backward(store.transfer, words, write)
        return None

    def _read(self, transfer: Transfer) -> Array:
        """Words in shared memory, ``[rows, n]``, after the checks of a read."""
        shared, site = self._shared, transfer.site
        same = len(transfer.local) == 1 and transfer.inside is None and shared.is_common
        count = 1 if same else transfer.ctas.size
        found = np.zeros((count, transfer.local.shape[1]), shared.words[transfer.word].dtype)
        for row, cta in enumerate(transfer.ctas[:count].tolist()):
            inside = None if transfer.inside is None else transfer.inside[row]
            local = transfer.local[0] if len(transfer.local) == 1 else transfer.local[row]
            found[row] = shared.read_words(cta, local, transfer.word, inside, site, int(transfer.lanes[row]))
        return found

    def _lock(self, transfer: Transfer, change: int) -> None:
        guard = self._shared.guard
        assert guard is not None
        for rows, first in self._by_region(transfer):
            chunks = np.arange(first // CHUNK, (first + transfer.size) // CHUNK)[None, :]
            active = np.zeros(self._shared.ctas, np.bool_)
            active[transfer.ctas[rows]] = True
            if change > 0:
                inside = self._inside_chunks(transfer, rows)
                guard.require_fenced(chunks, active[:, None] & inside, transfer.site, "a bulk store")
            guard.lock(chunks, None if active.all() else active, change)

    def _inside_chunks(self, transfer: Transfer, rows: Array) -> Array:
        """Whether each chunk of the region has words that are stored, bool ``[ctas, n]``."""
        count = transfer.size // CHUNK
        found = np.ones((self._shared.ctas, count), np.bool_)
        if transfer.inside is None:
            return found
        for row in rows.tolist():
            local = transfer.local[0] if len(transfer.local) == 1 else transfer.local[row]
            used = np.zeros(count, np.bool_)
            used[(local[transfer.inside[row]] - int(transfer.first[row])) // CHUNK] = True
            found[int(transfer.ctas[row])] = used
        return found

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self, write: WriteGlobal) -> None:
        """Completes the batch after all its lanes have exited.

        Raises:
            SiteFault: A load was not waited for, or a store has not read its source.
        """
        self.forget_observed()
        for load in (*self._issued, *self._landing, *self._unobserved):
            self._fail(
                load.transfer, np.arange(1), "the CTA exits while this bulk copy to its shared memory is in flight"
            )
        for store in reversed(self._stores):  # as in :meth:`wait`
            if store.reading:
                detail = "the CTA exits before this bulk copy has read its shared memory; wait for its group"
                self._fail(store.transfer, np.arange(1), detail)
            if store.words is not None and self.late:
                _write_backward(store.transfer, store.words, write)
        self._stores = []


def _write_backward(transfer: Transfer, words: Array, write: WriteGlobal) -> None:
    """Writes the rows of a store, the last first: copies of one instruction by several threads have no order."""
    backward = np.arange(transfer.ctas.size)[::-1]
    write(transfer.only(backward), words if len(words) == 1 else words[backward])
