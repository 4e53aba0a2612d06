"""Check of the order in global memory: what one warp reads of another one's writes must come before.

CTAs run in any order on a GPU, so a value that another CTA has written is defined only if an atomic, or another strong
access, orders the write before the read; one that another warp of the same CTA has written, only if a barrier, an
mbarrier or an atomic on shared memory does. :mod:`evoengine.emulator.checks.sync_clocks` states when it is so. The
check depends on these rules alone, not on the order in which the emulator runs CTAs and warps.

Global memory has an access record for every two bytes: the last writer, and its write with stamp and instruction. Reads
of allocations that the launch does not write cost nothing. Faults are:

- a read of what another CTA wrote and did not publish to the reader (``unpublished_read``), unless both accesses are
  strong: an atomic, or ``volatile`` or ``relaxed`` and stronger, of at least GPU scope;
- any read of what another CTA wrote through the non-coherent cache (``ld.global.nc``);
- a write of another value over what another CTA wrote and did not publish to the writer (``unordered_write``);
- the same between warps of one CTA with no barrier between them (``data_race``).

Accesses of a single byte are not checked, nor are writes over what another warp has only read.
:mod:`evoengine.emulator.checks.lane_order` looks at the order between lanes of a warp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.checks.sync_clocks import SyncClocks
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.address_space import GLOBAL_BASE
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.transfers import Transfer
from evoengine.emulator.memory.words import SHIFT, differ
from evoengine.emulator.ptx.control_flow import is_strong
from evoengine.emulator.ptx.records import Entry, Instruction

_GRANULE: Final = 2
"""Bytes that share an access record."""


@dataclass(frozen=True)
class _Lanes:
    """Active lanes of one access, flattened."""

    position: Array
    """Number of the lane in its batch."""
    word: Array
    """Index of the word in global memory."""
    warp: Array
    """Warp, numbered through the launch."""


@dataclass(frozen=True)
class _Order:
    """Memory ordering of an instruction."""

    strong: bool
    """Whether it is ordered with the strong accesses of other CTAs to the same address."""
    releasing: bool
    noncoherent: bool


def _order_of(ins: Instruction) -> _Order:
    strong = is_strong(ins)
    return _Order(strong, strong and not {"release", "acq_rel"}.isdisjoint(ins.parts), "nc" in ins.parts)


class PublicationCheck:
    """Access records and clocks of one launch.

    Methods take the linear numbers of the CTAs of the running batch, one per row. They raise :class:`SiteFault`.

    Args:
        entry: Entry that is launched.
        memory: Global memory; nothing may be allocated during the launch.
        grid: CTAs per axis.
        threads: Threads per CTA, rounded up to whole warps.
    """

    def __init__(self, entry: Entry, memory: GlobalMemory, grid: tuple[int, int, int], threads: int) -> None:
        self._entry = entry
        self._memory = memory
        self._grid = grid
        self._threads = threads
        self._warps = threads // 32
        self._clocks = SyncClocks(math.prod(grid), self._warps)
        records = memory.view(1).size // _GRANULE
        # calloc: pages of allocations that are never written stay unmapped.
        self._writer = np.zeros(records, np.int32)
        """Last writer of each granule: its warp number + 1, negative for a strong write; 0 for none."""
        self._event = np.zeros(records, np.int32)
        """Number of the last write of each granule among those of the launch."""
        self._events: list[tuple[int, int]] = []
        """Stamp and instruction of each write."""
        self._stamps: Array = np.zeros(0, np.int32)
        """Stamps of the first writes, as an array."""
        self._proxy_fences = np.zeros(math.prod(grid), np.int32)
        """Number of writes of the launch before the last ``fence.proxy.async`` of each CTA."""
        self._released: set[int | None] = set()
        """Allocations with strong writes; None stands for any."""
        self._warp_of = (np.arange(threads) // 32)[None, :]
        self._written: set[int | None] = set()
        """Allocations that the launch has written; None stands for any."""
        self._orders: dict[int, _Order] = {}

    # --- synchronisation ----------------------------------------------------------------------------------------

    def barrier(self, ctas: Array, lanes: Array | None) -> None:
        """Observes a barrier, in each CTA among the warps of the masked lanes."""
        self._clocks.barrier(ctas, self._warps_of(ctas, lanes))

    def fence(self, ctas: Array, lanes: Array | None) -> None:
        """Observes a fence of at least GPU scope by the masked lanes."""
        self._clocks.fence(ctas, self._warps_of(ctas, lanes))

    def proxy_fence(self, ctas: Array, lanes: Array | None) -> None:
        """Observes a proxy fence by the masked lanes; those of a CTA count as one thread."""
        self._proxy_fences[ctas[self._warps_of(ctas, lanes).any(axis=1)]] = len(self._events)

    def shared_atomic(self, ctas: Array, lanes: Array | None) -> None:
        """Observes an atomic, ``ld.acquire``, ``st.release`` or use of an mbarrier in shared memory by masked lanes."""
        self._clocks.shared_atomic(ctas, self._warps_of(ctas, lanes))

    def _warps_of(self, ctas: Array, lanes: Array | None) -> Array:
        """Whether each warp has a masked lane, bool ``[ctas, warps]``."""
        if lanes is None:
            return np.ones((len(ctas), self._warps), np.bool_)
        spread: Array = np.broadcast_to(lanes, (len(ctas), self._threads))
        return np.asarray(spread.reshape(len(ctas), self._warps, 32).any(axis=2))

    # --- accesses -----------------------------------------------------------------------------------------------

    def load(self, ctas: Array, address: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a load; a strong one acquires. To be called after the access, which has passed the bounds check."""
        if not self._is_written(self._memory.last_allocation):
            return
        order = self._order(site)
        lanes = self._flatten(ctas, address, size, mask)
        if size >= _GRANULE:
            self._check(lanes, size, site, order, None)
        if order.strong and not self._clocks.can_skip_relaxed:
            for warp, word, _ in _distinct(lanes):
                self._clocks.acquire(warp, word << SHIFT[size])

    def store(self, ctas: Array, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks and records a store, whose words are those of each lane; to be called before the access."""
        order = self._order(site)
        self._memory.index(address, size, mask, site)  # the bounds check
        lanes = self._flatten(ctas, address, size, mask)
        if not lanes.word.size:
            return
        values = np.broadcast_to(words, (len(ctas), self._threads)).reshape(-1)[lanes.position]
        if size >= _GRANULE and self._is_written(self._memory.last_allocation):
            self._check(lanes, size, site, order, values)
        self._record(lanes, ctas, size, site, order)
        if size >= _GRANULE and not order.strong:
            self._check_within(lanes, size, site, order, values)
        if self._clocks.can_skip_relaxed and not order.releasing:
            return
        if order.strong:
            for warp, word, _ in _distinct(lanes):
                self._clocks.release(warp, word << SHIFT[size], releasing=order.releasing, replaces=True)
            self._clocks.now += 1
            self._released.add(self._memory.last_allocation)
        elif self._memory.last_allocation in self._released or None in self._released:
            self._clocks.forget((lanes.word << SHIFT[size]).tolist())

    def atomic(
        self, ctas: Array, address: Array, size: int, mask: Array | None, site: int, writes: Array | None
    ) -> None:
        """Checks and records an atomic, which acquires and then publishes, lane by lane; to be called after the access.

        ``writes`` marks the lanes that may change the word, None for all: a failed compare-and-swap publishes nothing.
        """
        order = self._order(site)
        lanes = self._flatten(ctas, address, size, mask)
        if not lanes.word.size:
            return
        if self._is_written(self._memory.last_allocation):
            self._check(lanes, size, site, order, None)
        if order.strong and (order.releasing or not self._clocks.can_skip_relaxed):
            shape = (len(ctas), self._threads)
            changing = True if writes is None else np.broadcast_to(writes, shape).reshape(-1)[lanes.position]
            for warp, word, changes in _distinct(lanes, changing):
                self._clocks.acquire(warp, word << SHIFT[size])
                if changes:
                    self._clocks.release(warp, word << SHIFT[size], releasing=order.releasing, replaces=False)
            self._clocks.now += 1
            self._released.add(self._memory.last_allocation)
        self._record(lanes, ctas, size, site, order)

    def load_bulk(self, ctas: Array, transfer: Transfer) -> None:
        """Checks the read of a bulk copy; to be called after it."""
        if not self._is_written(self._memory.last_allocation):
            return
        lanes, _ = self._flatten_bulk(ctas, transfer)
        if transfer.word >= _GRANULE:
            self._check(lanes, transfer.word, transfer.site, self._order(transfer.site), None)
            self._check_proxy(lanes, lanes.word * (transfer.word // _GRANULE), transfer.site, "reads")

    def _check_proxy(self, lanes: _Lanes, granule: Array, site: int, does: str) -> None:
        """Checks that a proxy fence of the writing or the accessing CTA follows what threads have written."""
        writer, event = np.abs(self._writer.take(granule)), self._event.take(granule)
        fenced = np.maximum(*(self._proxy_fences[warp // self._warps] for warp in (writer - 1, lanes.warp)))
        late = (writer > 0) & (event >= fenced)
        for row in np.flatnonzero(late).tolist():
            written_by = self._events[int(event[row])][1]
            if self._entry.instructions[written_by].name == "cp":
                continue
            address, (cta_row, lane) = int(granule[row]) * _GRANULE, divmod(int(lanes.position[row]), self._threads)
            detail = (
                f"{does} what threads wrote to {self._memory.name_at(address + GLOBAL_BASE)} (PTX line "
                f"{self._entry.instructions[written_by].line}) without a fence.proxy.async since"
            )
            raise SiteFault(FaultKind.MISSING_PROXY_FENCE, detail, site, cta_row, lane, address + GLOBAL_BASE)

    def store_bulk(self, ctas: Array, transfer: Transfer, words: Array) -> None:
        """Checks and records the write of a bulk copy; to be called before it."""
        size, site, order = transfer.word, transfer.site, self._order(transfer.site)
        self._memory.index(transfer.remote, size, transfer.inside, site)  # the bounds check
        lanes, inside = self._flatten_bulk(ctas, transfer)
        if not lanes.word.size:
            return
        values: Array = np.broadcast_to(words, transfer.remote.shape)[inside]
        if size >= _GRANULE and self._is_written(self._memory.last_allocation):
            self._check(lanes, size, site, order, None if order.strong else values)
            at = differ(self._memory.view(size)[lanes.word], values) | order.strong  # a reduction reads, too
            changing = _Lanes(lanes.position[at], lanes.word[at], lanes.warp[at])
            self._check_proxy(changing, changing.word * (size // _GRANULE), site, "overwrites")
        self._record(lanes, ctas[transfer.ctas], size, site, order)
        if order.strong:
            return
        if size >= _GRANULE:
            self._check_within(lanes, size, site, order, values)
        if self._memory.last_allocation in self._released or None in self._released:
            self._clocks.forget((lanes.word << SHIFT[size]).tolist())

    def _flatten_bulk(self, ctas: Array, transfer: Transfer) -> tuple[_Lanes, Array]:
        """The words within bounds, as accesses of the issuing threads, and whether each word is, bool ``[rows, n]``."""
        shape = transfer.remote.shape
        inside = np.ones(shape, np.bool_) if transfer.inside is None else transfer.inside
        word = (transfer.remote - np.uint64(GLOBAL_BASE)).view(np.int64) >> SHIFT[transfer.word]
        warp = ctas[transfer.ctas] * self._warps + transfer.lanes // 32
        position = transfer.ctas * self._threads + transfer.lanes
        spread = [np.broadcast_to(values[:, None], shape)[inside] for values in (position, warp)]
        return _Lanes(spread[0], word[inside], spread[1]), inside

    def is_strong(self, site: int) -> bool:
        """Whether an instruction is ordered with the strong accesses of other CTAs to the same address."""
        return self._order(site).strong

    def _order(self, site: int) -> _Order:
        found = self._orders.get(site)
        if found is None:
            found = self._orders[site] = _order_of(self._entry.instructions[site])
        return found

    def _is_written(self, allocation: int | None) -> bool:
        return bool(self._written) and (allocation is None or allocation in self._written or None in self._written)

    def _flatten(self, ctas: Array, address: Array, size: int, mask: Array | None) -> _Lanes:
        shape = (len(ctas), self._threads)
        word: Array = np.broadcast_to((address - np.uint64(GLOBAL_BASE)).view(np.int64) >> SHIFT[size], shape)
        warp: Array = np.broadcast_to((ctas * self._warps)[:, None] + self._warp_of, shape)
        if mask is None:
            return _Lanes(np.arange(word.size), word.reshape(-1), warp.reshape(-1))
        active = np.broadcast_to(mask, shape)
        return _Lanes(np.flatnonzero(active), word[active], warp[active])

    def _record(self, lanes: _Lanes, ctas: Array, size: int, site: int, order: _Order) -> None:
        self._written.add(self._memory.last_allocation)
        if size < _GRANULE:
            self._writer[lanes.word // _GRANULE] = 0
            return
        writer = (lanes.warp + 1) * (-1 if order.strong else 1)
        count = size // _GRANULE
        self._writer.reshape(-1, count)[lanes.word] = writer[:, None]
        self._event.reshape(-1, count)[lanes.word] = len(self._events)
        self._events.append((self._clocks.now, site))
        self._clocks.note_change(ctas)

    # --- checks -------------------------------------------------------------------------------------------------

    def _check(self, lanes: _Lanes, size: int, site: int, order: _Order, values: Array | None) -> None:
        """Compares an access with the last writes by other warps; ``values`` are the words that a store writes."""
        count = size // _GRANULE
        first = lanes.word * count
        self._check_granules(lanes, size, first, site, order, values)
        last = first + (count - 1)  # what lies between was almost always written with one of the two
        if count > 1 and any((table.take(first) != table.take(last)).any() for table in (self._writer, self._event)):
            self._check_granules(lanes, size, last, site, order, values)

    def _check_granules(
        self, lanes: _Lanes, size: int, granule: Array, site: int, order: _Order, values: Array | None
    ) -> None:
        """Checks one granule of each lane's word."""
        record = self._writer.take(granule)
        foreign = record > 0 if order.strong else record != 0
        if not order.noncoherent:
            foreign &= np.abs(record) - 1 != lanes.warp
        if values is not None and foreign.any():
            foreign &= differ(self._memory.view(size).take(lanes.word), values)
        if foreign.any():
            address = lanes.word << SHIFT[size]
            self._check_foreign(
                lanes, np.flatnonzero(foreign), granule, address, site, order, writes=values is not None
            )

    def _check_foreign(
        self, lanes: _Lanes, rows: Array, granule: Array, address: Array, site: int, order: _Order, *, writes: bool
    ) -> None:
        """Checks that the last writes by other warps come first; ``rows`` are the lanes that access such writes."""
        if order.noncoherent:
            self._fail(lanes, int(rows[0]), int(granule[rows[0]]), site, order, writes=writes)
        at = granule[rows]
        event = self._event.take(at)
        known = self._clocks.ordered(lanes.warp[rows], np.abs(self._writer.take(at)) - 1)
        if event.max() > len(self._stamps) - 1:
            self._stamps = np.array([stamp for stamp, _ in self._events], np.int32)
        late = self._stamps.take(event) > known
        for place in np.flatnonzero(late & (self._writer.take(at) < 0)).tolist():  # what an atomic has written itself
            row = rows[place]
            late[place] = not self._clocks.has_observed(int(lanes.warp[row]), int(address[row]))
        if late.any():
            row = int(rows[late.argmax()])
            self._fail(lanes, row, int(granule[row]), site, order, writes=writes)

    def _check_within(self, lanes: _Lanes, size: int, site: int, order: _Order, values: Array) -> None:
        """Checks that no two warps have just written different values to one word, by the same instruction."""
        granule = lanes.word * (size // _GRANULE)
        if (self._writer.take(granule) == lanes.warp + 1).all():
            return
        latest = np.zeros(lanes.word.max() + 1 - lanes.word.min(), np.int64)
        at = lanes.word - lanes.word.min()
        latest[at] = np.arange(at.size)
        winner = latest[at]
        clash = lanes.warp != lanes.warp[winner]
        clash &= differ(values, values[winner])
        if clash.any():
            row = int(clash.argmax())
            self._fail(lanes, row, int(granule[row]), site, order, writes=True)

    def _fail(self, lanes: _Lanes, row: int, granule: int, site: int, order: _Order, *, writes: bool) -> None:
        cta, warp = divmod(abs(int(self._writer[granule])) - 1, self._warps)
        x, y, _ = self._grid
        block = (cta % x, cta // x % y, cta // (x * y))
        line = self._entry.instructions[self._events[int(self._event[granule])][1]].line
        address = granule * _GRANULE + GLOBAL_BASE
        source = f"what warp {warp} of block {block} wrote to {self._memory.name_at(address)} at PTX line {line}"
        if cta == int(lanes.warp[row]) // self._warps and not order.noncoherent:
            kind = FaultKind.DATA_RACE
            detail = f"{'overwrites with another value' if writes else 'reads'} {source} with no barrier between them"
        elif writes:
            kind, detail = FaultKind.UNORDERED_WRITE, f"overwrites with another value {source}, in no fixed order"
        elif order.noncoherent:
            kind, detail = FaultKind.UNPUBLISHED_READ, f"reads through the non-coherent cache {source}"
        else:
            kind = FaultKind.UNPUBLISHED_READ
            detail = f"reads {source} without publishing it (barrier, GPU-scope fence, atomic)"
        cta_row, lane = divmod(int(lanes.position[row]), self._threads)
        raise SiteFault(kind, detail, site, cta_row, lane, address)


def _distinct(lanes: _Lanes, flags: Array | bool = True) -> list[tuple[int, int, bool]]:
    """Warps, words and flags in the order of the lanes, without repetitions of neighbours."""
    warp, word, flag = lanes.warp, lanes.word, np.broadcast_to(flags, lanes.warp.shape)
    keep = np.ones(warp.size, np.bool_)
    keep[1:] = (warp[1:] != warp[:-1]) | (word[1:] != word[:-1]) | (flag[1:] != flag[:-1])
    return list(zip(warp[keep].tolist(), word[keep].tolist(), flag[keep].tolist(), strict=True))
