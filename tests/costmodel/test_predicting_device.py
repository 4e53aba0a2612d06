"""Emulator device: device contract, faults at their instruction, predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.costmodel.representative import keys_per_row, one_group, representative
from evoengine.device.contract import DeviceContract, KernelMaker, Merge, assert_launch_error, random_inputs
from evoengine.device.protocols import Device
from evoengine.emulator import EmulatorError, FaultKind
from evoengine.errors import LaunchError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel, LaunchSpec
from evoengine.model import Problem
from evoengine.target import get_target
from tests.device.makers import make
from tests.device.scalar_kernel import FAULTS, build


class TestEmulatorDevice(DeviceContract):
    """Runs the device contract on the emulator."""

    @pytest.fixture
    def device(self) -> EmulatorDevice:
        return EmulatorDevice(get_target("l4"))

    @pytest.fixture
    def make_kernel(self) -> KernelMaker:
        return make

    @pytest.mark.thorough
    def test_all_features_at_once(self, device: Device, make_kernel: KernelMaker) -> None:
        super().test_all_features_at_once(device, make_kernel)


PROBLEM = Problem(1, 2, 20, 16, seq_kv=40)


@pytest.fixture
def device() -> EmulatorDevice:
    return EmulatorDevice(get_target("l4"))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_a_launch_error(device: EmulatorDevice, fault: str) -> None:
    assert_launch_error(device.load(build(PROBLEM, FAULTS[fault])), random_inputs(PROBLEM, 1))
    assert device.healthy


@pytest.mark.parametrize("merge", ["steps", "counters"])
def test_uninitialised_workspace_cannot_be_read(device: EmulatorDevice, merge: Merge) -> None:
    loaded = device.load(make(PROBLEM, "reads-what-nobody-left", merge))
    assert_launch_error(loaded, random_inputs(PROBLEM, 1), "uninitialised_read")


ORDERED = (
    "mine.out[c] / total",
    "mine.out[c] / total * (1.f + 1e-4f * [] { static unsigned turns; return float(atomicInc(&turns, 639u) >> 5); }())",
)
"""Change of the kernel that makes the output depend on which warp comes first; well within the gate's tolerance. The
counter is 0 again after all 640 elements, since a kernel must not change a module variable."""


def test_outputs_must_not_depend_on_the_order_of_ctas() -> None:
    kernel, inputs = build(PROBLEM, ORDERED), random_inputs(PROBLEM, 1)
    EmulatorDevice(get_target("l4"), cta_orders=0).load(kernel).attention(inputs)
    assert_launch_error(EmulatorDevice(get_target("l4")).load(kernel), inputs, "order_dependent: O depends on")


COPIED = (
    "    if (SPLITS == 1) {",
    """    static u16 cells[40][8];
    __shared__ __align__(16) u16 copied[ROWS][8];
    __shared__ __align__(8) unsigned long long bars[ROWS];
    const int warp = threadIdx.x / 32;
    volatile u16* cell = cells[(blockIdx.x * 2 + blockIdx.y) * ROWS + warp];
    const unsigned bar = (unsigned)__cvta_generic_to_shared(bars + warp);
    const unsigned to = (unsigned)__cvta_generic_to_shared(copied[warp]);
    if (lane == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16;" :: "r"(bar) : "memory");
        *cell = 1;
        asm volatile("fence.proxy.async;" ::: "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];"
                     :: "r"(to), "l"(cell), "r"(bar) : "memory");
        WAIT
        *cell = 0;
        asm volatile("fence.proxy.async;" ::: "memory");
        asm volatile("{.reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L;}"
                     :: "r"(bar) : "memory");
    }
    __syncwarp();
    mine.total *= 1.f + 1e-3f * copied[warp][0];
    if (SPLITS == 1) {""",
)
"""Change of the kernel that copies a value and may overwrite it before the copy has executed. The value is 0 at the
end, since a kernel must not change a module variable."""
WAITED = """asm volatile("{.reg .pred p; M: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra M;}"
                     :: "r"(bar) : "memory");"""


def test_outputs_must_not_depend_on_the_time_of_asynchronous_operations() -> None:
    device, inputs = EmulatorDevice(get_target("h200")), random_inputs(PROBLEM, 1)
    old, new = COPIED
    device.load(build(PROBLEM, (old, new.replace("WAIT", WAITED)), "sm_90a")).attention(inputs)
    broken = build(PROBLEM, (old, new.replace("WAIT", "")), "sm_90a")
    assert_launch_error(device.load(broken), inputs, "O depends on the time of asynchronous operations")


NARROW = {
    "row of K": ("(long long)safe_key * p.k_row_stride", "safe_key * p.k_row_stride"),
    "row of O": ("(long long)at.q_row * p.o_row_stride", "at.q_row * p.o_row_stride"),
    "head of Q": ("head * p.q_head_stride", "(int)(head * p.q_head_stride)"),
    "log-sum-exps": ("at.head * p.lse_head_stride", "(int)(at.head * p.lse_head_stride)"),
    "batch of V": ("batch * p.v_batch_stride", "(int)(batch * p.v_batch_stride)"),
}
"""Offsets that are computed in 32 bits."""


@pytest.mark.parametrize("offset", NARROW)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.every(3)
def test_offsets_need_more_than_32_bits(device: EmulatorDevice, offset: str, packed: bool) -> None:
    problem = replace(PROBLEM, batch=2, lse=True)
    if packed:
        problem = replace(problem, lengths_q=(20, 7), lengths_kv=(40, 33))
    inputs = random_inputs(problem, 1)
    kernel = build(problem, NARROW[offset])
    if packed and offset == "batch of V":
        device.load(kernel).attention(inputs)  # packed sequences have no stride of the batch
    else:
        assert_launch_error(device.load(kernel), inputs, "beyond 32 bits")


IN_GROUP = (
    "head * p.q_head_stride",
    "kv_head * (p.heads_per_kv_head * p.q_head_stride) + (int)(head % p.heads_per_kv_head * p.q_head_stride)",
)


def test_offsets_within_a_group_of_heads_need_more_than_32_bits(device: EmulatorDevice) -> None:
    """An earlier call of heads that share no keys has been repeated with large strides already."""
    alone, shared = (replace(PROBLEM, batch=2, kv_heads=heads) for heads in (2, 1))
    loaded = device.load(build(PROBLEM, IN_GROUP))
    for inputs in (random_inputs(alone, 1), random_inputs(alone, 2)):
        loaded.attention(inputs)
    assert_launch_error(loaded, random_inputs(shared, 1), "beyond 32 bits")


def test_a_tensor_need_not_begin_at_a_multiple_of_more_than_16_bytes(device: EmulatorDevice) -> None:
    inputs = random_inputs(replace(PROBLEM, batch=2), 1)
    for bytes_, accepted in ((16, True), (32, False), (128, False)):
        rounded = ("const u16* k = p.k +", f"const u16* k = (const u16*)((unsigned long long)p.k & -{bytes_}ll) +")
        loaded = device.load(build(PROBLEM, rounded))
        if accepted:
            loaded.attention(inputs)
        else:
            assert_launch_error(loaded, inputs, "beyond 32 bits")


LANES = (
    "    if (SPLITS == 1) {",
    """    __shared__ int told[ROWS * 32];
    if (p.seq_q > 1) {
        told[threadIdx.x] = 1;
        if (told[threadIdx.x ^ 1] == 7) return;
    }
    if (SPLITS == 1) {""",
)


@pytest.mark.parametrize(
    ("change", "rows", "said"), [(NARROW["row of O"], 97, "beyond 32 bits"), (LANES, 97, "another lane of its warp")]
)
def test_calls_of_many_rows_are_repeated_with_large_strides(
    device: EmulatorDevice, change: tuple[str, str], rows: int, said: str
) -> None:
    loaded = device.load(build(PROBLEM, change))
    for few in (1, rows - 1):
        loaded.attention(random_inputs(replace(PROBLEM, seq_q=few), 1))
    assert_launch_error(loaded, random_inputs(replace(PROBLEM, seq_q=rows), 1), said)


def test_random_orders_leave_counters_and_predictions_unchanged() -> None:
    """A merge by the last of several splits, whose CTAs synchronise."""
    kernel, inputs = make(PROBLEM, None, "counters"), random_inputs(PROBLEM, 1)
    profiles = []
    for orders in (0, 2):
        loaded = EmulatorDevice(get_target("l4"), cta_orders=orders).load(kernel)
        loaded.attention(inputs)
        profiles.append(loaded.profile(PROBLEM))
    assert profiles[0] == profiles[1]


def test_a_binary_without_the_kernel_is_a_launch_error(device: EmulatorDevice) -> None:
    kernel = make(PROBLEM, None)
    other = replace(kernel.binary, ptx=kernel.binary.ptx.replace("evo_attention", "something_else"))
    with pytest.raises(LaunchError):
        device.load(Kernel(kernel.source, other))


def test_info_is_marked_as_predicted_and_names_the_gpu(device: EmulatorDevice) -> None:
    assert device.info.kind == "emulator"
    assert device.info.predicted
    assert device.info.name == device.target.marketing_name
    assert device.info.arch == "sm_89"
    assert EmulatorDevice(get_target("a100-40g")).info.arch == "sm_80"
    assert EmulatorDevice(get_target("l4"), "sm_80").info.arch == "sm_80"


def test_predictions_are_reproducible_and_grow_with_the_work(device: EmulatorDevice) -> None:
    kernel = device.load(make(PROBLEM, None))
    small, large = Problem(1, 8, 64, 16), Problem(4, 16, 256, 16)
    kernel.attention(random_inputs(small, 1))
    first = kernel.predict(small)
    assert first.us > 0
    assert first == kernel.predict(small) == device.load(make(PROBLEM, None)).predict(small)
    assert first.method.startswith("model-")
    assert kernel.predict(large).us > 2 * first.us


@pytest.mark.parametrize("causal", [False, True])
def test_a_slice_of_heads_predicts_about_the_same_time(causal: bool) -> None:
    whole = Problem(2, 8, 128, 16, kv_heads=4, causal=causal)
    limit = 3 * 10**6
    assert representative(whole, limit) == replace(whole, batch=1, heads=2, kv_heads=1)
    kernel = make(whole, None)
    by_slice = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel).predict(whole)
    exact = EmulatorDevice(get_target("l4"), representative_flops=WHOLE).load(kernel).predict(whole)
    assert by_slice.us == pytest.approx(exact.us, rel=0.01)


def test_a_slice_of_rows_predicts_about_the_same_time() -> None:
    whole = Problem(1, 1, 1024, 16, seq_kv=64)
    limit = 10**6
    assert representative(whole, limit) == replace(whole, seq_q=256)
    kernel = make(whole, None)
    by_slice = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel).predict(whole)
    exact = EmulatorDevice(get_target("l4"), representative_flops=WHOLE).load(kernel).predict(whole)
    assert by_slice.us == pytest.approx(exact.us, rel=0.01)


WHOLE = 1 << 62
"""Limit above all problems of these tests: each runs whole."""
WINDOWED = Problem(2, 4, 512, 16, kv_heads=2, window_left=40, causal=True, softcap=3.0, sink=True, lse=True)
LENGTHS = (200, 40, 0, 120, 90, 180, 10, 60)
PACKED = Problem(8, 4, 200, 16, kv_heads=2, causal=True, lse=True, lengths_q=LENGTHS)


@pytest.mark.parametrize(
    ("whole", "merge"),
    [
        pytest.param(whole, merge, id=f"{name}-{merge}", marks=[] if in_ci else [pytest.mark.thorough])
        for name, whole, merge, in_ci in [
            ("windowed", WINDOWED, "none", False),
            ("windowed", WINDOWED, "steps", True),
            ("windowed", WINDOWED, "counters", False),
            ("packed", PACKED, "none", False),
            ("packed", PACKED, "steps", False),
            ("packed", PACKED, "counters", True),
        ]
    ],
)
@pytest.mark.every(2)
def test_a_slice_with_features_predicts_about_the_same_time(whole: Problem, merge: Merge) -> None:
    limit = whole.flops // (4 if whole.packed else 8)
    part = representative(whole, limit)
    assert (part.heads, part.rows_q < whole.rows_q) == (2, True)
    assert part.flops <= 1.2 * limit
    assert (part.window_left, part.causal, part.softcap, part.sink, part.lse, part.packed) == (
        (whole.window_left, whole.causal, whole.softcap, whole.sink, whole.lse, whole.packed)
    )
    kernel = make(whole, None, merge)
    by_slice = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel).predict(whole)
    exact = EmulatorDevice(get_target("l4"), representative_flops=WHOLE).load(kernel).predict(whole)
    # Scaling assumes that masked tiles are skipped; this kernel visits them all.
    assert by_slice.us == pytest.approx(exact.us, rel=0.15 if whole.packed else 0.05)


BATCHED = Problem(3, 4, 100, 16, kv_heads=2, sink=True, lse=True)


@pytest.mark.parametrize(
    ("whole", "merge"),
    [
        pytest.param(WINDOWED, "none", marks=pytest.mark.thorough),
        (WINDOWED, "steps"),
        (BATCHED, "none"),
        pytest.param(BATCHED, "steps", marks=pytest.mark.thorough),
    ],
)
def test_one_group_of_heads_predicts_exactly_the_same_time(whole: Problem, merge: Merge) -> None:
    kernel = make(whole, None, merge)
    group = one_group(whole, kernel.source.launch)
    assert group == replace(whole, batch=1, heads=2, kv_heads=1)
    [by_group, exact] = (
        EmulatorDevice(get_target("l4"), representative_flops=flops).load(kernel) for flops in (None, WHOLE)
    )
    assert by_group.predict(whole).us == pytest.approx(exact.predict(whole).us, rel=1e-9)
    for one, other in zip(by_group.counted_steps(whole), exact.counted_steps(whole), strict=True):
        assert one.report.pipes == other.report.pipes
        assert one.report.instructions_by_line == other.report.instructions_by_line
        assert one.report.global_bytes == other.report.global_bytes
        assert one.unique_bytes == other.unique_bytes


def test_only_one_group_of_heads_runs() -> None:
    source = make(WINDOWED, None).source
    body = source.text.index("{", source.text.index("__global__ void evo_attention")) + 1
    trap = 'if (blockIdx.y >= 2 || blockIdx.z) asm volatile("trap;");'
    trapped = replace(source, text=source.text[:body] + trap + source.text[body:])
    loaded = EmulatorDevice(get_target("l4")).load(
        Kernel(trapped, Compiler(default_cache_dir()).compile(trapped, "sm_89"))
    )
    assert loaded.predict(WINDOWED).us > 0
    with pytest.raises(LaunchError):
        loaded.profile(WINDOWED)


def test_a_profile_runs_the_whole_problem() -> None:
    profile = EmulatorDevice(get_target("l4")).load(make(WINDOWED, None)).profile(WINDOWED)
    assert profile.ran == WINDOWED


def test_the_counters_of_the_latest_calls_are_kept(monkeypatch: pytest.MonkeyPatch, device: EmulatorDevice) -> None:
    monkeypatch.setattr("evoengine.costmodel.device.MAX_REPORTS", 2)
    loaded = device.load(make(PROBLEM, None))
    first, second, third = (replace(PROBLEM, seq_kv=keys) for keys in (8, 9, 10))
    for problem in (first, second, first, third):
        loaded.attention(random_inputs(problem, 1))
    assert [loaded.executed(problem) > 0 for problem in (first, second, third)] == [True, False, True]


def test_no_group_is_chosen_where_groups_differ() -> None:
    assert one_group(PACKED, make(PACKED, None).source.launch) is PACKED
    assert one_group(WINDOWED, make(WINDOWED, None, "counters").source.launch) is WINDOWED
    assert one_group(WINDOWED, LaunchSpec(("300", "1", "1"), 128, 0, ())) is WINDOWED


PERSISTENT = """
extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {
    const int columns = (p.seq_q + ROWS - 1) / ROWS;
    for (int tile = blockIdx.x; tile < columns * p.heads * p.batch; tile += gridDim.x)
        one_tile(p, dim3(tile % columns, tile / columns % p.heads, tile / columns / p.heads));
}
"""


def persistent(problem: Problem, launch: LaunchSpec, entry: str = PERSISTENT) -> Kernel:
    """Compiles a kernel whose CTAs take one tile after the other."""
    source = make(problem, None).source
    text = source.text.partition('extern "C" __global__ void evo_combine')[0].replace("blockIdx", "place")
    old = 'extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p)'
    assert old in text
    text = text.replace(old, "__device__ void one_tile(const AttentionParams& p, dim3 place)") + entry
    source = replace(source, text=text, launch=launch)
    return Kernel(source, Compiler(default_cache_dir()).compile(source, "sm_89"))


def test_ctas_of_small_problems_take_several_pieces_in_the_first_call(device: EmulatorDevice) -> None:
    """A mistake after the first piece of a CTA has an effect although there are more CTAs than pieces."""
    launch = LaunchSpec(("CTAS", "1", "1"), 128, 0, (("CTAS", 300),), few_sms=(("CTAS", 2),))
    once = PERSISTENT.replace("tile += gridDim.x", "tile += 300")
    right, wrong = (device.load(persistent(PROBLEM, launch, entry)) for entry in (PERSISTENT, once))
    seen = []
    for seed in range(4):
        inputs = random_inputs(PROBLEM, seed)
        expected = right.attention(inputs).o
        assert np.array_equal(right.attention(inputs).o, expected), "the same inputs are launched alike"
        seen.append(np.array_equal(wrong.attention(inputs).o, expected))
    assert seen == [False, True, True, True]
    thorough = EmulatorDevice(get_target("l4"), thorough=True)
    right, wrong = (thorough.load(persistent(PROBLEM, launch, entry)) for entry in (PERSISTENT, once))
    for seed in range(3):
        inputs = random_inputs(PROBLEM, seed)
        assert not np.array_equal(wrong.attention(inputs).o, right.attention(inputs).o)
    assert right.predict(PROBLEM).us == device.load(persistent(PROBLEM, launch)).predict(PROBLEM).us


def test_lanes_are_checked_in_every_call_of_a_thorough_device(device: EmulatorDevice) -> None:
    """A barrier of the warp is missing where there are many keys, and lanes read what others have written."""
    exchange = (
        "s[threadIdx.x] = threadIdx.x; if (p.seq_kv < 64) __syncwarp();\n    if (s[threadIdx.x ^ 5] > 127) return;"
    )
    entry = PERSISTENT.replace("    const int columns", f"    __shared__ int s[128]; {exchange}\n    const int columns")
    few, many = (random_inputs(Problem(1, 2, 8, 16, seq_kv=keys), 1) for keys in (8, 64))
    kernel = persistent(few.problem, LaunchSpec(("4", "1", "1"), 128, 0, ()), entry)
    plain, thorough = (one.load(kernel) for one in (device, EmulatorDevice(get_target("l4"), thorough=True)))
    plain.attention(few)
    plain.attention(many)
    thorough.attention(few)
    with pytest.raises(EmulatorError) as caught:
        thorough.attention(many)
    assert caught.value.kind is FaultKind.DATA_RACE


def test_a_persistent_grid_is_scaled_by_the_work() -> None:
    whole = Problem(2, 8, 128, 16)
    limit = whole.flops // 4
    kernel = persistent(whole, LaunchSpec(("300", "1", "1"), 128, 0, ()))
    sliced = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel)
    entire = EmulatorDevice(get_target("l4"), representative_flops=WHOLE).load(kernel)
    assert sliced.predict(whole).us == pytest.approx(entire.predict(whole).us, rel=0.05)
    [part], [full] = (one.counted_steps(whole) for one in (sliced, entire))
    assert full.report.busiest_cta > 1.15, "each of 300 CTAs takes one or two of 512 tiles"
    assert part.report.busiest_cta == pytest.approx(full.report.busiest_cta, rel=0.06)
    assert part.report.code == full.report.code


def test_rows_with_more_keys_than_average_are_scaled_down() -> None:
    whole = Problem(1, 1, 512, 16, causal=True)
    limit = whole.flops // 4
    assert representative(whole, limit) == replace(whole, seq_q=256)
    kernel = build(whole, ("(keys + 31) / 32", "(min(keys, last_key + 1) + 31) / 32"))  # masked tiles are skipped
    by_slice = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel).predict(whole)
    exact = EmulatorDevice(get_target("l4"), representative_flops=WHOLE).load(kernel).predict(whole)
    assert by_slice.us == pytest.approx(exact.us, rel=0.05)


def test_some_packed_sequences_represent_all() -> None:
    part = representative(PACKED, PACKED.flops // 4)
    assert part.lengths_q == (200, 40, 120)
    assert (part.batch, part.seq_q, part.seq_kv, part.lengths_kv) == (3, 200, 200, part.lengths_q)
    one = representative(replace(PACKED, batch=2, seq_q=3000, seq_kv=3000, lengths_q=(3000, 10), lengths_kv=()), 10**8)
    assert (one.lengths_q, one.lengths_kv) == ((512,), (3000,))


def test_the_times_of_a_calls_launches_add_up(device: EmulatorDevice) -> None:
    one, two = (device.load(make(PROBLEM, None, merge)).predict(PROBLEM) for merge in ("counters", "steps"))
    assert one.terms["launch"] == device.target.launch_overhead_us
    assert two.terms["launch"] == 2 * device.target.launch_overhead_us
    assert two.us > one.us
    # A launch takes the longer of its waves and its traffic, so the sum of the waves is a lower bound.
    assert two.us > 0.999999 * (two.terms["launch"] + two.terms["waves"])


def test_a_second_launch_that_does_not_fit_is_a_launch_error(device: EmulatorDevice) -> None:
    kernel = make(PROBLEM, None, "steps")
    needs = replace(kernel.binary.needs("evo_combine"), static_smem_bytes=200 * 1024)
    greedy = replace(kernel.binary, further=(("evo_combine", needs),))
    with pytest.raises(LaunchError, match="no CTA fits"):
        device.load(Kernel(kernel.source, greedy)).predict(PROBLEM)


def test_a_binary_without_the_second_entry_is_a_launch_error(device: EmulatorDevice) -> None:
    kernel = make(PROBLEM, None, "steps")
    other = replace(kernel.binary, ptx=kernel.binary.ptx.replace("evo_combine", "something_else"))
    with pytest.raises(LaunchError):
        device.load(Kernel(kernel.source, other))


def test_the_slice_of_a_problem_keeps_its_keys() -> None:
    whole = Problem(2, 8, 4096, 64, kv_heads=2, seq_kv=1000)
    part = representative(whole, 10**9)
    assert part == Problem(1, 4, 768, 64, kv_heads=1, seq_kv=1000)
    assert representative(part, 10**9) is part


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(5, 5), (3, 9), (9, 3), (1, 1)])
def test_keys_per_row_follow_the_mask(seq_q: int, seq_kv: int) -> None:
    seen = sum(key <= row + seq_kv - seq_q for row in range(seq_q) for key in range(seq_kv))
    assert keys_per_row(Problem(2, 3, seq_q, 16, seq_kv=seq_kv, causal=True)) == pytest.approx(seen / seq_q)
    assert keys_per_row(Problem(2, 3, seq_q, 16, seq_kv=seq_kv)) == seq_kv
