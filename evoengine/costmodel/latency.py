"""A predicted latency: what a launch executed, on a named GPU. Simple and documented; for ranking more than for timing.

The model (``model-v4``) is that of one streaming multiprocessor (SM), the busiest, in core clocks::

    us = launch + (fetch + waves of (loop + edges) + merge) / clock,   at least the time of the L2 and DRAM traffic
    edges = norm(chain, tensor, mufu, issue, shared, global), loop = max(norm of the same without global, global)

*Occupancy* follows the CUDA occupancy rules from registers, shared memory and threads. The busiest SM runs
``ceil(CTAs / SMs)`` CTAs, at most ``occupancy`` at a time, so CTAs that do not divide evenly cost a tail wave.

*Edges* are the instructions before and after the loop that does the tensor work: queries come in, key groups are
merged, rows go out. Nothing overlaps with them where an SM has one CTA, so they are a time of their own.

*Chain* is the time that the slowest warp of a wave needs with the SM to itself. Its instructions depend on each other:
for every phase between two barriers there is a latency that no other instruction of the warp hides (barrier, wait for a
copy, ldmatrix, first mma, shuffles, exponentials). Tensor work and special functions that the program order keeps apart
add up; those that it mixes overlap. Each spilled word is waited for once in every second phase: spills
come with the loop over tiles, which has two.

*Pipes*: for each the warp instructions of the wave's CTAs over the pipe's rate. What a scheduler's warps share is
counted for the scheduler with the most warps; shared memory and the path to global memory belong to the whole SM.

*Fetch*: what an SM executes for the first time comes from L2 through its instruction caches, in the order of the code.
Kernels of some microseconds run most of their code once or twice, so that this is a part of their time; long ones do
not notice it.

*Merge* is what the last CTA of several that share their keys does alone, at the end: it reads the partial results of
the others row by row, and waits for each. Where an SM runs many CTAs, each that merges keeps its place for so long.

Chain and pipes overlap in part: the wave takes their p-norm, which lies between the longest one and the sum of all. The
loop's copies go past its warps (cp.async), so the path to global memory is only a floor under it.

Rates come from the data sheet (:mod:`evoengine.target`). The constants below were fitted by ``scripts/measure/judge_model.py
--fit`` on a landscape of one problem (1x8x512x64 on an H200), beginning with published latencies; docs/results tells
how the model fares on others. PTX does not show spills; they are added from ``Resources``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from evoengine.emulator.counters.report import LaunchReport, Pipe
from evoengine.kernel.resources import Occupancy, occupancy
from evoengine.model import Resources
from evoengine.target import Target

METHOD: Final = "model-v4"

Numbers = float | npt.NDArray[np.float64]
"""Of one launch, or of many, ``[launches]``: the model is the same."""

_MOVE_SHARE: Final = 0.15
"""Share of PTX moves and parameter loads that survive in machine code."""
_SHARED_LINE_BYTES: Final = 128
_GLOBAL_BYTES_PER_CLK: Final = 64
"""Between an SM's L1 and L2, per clock: CUDA's tuning guides and Jia et al., "Dissecting the NVIDIA Volta GPU
Architecture via Microbenchmarking" (arXiv 1804.06826)."""


_EXCHANGES_OF_A_PIECE: Final = 3
"""A CTA tells that its part is done: what it wrote is visible, it counts, it sees what others wrote."""


@dataclass(frozen=True)
class Constants:
    """What no data sheet tells, in core clocks unless the name says otherwise. Fitted; see the module."""

    phase: float = 310.0
    """Chain of one phase between two barriers. Published parts: barrier 25, ldmatrix 33, two mma in turn 66, two
    shuffles 46, exponential 22, which make 192 (Abdelkhalik et al. 2022, "Demystifying the Nvidia Ampere Architecture
    through Microbenchmarking"); the rest is address arithmetic and the wait for copies."""
    request: float = 4.21
    """A warp's access to global memory: a fragment access touches eight 32-byte sectors."""
    spilled_word: float = 42.4
    """A spilled register: its way to the L1 cache and back, some 30 clocks each, which nothing hides."""
    exchange: float = 1400.0
    """A fence or atomic between CTAs, with the reads that wait for it: some five round trips to L2. Set by nine kernels
    with splits that a search measured on the same problem; the landscape has none."""
    merge_wait: float = 574.0
    """A wait for the partial results of other CTAs, which nothing hides, and what a row does with them: 263 are the
    latency of L2 (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499, table
    IV). Fitted on 40 kernels of a uniform sample of the same problem."""
    merge_together: float = 8.0
    """Splits whose partial results of a row are under way at once. Not fitted: the template says so."""
    fetch: float = 0.549
    """An instruction that an SM executes for the first time: 16 bytes through the instruction caches, which Jia et al.
    (above) measured on Volta."""
    norm: float = 1.65
    """Exponent of the norm that joins chain and pipes: 1 adds them, infinity takes the longest."""


FITTED: Final = Constants()


@dataclass(frozen=True)
class LatencyEstimate:
    """A predicted latency with its parts."""

    us: float
    occupancy: Occupancy
    waves: int
    """Rounds of CTAs on the busiest SM."""
    limiter: str
    """The largest part: a pipe's name, ``chain``, ``l2`` or ``dram``."""
    terms: Mapping[str, float]
    """Parts in microseconds: ``launch``, ``waves``, ``chain``, one per pipe, ``l2``, ``dram``."""


@dataclass(frozen=True)
class Work:
    """Clocks that the mean warp keeps each pipe busy, alone."""

    phases: Numbers
    """Barriers that it waits at."""
    tensor: Numbers = 0.0
    mufu: Numbers = 0.0
    lone_mufu: Numbers = 0.0
    """The part of ``mufu`` that no tensor work of the same warp surrounds."""
    issue: Numbers = 0.0
    """Of its scheduler; also what the FMA and the integer pipe need, where that is more."""
    fp64: Numbers = 0.0
    shared: Numbers = 0.0
    """Of the whole SM; so is the path to global memory."""
    memory: Numbers = 0.0
    exchanges: Numbers = 0.0
    """Waits for other CTAs, of the CTA that waits."""
    waits: Numbers = 0.0
    """Clocks of other steps that depend on each other."""

    def chain(self, constants: Constants) -> Numbers:
        """Clocks that the warp needs when nothing competes with it."""
        waits = self.phases * constants.phase + self.exchanges * constants.exchange + self.waits
        return waits + self.tensor + self.fp64 + self.lone_mufu

    def parts(self, schedulers: int) -> dict[str, Numbers]:
        """Clocks of the SM's pipes for one warp, by name; those of schedulers as if their work were spread evenly."""
        own = {"tensor": self.tensor, "mufu": self.mufu, "issue": self.issue, "fp64": self.fp64}
        return {name: clocks / schedulers for name, clocks in own.items()} | {
            "shared": self.shared,
            "global": self.memory,
        }


@dataclass(frozen=True)
class Demand:
    """What a launch, or each of many, asks of a GPU: the model's input."""

    ctas: Numbers
    warps_per_cta: Numbers
    loop: Work
    edges: Work
    spill_bytes: Numbers
    """Per thread, stores and loads."""
    busiest_cta: Numbers = 1.0
    """The busiest CTA's loop over that of the mean CTA."""
    busiest_warp: Numbers = 1.0
    """The busiest warp's loop over that of the mean warp."""
    l2_bytes: Numbers = 0.0
    """Traffic of the whole launch."""
    merge_clocks: Numbers = 0.0
    """What a CTA adds that merges the results of others, once or, in a persistent grid, in each of its turns."""
    merging: Numbers = 0.0
    """Share of the CTAs that do."""
    code: Numbers = 0.0
    """Different instructions that run."""
    longest_first: bool | npt.NDArray[np.bool_] = False
    """Whether the busiest CTAs start first, so that short ones fill the end."""


def demand(report: LaunchReport, resources: Resources, target: Target, constants: Constants = FITTED) -> Demand:
    """What an executed launch asks of a GPU."""
    warps = max(1, report.warps)
    structure = report.structure

    def per_warp(*pipes: Pipe) -> float:
        return sum(report.pipes.get(pipe, 0) for pipe in pipes) / warps

    schedulers = target.schedulers_per_sm
    fp32, int32, mufu = (
        32 * schedulers / lanes
        for lanes in (target.fp32_lanes_per_sm, target.int32_lanes_per_sm, target.mufu_per_clk_per_sm)
    )
    line = _SHARED_LINE_BYTES / target.smem_bytes_per_clk_per_sm
    shared_bytes = report.shared_read_bytes + report.shared_written_bytes + report.cp_async_bytes
    edge_issued, exchanges = structure.edge_issued / warps, structure.edge_exchanges / max(1, report.ctas)
    edges = Work(
        phases=structure.edge_phases / warps,
        issue=edge_issued,
        shared=structure.edge_shared_lines / warps * line,
        memory=structure.edge_requests / warps * constants.request,
        exchanges=exchanges,
    )
    issued = max(1.0, report.warp_instructions / warps - (1 - _MOVE_SHARE) * per_warp(Pipe.MOVE))
    edge_share = 0.0 if exchanges else edge_issued / issued  # the last CTA of a tile does the others' end as well
    pipes = max(issued, per_warp(Pipe.FMA, Pipe.FP16) * fp32, per_warp(Pipe.ALU) * int32)
    shared = max(shared_bytes / _SHARED_LINE_BYTES / warps, per_warp(Pipe.LSU_SHARED)) * line * report.conflicts
    requested = max(
        per_warp(Pipe.LSU_GLOBAL) * constants.request,
        (report.global_bytes + report.local_bytes) / warps / _GLOBAL_BYTES_PER_CLK,
    )
    loop = Work(
        phases=max(structure.phases, report.barriers, warps) / warps - edges.phases,
        tensor=_tensor_clocks(report, target) / warps,
        mufu=per_warp(Pipe.MUFU) * mufu,
        lone_mufu=structure.lone_mufu / warps * mufu,
        issue=max(0.0, pipes - edges.issue),
        fp64=per_warp(Pipe.FP64) * 32 * schedulers / 2,
        shared=max(0.0, shared - edges.shared),
        memory=max(0.0, requested - edges.memory),
    )
    return Demand(
        ctas=report.ctas,
        warps_per_cta=report.warps / max(1, report.ctas),
        loop=loop,
        edges=edges,
        spill_bytes=resources.spill_bytes,
        busiest_cta=_of_loop(report.busiest_cta, edge_share),
        busiest_warp=_of_loop(report.busiest_warp, edge_share),
        l2_bytes=report.global_bytes,
        merge_clocks=_merge_clocks(report, constants),
        merging=report.merging_warps / warps,
        code=report.code,
    )


def _tensor_clocks(report: LaunchReport, target: Target) -> float:
    """Clocks of the schedulers' tensor cores for all warps: warpgroups reach the whole peak, single warps a share."""
    alone = (report.tensor_flops - report.wgmma_flops) / target.mma_flops_per_clk_per_sm
    return (alone + report.wgmma_flops / target.tensor_flops_per_clk_per_sm) * target.schedulers_per_sm


def _merge_clocks(report: LaunchReport, constants: Constants) -> float:
    """What a CTA adds that merges: once for each piece of its work, as one that is late is the last of the next, too.

    A launch that does nothing else first has to see what the one before it left.
    """
    if not report.merging_warps:
        return 0.0
    waits = report.structure.merge_waits / report.merging_warps * constants.merge_wait
    pieces = math.ceil(report.structure.edge_exchanges / report.ctas / _EXCHANGES_OF_A_PIECE)
    return waits * pieces if pieces else waits + constants.exchange


def _of_loop(busiest: float, edge_share: float) -> float:
    """The busiest one's loop over the mean one's, from all of its instructions; edges are alike for all."""
    return max(1.0, (busiest - edge_share) / (1 - edge_share)) if edge_share < 1 else 1.0


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
    return estimate(demand(report, resources, target), room, target, unique_bytes=unique_bytes)


def estimate(
    asked: Demand,
    room: Occupancy,
    target: Target,
    *,
    unique_bytes: int | None = None,
    constants: Constants = FITTED,
) -> LatencyEstimate:
    """The model itself, for one launch; see :func:`predict_us`. At least one CTA must fit on an SM."""
    clock_mhz = float(target.clock_mhz)
    share, waves = _shared_out(asked, room.blocks_per_sm, target)
    clocks = _busy_clocks(asked, room.blocks_per_sm, target, constants)
    traffic = {"l2": float(_l2_us(asked, target)), "dram": _dram_us(unique_bytes, target)}
    kernel_us = max(float(clocks / clock_mhz), *traffic.values())
    chain = (_chain_clocks(asked, constants) + asked.edges.chain(constants)) * waves
    each = [work.parts(target.schedulers_per_sm) for work in (asked.loop, asked.edges)]
    parts = {name: sum(one[name] for one in each) * share * asked.warps_per_cta / clock_mhz for name in each[0]}
    terms = {"waves": clocks / clock_mhz, **parts, "chain": chain / clock_mhz, **traffic}
    numbers = {"launch": target.launch_overhead_us} | {name: float(term) for name, term in terms.items()}
    limiter = max((*parts, "chain", *traffic), key=numbers.__getitem__)
    return LatencyEstimate(target.launch_overhead_us + kernel_us, room, int(waves), limiter, numbers)


def estimate_us(
    asked: Demand,
    resident: Numbers,
    target: Target,
    *,
    unique_bytes: int | None = None,
    constants: Constants = FITTED,
) -> Numbers:
    """The times that :func:`estimate` gives, for those who ask for thousands.

    Args:
        asked: of each launch.
        resident: CTAs of it that an SM holds, at least one.
        target: the GPU's data sheet.
        unique_bytes: as for :func:`predict_us`.
        constants: of the model.
    """
    busy_us = _busy_clocks(asked, resident, target, constants) / target.clock_mhz
    traffic_us = np.maximum(_l2_us(asked, target), _dram_us(unique_bytes, target))
    return target.launch_overhead_us + np.maximum(busy_us, traffic_us)


def _shared_out(asked: Demand, resident: Numbers, target: Target) -> tuple[Numbers, Numbers]:
    """CTAs of the busiest SM, and the waves in which it runs them."""
    share = -(-asked.ctas // target.sms)
    return share, -(-share // resident)


def _busy_clocks(asked: Demand, resident: Numbers, target: Target, constants: Constants) -> Numbers:
    """Clocks of the busiest SM."""
    share, waves = _shared_out(asked, resident, target)
    left = share - (waves - 1) * resident
    last = (waves == 1) | np.logical_not(asked.longest_first)
    clocks = _wave_clocks(asked, left, last, target, constants)
    if np.any(waves > 1):
        clocks = clocks + (waves - 1) * _wave_clocks(asked, resident, np.False_, target, constants)
    merges = np.maximum(1.0, share * asked.merging / resident)  # a CTA that merges keeps its place on the SM
    return clocks + (merges * asked.merge_clocks + asked.code * constants.fetch)


def _l2_us(asked: Demand, target: Target) -> Numbers:
    return asked.l2_bytes / target.l2_bytes_per_clk / target.clock_mhz


def _dram_us(unique_bytes: int | None, target: Target) -> float:
    if unique_bytes is None or unique_bytes <= target.l2_bytes * 0.8:
        return 0.0
    return unique_bytes / target.dram_gbps / 1e3


def _chain_clocks(asked: Demand, constants: Constants) -> Numbers:
    """Clocks of the mean warp's loop when nothing competes with it."""
    spills = asked.spill_bytes / 8 * constants.spilled_word * np.maximum(1.0, asked.loop.phases / 2)
    return asked.loop.chain(constants) + spills


def _wave_clocks(
    asked: Demand, together: Numbers, busiest: np.bool_ | npt.NDArray[np.bool_], target: Target, constants: Constants
) -> Numbers:
    """Clocks of CTAs that run together on an SM, the busiest of the grid among them or not."""
    cta = np.where(busiest, (together + asked.busiest_cta - 1) / together, 1.0)
    warp = np.maximum(1.0, np.where(busiest, asked.busiest_warp, asked.busiest_warp / asked.busiest_cta))
    warps = together * asked.warps_per_cta
    chains = (_chain_clocks(asked, constants) * warp, asked.edges.chain(constants))
    clocks: Numbers = 0.0
    for work, chain, busy in zip((asked.loop, asked.edges), chains, (warps * cta, warps), strict=True):
        own = np.maximum(1.0, warps / target.schedulers_per_sm) * busy / warps
        pipes = [value * own for value in (work.tensor, work.mufu, work.issue, work.fp64)]
        memory, waited = work.memory * busy, work is asked.edges
        norm = _norm([chain, *pipes, work.shared * busy, *([memory] if waited else [])], constants.norm)
        clocks = clocks + np.maximum(norm, memory)
    return clocks


def _norm(values: Sequence[Numbers], exponent: float) -> Numbers:
    longest = reduce(np.maximum, values)
    unit = np.where(longest > 0, longest, 1.0)[()]
    return longest * sum([(value / unit) ** exponent for value in values]) ** (1 / exponent)
