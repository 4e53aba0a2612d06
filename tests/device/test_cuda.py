"""The CUDA device on a GPU: the contract, timing, faults that lose the context, PTX of an older architecture."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from evoengine.bench.benchmark import Benchmark
from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.device.contract import Broken, DeviceContract, KernelMaker, Merge, assert_attention, random_inputs
from evoengine.device.cuda.driver import persisting_l2_bytes
from evoengine.device.cuda.resident_inputs import RESIDENT_BYTES
from evoengine.device.protocols import Device, StopwatchOptions
from evoengine.device.workers.pool import WorkerPool
from evoengine.errors import LaunchError, UsageError
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.memory_layout import POISON_BITS, AxisOrder
from evoengine.kernel.records import Kernel
from evoengine.model import Problem, Status
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.results import Candidate
from evoengine.search.candidate.setup import SetupRequest, prepare
from tests.device.makers import make
from tests.device.scalar_kernel import source_of

if TYPE_CHECKING:
    from evoengine.device.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu

PROBLEM = Problem(1, 4, 128, 64)


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    from evoengine.device.cuda.device import CudaDevice

    opened = CudaDevice()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def make_kernel(device: Device) -> KernelMaker:
    def maker(problem: Problem, broken: Broken | None, merge: Merge = "none") -> Kernel:
        return make(problem, broken, merge, device.info.arch)

    return maker


def untrusted(kernel: Kernel) -> Kernel:
    """The kernel as one whose source is generated, and which the emulator has run."""
    return replace(kernel, source=replace(kernel.source, untrusted=True), admitted=True)


class TestCudaDevice(DeviceContract):
    """The shipped contract; the fixtures are the module's."""


def test_an_older_architecture_is_loaded_as_ptx() -> None:
    from evoengine.device.cuda.device import CudaDevice

    device = CudaDevice("sm_80")
    assert device.info.arch == "sm_80"
    assert_attention(device.load(make(PROBLEM, None, arch="sm_80")), random_inputs(PROBLEM, 1))
    device.close()


def test_an_architecture_of_the_future_is_a_usage_error() -> None:
    from evoengine.device.cuda.device import CudaDevice

    with pytest.raises(UsageError, match="sm_999"):
        CudaDevice("sm_999")


def test_no_part_of_the_l2_cache_stays_persisting_during_timing(device: CudaDevice, make_kernel: KernelMaker) -> None:
    from cuda.bindings import driver

    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    loaded = device.load(make_kernel(PROBLEM, None))
    for options in (StopwatchOptions(2), StopwatchOptions(2, eager=True)):
        assert int(driver.cuCtxSetLimit(limit, 1 << 20)[0]) == 0
        assert persisting_l2_bytes() > 0
        loaded.stopwatch(random_inputs(PROBLEM, 1), options).close()
        assert persisting_l2_bytes() == 0


def test_a_damaged_binary_is_a_launch_error(device: CudaDevice, make_kernel: KernelMaker) -> None:
    kernel = make_kernel(PROBLEM, None)
    with pytest.raises(LaunchError, match="cannot load"):
        device.load(Kernel(kernel.source, replace(kernel.binary, cubin=b"neither ELF nor PTX")))
    assert device.healthy


def test_too_much_shared_memory_is_a_launch_error(device: CudaDevice, make_kernel: KernelMaker) -> None:
    kernel = make_kernel(PROBLEM, None)
    greedy = replace(kernel.source, launch=replace(kernel.source.launch, smem_bytes=1 << 20))
    with pytest.raises(LaunchError):
        device.load(Kernel(greedy, kernel.binary)).attention(random_inputs(PROBLEM, 1))
    assert device.healthy


def test_too_much_shared_memory_in_a_second_step_is_a_launch_error(
    device: CudaDevice, make_kernel: KernelMaker
) -> None:
    kernel = make_kernel(PROBLEM, None, "steps")
    launch = kernel.source.launch
    greedy = replace(launch, then=(replace(launch.then[0], smem_bytes=1 << 20),))
    with pytest.raises(LaunchError):
        device.load(Kernel(replace(kernel.source, launch=greedy), kernel.binary)).attention(random_inputs(PROBLEM, 1))
    assert device.healthy


def test_a_generated_kernel_must_be_admitted(device: CudaDevice, make_kernel: KernelMaker) -> None:
    kernel = untrusted(make_kernel(PROBLEM, None))
    with pytest.raises(LaunchError, match="emulator"):
        device.load(replace(kernel, admitted=False))
    assert_attention(device.load(kernel), random_inputs(PROBLEM, 1))


@pytest.fixture(scope="module", params=[RESIDENT_BYTES, 1], ids=["small", "large"])
def varying(request: pytest.FixtureRequest) -> Iterator[CudaDevice]:
    """A device that varies these tensors on the host, and one that does it on the GPU, as it does with large ones."""
    from evoengine.device.cuda.device import CudaDevice

    opened = CudaDevice(resident_bytes=request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("merge", ["none", "steps", "counters"])
@pytest.mark.parametrize("order", ["bhsd", "bshd"])
def test_every_timed_call_of_a_generated_kernel_has_inputs_of_its_own(
    varying: CudaDevice, make_kernel: KernelMaker, merge: Merge, cold: bool, order: AxisOrder
) -> None:
    device = varying
    problem = replace(PROBLEM, batch=2, kv_heads=2, window_left=40, sink=True, lse=True)
    kernel, inputs = make_kernel(problem, None, merge), random_inputs(problem, 1, order)
    options = StopwatchOptions(calls=5, cold=cold)
    ordinary = device.load(kernel).stopwatch(inputs, options)
    fresh = device.load(untrusted(kernel)).stopwatch(inputs, options)
    assert fresh.launched == ordinary.launched
    assert ordinary.expected is None
    assert fresh.expected is not None
    assert (fresh.expected.o == device.load(kernel).attention(inputs).o).all()
    assert all(watch.sample_us() > 0 for watch in (fresh, ordinary, fresh))
    others = random_inputs(problem, 2, order)
    found, expected = fresh.replay(others), device.load(kernel).attention(others)
    assert (found.o == expected.o).all()
    assert fresh.sample_us() > 0
    fresh.close()
    ordinary.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("return", "inputs of its own"),
        ("((u16*)q)[0] ^= 1", "changed its input Q"),
        ("((u16*)q)[-1 - (int)at.row * HEAD_DIM] = 7", "Q"),
        ("((u16*)p.sink)[0] ^= 1", "changed its input SINK"),
    ],
    ids=["skips", "writes an input", "writes beside an input", "writes the sink"],
)
def test_a_kernel_that_changes_with_later_calls_is_found_while_it_is_timed(
    varying: CudaDevice, fault: str, message: str
) -> None:
    """It counts its calls in a variable, which the screen would refuse."""
    problem = replace(PROBLEM, heads=1, kv_heads=1, sink=True)
    late = f"    static unsigned calls;\n    if (atomicAdd(&calls, 1u) > 40 * gridDim.x * blockDim.x) {fault};\n"
    source = source_of(problem, ("    const int tiles", f"{late}    const int tiles"))
    kernel = untrusted(Kernel(source, Compiler(None).compile(source, varying.info.arch)))
    watch = varying.load(kernel).stopwatch(random_inputs(problem, 1), StopwatchOptions(calls=5))
    with pytest.raises(LaunchError, match=message):
        sample_interleaved([watch], 100)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("merge", ["steps", "counters"])
def test_calls_with_workspace_are_timed_and_stay_correct(
    device: CudaDevice, make_kernel: KernelMaker, merge: Merge, cold: bool
) -> None:
    problem = replace(PROBLEM, window_left=40, sink=True, lse=True)
    kernel = device.load(make_kernel(problem, None, merge))
    inputs = random_inputs(problem, 1)
    watch = kernel.stopwatch(inputs, StopwatchOptions(calls=5, cold=cold))
    assert all(watch.sample_us() > 0 for _ in range(5))
    assert_attention(kernel, inputs)
    watch.close()


@pytest.mark.parametrize("cold", [False, True])
def test_samples_are_positive_steady_and_longer_for_more_work(
    device: CudaDevice, make_kernel: KernelMaker, cold: bool
) -> None:
    kernel = device.load(make_kernel(PROBLEM, None))
    options = StopwatchOptions(calls=20, cold=cold)
    small = kernel.stopwatch(random_inputs(PROBLEM, 1), options)
    large = kernel.stopwatch(random_inputs(replace(PROBLEM, seq_kv=2048), 1), options)
    few, many = sample_interleaved([small, large], samples=30, warmup=5)
    assert 1 < statistics.median(few) < 0.5 * statistics.median(many)
    small.close()
    small.close()
    large.close()


def test_a_sample_of_a_kernel_that_takes_very_long_has_fewer_calls(
    device: CudaDevice, make_kernel: KernelMaker
) -> None:
    kernel = device.load(make_kernel(PROBLEM, None))
    quick = kernel.stopwatch(random_inputs(PROBLEM, 1), StopwatchOptions(calls=20))
    slow = kernel.stopwatch(random_inputs(replace(PROBLEM, seq_kv=2**18), 1), StopwatchOptions(calls=20))
    assert quick.calls == len(quick.launched) == 20
    assert slow.calls == len(slow.launched) < 20
    assert slow.sample_us() > 250
    quick.close()
    slow.close()


def test_a_benchmark_includes_the_fastest_sdpa_backend(device: CudaDevice, make_kernel: KernelMaker) -> None:
    pytest.importorskip("torch")
    benchmark = Benchmark(PROBLEM, random_inputs(PROBLEM, 1), plan_for(PROBLEM))
    kernel = device.load(make_kernel(PROBLEM, None))
    timing = benchmark.time(kernel)
    assert 10 <= len(timing.samples_us) <= 30, "a kernel of 30 us gets fewer samples than one of 5 us"
    assert timing.low_us <= timing.median_us <= timing.high_us
    assert timing.baseline.startswith("sdpa-")
    assert timing.baseline_us is not None
    assert not timing.predicted
    assert not benchmark.duel(kernel, kernel, 0.03).accepted
    rows = {row.backend: row for row in benchmark.baselines()}
    assert rows[timing.baseline].median_us is not None
    assert all(row.median_us is not None or row.reason for row in rows.values())
    benchmark.close()


def test_an_illegal_address_costs_a_worker_and_nothing_else(make_kernel: KernelMaker) -> None:
    setup = prepare(SetupRequest(PROBLEM, DeviceSpec("cuda")))
    with WorkerPool(partial(Examiner, setup), 1, 120.0) as pool:
        assert pool.submit("examine", Candidate((make_kernel(PROBLEM, None),))).result().status is Status.OK
        broken = pool.submit("examine", Candidate((make_kernel(PROBLEM, "reads-far-outside"),))).result()
        assert broken.status is Status.LAUNCH_FAILED
        assert "\n" not in broken.reason
        assert pool.submit("examine", Candidate((make_kernel(PROBLEM, None),))).result().status is Status.OK


@pytest.mark.parametrize("cold", [False, True])
def test_a_replay_computes_other_inputs_as_a_call_does(
    device: CudaDevice, make_kernel: KernelMaker, *, cold: bool
) -> None:
    kernel = device.load(make_kernel(PROBLEM, None))
    watch = kernel.stopwatch(random_inputs(PROBLEM, 1), StopwatchOptions(calls=3, cold=cold))
    watch.sample_us()
    for seed in (2, 3):
        inputs = random_inputs(PROBLEM, seed)
        assert (watch.replay(inputs).o == kernel.attention(inputs).o).all()
    with pytest.raises(ValueError, match="does not fit"):
        watch.replay(random_inputs(replace(PROBLEM, seq_q=64), 4))
    watch.close()


def test_a_replay_is_poisoned_and_checked(device: CudaDevice, make_kernel: KernelMaker) -> None:
    inputs, options = random_inputs(PROBLEM, 1), StopwatchOptions(calls=2)
    unwritten = device.load(make_kernel(PROBLEM, "unwritten-row")).stopwatch(inputs, options)
    assert (unwritten.replay(inputs).o[:, :, -1] == POISON_BITS).all()
    unwritten.close()
    outside = device.load(make_kernel(PROBLEM, "writes-past-the-end")).stopwatch(inputs, options)
    with pytest.raises(LaunchError, match="after O"):
        outside.replay(inputs)
    outside.close()
