"""Threads that wait at barriers, and checks of barrier instructions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array
from evoengine.emulator.batch.batch import Batch
from evoengine.emulator.faults import FaultKind, SiteFault
from evoengine.emulator.instructions.warp_members import require_equal_barriers, require_warps
from evoengine.emulator.ptx.records import Entry

_BARRIERS: Final = 16
"""Named barriers of a CTA."""


@dataclass
class Waiter:
    """Lanes that have arrived at a barrier instruction together."""

    number: Array
    """Barrier number per lane, ``[ctas, threads]``."""
    count: Array | None
    """Expected number of threads, per lane; None for all threads of the CTA that have not exited."""
    mask: Array
    follower: int | None
    """Block that released lanes continue at; None for ``bar.arrive``, which does not wait."""
    site: int
    clocks: Array | None = None
    """Clocks of the warps that executed ``bar.arrive``, ``[ctas, warps, agents]``; None without a race observer."""
    released: Array | None = None
    """Joint clock of the lanes that executed ``bar.arrive``, ``[ctas, agents]``; None unless lanes are checked."""

    @property
    def numbers(self) -> set[int]:
        """Numbers of the barriers that the lanes wait at."""
        named = self.number[self.mask]
        if named.size and named.min() >= 0 and named.max() < _BARRIERS:
            return set(np.flatnonzero(np.bincount(named)).tolist())  # faster than np.unique
        return set(np.unique(named).tolist())


def check_barrier(numbers: Array, counts: Array | None, active: Array, site: int) -> None:
    """Raises :class:`SiteFault` for a barrier number or a thread count that no GPU accepts."""
    for bad, detail in (
        ((numbers < 0) | (numbers >= _BARRIERS), f"barriers have the numbers 0 to {_BARRIERS - 1}"),
        (
            None if counts is None else (counts % 32 != 0) | (counts == 0),
            "a barrier's thread count must be a multiple of 32",
        ),
    ):
        if bad is not None and (wrong := bad & active).any():
            cta, lane = np.unravel_index(int(wrong.argmax()), wrong.shape)
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(lane))


def require_aligned(batch: Batch, entry: Entry, waiting: Sequence[Waiter], number: int, opened: Array) -> None:
    """Checks the warps at an aligned barrier (``bar``, or ``barrier.aligned``) when it opens.

    A check at each arrival would be too early: diverged lanes may reach the same instruction one after the other.

    Args:
        batch: Batch of the CTAs.
        entry: Entry with the barrier instructions.
        waiting: Threads at all barriers.
        number: Barrier number.
        opened: CTAs in which the barrier opens, bool ``[ctas]``.

    Raises:
        SiteFault: Lanes of a warp that are alive have arrived at different instructions, or not at all, or others wait
            for them at a barrier of the warp.
    """
    arrived: dict[int, Array] = {}
    for waiter in waiting:
        parts = entry.instructions[waiter.site].parts
        if parts[0] == "bar" or "aligned" in parts:
            lanes = waiter.mask & (waiter.number == number) & opened[:, None]
            arrived[waiter.site] = arrived[waiter.site] | lanes if waiter.site in arrived else lanes
    for site, lanes in arrived.items():
        require_warps(batch, lanes, site)
        require_equal_barriers(batch, lanes, site)
