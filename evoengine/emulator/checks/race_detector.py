"""Races between warps in shared memory, by vector clocks.

Each warp counts its barriers: its *epoch*. A barrier tells every warp that takes part the epochs of all the others. Two
accesses to the same bytes by different warps, one of them a write, are ordered if the later warp knows the earlier
one's epoch at its access; else no barrier lies between them, and on a GPU they may happen in either order. Memory
keeps, per two bytes, the last writer and its epoch, and per warp the epoch of its last read.

Atomics are not recorded: they are ordered among themselves. Lanes of one warp are taken as ordered, and ``bar.arrive``
as a full meeting: the checker may miss a race there, it does not invent one.

It is slow. Launches run under :mod:`evoengine.emulator.checks.race_prefilter` first, and here only where that suspects a race.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from evoengine.emulator.checks.faults import FaultKind, SiteFault
from evoengine.emulator.execution.cta_split import Rows, count
from evoengine.emulator.semantics.floats import Array

_GRANULE = 2


class RaceWatch(Protocol):
    """What looks for races: told of every access to shared memory, and of every barrier."""

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """The masked lanes read words of ``size`` bytes at checked indices."""

    def write(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """The masked lanes write words, or start a cp.async that will."""

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """A cp.async of the masked lanes has landed."""

    def barrier(self, lanes: Array | None) -> None:
        """The warps of the masked lanes have met, CTA by CTA."""

    def finish(self) -> None:
        """All lanes have exited."""

    def keep(self, rows: Rows) -> None:
        """Goes on with some of the CTAs only."""


class RaceChecker:
    """Clocks and access records of one batch."""

    def __init__(self, ctas: int, threads: int, smem_bytes: int) -> None:
        self._ctas, self._threads = ctas, threads
        warps = threads // 32
        granules = (smem_bytes + 15) // 16 * 16 // _GRANULE
        self._known = np.zeros((ctas, warps, warps), np.int16)
        """What each warp knows of each warp's epoch; its own epoch on the diagonal."""
        self._known[:, np.arange(warps), np.arange(warps)] = 1
        self._writer = np.zeros((ctas, granules), np.uint8)
        self._written = np.zeros((ctas, granules), np.int16)
        self._read = np.zeros((ctas, warps, granules), np.int16)
        self._warps = np.arange(threads) // 32

    def barrier(self, lanes: Array | None) -> None:
        """The warps of the masked lanes have met, CTA by CTA."""
        warps = self._known.shape[1]
        if lanes is None:
            here: Array = np.ones((self._ctas, warps), np.bool_)
        else:
            spread: Array = np.broadcast_to(lanes, (self._ctas, self._threads)).reshape(self._ctas, warps, 32)
            here = np.asarray(spread.any(axis=2))
        joint = np.where(here[:, :, None], self._known, 0).max(axis=1, keepdims=True)
        self._known = np.where(here[:, :, None], np.maximum(joint, self._known), self._known)
        diagonal = np.arange(warps)
        self._known[:, diagonal, diagonal] += here.astype(np.int16)

    def _flatten(self, index: Array, size: int, mask: Array | None) -> tuple[Array, Array, Array]:
        """CTA, lane and granules ``[n, size / 2]`` of the active lanes."""
        shape = (self._ctas, self._threads)
        active = np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)
        cta, lane = np.nonzero(active)
        first = np.broadcast_to(index, shape)[cta, lane] * size // _GRANULE
        return cta, lane, first[:, None] + np.arange(max(size // _GRANULE, 1))

    def read(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a read of checked word indices, and records it."""
        cta, lane, granule = self._flatten(index, size, mask)
        warp = self._warps[lane]
        self._check_writes(cta, lane, warp, granule, site, "reads what")
        self._read[cta[:, None], warp[:, None], granule] = self._known[cta, warp, warp][:, None]

    def write(self, index: Array, size: int, mask: Array | None, site: int) -> None:
        """Checks a write of checked word indices, and records it."""
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
            self._fail(clash, cta, lane, granule, site, "and another warp write the same bytes at once:")

    def land(self, index: Array, size: int, mask: Array | None) -> None:
        """A cp.async has landed: its write counts from now."""
        cta, lane, granule = self._flatten(index, size, mask)
        self._record(cta, self._warps[lane], granule)

    def finish(self) -> None:
        """Nothing is left to check: every access was, when it came."""

    def keep(self, rows: Rows) -> None:
        """Goes on with some of the CTAs only."""
        self._ctas = count(rows)
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
