"""Checks of the lanes that execute a warp-wide instruction: whole warps, or the lanes that their member masks name."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.checks.faults import FaultKind, SiteFault
from evoengine.emulator.execution.batch import Batch
from evoengine.emulator.semantics.floats import Array
from evoengine.emulator.semantics.warp_ops import ballot, source_lanes

_ALL: Final = 0xFFFFFFFF
"""Member mask of a whole warp."""


def require_warps(x: Batch, mask: Array, site: int) -> None:
    """Raises :class:`SiteFault` if a warp-wide instruction runs without some lanes of its warp that are alive."""
    if mask.shape[1] == 1:
        return
    present = np.broadcast_to(mask, (x.ctas, x.threads)).reshape(x.ctas, x.warps, 32)
    absent = present.any(axis=2, keepdims=True) & ~present & x.alive.reshape(present.shape)
    if absent.any():
        cta, warp, lane = np.unravel_index(int(absent.argmax()), absent.shape)
        detail = "a warp-level instruction is executed without this lane of the warp"
        raise SiteFault(FaultKind.WARP_DIVERGENCE, detail, site, int(cta), int(warp) * 32 + int(lane))


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
    """Raises :class:`SiteFault` if a lane of ``shfl.sync`` reads one that its member mask leaves out."""
    if members.size == 1 and members[0, 0] == _ALL:
        return
    source = source_lanes(mode, b, c, x.threads).astype(np.uint32)
    bad = x.lanes(mask) & (members >> source & np.uint32(1) == 0)
    if bad.any():
        _fail(bad, "a lane reads one that the member mask leaves out", site)


def _fail(bad: Array, detail: str, site: int) -> None:
    cta, lane = np.unravel_index(int(bad.argmax()), bad.shape)
    raise SiteFault(FaultKind.WARP_DIVERGENCE, detail, site, int(cta), int(lane))
