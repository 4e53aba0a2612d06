"""Global memory that knows which of its allocations hold one value throughout: there a load need not look.

Where only counters matter, inputs are zeros. All lanes that load from such an input then get one value, and what a
kernel computes from it is computed once for all CTAs that act alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evoengine.emulator.memory.global_memory import GLOBAL_BASE, WORD, Buffer, GlobalMemory, Symbols
from evoengine.emulator.memory.shared_memory import one_for_all
from evoengine.emulator.semantics.floats import Array


class UniformMemory(GlobalMemory):
    """:class:`~evoengine.emulator.memory.global_memory.GlobalMemory` that does the same, sooner."""

    def __init__(self, symbols: Symbols | None = None) -> None:
        super().__init__(symbols)
        self._bytes_alike: list[int | None] = []
        """By allocation: what each of its bytes is; None where they differ, or may differ."""

    def alloc(self, data: Array | int, *, initialised: bool = True, name: str = "") -> Buffer:
        """See :meth:`GlobalMemory.alloc`."""
        buffer = super().alloc(data, initialised=initialised, name=name)
        contents = self.view(1)[buffer.address - GLOBAL_BASE :][: buffer.size]
        alike = initialised and bool(contents.size) and contents[0] == contents[-1] and contents.min() == contents.max()
        self._bytes_alike.append(int(contents[0]) if alike else None)
        return buffer

    def write(self, buffer: Buffer, data: Array) -> None:
        """See :meth:`GlobalMemory.write`."""
        super().write(buffer, data)
        self._bytes_alike = [None] * len(self._bytes_alike)

    def scatter(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """See :meth:`GlobalMemory.scatter`."""
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
        """See :meth:`GlobalMemory.update`."""
        found = super().update(address, size, mask, site, shape, operation)
        self._changed()
        return found

    def _changed(self) -> None:
        """The allocation that was accessed last may now hold anything; where that was not one, all may."""
        if self._within is None:
            self._bytes_alike = [None] * len(self._bytes_alike)
        else:
            self._bytes_alike[self._within] = None

    def _take(self, index: Array, size: int, mask: Array | None, site: int) -> Array:
        alike = None if self._within is None else self._bytes_alike[self._within]
        if alike is None:
            return one_for_all(super()._take(index, size, mask, site))
        word: Any = WORD[size]
        return np.frombuffer(bytes([alike]) * size, word).reshape(1, 1)
