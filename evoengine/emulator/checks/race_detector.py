"""Detection of data races between warps in shared memory, by vector clocks.

The *epoch* of a warp is the number of barriers that it has passed. Each warp has a vector clock with the last epoch of
every warp that happens before its own current one; a barrier merges the clocks of the warps that pass it. Two accesses
to the same bytes by different warps, one of them a write, are a race unless the clock of the later warp covers the
epoch of the earlier access. Shared memory has an access record for every two bytes: the last writer with its epoch, and
for each warp the epoch of its last read.

Atomics are not recorded, since they are ordered among themselves. Lanes of one warp count as ordered, and
``bar.arrive`` as a barrier that waits. Races of these kinds may be missed, but no race is reported falsely.

The detector is slow. A launch runs first under :mod:`evoengine.emulator.checks.race_prefilter`, and under the detector
only if that suspects a race.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from evoengine.emulator.checks.faults import FaultKind, SiteFault
from evoengine.emulator.execution.cta_split import CtaRows, row_count
from evoengine.emulator.semantics.floats import Array

_GRANULE = 2
"""Bytes that share an access record."""


class RaceObserver(Protocol):
    """Interface that is notified of every access to shared memory and of every barrier of a batch.

    Masks are bool ``[1 or ctas, 1 or threads]``, or None for all lanes. Indices count words of ``size`` bytes within
    the shared memory of the CTA and have passed the bounds check.
    """

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Observes a read by the masked lanes."""

    def write(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Observes a write by the masked lanes, or the issue of a cp.async."""

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Observes that a cp.async of the masked lanes has completed."""

    def barrier(self, lanes: Array | None) -> None:
        """Observes a barrier, in each CTA among the warps of the masked lanes."""

    def finish(self) -> None:
        """Observes that all lanes have exited."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the observer to some of the CTAs."""


class RaceDetector:
    """Vector clocks and access records of one batch; implements :class:`RaceObserver`.

    Its methods raise :class:`SiteFault` at the second access of a race.
    """

    def __init__(self, ctas: int, threads: int, smem_bytes: int) -> None:
        self._ctas, self._threads = ctas, threads
        warps = threads // 32
        granules = (smem_bytes + 15) // 16 * 16 // _GRANULE
        self._known = np.zeros((ctas, warps, warps), np.int16)
        """Vector clocks: ``[c, w, v]`` is the last epoch of warp ``v`` that is ordered before warp ``w``."""
        self._known[:, np.arange(warps), np.arange(warps)] = 1
        self._writer = np.zeros((ctas, granules), np.uint8)
        self._written = np.zeros((ctas, granules), np.int16)
        self._read = np.zeros((ctas, warps, granules), np.int16)
        self._warps = np.arange(threads) // 32

    def barrier(self, lanes: Array | None) -> None:
        """Merges the clocks of the warps of the masked lanes, in each CTA, and advances their epochs."""
        warps = self._known.shape[1]
        if lanes is None:
            present: Array = np.ones((self._ctas, warps), np.bool_)
        else:
            spread: Array = np.broadcast_to(lanes, (self._ctas, self._threads)).reshape(self._ctas, warps, 32)
            present = np.asarray(spread.any(axis=2))
        joint = np.where(present[:, :, None], self._known, 0).max(axis=1, keepdims=True)
        self._known = np.where(present[:, :, None], np.maximum(joint, self._known), self._known)
        diagonal = np.arange(warps)
        self._known[:, diagonal, diagonal] += present.astype(np.int16)

    def _flatten(self, index: Array, size: int, mask: Array | None) -> tuple[Array, Array, Array]:
        """CTA ``[n]``, lane ``[n]`` and granules ``[n, size / 2]`` of the active lanes."""
        shape = (self._ctas, self._threads)
        active = np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)
        cta, lane = np.nonzero(active)
        first = np.broadcast_to(index, shape)[cta, lane] * size // _GRANULE
        return cta, lane, first[:, None] + np.arange(max(size // _GRANULE, 1))

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a read against earlier writes, and records it."""
        cta, lane, granule = self._flatten(index, size, mask)
        warp = self._warps[lane]
        self._check_writes(cta, lane, warp, granule, site, "reads what")
        self._read[cta[:, None], warp[:, None], granule] = self._known[cta, warp, warp][:, None]

    def write(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a write against earlier accesses, and records it."""
        cta, lane, granule = self._flatten(index, size, mask)
        warp = self._warps[lane]
        self._check_writes(cta, lane, warp, granule, site, "overwrites what")
        for other in range(self._known.shape[1]):
            late = self._read[cta[:, None], other, granule] > self._known[cta, warp, other][:, None]
            late &= (warp != other)[:, None]
            if late.any():
                self._fail(late, cta, lane, granule, site, f"overwrites what warp {other} reads")
        self._record(cta, warp, granule)
        clash = self._writer[cta[:, None], granule] != warp[:, None]
        if clash.any():
            self._fail(clash, cta, lane, granule, site, "and another warp write the same bytes")

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """Records the completion of a cp.async as a write."""
        cta, lane, granule = self._flatten(index, size, mask)
        self._record(cta, self._warps[lane], granule)

    def finish(self) -> None:
        """Does nothing: every access has been checked already."""

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the detector to some of the CTAs."""
        self._ctas = row_count(rows)
        for name in ("_known", "_writer", "_written", "_read"):
            setattr(self, name, getattr(self, name)[rows].copy())

    def _record(self, cta: Array, warp: Array, granule: Array) -> None:
        self._writer[cta[:, None], granule] = warp[:, None]
        self._written[cta[:, None], granule] = self._known[cta, warp, warp][:, None]

    def _check_writes(self, cta: Array, lane: Array, warp: Array, granule: Array, site: int, verb: str) -> None:
        writer = self._writer[cta[:, None], granule]
        late = self._written[cta[:, None], granule] > self._known[cta[:, None], warp[:, None], writer]
        late &= writer != warp[:, None]
        if late.any():
            row = int(late.any(axis=1).argmax())
            other = int(writer[row, int(late[row].argmax())])
            self._fail(late, cta, lane, granule, site, f"{verb} warp {other} writes")

    def _fail(self, bad: Array, cta: Array, lane: Array, granule: Array, site: int, what: str) -> None:
        row = int(bad.any(axis=1).argmax())
        column = int(bad[row].argmax())
        detail = f"warp {int(lane[row]) // 32} {what} with no barrier between them"
        address = int(granule[row, column]) * _GRANULE
        raise SiteFault(FaultKind.DATA_RACE, detail, site, int(cta[row]), int(lane[row]), address)
