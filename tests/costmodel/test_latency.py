"""Occupancy compared with hand-computed cases, and rankings that the latency model must produce."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evoengine.costmodel.hotspots import findings
from evoengine.costmodel.latency import FITTED, predict_us
from evoengine.emulator.counters.report import InstructionCounts, LaunchReport
from evoengine.emulator.ptx.dependency_analysis import Structure
from evoengine.emulator.ptx.pipes import Pipe
from evoengine.kernel.resources import occupancy
from evoengine.model import Resources
from evoengine.target import Target, get_target

L4 = get_target("l4")
A100 = get_target("a100-80g")
RESOURCES = Resources(
    registers=128, spill_bytes=0, stack_bytes=0, static_smem_bytes=0, dynamic_smem_bytes=16384, threads=128
)


@pytest.mark.parametrize(
    ("changes", "target", "ctas", "limiter"),
    [
        ({}, L4, 4, "registers"),  # 65536 / (128 * 128) = 4
        ({"registers": 64}, L4, 5, "shared memory"),  # 100 KiB / 17 KiB
        ({"registers": 64}, A100, 8, "registers"),  # 65536 / (64 * 128)
        ({"registers": 32, "dynamic_smem_bytes": 0}, L4, 12, "warps"),  # 1536 / 128
        ({"registers": 32, "dynamic_smem_bytes": 0, "threads": 32}, L4, 24, "blocks"),
        ({"registers": 255, "threads": 256}, L4, 1, "registers"),
        ({"dynamic_smem_bytes": 99 * 1024}, L4, 1, "shared memory"),
        ({"dynamic_smem_bytes": 100 * 1024}, L4, 0, "shared memory"),
    ],
)
def test_occupancy(changes: dict[str, int], target: Target, ctas: int, limiter: str) -> None:
    room = occupancy(replace(RESOURCES, **changes), target)
    assert room.blocks_per_sm == ctas
    assert ctas == 0 or room.limiter == limiter


def report(ctas: int = 58, scale: float = 1.0, barriers: int = 16) -> LaunchReport:
    """Creates the counters of a launch whose CTAs of four warps each run a fixed instruction mix."""
    warps = 4 * ctas
    per_warp = {Pipe.TENSOR: 512, Pipe.FMA: 1000, Pipe.ALU: 900, Pipe.MUFU: 280, Pipe.LSU_SHARED: 300, Pipe.CONTROL: 50}
    pipes = {pipe: int(count * warps * scale) for pipe, count in per_warp.items()}
    return LaunchReport(
        ctas=ctas,
        warps=warps,
        warp_instructions=sum(pipes.values()),
        pipes=pipes,
        barriers=barriers * warps,
        global_read_bytes=0,
        global_written_bytes=8192 * ctas,
        cp_async_bytes=140_000 * ctas,
        shared_read_bytes=int(540_000 * ctas * scale),
        shared_written_bytes=0,
        local_bytes=0,
        tensor_flops=int(512 * 4096 * warps * scale),
    )


def test_ranking() -> None:
    base = predict_us(report(), RESOURCES, L4)
    assert base.us > L4.launch_overhead_us
    assert base.waves == 1
    assert predict_us(report(scale=1.5), RESOURCES, L4).us > base.us
    assert predict_us(report(), replace(RESOURCES, spill_bytes=400), L4).us > base.us
    assert predict_us(report(barriers=60), RESOURCES, L4).us > base.us
    assert predict_us(report(ctas=59), RESOURCES, L4).us > base.us, "a tail CTA costs time"
    many = report(ctas=58 * 4)
    dense = predict_us(many, RESOURCES, L4)
    sparse = predict_us(many, replace(RESOURCES, dynamic_smem_bytes=90_000), L4)
    assert (dense.waves, sparse.waves) == (1, 4)
    assert sparse.us > dense.us, "low occupancy costs time"


def test_time_is_not_below_the_roofline() -> None:
    launch = report(ctas=580)
    floor = launch.tensor_flops / (L4.mma_flops_per_clk_per_sm * L4.sms * L4.boost_clock_mhz)
    assert predict_us(launch, RESOURCES, L4).us > floor
    assert predict_us(launch, RESOURCES, L4, unique_bytes=10**9).us > 10**9 / (L4.dram_gbps * 1e3)


def test_a_kernel_that_does_not_fit_has_infinite_time() -> None:
    estimate = predict_us(report(), replace(RESOURCES, dynamic_smem_bytes=120_000), L4)
    assert math.isinf(estimate.us)
    assert "shared memory" in estimate.limiter


def test_serial_work_costs_more_than_overlapped_work() -> None:
    apart = replace(report(), structure=Structure(phases=58 * 4 * 16, lone_mufu=58 * 4 * 280))
    mixed = replace(apart, structure=replace(apart.structure, lone_mufu=0))
    after = replace(apart, structure=replace(apart.structure, edge_issued=58 * 4 * 1000))
    longer = replace(apart, structure=replace(apart.structure, phases=58 * 4 * 64))
    waiting = replace(apart, structure=replace(apart.structure, edge_exchanges=58 * 3))
    base = predict_us(apart, RESOURCES, L4).us
    assert predict_us(mixed, RESOURCES, L4).us < base
    assert predict_us(after, RESOURCES, L4).us > base, "work outside the loop is not hidden"
    assert predict_us(longer, RESOURCES, L4).us > base
    assert predict_us(waiting, RESOURCES, L4).us == pytest.approx(base + 3 * FITTED.exchange / L4.clock_mhz, rel=0.05)


def test_traffic_of_l2_as_long_as_the_work_of_the_sms_adds_to_it() -> None:
    launch = without_traffic(report())
    alone_us = predict_us(launch, RESOURCES, L4).us - L4.launch_overhead_us
    l2_bytes = round(alone_us * L4.clock_mhz * L4.l2_bytes_per_clk)

    def with_traffic(share: float) -> float:
        written = replace(launch, global_written_bytes=round(share * l2_bytes))
        return predict_us(written, RESOURCES, L4).us - L4.launch_overhead_us

    assert with_traffic(1 / 3) < 1.05 * alone_us
    assert 1.1 * alone_us < with_traffic(1.0) < 1.5 * alone_us
    assert with_traffic(4.0) == pytest.approx(4 * alone_us, rel=0.05)


def without_traffic(launch: LaunchReport) -> LaunchReport:
    """Returns a launch whose bytes do not pass L2."""
    return replace(launch, cp_async_bytes=0, global_written_bytes=0)


def merge_us(ctas: int, exchanges: int, merging: int, waits: int = 32) -> float:
    """Computes the time that merging adds to a launch.

    Args:
        ctas: CTAs of the launch.
        exchanges: Exchanges per CTA.
        merging: Warps that merge.
        waits: Waits per merging warp.
    """
    structure = Structure(
        phases=ctas * 4 * 16, edge_exchanges=ctas * exchanges, merging=merging, merge_waits=merging * waits
    )
    launch = replace(without_traffic(report(ctas)), structure=structure)
    base, found = (predict_us(replace(launch, merging_warps=warps), RESOURCES, L4).us for warps in (0, merging))
    return found - base


def test_a_merge_waits_for_each_load_of_its_row() -> None:
    once = 32 * FITTED.merge_wait / L4.clock_mhz
    assert merge_us(58, exchanges=3, merging=29 * 4) == pytest.approx(once), "half of the CTAs merge, one per SM"
    assert merge_us(58, exchanges=6, merging=29 * 4) == pytest.approx(2 * once), "in each turn of a persistent CTA"
    assert merge_us(58 * 4, exchanges=6, merging=2 * 58 * 4 * 4) == pytest.approx(2 * once), "once in a turn"
    apart = merge_us(58, exchanges=0, merging=58 * 4)
    assert apart == pytest.approx(once + FITTED.exchange / L4.clock_mhz), "a separate launch"


def test_a_merging_cta_occupies_its_slot() -> None:
    once = 32 * FITTED.merge_wait / L4.clock_mhz
    assert merge_us(58 * 16, exchanges=3, merging=58 * 8 * 4) == pytest.approx(8 / 4 * once), "four at a time"


def test_code_is_fetched_once() -> None:
    for ctas in (58, 58 * 16):
        plain = without_traffic(report(ctas))
        long, short = (predict_us(replace(plain, code=code), RESOURCES, L4).us for code in (3000, 1000))
        assert long - short == pytest.approx(2000 * FITTED.fetch / L4.clock_mhz)


def test_warpgroups_reach_the_whole_tensor_peak() -> None:
    launch, hopper = report(ctas=132), get_target("h100-sxm")
    alone = predict_us(launch, RESOURCES, hopper)
    group = predict_us(replace(launch, wgmma_flops=launch.tensor_flops), RESOURCES, hopper)
    assert group.terms["tensor"] == pytest.approx(alone.terms["tensor"] * hopper.mma_sync_fraction)
    assert group.us < alone.us


def test_one_slow_warp_delays_its_cta() -> None:
    even = predict_us(report(), RESOURCES, L4).us
    uneven = predict_us(replace(report(), busiest_warp=1.5), RESOURCES, L4).us
    assert even < uneven < 1.5 * even


def test_costs_of_code_without_a_line_name_no_line() -> None:
    site = InstructionCounts(1, "", 0, "", "ld.global.u32", Pipe.LSU_GLOBAL, 1, 32, sectors=100, ideal_sectors=10)
    found = [findings(replace(report(), sites=(replace(site, source_line=line),))) for line in (0, 7)]
    assert [("line 0" in text, "line 7" in text) for [text] in found] == [(False, False), (False, True)]


def test_the_largest_part_is_the_limiter() -> None:
    partial = predict_us(without_traffic(report()), RESOURCES, L4)
    full = predict_us(replace(report(ctas=58 * 16), cp_async_bytes=0), RESOURCES, L4)
    assert partial.limiter == "chain", "four warps per SM do not hide their own latency"
    assert full.limiter == "tensor"
    assert full.terms["tensor"] == pytest.approx(16 * partial.terms["tensor"])
    assert partial.us == pytest.approx(partial.terms["launch"] + partial.terms["waves"])
