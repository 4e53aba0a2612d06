"""Racing, telemetry, eager launches and energy on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from evoengine.bench.baseline import open_baseline
from evoengine.bench.benchmark import Benchmark
from evoengine.bench.gpu_monitor import Monitor, open_monitor
from evoengine.bench.racing import MIN_INTERVAL_SAMPLES
from evoengine.bench.timer import plan_for, sample_interleaved
from evoengine.device.contract import random_inputs
from evoengine.device.protocols import StopwatchOptions
from evoengine.kernel.memory_layout import POISON_BITS
from evoengine.model import Problem, Status
from evoengine.search.candidate.device_spec import DeviceSpec
from evoengine.search.candidate.examiner import Examiner
from evoengine.search.candidate.results import Candidate
from evoengine.search.candidate.setup import SetupRequest, prepare
from tests.device.makers import make

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
def monitor(device: CudaDevice) -> Iterator[Monitor]:
    pytest.importorskip("pynvml")
    opened = open_monitor(device.info.pci_bus_id)
    if opened.missing:
        pytest.skip(opened.missing)
    yield opened
    opened.close()


def test_nvml_reads_the_gpu_that_cuda_uses(device: CudaDevice, monitor: Monitor) -> None:
    kernel = device.load(make(PROBLEM, None, arch=device.info.arch))
    watch = kernel.stopwatch(random_inputs(PROBLEM, 1), StopwatchOptions())
    idle = monitor.read()
    for _ in range(50):
        watch.spin(100)
    busy = monitor.read()
    assert idle.sm_mhz is not None
    assert busy.sm_mhz is not None
    assert busy.sm_mhz >= 200
    assert busy.temperature_c is None or 5 < busy.temperature_c < 120
    assert busy.power_w is None or 5 < busy.power_w < 2000
    watch.close()


def test_a_measurement_has_telemetry(device: CudaDevice, monitor: Monitor) -> None:
    benchmark = Benchmark(PROBLEM, random_inputs(PROBLEM, 1), plan_for(PROBLEM), open_monitor(device.info.pci_bus_id))
    kernel = device.load(make(PROBLEM, None, arch=device.info.arch))
    telemetry = benchmark.measure(kernel, None).timing.telemetry
    assert telemetry is not None
    assert telemetry.missing == ""
    assert telemetry.before.sm_mhz
    assert telemetry.after.sm_mhz
    benchmark.close()


def test_energy_is_that_of_a_plausible_power(device: CudaDevice, monitor: Monitor) -> None:
    if monitor.energy_mj() is None:
        pytest.skip("this GPU does not count energy")
    benchmark = Benchmark(PROBLEM, random_inputs(PROBLEM, 1), plan_for(PROBLEM), open_monitor(device.info.pci_bus_id))
    kernel = device.load(make(PROBLEM, None, arch=device.info.arch))
    timing = benchmark.measure(kernel, None).timing
    energy_uj = benchmark.energy_uj(kernel)
    assert energy_uj is not None
    assert 5 < energy_uj / timing.median_us < 2000  # watts
    benchmark.close()


def test_a_slow_kernel_is_dropped_beside_the_baseline(device: CudaDevice) -> None:
    """The kernel races against a tenth of its own time, and against its own time."""
    benchmark = Benchmark(PROBLEM, random_inputs(PROBLEM, 1), plan_for(PROBLEM))
    kernel = device.load(make(PROBLEM, None, arch=device.info.arch))
    whole = benchmark.measure(kernel, None)
    assert whole.drop is None
    dropped = benchmark.measure(kernel, whole.timing.median_us / 10)
    assert dropped.drop is not None
    assert MIN_INTERVAL_SAMPLES <= len(dropped.timing.samples_us) < 30
    assert dropped.drop.slower > 5
    assert benchmark.measure(kernel, whole.timing.median_us).drop is None
    benchmark.close()


def test_the_examiner_prunes_on_a_gpu_and_not_without_racing(device: CudaDevice) -> None:
    candidate = Candidate((make(PROBLEM, None, arch=device.info.arch),))
    examiner = Examiner(prepare(SetupRequest(PROBLEM, DeviceSpec("cuda"))))
    whole = examiner.examine(candidate)
    assert whole.status is Status.OK
    assert whole.timing is not None
    pruned = examiner.examine(candidate, whole.timing.median_us / 10)
    assert pruned.status is Status.PRUNED
    assert "slower than the best so far" in pruned.reason
    assert pruned.timing is not None
    examiner.close()
    thorough = Examiner(prepare(SetupRequest(PROBLEM, DeviceSpec("cuda"), racing=False)))
    assert thorough.examine(candidate, whole.timing.median_us / 10).status is Status.OK
    thorough.close()


@pytest.mark.parametrize("cold", [False, True])
def test_eager_calls_are_timed_and_compute_the_same(device: CudaDevice, *, cold: bool) -> None:
    kernel = device.load(make(PROBLEM, None, arch=device.info.arch))
    eager = kernel.stopwatch(random_inputs(PROBLEM, 1), StopwatchOptions(5, cold, eager=True))
    graph = kernel.stopwatch(random_inputs(PROBLEM, 1), StopwatchOptions(5, cold))
    ours, theirs = sample_interleaved([eager, graph], samples=20, warmup=5)
    assert min(*ours, *theirs) > 0
    other = random_inputs(PROBLEM, 2)
    assert (eager.replay(other).o == kernel.attention(other).o).all()
    eager.spin(2)
    eager.close()
    eager.close()
    graph.close()


def test_an_eager_replay_is_poisoned(device: CudaDevice) -> None:
    kernel = device.load(make(PROBLEM, "unwritten-row", arch=device.info.arch))
    watch = kernel.stopwatch(random_inputs(PROBLEM, 1), StopwatchOptions(2, eager=True))
    assert (watch.replay(random_inputs(PROBLEM, 2)).o[:, :, -1] == POISON_BITS).all()
    watch.close()


@pytest.mark.parametrize("cold", [False, True])
def test_an_eager_benchmark_has_an_eager_baseline(device: CudaDevice, *, cold: bool) -> None:
    pytest.importorskip("torch")
    plan = plan_for(PROBLEM, cold=cold, eager=True)
    benchmark = Benchmark(PROBLEM, random_inputs(PROBLEM, 1), replace(plan, spin_up_s=0.05))
    timing = benchmark.time(device.load(make(PROBLEM, None, arch=device.info.arch)))
    assert timing.method == f"eager-{'cold' if cold else 'warm'}"
    assert timing.baseline.startswith("sdpa-")
    assert timing.baseline_us is not None
    assert timing.baseline_us > 0
    benchmark.close()


@pytest.mark.parametrize(
    ("problem", "calls"), [(PROBLEM, range(20, 21)), (Problem(4, 16, 4096, 64, window_left=64), range(1, 5))]
)
def test_a_slow_baseline_has_few_calls_in_a_sample(device: CudaDevice, problem: Problem, calls: range) -> None:
    pytest.importorskip("torch")
    inputs = random_inputs(problem, 1)
    first = open_baseline(inputs, StopwatchOptions(20))
    assert first is not None
    first.close()
    assert first.calls in calls
    timed = {row.backend: row.median_us for row in first.rows if row.median_us is not None}
    assert min(timed, key=timed.__getitem__) == first.name
    again = open_baseline(inputs, StopwatchOptions(20), first.name)
    assert again is not None
    again.close()
    assert again.name == first.name
    assert again.calls in calls
