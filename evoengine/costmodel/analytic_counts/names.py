"""What the analytic counts of a family are made from and give: names of many configs, and what they say of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.latency import Constants, Demand, Numbers
from evoengine.kernel.resources import WARP
from evoengine.model import Problem
from evoengine.target import Target

LINE_BYTES: Final = 128
_MMA_FLOPS: Final = 4096
COPY_LINES: Final = 4
"""Wavefronts of a conflict-free ldmatrix.x4 or of a warp's 16-byte copies."""

Names = Mapping[str, npt.NDArray[Any]]
"""Tunables and derived values, ``[configs]`` each: integers, booleans or words."""


@dataclass(frozen=True)
class Setting:
    """What kernels are to do, and where."""

    problem: Problem
    target: Target
    constants: Constants


class FamilyCounts(Protocol):
    """Analytic counts of one family's kernels, in a setting; of many configs at once, one number for each."""

    needed: ClassVar[frozenset[str]]
    """Tunables and derived values that the counts are made from."""
    cut: ClassVar[tuple[str, ...]]
    """Tunables that say how a config cuts the work, which decides most of its time."""

    def __init__(self, setting: Setting) -> None: ...

    @staticmethod
    def covers(problem: Problem) -> bool:
        """Whether the counts hold for a problem."""

    def registers(self, names: Names) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Registers of a thread, and how many spill."""

    def demand(self, names: Names, spilled: Numbers) -> Demand:
        """What the main launch asks of a GPU, with so many registers spilled."""

    def further_us(self, names: Names) -> Numbers:
        """What comes on top of the main launch, in microseconds."""


def looked_up(function: Callable[..., float | tuple[float, ...]], *columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """What a function of a few integers or words, which remembers its results, gives for each config.

    Returns:
        ``[configs]``; where it gives several numbers, ``[numbers, configs]``.
    """
    return np.array([*map(function, *(column.tolist() for column in columns))]).T


def live_registers(names: Names, target: Target) -> tuple[npt.NDArray[np.int64], Numbers]:
    """Registers of a thread, and how many spill, where ptxas takes what is live and no more."""
    cap = np.minimum(target.max_regs_per_thread, target.regs_per_sm // (names["THREADS"] * names["MIN_CTAS"]) // 8 * 8)
    return np.minimum(names["LIVE_REGISTERS"], cap), np.maximum(0, names["LIVE_REGISTERS"] - cap)


def lines_clocks(lines: Numbers, target: Target) -> Numbers:
    """Clocks of the SM for so many wavefronts of shared memory."""
    return lines * LINE_BYTES / target.smem_bytes_per_clk_per_sm


def tensor_clocks(mma: Numbers, target: Target) -> Numbers:
    """Clocks of a scheduler's tensor core for so many m16n8k16 products."""
    return mma * _MMA_FLOPS * target.schedulers_per_sm / target.mma_flops_per_clk_per_sm


def mufu_clocks(executed: Numbers, target: Target) -> Numbers:
    """Clocks of a scheduler's special-function unit for so many warp instructions."""
    return executed * WARP * target.schedulers_per_sm / target.mufu_per_clk_per_sm
