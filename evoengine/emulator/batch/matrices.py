"""Matrix loads and stores in shared memory: ``ldmatrix`` and ``stmatrix``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.shared_memory import SharedMemory
from evoengine.emulator.semantics.warp_ops import LANES


def load_matrices(
    shared: SharedMemory, address: Array, count: int, transpose: bool, mask: Array | None, site: int
) -> Array:
    """Executes ``ldmatrix`` for ``count`` 8x8 matrices of 16-bit values.

    Row ``r`` of matrix ``j`` is at the address of lane ``8j + r``. ``site`` numbers the instruction, for its counters.

    Returns:
        uint32 ``[count, 1 or ctas, threads]``: lane ``4g + t`` holds columns ``2t, 2t + 1`` of row ``g`` of the matrix,
        or of its transpose.
    """
    threads = shared.threads
    warps = threads // 32
    if address.shape[1] == 1:
        address = np.broadcast_to(address, (address.shape[0], threads))
    if count < 4:  # the other lanes' addresses are ignored: use those of the first lanes
        lanes = np.arange(threads)
        address = address[:, lanes // 32 * 32 + lanes % 32 % (8 * count)]
    rows = shared.gather(address, 16, mask, site, whole_warp=True)
    ctas = len(rows)
    if transpose:
        halves = rows.view(np.uint16).reshape(ctas, warps, 4, 8, 8)[:, :, :count]
        return np.ascontiguousarray(halves.transpose(2, 0, 1, 4, 3)).view(np.uint32).reshape(count, ctas, threads)
    words = rows.view(np.uint32).reshape(ctas, warps, 4, 8, 4)[:, :, :count]
    return np.ascontiguousarray(words.transpose(2, 0, 1, 3, 4)).reshape(count, ctas, threads)


def store_matrices(
    shared: SharedMemory, address: Array, values: Sequence[Array], transpose: bool, mask: Array | None, site: int
) -> None:
    """Executes ``stmatrix``, with the layout of :func:`load_matrices`."""
    ctas, threads, count = shared.ctas, shared.threads, len(values)
    warps = threads // 32
    raw = np.zeros((ctas, warps, 4, 8, 4), np.uint32)
    for number, value in enumerate(values):
        raw[:, :, number] = np.broadcast_to(value, (ctas, threads)).reshape(ctas, warps, 8, 4)
    if transpose:
        raw = np.ascontiguousarray(raw.view(np.uint16).transpose(0, 1, 2, 4, 3)).view(np.uint32)
    rows = raw.reshape(ctas, threads, 4).view(np.complex128)[..., 0]
    used = (8 * count > LANES)[None, :].repeat(warps, axis=0).reshape(1, threads)
    shared.scatter(address, rows, 16, used if mask is None else used & mask, site, whole_warp=True)
