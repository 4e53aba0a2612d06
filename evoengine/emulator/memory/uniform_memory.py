"""Global memory with a fast path for uniform allocations, whose bytes are all equal.

Launches that only collect counters use inputs of zeros. All lanes that load from such an input get the same value, and
values derived from it are computed once for all CTAs that behave alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.memory.address_space import GLOBAL_BASE
from evoengine.emulator.memory.global_memory import Buffer, GlobalMemory, Symbols
from evoengine.emulator.memory.words import WORD, collapse_equal_rows


class UniformMemory(GlobalMemory):
    """A :class:`~evoengine.emulator.memory.global_memory.GlobalMemory` with fast loads from uniform allocations."""

    def __init__(self, symbols: Symbols | None = None) -> None:
        super().__init__(symbols)
        self._uniform_bytes: list[int | None] = []
        """Value of every byte of each allocation; None if bytes differ or may differ."""

    def alloc(self, data: Array | int, *, initialised: bool = True, name: str = "") -> Buffer:
        """Allocates a buffer and determines whether it is uniform; see :meth:`GlobalMemory.alloc`."""
        buffer = super().alloc(data, initialised=initialised, name=name)
        contents = self.view(1)[buffer.address - GLOBAL_BASE :][: buffer.size]
        uniform = (
            initialised and bool(contents.size) and contents[0] == contents[-1] and contents.min() == contents.max()
        )
        self._uniform_bytes.append(int(contents[0]) if uniform else None)
        return buffer

    def write(self, buffer: Buffer, data: Array) -> None:
        super().write(buffer, data)
        self._uniform_bytes = [None] * len(self._uniform_bytes)

    def scatter(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        super().scatter(address, words, size, mask, site)
        if mask is None or mask.any():
            self._changed()

    def update(
        self,
        address: Array,
        size: int,
        mask: Array | None,
        site: int,
        shape: tuple[int, int],
        operation: Callable[[Array, Array, Array | None], Array],
    ) -> Array:
        """Applies an atomic operation; see :meth:`GlobalMemory.update`."""
        found = super().update(address, size, mask, site, shape, operation)
        self._changed()
        return found

    def _changed(self) -> None:
        """Marks the allocation of the last access as not uniform, or all allocations if it spanned several."""
        if self._within is None:
            self._uniform_bytes = [None] * len(self._uniform_bytes)
        else:
            self._uniform_bytes[self._within] = None

    def _take(self, index: Array, size: int, mask: Array | None, site: int) -> Array:
        value = None if self._within is None else self._uniform_bytes[self._within]
        if value is None:
            return collapse_equal_rows(super()._take(index, size, mask, site))
        word: Any = WORD[size]
        return np.frombuffer(bytes([value]) * size, word).reshape(1, 1)
