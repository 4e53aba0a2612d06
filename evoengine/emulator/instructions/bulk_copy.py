"""Bulk copies and reductions between global and shared memory: ``cp.async.bulk`` and ``cp.reduce.async.bulk``.

Tensors are copied in tile mode. A reduction combines each element with global memory by a relaxed atomic.
Source: PTX ISA 9.0, "Data Movement and Conversion Instructions: Bulk copy". Elements outside a tensor are zeros when
they are read, and still count as transaction bytes; they are not written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.batch.mbarriers import Uses
from evoengine.emulator.faults import EmulatorError, FaultKind, SiteFault
from evoengine.emulator.memory.tensor_map import MAP_ALIGNMENT, MAP_BYTES, TensorMap
from evoengine.emulator.memory.transfers import Reduction, Transfer
from evoengine.emulator.semantics import atomics
from evoengine.emulator.semantics.swizzle import swizzled

_WORD: Final = 16
_TENSOR_ALIGNMENT: Final = 128
"""Alignment of a box in shared memory."""


def load_tensor(
    x: Batch,
    target: Array,
    map_address: Array,
    coordinates: Sequence[Array],
    mbarrier: Array,
    mask: Array | None,
    site: int,
) -> None:
    """Issues copies of boxes of tensors to shared memory.

    Args:
        x: Batch.
        target: Shared address per lane.
        map_address: Generic address of the tensor map per lane.
        coordinates: Coordinates of the box, innermost first, int32 per lane.
        mbarrier: Shared address of the mbarrier that counts the bytes, per lane.
        mask: Active lanes.
        site: Index of the instruction.
    """
    active = x.lanes(mask)
    for tensor, lanes in _by_map(x, map_address, active, len(coordinates), site):
        transfer = _boxes(x, tensor, target, coordinates, lanes, site)
        x.bulk.load(transfer, x.mbarriers.uses(mbarrier, lanes, site), functools.partial(read_global, x))


def store_tensor(
    x: Batch, map_address: Array, coordinates: Sequence[Array], source: Array, mask: Array | None, site: int
) -> None:
    """Issues copies of boxes in shared memory to tensors; see :func:`load_tensor`."""
    active = x.lanes(mask)
    for tensor, lanes in _by_map(x, map_address, active, len(coordinates), site):
        x.bulk.store(_boxes(x, tensor, source, coordinates, lanes, site), functools.partial(write_global, x))


def load_bulk(
    x: Batch, target: Array, source: Array, size: Array, mbarrier: Array, mask: Array | None, site: int
) -> None:
    """Issues copies of ``size`` bytes from global to shared memory."""
    for number, lanes in _by_value(size, x.lanes(mask)):
        transfer = _lines(x, target, source, number, lanes, site)
        x.bulk.load(transfer, x.mbarriers.uses(mbarrier, lanes, site), functools.partial(read_global, x))


def store_bulk(
    x: Batch,
    target: Array,
    source: Array,
    size: Array,
    mask: Array | None,
    site: int,
    reduction: tuple[str, str, str] | None = None,
) -> None:
    """Issues copies of ``size`` bytes from shared to global memory, or reductions with these :class:`Reduction`."""
    combine = None if reduction is None else Reduction(*reduction)
    for number, lanes in _by_value(size, x.lanes(mask)):
        transfer = replace(_lines(x, source, target, number, lanes, site), reduction=combine)
        x.bulk.store(transfer, functools.partial(write_global, x))


def wait_bulk(x: Batch, newest: int, read_only: bool, mask: Array | None) -> None:
    """Executes ``cp.async.bulk.wait_group``."""
    x.bulk.wait(newest, x.lanes(mask), functools.partial(write_global, x), read_only=read_only)


def execute_late_loads(x: Batch, waiting: Sequence[Uses]) -> bool:
    """Executes late loads of one mbarrier of each CTA that threads wait for; returns whether there were any."""
    ctas = np.concatenate([one.ctas for one in waiting])
    slots = np.concatenate([one.slots for one in waiting])
    return x.bulk.execute_issued(ctas, slots, functools.partial(read_global, x))


def finish_bulk(x: Batch) -> None:
    """Completes the bulk copies of a batch whose lanes have all exited."""
    x.bulk.finish(functools.partial(write_global, x))


# --- global memory ------------------------------------------------------------------------------------------------


def read_global(x: Batch, transfer: Transfer) -> Array:
    """Words of copies from global memory, ``[1 or rows, n]``; zeros out of bounds."""
    inside = transfer.inside
    try:
        words = x.memory.gather(transfer.remote, transfer.word, inside, transfer.site)
        if x.publication is not None:
            x.publication.load_bulk(x.cta_numbers, transfer)
    except SiteFault as fault:
        raise _of_issuer(fault, transfer) from None
    x.traffic.cp_async_bytes += transfer.word * _copied_words(transfer)
    return words if inside is None else np.where(inside, words, np.zeros(1, words.dtype))


def write_global(x: Batch, transfer: Transfer, words: Array) -> None:
    """Writes the words of copies that are within bounds to global memory."""
    try:
        if x.publication is not None:
            x.publication.store_bulk(x.cta_numbers, transfer, words)
        if transfer.reduction is None:
            x.memory.scatter(transfer.remote, words, transfer.word, transfer.inside, transfer.site)
        else:
            _reduce_global(x, transfer, words, transfer.reduction)
    except SiteFault as fault:
        raise _of_issuer(fault, transfer) from None
    x.traffic.global_written_bytes += transfer.word * _copied_words(transfer)


def _reduce_global(x: Batch, transfer: Transfer, words: Array, how: Reduction) -> None:
    """Combines the words of reductions with global memory, one issuing thread after the other."""
    for row in range(len(transfer.remote)):
        address = transfer.remote[row : row + 1]
        inside = None if transfer.inside is None else transfer.inside[row : row + 1]
        old = x.memory.gather(address, transfer.word, inside, transfer.site)
        given = words[row if len(words) > 1 else 0][None, :]
        sums = atomics.reduce_words(how.operation, how.kind, how.code, old, given)
        x.memory.scatter(address, sums, transfer.word, inside, transfer.site)


def _copied_words(transfer: Transfer) -> int:
    return transfer.remote.size if transfer.inside is None else int(np.count_nonzero(transfer.inside))


def _of_issuer(fault: SiteFault, transfer: Transfer) -> SiteFault:
    """A fault whose row is that of a transfer, with the CTA and the thread that issued it."""
    if fault.cta is None:
        return fault
    cta, lane = int(transfer.ctas[fault.cta]), int(transfer.lanes[fault.cta])
    return SiteFault(fault.kind, f"bulk copy: {fault.detail}", fault.site, cta, lane, fault.address)


# --- addresses ----------------------------------------------------------------------------------------------------


def _by_value(value: Array, active: Array) -> list[tuple[int, Array]]:
    """Values of the active lanes, each with its lanes."""
    every = np.broadcast_to(value, active.shape)
    return [(int(one), active & (every == one)) for one in np.unique(every[active])]


def _by_map(x: Batch, address: Array, active: Array, rank: int, site: int) -> list[tuple[TensorMap, Array]]:
    """Tensor maps of the active lanes, each with its lanes."""
    found = []
    for one, lanes in _by_value(address, active):
        cta, lane = np.unravel_index(int(lanes.argmax()), lanes.shape)
        try:
            tensor = TensorMap.decode(x.bytes_at(one, MAP_BYTES, site))
        except EmulatorError as error:
            raise SiteFault(FaultKind.ILLEGAL_VALUE, error.fault.detail, site, int(cta), int(lane), one) from None
        if one % MAP_ALIGNMENT or tensor.rank != rank:
            kind, detail = FaultKind.MISALIGNED, f"tensor map that is not aligned to {MAP_ALIGNMENT} bytes"
            if tensor.rank != rank:
                kind = FaultKind.ILLEGAL_VALUE
                detail = f"{rank} coordinates for a tensor map of {tensor.rank} dimensions"
            raise SiteFault(kind, detail, site, int(cta), int(lane), one)
        found.append((tensor, lanes))
    return found


@functools.lru_cache(maxsize=64)
def _steps(box: tuple[int, ...], element: int, word: int) -> tuple[Array, ...]:
    """Position of each word of a box: its byte in the row, then its index in each outer dimension."""
    inner = box[0] * element // word
    count = inner * math.prod(box[1:])
    number = np.arange(count, dtype=np.int64)
    steps = [number % inner * word]
    number = number // inner
    for size in box[1:]:
        steps.append(number % size)
        number = number // size
    return tuple(steps)


def _boxes(
    x: Batch, tensor: TensorMap, local: Array, coordinates: Sequence[Array], active: Array, site: int
) -> Transfer:
    """Addresses of the boxes that the active lanes copy."""
    ctas, lanes = np.nonzero(active)
    corner = [np.broadcast_to(c, active.shape)[ctas, lanes].astype(np.int64)[:, None] for c in coordinates]
    row_bytes, start = tensor.sizes[0] * tensor.element_bytes, corner[0] * tensor.element_bytes
    word = tensor.element_bytes if row_bytes % _WORD or (start % _WORD).any() else _WORD
    steps = _steps(tensor.box, tensor.element_bytes, word)
    at = start + steps[0]
    inside = (at >= 0) & (at + word <= row_bytes)
    remote = at + tensor.address
    for first, step, size, stride in zip(corner[1:], steps[1:], tensor.sizes[1:], tensor.strides_bytes, strict=True):
        position = first + step
        inside &= (position >= 0) & (position < size)
        remote += position * stride
    first_byte = _region(x, local, active, tensor.box_bytes, _TENSOR_ALIGNMENT, site)
    offsets = np.arange(tensor.box_bytes // word, dtype=np.int64) * word
    return Transfer(
        ctas,
        lanes,
        first_byte,
        tensor.box_bytes,
        word,
        np.where(inside, remote, tensor.address).astype(np.uint64),
        swizzled(_shared_rows(first_byte) + offsets, tensor.swizzle_bytes),
        None if inside.all() else inside,
        site,
    )


def _lines(x: Batch, local: Array, remote: Array, size: int, active: Array, site: int) -> Transfer:
    """Addresses of the contiguous bytes that the active lanes copy."""
    ctas, lanes = np.nonzero(active)
    if size % _WORD or not size:
        detail = f"bulk copy of {size} bytes; sizes are multiples of {_WORD}"
        raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(ctas[0]), int(lanes[0]))
    first_byte = _region(x, local, active, size, _WORD, site)
    offsets = np.arange(size // _WORD, dtype=np.int64) * _WORD
    start = np.broadcast_to(remote, active.shape)[ctas, lanes][:, None]
    far = start + offsets.astype(np.uint64)
    return Transfer(ctas, lanes, first_byte, size, _WORD, far, _shared_rows(first_byte) + offsets, None, site)


def _shared_rows(first: Array) -> Array:
    """First bytes as a column; one row if all are equal."""
    return first[:1, None] if (first == first[0]).all() else first[:, None]


def _region(x: Batch, address: Array, active: Array, size: int, alignment: int, site: int) -> Array:
    """First byte of each active lane's region in shared memory, after the checks of bounds and alignment."""
    ctas, lanes = np.nonzero(active)
    first = np.broadcast_to(address, active.shape)[ctas, lanes].astype(np.int64)
    outside, misaligned = first + size > x.shared.size, first % alignment != 0
    for bad, kind, detail in (
        (outside, FaultKind.OUT_OF_BOUNDS, f"bulk copy of {size} bytes outside the {x.shared.size} bytes of the CTA"),
        (misaligned, FaultKind.MISALIGNED, f"bulk copy at a shared address that is not a multiple of {alignment}"),
    ):
        if bad.any():
            row = int(bad.argmax())
            raise SiteFault(kind, detail, site, int(ctas[row]), int(lanes[row]), int(first[row]))
    return first
