"""Wavefronts and sectors that the memory pipeline of an SM needs for one access of a warp, from its lane addresses.

Shared memory has 32 banks of 4 bytes. One *wavefront* reads or writes one word in each bank, so a warp's access takes
as many wavefronts as the busiest bank has different words; lanes that access the same word share it. Accesses of 8
bytes are executed by half warps and those of 16 bytes by quarter warps, 128 bytes at a time; Nsight Compute counts 1, 2
and 4 wavefronts for conflict-free accesses of 4, 8 and 16 bytes. Wide loads need half as many if all active lanes
``n`` and ``n ^ 1``, or all ``n`` and ``n ^ 2``, have the same address (answer of an NVIDIA engineer in the NVIDIA
developer forum, "Unexpected shared memory bank conflict"). ``ldmatrix`` and ``stmatrix`` access one row of 16 bytes for
each of eight lanes per matrix, like a quarter warp.

Global memory is accessed in sectors of 32 bytes; a request costs one for each sector that it touches. ``cp.async.cg``,
which bypasses L1, costs one for each pair of a sector and a 128-byte line of shared memory that it is copied to. A
sector that straddles such lines, as in rows padded by 16 bytes, or that lanes copy to several lines, therefore counts
several times (measured on an H200; see docs/emulator.md). Local memory is interleaved by lane, so that one word of 32
lanes is 128 consecutive bytes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from evoengine.emulator.arrays import Array

BANKS: Final = 32
WORD_BYTES: Final = 4
SECTOR_BYTES: Final = 32
WARP: Final = 32
_WAVEFRONT_BYTES: Final = BANKS * WORD_BYTES
_EMPTY: Final = np.iinfo(np.int64).min
COPY_LINE_BITS: Final = 12
"""Bits of the relative number of a 128-byte line of shared memory; an SM has fewer than 2,048 lines."""


class Steps(NamedTuple):
    """Wavefronts or sectors per warp, ``[warps]``."""

    needed: Array
    ideal: Array
    """Steps for the same number of bytes at conflict-free, contiguous addresses."""


def shared_wavefronts(address: Array, size: int, active: Array, *, load: bool) -> Steps:
    """Wavefronts of a load or store of shared memory.

    Args:
        address: Byte address per lane, ``[warps, 32]``, a multiple of ``size``.
        size: Bytes per lane: 1, 2, 4, 8 or 16.
        active: Active lanes, ``[warps, 32]``.
        load: Whether the access is a load; only then can equal addresses of neighbours halve the phases.
    """
    phases = max(1, size * WARP // _WAVEFRONT_BYTES)
    steps = _by_phase(address, size, active, phases)
    if phases == 1 or not load:
        return steps
    paired = _paired(address, active)
    if not paired.any():
        return steps
    merged = _by_phase(address, size, active, phases // 2)
    gains = paired & (merged.needed < steps.needed)
    return Steps(*(np.where(gains, half, whole) for half, whole in zip(merged, steps, strict=True)))


def matrix_wavefronts(address: Array, matrices: int, active: Array) -> Steps:
    """Wavefronts of ``ldmatrix`` or ``stmatrix``; lanes ``8 j`` to ``8 j + 7`` address the rows of matrix ``j``."""
    used = np.arange(WARP) < 8 * matrices
    return _by_phase(address, 16, active & used, 4)


def atomic_wavefronts(address: Array, size: int, active: Array) -> Steps:
    """Wavefronts of an atomic on shared memory; lanes that access the same bank are serialised."""
    phases = max(1, size // WORD_BYTES)
    bank = address // WORD_BYTES % BANKS
    warps = len(address)
    rows = np.arange(warps)[:, None] * BANKS
    counts = np.bincount((rows + bank)[active], minlength=warps * BANKS).reshape(warps, BANKS)
    return Steps(counts.max(axis=1) * phases, np.where(active.any(axis=1), phases, 0))


def global_sectors(address: Array, size: int, active: Array) -> Steps:
    """Sectors that a request to global memory touches, and the fewest that can hold the distinct bytes it accesses."""
    sector = np.where(active, address // SECTOR_BYTES, _EMPTY)
    exact = np.where(active, address, _EMPTY)
    return Steps(_distinct(sector), _sectors_of(_distinct(exact) * size))


def copy_route(source: Array, target: Array) -> Array:
    """Global address that ``cp.async.cg`` reads and line of shared memory that it writes, in one integer per lane.

    Lines are counted relative to the first lane's, so that copies of one pattern to different stages have equal routes.
    """
    line = target // target.dtype.type(_WAVEFRONT_BYTES)
    near = (line - line.reshape(-1)[0]) & line.dtype.type((1 << COPY_LINE_BITS) - 1)
    return np.asarray((source.astype(np.uint64) << np.uint64(COPY_LINE_BITS)) | near.astype(np.uint64))


def copy_sectors(route: Array, size: int, active: Array) -> Steps:
    """Sectors that ``cp.async.cg`` reads, from :func:`copy_route`, and the fewest that can hold the bytes."""
    source, line = route >> COPY_LINE_BITS, route & ((1 << COPY_LINE_BITS) - 1)
    moved = np.where(active, (source // SECTOR_BYTES << COPY_LINE_BITS) | line, _EMPTY)
    return Steps(_distinct(moved), global_sectors(source, size, active).ideal)


def local_sectors(address: Array, size: int, active: Array) -> Steps:
    """Sectors of an access to local memory; the same word of eight neighbouring lanes shares a sector."""
    words = max(1, size // WORD_BYTES)
    word = address[..., None] // WORD_BYTES + np.arange(words)
    sector = word * (WARP // 8) + (np.arange(WARP) // 8)[:, None]
    on = np.broadcast_to(active[..., None], sector.shape)
    needed = _distinct(np.where(on, sector, _EMPTY).reshape(len(address), -1))
    return Steps(needed, _sectors_of(np.count_nonzero(active, axis=1) * size))


def _sectors_of(size: Any) -> Array:
    return np.asarray(-(-size // SECTOR_BYTES))


def _distinct(values: Array) -> Array:
    """Number of distinct values in each row, without the marker of inactive lanes."""
    ordered = np.sort(values, axis=1)
    new = np.empty(ordered.shape, np.bool_)
    new[:, 0] = True
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return np.asarray((new & (ordered != _EMPTY)).sum(axis=1))


def _paired(address: Array, active: Array) -> Array:
    """Whether in each warp all active lanes have the address of their neighbour at distance 1, or all at distance 2."""
    lanes = np.arange(WARP)
    agree = [
        ((address == address[:, lanes ^ step]) | ~active | ~active[:, lanes ^ step]).all(axis=1) for step in (1, 2)
    ]
    return np.asarray(agree[0] | agree[1])


def _by_phase(address: Array, size: int, active: Array, phases: int) -> Steps:
    """Steps of an access that is executed in phases of neighbouring lanes: the busiest bank of each phase, summed."""
    warps = len(address)
    words = max(1, size // WORD_BYTES)
    word = address[..., None].astype(np.int64) // WORD_BYTES + np.arange(words)
    word = np.where(active[..., None], word, _EMPTY).reshape(warps * phases, -1)
    ordered = np.sort(word, axis=1)
    counted = ordered != _EMPTY
    counted[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    groups = np.broadcast_to(np.arange(len(ordered))[:, None], ordered.shape)[counted]
    banks = groups * BANKS + ordered[counted] % BANKS
    busiest = np.bincount(banks, minlength=len(ordered) * BANKS).reshape(warps, phases, BANKS).max(axis=2)
    return Steps(busiest.sum(axis=1), (busiest > 0).sum(axis=1))
