"""Shared memory of a batch of CTAs, with a state for every granule of two bytes.

A granule is *unwritten*, *ready*, half of it is ready (its *lower* or its *upper* byte), *pending* (a cp.async into it
is in flight), *landed* (the issuing thread has waited for the cp.async, but no barrier has followed), *loading* (a bulk
copy into it is in flight) or part of an *mbarrier*. Only ready bytes may be read, and landed bytes by the warp that
copied them. Loading bytes and mbarriers may not be written either.

CTAs of one kernel mostly access the same shared addresses. As long as all accesses are to the same bytes in all CTAs,
one row of states represents all CTAs; after the first that differs, each CTA has its own row. Contents work alike: one
row represents all CTAs as long as all have stored the same values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, restricted, row_count, select_rows
from evoengine.emulator.checks.async_guard import AsyncGuard
from evoengine.emulator.checks.lane_order import LaneOrder
from evoengine.emulator.checks.race_observer import RaceObserver, StoredWords
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.words import SHIFT, WORD, collapse_equal_rows, differ, require_stored, select

UNWRITTEN, LOWER, UPPER, READY, PENDING, LANDED, LOADING, MBARRIER = range(8)
_STATE_WORD: Final = {1: np.uint8, 2: np.uint8, 4: np.uint16, 8: np.uint32, 16: np.uint64}
"""Type that holds the states of a word, one byte per granule, by word size in bytes."""
_OWNER_WORD: Final = {4: np.uint8, 8: np.uint16, 16: np.uint32}
"""Type that holds the owners of a word, one byte per four bytes, by word size in bytes."""


def _fill(state: int, size: int) -> Any:
    word = _STATE_WORD[size]
    return np.frombuffer(bytes([state]) * np.dtype(word).itemsize, word)[0]


_FILL: Final = {(state, size): _fill(state, size) for state in range(8) for size in (1, 2, 4, 8, 16)}


class SharedMemory:
    """Shared memory, ``[1 or ctas, bytes]``, viewed as words of 1 to 16 bytes.

    Args:
        ctas: CTAs of the batch.
        size: Bytes per CTA.
        threads: Threads per CTA, a multiple of 32.
        races: Observer of every access; None to skip race detection.
        guard: Records of what asynchronous operations read; None if the kernel has none of them.
        space: Name of the state space and of those that share it, for messages.
    """

    def __init__(
        self,
        ctas: int,
        size: int,
        threads: int,
        races: RaceObserver | None = None,
        guard: AsyncGuard | None = None,
        space: tuple[str, str] = ("shared", "CTA"),
    ) -> None:
        self._space = space
        self.races = races
        self.guard = guard
        self.lane_order: LaneOrder | None = None
        """Check of the order between lanes of a warp; None to skip it."""
        self.copying = False
        """Whether a cp.async is in flight."""
        self.ctas = ctas
        self.size = size
        self.threads = threads
        padded = max(16, (size + 15) // 16 * 16)
        self._set_contents(np.full((1, padded), 0xFF, np.uint8))  # poison: NaN in every float type
        self._set_states(np.zeros((1, padded // 2), np.uint8), np.zeros((1, padded // 4), np.uint8))
        self._warps = (np.arange(threads, dtype=np.uint32) // 32)[None, :]
        by_byte = self._warps * np.uint32(0x01010101)
        self._own_words = {n: by_byte.astype(word) for n, word in _OWNER_WORD.items()}

    def _set_contents(self, raw: Array) -> None:
        rows = np.arange(len(raw), dtype=np.int64)[:, None]
        self.words: dict[int, Array] = {n: raw.view(WORD[n]) for n in WORD}
        self.row = {n: rows * (raw.shape[1] // n) for n in WORD}

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the memory to some of the CTAs; the caller replaces ``races``."""
        self._set_states(*(select_rows(one, rows, self.ctas).copy() for one in (self._state[2], self._owner[4])))
        raw = self.words[1]
        self._set_contents(np.ascontiguousarray(raw[rows]) if len(raw) == self.ctas else raw.copy())
        self.guard = restricted(self.guard, rows) if self.guard is not None else None
        self.lane_order = restricted(self.lane_order, rows) if self.lane_order is not None else None
        self.ctas = row_count(rows)

    def _set_states(self, state: Array, owner: Array) -> None:
        rows = np.arange(len(state), dtype=np.int64)[:, None]
        self._state = {n: state.view(_STATE_WORD[n]) for n in WORD}
        self._owner = {n: owner.view(_OWNER_WORD[n]) for n in _OWNER_WORD}
        self._state_row = {n: rows * words.shape[1] for n, words in self._state.items()}

    def _separate_states(self) -> None:
        """Gives each CTA its own row of states."""
        if len(self._state[2]) < self.ctas:
            self._set_states(*(np.repeat(one, self.ctas, axis=0) for one in (self._state[2], self._owner[4])))

    @property
    def is_common(self) -> bool:
        """Whether one row of contents and one row of states represent all CTAs."""
        return len(self.words[1]) == len(self._state[2]) == 1

    def separate_contents(self) -> None:
        """Gives each CTA its own row of contents."""
        if len(self.words[1]) < self.ctas:
            self._set_contents(np.repeat(self.words[1], self.ctas, axis=0))

    def index(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        """Word index within the CTA, after bounds and alignment checks.

        Raises:
            SiteFault: An active lane is out of bounds or misaligned.
        """
        if address.size == 1:
            value = int(address[0, 0])
            fine = value + size <= self.size and not value & (size - 1)
        else:
            highest, ored = np.maximum.reduce(address, axis=None), np.bitwise_or.reduce(address, axis=None)
            fine = int(highest) + size <= self.size and not int(ored) & (size - 1)
        if not fine:
            address = self._checked(address, size, mask, site)
        return (address >> np.uint32(SHIFT[size])).astype(np.intp)

    def _checked(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        misaligned = (address & np.uint32(size - 1)) != 0
        outside = address.astype(np.int64) + size > self.size
        bad = misaligned | outside
        if mask is not None:
            bad = bad & mask
        if bad.any():
            cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
            where = int(np.broadcast_to(address, bad.shape)[cta, lane])
            if np.broadcast_to(outside, bad.shape)[cta, lane]:
                kind, detail = (
                    FaultKind.OUT_OF_BOUNDS,
                    f"{self._space[0]} access of {size} bytes outside the {self.size} bytes of the {self._space[1]}",
                )
            else:
                kind, detail = FaultKind.MISALIGNED, f"{self._space[0]} access of {size} bytes"
            raise SiteFault(kind, detail, site, int(cta), int(lane), where)
        return np.where(misaligned | outside, np.uint32(0), address)

    def gather(
        self,
        address: Array,
        size: int,
        mask: Array | None,
        site: int,
        *,
        atomic: bool = False,
        cross_warp: bool = False,
        proxy: bool = False,
        whole_warp: bool = False,
    ) -> Array:
        """Words at the lanes' addresses, ``[1 or ctas, 1 or threads]``.

        Args:
            address: Byte address per lane.
            size: Bytes per word.
            mask: Active lanes; None for all.
            site: Index of the instruction.
            atomic: Whether the read belongs to an atomic or is an ``ld.acquire``; these are not reported to the race
                observer as reads.
            cross_warp: Whether a lane reads on behalf of other warps; landed bytes are then faults for all warps.
            proxy: Whether the async proxy reads; the caller reports such reads to the race observer.
            whole_warp: Whether the lanes of each warp read together, as in ``ldmatrix``.

        Raises:
            SiteFault: An active lane is out of bounds or misaligned, or reads bytes that are not ready.
        """
        index = self.index(address, size, mask, site)
        if index.shape[0] == 1:
            flat = index[0]
            words = np.asarray(self.words[size].take(flat, axis=1))
            state = self._state[size].take(flat if size > 1 else flat >> 1, axis=1)
        else:
            words, states = self.words[size], self._state[size]
            words = words.reshape(-1).take(index if len(words) == 1 else index + self.row[size])
            within = index if size > 1 else index >> 1
            state = states.reshape(-1).take(within if len(states) == 1 else within + self._state_row[size])
        if (state != _FILL[READY, size]).any():
            self._check_readable(state, index, size, mask, site, cross_warp)
        if self.races is not None and not atomic and not proxy:
            self.races.read(index, size, mask, site)
        if self.lane_order is not None and not atomic and not proxy:
            self.lane_order.read(index, size, mask, site, whole_warp=whole_warp)
        if self.guard is not None and not proxy:
            self.guard.note_read(index, size, mask)
        return collapse_equal_rows(words)

    def _check_readable(
        self, state: Array, index: Array, size: int, mask: Array | None, site: int, cross_warp: bool
    ) -> None:
        """Raises :class:`SiteFault` unless each word is ready, or has landed and was copied by the reading warp."""
        bad = state != _FILL[READY, size]
        if mask is not None:
            bad = bad & mask
        if size == 1:
            bad = bad & (state != LOWER + (index & 1))
        if not cross_warp and self._landed_by_reader(state, bad, index, size):
            return
        shape = (len(bad), self.threads)
        bad = np.broadcast_to(bad, shape)
        index = np.broadcast_to(index, shape)
        wide = np.broadcast_to(state, shape)
        ctas, lanes = np.nonzero(bad)
        if ctas.size == 0:
            return
        parts = np.ascontiguousarray(wide[ctas, lanes]).view(np.uint8).reshape(ctas.size, -1)
        byte_address = index[ctas, lanes] * size
        owner = self._owner[4][ctas if len(self._owner[4]) > 1 else 0, byte_address // 4]
        own = (owner == self._warps[0, lanes]) & ((parts == READY) | (parts == LANDED)).all(axis=1) & (not cross_warp)
        if own.all():
            return
        first = int((~own).argmax())
        states = set(parts[first].tolist())
        if LOADING in states:
            kind, detail = (
                FaultKind.BULK_COPY_NOT_WAITED,
                "read of shared memory while a bulk copy into it is in flight",
            )
        elif MBARRIER in states:
            kind, detail = FaultKind.ILLEGAL_VALUE, "read of an mbarrier object"
        elif PENDING in states:
            kind, detail = FaultKind.CP_ASYNC_NOT_WAITED, "read of shared memory while a cp.async into it is in flight"
        elif LANDED in states and UNWRITTEN not in states:
            kind = FaultKind.CP_ASYNC_NOT_WAITED
            detail = (
                f"read of data that warp {int(owner[first])} copied with cp.async, without a barrier after its wait"
            )
        else:
            kind = FaultKind.UNINITIALISED_READ
            detail = f"read of {self._space[0]} memory that has not been written"
        raise SiteFault(kind, detail, site, int(ctas[first]), int(lanes[first]), int(byte_address[first]))

    def _landed_by_reader(self, state: Array, bad: Array, index: Array, size: int) -> bool:
        """Whether all ``bad`` words have landed completely and were copied by the reading warp: a fast common case."""
        if size not in _OWNER_WORD or ((state != _FILL[LANDED, size]) & bad).any():
            return False
        owners = self._owner[size]
        found = owners.reshape(-1).take(index if len(owners) == 1 else index + self._state_row[size])
        return not ((found != self._own_words[size]) & bad).any()

    def scatter(
        self,
        address: Array,
        words: Array,
        size: int,
        mask: Array | None,
        site: int,
        *,
        release: bool = False,
        whole_warp: bool = False,
    ) -> None:
        """Stores words and marks them ready; of lanes with equal addresses the highest one wins.

        Args:
            address: Byte address per lane.
            words: Words to store.
            size: Bytes per word.
            mask: Active lanes; None for all.
            site: Index of the instruction.
            release: Whether the store is a ``st.release``, which is not reported to the race observer as a write.
            whole_warp: Whether the lanes of each warp store together, as in ``stmatrix``.
        """
        index = self.index(address, size, mask, site)
        if release:
            self._note_ordered(index, size, mask, site, acquires=False)
        else:
            compare = functools.partial(self._stored_words, index, words, size, mask)
            self.note_write(index, size, mask, site, whole_warp=whole_warp, words=compare)
        self.put(index, words, size, mask)
        if self.lane_order is not None:
            require_stored(index, self._contents_at(index, size), words, size, mask, site)
        if size > 1:
            self.mark(index, READY, size, mask)
        else:
            self._mark_bytes(index, mask)

    def _mark_bytes(self, index: Array, mask: Array | None) -> None:
        """Marks bytes at checked indices as ready."""
        if _is_common(index, mask):
            at, halves = select(index >> 1, (LOWER + (index & 1)).astype(np.uint8), mask)
            rows = list(self._state[2])
        else:
            self._separate_states()
            at, halves = select((index >> 1) + self._state_row[2], (LOWER + (index & 1)).astype(np.uint8), mask)
            rows = [self._state[2].reshape(-1)]
        for row in rows:
            row[at] = np.minimum(row[at], READY)  # what was landed is complete
            np.bitwise_or.at(
                row, at.reshape(-1), halves.reshape(-1)
            )  # LOWER | UPPER is READY; lanes may share granules

    def _contents_at(self, index: Array, size: int) -> Array:
        """Words at checked indices."""
        return self.words[size].reshape(-1).take(index if len(self.words[size]) == 1 else index + self.row[size])

    def _stored_words(self, index: Array, words: Array, size: int, mask: Array | None) -> StoredWords:
        """Compares words with those in memory, and with those of other lanes, before they are stored."""
        shape = (self.ctas, self.threads)
        at = np.broadcast_to(index + np.arange(self.ctas)[:, None] * (self.words[size].shape[1] + 1), shape)
        before = self._contents_at(index, size)
        values: Array = np.ascontiguousarray(np.broadcast_to(words, shape)).reshape(-1)
        active = np.arange(at.size) if mask is None else np.flatnonzero(np.broadcast_to(mask, shape))
        latest = np.zeros(at.max() + 1, np.int64)
        latest[at.reshape(-1)[active]] = active
        old: Array = np.ascontiguousarray(np.broadcast_to(before, shape)).reshape(-1)
        same = (~differ(values, other).reshape(shape) for other in (old, values[latest[at.reshape(-1)]]))
        return StoredWords(*same)

    def note_write(
        self,
        index: Array,
        size: int,
        mask: Array | None,
        site: int,
        *,
        whole_warp: bool = False,
        words: Callable[[], StoredWords] | None = None,
    ) -> None:
        """Checks and records a write by threads at checked indices; ``whole_warp`` as in :meth:`scatter`.

        ``words`` compares the stored words with those in memory and of other lanes; None if all of them count.

        Raises:
            SiteFault: An asynchronous operation accesses these bytes, or they belong to an mbarrier.
        """
        if self.copying:
            self._check_no_copy(index, size, mask, site)
        if self.guard is not None:
            self._check_writable(index, size, mask, site)
            self.guard.write(index, size, mask, site)
        if self.races is not None:
            self.races.write(index, size, mask, site, words)
        if self.lane_order is not None:
            self.lane_order.write(index, size, mask, site, whole_warp=whole_warp, words=words)

    def _states(self, index: Array, size: int) -> Array:
        """States of the granules at checked indices, uint8 ``[ctas, threads, granules]``."""
        within = index if size > 1 else index >> 1
        states = self._state[size]
        if len(index) == 1:
            state = states.take(within[0], axis=1)
        else:
            state = states.reshape(-1).take(within if len(states) == 1 else within + self._state_row[size])
        return np.ascontiguousarray(state).view(np.uint8).reshape(*state.shape, -1)

    def _check_no_copy(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Raises :class:`SiteFault` if a cp.async is copying to one of the words: no order is defined between both."""
        bad = (self._states(index, size) == PENDING).any(axis=2)
        if mask is not None:
            bad = bad & mask
        if bad.any():
            cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
            where = int(np.broadcast_to(index, bad.shape)[cta, lane]) * size
            detail = "write to shared memory while a cp.async into it is in flight"
            raise SiteFault(FaultKind.CP_ASYNC_NOT_WAITED, detail, site, int(cta), int(lane), where)

    def note_atomic(self, address: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks and records the write of an atomic; atomics at one address synchronise their warps."""
        self._note_ordered(self.index(address, size, mask, site), size, mask, site, acquires=True)

    def _note_ordered(self, index: Array, size: int, mask: Array | None, site: int, *, acquires: bool) -> None:
        if self.guard is not None:
            self._check_writable(index, size, mask, site)
            self.guard.write(index, size, mask, site)
        if self.races is not None:
            self.races.synchronise(index, size, mask, site, acquires=acquires, releases=True)
        if self.lane_order is not None and acquires:
            self.lane_order.atomic(mask)

    def _check_writable(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        parts = self._states(index, size)
        if parts.max() < LOADING:
            return
        highest: Array = parts.max(axis=2)
        bad = highest >= LOADING if mask is None else (highest >= LOADING) & mask
        if not bad.any():
            return
        cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
        if np.broadcast_to(highest, bad.shape)[cta, lane] == LOADING:
            kind, detail = (
                FaultKind.BULK_COPY_NOT_WAITED,
                "write to shared memory while a bulk copy into it is in flight",
            )
        else:
            kind, detail = FaultKind.ILLEGAL_VALUE, "write over an mbarrier object"
        where = int(np.broadcast_to(index, bad.shape)[cta, lane]) * size
        raise SiteFault(kind, detail, site, int(cta), int(lane), where)

    def read_words(self, cta: int, address: Array, size: int, inside: Array | None, site: int, lane: int) -> Array:
        """Words that the async proxy reads.

        Args:
            cta: Row of the CTA.
            address: Aligned byte addresses, ``[n]``.
            size: Bytes per word.
            inside: Words that are used, bool ``[n]``; None for all. The others are not checked.
            site: Index of the instruction.
            lane: Issuing thread.

        Raises:
            SiteFault: A word is not ready.
        """
        index = address >> SHIFT[size]
        states = self._state[size]
        state = states[cta if len(states) > 1 else 0].take(index if size > 1 else index >> 1)
        bad = state != _FILL[READY, size]
        if inside is not None:
            bad = bad & inside
        if bad.any():
            first = int(bad.argmax())
            parts = set(np.ascontiguousarray(state[first : first + 1]).view(np.uint8).tolist())
            kind, detail = FaultKind.UNINITIALISED_READ, "bulk copy of shared memory that has not been written"
            if LOADING in parts:
                kind, detail = FaultKind.BULK_COPY_NOT_WAITED, "bulk copy of what another bulk copy is writing"
            elif PENDING in parts or LANDED in parts:
                kind, detail = FaultKind.CP_ASYNC_NOT_WAITED, "bulk copy of what a cp.async copies, without a barrier"
            raise SiteFault(kind, detail, site, cta, lane, int(address[first]))
        words = self.words[size]
        return np.asarray(words[cta if len(words) > 1 else 0].take(index))

    # --- regions of asynchronous copies -------------------------------------------------------------------------

    def region_states(self, rows: Array, first: int, size: int) -> Array:
        """States of the granules of a region, ``[1 or rows, granules]``; ``rows`` are numbers of CTAs."""
        states = self._state[2]
        part = states[:, first // 2 : (first + size) // 2]
        return part if len(states) == 1 else part[rows]

    def mark_region(self, rows: Array, first: int, size: int, state: int) -> None:
        """Sets the state of a region of ``size`` bytes from byte ``first`` on in some CTAs, given by number."""
        columns = slice(first // 2, (first + size) // 2)
        if rows.size == self.ctas:
            self._state[2][:, columns] = state
        else:
            self._separate_states()
            self._state[2][rows, columns] = state

    def put_words(self, rows: Array, address: Array, words: Array, size: int) -> None:
        """Stores words in some CTAs.

        Args:
            rows: Numbers of the CTAs, each once.
            address: Aligned byte addresses, ``[1 or rows, n]``.
            words: Words, ``[1 or rows, n]``.
            size: Bytes per word.
        """
        index = address >> SHIFT[size]
        if rows.size == self.ctas and len(index) == len(words) == 1:
            self.words[size][:, index[0]] = words[0]
            return
        self.separate_contents()
        self.words[size][rows[:, None], index] = words

    def put(self, index: Array, words: Array, size: int, mask: Array | None) -> None:
        """Stores words at checked indices."""
        if len(words) > 1 or not _is_common(index, mask):
            self.separate_contents()
        flat, words = select(index + self.row[size], words, mask)
        self.words[size].reshape(-1)[flat] = words

    def mark(self, index: Array, state: int, size: int, mask: Array | None) -> None:
        """Sets the state of words at checked indices."""
        fill = _FILL[state, size]
        if _is_common(index, mask):
            self._state[size][:, index[0] if mask is None else select(index, mask, mask)[0]] = fill
            return
        self._separate_states()
        flat = index + self._state_row[size]
        self._state[size].reshape(-1)[flat if mask is None else select(flat, mask, mask)[0]] = fill

    def set_owner(self, index: Array, size: int, mask: Array | None) -> None:
        """Records the warps whose cp.async wrote the words, which have at least four bytes."""
        warps = self._own_words[size]
        if _is_common(index, mask):
            flat, owners = select(index, warps, mask)
            self._owner[size][:, flat.reshape(-1)] = owners.reshape(-1)
            return
        self._separate_states()
        flat, owners = select(index + self._state_row[size], warps, mask)
        self._owner[size].reshape(-1)[flat] = owners


def _is_common(index: Array, mask: Array | None) -> bool:
    """Whether an access is to the same words in all CTAs."""
    return index.shape[0] == 1 and (mask is None or mask.shape[0] == 1)
