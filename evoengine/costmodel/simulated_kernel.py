"""Predictions of compiled kernels of simulated families: ``hopper`` and ``wgmma``.

Phases and their order follow from the config, registers and spills from the machine code. The emulator executes one
piece of work of a few key tiles: a kernel that executes far more or fewer instructions than the simulation counts, for
example of a changed template, is simulated with its own number. Within the scatter of the shipped kernels the number of
PTX instructions says nothing about the error of a prediction. A launch is never executed as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from evoengine.costmodel.family_counts import FamilySimulation, KernelFacts, Setting, simulation_of
from evoengine.costmodel.key_tiles import packed_heads
from evoengine.costmodel.latency import FITTED, MOVE_SHARE, SPILLED_BYTES, LatencyEstimate, simulated_estimate
from evoengine.costmodel.simulation.warpgroup import SIMULATION_FITTED, SimulationConstants
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.kernel.records import Kernel
from evoengine.kernel.resources import Occupancy, occupancy
from evoengine.model import Problem
from evoengine.target import Target

_TILES: Final = 2
"""Key tiles of each key group of the executed piece of work: the first is outside the loop."""
_TYPICAL: Final = 1.15
"""PTX instructions of shipped kernels, without moves, per instruction that the simulation counts."""
_SCATTER: Final = 2.0
"""Largest factor by which shipped kernels differ from that: of ``wgmma`` up to 1.98, where pieces are short."""


@dataclass(frozen=True)
class SimulatedKernel:
    """Input of the simulation of one kernel for one problem."""

    problem: Problem
    names: Mapping[str, Any]
    """Tunables and derived values of the config."""
    facts: KernelFacts


def covers(kernel: Kernel, problem: Problem) -> bool:
    """Returns whether the kernel's family is simulated, for this problem."""
    simulation = simulation_of(kernel.config.family)
    names = dict(kernel.source.launch.names).keys()
    return simulation is not None and names >= simulation.needed and simulation.covers(problem)


def simulation_input(
    kernel: Kernel, problem: Problem, target: Target, execute: Callable[[Problem], LaunchReport]
) -> SimulatedKernel:
    """Collects what the simulation of a covered kernel needs.

    Args:
        kernel: Kernel for which :func:`covers` holds.
        problem: Problem to predict.
        target: Data sheet of the GPU.
        execute: Executes a problem and returns the counters of the main launch.
    """
    names, resources = dict(kernel.source.launch.names), kernel.binary.resources
    part, instructions = one_piece(problem, names), 1.0
    is_alone = math.prod(kernel.source.launch.plan(part).grid) == 1
    if is_alone:  # CTAs that share a piece execute more than its instructions
        simulation = _simulation(kernel.config.family, part, target, SIMULATION_FITTED)
        expected = simulation.issued(names, -(-part.seq_kv // int(names["BLOCK_N"])))
        instructions = _own(_issued(execute(part), target) / _TYPICAL / expected)
    resident = occupancy(resources, target).blocks_per_sm
    return SimulatedKernel(problem, names, KernelFacts(resident, resources.spill_bytes / SPILLED_BYTES, instructions))


def estimate_kernel(
    family: str,
    kernel: SimulatedKernel,
    resident: Occupancy,
    target: Target,
    constants: SimulationConstants = SIMULATION_FITTED,
) -> LatencyEstimate:
    """Simulates a kernel; at least one of its CTAs must fit on an SM."""
    simulation = _simulation(family, kernel.problem, target, constants)
    launch = simulation.launch(kernel.names, kernel.facts)
    return simulated_estimate(launch, resident, target, unique_bytes=kernel.problem.min_bytes)


def one_piece(problem: Problem, names: Mapping[str, Any]) -> Problem:
    """Returns a problem of one query tile and a few key tiles that runs the same code."""
    heads = packed_heads(problem, names)
    keys = _TILES * int(names["BLOCK_N"]) * int(names.get("WARPS_N", 1))
    return replace(
        problem,
        batch=1,
        heads=heads,
        kv_heads=1,
        seq_q=min(problem.seq_q, max(1, int(names["BLOCK_M"]) // heads)),
        seq_kv=min(problem.seq_kv, keys),
    )


def _simulation(family: str, problem: Problem, target: Target, constants: SimulationConstants) -> FamilySimulation:
    simulation = simulation_of(family)
    assert simulation is not None
    return simulation(Setting(problem, target, FITTED, constants))


def _issued(report: LaunchReport, target: Target) -> float:
    """Counts the instructions of a scheduler that survive in machine code."""
    moves = report.pipes.get(Pipe.MOVE, 0)
    return (report.warp_instructions - (1 - MOVE_SHARE) * moves) / target.schedulers_per_sm


def _own(ratio: float) -> float:
    """Returns a ratio of instructions, or 1 within the scatter of the shipped kernels."""
    return 1.0 if 1 / _SCATTER < ratio < _SCATTER else ratio
