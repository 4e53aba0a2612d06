"""Record of the last writes of lanes to global memory, for the check of their order within a warp."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.memory.global_memory import GlobalMemory
from evoengine.emulator.memory.words import differ

_GRANULE: Final = 2
"""Bytes that share a record. Writes of single bytes are not recorded."""


class GlobalWrites:
    """Last weak write of every granule by a launch. Reads of allocations that it has not written cost little.

    Args:
        memory: Global memory; nothing may be allocated during the launch.
        threads: Threads per CTA.
    """

    def __init__(self, memory: GlobalMemory, threads: int) -> None:
        self._memory, self._threads = memory, threads
        records = memory.view(1).size // _GRANULE  # calloc: what is never written stays unmapped
        self._thread, self._number = np.zeros(records, np.int32), np.zeros(records, np.int32)
        """Writing thread, numbered through the launch from 1 on, and number of the write; 0 for none."""
        self._written: set[int | None] = set()
        """Allocations with recorded writes; None stands for any."""

    def may_be_written(self, size: int) -> bool:
        """Whether the allocation of the last bounds check may hold recorded writes of words of this size."""
        allocation = self._memory.last_allocation
        return (
            size >= _GRANULE
            and bool(self._written)
            and (allocation is None or bool(self._written & {allocation, None}))
        )

    def found(self, threads: Array, word: Array, size: int) -> tuple[Array, Array] | None:
        """Looks up the last writes where threads access memory, after the bounds check of the whole access.

        Args:
            threads: Accessing threads, numbered through the launch.
            word: Index of the word that each accesses.
            size: Bytes of a word.

        Returns:
            For the first and the last granule of each word, ``[2, n]``: writing thread of the CTA, and number of the
            write if that is another lane of the same warp, else 0. None if there is no such write.
        """
        if not self.may_be_written(size):
            return None
        count = size // _GRANULE
        at = np.stack([word * count, word * count + count - 1])
        other, number = self._thread[at] - 1, self._number[at]
        same = (other >= 0) & (other // 32 == threads // 32) & (other != threads)
        return (other % self._threads, np.where(same, number, 0)) if same.any() else None

    def changes(self, word: Array, values: Array, size: int) -> Array:
        """Whether storing values would change words."""
        return differ(self._memory.view(size)[word], values)

    def note(self, threads: Array, word: Array, size: int, number: int) -> None:
        """Records a write by threads, numbered through the launch; to be called as :meth:`found`."""
        if size < _GRANULE:
            return
        self._written.add(self._memory.last_allocation)
        self._thread.reshape(-1, size // _GRANULE)[word] = threads[:, None] + 1
        self._number.reshape(-1, size // _GRANULE)[word] = number
