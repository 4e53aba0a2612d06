"""The simulated SM against closed forms, and the programs of the families on top of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel.simulated_families.hopper import HopperSimulation
from evoengine.costmodel.simulation.bulk_copy import box_row_bytes
from evoengine.costmodel.simulation.hopper_programs import HopperKernel, HopperPrograms
from evoengine.costmodel.simulation.launch import CopyPath, Pieces
from evoengine.costmodel.simulation.machine import (
    Copy,
    Drain,
    Mark,
    Operation,
    Product,
    Resource,
    Run,
    Signal,
    Timeline,
    Wait,
    busy_clocks,
    make_job,
    simulate,
)
from evoengine.costmodel.simulation.schedule import busiest_sm, by_round, by_ticket, in_order
from evoengine.costmodel.simulation.shared_pieces import shared_pieces
from evoengine.costmodel.simulation.warpgroup import SIMULATION_FITTED, SimulationConstants, Tile, WarpgroupWork
from evoengine.errors import DefectError
from evoengine.target import get_target

H200 = get_target("h200")


def timeline(*programs: list[Operation], events: int = 4) -> Timeline:
    return simulate([iter(program) for program in programs], events)


def run(**clocks: float) -> Run:
    return Run(make_job(**clocks))


def test_a_job_alone_takes_its_latency_and_its_busiest_resource() -> None:
    done = timeline([run(latency=30, issue=100, mufu=250)])
    assert done.clocks == pytest.approx(280)
    assert done.busy[Resource.ISSUE] == pytest.approx(100)
    assert done.busy[Resource.MUFU] == pytest.approx(250)


@pytest.mark.parametrize(
    ("one", "other", "clocks"),
    [
        ({"issue": 100}, {"mufu": 100}, 100),  # different resources overlap
        ({"issue": 100}, {"issue": 100}, 200),  # one resource is shared
        (
            {"latency": 100, "issue": 100},
            {"latency": 100, "issue": 100},
            200,
        ),  # latencies hide the other's instructions
        ({"issue": 100}, {"issue": 50}, 150),  # half speed for 100 clocks, then 50 alone
    ],
)
def test_two_agents_share_what_both_need(one: dict[str, float], other: dict[str, float], clocks: float) -> None:
    assert timeline([run(**one)], [run(**other)]).clocks == pytest.approx(clocks)


def test_products_run_one_at_a_time_and_beside_instructions() -> None:
    product = Product(make_job(tensor=100))
    both = timeline([product, Drain(), Mark()], [product, Drain(), Mark()])
    assert [marks[0] for marks in both.marks] == pytest.approx([100, 200]), "in the order of their starts"
    beside = timeline([product, product, Drain(1), Mark(), run(issue=70), Drain(), Mark()])
    assert beside.marks[0] == pytest.approx((100, 200)), "70 instructions hide behind the second product"


def test_a_ring_hides_copies_that_are_shorter_than_the_computation() -> None:
    def producer(tiles: int, stages: int, copy: Copy) -> Iterator[Operation]:
        for tile in range(tiles):
            yield Wait(1, tile + 1 - stages)
            yield copy

    def consumer(tiles: int) -> Iterator[Operation]:
        for tile in range(tiles):
            yield Wait(0, tile + 1)
            yield run(issue=100)
            yield Signal(1)

    def clocks(stages: int, copy: Copy, tiles: int = 10) -> float:
        return simulate([producer(tiles, stages, copy), consumer(tiles)], 2).clocks

    assert clocks(1, Copy(0, 80, 0)) == pytest.approx(10 * 180), "no overlap with one slot"
    assert clocks(2, Copy(0, 80, 0)) == pytest.approx(80 + 10 * 100), "perfect overlap with two"
    slow = Copy(150, 0, 0)
    assert clocks(4, slow, 80) - clocks(4, slow, 40) == pytest.approx(40 * 150), "bound by the copies' bandwidth"


def test_copies_arrive_in_the_order_of_their_starts() -> None:
    reader: list[Operation] = [Copy(100, 50, 0), Copy(100, 50, 1), Wait(0, 1), Mark(), Wait(1, 1), Mark()]
    done = simulate([iter(reader)], 2)
    assert done.marks[0] == pytest.approx((150, 250)), "the first does not wait for the second, whose latency overlaps"
    assert done.busy[Resource.COPY] == pytest.approx(200)


@pytest.mark.parametrize(
    ("row_bytes", "lines"),
    [(128, 1), (256, 2), (512, 4), (192, 2.5), (160, 2.75), (320, 4), (96, 1.5)],
)
def test_rows_count_for_the_lines_of_l2_that_their_boxes_touch(row_bytes: int, lines: float) -> None:
    assert box_row_bytes(row_bytes) == pytest.approx(lines * 128)


@pytest.mark.parametrize(("row_bytes", "lines"), [(80, 1.5), (112, 1.75), (144, 2.875), (208, 3.375)])
def test_rows_between_sectors_count_for_more_the_emptier_their_boxes_are(row_bytes: int, lines: float) -> None:
    share = box_row_bytes(row_bytes) / (128 * lines)
    assert {80: 1.9, 112: 1.1, 144: 1.8, 208: 1.2}[row_bytes] == pytest.approx(share, abs=0.05)


def test_a_shorter_row_of_one_box_between_sectors_does_not_cost_more() -> None:
    assert box_row_bytes(16) < box_row_bytes(48) < box_row_bytes(80)


def test_agents_that_wait_for_each_other_are_a_defect() -> None:
    with pytest.raises(DefectError):
        timeline([Wait(0, 1), Signal(1)], [Wait(1, 1), Signal(0)])


PLAIN = SimulationConstants(
    issue=1.0,
    product_issue=0.0,
    convert_per_clk=16.0,
    tile_instructions=0.0,
    maxima_latency=0.0,
    product_latency=0.0,
    sync=0.0,
    copy_latency=500.0,
    start=1000.0,
    end_latency=0.0,
    stagger=0.0,
)
"""Instructions take one clock, nothing but copies and the start has a latency."""
KERNEL = HopperKernel(
    consumers=1,
    tile=Tile(128, 64, polynomial=0, q_in_registers=False, softcap=False),
    stages=2,
    overlap=False,
    pingpong=False,
    stays=True,
    share_qo=False,
    masked=(0,),
)
PRODUCT = 64 * 128 * 64 * 2 / 4096
"""Clocks of Q Kᵀ or P V of 64 rows and 128 keys, at 4096 operations a clock."""
MAXIMA = 64 / 2
"""Scores of a lane, two at once."""
SOFTMAX = (64 * 128 + 64 * 128 / 2) / 16
"""Exponentials, and conversions of pairs, 16 a clock."""
END = 3 * 16 + 100 + 16
"""Instructions: 64 columns are 16 pairs of a lane."""


def hopper(kernel: HopperKernel, constants: SimulationConstants = PLAIN, bytes_per_clk: float = 1e9) -> HopperPrograms:
    return hopper_over(CopyPath(bytes_per_clk), kernel, constants)


def hopper_over(path: CopyPath, kernel: HopperKernel, constants: SimulationConstants = PLAIN) -> HopperPrograms:
    return HopperPrograms(kernel, WarpgroupWork(kernel.tile, H200, constants), path, constants)


def test_one_warpgroup_and_one_tile() -> None:
    done = hopper(KERNEL).run([1], 1)
    assert done.clocks == pytest.approx(1000 + 500 + PRODUCT + MAXIMA + SOFTMAX + PRODUCT + END, rel=1e-6)
    assert done.busy[Resource.TENSOR] == pytest.approx(2 * PRODUCT)
    issued = busy_clocks(hopper(KERNEL).of([1]), Resource.ISSUE)
    assert issued == pytest.approx(MAXIMA + 3 * 64 + 32 + END), "multiply-add, exponential and sum per score"


def period(kernel: HopperKernel, ctas: int = 1, constants: SimulationConstants = PLAIN, rate: float = 1e9) -> float:
    """Clocks of a tile in the middle of a long piece of work."""
    programs = hopper(kernel, constants, rate)
    return (programs.run([40], ctas).clocks - programs.run([20], ctas).clocks) / 20


def test_overlap_hides_the_values_behind_the_exponentials() -> None:
    serial = 2 * PRODUCT + MAXIMA + SOFTMAX
    assert period(KERNEL) == pytest.approx(serial, rel=1e-6)
    beside = PRODUCT + MAXIMA + 64 * 128 / 16 + 64 * 64 / 16  # S, maxima, exponentials beside P V, conversions
    assert period(replace(KERNEL, overlap=True)) == pytest.approx(beside, rel=1e-6)
    at_once = 2 * PRODUCT + SOFTMAX  # only the maxima beside P V, and the conversions beside the exponentials
    assert period(replace(KERNEL, overlap=True, beside_values=0.0)) == pytest.approx(at_once, rel=1e-6)


def test_two_consumers_hide_the_products_of_one_behind_the_softmax_of_the_other() -> None:
    two = replace(KERNEL, consumers=2, pingpong=True, masked=(0, 0))
    serial = 2 * PRODUCT + MAXIMA + SOFTMAX
    assert 2 * SOFTMAX <= period(two) < 1.1 * 2 * SOFTMAX < 2 * serial, "nearly bound by the special functions alone"


def test_two_ctas_take_as_long_as_two_consumers() -> None:
    together = period(KERNEL, ctas=2)
    assert together == pytest.approx(period(replace(KERNEL, consumers=2, masked=(0, 0))), rel=0.02)
    assert period(KERNEL) < together < 2 * period(KERNEL)


def test_copies_bind_where_tiles_are_read_slowly() -> None:
    tile_bytes = 2 * 128 * 64 * 2
    assert period(KERNEL, rate=8.0) == pytest.approx(tile_bytes / 8.0, rel=0.01)


def test_a_ring_hides_that_copies_come_from_dram() -> None:
    def clocks(stages: int, miss_clocks: float) -> float:
        return hopper_over(CopyPath(1e9, miss_clocks), replace(KERNEL, stages=stages)).run([20], 1).clocks

    one, ring = (clocks(stages, 3000.0) - clocks(stages, 0.0) for stages in (1, 8))
    assert one > 20 * (3000 - SOFTMAX - 2 * PRODUCT), "each tile is waited for, but for what its slot is in use"
    assert ring == pytest.approx(3000, rel=0.01), "only the first tile is waited for"


def test_products_that_take_the_whole_scheduler_do_not_overlap() -> None:
    alone = replace(PLAIN, product_issue=1.0, issue=4.0)
    two = replace(KERNEL, consumers=2, masked=(0, 0))
    issued = (MAXIMA + 3 * 64 + 32) * 4.0
    assert period(two, constants=alone) == pytest.approx(2 * (issued + 2 * PRODUCT), rel=0.02)


def test_a_new_cta_starts_again_and_a_persistent_one_loads_ahead() -> None:
    stays, leaves = (
        hopper(replace(KERNEL, stays=stays), SIMULATION_FITTED, 60.0).run([4, 4], 1).clocks for stays in (True, False)
    )
    assert leaves - stays > SIMULATION_FITTED.start


def test_a_second_slot_hides_the_copy_of_the_next_query_tile() -> None:
    ends = {}
    for slots in (1, 2):
        marks = hopper(replace(KERNEL, stages=8, q_slots=slots), bytes_per_clk=4.0).run([2, 2], 1).marks[1]
        ends[slots] = marks[1] - marks[0]
    assert ends[1] - ends[2] > 500, "the copies of the next piece's keys follow that of its queries"


def test_key_groups_divide_the_tiles_of_a_piece() -> None:
    alone = hopper(replace(KERNEL, stages=6)).run([6], 1).clocks
    three = hopper(replace(KERNEL, stages=6, consumers=3, groups=3)).run([6], 1)
    softmax = 2 * (SOFTMAX + MAXIMA)
    assert three.clocks < alone
    assert three.clocks > 1000 + 500 + softmax + 2 * PRODUCT, "two tiles each, which share the pipes with the others"
    assert three.busy[Resource.TENSOR] == pytest.approx(12 * PRODUCT)
    uneven = hopper(replace(KERNEL, stages=6, consumers=3, groups=3, pingpong=True, overlap=True)).run([7, 1, 5], 1)
    assert uneven.busy[Resource.TENSOR] == pytest.approx(26 * PRODUCT), "groups without a tile or with one fewer end"


def test_many_pieces_are_balanced_but_for_the_last_ones() -> None:
    clocks = np.random.default_rng(0).uniform(1.0, 2.0, 2000)
    for assigned in (in_order, by_ticket):
        loads = assigned(clocks, 4)
        assert loads.sum() == pytest.approx(clocks.sum())
        assert loads.max() - loads.min() < 4.0
        assert assigned(np.append(clocks, 50.0), 4).max() > loads.max() + 40.0, "a long piece at the end is seen"


def test_shared_pieces_keep_all_their_key_tiles() -> None:
    pieces = Pieces(np.full(11, 6.0), "rounds")
    names = {**HopperSimulation.defaults, "RESIDENT_CTAS": 4}
    assert shared_pieces(pieces, names) is pieces
    last = shared_pieces(pieces, {**names, "SHARE_LAST_ROUND": True})
    runs = [2.0, 3.0, 4.0, 5.0]  # 18 tiles for 4 CTAs, of which two go on with 3 and 1 of the next piece
    assert last.tiles.tolist() == [6.0] * 8 + runs + [3.0, 1.0]
    few = shared_pieces(Pieces(np.full(9, 2.0), "rounds"), {**names, "SHARE_LAST_ROUND": True})
    assert few.tiles.tolist() == [2.0] * 8 + [1.0, 1.0], "no CTA takes less than a tile"
    split = shared_pieces(pieces, {**names, "SPLIT_WAVES": 8, "SPLIT_TILES": 2})
    assert split.tiles.tolist() == [3.0] * 22


def test_schedules() -> None:
    unequal = np.array([4.0, 1.0, 1.0, 1.0, 1.0])
    assert sorted(in_order(unequal, 2)) == [4.0, 4.0], "the slot that is free first takes the next piece"
    assert sorted(by_ticket(unequal, 2)) == [3.0, 5.0], "both slots draw their second piece at their start"
    long = np.array([1.0, 1.0, 5.0, 1.0, 1.0, 1.0])
    assert by_ticket(long, 2).tolist() == [7.0, 3.0], "the next number is drawn when the long piece begins"
    assert by_round(np.array([5.0, 4.0, 3.0, 2.0]), 2, snake=False).tolist() == [8.0, 6.0]
    assert by_round(np.array([5.0, 4.0, 3.0, 2.0]), 2, snake=True).tolist() == [7.0, 7.0]
    for assigned in (in_order, by_ticket):
        assert sorted(assigned(np.full(5, 2.0), 2)) == [4.0, 6.0]
        assert assigned(np.array([2.0]), 3).tolist() == [2.0, 0.0, 0.0]


def test_the_rest_of_an_sm_is_faster_when_a_cta_has_ended() -> None:
    loads = np.array([10.0, 10.0, 10.0, 4.0])  # slots 0 and 2 are on SM 0, 1 and 3 on SM 1
    assert busiest_sm(loads, 2, [0.0, 60.0, 100.0].__getitem__) == pytest.approx(10.0)
    assert busiest_sm(loads[[1, 3]], 1, [0.0, 60.0, 100.0].__getitem__) == pytest.approx(4.0 + 6.0 * 0.6)
