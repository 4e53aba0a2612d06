"""Checks of the lanes that execute a warp-wide instruction: whole warps, or the lanes that their member masks name.

``bar.warp.sync`` is the only one at which lanes may arrive separately.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.semantics.warp_ops import ballot, source_lanes

_ALL: Final = 0xFFFFFFFF
"""Member mask of a whole warp."""


def require_warps(x: Batch, mask: Array, site: int) -> None:
    """Raises :class:`SiteFault` if a warp-wide instruction runs without some lanes of its warp that are alive."""
    if mask.shape[1] > 1 and (absent := _absent(x, mask) & x.alive).any():
        _fail(absent, "a warp-level instruction is executed without this lane of the warp", site)


def require_whole_warps(x: Batch, mask: Array, site: int) -> None:
    """Raises :class:`SiteFault` if a tensor instruction runs without some lanes of its warp, also those that exited.

    Lanes beyond the last thread of a block are missing as well.
    """
    if mask.shape[1] > 1 and (absent := _absent(x, mask)).any():
        require_warps(x, mask, site)
        _fail(absent, "a tensor instruction is executed without this lane, which has exited or does not exist", site)


def _absent(x: Batch, mask: Array) -> Array:
    """Lanes outside the mask in warps that have lanes in it, bool ``[ctas, threads]``."""
    present = np.broadcast_to(mask, (x.ctas, x.threads)).reshape(x.ctas, x.warps, 32)
    absent: Array = present.any(axis=2, keepdims=True) & ~present
    return absent.reshape(x.ctas, x.threads)


def require_members(x: Batch, members: Array, mask: Array | None, site: int) -> None:
    """Checks the member masks of a warp-level instruction.

    Raises:
        SiteFault: A lane of a member mask that is alive does not execute the instruction, or a lane that does is not in
            its own mask.
    """
    if members.size == 1 and members[0, 0] == _ALL:
        if mask is not None:
            require_warps(x, mask, site)
        return
    present = x.lanes(mask)
    outside = present & (members >> x.laneid & np.uint32(1) == 0)
    if outside.any():
        _fail(outside, "a lane executes a warp-level instruction whose member mask leaves it out", site)
    others = ballot(x.alive & ~present, x.threads)
    absent = np.where(present, members & others, np.uint32(0))
    if absent.any():
        cta, lane = np.unravel_index(int((absent != 0).argmax()), absent.shape)
        first = int(absent[cta, lane])
        missing = int(lane) // 32 * 32 + (first & -first).bit_length() - 1
        detail = "a lane of the member mask does not execute the instruction"
        raise SiteFault(FaultKind.WARP_DIVERGENCE, detail, site, int(cta), missing)


def require_sources(x: Batch, members: Array, mode: str, b: Array, c: Array, mask: Array | None, site: int) -> None:
    """Raises :class:`SiteFault` if a lane of ``shfl`` reads one that its member mask leaves out or that is absent.

    Lanes are absent if they have exited, do not exist or do not execute the instruction.
    """
    present, whole = x.lanes(mask), members.size == 1 and members[0, 0] == _ALL
    if whole and (mask is None or not _absent(x, present).any()):
        return
    source = source_lanes(mode, b, c, x.threads)
    if not whole and (bad := present & (members >> source.astype(np.uint32) & np.uint32(1) == 0)).any():
        _fail(bad, "a lane reads one that the member mask leaves out", site)
    thread = np.broadcast_to(np.arange(x.threads) // 32 * 32 + source, present.shape)
    if (bad := present & ~np.take_along_axis(present, thread, axis=1)).any():
        _fail(bad, "a lane reads one that has exited, does not exist or does not execute the instruction", site)


def warp_barrier(x: Batch, members: Array, mask: Array | None, site: int) -> None:
    """Executes ``bar.warp.sync``: lanes of one mask may arrive at different ones, or one after the other.

    Raises:
        SiteFault: A lane is not in its own member mask.
    """
    of_all = members.size == 1 and members[0, 0] == _ALL
    if of_all and mask is None:
        x.warp_barrier(mask)
        return
    present, named = x.lanes(mask), np.broadcast_to(members, (x.ctas, x.threads))
    split = present & (named & ballot(x.alive & ~present, x.threads) != 0)
    partly = present & (ballot(x.alive, x.threads) & ~named != 0)
    x.warp_barrier(present & ~partly & ~split)
    x.part_barrier(partly & ~split, named)
    outside = present & (named >> x.laneid & np.uint32(1) == 0)
    if outside.any():
        _fail(outside, "a lane executes bar.warp.sync with a member mask that leaves it out", site)
    for value in np.unique(named[split]).tolist():
        before, arrived = x.split_barriers.get(value, np.zeros((), np.int32)), split & (named == value)
        x.split_barriers = {**x.split_barriers, value: before + arrived}
        # Lanes that arrived earlier at another bar.warp.sync wait there for these.
        x.warp_barrier(x.alive & (ballot(arrived, x.threads) != 0) & (np.uint32(value) >> x.laneid & np.uint32(1) != 0))


def require_equal_barriers(x: Batch, lanes: Array, site: int) -> None:
    """Raises :class:`SiteFault` if lanes at a barrier of the CTA have left others alone at a ``bar.warp.sync``.

    Args:
        x: Batch.
        lanes: Lanes at the barrier, whole warps, bool ``[ctas, threads]``.
        site: Index of the barrier.
    """
    for members, count in x.split_barriers.items():
        named = lanes & x.alive & (np.uint32(members) >> x.laneid & np.uint32(1) != 0)
        times = np.where(named, count, 0)
        most = times.reshape(x.ctas, x.warps, 32).max(axis=2)
        behind = named & (times < np.repeat(most, 32, axis=1))
        if behind.any():
            detail = "a lane is here for which others of its warp, which name it in their mask, wait at bar.warp.sync"
            _fail(behind, detail, site)


def _fail(bad: Array, detail: str, site: int) -> None:
    cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
    raise SiteFault(FaultKind.WARP_DIVERGENCE, detail, site, int(cta), int(lane))
