"""Counters per instruction of a launch: executions, wavefronts, sectors and divergent warps.

The steps of an access do not change if all its addresses are shifted by the same amount. They are therefore computed
once per address pattern and cached.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.counters import banks
from evoengine.emulator.counters.report import InstructionCounts

_MAX_PATTERN_BYTES: Final = 2**25
"""Size limit of the pattern cache; the cache is cleared when it is exceeded."""
_ENTRY_BYTES: Final = 1000
"""Approximate overhead of a cache entry."""


class Access(enum.Enum):
    """Kind of a memory access, which determines how its steps are counted."""

    SHARED_LOAD = "shared load"
    SHARED_STORE = "shared store"
    SHARED_ATOMIC = "shared atomic"
    MATRIX = "matrix"
    """``ldmatrix`` and ``stmatrix``; here the size is the number of matrices."""
    GLOBAL = "global"
    COPY = "copy"
    """Read of ``cp.async.cg``; its addresses are those of :func:`~evoengine.emulator.counters.banks.copy_route`."""
    LOCAL = "local"


_STEPS: Final[dict[Access, Callable[[Array, int, Array], banks.Steps]]] = {
    Access.SHARED_LOAD: lambda address, size, active: banks.shared_wavefronts(address, size, active, load=True),
    Access.SHARED_STORE: lambda address, size, active: banks.shared_wavefronts(address, size, active, load=False),
    Access.SHARED_ATOMIC: banks.atomic_wavefronts,
    Access.MATRIX: banks.matrix_wavefronts,
    Access.GLOBAL: banks.global_sectors,
    Access.COPY: banks.copy_sectors,
    Access.LOCAL: banks.local_sectors,
}
SECTOR_ACCESSES: Final = (Access.GLOBAL, Access.COPY, Access.LOCAL)
"""Kinds that are counted in sectors; the others are counted in wavefronts."""
_UNITS: Final = {Access.GLOBAL: banks.SECTOR_BYTES, Access.COPY: banks.SECTOR_BYTES << banks.COPY_LINE_BITS}
"""Shifts by multiples of this many bytes keep the steps of a pattern; a word for other kinds."""


@dataclass
class _AccessCounts:
    lanes: int = 0
    shared_lanes: int = 0
    """Lanes of accesses to shared memory; separate because ``cp.async`` accesses two memories."""
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    sectors: int = 0
    ideal_sectors: int = 0


class InstructionCounter:
    """Counts of one launch, by index of the instruction or block.

    Args:
        conflicts_only: Whether to count only the wavefronts of shared memory.
    """

    def __init__(self, *, conflicts_only: bool = False) -> None:
        self.conflicts_only = conflicts_only
        self.accesses: dict[int, _AccessCounts] = {}
        """Memory accesses of each instruction."""
        self.block_lanes: dict[int, int] = {}
        """Lanes that ran each block, over all executions."""
        self.split_warps: dict[int, int] = {}
        """Warps that diverged at the end of each block."""
        self._patterns: dict[tuple[object, ...], tuple[int, int, int]] = {}
        self._pattern_bytes = 0

    def count_access(
        self, site: int, kind: Access, address: Array, size: int, mask: Array | None, shape: tuple[int, int]
    ) -> None:
        """Counts one access by the CTAs of a batch.

        Args:
            site: Index of the instruction.
            kind: Kind of the access.
            address: Byte addresses, which broadcast to ``shape``.
            size: Bytes per lane, or the number of matrices of ``ldmatrix`` and ``stmatrix``.
            mask: Active lanes; None for all.
            shape: CTAs and threads of the batch.
        """
        lanes, needed, ideal = self._look_up(kind, address, size, mask, shape)
        counts = self.accesses.setdefault(site, _AccessCounts())
        if kind in SECTOR_ACCESSES:
            counts.lanes += lanes
            counts.sectors += needed
            counts.ideal_sectors += ideal
        else:
            counts.shared_lanes += lanes
            counts.wavefronts += needed
            counts.ideal_wavefronts += ideal

    @property
    def conflicts(self) -> float:
        """Wavefronts of all accesses, relative to conflict-free accesses; 1 without accesses."""
        ideal = sum(counts.ideal_wavefronts for counts in self.accesses.values())
        return sum(counts.wavefronts for counts in self.accesses.values()) / ideal if ideal else 1.0

    def _look_up(
        self, kind: Access, address: Array, size: int, mask: Array | None, shape: tuple[int, int]
    ) -> tuple[int, int, int]:
        """Lanes, steps and ideal steps of an access, summed over the batch."""
        unit = _UNITS.get(kind, banks.WORD_BYTES)
        if mask is None and len(address) > 1:
            address = _collapse_equal_rows(address, unit)
        offset = _from_first(address, mask, unit)
        if offset is None:
            return 0, 0, 0
        lanes = None if mask is None else (mask.shape, mask.tobytes())
        key = (kind, size, offset.shape, offset.tobytes(), lanes, shape)
        found = self._patterns.get(key)
        if found is None:
            if self._pattern_bytes > _MAX_PATTERN_BYTES:
                self._patterns.clear()
                self._pattern_bytes = 0
            self._pattern_bytes += offset.nbytes + (0 if mask is None else mask.nbytes) + _ENTRY_BYTES
            found = self._patterns[key] = _count(kind, offset, size, mask, shape)
        return found

    def count_block_lanes(self, block: int, lanes: int) -> None:
        """Counts the lanes of one execution of a block."""
        self.block_lanes[block] = self.block_lanes.get(block, 0) + lanes

    def count_split_warps(self, block: int, warps: int) -> None:
        """Counts warps that diverge at the end of a block."""
        if warps:
            self.split_warps[block] = self.split_warps.get(block, 0) + warps


def _from_first(address: Array, mask: Array | None, unit: int) -> Array | None:
    """Offsets from the first active lane's address, rounded down to ``unit``; 0 for inactive lanes.

    None if no lane is active.
    """
    down = _multiples(address.dtype.char, unit)
    if mask is None:
        return np.asarray(address - (address.reshape(-1)[0] & down))
    shape = np.broadcast_shapes(address.shape, mask.shape)
    spread, active = np.broadcast_to(address, shape), np.broadcast_to(mask, shape)
    first = int(active.argmax())
    if not active.flat[first]:
        return None
    return np.asarray(np.where(active, spread - (spread.flat[first] & down), address.dtype.type(0)))


@functools.cache
def _multiples(code: str, unit: int) -> Any:
    """Mask that rounds an unsigned integer down to a multiple of ``unit``, a power of two."""
    return ~np.array(unit - 1, code)[()]


def _collapse_equal_rows(address: Array, unit: int) -> Array:
    """One row of addresses if all CTAs have the same up to a shift by a multiple of ``unit``, else all rows."""
    first = address[:, :1]
    within = first & address.dtype.type(unit - 1)
    if (within == within[0, 0]).all():
        offset = address - first
        if (offset == offset[:1]).all():
            return np.asarray(offset[:1] + within[:1])
    return address


def _count(kind: Access, offset: Array, size: int, mask: Array | None, shape: tuple[int, int]) -> tuple[int, int, int]:
    ctas, threads = shape
    active: Array = np.ones((1, 1), np.bool_) if mask is None else mask
    rows = max(offset.shape[0], active.shape[0])
    columns = threads if max(offset.shape[1], active.shape[1]) > 1 else banks.WARP
    by_warp = np.broadcast_to(offset, (rows, columns)).reshape(-1, banks.WARP)
    signed = by_warp.view(np.int32 if offset.dtype.itemsize == 4 else np.int64).astype(np.int64)
    on = np.ascontiguousarray(np.broadcast_to(active, (rows, columns))).reshape(-1, banks.WARP)
    steps = _STEPS[kind](signed, size, on)
    times = ctas // rows * (threads // columns)
    lanes = int(np.count_nonzero(on))
    return lanes * times, int(steps.needed.sum()) * times, int(steps.ideal.sum()) * times


def by_line(sites: Iterable[InstructionCounts]) -> dict[tuple[str, int], tuple[InstructionCounts, ...]]:
    """Groups instruction counts by source file and line, in the order in which the lines first occur."""
    lines: dict[tuple[str, int], list[InstructionCounts]] = {}
    for site in sites:
        lines.setdefault((site.source_file, site.source_line), []).append(site)
    return {line: tuple(found) for line, found in lines.items()}
