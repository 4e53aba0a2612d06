"""Local memory of the threads of one batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, restricted
from evoengine.emulator.batch.shared_memory import SharedMemory
from evoengine.emulator.faults import SiteFault


class LocalMemory:
    """Local memory, stored as shared memory with one row per thread.

    Args:
        ctas: CTAs of the batch.
        threads: Threads per CTA.
        size: Bytes per thread.
    """

    def __init__(self, ctas: int, threads: int, size: int) -> None:
        self._ctas, self._threads = ctas, threads
        self._rows = SharedMemory(ctas * threads, size, 32, space=("local", "thread"))

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the memory to the threads of some of the CTAs."""
        kept = np.arange(self._ctas * self._threads).reshape(self._ctas, self._threads)[rows]
        self._rows, self._ctas = restricted(self._rows, kept.reshape(-1)), len(kept)

    def load(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        """Words at the threads' addresses, ``[ctas, threads]``.

        Raises:
            SiteFault: An active thread is out of bounds or misaligned, or reads what it has not written.
        """
        rows, active = self._column(address, np.uint32), None if mask is None else self._column(mask)
        try:
            words = self._rows.gather(rows, size, active, site)
        except SiteFault as fault:
            raise self._in_thread(fault) from None
        return np.ascontiguousarray(np.broadcast_to(words, rows.shape)).reshape(self._ctas, self._threads)

    def store(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Stores one word per thread.

        Raises:
            SiteFault: An active thread is out of bounds or misaligned.
        """
        rows, active = self._column(address, np.uint32), None if mask is None else self._column(mask)
        try:
            self._rows.scatter(rows, self._column(words), size, active, site)
        except SiteFault as fault:
            raise self._in_thread(fault) from None

    def _column(self, values: Array, dtype: Any = None) -> Array:
        """One value per thread, ``[ctas * threads, 1]``."""
        return (
            np.broadcast_to(values, (self._ctas, self._threads))
            .astype(dtype or values.dtype, copy=False)
            .reshape(-1, 1)
        )

    def _in_thread(self, fault: SiteFault) -> SiteFault:
        """The fault with CTA and thread instead of the row of the thread."""
        assert fault.cta is not None
        cta, lane = divmod(fault.cta, self._threads)
        return SiteFault(fault.kind, fault.detail, fault.site, cta, lane, fault.address)
