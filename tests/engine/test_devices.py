"""``--device``: the chosen devices and the refused ones. The GPUs are records; nothing runs on them."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest

from evoengine.cli.output.run_summary import effort_lines
from evoengine.device.cuda.driver import uuid_text
from evoengine.device.workers.gpu_binding import GpuBinding
from evoengine.engine.devices import choice, environment
from evoengine.engine.devices.choice import DeviceChoice, choose_device
from evoengine.engine.devices.facts import known_gpu
from evoengine.engine.devices.gpus import Gpu, find_gpu, find_gpus
from evoengine.engine.options.search import SearchOptions
from evoengine.errors import MissingDependencyError, UsageError
from evoengine.model import GpuReading, Problem, Telemetry
from evoengine.search.landscape_facts import describe_clocks
from evoengine.search.measurement_stats import MeasurementStats
from tests.cli.calling import Evo
from tests.cli.test_measurements import result, row

H200 = Gpu("NVIDIA H200", 90, "13.0", 150_000_000_000, "0000:1B:00.0", 0, "GPU-a")
SECOND = replace(H200, pci_bus_id="0000:2C:00.0", ordinal=1, uuid="GPU-b")
L4 = Gpu("NVIDIA L4", 89, "13.0", 24_000_000_000, "0000:3D:00.0", 2, "GPU-c")


def chosen(device: str) -> DeviceChoice:
    return choose_device(SearchOptions(Problem(1, 1, 16, 8), device=device))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two GPUs of one type and one of another."""
    monkeypatch.setattr(choice, "find_gpus", lambda: (H200, SECOND, L4))


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize("text", ["cuda:0,1", "cuda:0,cuda:1", "cuda: 0, 1"])
def test_each_worker_sees_one_gpu(text: str) -> None:
    choice = chosen(text)
    assert choice.bindings == (
        GpuBinding("GPU 0 (0000:1B:00.0)", {"CUDA_VISIBLE_DEVICES": "GPU-a"}),
        GpuBinding("GPU 1 (0000:2C:00.0)", {"CUDA_VISIBLE_DEVICES": "GPU-b"}),
    )
    assert (choice.spec.kind, choice.gpu) == ("cuda", H200)
    assert (chosen("cuda:2").gpu, len(chosen("cuda:1").bindings)) == (L4, 1)


def test_all_means_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_gpus", lambda: (H200, SECOND))
    assert chosen("cuda:all") == chosen("cuda:0,1")


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("cuda:all", r"GPU 0 is NVIDIA H200 \(sm_90, 140 GiB\) and GPU 2 is NVIDIA L4 \(sm_89, 22 GiB\)"),
        ("cuda:1,2", "GPU 1 is NVIDIA H200 .* and GPU 2 is NVIDIA L4"),
        ("cuda:3", "--device cuda:3: .*0 to 2"),
        ("cuda:0,0", "--device cuda:0,0: "),
        ("cuda:", "as in cuda:0,1, or cuda:all"),
        ("cuda:-1", "--device cuda:-1"),
        ("cuda:one", "--device cuda:one"),
        ("emulator:0,x", "as in emulator:0,1, or emulator:all"),
        ("emulator:9999", "0 to 255"),
        ("auto:0", "unknown device 'auto:0': .*emulator or replay:FILE"),
        ("replay", "unknown device 'replay'"),
        ("cpu", "unknown device 'cpu'"),
    ],
)
def test_invalid_devices_are_refused_with_the_reason(text: str, names: str) -> None:
    with pytest.raises(UsageError, match=names):
        chosen(text)


def test_gpus_of_one_name_and_different_memory_are_of_different_types(monkeypatch: pytest.MonkeyPatch) -> None:
    a100 = replace(H200, name="NVIDIA A100-PCIE", arch=80)
    small, large = replace(a100, memory_bytes=40 * 2**30), replace(a100, memory_bytes=80 * 2**30, ordinal=1)
    monkeypatch.setattr(choice, "find_gpus", lambda: (small, large))
    with pytest.raises(UsageError, match=r"40 GiB.* and GPU 1 .*80 GiB"):
        chosen("cuda:all")


def test_the_first_gpu_or_none_is_chosen_without_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "find_gpus", lambda: (H200, SECOND))
    assert chosen("cuda") == DeviceChoice(chosen("cuda").spec, "", (GpuBinding(),), None)
    assert len(chosen("emulator").bindings) == len(chosen("emulator:all").bindings) == len(os.sched_getaffinity(0))
    assert chosen("emulator:0,3").bindings == (GpuBinding("emulated device 0"), GpuBinding("emulated device 3"))


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:all"])
def test_without_a_gpu_a_search_names_what_doctor_names(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    for module in (choice, environment):
        monkeypatch.setattr(module, "find_gpus", tuple)
    (gpu,) = (probe for probe in environment.diagnose().probes if probe.name == "GPU")
    assert not gpu.ok
    with pytest.raises(MissingDependencyError) as refused:
        chosen(device)
    assert str(refused.value) == f"{gpu.detail}: {gpu.fix}"


def test_a_uuid_has_the_format_of_the_driver() -> None:
    raw = bytes.fromhex("b3f1a2c49d0e4c6f8a1b2c3d4e5f6071")
    assert uuid_text(raw, "NVIDIA H200") == "GPU-b3f1a2c4-9d0e-4c6f-8a1b-2c3d4e5f6071"
    assert uuid_text(raw, "NVIDIA H200 MIG 1g.18gb").startswith("MIG-b3f1a2c4-")


@pytest.mark.gpu
def test_gpus_are_found_through_the_driver() -> None:
    gpus = find_gpus()
    assert gpus[0] == find_gpu()
    assert [gpu.ordinal for gpu in gpus] == list(range(len(gpus)))
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    known = known_gpu(chosen("cuda").spec, gpus[-1])
    assert known is None or known[0].uuid == gpus[-1].uuid


def test_an_invalid_device_is_one_line(evo: Evo) -> None:
    done = evo("search", "--device", "emulator:0,0", "--budget", "1")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--device emulator:0,0: " in done.err


def test_doctor_names_the_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_gpus", lambda: (H200, SECOND, L4))
    (probe,) = (probe for probe in environment.diagnose().probes if probe.name == "GPU")
    assert re.search("NVIDIA H200, sm_90, .*13.0; cuda:1 .*NVIDIA H200; cuda:2 .*NVIDIA L4", probe.detail)


def test_measurements_are_counted_by_gpu() -> None:
    one = row(1, 5.0, None, Telemetry(GpuReading(), GpuReading(), gpu="GPU-a"))
    other = row(2, 5.0, None, Telemetry(GpuReading(), GpuReading(), missing="no NVML here", gpu="GPU-b"))
    unknown = row(3, 5.0, None, Telemetry(GpuReading(), GpuReading()))
    tally = MeasurementStats()
    for evaluation in (one, other, one, unknown):
        tally = tally.with_one(evaluation)
    assert (dict(tally.by_gpu), tally.measured) == ({"GPU-a": 2, "GPU-b": 1}, 4)
    assert "2 GPUs" in describe_clocks([one, other])
    assert describe_clocks([one, unknown]) == ""


def test_the_summary_counts_candidates_by_gpu() -> None:
    lost = "GPU 1 (0000:2C:00.0) is quarantined: device worker 1 failed in 4 fresh processes: no driver"
    tally = MeasurementStats(90, 1500, by_gpu={"GPU-b": 30, "GPU-a": 60})
    lines = list(effort_lines(result(devices=2, lost=(lost,), measurements=tally)))
    assert re.search("^load +2 device workers .*30%", lines[1])
    assert lines[2] == f"lost      {lost}"
    assert any(re.search("^GPUs +60 .*GPU-a, 30 .*GPU-b$", line) for line in lines)
    assert not any(line.startswith("GPUs") for line in effort_lines(result(measurements=MeasurementStats(90, 1500))))
