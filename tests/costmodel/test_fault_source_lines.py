"""Faults name their source line, whether or not the binary has line information."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.costmodel.device import EmulatedKernel, EmulatorDevice
from evoengine.device.contract import Broken, Merge, random_inputs
from evoengine.errors import LaunchError
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Kernel
from evoengine.model import Problem
from evoengine.target import get_target
from tests.device.makers import make
from tests.device.scalar_kernel import source_of

PROBLEM = Problem(1, 2, 20, 16, seq_kv=40)
ARCH = "sm_89"
GUARD = "    if (row >= queries) return;"


@pytest.fixture
def device() -> EmulatorDevice:
    return EmulatorDevice(get_target("l4"))


def both(problem: Problem, change: tuple[str, str]) -> tuple[Kernel, Kernel]:
    """Builds the plain kernel with one change, with and without line information."""
    source = source_of(problem, change)
    with_lines, without = (
        Kernel(source, Compiler(default_cache_dir(), line_info=lines).compile(source, ARCH)) for lines in (True, False)
    )
    assert with_lines.binary.code_hash == without.binary.code_hash
    return with_lines, without


def without_lines(kernel: Kernel) -> Kernel:
    return replace(
        kernel, binary=Compiler(default_cache_dir(), line_info=False).compile(kernel.source, kernel.binary.arch)
    )


def fault_of(loaded: EmulatedKernel, problem: Problem = PROBLEM) -> str:
    with pytest.raises(LaunchError) as caught:
        loaded.attention(random_inputs(problem, 1))
    return str(caught.value)


@pytest.mark.parametrize(
    ("broken", "merge"),
    [
        ("writes-past-the-end", "none"),
        ("reads-far-outside", "none"),
        ("reads-what-nobody-left", "steps"),
        ("writes-past-the-workspace", "counters"),
    ],
)
@pytest.mark.every(3)
def test_a_fault_has_the_same_message(device: EmulatorDevice, broken: Broken, merge: Merge) -> None:
    kernel = make(PROBLEM, broken, merge)
    told = fault_of(device.load(kernel))
    assert "source /" in told
    assert fault_of(device.load(without_lines(kernel))) == told


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("__shared__ float s[128]; s[threadIdx.x] = 0.f; p.o[0] = s[threadIdx.x ^ 32];", "data_race"),
        ('if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");', "barrier_deadlock"),
        ("if (lane < 7) __shfl_sync(~0u, lane, 0);", "warp_divergence"),
        ('asm volatile("pmevent 1;");', "unsupported_instruction"),
        ("if (row == 1) __trap();", "trap"),
    ],
)
@pytest.mark.every(2)
def test_every_kind_of_fault_has_the_same_message(device: EmulatorDevice, statement: str, kind: str) -> None:
    with_lines, without = both(PROBLEM, (GUARD, f"    {statement}\n{GUARD}"))
    told = fault_of(device.load(with_lines))
    assert kind in told
    assert "source /" in told
    assert fault_of(device.load(without)) == told


def test_a_fault_that_depends_on_a_module_variable_has_the_same_message(device: EmulatorDevice) -> None:
    """The second head traps, because the first one has counted."""
    declared = 'extern "C" __global__ void evo_attention('
    source = source_of(
        PROBLEM, (GUARD, f"    if (row == 0 && lane == 0 && atomicAdd(&calls, 1u) == 1) __trap();\n{GUARD}")
    )
    source = replace(source, text=source.text.replace(declared, f"__device__ unsigned calls;\n{declared}"))
    told = []
    for lines in (True, False):
        loaded = device.load(Kernel(source, Compiler(default_cache_dir(), line_info=lines).compile(source, ARCH)))
        told.append(fault_of(loaded))
    assert "trap" in told[0]
    assert "source /" in told[0]
    assert told[1] == told[0]


def test_a_fault_has_no_line_if_the_source_does_not_compile(device: EmulatorDevice) -> None:
    kernel = without_lines(make(PROBLEM, "reads-far-outside"))
    lost = replace(kernel, source=replace(kernel.source, text="no CUDA"))
    told = fault_of(device.load(lost))
    assert "out_of_bounds" in told
    assert "source /" not in told


def test_a_fault_is_unchanged_if_the_rerun_faults_differently(device: EmulatorDevice) -> None:
    kernel = without_lines(make(PROBLEM, "reads-far-outside"))
    other = replace(kernel, source=make(PROBLEM, "writes-past-the-end").source)
    told = fault_of(device.load(other))
    assert "out_of_bounds" in told
    assert "source /" not in told


def test_unreadable_ptx_is_a_launch_error(device: EmulatorDevice) -> None:
    kernel = without_lines(make(PROBLEM, None))
    cut = replace(kernel, binary=replace(kernel.binary, ptx=kernel.binary.ptx.replace("evo_attention", "something")))
    with pytest.raises(LaunchError, match="no entry 'evo_attention'"):
        device.load(cut)
