"""A predicted latency: what a launch executed, on a named GPU. Simple and documented; for ranking, not for timing.

The model (``model-v1``) is that of one streaming multiprocessor (SM), the busiest, in core clocks::

    us = launch + (start + waves of (throughput and latency)) / clock,   at least the time of the L2 and DRAM traffic

*Occupancy* follows the CUDA occupancy rules from registers, shared memory and threads. The busiest SM runs
``ceil(CTAs / SMs)`` CTAs, at most ``occupancy`` at a time, so CTAs that do not divide evenly cost a tail wave.

*Throughput* of a wave: for each pipe the warp instructions of its CTAs over the pipe's rate; the slowest pipe counts,
the others hide behind it. *Latency* of a wave: the time that one warp needs alone: its issue slots, plus for each phase
between two barriers the dependent chain that no other instruction of the warp hides (barrier, ldmatrix, mma, shuffles,
exponentials). More warps per scheduler hide more of each other's latency: the wave takes the p-norm of the two.

Latencies in clocks are those of published microbenchmarks of Ampere ("Demystifying the Nvidia Ampere Architecture
through Microbenchmarking and Instruction-level Analysis", Abdelkhalik et al. 2022), rounded. Spills, which PTX does not
show, are added from ``Resources``: they are assumed to recur in every phase.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from evoengine.emulator.report import LaunchReport, Pipe
from evoengine.kernel.resources import Occupancy, occupancy
from evoengine.model import Resources
from evoengine.target import Target

METHOD: Final = "model-v1"

_MMA_LATENCY: Final = 33.0
_SHARED_LATENCY: Final = 29.0
_SHUFFLE_LATENCY: Final = 23.0
_MUFU_LATENCY: Final = 22.0
_L2_LATENCY: Final = 260.0
_BARRIER_LATENCY: Final = 25.0
_PHASE_LATENCY: Final = _BARRIER_LATENCY + _SHARED_LATENCY + 2 * _MMA_LATENCY + _SHUFFLE_LATENCY + _MUFU_LATENCY
"""One phase between two barriers: the part of its dependent chain that a single warp cannot overlap with itself."""
_ISSUE_DEPENDENCE: Final = 1.6
"""Clocks per issued instruction of a lone warp beyond pipe limits: 4-clock dependencies at an ILP of about 2.5."""
_MOVE_SHARE: Final = 0.15
"""Share of PTX moves and parameter loads that survive in machine code."""
_NORM: Final = 3.0


@dataclass(frozen=True)
class LatencyEstimate:
    """A predicted latency with its parts."""

    us: float
    occupancy: Occupancy
    waves: int
    """Rounds of CTAs on the busiest SM."""
    limiter: str
    """The largest part: a pipe's name, ``latency``, ``l2`` or ``dram``."""
    terms: Mapping[str, float]
    """Parts in microseconds: ``launch``, ``start``, ``waves``, ``latency``, one per pipe, ``l2``, ``dram``."""


def _pipe_clocks(report: LaunchReport, target: Target) -> dict[str, float]:
    """Clocks that the whole launch would keep each pipe of one SM busy, spills aside."""
    pipes = report.pipes

    def of(pipe: Pipe) -> float:
        return float(pipes.get(pipe, 0))

    fp32, int32 = 32 / target.fp32_lanes_per_sm, 32 / target.int32_lanes_per_sm
    shared_bytes = report.shared_read_bytes + report.shared_written_bytes + report.cp_async_bytes
    shuffles = of(Pipe.LSU_SHARED) * 32 * 4
    issued = report.warp_instructions - (1 - _MOVE_SHARE) * of(Pipe.MOVE)
    return {
        "tensor": report.tensor_flops / target.mma_flops_per_clk_per_sm,
        "fma": of(Pipe.FMA) * fp32 + of(Pipe.FP16) * fp32,
        "alu": of(Pipe.ALU) * int32,
        "mufu": of(Pipe.MUFU) * 32 / target.mufu_per_clk_per_sm,
        "fp64": of(Pipe.FP64) * 32 / 2,
        "shared": max(shared_bytes, shuffles) / target.smem_bytes_per_clk_per_sm,
        "global": (report.global_read_bytes + report.global_written_bytes + report.cp_async_bytes + report.local_bytes)
        / 64,
        "issue": issued / target.schedulers_per_sm,
    }


def _spill_clocks(report: LaunchReport, resources: Resources, phases: float) -> float:
    """Clocks of one SM for the whole launch's spill traffic: each spilled word once per phase through the L1."""
    return resources.spill_bytes * 32 / 128 * report.warps * max(1.0, phases / 2)


def predict_us(
    report: LaunchReport, resources: Resources, target: Target, *, unique_bytes: int | None = None
) -> LatencyEstimate:
    """Predicts the device time of a launch on a GPU with warm caches.

    Args:
        report: What the emulator counted for the whole grid.
        resources: Registers, spills, shared memory and threads of the real machine code.
        target: The GPU's data sheet.
        unique_bytes: Bytes that must come from DRAM at least once when they do not fit in L2; None: they fit.

    Returns:
        The estimate; ``us`` is infinite where no CTA fits on an SM.
    """
    room = occupancy(resources, target)
    if room.blocks_per_sm == 0 or report.ctas == 0:
        return LatencyEstimate(math.inf, room, 0, room.limiter, {})
    warps_per_cta = report.warps / report.ctas
    phases = max(report.barriers / report.warps, report.pipes.get(Pipe.TENSOR, 0) / report.warps / 64, 1.0)
    clocks = _pipe_clocks(report, target)
    spill = _spill_clocks(report, resources, phases)
    clocks["shared"] += spill
    clocks["issue"] += spill / target.schedulers_per_sm
    per_cta = {name: value / report.ctas for name, value in clocks.items()}
    alone = _lone_warp_clocks(per_cta, warps_per_cta, phases, resources, target)

    left = -(-report.ctas // target.sms)
    waves, wave_clocks = 0, 0.0
    while left > 0:
        together = min(left, room.blocks_per_sm)
        # Of the CTAs that run together, one may be the busiest of the grid; the others are like the mean.
        busy = max(per_cta.values()) * (together + report.busiest_cta - 1)
        wave_clocks += (busy**_NORM + (alone * report.busiest_cta) ** _NORM) ** (1 / _NORM)
        left -= together
        waves += 1
    clock_mhz = float(target.boost_clock_mhz)
    start = 2 * _L2_LATENCY + 100  # parameters, first tile, last store
    traffic = {
        "l2": report.global_bytes / target.l2_bytes_per_clk / clock_mhz,
        "dram": 0.0
        if unique_bytes is None or unique_bytes <= target.l2_bytes * 0.8
        else unique_bytes / target.dram_gbps / 1e3,
    }
    kernel_us = max(start / clock_mhz + wave_clocks / clock_mhz, *traffic.values())
    share = -(-report.ctas // target.sms)
    parts = {name: value * share / clock_mhz for name, value in per_cta.items()}
    parts |= {"latency": alone * waves / clock_mhz, **traffic}
    limiter = max(parts, key=lambda name: parts[name])
    terms = {"launch": target.launch_overhead_us, "start": start / clock_mhz, "waves": wave_clocks / clock_mhz, **parts}
    return LatencyEstimate(target.launch_overhead_us + kernel_us, room, waves, limiter, terms)


def _lone_warp_clocks(
    per_cta: Mapping[str, float], warps_per_cta: float, phases: float, resources: Resources, target: Target
) -> float:
    """Clocks that one warp needs when nothing competes with it: it has a quarter of the SM's pipes to itself."""
    quarter = target.schedulers_per_sm / warps_per_cta
    pipes = sum(per_cta[name] for name in ("tensor", "fma", "alu", "mufu", "shared")) * quarter
    issue = per_cta["issue"] * quarter * _ISSUE_DEPENDENCE
    spills = resources.spill_bytes / 4 * _SHARED_LATENCY / 4 * max(1.0, phases / 2)
    return max(pipes, issue) + phases * _PHASE_LATENCY + spills
