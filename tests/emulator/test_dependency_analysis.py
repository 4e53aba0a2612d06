"""Dependency analysis of handwritten PTX: overlap, waits, edges and merges."""

from __future__ import annotations

from evoengine.emulator.ptx.control_flow import build
from evoengine.emulator.ptx.dependency_analysis import Structure, structures_of
from evoengine.emulator.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
REGISTERS = ".reg .b32 %r<20>; .reg .f32 %f<20>; .reg .b64 %rd<5>; .reg .pred %p<3>;\n"
MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, "
    "{%f1, %f2, %f3, %f4};\n"
)
EXP = "ex2.approx.ftz.f32 %f5, %f6;\n"


def structures(body: str) -> list[Structure]:
    """Dependency structure of each basic block."""
    entry = parse(f"{HEAD}.visible .entry k(.param .u64 a) {{\n{REGISTERS}{body}ret;\n}}\n", None)
    return structures_of(entry, build(entry).blocks)


def test_special_functions_between_tensor_instructions_can_overlap() -> None:
    [one] = structures(EXP + EXP + MMA + EXP + MMA + EXP)
    assert one.lone_mufu == 3, "two before the first mma and one after the last"
    [without] = structures(EXP + EXP)
    assert without.lone_mufu == 2


def test_barriers_and_waits_for_copies_prevent_overlap() -> None:
    for sync in ("bar.warp.sync -1;\n", "cp.async.wait_group 0;\n"):
        [one] = structures(MMA + EXP + sync + MMA)
        assert one.lone_mufu == 1
    before, after = structures(MMA + EXP + "bar.sync 0;\n" + MMA)
    assert (before.lone_mufu, after.lone_mufu) == (1, 0)
    assert (before.phases, after.phases) == (1, 0)
    [warp] = structures("bar.warp.sync -1;\n" * 2)
    assert warp.phases == 2
    arrive, _ = structures("bar.arrive 1, 64;\n" + EXP)
    assert arrive.phases == 0, "bar.arrive does not wait"


def test_blocks_after_an_exchange_merge() -> None:
    exchange, load = "membar.gl;\nbar.sync 0;\n", "ld.global.f32 %f1, [%rd1];\n"
    found = structures(load + MMA + "bar.sync 0;\n" + exchange + load + load + "bar.sync 0;\n" + load)
    assert [(one.merging, one.merge_waits) for one in found] == [(0, 0), (0, 0), (1, 1), (1, 1)]
    before = structures(exchange + load + MMA + "bar.sync 0;\n" + load)
    assert all(one.merging == 0 for one in before), "the exchange is before the tensor instructions"
    assert all(one.merging == 0 for one in structures(load + MMA + "bar.sync 0;\n" + load)), "there is no exchange"


def test_independent_loads_share_one_wait() -> None:
    loads = "ld.global.f32 %f1, [%rd1];\nld.global.v2.f32 {%f2, %f3}, [%rd1];\n"
    use = "add.f32 %f4, %f3, %f3;\n"
    [one] = structures(loads + use + use)
    assert one.merge_waits == 1
    [still] = structures(loads + use + loads + "st.global.f32 [%rd1], %f1;\n")
    assert still.merge_waits == 1, "ptxas hoists the later loads"
    [two] = structures(loads + "st.global.f32 [%rd1], %f1;\n" + loads)
    assert two.merge_waits == 2, "ptxas hoists no load above a store"
    [chased] = structures("ld.global.u64 %rd2, [%rd1];\nadd.s64 %rd3, %rd2, 8;\nld.global.f32 %f1, [%rd3];\n")
    assert chased.merge_waits == 2, "the second load needs the first"
    [late] = structures(loads + "add.f32 %f5, %f6, %f6;\n")
    assert late.merge_waits == 1, "the values are used in a later block"


def test_loads_that_are_only_skipped_share_a_wait() -> None:
    """As a merge of rows has them whose columns do not fill the threads; ptxas predicates such loads."""
    use = "add.f32 %f5, %f1, %f2;\nst.global.f32 [%rd1], %f5;\n"
    first, second = ("ld.global.f32 %f1, [%rd1];\n", "ld.global.f32 %f2, [%rd1];\n")
    skipped = f"@%p1 bra DONE;\n{first}DONE:\n@%p1 bra AGAIN;\n{second}AGAIN:\n{use}"
    assert sum(one.merge_waits for one in structures(skipped)) == 1
    add = "add.f32 %f3, %f3, %f3;\n"
    addressed = f"@%p1 bra DONE;\n{add * 19}{first}DONE:\n@%p1 bra AGAIN;\n{add * 19}{second}AGAIN:\n{use}"
    assert sum(one.merge_waits for one in structures(addressed)) == 1
    long = add * 22
    branched = f"@%p1 bra DONE;\n{first}{long}DONE:\n@%p1 bra AGAIN;\n{second}{long}AGAIN:\n{use}"
    assert sum(one.merge_waits for one in structures(branched)) == 2, "ptxas keeps the branch around a long block"
    entered = f"@%p1 bra DONE;\n@%p2 bra DONE;\n{first}DONE:\n{second}{use}"
    assert sum(one.merge_waits for one in structures(entered)) == 2, "a block that others lead to stands alone"


def test_a_kernel_that_only_loads_and_adds_is_a_merge() -> None:
    [one] = structures("ld.global.f32 %f1, [%rd1];\nadd.f32 %f2, %f1, %f1;\nst.global.f32 [%rd1], %f2;\n")
    assert (one.merging, one.merge_waits) == (1, 1)
    [shared] = structures("ld.global.f32 %f1, [%rd1];\nst.shared.f32 [%r1], %f1;\n")
    assert shared.merging == 0


def test_edges_are_the_blocks_around_tensor_instructions() -> None:
    load = "ld.global.u32 %r1, [%rd1];\nmov.b32 %r2, %r1;\nadd.s32 %r3, %r1, %r2;\nbar.sync 0;\n"
    merge = (
        "st.shared.v2.f32 [%r1], {%f1, %f2};\nld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];\nst.shared.u8 [%r1], %r2;\n"
        "membar.gl;\natom.global.inc.u32 %r4, [%rd1], 3;\natom.shared.add.u32 %r4, [%r1], 3;\nfence.acq_rel.cta;\n"
        "fence.mbarrier_init.release.cluster;\n"
    )
    first, loop, between, again, last = structures(
        load + MMA + "bar.sync 0;\n" + EXP + "bar.sync 0;\n" + MMA + "bar.sync 0;\n" + merge
    )
    assert (first.edge_phases, first.edge_requests) == (2, 1), "a barrier, and the wait for the load"
    assert first.edge_issued == 3, "a move does not count"
    assert loop == again == Structure(phases=1)
    assert between == Structure(phases=1, lone_mufu=1), "the block between tensor instructions is no edge"
    assert last.edge_shared_lines == 2 + 4 + 1 + 1, "8, 16, 1 and 4 bytes per lane"
    assert last.edge_exchanges == 2, "fences and atomics of CTA scope do not count"


def test_waits_for_loads_to_registers_before_the_loop_count_like_barriers() -> None:
    def edge_phases(before: str) -> list[int]:
        blocks = structures(f"{before}bar.sync 0;\n{MMA}bar.sync 0;\nld.global.f32 %f1, [%rd1];\n{EXP}")
        return [one.edge_phases for one in blocks]

    load = "ld.global.u32 %r{}, [%rd{}];\n"
    assert edge_phases(load.format(1, 1) + load.format(2, 1)) == [2, 0, 0], "two loads are waited for together"
    assert edge_phases("ld.global.u64 %rd2, [%rd1];\n" + load.format(1, 2)) == [3, 0, 0], "an address comes first"
    assert edge_phases("cp.async.cg.shared.global [%r1], [%rd1], 16;\n") == [1, 0, 0], "a copy ends at the barrier"
    skipped = f"@%p1 bra L;\n{load.format(1, 1)}L:\n{load.format(2, 1)}"
    assert edge_phases(skipped) == [0, 1, 1, 0, 0], "the first block that loads has the wait of all"


def test_a_loop_begins_at_the_target_of_its_back_edge() -> None:
    loop = f"L:\nbar.sync 0;\n{EXP}@%p1 bra L2;\n{MMA}L2:\n@%p2 bra L;\n"
    edges = [one.edge_issued for one in structures(EXP + loop + EXP)]
    assert edges == [1, 0, 0, 0, 0, 2], "the wait for a tile is in the loop"
    apart = [one.edge_issued for one in structures(f"bar.sync 0;\n{EXP}{MMA}bar.sync 0;\n{EXP}")]
    assert apart == [1, 0, 2], "without a loop, edges follow from the order"


def test_a_loop_with_a_global_store_is_no_tile_loop() -> None:
    inner = f"L:\nbar.sync 0;\n{MMA}@%p2 bra L;\n"
    outer = f"K:\n{EXP}{inner}{EXP}st.global.f32 [%rd1], %f1;\n@%p1 bra K;\n"
    assert [one.edge_issued for one in structures(outer)] == [1, 0, 0, 3, 1]
    alone = f"K:\nbar.sync 0;\n{MMA}bar.sync 0;\n{EXP}st.global.f32 [%rd1], %f1;\n@%p1 bra K;\n"
    assert [one.edge_issued for one in structures(alone)] == [1, 0, 3, 1]


def test_a_kernel_without_tensor_instructions_has_no_edges() -> None:
    one, other = structures("ld.shared.u32 %r1, [%r2];\nbar.sync 0;\n" + EXP)
    assert (one, other) == (Structure(phases=1), Structure(lone_mufu=1))


def test_structures_add_up() -> None:
    one = Structure(phases=2, edge_requests=3)
    assert Structure(phases=1).plus(one, 4) == Structure(phases=9, edge_requests=12)
    assert Structure().plus(one, 0.5) == Structure(phases=1, edge_requests=2), "sums are rounded"
