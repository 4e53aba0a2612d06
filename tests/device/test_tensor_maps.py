"""Kernels with tensor maps on devices: on the emulator, in the sanitizer's launcher, and on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.contract import GAPPED, assert_attention, random_inputs
from evoengine.device.protocols import StopwatchOptions
from evoengine.device.tools.launcher import LAUNCHED, LaunchJob
from evoengine.device.workers.wire import decode, encode
from evoengine.errors import LaunchError
from evoengine.kernel.memory_layout import AxisOrder, CallLayout
from evoengine.kernel.records import Kernel
from evoengine.model import DType, Problem
from tests.tma_rows.family import TARGET, kernel_of

if TYPE_CHECKING:
    from evoengine.device.cuda.device import CudaDevice

PROBLEM = Problem(2, 2, 37, 64, kv_heads=1, seq_kv=45)


def test_the_launchers_job_has_the_maps() -> None:
    kernel = kernel_of(PROBLEM)
    job = decode(LaunchJob, encode(LaunchJob.of(kernel, random_inputs(PROBLEM, 1))))
    assert job.maps == kernel.source.launch.maps
    assert len(job.maps) == 3


SINGLE = replace(PROBLEM, batch=1, heads=1, kv_heads=1, seq_q=1, seq_kv=1)
"""Every axis but head_dim has the size 1, so no stride is used."""


WIDE = replace(PROBLEM, batch=1, heads=2, kv_heads=1, head_dim=128, dtype=DType.BF16, causal=True)


@pytest.mark.parametrize(
    ("problem", "layouts"),
    [
        (PROBLEM, ("bshd", GAPPED)),
        pytest.param(PROBLEM, ("bhsd",), marks=pytest.mark.thorough),
        pytest.param(WIDE, (GAPPED,), marks=pytest.mark.thorough),
        pytest.param(SINGLE, ("bhsd", GAPPED), marks=pytest.mark.thorough),
    ],
)
def test_the_emulator_computes_attention(problem: Problem, layouts: tuple[AxisOrder | CallLayout, ...]) -> None:
    """One binary, every layout; rows outside the tensors are neither read nor written."""
    loaded = EmulatorDevice(TARGET).load(kernel_of(replace(problem, seq_q=96)))
    for layout in layouts:
        assert_attention(loaded, random_inputs(problem, 1, layout))


CHANGES = (
    pytest.param(0, {"swizzle_bytes": 128}, marks=pytest.mark.thorough),
    (1, {"swizzle_bytes": 64, "box_columns": 32}),
    (1, {"tensor": "q"}),
    pytest.param(2, {"box_rows": 32}, marks=pytest.mark.thorough),
)


@pytest.mark.parametrize(("number", "change"), CHANGES)
def test_other_maps_than_the_kernels_are_wrong(number: int, change: dict[str, Any]) -> None:
    """The gate would reject a launcher that passes maps in another order, or with another box."""
    problem = replace(PROBLEM, batch=1)
    kernel = kernel_of(problem)
    maps = list(kernel.source.launch.maps)
    maps[number] = replace(maps[number], **change)
    source = replace(kernel.source, launch=replace(kernel.source.launch, maps=tuple(maps)))
    loaded = EmulatorDevice(TARGET).load(Kernel(source, kernel.binary))
    with pytest.raises((AssertionError, LaunchError)):
        assert_attention(loaded, random_inputs(problem, 1))


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    from evoengine.device.cuda.device import CudaDevice

    opened = CudaDevice()
    yield opened
    opened.close()


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", DType)
def test_a_gpu_computes_attention(device: CudaDevice, dtype: DType, head_dim: int) -> None:
    """Every layout, other shapes than at compile time, and sizes of 1."""
    problem = replace(PROBLEM, dtype=dtype, head_dim=head_dim, causal=True)
    loaded = device.load(kernel_of(problem))
    single = replace(SINGLE, dtype=dtype, head_dim=head_dim, causal=True)
    for one in (problem, single, replace(problem, seq_q=130)):
        for layout in ("bhsd", "bshd", GAPPED):
            assert_attention(loaded, random_inputs(one, 1, layout))
    loaded.close()


@pytest.mark.gpu
@pytest.mark.parametrize("eager", [False, True])
def test_timed_calls_on_a_gpu_stay_correct(device: CudaDevice, eager: bool) -> None:
    loaded, inputs = device.load(kernel_of(PROBLEM)), random_inputs(PROBLEM, 1)
    watch = loaded.stopwatch(inputs, StopwatchOptions(5, eager=eager))
    assert watch.sample_us() > 0
    other = random_inputs(PROBLEM, 2)
    assert (watch.replay(other).o == loaded.attention(other).o).all()
    assert watch.launched == ("evo_attention",) * 5
    watch.close()


@pytest.mark.gpu
def test_the_sanitizers_launcher_runs_it_on_a_gpu(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.write_bytes(encode(LaunchJob.of(kernel_of(PROBLEM), random_inputs(PROBLEM, 1, GAPPED))))
    command = [sys.executable, "-m", "evoengine.device.tools.launcher"]
    done = subprocess.run(command, input=f"{job}\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, LAUNCHED), done.stderr
