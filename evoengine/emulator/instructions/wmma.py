"""Semantics of ``wmma.load``, ``wmma.mma`` and ``wmma.store`` on 16x16x16 tiles of f16 or bf16.

PTX does not specify which lane holds which element of a fragment. The layout here intentionally differs from the
hardware's, so that a kernel that relies on a layout fails. A *line* is a row of A, a column of B, or a row of C and D:

- bf16 A and B, 4 registers: lane ``l`` holds positions ``8 (l / 16) … + 7`` of line ``l % 16``, two per register;
- f16 A and B, 8 registers: lanes ``l`` and ``l + 16`` both hold line ``l % 16``, two per register;
- f32 C and D, 8 registers: lane ``l`` holds columns ``8 (l % 2) … + 7`` of row ``l / 2``.

Products are exact and sums are float32; their order is unspecified, as on the hardware.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.address_space import SHARED_WINDOW, shared_address
from evoengine.emulator.memory.words import spread
from evoengine.emulator.semantics.mma import bfloat_to_float, half_to_float

_POINTER_ALIGNMENT: Final = 32
_CHUNK: Final = 16
"""Bytes that a lane moves at a time; a pitch must be a multiple of it."""
_REGISTERS: Final = 8
"""Registers of an f32 fragment."""


class _Fragment:
    """A loaded A or B tile. Its registers are computed on first read, because mostly only ``wmma.mma`` uses the tile.

    Args:
        lines: Elements, uint16 ``[1 or ctas, warps, 16, 16]``, contiguous.
        registers: Registers per lane.
        threads: Threads per CTA.
    """

    def __init__(self, lines: Array, registers: int, threads: int) -> None:
        self._lines = lines
        self._registers = registers
        self._threads = threads

    def __getitem__(self, number: int) -> Array:
        register: Array = self._spread[number]
        return register

    @functools.cached_property
    def _spread(self) -> Array:
        return _spread_pairs(self._lines, self._registers, self._threads)

    @functools.cached_property
    def f16(self) -> Array:
        """Lines as float32, read as f16."""
        return half_to_float(self._lines)

    @functools.cached_property
    def bf16(self) -> Array:
        """Lines as float32, read as bf16."""
        return bfloat_to_float(self._lines)


def _load_tile(
    x: Batch,
    space: str,
    address: Array,
    pitch: Array,
    size: int,
    transpose: bool,
    mask: Array | None,
    site: int,
    *,
    operand: bool,
) -> Array:
    """Loads the lines of each warp's tile, uint16 or uint32 ``[1 or ctas, warps, 16, 16]``.

    Args:
        x: Batch.
        space: State space: ``shared``, ``global`` or ``generic``.
        address: Address of the tile, equal in all lanes of a warp.
        pitch: Elements from one line in memory to the next, equal in all lanes of a warp.
        size: Bytes per element, 2 or 4.
        transpose: Whether a line in memory is a column of the fragment instead of a line.
        mask: Active lanes, whole warps; None for all.
        site: Index of the instruction.
        operand: Whether the tile is A or B, not an accumulator.

    Raises:
        SiteFault: Lanes of a warp differ in address or pitch, one of these is misaligned, or a read is invalid.
    """
    warps = x.threads // 32
    space, address = resolve_space(x, space, address, mask, site)
    x.traffic.count_read(space, 8 * size * x.lane_count(mask))
    gather = gather_from(x, space)
    x.record_tile_access(space, address, pitch, size, mask, site, "operand" if operand else "load")
    parts = [gather(at, _CHUNK, mask, site) for at in _chunk_addresses(x, address, pitch, size, mask, site)]
    whole, kind = (max(map(len, parts)), x.threads), np.uint16 if size == 2 else np.uint32
    words = [np.ascontiguousarray(spread(part, whole)).view(kind) for part in parts]
    chunks = [part.reshape(-1, warps, 32, _CHUNK // size) for part in words]
    lines = (chunks[0] if len(chunks) == 1 else np.stack(chunks, axis=3)).reshape(-1, warps, 16, 16)
    return lines.transpose(0, 1, 3, 2) if transpose else lines


def load_fragment(
    x: Batch,
    space: str,
    address: Array,
    pitch: Array,
    registers: int,
    wide: bool,
    transpose: bool,
    mask: Array | None,
    site: int,
) -> Array | _Fragment:
    """Executes ``wmma.load``; returns float32 ``[8, ctas, threads]`` if ``wide`` (an accumulator), else a fragment.

    Other arguments and errors are those of :func:`_load_tile`.
    """
    lines = _load_tile(x, space, address, pitch, 4 if wide else 2, transpose, mask, site, operand=not wide)
    if wide:
        return _spread_wide(np.ascontiguousarray(lines).view(np.float32), x.threads)
    return _Fragment(np.ascontiguousarray(lines), registers, x.threads)


def store_fragment(
    x: Batch,
    space: str,
    address: Array,
    pitch: Array,
    values: Sequence[Array],
    transpose: bool,
    mask: Array | None,
    site: int,
) -> None:
    """Executes ``wmma.store`` of an f32 accumulator; ``transpose`` for column-major memory."""
    lines = _gather_wide(values, x.threads)
    _store_tile(x, space, address, pitch, lines.transpose(0, 1, 3, 2) if transpose else lines, mask, site)


def load_half_accumulator(
    x: Batch, space: str, address: Array, pitch: Array, transpose: bool, mask: Array | None, site: int
) -> Array:
    """Executes ``wmma.load.c`` of f16; returns uint32 ``[4, ctas, threads]``, eight values packed in pairs."""
    lines = _load_tile(x, space, address, pitch, 2, transpose, mask, site, operand=False)
    wide = _spread_wide(np.ascontiguousarray(lines), x.threads)
    return np.stack([wide[i].astype(np.uint32) | wide[i + 1].astype(np.uint32) << 16 for i in range(0, _REGISTERS, 2)])


def store_half_accumulator(
    x: Batch,
    space: str,
    address: Array,
    pitch: Array,
    values: Sequence[Array],
    transpose: bool,
    mask: Array | None,
    site: int,
) -> None:
    """Executes ``wmma.store.d`` of f16; ``transpose`` for column-major memory."""
    raw = _stack(values, x.threads, np.uint32).transpose(1, 2, 0)
    lines = np.ascontiguousarray(raw).view(np.uint16).reshape(-1, x.threads // 32, 16, 16)
    _store_tile(x, space, address, pitch, lines.transpose(0, 1, 3, 2) if transpose else lines, mask, site)


def _store_tile(
    x: Batch, space: str, address: Array, pitch: Array, lines: Array, mask: Array | None, site: int
) -> None:
    """Stores the lines of each warp's tile, ``[1 or ctas, warps, 16, 16]``; other arguments as :func:`_load_tile`."""
    size = lines.itemsize
    chunks = np.ascontiguousarray(lines).reshape(-1, x.threads, size // 2, _CHUNK // size)
    space, address = resolve_space(x, space, address, mask, site)
    x.traffic.count_write(space, 8 * size * x.lane_count(mask))
    scatter = scatter_to(x, space)
    x.record_tile_access(space, address, pitch, size, mask, site, "store")
    for number, at in enumerate(_chunk_addresses(x, address, pitch, size, mask, site)):
        words = np.ascontiguousarray(chunks[:, :, number]).view(np.complex128)[..., 0]
        scatter(at, words, _CHUNK, mask, site)


def multiply_fragments(
    kind: str, a: Sequence[Array] | _Fragment, b: Sequence[Array] | _Fragment, threads: int
) -> Array:
    """Product of ``wmma.mma`` without its addend: float32 ``[8, 1 or ctas, threads]``."""
    fragments = (x if isinstance(x, _Fragment) else _Fragment(_gather_pairs(x, threads), 0, 0) for x in (a, b))
    left, right = (x.f16 if kind == "f16" else x.bf16 for x in fragments)
    return _spread_wide(np.matmul(left, right.transpose(0, 1, 3, 2)), threads)


def resolve_space(x: Batch, space: str, address: Array, mask: Array | None, site: int) -> tuple[str, Array]:
    """State space and address in it; a generic address must be in one space for all lanes."""
    if space != "generic":
        return space, address
    shared = address >> np.uint64(32) == np.uint64(SHARED_WINDOW >> 32)
    active = x.alive if mask is None else mask
    if not (shared & active).any():
        return "global", address
    if (~shared & active).any():
        raise SiteFault(
            FaultKind.ILLEGAL_VALUE, "a generic wmma access with lanes in both shared and global memory", site
        )
    return "shared", shared_address(address)


def _chunk_addresses(
    x: Batch, address: Array, pitch: Array, size: int, mask: Array | None, site: int
) -> tuple[Array, ...]:
    """Addresses of the 16 bytes that each lane moves, for one or two steps.

    Lane ``l`` moves half ``l % 2`` of line ``l / 2``.
    """
    require_valid_tile(x, address, pitch, size, mask, site)
    line, half = np.divmod(x.laneid, np.uint32(2))
    half_bytes = 8 * size
    start = address + (line * (pitch * np.uint32(size)) + half * np.uint32(half_bytes)).astype(address.dtype)
    steps = range(_CHUNK, half_bytes, _CHUNK)
    return (start, *(start + np.array(step, address.dtype) for step in steps))


def gather_from(x: Batch, space: str) -> Callable[[Array, int, Array | None, int], Array]:
    """Function that reads words for whole warps, from their addresses, size, mask and instruction."""
    return functools.partial(x.shared.gather, whole_warp=True) if space == "shared" else x.gather_global


def scatter_to(x: Batch, space: str) -> Callable[[Array, Array, int, Array | None, int], None]:
    """Function that stores words for whole warps, from their addresses, words, size, mask and instruction."""
    return functools.partial(x.shared.scatter, whole_warp=True) if space == "shared" else x.scatter_global


def require_valid_tile(x: Batch, address: Array, pitch: Array, size: int, mask: Array | None, site: int) -> None:
    """Checks where a tile is in memory.

    Args:
        x: Batch.
        address: Address of the tile, per lane.
        pitch: Elements from one line in memory to the next, per lane.
        size: Bytes per element.
        mask: Active lanes; None for all.
        site: Index of the instruction.

    Raises:
        SiteFault: Lanes of a warp differ in address or pitch, or one of these is misaligned.
    """
    for values, what in ((address, "address"), (pitch, "pitch")):
        _require_uniform(x, values, what, mask, site)
    for values, unit, what in (
        (address, _POINTER_ALIGNMENT, "wmma address that is not 32-byte aligned"),
        (pitch, max(1, _CHUNK // size), "wmma pitch that is not a multiple of 16 bytes"),
    ):
        if not int(np.bitwise_or.reduce(values, axis=None)) & (unit - 1):
            continue
        misaligned = values & np.array(unit - 1, values.dtype) != 0
        bad = np.broadcast_to(misaligned, (x.ctas, x.threads)) & x.lanes(mask)
        if bad.any():
            cta, thread = np.unravel_index(int(bad.argmax()), bad.shape)
            where = int(np.broadcast_to(address, bad.shape)[cta, thread])
            raise SiteFault(FaultKind.MISALIGNED, what, site, int(cta), int(thread), where)


def _require_uniform(x: Batch, values: Array, what: str, mask: Array | None, site: int) -> None:
    """Raises :class:`SiteFault` if active lanes of a warp have different values."""
    if values.shape[1] == 1:
        return
    by_warp = values.reshape(len(values), x.threads // 32, 32)
    unlike = by_warp != by_warp[:, :, :1]
    if not unlike.any():
        return
    differs = unlike.reshape(len(values), x.threads) & (x.alive if mask is None else mask)
    if differs.any():
        cta, lane = np.unravel_index(int(differs.argmax()), differs.shape)
        raise SiteFault(
            FaultKind.ILLEGAL_VALUE, f"wmma {what} differs between lanes of a warp", site, int(cta), int(lane)
        )


def _stack(registers: Sequence[Array], threads: int, dtype: type) -> Array:
    out: Array = np.empty((len(registers), max(map(len, registers)), threads), dtype)
    for number, register in enumerate(registers):
        out[number] = register
    return out


def _spread_pairs(lines: Array, registers: int, threads: int) -> Array:
    ctas, warps = lines.shape[:2]
    words = lines.view(np.uint32).reshape(ctas, warps, 16, 8 // registers, registers)
    by_lane = words.transpose(4, 0, 1, 3, 2)  # register, cta, warp, lane / 16, lane % 16
    shape = (registers, ctas, warps, 2, 16)
    return np.ascontiguousarray(np.broadcast_to(by_lane, shape)).reshape(registers, ctas, threads)


def _gather_pairs(registers: Sequence[Array], threads: int) -> Array:
    count = len(registers)
    raw = _stack(registers, threads, np.uint32).reshape(count, -1, threads // 32, 2, 16)
    words = raw[:, :, :, : 8 // count].transpose(1, 2, 4, 3, 0)
    return np.ascontiguousarray(words).reshape(-1, threads // 32, 16, 8).view(np.uint16)


def _spread_wide(lines: Array, threads: int) -> Array:
    return np.ascontiguousarray(lines.reshape(lines.shape[0], threads, _REGISTERS).transpose(2, 0, 1))


def _gather_wide(registers: Sequence[Array], threads: int) -> Array:
    raw = _stack(registers, threads, np.float32)
    return np.ascontiguousarray(raw.transpose(1, 2, 0)).reshape(-1, threads // 32, 16, 16)
