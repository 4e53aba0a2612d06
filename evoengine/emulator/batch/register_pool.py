"""Registers that the warps of a CTA hand over to each other with ``setmaxnreg``."""

from __future__ import annotations

from typing import Final

import numpy as np

from evoengine.emulator.arrays import Array, CtaRows
from evoengine.emulator.faults import FaultKind, SiteFault

_LANES: Final = 32
_GROUP_WARPS: Final = 4
LOWEST, HIGHEST, STEP = 24, 256, 8
"""Register counts that ``setmaxnreg`` accepts."""


class RegisterPool:
    """Registers of each warp, and those that no warp holds, for one batch.

    Args:
        ctas: CTAs of the batch.
        warps: Warps per CTA.
        registers: Registers per thread at the launch; all registers of a CTA are in use then.
    """

    def __init__(self, ctas: int, warps: int, registers: int) -> None:
        self._held: Array = np.full((ctas, warps), registers)
        self._free: Array = np.zeros(ctas, np.int64)

    def restrict(self, rows: CtaRows) -> None:
        """Restricts the pool to some of the CTAs."""
        self._held, self._free = self._held[rows].copy(), self._free[rows].copy()

    def _warps(self, active: Array) -> Array:
        return np.asarray(active.reshape(*self._held.shape, _LANES).any(axis=2))

    def check(self, count: int, active: Array, site: int, *, increases: bool) -> None:
        """Raises :class:`SiteFault` if a warp would change its registers in the wrong direction, or alone."""
        warps = self._warps(active)
        whole = self._whole_groups(warps)
        if not whole.all():
            cta, warp = np.unravel_index(int((~whole).argmax()), whole.shape)
            detail = "setmaxnreg is executed without this warp of the warpgroup"
            raise SiteFault(FaultKind.WARP_DIVERGENCE, detail, site, int(cta), int(warp) * _LANES)
        wrong = warps & (self._held > count if increases else self._held < count)
        if wrong.any():
            cta, warp = np.unravel_index(int(wrong.argmax()), wrong.shape)
            word = "inc" if increases else "dec"
            detail = f"setmaxnreg.{word} to {count} registers by a warp that has {int(self._held[cta, warp])}"
            raise SiteFault(FaultKind.ILLEGAL_VALUE, detail, site, int(cta), int(warp) * _LANES)

    def _whole_groups(self, warps: Array) -> Array:
        """False for each warp that is absent while others of its warpgroup are present; bool ``[ctas, warps]``."""
        padded = np.pad(warps, ((0, 0), (0, -warps.shape[1] % _GROUP_WARPS)))
        groups = padded.reshape(len(warps), -1, _GROUP_WARPS)
        fine = groups | ~groups.any(axis=2, keepdims=True)
        return np.asarray(fine.reshape(padded.shape)[:, : warps.shape[1]])

    def release(self, count: int, active: Array) -> None:
        """Executes ``setmaxnreg.dec``."""
        warps = self._warps(active)
        self._free += _LANES * np.where(warps, self._held - count, 0).sum(axis=1)
        self._held[warps] = count

    def take(self, count: int, active: Array) -> Array:
        """Executes ``setmaxnreg.inc`` for the warpgroups that the pool suffices for; returns their lanes."""
        warps = self._warps(active)
        taken = np.zeros_like(warps)
        for first in range(0, warps.shape[1], _GROUP_WARPS):
            group = slice(first, first + _GROUP_WARPS)
            need = _LANES * np.where(warps[:, group], count - self._held[:, group], 0).sum(axis=1)
            fits = warps[:, group].any(axis=1) & (need <= self._free)
            self._free -= np.where(fits, need, 0)
            taken[:, group] = warps[:, group] & fits[:, None]
        self._held[taken] = count
        return np.asarray(np.repeat(taken, _LANES, axis=1) & active)

    def describe(self, cta: int) -> str:
        """State of the pool of a CTA, for messages."""
        return f"{int(self._free[cta])} registers are free"
