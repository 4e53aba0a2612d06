"""Warpgroup tensor instructions: ``wgmma.mma_async.m64nNk16`` on f16 and bf16 with f32 accumulators.

Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions". A warpgroup is four warps. The product is
computed when the instruction is issued. Until ``wait_group`` its operands in shared memory are pending: a write to them
is a fault. Operands are read with the checks of any access by the warpgroup's lanes: out-of-bounds reads, and reads
before a ``cp.async`` has completed or before the barrier after it, are faults, and so is a read of what a thread wrote
without a proxy fence since.

The supported layouts in shared memory are those with a swizzle of 128, 64 or 32 bytes: blocks of eight rows of as many
bytes; see :mod:`evoengine.emulator.semantics.swizzle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from evoengine.emulator.checks.faults import FaultKind, SiteFault
from evoengine.emulator.execution.batch import Batch
from evoengine.emulator.memory.global_memory import spread
from evoengine.emulator.semantics.floats import Array
from evoengine.emulator.semantics.mma import bfloat_to_float, half_to_float
from evoengine.emulator.semantics.swizzle import swizzled

_LANES: Final = 128
"""Lanes of a warpgroup."""
_ROWS: Final = 64
"""M."""
_DEPTH: Final = 16
"""K."""
_CHUNK: Final = 16
"""Bytes that one lane reads at a time."""
_HALVES: Final = 8
"""16-bit values in a chunk."""
_SPANS: Final = np.array([0, 128, 64, 32])
"""Span of the swizzle in bytes, by the value of a descriptor's swizzle field; 0 for none."""
_FIELD: Final = 0x3FFF
"""Mask of an address or offset field of a descriptor: 14 bits, in units of 16 bytes."""
_UNSUPPORTED_LAYOUT: Final = (
    "unsupported layout of a wgmma descriptor; supported: a swizzle of 128, 64 or 32 bytes, the same in all "
    "warpgroups, base offset 0"
)
_LEADING, _STRIDE, _BASE, _SWIZZLE = 16, 32, 49, 62
"""First bits of the fields of a descriptor: leading and stride offset, base offset, swizzle."""


def multiply_async(
    x: Batch,
    kind: str,
    a: Sequence[Array],
    b: Array,
    columns: int,
    transposed: tuple[bool, bool],
    mask: Array | None,
    site: int,
) -> Array:
    """Executes ``wgmma.mma_async`` without the addend.

    Args:
        x: Batch.
        kind: Element type, ``f16`` or ``bf16``.
        a: Four registers of every lane, or one descriptor.
        b: Descriptor, uint64.
        columns: N.
        transposed: For A and for B, whether the operand is contiguous along M or N instead of along K.
        mask: Active lanes, whole warpgroups; None for all.
        site: Index of the instruction.

    Returns:
        float32 ``[columns / 2, 1 or ctas, threads]``: the D fragments.

    Raises:
        SiteFault: The active lanes are not whole warpgroups, descriptors differ within a warpgroup or have an
            unsupported layout, or a read of shared memory is invalid.
    """
    whole = _whole_lanes(x)
    _require_warpgroups(x, mask, whole, site)
    widen = half_to_float if kind == "f16" else bfloat_to_float
    read: list[Array] = []
    left = _fragment(x, a) if len(a) > 1 else _tile(x, a[0], _ROWS, transposed[0], mask, site, read)
    right = _tile(x, b, columns, transposed[1], mask, site, read)
    x.operands.issue(read, mask, site)
    # A row is (warp, half, g), a column (eight, t, odd). Lane (warp, g, t) holds (half, odd) of every eight columns.
    # With the columns as (eight, odd, t), the four values of t move as one item.
    by_lane = right.reshape(*right.shape[:2], columns // 8, 4, 2, _DEPTH).swapaxes(3, 4).reshape(right.shape)
    product = np.matmul(widen(left), widen(by_lane).transpose(0, 1, 3, 2))
    parts = product.view(np.complex128).reshape(-1, whole // _LANES, 4, 2, 8, columns // 8, 2)
    out = np.ascontiguousarray(parts.transpose(5, 3, 6, 0, 1, 2, 4))
    found = out.view(np.float32).reshape(columns // 2, -1, whole)
    return found if whole == x.threads else np.pad(found, ((0, 0), (0, 0), (0, x.threads - whole)))


def _whole_lanes(x: Batch) -> int:
    """Number of lanes of a CTA that are in whole warpgroups."""
    return x.real_threads // _LANES * _LANES


def _require_warpgroups(x: Batch, mask: Array | None, whole: int, site: int) -> None:
    if whole < x.threads and (mask is None or np.broadcast_to(mask, (x.ctas, x.threads))[:, whole:].any()):
        raise SiteFault(FaultKind.ILLEGAL_VALUE, "wgmma by lanes that are not whole warpgroups of their block", site)
    if mask is None or mask.shape[1] == 1:
        return
    present = np.broadcast_to(mask, (x.ctas, x.threads))[:, :whole].reshape(x.ctas, -1, _LANES)
    absent = present.any(axis=2, keepdims=True) & ~present
    if absent.any():
        cta, group, lane = np.unravel_index(int(absent.argmax()), absent.shape)
        where = int(group) * _LANES + int(lane)
        detail = "a warpgroup-level instruction is executed without this lane of the warpgroup"
        raise SiteFault(FaultKind.WARP_DIVERGENCE, detail, site, int(cta), where)


def _fragment(x: Batch, registers: Sequence[Array]) -> Array:
    """Matrix A from registers: uint16 ``[1 or ctas, warpgroups, 64, 16]``."""
    ctas = max(map(len, registers))
    whole = _whole_lanes(x)
    raw = np.empty((2, 2, ctas, whole), np.uint32)
    for number, register in enumerate(registers):
        raw[number // 2, number % 2] = register[
            :, :whole
        ]  # indexed by upper half of the columns, upper half of the rows
    halves = raw.view(np.uint16).reshape(2, 2, ctas, whole // _LANES, 4, 8, 4, 2)
    return np.ascontiguousarray(halves.transpose(2, 3, 4, 1, 5, 0, 6, 7)).reshape(ctas, -1, _ROWS, _DEPTH)


def _tile(
    x: Batch, descriptor: Array, lines: int, transposed: bool, mask: Array | None, site: int, read: list[Array]
) -> Array:
    """An operand from shared memory: uint16 ``[1 or ctas, warpgroups, lines, 16]``; adds its addresses to ``read``."""
    start, leading, stride, span = _fields(x, descriptor, mask, site)
    outer, inner = (_DEPTH, lines // _HALVES) if transposed else (lines, _DEPTH // _HALVES)
    count = outer * inner
    found = []
    for rows, blocks, within in _lane_offsets(outer, inner, span, x.threads):
        linear = start + rows * stride + blocks * leading + within
        address = swizzled(linear, span).astype(np.uint32)
        found.append(x.shared.gather(address, _CHUNK, mask, site, cross_warp=True, proxy=True))
        read.append(address)
    ctas = max(map(len, found))
    whole = _whole_lanes(x)
    chunks = [np.ascontiguousarray(spread(words, (ctas, x.threads))[:, :whole]).view(np.uint16) for words in found]
    parts = [chunk.reshape(ctas, -1, _LANES, _HALVES) for chunk in chunks]
    x.traffic.shared_read_bytes += lines * _DEPTH * 2 * x.lane_count(mask) // _LANES
    tile = np.concatenate(parts, axis=2)[:, :, :count].reshape(ctas, -1, outer, inner * _HALVES)
    return np.ascontiguousarray(tile.transpose(0, 1, 3, 2) if transposed else tile)


@lru_cache
def _lane_offsets(outer: int, inner: int, span: int, threads: int) -> tuple[Array, ...]:
    """Which chunks of a tile the lanes read, one after the other.

    Args:
        outer: Rows of the tile, each of ``inner`` chunks.
        inner: Chunks of a row.
        span: Span of the swizzle in bytes.
        threads: Threads of a CTA.

    Returns:
        For each step int64 ``[3, 1, threads]``: groups of eight rows, panels, and bytes in a row of these.
    """
    across = span // _CHUNK
    steps = -(-outer * inner // _LANES)
    number = np.minimum(np.arange(steps * _LANES), outer * inner - 1)
    row, chunk = number // inner, number % inner
    parts = np.stack([row // 8, chunk // across, row % 8 * span + chunk % across * _CHUNK]).astype(np.int64)
    return tuple(
        np.tile(step, -(-threads // _LANES))[:, None, :threads]
        for step in parts.reshape(3, steps, _LANES).swapaxes(0, 1)
    )


def _fields(x: Batch, descriptor: Array, mask: Array | None, site: int) -> tuple[Array, Array, Array, int]:
    """Start address, leading offset and stride offset of a descriptor in bytes, int64 per lane; span of its swizzle."""
    active = x.alive if mask is None else mask
    every = np.broadcast_to(descriptor, (len(descriptor), x.threads))
    first = np.repeat(every[:, ::_LANES], _LANES, axis=1)[:, : x.threads]
    shape = np.broadcast_shapes(active.shape, every.shape)
    modes: Array = np.broadcast_to(every >> np.uint64(_SWIZZLE), shape)
    mode = int(modes.reshape(-1)[np.broadcast_to(active, shape).argmax()])
    odd = (modes != mode) | (mode == 0)
    odd |= (every >> np.uint64(_BASE)) & np.uint64(7) != 0
    for bad, detail in (
        (every != first, "wgmma descriptor differs between lanes of a warpgroup"),
        (odd, _UNSUPPORTED_LAYOUT),
    ):
        wrong = bad & active
        if wrong.any():
            cta, lane = np.unravel_index(int(wrong.argmax()), wrong.shape)
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(lane))
    start, leading, stride = (
        (every >> np.uint64(shift) & np.uint64(_FIELD)).astype(np.int64) << 4 for shift in (0, _LEADING, _STRIDE)
    )
    return start, leading, stride, int(_SPANS[mode])
