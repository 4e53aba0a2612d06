"""Choice of the warps that run next, where the lowest block with ready lanes is not to run.

Within a warp the order of blocks is kept: lanes that left a loop early wait for the others. The warps of a warpgroup
wait for each other at the instructions that they execute together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evoengine.emulator.execution.batch import Batch
from evoengine.emulator.semantics.floats import Array
from evoengine.emulator.translate.program import Program

_WARPGROUP: Final = 128


def first_or_last(
    ready: Mapping[int, Array | None], batch: Batch, program: Program, *, first: bool
) -> tuple[int, Array]:
    """Selects a block, and lanes that are ready to run it and whose warps have none that are ready for an earlier one.

    Args:
        ready: Lanes that are ready to run each block; None for all.
        batch: State of the CTAs.
        program: Translated entry.
        first: Whether to select the first such block that does not poll, instead of the last one of any kind.

    Returns:
        The block and its lanes, bool ``[ctas, threads]``; the lowest ready block if there is no other.
    """
    shape = (batch.ctas, batch.threads)
    seen = np.zeros((batch.ctas, batch.warps, 1), np.bool_)
    found: tuple[int, Array] | None = None
    for block in sorted(ready):
        present = np.broadcast_to(batch.lanes(ready[block]), shape).reshape(batch.ctas, batch.warps, 32)
        lanes = (present & ~seen).reshape(shape)
        if block in program.warpgroup_blocks and (first or found is not None):
            lanes = lanes & _in_whole_warpgroups(lanes | ~batch.alive)
        if lanes.any() and not (first and block in program.polling):
            found = block, lanes
            if first:
                break
        seen = seen | present.any(axis=2, keepdims=True)
    if found is None:
        lowest = min(ready)
        found = lowest, batch.lanes(ready[lowest])
    return found


def _in_whole_warpgroups(lanes: Array) -> Array:
    """Whether all lanes of a lane's warpgroup are set, bool ``[ctas, threads]``; false beyond the last whole one."""
    groups = lanes.shape[1] // _WARPGROUP
    whole = lanes[:, : groups * _WARPGROUP].reshape(len(lanes), groups, _WARPGROUP).all(axis=2)
    found = np.zeros_like(lanes)
    found[:, : groups * _WARPGROUP] = np.repeat(whole, _WARPGROUP, axis=1)
    return found
