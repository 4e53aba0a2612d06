"""Choice of the warps that run next, when a block other than the lowest with ready lanes is due.

Within a warp the order of blocks is kept: lanes that left a loop early wait for the others. The warps of a warpgroup
wait for each other at the instructions that they execute together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.translate.program import Program

_WARPGROUP: Final = 128


def other_warps(
    ready: Mapping[int, Array | None], batch: Batch, program: Program, number: int | None
) -> tuple[int, Array]:
    """Selects a block above the lowest, and lanes whose warps have none that are ready to run an earlier block.

    Args:
        ready: Lanes that are ready to run each block; None for all.
        batch: State of the CTAs.
        program: Translated entry.
        number: Number that selects one of several such blocks, modulo their number; None for the last one.

    Returns:
        The block and its lanes, bool ``[ctas, threads]``; the lowest block if there is no other.
    """
    shape = (batch.ctas, batch.threads)
    seen = np.zeros((batch.ctas, batch.warps, 1), np.bool_)
    found: list[tuple[int, Array]] = []
    for block in sorted(ready):
        present = np.broadcast_to(batch.lanes(ready[block]), shape).reshape(batch.ctas, batch.warps, 32)
        lanes = (present & ~seen).reshape(shape)
        if block in program.warpgroup_blocks and found:
            lanes = lanes & _in_whole_warpgroups(lanes | ~batch.alive)
        if lanes.any():
            found.append((block, lanes))
        seen = seen | present.any(axis=2, keepdims=True)
    if number is None or len(found) < 2:
        return found[-1] if found else (min(ready), np.zeros(shape, np.bool_))
    return found[1 + number % (len(found) - 1)]


def _in_whole_warpgroups(lanes: Array) -> Array:
    """Whether all lanes of a lane's warpgroup are set, bool ``[ctas, threads]``; false beyond the last whole one."""
    groups = lanes.shape[1] // _WARPGROUP
    whole = lanes[:, : groups * _WARPGROUP].reshape(len(lanes), groups, _WARPGROUP).all(axis=2)
    found = np.zeros_like(lanes)
    found[:, : groups * _WARPGROUP] = np.repeat(whole, _WARPGROUP, axis=1)
    return found
