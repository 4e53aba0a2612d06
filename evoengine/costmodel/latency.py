"""Latency model: predicts device time from the work of a launch and a GPU's data sheet.

The model is simple and meant for ranking kernels more than for absolute times. It describes the busiest streaming
multiprocessor (SM), in core clocks::

    us = launch + norm((fetch + waves of (loop + edges) + merge) / clock, L2 traffic)
    edges = norm(chain, tensor, mufu, issue, shared, global), loop = max(norm of the same without global, global)

*Occupancy* follows the CUDA occupancy rules from registers, shared memory and threads. The busiest SM runs
``ceil(CTAs / SMs)`` CTAs, at most ``occupancy`` at a time. CTAs that do not divide evenly cost a tail wave.

*Edges* are the prologue and epilogue of the loop that does the tensor work: queries are loaded, key groups are merged,
rows are stored. They are a separate term because nothing overlaps with them where an SM has one CTA.

*Chain* is the time that the slowest warp of a wave needs with the SM to itself. Its instructions depend on each other:
every phase between two barriers has a latency that no other instruction of the warp hides (barrier, wait for a copy,
ldmatrix, first mma, shuffles, exponentials). Tensor work and special functions add up if they are separate in program
order; they overlap if they are interleaved. A warp waits for each spilled word once in every second phase, because
spills occur in the loop over tiles, which has two phases.

*Pipes*: for each pipe, the warp instructions of the wave's CTAs divided by the pipe's rate. Resources of a scheduler
are counted for the scheduler with the most warps. Shared memory and the path to global memory belong to the whole SM.

*Fetch*: an SM loads code that it executes for the first time from L2 through its instruction caches, in program order.
Kernels of a few microseconds execute most of their code once or twice, so this is a visible part of their time.

*Merge* is the serial work of the last of several CTAs that share their keys: it reads the partial results of the others
row by row, and waits for each. Where an SM runs many CTAs, each merging CTA occupies its slot for that time.

Chain and pipes overlap in part: a wave takes their p-norm, which lies between the longest term and the sum of all.
The loop's copies are asynchronous (cp.async), so the path to global memory is only a lower bound of the loop.

*DRAM*: bytes that L2 does not hold arrive at the rate that reading reaches (:attr:`Target.dram_share`). Work that this
does not hide is added: the launch, a CTA with one tile, the merge. Where that rate is not known, the bandwidth of the
data sheet is a lower bound. A kernel takes a norm of this and its other work.

Families of warpgroups are simulated instead (:mod:`.simulation`), and predictions for ``sm_90a`` are corrected by the
expected error of the model, but for the arrival of the bytes (:mod:`.forecast_error`).

Rates come from the data sheet (:mod:`evoengine.target`). The constants below were fitted with
``scripts/measure/judge_model.py --fit`` on a landscape of one problem (1x8x512x64 on an H200), starting from published
latencies; docs/results lists the model's accuracy on other problems. PTX does not show spills; they are added from
``Resources``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.costmodel.l2_cache import SM_BYTES_PER_CLK, missed_share
from evoengine.costmodel.simulation.launch import SimulatedLaunch
from evoengine.emulator.counters.report import LaunchReport
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.kernel.resources import WARP, Occupancy, occupancy
from evoengine.model import Resources
from evoengine.target import Target

METHOD: Final = "model-v18"
"""Version of the predictions: rows of different versions are ranked apart."""

Numbers = float | npt.NDArray[np.float64]
"""A number for one launch, or an array ``[launches]`` for many."""

SPILLED_BYTES: Final = 8
"""Bytes of ptxas' report for one spilled register: a store and a load."""
MOVE_SHARE: Final = 0.15
"""Share of PTX moves and parameter loads that survive in machine code."""
WAVEFRONT_BYTES: Final = 128
"""Bytes of one wavefront of shared memory."""
FP64_LANES_PER_SM: Final = 2
"""Lanes for f64 of an SM of consumer and inference GPUs; data-centre GPUs have more."""
_PHASES_OF_A_TILE: Final = 2
"""Barrier phases of one key tile, one for K and one for V; ``wmma`` has a third."""
EXCHANGES_OF_A_PIECE: Final = 3
"""Steps in which a CTA publishes its partial result: release fence, atomic count, acquire fence."""


@dataclass(frozen=True)
class Constants:
    """Constants that no data sheet states, in core clocks unless the name states a unit; fitted, see the module."""

    phase: float = 310.0
    """Chain of one phase between two barriers. Published parts: barrier 25, ldmatrix 33, two dependent mma 66, two
    shuffles 46, exponential 22; total 192 (Abdelkhalik et al. 2022, "Demystifying the Nvidia Ampere Architecture
    through Microbenchmarking"); the rest is address arithmetic and the wait for copies."""
    request: float = 4.21
    """One warp access to global memory; a fragment access touches eight 32-byte sectors."""
    spilled_word: float = 42.4
    """Round trip of one spilled register to the L1 cache, about 30 clocks each way, not hidden."""
    exchange: float = 500.0
    """A fence or atomic between CTAs and the reads that wait for it: about two round trips to L2. Fitted, as the next
    one, on kernels of 14 decode problems on an H100 or H200 that take less than 1.5 times as long as the fastest."""
    merge_wait: float = 870.0
    """An exposed wait for the partial results of other CTAs and the merge of one row; 263 of it are the latency of L2
    (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499, table IV)."""
    fetch: float = 0.549
    """Fetch of one instruction that an SM executes for the first time: 16 bytes through the instruction caches,
    measured on Volta by Jia et al. (see :data:`~evoengine.costmodel.l2_cache.SM_BYTES_PER_CLK`)."""
    norm: float = 1.65
    """Exponent of the norm over chain and pipes: 1 is their sum, infinity is their maximum."""
    l2_norm: float = 4.0
    """The same over the busy time of an SM and the traffic of L2. Chosen on 84 configs of the fit in which the second
    is 0.7 times as long as the first or more: they took 7 to 32 % longer than the longer one, by ranges of that
    ratio."""
    dram_norm: float = 12.0
    """The same over the busy time and the arrival of the bytes from DRAM, chosen on two problems of the fit whose bytes
    do not stay in L2: the smallest of 4, 6, 8, 12 and 16 by which no kernel that waits for its bytes is 5 % faster than
    predicted. Smaller ones order the kernels better."""


FITTED: Final = Constants()


@dataclass(frozen=True)
class LatencyEstimate:
    """Predicted latency and its parts."""

    busy_us: float
    """Time if all bytes were in L2; infinite if no CTA fits on an SM."""
    dram_us: float
    """Time in which the bytes arrive from DRAM, plus work that it does not hide; only the launch if they are in L2."""
    occupancy: Occupancy
    waves: int
    """Rounds of CTAs on the busiest SM."""
    limiter: str
    """Largest part: a pipe's name, ``chain``, ``l2`` or ``dram``."""
    terms: Mapping[str, float]
    """Parts in microseconds: ``launch``, ``waves``, ``chain``, one per pipe, ``l2``, ``dram``."""

    @property
    def us(self) -> float:
        """Predicted time."""
        return self.corrected_us(1.0)

    def corrected_us(self, factor: float) -> float:
        """Returns the predicted time with the busy time, but not the arrival of the bytes, multiplied by a factor."""
        if not math.isfinite(self.busy_us):
            return math.inf
        return float(with_dram_us(self.busy_us * factor, self.dram_us, self.terms["launch"]))


@dataclass(frozen=True)
class Work:
    """Clocks for which an average warp alone keeps each pipe busy."""

    phases: Numbers
    """Number of barriers."""
    tensor: Numbers = 0.0
    mufu: Numbers = 0.0
    lone_mufu: Numbers = 0.0
    """Part of ``mufu`` that is not interleaved with tensor work of the same warp."""
    issue: Numbers = 0.0
    """Issue slots of the scheduler, or the time of the FMA or the integer pipe if that is longer."""
    fp64: Numbers = 0.0
    shared: Numbers = 0.0
    """Shared memory of the whole SM."""
    memory: Numbers = 0.0
    """Path to global memory of the whole SM."""
    exchanges: Numbers = 0.0
    """Number of waits for other CTAs."""
    waits: Numbers = 0.0
    """Clocks of other dependent steps."""

    def chain(self, constants: Constants) -> Numbers:
        """Computes the clocks of the warp when nothing competes with it."""
        waits = self.phases * constants.phase + self.exchanges * constants.exchange + self.waits
        return waits + self.tensor + self.fp64 + self.lone_mufu

    def divided(self, parts: Numbers) -> Work:
        """Returns an equal part of the work."""
        return Work(*(getattr(self, one.name) / parts for one in fields(self)))

    def parts(self, schedulers: int) -> dict[str, Numbers]:
        """Computes clocks per pipe for one warp, by name, with work spread evenly over the schedulers."""
        own = {"tensor": self.tensor, "mufu": self.mufu, "issue": self.issue, "fp64": self.fp64}
        return {name: clocks / schedulers for name, clocks in own.items()} | {
            "shared": self.shared,
            "global": self.memory,
        }


@dataclass(frozen=True)
class Demand:
    """Work of one launch, or of each of many: the input of the model."""

    ctas: Numbers
    warps_per_cta: Numbers
    loop: Work
    edges: Work
    spill_bytes: Numbers
    """Bytes per thread, stores and loads."""
    busiest_cta: Numbers = 1.0
    """Ratio of the loop work of the busiest CTA to that of an average CTA."""
    busiest_warp: Numbers = 1.0
    """Ratio of the loop work of the busiest warp to that of an average warp."""
    l2_bytes: Numbers = 0.0
    """Traffic of the whole launch."""
    merge_clocks: Numbers = 0.0
    """Clocks that merging adds to a CTA: once, or in each turn of a persistent grid."""
    merging: Numbers = 0.0
    """Share of the CTAs that merge; in a persistent grid, the share of their pieces of work that are merged."""
    code: Numbers = 0.0
    """Distinct instructions that execute."""
    longest_first: bool | npt.NDArray[np.bool_] = False
    """Whether the busiest CTAs start first, so that short ones fill the tail."""


def demand(report: LaunchReport, resources: Resources, target: Target, constants: Constants = FITTED) -> Demand:
    """Computes the demand of an emulated launch.

    Args:
        report: Counters of the whole grid.
        resources: Registers, spills, shared memory and threads of the machine code.
        target: Data sheet of the GPU.
        constants: Constants of the model.
    """
    warps = max(1, report.warps)
    line_clocks = WAVEFRONT_BYTES / target.smem_bytes_per_clk_per_sm
    edges = _edges(report, line_clocks, constants)
    issued = max(1.0, report.warp_instructions / warps - (1 - MOVE_SHARE) * _per_warp(report, Pipe.MOVE))
    return Demand(
        ctas=report.ctas,
        warps_per_cta=report.warps / max(1, report.ctas),
        loop=_loop(report, edges, issued, line_clocks, target, constants),
        edges=edges,
        spill_bytes=resources.spill_bytes,
        busiest_cta=report.busiest_cta,
        busiest_warp=report.busiest_warp,
        l2_bytes=report.global_bytes,
        merge_clocks=_merge_clocks(report, constants),
        merging=report.merging_warps / warps / max(1, _pieces(report)),
        code=report.code,
        longest_first=report.longest_first,
    )


def _per_warp(report: LaunchReport, *pipes: Pipe) -> float:
    """Computes the instructions of an average warp on some pipes."""
    return sum(report.pipes.get(pipe, 0) for pipe in pipes) / max(1, report.warps)


def _loop(
    report: LaunchReport, edges: Work, issued: float, line_clocks: float, target: Target, constants: Constants
) -> Work:
    """Computes the work per warp in the loop over tiles: that of the whole launch without ``edges``.

    Args:
        report: Counters of the whole grid.
        edges: Work per warp before and after the loop.
        issued: Instructions of an average warp that survive in machine code.
        line_clocks: Time of one shared-memory line.
        target: Data sheet of the GPU.
        constants: Constants of the model.
    """
    warps, schedulers = max(1, report.warps), target.schedulers_per_sm
    fp32, int32, mufu = (
        WARP * schedulers / lanes
        for lanes in (target.fp32_lanes_per_sm, target.int32_lanes_per_sm, target.mufu_per_clk_per_sm)
    )
    pipes = max(issued, _per_warp(report, Pipe.FMA, Pipe.FP16) * fp32, _per_warp(report, Pipe.ALU) * int32)
    shared_bytes = report.shared_read_bytes + report.shared_written_bytes + report.cp_async_bytes
    lines = max(shared_bytes / WAVEFRONT_BYTES / warps, _per_warp(report, Pipe.LSU_SHARED))
    requested = max(
        _per_warp(report, Pipe.LSU_GLOBAL) * constants.request,
        (report.global_bytes + report.local_bytes) / warps / SM_BYTES_PER_CLK,
    )
    return Work(
        phases=max(report.structure.phases, report.barriers, warps) / warps - edges.phases,
        tensor=_tensor_clocks(report, target) / warps,
        mufu=_per_warp(report, Pipe.MUFU) * mufu,
        lone_mufu=report.structure.lone_mufu / warps * mufu,
        issue=max(0.0, pipes - edges.issue),
        fp64=_per_warp(report, Pipe.FP64) * WARP * schedulers / FP64_LANES_PER_SM,
        shared=max(0.0, lines * line_clocks * report.conflicts - edges.shared),
        memory=max(0.0, requested - edges.memory),
    )


def _edges(report: LaunchReport, line_clocks: float, constants: Constants) -> Work:
    """Work per warp before and after the loop over tiles; ``line_clocks`` is the time of one shared-memory line."""
    warps = max(1, report.warps)
    structure = report.structure
    return Work(
        phases=structure.edge_phases / warps,
        issue=structure.edge_issued / warps,
        shared=structure.edge_shared_lines / warps * line_clocks,
        memory=structure.edge_requests / warps * constants.request,
        exchanges=structure.edge_exchanges / max(1, report.ctas),
    )


def _tensor_clocks(report: LaunchReport, target: Target) -> float:
    """Computes tensor-core clocks of all warps; warpgroups reach the full peak rate, single warps a share of it."""
    alone = (report.tensor_flops - report.wgmma_flops) / target.mma_flops_per_clk_per_sm
    return (alone + report.wgmma_flops / target.tensor_flops_per_clk_per_sm) * target.schedulers_per_sm


def _merge_clocks(report: LaunchReport, constants: Constants) -> float:
    """Computes the clocks that merging adds to a CTA.

    A CTA merges once per piece of its work, because one that is late for a tile is the last of the next tile as well.
    In a launch that only merges, the CTA first waits until the results of the previous launch are visible.
    """
    if not report.merging_warps:
        return 0.0
    waits = report.structure.merge_waits / report.merging_warps * constants.merge_wait
    pieces = _pieces(report)
    return waits * pieces if pieces else waits + constants.exchange


def _pieces(report: LaunchReport) -> int:
    """Computes the pieces of work of a CTA whose partial results others may merge; 0 in a launch without exchange."""
    return math.ceil(report.structure.edge_exchanges / max(1, report.ctas) / EXCHANGES_OF_A_PIECE)


def predict_us(
    report: LaunchReport, resources: Resources, target: Target, *, unique_bytes: int | None = None
) -> LatencyEstimate:
    """Predicts the device time of a launch on a GPU with warm caches.

    Args:
        report: Emulator counters of the whole grid.
        resources: Registers, spills, shared memory and threads of the machine code.
        target: Data sheet of the GPU.
        unique_bytes: Bytes that must come from DRAM at least once if they do not fit in L2; None if they fit.

    Returns:
        The estimate; ``us`` is infinite if no CTA fits on an SM.
    """
    resident = occupancy(resources, target)
    if resident.blocks_per_sm == 0 or report.ctas == 0:
        return LatencyEstimate(math.inf, 0.0, resident, 0, resident.limiter, {})
    return estimate(demand(report, resources, target), resident, target, unique_bytes=unique_bytes)


def estimate(
    launch: Demand,
    resident: Occupancy,
    target: Target,
    *,
    unique_bytes: int | None = None,
    constants: Constants = FITTED,
) -> LatencyEstimate:
    """Applies the model to one launch; at least one CTA must fit on an SM. See :func:`predict_us`."""
    clock_mhz = float(target.clock_mhz)
    share, waves = _cta_share(launch, resident.blocks_per_sm, target)
    clocks = _busy_clocks(launch, resident.blocks_per_sm, target, constants)
    edges = _edge_clocks(launch, resident.blocks_per_sm, target, constants)
    traffic = {"l2": float(_l2_us(launch, target)), "dram": float(_dram_us(unique_bytes, target, edges))}
    busy_us = float(_norm([clocks / clock_mhz, traffic["l2"]], constants.l2_norm))
    chain = (_chain_clocks(launch, constants) + launch.edges.chain(constants)) * waves
    both = [work.parts(target.schedulers_per_sm) for work in (launch.loop, launch.edges)]
    parts = {name: sum(part[name] for part in both) * share * launch.warps_per_cta / clock_mhz for name in both[0]}
    terms = {"waves": clocks / clock_mhz, **parts, "chain": chain / clock_mhz, **traffic}
    numbers = {"launch": target.launch_overhead_us} | {name: float(term) for name, term in terms.items()}
    limiter = max((*parts, "chain", *traffic), key=numbers.__getitem__)
    launch_us = target.launch_overhead_us
    return LatencyEstimate(launch_us + busy_us, launch_us + traffic["dram"], resident, int(waves), limiter, numbers)


def times_us(
    launch: Demand,
    resident: Numbers,
    target: Target,
    *,
    unique_bytes: int | None = None,
    constants: Constants = FITTED,
) -> tuple[Numbers, Numbers]:
    """Computes the two times of :class:`LatencyEstimate` as :func:`estimate` does, for many launches at once.

    Args:
        launch: Demand of each launch.
        resident: CTAs of each launch that fit on an SM, at least one.
        target: Data sheet of the GPU.
        unique_bytes: Bytes from DRAM, as for :func:`predict_us`.
        constants: Constants of the model.

    Returns:
        ``busy_us`` and ``dram_us``.
    """
    busy_us = _busy_clocks(launch, resident, target, constants) / target.clock_mhz
    busy_us = _norm([busy_us, _l2_us(launch, target)], constants.l2_norm)
    dram_us: Numbers = 0.0
    if missed_share(unique_bytes, target) > 0:
        dram_us = _dram_us(unique_bytes, target, _edge_clocks(launch, resident, target, constants))
    return target.launch_overhead_us + busy_us, target.launch_overhead_us + dram_us


def simulated_times_us(launch: SimulatedLaunch, target: Target, unique_bytes: int | None = None) -> tuple[float, float]:
    """Computes the two times of :class:`LatencyEstimate`; ``unique_bytes`` as for :func:`predict_us`."""
    dram_us = float(_dram_us(unique_bytes, target, launch.edges))
    return target.launch_overhead_us + launch.clocks / target.clock_mhz, target.launch_overhead_us + dram_us


def simulated_estimate(
    launch: SimulatedLaunch, resident: Occupancy, target: Target, *, unique_bytes: int | None = None
) -> LatencyEstimate:
    """Describes a simulated launch as :func:`estimate` does; the parts are what the busiest SM spends on each resource.

    ``chain`` is the time in which no resource of the SM works at its limit.
    """
    simulated_part = launch.clocks / target.clock_mhz
    dram = float(_dram_us(unique_bytes, target, launch.edges))
    parts = {_TERMS.get(name, name): share * simulated_part for name, share in launch.busy.items()}
    parts["chain"] = max(0.0, simulated_part - max(parts.values(), default=0.0))
    terms = {"launch": target.launch_overhead_us, "waves": simulated_part, **parts, "dram": dram}
    limiter = max((*parts, "dram"), key=terms.__getitem__)
    return LatencyEstimate(*simulated_times_us(launch, target, unique_bytes), resident, launch.rounds, limiter, terms)


_TERMS: Final = {"copy": "l2"}


def _cta_share(launch: Demand, resident: Numbers, target: Target) -> tuple[Numbers, Numbers]:
    """Computes the number of CTAs of the busiest SM and its number of waves."""
    share = -(-launch.ctas // target.sms)
    return share, -(-share // resident)


def _busy_clocks(launch: Demand, resident: Numbers, target: Target, constants: Constants) -> Numbers:
    """Computes the clocks of the busiest SM."""
    share, waves = _cta_share(launch, resident, target)
    left = share - (waves - 1) * resident
    last = (waves == 1) | np.logical_not(launch.longest_first)
    clocks = _wave_clocks(launch, left, last, target, constants)
    if np.any(waves > 1):
        clocks = clocks + (waves - 1) * _wave_clocks(launch, resident, np.False_, target, constants)
    merges = np.maximum(1.0, share * launch.merging / resident)  # a merging CTA occupies its slot on the SM
    return clocks + (merges * launch.merge_clocks + launch.code * constants.fetch)


def _l2_us(launch: Demand, target: Target) -> Numbers:
    return launch.l2_bytes / target.l2_bytes_per_clk / target.clock_mhz


def _dram_us(unique_bytes: int | None, target: Target, edge_clocks: Numbers) -> Numbers:
    """Computes the time in which the bytes arrive, and what it does not hide, where the rate was measured.

    Elsewhere the bandwidth of the data sheet is a lower limit of the whole.
    """
    missed = missed_share(unique_bytes, target)
    if unique_bytes is None or missed == 0:
        return 0.0
    peak_us = missed * unique_bytes / target.dram_gbps / 1e3
    return peak_us if target.dram_share is None else peak_us / target.dram_share + edge_clocks / target.clock_mhz


def _edge_clocks(launch: Demand, resident: Numbers, target: Target, constants: Constants) -> Numbers:
    """Computes the clocks that a CTA takes beside the arrival of its bytes: with a loop of one tile, and its merge."""
    share, _ = _cta_share(launch, resident, target)
    one = replace(launch, loop=launch.loop.divided(np.maximum(1.0, launch.loop.phases / _PHASES_OF_A_TILE)))
    clocks = _wave_clocks(one, np.minimum(share, resident), np.False_, target, constants)
    return clocks + launch.merge_clocks + launch.code * constants.fetch


def _chain_clocks(launch: Demand, constants: Constants) -> Numbers:
    """Computes the loop clocks of an average warp when nothing competes with it."""
    spills = launch.spill_bytes / SPILLED_BYTES * constants.spilled_word * np.maximum(1.0, launch.loop.phases / 2)
    return launch.loop.chain(constants) + spills


def _wave_clocks(
    launch: Demand, together: Numbers, busiest: np.bool_ | npt.NDArray[np.bool_], target: Target, constants: Constants
) -> Numbers:
    """Computes the clocks of CTAs that run together on an SM, with or without the busiest CTA of the grid."""
    cta = np.where(busiest, (together + launch.busiest_cta - 1) / together, 1.0)
    warp = np.maximum(1.0, np.where(busiest, launch.busiest_warp, launch.busiest_warp / launch.busiest_cta))
    warps = together * launch.warps_per_cta
    chains = (_chain_clocks(launch, constants) * warp, launch.edges.chain(constants))
    clocks: Numbers = 0.0
    for work, chain, busy in zip((launch.loop, launch.edges), chains, (warps * cta, warps), strict=True):
        own = np.maximum(1.0, warps / target.schedulers_per_sm) * busy / warps
        pipes = [value * own for value in (work.tensor, work.mufu, work.issue, work.fp64)]
        memory, waited = work.memory * busy, work is launch.edges
        norm = _norm([chain, *pipes, work.shared * busy, *([memory] if waited else [])], constants.norm)
        clocks = clocks + np.maximum(norm, memory)
    return clocks


def with_dram_us(busy_us: Numbers, dram_us: Numbers, launch_us: Numbers, constants: Constants = FITTED) -> Numbers:
    """Joins the two times of :class:`LatencyEstimate`, both finite; each hides most of the other."""
    return launch_us + _norm([busy_us - launch_us, dram_us - launch_us], constants.dram_norm)


def _norm(values: Sequence[Numbers], exponent: float) -> Numbers:
    longest = reduce(np.maximum, values)
    unit = np.where(longest > 0, longest, 1.0)[()]
    return longest * sum([(value / unit) ** exponent for value in values]) ** (1 / exponent)
