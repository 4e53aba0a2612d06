"""Interface between shared memory and the checks of its order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from evoengine.emulator.arrays import Array, CtaRows
from evoengine.emulator.checks.proxy_fences import FencedChunks
from evoengine.emulator.memory.transfers import BulkAccess

GRANULE: Final = 2
"""Bytes that share an access record, unless the kernel stores single bytes."""


@dataclass(frozen=True)
class StoredWords:
    """Marks words of a store that other threads cannot distinguish from those without it, bool ``[ctas, threads]``."""

    unchanged: Array
    """Equal to what was in memory before."""
    agreed: Array
    """Equal to the word that the last lane with the same address stores."""


class RaceObserver(Protocol):
    """Interface that is notified of every access to shared memory and of every barrier of a batch.

    Masks are bool ``[1 or ctas, 1 or threads]``, or None for all lanes. Indices count words of ``size`` bytes within
    the shared memory of the CTA and have passed the bounds check.
    """

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Observes a read by the masked lanes."""

    def write(
        self, index: Array, size: int, mask: Array | None, site: int, words: Callable[[], StoredWords] | None = None
    ) -> None:
        """Observes a write by the masked lanes, or the issue of a cp.async.

        ``words`` marks those that other threads cannot distinguish from others; None if all words count.
        """

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Observes that a cp.async of the masked lanes has completed."""

    def synchronise(
        self, index: Array, size: int, mask: Array | None, site: int, *, acquires: bool, releases: bool
    ) -> None:
        """Observes an atomic, which acquires and releases, ``ld.acquire`` or ``st.release`` by the masked lanes."""

    def arrive(self, lanes: Array) -> Array:
        """Observes ``bar.arrive`` by lanes, bool ``[ctas, threads]``; returns the clocks of their warps."""

    def barrier(self, lanes: Array | None, arrived: Array | None = None) -> None:
        """Observes a barrier, in each CTA among the warps of the masked lanes.

        ``arrived`` is the joint clock of the warps that executed ``bar.arrive``, ``[ctas, agents]``; None without any.
        """

    def signal(self, mbarrier: int, ctas: Array, warps: Array, phases: Array, site: int) -> None:
        """Observes arrivals at an mbarrier by warps, given as pairs of CTA and warp, each in the phase of this number.

        Raises:
            SiteFault: The end of the previous phase is not ordered before an arrival.
        """

    def end_arrival(self, ctas: Array, lanes: Array) -> None:
        """Observes the lanes of the arrivals that :meth:`signal` has reported by warp."""

    def converge(self, lanes: Array | None) -> None:
        """Observes that the masked lanes have come to an instruction of their whole warps."""

    def fence(self, lanes: Array | None, fenced: Sequence[FencedChunks]) -> None:
        """Observes ``fence.proxy.async`` by the masked lanes, and what they had accessed before it."""

    def touch(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Observes a use of mbarriers by the masked lanes."""

    def complete(self, mbarrier: int, ctas: Array, phases: Array) -> None:
        """Observes that the phases with these numbers are complete, in some CTAs."""

    def acquire(self, mbarrier: int, ctas: Array, warps: Array) -> None:
        """Observes that warps have seen the completion of the last complete phase."""

    def read_operand(self, index: Array, mask: Array | None, site: int, groups: Array) -> None:
        """Observes the issue of a wgmma that reads 16-byte words.

        ``groups`` is the number of groups that each warpgroup has committed, ``[ctas, warpgroups]``.
        """

    def finish_operands(self, accesses: Sequence[tuple[Array, Array | None, int]], done: Array) -> None:
        """Observes that warpgroups have waited for groups.

        Args:
            accesses: Index, lanes and instruction of the reads that are complete.
            done: Number of complete groups of each warpgroup that waits, ``[ctas, warpgroups]``; 0 for the others.
        """

    def bulk_write(self, access: BulkAccess, mbarrier: int, phases: Array) -> None:
        """Observes the issue of a bulk copy to shared memory that completes a phase of an mbarrier."""

    def bulk_read(self, access: BulkAccess) -> None:
        """Observes the issue of a bulk copy from shared memory, or the end of the wait for its read."""

    def finish(self) -> None:
        """Observes that all lanes have exited."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the observer to some of the CTAs."""
