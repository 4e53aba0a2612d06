"""Special registers of a batch of CTAs, each in its smallest broadcastable shape."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows, row_count, select_rows

_WARP_DELAY: Final = np.uint64(97)
"""Difference of the clocks of neighbouring warps, odd so that their low bits differ."""


@dataclass(frozen=True)
class LaunchShape:
    """Validated sizes of a launch."""

    grid: tuple[int, int, int]
    """CTAs per axis."""
    block: tuple[int, int, int]
    """Threads per axis. The lanes of a CTA are padded to whole warps."""
    smem_bytes: int
    """Shared memory per CTA."""
    dynamic_bytes: int
    """Dynamic part of the shared memory."""
    local_bytes: int
    """Local memory per thread."""


class SpecialRegisters:
    """Special registers: ``%tid`` is ``[1, threads]``, ``%ctaid`` is ``[ctas, 1]``, uniform values are ``[1, 1]``.

    Args:
        shape: Sizes of the launch.
        params: Parameter block of the launch.
        ctas: Linear CTA numbers of the batch.
    """

    def __init__(self, shape: LaunchShape, params: bytes, ctas: Array) -> None:
        self.grid, self.block = shape.grid, shape.block
        self.cta_numbers = ctas
        self.ctas = len(ctas)
        self.real_threads = math.prod(shape.block)
        self.threads = (self.real_threads + 31) // 32 * 32
        self.warps = self.threads // 32
        self._params = params
        self._ticks = 0
        thread = np.arange(self.threads, dtype=np.uint32)[None, :]
        x, y, _ = self.block
        one = np.ones((1, 1), np.uint32)
        self.tid_x, self.tid_y, self.tid_z = thread % x, thread // x % y, thread // (x * y)
        cta = self.cta_numbers.astype(np.uint32)[:, None]
        gx, gy, _ = self.grid
        self.ctaid_x, self.ctaid_y, self.ctaid_z = cta % gx, cta // gx % gy, cta // (gx * gy)
        for number, axis in enumerate("xyz"):
            setattr(self, f"ntid_{axis}", one * np.uint32(self.block[number]))
            setattr(self, f"nctaid_{axis}", one * np.uint32(self.grid[number]))
            if self.block[number] == 1:
                setattr(self, f"tid_{axis}", one * np.uint32(0))
            if self.grid[number] == 1:
                setattr(self, f"ctaid_{axis}", one * np.uint32(0))
        self.laneid = thread & np.uint32(31)
        self.warpid = thread >> np.uint32(5)
        self.nwarpid = one * np.uint32(self.warps)
        self.smid = cta
        self.nsmid = one * np.uint32(max(1, self.grid[0] * self.grid[1] * self.grid[2]))
        self.gridid = np.ones((1, 1), np.uint64)
        self.dynamic_smem_size = one * np.uint32(shape.dynamic_bytes)
        self.total_smem_size = one * np.uint32(shape.smem_bytes)
        self.envreg = one * np.uint32(0)
        self.lanemask_eq = np.uint32(1) << self.laneid
        self.lanemask_lt = self.lanemask_eq - np.uint32(1)
        self.lanemask_le = self.lanemask_lt | self.lanemask_eq
        self.lanemask_gt = ~self.lanemask_le
        self.lanemask_ge = ~self.lanemask_lt

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the registers to some of the CTAs."""
        for name in ("ctaid_x", "ctaid_y", "ctaid_z", "smid"):
            setattr(self, name, select_rows(getattr(self, name), rows, self.ctas))
        self.cta_numbers = self.cta_numbers[rows]
        self.ctas = row_count(rows)

    def clock64(self) -> Array:
        """Returns ``%clock64``, ``[ctas, threads]``, which grows with every read.

        It begins at a number that follows from the arguments of the launch and from the warp: results that depend on
        the time differ from case to case.
        """
        self._ticks += 1
        start = np.frombuffer(hashlib.sha256(self._params).digest(), np.uint64, 1) >> np.uint64(1)
        warp = self.cta_numbers.astype(np.uint64)[:, None] * np.uint64(self.warps) + self.warpid
        return start + warp * _WARP_DELAY + np.uint64(self._ticks)

    def clock(self) -> Array:
        """Returns the low word of the clock."""
        return self.clock64().astype(np.uint32)

    def clock_hi(self) -> Array:
        """Returns the high word of the clock."""
        return (self.clock64() >> np.uint64(32)).astype(np.uint32)
