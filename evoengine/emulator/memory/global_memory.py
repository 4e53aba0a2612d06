"""Global memory: one address space of separate allocations, with checks of every access.

Addresses are integers from ``GLOBAL_BASE`` on; see :mod:`evoengine.emulator.memory.address_space`. Allocations start at
multiples of 256 bytes and are separated by guard gaps, so that an access just past the end of one is outside every
allocation.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.faults import EmulatorError, Fault, FaultKind, SiteFault
from evoengine.emulator.memory.address_space import GLOBAL_BASE
from evoengine.emulator.memory.words import SHIFT, WORD, require_stored, select
from evoengine.emulator.ptx.records import Variable

_GUARD: Final = 1024
_ALIGN: Final = 256


@dataclass(frozen=True)
class Buffer:
    """Allocation in global memory."""

    address: int
    size: int
    """Bytes."""
    name: str


Symbols = Mapping[tuple[str, str], Array]
"""Bytes of module variables, by module and name."""


class GlobalMemory:
    """Global memory of one emulated device.

    Args:
        symbols: Contents of module variables that an earlier launch has left, as :meth:`symbols` returns them.
    """

    def __init__(self, symbols: Symbols | None = None) -> None:
        self._initial_symbols: Symbols = symbols or {}
        self._bytes = np.zeros(_GUARD * 4, np.uint8)
        self._end = _GUARD
        self._starts: list[int] = []
        self._buffers: list[Buffer | None] = []
        self._initialised: list[bool] = []
        self._shadow: Array | None = None
        self._views: dict[int, Array] = {}
        self._symbols: dict[tuple[str, str], Buffer] = {}
        self._symbols_before: dict[tuple[str, str], Array] = {}
        self._within: int | None = None
        """Index of the allocation that contains the last checked access; None if it spans several."""

    def alloc(self, data: Array | int, *, initialised: bool = True, name: str = "") -> Buffer:
        """Allocates a buffer.

        Args:
            data: Contents, or a number of bytes, which are zero.
            initialised: Whether reads are valid before the first write; False makes them faults.
            name: Name in error messages.
        """
        raw = (
            np.zeros(data, np.uint8) if isinstance(data, int) else np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        )
        start = self._end
        self._end = (start + raw.size + _GUARD + _ALIGN - 1) // _ALIGN * _ALIGN
        if self._end + 16 > self._bytes.size:
            grown = np.zeros(max(self._end + 16, self._bytes.size * 2) // 16 * 16, np.uint8)
            grown[:start] = self._bytes[:start]
            self._bytes = grown
            self._views = {}
            if self._shadow is not None:
                shadow = np.ones(grown.size, np.bool_)
                shadow[: self._shadow.size] = self._shadow
                self._shadow = shadow
        self._bytes[start : start + raw.size] = raw
        if not initialised:
            if self._shadow is None:
                self._shadow = np.ones(self._bytes.size, np.bool_)
            self._shadow[start : start + raw.size] = False
        buffer = Buffer(GLOBAL_BASE + start, int(raw.size), name or f"buffer{len(self._buffers)}")
        self._starts.append(start)
        self._buffers.append(buffer)
        self._initialised.append(initialised)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Frees a buffer; later accesses to it are faults."""
        self._buffers[self._starts.index(buffer.address - GLOBAL_BASE)] = None

    def read(self, buffer: Buffer, dtype: Any, shape: tuple[int, ...] | int = -1) -> Array:
        """A copy of a buffer's contents with the given dtype; ``shape`` may cover only its beginning."""
        start = buffer.address - GLOBAL_BASE
        values: Array = self._bytes[start : start + buffer.size].view(dtype)
        if shape != -1:
            values = values[: int(np.prod(shape))].reshape(shape)
        return values.copy()

    def write(self, buffer: Buffer, data: Array) -> None:
        """Overwrites the beginning of a buffer from the host.

        Raises:
            EmulatorError: ``data`` is larger than the buffer.
        """
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.size > buffer.size:
            raise EmulatorError(
                Fault(FaultKind.BAD_LAUNCH, f"{raw.size} bytes do not fit in {buffer.name} ({buffer.size} bytes)")
            )
        start = buffer.address - GLOBAL_BASE
        self._bytes[start : start + raw.size] = raw
        if self._shadow is not None:
            self._shadow[start : start + raw.size] = True

    def written(self, buffer: Buffer) -> Array:
        """Whether each byte was initialised by the host or written by a kernel, bool ``[bytes]``."""
        start = buffer.address - GLOBAL_BASE
        if self._shadow is None:
            return np.ones(buffer.size, np.bool_)
        return self._shadow[start : start + buffer.size].copy()

    def symbol(self, module: str, variable: Variable) -> Buffer:
        """The buffer of a module variable, allocated on first use and kept for later launches of that module."""
        key = (module, variable.name)
        if key not in self._symbols:
            initial = self._initial_symbols
            data = initial[key] if key in initial else np.frombuffer(variable.data or b"", np.uint8)
            self._symbols[key] = self.alloc(data, name=variable.name)
            self._symbols_before[key] = data
        return self._symbols[key]

    @property
    def changed_symbols(self) -> tuple[str, ...]:
        """Names of the module variables that launches on this memory have changed."""
        return tuple(
            key[1]
            for key, buffer in self._symbols.items()
            if not np.array_equal(self.read(buffer, np.uint8), self._symbols_before[key])
        )

    def symbols(self) -> Symbols:
        """Current contents of the module variables, for the constructor of another memory."""
        return {**self._initial_symbols, **{key: self.read(buffer, np.uint8) for key, buffer in self._symbols.items()}}

    def contents(self) -> tuple[Array, Array | None]:
        """Copy of everything that kernels can change, for :meth:`restore`."""
        return self._bytes.copy(), None if self._shadow is None else self._shadow.copy()

    def restore(self, contents: tuple[Array, Array | None]) -> None:
        """Restores the contents that :meth:`contents` returned; nothing may have been allocated in between."""
        data, shadow = contents
        self._bytes[:] = data
        if shadow is not None:
            assert self._shadow is not None
            self._shadow[:] = shadow

    @property
    def last_allocation(self) -> int | None:
        """Number of the allocation that contains the last checked access; None if it spans several."""
        return self._within

    def name_at(self, address: int) -> str:
        """Name of the allocation that contains an address or precedes it."""
        buffer = self._buffers[bisect.bisect_right(self._starts, address - GLOBAL_BASE) - 1]
        return buffer.name if buffer is not None else "freed memory"

    # --- device side --------------------------------------------------------------------------------------------

    def view(self, size: int) -> Array:
        """The whole memory as words of ``size`` bytes."""
        found = self._views.get(size)
        if found is None:
            found = self._views[size] = self._bytes.view(WORD[size])
        return found

    def index(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        """Word index of every lane's address, after bounds and alignment checks.

        Lanes outside the mask may hold any address; they get a valid index.

        Raises:
            SiteFault: An active lane is out of bounds or misaligned.
        """
        offset = (address - np.uint64(GLOBAL_BASE)).view(np.int64)
        if not self._inside(offset, size):
            offset = self._checked(offset, size, mask, site)
        if size == 1:
            return offset
        if (np.bitwise_or.reduce(offset, axis=None) if offset.size > 1 else offset[0, 0]) & (size - 1):
            offset = self._aligned(offset, size, mask, site)
        return offset >> SHIFT[size]

    def _inside(self, offset: Array, size: int) -> bool:
        low, high = int(np.minimum.reduce(offset, axis=None)), int(np.maximum.reduce(offset, axis=None))
        at = bisect.bisect_right(self._starts, low) - 1
        buffer = self._buffers[at] if at >= 0 else None
        fits = buffer is not None and high + size <= self._starts[at] + buffer.size
        self._within = at if fits else None
        return fits

    def _checked(self, offset: Array, size: int, mask: Array | None, site: int) -> Array:
        """Bounds check per lane, for accesses to several allocations or with inactive lanes."""
        if mask is not None:
            if not mask.any():
                return np.full((1, 1), self._starts[0] if self._starts else 0, np.int64)
            shape = np.broadcast_shapes(offset.shape, mask.shape)
            active = np.broadcast_to(mask, shape)
            wide = np.broadcast_to(offset, shape)
            first = np.unravel_index(int(active.argmax()), shape)
            offset = np.where(active, wide, wide[first])
            if self._inside(offset, size):
                return offset
        starts = np.array(self._starts, np.int64)
        ends = np.array([s + (b.size if b else 0) for s, b in zip(self._starts, self._buffers, strict=True)], np.int64)
        at = np.searchsorted(starts, offset, side="right") - 1
        bad = (at < 0) | (offset + size > (ends[at] if len(ends) else 0))
        if bad.any():
            cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
            where = int(offset[cta, lane])
            raise SiteFault(
                FaultKind.OUT_OF_BOUNDS,
                f"global access of {size} bytes {self._nearest(where)}",
                site,
                int(cta),
                int(lane),
                where + GLOBAL_BASE,
            )
        return offset

    def _nearest(self, offset: int) -> str:
        at = bisect.bisect_right(self._starts, offset) - 1
        if at < 0:
            return "outside any allocation"
        buffer = self._buffers[at]
        if buffer is None:
            return "in a freed allocation"
        return (
            f"outside any allocation ({offset - self._starts[at] - buffer.size:+d} bytes from the end of {buffer.name})"
        )

    def _aligned(self, offset: Array, size: int, mask: Array | None, site: int) -> Array:
        bad = (offset & (size - 1)) != 0
        if mask is not None:
            bad = bad & mask
        if bad.any():
            cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
            where = int(np.broadcast_to(offset, bad.shape)[cta, lane])
            raise SiteFault(
                FaultKind.MISALIGNED, f"global access of {size} bytes", site, int(cta), int(lane), where + GLOBAL_BASE
            )
        return offset

    def gather(self, address: Array, size: int, mask: Array | None, site: int) -> Array:
        """Words at the lanes' addresses; undefined for inactive lanes.

        Raises:
            SiteFault: An active lane is out of bounds or misaligned, or reads uninitialised memory.
        """
        return self._take(self.index(address, size, mask, site), size, mask, site)

    def _take(self, index: Array, size: int, mask: Array | None, site: int) -> Array:
        if self._shadow is not None and (self._within is None or not self._initialised[self._within]):
            self._check_written(index, size, mask, site)
        return self.view(size).take(index)

    def _check_written(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        assert self._shadow is not None
        if size == 16:
            pairs = self._shadow.view(np.uint64).reshape(-1, 2)[index]
            good = (pairs == _ALL_WRITTEN[8]).all(axis=-1)
        else:
            good = self._shadow.view(WORD[size]).take(index) == _ALL_WRITTEN[size]
        bad = ~good if mask is None else (~good & mask)
        if bad.any():
            cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
            where = int(np.broadcast_to(index, bad.shape)[cta, lane]) * size
            raise SiteFault(
                FaultKind.UNINITIALISED_READ,
                "read of global memory that has not been written",
                site,
                int(cta),
                int(lane),
                where + GLOBAL_BASE,
            )

    def scatter(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Stores words at the active lanes' addresses; of lanes with equal addresses the highest one wins."""
        index = self.index(address, size, mask, site)
        index, words = select(index, words, mask)
        self.view(size)[index] = words
        if self._shadow is not None:
            self._shadow.view(WORD[size])[index] = _ALL_WRITTEN[size]

    def require_stored(self, address: Array, words: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks after a store that no two lanes have stored different words to one address.

        Raises:
            SiteFault: A lane's word has been replaced by that of another one.
        """
        index = self.index(address, size, mask, site)
        require_stored(index, self.view(size)[index], words, size, mask, site, GLOBAL_BASE)

    def update(
        self,
        address: Array,
        size: int,
        mask: Array | None,
        site: int,
        shape: tuple[int, int],
        operation: Callable[[Array, Array, Array | None], Array],
    ) -> Array:
        """Applies an atomic operation; returns the old words.

        Args:
            address: Byte address per lane.
            size: Bytes per word.
            mask: Active lanes; None for all.
            site: Index of the instruction.
            shape: CTAs and threads of the batch.
            operation: Function of all words of the memory, flat word indices of that shape, and the mask.
        """
        index = self.index(address, size, mask, site)
        return operation(self.view(size), np.broadcast_to(index, shape), mask)


_ALL_WRITTEN: Final[dict[int, Any]] = {size: np.frombuffer(b"\1" * size, WORD[size])[0] for size in (1, 2, 4, 8, 16)}
