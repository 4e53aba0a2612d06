"""Protocol of the analytic counts of a family, their registry, and arithmetic that several families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.latency import WAVEFRONT_BYTES, Constants, Demand, Numbers
from evoengine.costmodel.simulation.launch import SimulatedLaunch
from evoengine.costmodel.simulation.warpgroup import SIMULATION_FITTED, SimulationConstants
from evoengine.kernel.resources import WARP
from evoengine.model import Problem, Value, base_family
from evoengine.space.family_modules import family_module
from evoengine.target import Target

COPY_LINES: Final = 4
"""Wavefronts of one conflict-free ldmatrix.x4, or of a warp's 16-byte copies."""
_MMA_FLOPS: Final = 4096
_MERGE_THREADS: Final = ((64, 32), (32, 16), (0, 8))
"""Pairs (width, threads): threads that merge one row of splits if head_dim is above the width."""
_COUNTS: Final = "evoengine.costmodel.analytic_counts"
_SIMULATIONS: Final = "evoengine.costmodel.simulated_families"

Names = Mapping[str, npt.NDArray[Any]]
"""Tunables and derived values by name; each an array ``[configs]`` of integers, booleans or strings."""


@dataclass(frozen=True)
class Setting:
    """Problem, GPU and model constants that one forecast is made for."""

    problem: Problem
    target: Target
    constants: Constants
    simulation: SimulationConstants = SIMULATION_FITTED


class FamilyCounts(Protocol):
    """Counts of one family's kernels, computed for many configs at once from tunables and derived values."""

    needed: ClassVar[frozenset[str]]
    """Names of the tunables and derived values that the counts use."""
    defaults: ClassVar[Mapping[str, Value]]
    """Further names that they use, with the values that stand for them in spaces recorded before they existed."""
    partition: ClassVar[tuple[str, ...]]
    """Tunables that determine how a config partitions the work, and with that most of its time."""

    def __init__(self, setting: Setting) -> None: ...

    @staticmethod
    def covers(problem: Problem) -> bool:
        """Returns whether the counts are valid for a problem."""

    def registers(self, names: Names) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Estimates registers per thread and spilled registers per thread."""

    def demand(self, names: Names, spilled: Numbers) -> Demand:
        """Computes the demand of the main launch, given the number of spilled registers."""

    def extra_launches_us(self, names: Names) -> Numbers:
        """Computes the time of further launches, in microseconds."""


def counts_of(family: str) -> type[FamilyCounts] | None:
    """Finds the analytic counts of a family: ``COUNTS`` of its module in ``analytic_counts``; None without one."""
    module = family_module(_COUNTS, family)
    counts: type[FamilyCounts] | None = getattr(module, "COUNTS", None)
    return counts


def merge_threads(head_dim: int) -> int:
    """Returns the number of threads that merge one row of the partial results of splits."""
    return next(threads for width, threads in _MERGE_THREADS if head_dim > width)


@dataclass(frozen=True)
class KernelFacts:
    """Properties of a kernel that a simulation takes from its binary and its execution, or from estimates of them."""

    ctas_per_sm: int
    """CTAs that fit on an SM."""
    spilled: float = 0.0
    """Spilled registers per thread."""
    instructions: float = 1.0
    """Executed instructions, relative to those that the simulation counts."""


@runtime_checkable
class FamilySimulation(Protocol):
    """Simulation of one family's kernels, config by config, from tunables and derived values."""

    needed: ClassVar[frozenset[str]]
    """Names of the tunables and derived values that the simulation uses."""
    defaults: ClassVar[Mapping[str, Value]]
    """Further names that it uses, with the values that stand for them in spaces recorded before they existed."""
    partition: ClassVar[tuple[str, ...]]
    """Tunables that determine how a config partitions the work, and with that most of its time."""

    def __init__(self, setting: Setting) -> None: ...

    @staticmethod
    def covers(problem: Problem) -> bool:
        """Returns whether the simulation is valid for a problem."""

    def registers(self, names: Names) -> tuple[npt.NDArray[np.int64], Numbers]:
        """Estimates registers per thread at the launch and spilled registers per thread of many configs."""

    def launch(self, names: Mapping[str, Any], facts: KernelFacts) -> SimulatedLaunch:
        """Simulates the main launch of one config.

        Args:
            names: Values of ``needed``.
            facts: What is known or estimated of the kernel.
        """

    def issued(self, names: Mapping[str, Any], tiles: int) -> float:
        """Counts the instructions that a scheduler executes for one piece of work of so many key tiles."""


def simulation_of(family: str) -> type[FamilySimulation] | None:
    """Finds the simulation of a family: ``SIMULATION`` of its module in ``simulated_families``; None without one.

    A variant has the simulation of its family, so that the times of both come from one model.
    """
    module = family_module(_SIMULATIONS, base_family(family))
    simulation: type[FamilySimulation] | None = getattr(module, "SIMULATION", None)
    return simulation


def per_config(function: Callable[..., float | tuple[float, ...]], *columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Applies a cached function of scalars to each config.

    Args:
        function: Function of integers and strings; should be memoised, because configs share argument values.
        *columns: Arguments, ``[configs]`` each.

    Returns:
        Array ``[configs]``, or ``[numbers, configs]`` if the function returns a tuple.
    """
    return np.array([*map(function, *(column.tolist() for column in columns))]).T


def live_registers(names: Names, target: Target) -> tuple[npt.NDArray[np.int64], Numbers]:
    """Estimates registers and spills per thread under the assumption that ptxas allocates exactly the live values."""
    cap = np.minimum(target.max_regs_per_thread, target.regs_per_sm // (names["THREADS"] * names["MIN_CTAS"]) // 8 * 8)
    return np.minimum(names["LIVE_REGISTERS"], cap), np.maximum(0, names["LIVE_REGISTERS"] - cap)


def register_cap(names: Mapping[str, Any], target: Target) -> Any:
    """Computes the most registers per thread that ``MAXRREGCOUNT``, ``MIN_CTAS`` and the GPU allow."""
    by_count = target.regs_per_sm // (names["THREADS"] * names["MIN_CTAS"]) // 8 * 8
    requested = names["MAXRREGCOUNT"]
    return np.minimum(np.minimum(target.max_regs_per_thread, np.where(requested, requested, by_count)), by_count)


def lines_clocks(lines: Numbers, target: Target) -> Numbers:
    """Converts shared-memory wavefronts to clocks of the SM."""
    return lines * WAVEFRONT_BYTES / target.smem_bytes_per_clk_per_sm


def tensor_clocks(mma: Numbers, target: Target) -> Numbers:
    """Converts m16n8k16 products to clocks of one scheduler's tensor core."""
    return mma * _MMA_FLOPS * target.schedulers_per_sm / target.mma_flops_per_clk_per_sm


def mufu_clocks(executed: Numbers, target: Target) -> Numbers:
    """Converts warp instructions to clocks of one scheduler's special-function unit."""
    return executed * WARP * target.schedulers_per_sm / target.mufu_per_clk_per_sm
