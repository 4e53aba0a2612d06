"""Warpgroup tensor instructions: ``wgmma.mma_async`` on f16, bf16, tf32, 8-bit floats and 8-bit integers.

Source: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions". A warpgroup is four warps; K is the number of
elements in 32 bytes. The product is computed when the instruction is issued. Until ``wait_group`` its operands in
shared memory are pending: a write to them is a fault. Operands are read with the checks of any access by the
warpgroup's lanes: out-of-bounds reads, and reads before a ``cp.async`` has completed or before the barrier after it,
are faults, and so is a read of what a thread wrote without a proxy fence since.

The layouts in shared memory have a swizzle of 128, 64 or 32 bytes: blocks of eight rows of as many bytes; see
:mod:`evoengine.emulator.semantics.swizzle`. Without a swizzle, blocks are eight rows of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.memory.words import spread
from evoengine.emulator.semantics.fp8 import FP8_VALUES
from evoengine.emulator.semantics.mma import bfloat_to_float, half_to_float
from evoengine.emulator.semantics.swizzle import swizzled

_LANES: Final = 128
"""Lanes of a warpgroup."""
_ROWS: Final = 64
"""M."""
_ROW_BYTES: Final = 32
"""Bytes of an instruction's elements along K."""
_CHUNK: Final = 16
"""Bytes that one lane reads at a time."""
_HALVES: Final = 8
"""16-bit values in a chunk."""
_DEPTH: Final = 16
"""K of 16-bit elements."""
_WIDEN: Final[dict[str, Callable[[Array], Array]]] = {
    "f16": half_to_float,
    "bf16": bfloat_to_float,
    "tf32": lambda raw: (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32),
    "e4m3": lambda raw: FP8_VALUES["e4m3"].astype(np.float32)[raw.view(np.uint8)],
    "e5m2": lambda raw: FP8_VALUES["e5m2"].astype(np.float32)[raw.view(np.uint8)],
    "s8": lambda raw: raw.view(np.int8).astype(np.float32),
    "u8": lambda raw: raw.view(np.uint8).astype(np.float32),
}
"""Converts 16-bit words, contiguous, that hold elements of a type to float32, exactly."""
_SPANS: Final = (0, 128, 64, 32)
"""Span of the swizzle in bytes, by the value of a descriptor's swizzle field; 0 for none."""
_FIELD: Final = 0x3FFF
"""Mask of an address or offset field of a descriptor: 14 bits, in units of 16 bytes."""
_UNSUPPORTED_LAYOUT: Final = "unsupported layout of a wgmma descriptor: its base offset is not 0"
_LEADING, _STRIDE, _BASE, _SWIZZLE = 16, 32, 49, 62
"""First bits of the fields of a descriptor: leading and stride offset, base offset, swizzle."""


def multiply_async(
    x: Batch,
    kinds: tuple[str, str],
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
        kinds: Element types of A and B.
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
    lanes = _working_lanes(mask, whole)
    read: list[Array] = []
    left = _fragment(a, lanes) if len(a) > 1 else _tile(x, a[0], _ROWS, transposed[0], lanes, mask, site, read)
    right = _tile(x, b, columns, transposed[1], lanes, mask, site, read)
    x.operands.issue(read, mask, site)
    # A row is (warp, half, g), a column (eight, t, odd). Lane (warp, g, t) holds (half, odd) of every eight columns.
    # With the columns as (eight, odd, t), the four values of t move as one item.
    by_lane = right.reshape(*right.shape[:2], columns // 8, 4, 2, _DEPTH).swapaxes(3, 4).reshape(right.shape)
    product = np.matmul(_WIDEN[kinds[0]](left), _WIDEN[kinds[1]](by_lane).transpose(0, 1, 3, 2))
    parts = product.view(np.complex128).reshape(-1, _count(lanes) // _LANES, 4, 2, 8, columns // 8, 2)
    out = np.ascontiguousarray(parts.transpose(5, 3, 6, 0, 1, 2, 4)).view(np.float32)
    found = out.reshape(columns // 2, -1, _count(lanes))
    if _count(lanes) == x.threads:
        return found
    wide = np.zeros((*found.shape[:2], x.threads), np.float32)
    wide[:, :, lanes] = found
    return wide


def _whole_lanes(x: Batch) -> int:
    """Number of lanes of a CTA that are in whole warpgroups."""
    return x.real_threads // _LANES * _LANES


def _working_lanes(mask: Array | None, whole: int) -> slice:
    """The lanes from the first to the last warpgroup that has active lanes in some CTA."""
    if mask is None or mask.shape[1] == 1:
        return slice(0, whole)
    groups = np.flatnonzero(mask[:, :whole:_LANES].any(axis=0)).tolist()
    return slice(groups[0] * _LANES, (groups[-1] + 1) * _LANES) if groups else slice(0, whole)


def _count(lanes: slice) -> int:
    return int(lanes.stop - lanes.start)


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


def _fragment(registers: Sequence[Array], lanes: slice) -> Array:
    """Matrix A from registers, as 16-bit words: uint16 ``[1 or ctas, warpgroups, 64, 16]``."""
    ctas = max(map(len, registers))
    raw = np.empty((2, 2, ctas, _count(lanes)), np.uint32)
    for number, register in enumerate(registers):  # indexed by upper half of the columns, upper half of the rows
        raw[number // 2, number % 2] = register if register.shape[1] == 1 else register[:, lanes]
    halves = raw.view(np.uint16).reshape(2, 2, ctas, -1, 4, 8, 4, 2)
    return np.ascontiguousarray(halves.transpose(2, 3, 4, 1, 5, 0, 6, 7)).reshape(ctas, -1, _ROWS, _DEPTH)


def _tile(
    x: Batch,
    descriptor: Array,
    lines: int,
    transposed: bool,
    lanes: slice,
    mask: Array | None,
    site: int,
    read: list[Array],
) -> Array:
    """An operand from shared memory, of the warpgroups of some lanes; adds the addresses of all lanes to ``read``.

    Returns:
        uint16 ``[1 or ctas, warpgroups, lines, 16]``: the 32 bytes of each line, whatever its elements are.
    """
    outer, inner = (_DEPTH, lines // _HALVES) if transposed else (lines, _DEPTH // _HALVES)
    own = _descriptors(x, descriptor, mask, site)
    places = np.stack([[_chunk_addresses(number, outer, inner, transposed) for number in row] for row in own])
    addresses = np.zeros((places.shape[2], len(own), x.threads), np.uint32)  # by step of 128 chunks
    addresses[:, :, : _whole_lanes(x)] = places.transpose(2, 0, 1, 3).reshape(len(addresses), len(own), -1)
    read += list(addresses)
    found = [x.shared.gather(step, _CHUNK, mask, site, cross_warp=True, proxy=True) for step in addresses]
    ctas = max(map(len, found))
    chunks = [np.ascontiguousarray(spread(words, (ctas, x.threads))[:, lanes]).view(np.uint16) for words in found]
    parts = [chunk.reshape(ctas, -1, _LANES, _HALVES) for chunk in chunks]
    x.traffic.shared_read_bytes += lines * _ROW_BYTES * x.lane_count(mask) // _LANES
    tile = np.concatenate(parts, axis=2)[:, :, : outer * inner].reshape(ctas, -1, outer, inner * _HALVES)
    return np.ascontiguousarray(tile.transpose(0, 1, 3, 2) if transposed else tile)


def _descriptors(x: Batch, descriptor: Array, mask: Array | None, site: int) -> list[list[int]]:
    """The descriptor of each warpgroup in one or all CTAs; that of an active one for those that are not active.

    Raises:
        SiteFault: Active lanes of a warpgroup have different descriptors, or an unsupported layout.
    """
    active = x.alive if mask is None else mask
    whole = _whole_lanes(x)
    every = np.broadcast_to(descriptor, (len(descriptor), x.threads))[:, :whole].reshape(len(descriptor), -1, _LANES)
    wanted = np.broadcast_to(active, (len(active), x.threads))[:, :whole].reshape(len(active), -1, _LANES)
    own = every[:, :, 0]
    layout = own >> np.uint64(_BASE) & np.uint64(7)
    for bad, detail in (
        (every != own[:, :, None], "wgmma descriptor differs between lanes of a warpgroup"),
        ((layout != 0)[:, :, None], _UNSUPPORTED_LAYOUT),
    ):
        if bad.any() and (wrong := bad & wanted).any():
            cta, group, lane = np.unravel_index(int(wrong.argmax()), wrong.shape)
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(group) * _LANES + int(lane))
    working = wanted[:, :, 0]
    if not working.all():
        shape = np.broadcast_shapes(own.shape, working.shape)
        one = np.broadcast_to(own, shape).reshape(-1)[np.broadcast_to(working, shape).argmax()]
        own = np.where(working, own, one)
    return [list(row) for row in own.tolist()]


@lru_cache(maxsize=4096)
def _chunk_addresses(descriptor: int, outer: int, inner: int, transposed: bool) -> Array:
    """Addresses of the chunks of an operand.

    Args:
        descriptor: Matrix descriptor in shared memory.
        outer: Rows of the tile in memory, each of ``inner`` chunks.
        inner: Chunks of a row.
        transposed: Whether rows are along K. Without a swizzle, the two offsets of the descriptor change places then.

    Returns:
        uint32 ``[steps, 128]``: the chunk that each lane reads in each step. Those after the last repeat it.
    """
    start, leading, stride = ((descriptor >> first & _FIELD) << 4 for first in (0, _LEADING, _STRIDE))
    span = _SPANS[descriptor >> _SWIZZLE]
    if not span:
        span = _CHUNK
        leading, stride = (stride, leading) if transposed else (leading, stride)
    across = span // _CHUNK
    steps = -(-outer * inner // _LANES)
    number = np.minimum(np.arange(steps * _LANES), outer * inner - 1)
    row, chunk = number // inner, number % inner
    within = row % 8 * span + chunk % across * _CHUNK
    linear = start + row // 8 * stride + chunk // across * leading + within
    found = (swizzled(linear, span) if across > 1 else linear).astype(np.uint32).reshape(steps, _LANES)
    found.flags.writeable = False
    return found
