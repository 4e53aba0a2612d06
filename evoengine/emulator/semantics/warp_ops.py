"""Operations between the lanes of a warp: shuffles, votes, matches, reductions, transposed matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array

LANES: Final = np.arange(32, dtype=np.int64)
_BIT: Final = np.uint32(1) << np.arange(32, dtype=np.uint32)


def source_lanes(mode: str, b: Array, c: Array, threads: int) -> Array:
    """Lane of the warp that each lane reads in ``shfl.sync``, ``[1 or ctas, threads]``: its own if out of range."""
    lanes, _ = _source_lanes(mode, _by_warp(b, threads), _by_warp(c, threads))
    rows = lanes.shape[0]
    return np.broadcast_to(lanes, (rows, threads // 32, 32)).reshape(rows, threads)


def _source_lanes(mode: str, b: Array, c: Array) -> tuple[Array, Array]:
    """Source lane of every lane of ``shfl.sync`` and whether it is in range, by the pseudo-code of the PTX manual.

    The last axis of the operands ``b`` and ``c`` is the lane, of size 32 or 1.
    """
    b = b.astype(np.int64) & 31
    clamp, segment = c.astype(np.int64) & 31, (c.astype(np.int64) >> 8) & 31
    top = (LANES & segment) | (clamp & ~segment)
    low = LANES & segment
    if mode == "up":
        lane = LANES - b
        valid = lane >= top
    elif mode == "down":
        lane = LANES + b
        valid = lane <= top
    elif mode == "bfly":
        lane = LANES ^ b
        valid = lane <= top
    else:
        lane = low | (b & ~segment)
        valid = lane <= top
    return np.where(valid, lane, LANES), valid


@functools.cache
def _common_source(mode: str, b: int, c: int, threads: int) -> tuple[Array, Array]:
    """Source lanes for operands that are equal in all warps, ``[32]``, and their validity, ``[1, threads]``."""
    lanes, valid = _source_lanes(mode, np.array(b, np.uint32), np.array(c, np.uint32))
    return lanes, np.tile(valid, threads // 32)[None, :]


def _by_warp(values: Array, threads: int) -> Array:
    rows, columns = values.shape
    if columns == 1:
        return values[:, :, None]
    return values.reshape(rows, threads // 32, 32)


def shuffle(values: Array, mode: str, b: Array, c: Array, threads: int) -> tuple[Array, Array]:
    """Executes ``shfl.sync``; returns every lane's new value and whether its source lane is in range."""
    if b.size == 1 and c.size == 1:
        lanes, valid = _common_source(mode, int(b[0, 0]), int(c[0, 0]), threads)
        if values.shape[1] == 1:
            return values, valid
        return np.take(_by_warp(values, threads), lanes, axis=2).reshape(values.shape), valid
    lanes, ok = _source_lanes(mode, _by_warp(b, threads), _by_warp(c, threads))
    rows = max(values.shape[0], lanes.shape[0])
    shape = (rows, threads // 32, 32)
    picked = np.take_along_axis(
        np.broadcast_to(_by_warp(values, threads), shape), np.broadcast_to(lanes, shape), axis=2
    )
    return picked.reshape(rows, threads), np.broadcast_to(ok, shape).reshape(rows, threads)


def transpose_matrix(values: Array, threads: int) -> Array:
    """Executes ``movmatrix``: transposes the 8x8 matrix of each warp; every lane holds two values of a row."""
    rows = values.shape[0]
    pairs = np.ascontiguousarray(np.broadcast_to(values, (rows, threads)), np.uint32)
    matrices = pairs.view(np.uint16).reshape(rows, threads // 32, 8, 8)
    return np.ascontiguousarray(matrices.transpose(0, 1, 3, 2)).view(np.uint32).reshape(rows, threads)


def ballot(predicate: Array, threads: int) -> Array:
    """Mask of the lanes of each warp whose predicate is true, for every lane."""
    shape = (predicate.shape[0], threads)
    lanes = np.broadcast_to(predicate, shape).reshape(-1, threads // 32, 32)
    bits = np.where(lanes, _BIT, np.uint32(0)).sum(axis=2, dtype=np.uint32)
    return np.repeat(bits, 32, axis=1)


def match_any(values: Array, active: Array, threads: int) -> Array:
    """Mask of the active lanes of the warp that have the same value, for every lane."""
    shape = (max(values.shape[0], active.shape[0]), threads)
    lanes = np.broadcast_to(values, shape).reshape(-1, threads // 32, 32)
    on = np.broadcast_to(active, shape).reshape(-1, threads // 32, 1, 32)
    same = (lanes[:, :, :, None] == lanes[:, :, None, :]) & on
    bits: Array = np.where(same, _BIT, np.uint32(0)).sum(axis=3, dtype=np.uint32)
    return bits.reshape(shape)


_REDUCE: Final[dict[str, Callable[..., Array]]] = {
    "add": lambda x: x.sum(axis=-1, dtype=x.dtype),
    "min": lambda x: x.min(axis=-1),
    "max": lambda x: x.max(axis=-1),
    "and": lambda x: np.bitwise_and.reduce(x, axis=-1),
    "or": lambda x: np.bitwise_or.reduce(x, axis=-1),
    "xor": lambda x: np.bitwise_xor.reduce(x, axis=-1),
}


def reduce(values: Array, operation: str, active: Array, threads: int, members: Array | None = None) -> Array:
    """Executes ``redux.sync`` over the active lanes of each warp, or those of each lane's member mask."""
    neutral = {"add": 0, "or": 0, "xor": 0, "and": -1, "min": None, "max": None}[operation]
    shape = (max(values.shape[0], active.shape[0]), threads)
    info = np.iinfo(values.dtype)
    fill = info.max if operation == "min" else info.min if operation == "max" else neutral
    kept = np.where(active, values, np.array(fill).astype(values.dtype))
    lanes = np.broadcast_to(kept, shape).reshape(-1, threads // 32, 32)
    if members is not None and (members != 0xFFFFFFFF).any():
        masks = np.broadcast_to(members, shape).reshape(*lanes.shape, 1)
        own = np.where(masks & _BIT != 0, lanes[:, :, None, :], np.array(fill).astype(values.dtype))
        return _REDUCE[operation](own).reshape(shape)
    return np.repeat(_REDUCE[operation](lanes), 32, axis=1)
