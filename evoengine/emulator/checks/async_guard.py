"""Records of shared memory that asynchronous operations access: pending operands, and accesses without a proxy fence.

``wgmma`` and bulk stores read shared memory through the async proxy at any time between their issue and the wait for
them. Their operands must not be written in that time, and a thread that wrote them before must have executed a
``fence.proxy.async`` since. The same fence is needed between accesses by a thread and a bulk copy that overwrites the
bytes: on an H100, copies that waited for an arrival at an mbarrier overtook the ``ldmatrix`` before that arrival
(docs/results/overtaken-reads-h100.md). Source: PTX ISA 9.0, "Async proxy" and "wgmma.mma_async". A record stands for 16
bytes. One row represents all CTAs as long as all accesses are the same in all of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count, select_rows
from evoengine.emulator.checks.proxy_fences import CHUNK, FencedChunks
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.words import SHIFT, select

_ANY_THREAD: Final = 0xFFFF
"""Writer of data whose copy no thread waited for: a fence by any thread publishes it."""


class AsyncGuard:
    """Records of one batch.

    Indices count 16-byte chunks, ``[1 or ctas, n]``. Masks are bool and broadcast to the shape of the index.

    Args:
        ctas: CTAs of the batch.
        size: Bytes of shared memory.
        threads: Threads per CTA.
        overwritten: Whether bulk copies write shared memory, before which reads by threads need a fence too.
    """

    def __init__(self, ctas: int, size: int, threads: int, *, overwritten: bool) -> None:
        self._ctas, self._threads, self._overwritten = ctas, threads, overwritten
        chunks = max(CHUNK, size + CHUNK - 1) // CHUNK
        self._readers: Array = np.zeros((1, chunks), np.uint16)
        """Pending asynchronous reads."""
        self._writers: Array = np.zeros((1, chunks), np.uint16)
        """Thread number + 1 of the last write that no proxy fence has followed; 0 for none."""
        self._seen: Array = np.zeros((1, chunks), np.uint16)
        """The same for the last read by a thread."""
        self._thread = np.arange(1, threads + 1, dtype=np.uint16)[None, :]

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the records to some of the CTAs."""
        self._readers, self._writers, self._seen = (
            select_rows(table, rows, self._ctas).copy() for table in (self._readers, self._writers, self._seen)
        )
        self._ctas = row_count(rows)

    # --- writes by threads --------------------------------------------------------------------------------------

    def write(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks and records a write by threads.

        Args:
            index: Word index per lane, checked.
            size: Bytes per word.
            mask: Active lanes.
            site: Index of the instruction.

        Raises:
            SiteFault: A pending asynchronous operation reads these bytes.
        """
        chunk = index >> (4 - SHIFT[size])
        self.require_unread(chunk, mask, site)
        self.note_write(chunk, mask)

    def require_unread(self, chunk: Array, mask: Array | None, site: int) -> None:
        """Raises :class:`SiteFault` if a pending asynchronous operation reads a chunk."""
        if not self._readers.any():
            return
        bad = _take(self._readers, chunk) != 0
        if mask is not None:
            bad = bad & mask
        if bad.any():
            cta, lane, where = _first(bad, chunk)
            detail = "write to shared memory that a pending wgmma or bulk store reads"
            raise SiteFault(FaultKind.OPERAND_IN_FLIGHT, detail, site, cta, lane, where)

    def note_write(self, chunk: Array, mask: Array | None, *, by_any: bool = False) -> None:
        """Records a write that a proxy fence must follow; ``by_any`` if the fence of any thread suffices."""
        threads = np.full_like(self._thread, _ANY_THREAD) if by_any else self._thread
        self._writers = self._noted(self._writers, chunk, threads, mask)

    def note_read(self, index: Array, size: int, mask: Array | None) -> None:
        """Records a read by threads, which a proxy fence must follow before a bulk copy overwrites it.

        Args:
            index: Word index per lane, checked.
            size: Bytes per word.
            mask: Active lanes.
        """
        if self._overwritten:
            self._seen = self._noted(self._seen, index >> (4 - SHIFT[size]), self._thread, mask)

    def _noted(self, table: Array, chunk: Array, threads: Array, mask: Array | None) -> Array:
        """Returns a table of last accesses, updated with those of the active lanes."""
        if chunk.shape[0] == 1 and (mask is None or len(mask) == 1):
            flat, last = select(chunk, threads, mask)
            table[:, flat.reshape(-1)] = last.reshape(-1)
            return table
        table = self._separate(table)
        flat, last = select(chunk + self._row_starts(), threads, mask)
        table.reshape(-1)[flat] = last
        return table

    def fence(self, mask: Array | None) -> tuple[FencedChunks, FencedChunks]:
        """Executes ``fence.proxy.async`` in the active lanes.

        Returns:
            What they had written and, where bulk copies may overwrite it, read.
        """
        fenced = np.ones((1, _ANY_THREAD + 1), np.bool_)
        if mask is not None:
            active = np.broadcast_to(mask, (len(mask), self._threads))
            fenced = np.zeros((len(mask), _ANY_THREAD + 1), np.bool_)
            fenced[:, 1 : self._threads + 1] = active
            fenced[:, _ANY_THREAD] = active.any(axis=1)
        self._writers, written = self._cleared(self._writers, fenced, writes=True)
        self._seen, read = self._cleared(self._seen, fenced, writes=False)
        return written, read

    def _cleared(self, last: Array, fenced: Array, *, writes: bool) -> tuple[Array, FencedChunks]:
        """Forgets accesses of threads that have executed a fence, bool ``[1 or ctas, thread + 1]``."""
        if len(fenced) > 1:
            last = self._separate(last)
        rows, chunks = np.nonzero(last)
        threads = last[rows, chunks]
        gone = fenced[rows if len(fenced) > 1 else 0, threads]
        rows, chunks, threads = rows[gone], chunks[gone], threads[gone]
        last[rows, chunks] = 0
        known = threads != _ANY_THREAD
        ctas, lanes, chunks = rows[known], threads[known].astype(np.intp) - 1, chunks[known]
        if len(last) < self._ctas:  # the row stands for all CTAs
            ctas = np.repeat(np.arange(self._ctas), lanes.size)
            lanes, chunks = np.tile(lanes, self._ctas), np.tile(chunks, self._ctas)
        return last, FencedChunks(ctas, lanes, chunks, writes)

    # --- reads and writes by the async proxy --------------------------------------------------------------------

    def require_fenced(self, chunk: Array, mask: Array | None, site: int, reader: str) -> None:
        """Raises :class:`SiteFault` if a thread wrote a chunk without a proxy fence since.

        Args:
            chunk: Chunks that the async proxy reads.
            mask: Chunks that count; None for all.
            site: Index of the instruction.
            reader: Name of the operation.
        """
        self._require_none(self._writers, chunk, mask, site, f"{reader} reads what", "wrote")

    def require_replaceable(self, chunk: Array, mask: Array | None, site: int) -> None:
        """Raises :class:`SiteFault` if a thread read or wrote a chunk without a proxy fence since.

        Args:
            chunk: Chunks that a bulk copy overwrites.
            mask: Chunks that count; None for all.
            site: Index of the instruction.
        """
        for table, did in ((self._writers, "wrote"), (self._seen, "read")):
            self._require_none(table, chunk, mask, site, "a bulk copy overwrites what", did)

    @staticmethod
    def _require_none(table: Array, chunk: Array, mask: Array | None, site: int, does: str, did: str) -> None:
        last = _take(table, chunk)
        bad = last != 0 if mask is None else (last != 0) & mask
        if bad.any():
            cta, lane, where = _first(bad, chunk)
            thread = int(np.broadcast_to(last, bad.shape)[cta, lane]) - 1
            who = "a cp.async" if thread == _ANY_THREAD - 1 else f"thread {thread}"
            detail = f"{does} {who} {did} without a fence.proxy.async since"
            raise SiteFault(FaultKind.MISSING_PROXY_FENCE, detail, site, cta, None, where)

    def lock(self, chunk: Array, rows: Array | None, change: int) -> None:
        """Adds to the number of pending reads of chunks.

        Args:
            chunk: Chunks, ``[1 or ctas, n]``.
            rows: CTAs, bool ``[ctas]``; None for all.
            change: 1 at the issue, -1 when the read has completed.
        """
        step = np.uint16(change & 0xFFFF)
        if rows is None and len(chunk) == 1:
            self._readers[:, chunk[0]] += step
            return
        self._readers = self._separate(self._readers)
        every: Any = np.arange(self._ctas) if rows is None else np.flatnonzero(rows)
        self._readers[every[:, None], chunk if len(chunk) == 1 else chunk[every]] += step

    def overwrite(self, rows: Array, first: int, last: int) -> None:
        """Records that the async proxy writes the chunks ``first`` to ``last`` - 1 of some CTAs, given by number."""
        if rows.size == self._ctas:
            self._writers[:, first:last] = 0
        elif self._writers.any():
            self._writers = self._separate(self._writers)
            self._writers[rows, first:last] = 0

    def _separate(self, table: Array) -> Array:
        return np.asarray(np.repeat(table, self._ctas, axis=0)) if len(table) < self._ctas else table

    def _row_starts(self) -> Array:
        return np.asarray(np.arange(self._ctas, dtype=np.int64)[:, None] * self._writers.shape[1])


def _take(table: Array, chunk: Array) -> Array:
    if len(chunk) == 1:
        return np.asarray(table.take(chunk[0], axis=1))
    rows = np.arange(len(chunk))[:, None] if len(table) > 1 else np.zeros((1, 1), np.int64)
    return np.asarray(table[rows, chunk])


def _first(bad: Array, chunk: Array) -> tuple[int, int, int]:
    """CTA, lane and address of the first chunk that is set."""
    cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
    return int(cta), int(lane), int(np.broadcast_to(chunk, bad.shape)[cta, lane]) * CHUNK
