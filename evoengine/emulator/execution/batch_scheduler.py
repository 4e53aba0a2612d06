"""Batches that have come of one another, run by turns."""

from __future__ import annotations

from collections import deque

from evoengine.emulator.execution.cta_split import MOST_PARTS
from evoengine.emulator.execution.executor import Executor


def run_all(executor: Executor) -> tuple[int, int]:
    """Runs a batch, and whatever batches its CTAs become, by turns: one may wait for what another writes.

    Returns:
        Instructions of the busiest CTA, and of the busiest warp.

    Raises:
        EmulatorError: as for :meth:`Executor.run`.
    """
    turns, parts = deque([executor]), 1
    busiest_cta = busiest_warp = 0
    while turns:
        now = turns.popleft()
        after = now.run(may_part=parts < MOST_PARTS)
        if not after:
            busiest_cta = max(busiest_cta, int(now.warp_work.sum(axis=1).max()))
            busiest_warp = max(busiest_warp, int(now.warp_work.max()))
        elif len(after) == 1:
            turns.extend(after)
        else:
            parts += len(after) - 1
            turns.extendleft(reversed(after))
    return busiest_cta, busiest_warp
