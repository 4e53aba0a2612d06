"""Reads of operands in shared memory by ``wgmma``, from the issue of an instruction to the wait for its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count, select_rows
from evoengine.emulator.batch.shared_memory import SharedMemory

GROUP_LANES: Final = 128
"""Lanes of a warpgroup."""


Access = tuple[Array, Array | None, int]
"""Word index per lane, active lanes, instruction."""


@dataclass(frozen=True)
class _Read:
    """Operands of one warpgroup in one instruction."""

    warpgroup: int
    chunks: Array
    """16-byte chunks, ``[1 or ctas, n]``."""
    group: Array
    """Number of the wgmma group, ``[ctas]``."""
    pending: Array
    """CTAs in which the read is pending, bool ``[ctas]``."""
    accesses: tuple[Access, ...]
    """The same as word indices per lane, for the race observer."""


class OperandReads:
    """Pending operands of one batch.

    Warpgroups count their groups as threads do in :mod:`evoengine.emulator.batch.async_copy`.
    """

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self._committed: Array = np.zeros((shared.ctas, -(-shared.threads // GROUP_LANES)), np.int64)
        self._reads: list[_Read] = []

    def restrict(self, rows: CtaRows, shared: SharedMemory) -> None:
        """Restricts the reads to some of the CTAs, with their shared memory."""
        ctas, self._shared = self._shared.ctas, shared
        self._committed = self._committed[rows].copy()
        self._reads = [
            replace(
                read,
                chunks=select_rows(read.chunks, rows, ctas),
                group=read.group[rows],
                pending=read.pending[rows],
                accesses=tuple(
                    (select_rows(index, rows, ctas), None if mask is None else select_rows(mask, rows, ctas), site)
                    for index, mask, site in read.accesses
                ),
            )
            for read in self._reads
        ]
        assert len(self._committed) == row_count(rows)

    def _present(self, mask: Array | None) -> Array:
        """Whether each warpgroup has active lanes, bool ``[ctas, warpgroups]``."""
        ctas, groups = self._committed.shape
        if mask is None:
            return np.ones((ctas, groups), np.bool_)
        spread: Array = np.broadcast_to(mask, (ctas, self._shared.threads))
        starts = np.arange(groups) * GROUP_LANES
        return np.asarray(np.logical_or.reduceat(spread, starts, axis=1))

    def issue(self, addresses: Sequence[Array], mask: Array | None, site: int) -> None:
        """Records the operands of an instruction.

        Args:
            addresses: Byte addresses of 16-byte chunks, each ``[1 or ctas, threads]``.
            mask: Active lanes, whole warpgroups.
            site: Index of the instruction.

        Raises:
            SiteFault: A thread wrote an operand without a proxy fence since.
        """
        guard, races = self._shared.guard, self._shared.races
        if guard is None or not addresses:
            return
        indices = [(address >> 4).astype(np.intp) for address in addresses]
        if races is not None:
            for index in indices:
                races.read_operand(index, mask, site, self._committed)
        present = self._present(mask)
        numbers = np.flatnonzero(present.any(axis=0)).tolist()
        for number in numbers:
            lanes = slice(number * GROUP_LANES, (number + 1) * GROUP_LANES)
            own = mask if len(numbers) == 1 else self._only(mask, lanes)
            accesses = tuple((index, own, site) for index in indices) if races is not None else ()
            rows = max(map(len, indices))
            parts = [np.broadcast_to(index[:, lanes], (rows, GROUP_LANES)) for index in indices]
            chunks = np.concatenate(parts, axis=1)
            pending = present[:, number].copy()
            some = None if pending.all() else pending
            if some is not None and rows > 1:
                chunks = np.where(some[:, None], chunks, 0)  # lanes that are not active may hold any descriptor
            guard.require_fenced(chunks, None if some is None else some[:, None], site, "a wgmma")
            guard.lock(chunks, some, 1)
            self._reads.append(_Read(number, chunks, self._committed[:, number].copy(), pending, accesses))

    def _only(self, mask: Array | None, lanes: slice) -> Array:
        """The active lanes of one warpgroup."""
        own = np.zeros((1, self._shared.threads), np.bool_)
        own[:, lanes] = True
        return own if mask is None else mask & own

    def commit(self, mask: Array | None) -> None:
        """Executes ``wgmma.commit_group``."""
        self._committed = self._committed + self._present(mask)

    def wait(self, newest: int, mask: Array | None) -> None:
        """Executes ``wgmma.wait_group``: completes all but the ``newest`` groups of the active warpgroups."""
        guard, races = self._shared.guard, self._shared.races
        if guard is None:
            return
        present = self._present(mask)
        finished = np.where(present, np.maximum(self._committed - newest, 0), 0)
        kept: list[_Read] = []
        accesses: list[Access] = []
        for read in self._reads:
            done = read.pending & (read.group < finished[:, read.warpgroup])
            if not done.any():
                kept.append(read)
                continue
            guard.lock(read.chunks, None if done.all() else done, -1)
            rest = read.pending & ~done
            if not rest.any():
                accesses += read.accesses
                continue
            rows = done[:, None]
            accesses += [(index, rows if own is None else rows & own, site) for index, own, site in read.accesses]
            kept.append(replace(read, pending=rest))
        self._reads = kept
        if races is not None:
            races.finish_operands(accesses, finished)
