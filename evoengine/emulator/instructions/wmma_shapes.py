"""Semantics of ``wmma`` on other tiles than 16x16x16 of f16 or bf16: m32n8k16, m8n32k16, tf32, 8-bit integers, f64.

As in :mod:`evoengine.emulator.instructions.wmma`, the layout of fragments intentionally differs from the hardware's. A
*line* is a row of A, a column of B, or a row of C and D. The elements of a tile, line after line, are assigned to the
lanes in order, as many as fit into the registers of a fragment. Where registers remain, further lanes hold copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.instructions.wmma import gather_from, require_valid_tile, resolve_space, scatter_to
from evoengine.emulator.memory.words import WORD, spread
from evoengine.emulator.semantics.mma import bfloat_to_float, half_to_float

_VALUES: Final[dict[str, Callable[[Array], Array]]] = {
    "f16": half_to_float,
    "bf16": bfloat_to_float,
    "tf32": lambda raw: (raw & np.uint32(0xFFFFE000)).view(np.float32),
    "s8": lambda raw: raw.view(np.int8).astype(np.float32),
    "u8": lambda raw: raw.astype(np.float32),
    "f64": lambda raw: raw.view(np.float64),
}
"""Converts the bits of elements to numbers whose products are exact."""


def _element_addresses(
    x: Batch,
    address: Array,
    pitch: Array,
    tile: tuple[int, int],
    size: int,
    transpose: bool,
    mask: Array | None,
    site: int,
) -> list[Array]:
    """Address of the element that each lane moves in each step; lanes move neighbours in memory.

    Raises:
        SiteFault: Lanes of a warp differ in address or pitch, or one of these is misaligned.
    """
    require_valid_tile(x, address, pitch, size, mask, site)
    width = tile[0] if transpose else tile[1]
    steps = []
    for first in range(0, tile[0] * tile[1], 32):
        row, column = np.divmod(x.laneid + np.uint32(first), np.uint32(width))
        steps.append(address + ((row * pitch + column) * np.uint32(size)).astype(address.dtype))
    return steps


def load_tile(
    x: Batch,
    space: str,
    address: Array,
    pitch: Array,
    tile: tuple[int, int],
    size: int,
    registers: int,
    transpose: bool,
    mask: Array | None,
    site: int,
) -> Array:
    """Executes ``wmma.load``.

    Args:
        x: Batch.
        space: State space: ``shared``, ``global`` or ``generic``.
        address: Address of the tile, equal in all lanes of a warp.
        pitch: Elements from one line in memory to the next.
        tile: Lines of the fragment, and elements of a line.
        size: Bytes of an element.
        registers: Registers of the fragment.
        transpose: Whether a line in memory is a column of the fragment instead of a line.
        mask: Active lanes, whole warps; None for all.
        site: Index of the instruction.

    Returns:
        The registers, ``[registers, 1 or ctas, threads]``: uint32, or uint64 for elements of eight bytes.
    """
    space, address = resolve_space(x, space, address, mask, site)
    x.traffic.count_read(space, tile[0] * tile[1] * size * x.lane_count(mask) // 32)
    gather, found = gather_from(x, space), []
    for at in _element_addresses(x, address, pitch, tile, size, transpose, mask, site):
        words = gather(at, size, mask, site)
        found.append(np.ascontiguousarray(spread(words, (max(1, len(words)), x.threads))))
    ctas = max(map(len, found))
    rows = [np.broadcast_to(words, (ctas, x.threads)).reshape(ctas, -1, 32) for words in found]
    flat = np.concatenate(rows, axis=2)
    if transpose:
        flat = flat.reshape(*flat.shape[:2], tile[1], tile[0]).swapaxes(2, 3).reshape(flat.shape)
    return _deal(flat, registers, size)


def _deal(flat: Array, registers: int, size: int) -> Array:
    """Registers of all lanes from the elements of each warp's tile, ``[ctas, warps, elements]``."""
    words = np.ascontiguousarray(flat).view(np.uint64 if size == 8 else np.uint32)
    holders = words.shape[2] // registers
    by_lane = words.reshape(*words.shape[:2], holders, registers)
    every = np.tile(by_lane, (1, 1, 32 // holders, 1))
    return np.ascontiguousarray(every.reshape(len(words), -1, registers).transpose(2, 0, 1))


def _collect(registers: Sequence[Array], threads: int, elements: int, dtype: str) -> Array:
    """Elements of each warp's tile from the registers of all lanes, ``[ctas, warps, elements]``."""
    ctas = max(map(len, registers))
    whole = np.stack([np.broadcast_to(one, (ctas, threads)) for one in registers], axis=2)
    flat: Array = np.ascontiguousarray(whole).reshape(ctas, threads // 32, -1).view(dtype)
    return np.ascontiguousarray(flat[:, :, :elements])


def store_tile(
    x: Batch,
    space: str,
    address: Array,
    pitch: Array,
    tile: tuple[int, int],
    size: int,
    values: Sequence[Array],
    transpose: bool,
    mask: Array | None,
    site: int,
) -> None:
    """Executes ``wmma.store`` of the registers ``values``; other arguments as for :func:`load_tile`."""
    space, address = resolve_space(x, space, address, mask, site)
    x.traffic.count_write(space, tile[0] * tile[1] * size * x.lane_count(mask) // 32)
    scatter = scatter_to(x, space)
    flat = _collect(values, x.threads, tile[0] * tile[1], np.dtype(WORD[size]).char)
    if transpose:
        flat = flat.reshape(*flat.shape[:2], *tile).swapaxes(2, 3).reshape(flat.shape)
    for number, at in enumerate(_element_addresses(x, address, pitch, tile, size, transpose, mask, site)):
        words = np.ascontiguousarray(flat[:, :, 32 * number : 32 * (number + 1)]).reshape(len(flat), x.threads)
        scatter(at, words, size, mask, site)


def multiply_tiles(
    kinds: tuple[str, str], a: Sequence[Array], b: Sequence[Array], shape: tuple[int, int, int], threads: int
) -> Array:
    """Product of ``wmma.mma`` without its addend.

    Args:
        kinds: Element types of A and B.
        a: Registers of A.
        b: Registers of B.
        shape: M, N and K.
        threads: Threads per CTA.

    Returns:
        float32 or float64 ``[M N / 32, 1 or ctas, threads]``: the elements that each lane holds.
    """
    rows, columns, depth = shape
    code = {"f16": "H", "bf16": "H", "tf32": "I", "f64": "Q"}.get(kinds[0], "B")
    left, right = (
        _VALUES[kind](_collect(registers, threads, lines * depth, code)).reshape(-1, threads // 32, lines, depth)
        for kind, registers, lines in ((kinds[0], a, rows), (kinds[1], b, columns))
    )
    product = np.matmul(left, right.swapaxes(2, 3))
    return np.ascontiguousarray(product.reshape(len(product), threads, -1).transpose(2, 0, 1))
