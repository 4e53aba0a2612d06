"""What the analytic counts of a family are made from and give: a config's names, and what they say of its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from evoengine.emulator.latency import Constants, Demand
from evoengine.kernel.resources import WARP
from evoengine.model import Problem, Value
from evoengine.target import Target

LINE_BYTES: Final = 128
_MMA_FLOPS: Final = 4096
COPY_LINES: Final = 4
"""Wavefronts of a conflict-free ldmatrix.x4 or of a warp's 16-byte copies."""


class Names(dict[str, int]):
    """A config's tunables and derived values, as numbers; a plain look-up each, since a forecast takes sixty.

    Words are in it too: :meth:`text` tells those.
    """

    @classmethod
    def of(cls, scope: Mapping[str, Value]) -> Names:
        """From all that expressions of the space may name."""
        return cls(cast("Mapping[str, int]", scope))

    def text(self, name: str) -> str:
        """A value that is a word."""
        return str(self[name])


@dataclass(frozen=True)
class Setting:
    """What a kernel is to do, and where."""

    problem: Problem
    target: Target
    constants: Constants


class FamilyCounts(Protocol):
    """Analytic counts of one family's kernels."""

    @property
    def needed(self) -> frozenset[str]:
        """Tunables and derived values that the counts are made from."""

    @property
    def cut(self) -> tuple[str, ...]:
        """Tunables that say how a config cuts the work, which decides most of its time."""

    def covers(self, problem: Problem) -> bool:
        """Whether the counts hold for a problem."""

    def registers(self, names: Names) -> tuple[int, int]:
        """Registers of a thread, and how many spill."""

    def demand(self, names: Names, setting: Setting) -> Demand:
        """What the main launch asks of a GPU."""

    def further_us(self, names: Names, setting: Setting) -> float:
        """What comes on top of the main launch, in microseconds."""


def lines_clocks(lines: float, target: Target) -> float:
    """Clocks of the SM for so many wavefronts of shared memory."""
    return lines * LINE_BYTES / target.smem_bytes_per_clk_per_sm


def tensor_clocks(mma: float, target: Target) -> float:
    """Clocks of a scheduler's tensor core for so many m16n8k16 products."""
    return mma * _MMA_FLOPS * target.schedulers_per_sm / target.mma_flops_per_clk_per_sm


def mufu_clocks(executed: float, target: Target) -> float:
    """Clocks of a scheduler's special-function unit for so many warp instructions."""
    return executed * WARP * target.schedulers_per_sm / target.mufu_per_clk_per_sm
