"""The emulator device keeps the contract, finds faults at their instruction, and predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evoengine.device.contract import DeviceContract, KernelMaker, assert_launch_error, random_inputs
from evoengine.emulator.device import EmulatorDevice, keys_per_row, representative
from evoengine.errors import LaunchError
from evoengine.kernel.artifact import Kernel
from evoengine.model import Problem
from evoengine.target import get_target
from tests.device.makers import make
from tests.device.scalar_kernel import FAULTS, build


class TestEmulatorDevice(DeviceContract):
    """The shipped contract."""

    @pytest.fixture
    def device(self) -> EmulatorDevice:
        return EmulatorDevice(get_target("l4"))

    @pytest.fixture
    def make_kernel(self) -> KernelMaker:
        return make


PROBLEM = Problem(1, 2, 20, 16, seq_kv=40)


@pytest.fixture
def device() -> EmulatorDevice:
    return EmulatorDevice(get_target("l4"))


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_a_launch_error(device: EmulatorDevice, fault: str) -> None:
    assert_launch_error(device.load(build(PROBLEM, FAULTS[fault])), random_inputs(PROBLEM, 1))
    assert device.healthy


def test_a_binary_without_the_kernel_is_a_launch_error(device: EmulatorDevice) -> None:
    kernel = make(PROBLEM, None)
    other = replace(kernel.binary, ptx=kernel.binary.ptx.replace("evo_attention", "something_else"))
    with pytest.raises(LaunchError):
        device.load(Kernel(kernel.source, other))


def test_it_says_that_it_predicts_and_for_which_gpu(device: EmulatorDevice) -> None:
    assert device.info.kind == "emulator"
    assert device.info.predicted
    assert device.info.name == device.target.marketing_name
    assert device.info.arch == "sm_89"
    assert EmulatorDevice(get_target("a100-40g")).info.arch == "sm_80"
    assert EmulatorDevice(get_target("l4"), "sm_80").info.arch == "sm_80"


def test_predictions_repeat_and_follow_the_work(device: EmulatorDevice) -> None:
    kernel = device.load(make(PROBLEM, None))
    small, large = Problem(1, 8, 64, 16), Problem(4, 16, 256, 16)
    kernel.attention(random_inputs(small, 1))
    first = kernel.predict(small)
    assert first.us > 0
    assert first == kernel.predict(small) == device.load(make(PROBLEM, None)).predict(small)
    assert first.method.startswith("model-")
    assert kernel.predict(large).us > 2 * first.us


@pytest.mark.parametrize("causal", [False, True])
def test_a_slice_of_heads_predicts_like_the_whole(causal: bool) -> None:
    whole = Problem(2, 8, 128, 16, kv_heads=4, causal=causal)
    limit = 3 * 10**6
    assert representative(whole, limit) == replace(whole, batch=1, heads=2, kv_heads=1)
    kernel = make(whole, None)
    by_slice = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel).predict(whole)
    exact = EmulatorDevice(get_target("l4")).load(kernel).predict(whole)
    assert by_slice.us == pytest.approx(exact.us, rel=0.01)


def test_a_slice_of_rows_predicts_like_the_whole() -> None:
    whole = Problem(1, 1, 1024, 16, seq_kv=64)
    limit = 10**6
    assert representative(whole, limit) == replace(whole, seq_q=256)
    kernel = make(whole, None)
    by_slice = EmulatorDevice(get_target("l4"), representative_flops=limit).load(kernel).predict(whole)
    exact = EmulatorDevice(get_target("l4")).load(kernel).predict(whole)
    assert by_slice.us == pytest.approx(exact.us, rel=0.01)


def test_the_slice_of_a_problem_keeps_its_keys() -> None:
    whole = Problem(2, 8, 4096, 64, kv_heads=2, seq_kv=1000)
    part = representative(whole, 10**9)
    assert part == Problem(1, 4, 768, 64, kv_heads=1, seq_kv=1000)
    assert representative(part, 10**9) is part


@pytest.mark.parametrize(("seq_q", "seq_kv"), [(5, 5), (3, 9), (9, 3), (1, 1)])
def test_keys_per_row_are_those_of_the_mask(seq_q: int, seq_kv: int) -> None:
    seen = sum(key <= row + seq_kv - seq_q for row in range(seq_q) for key in range(seq_kv))
    assert keys_per_row(Problem(2, 3, seq_q, 16, seq_kv=seq_kv, causal=True)) == pytest.approx(seen / seq_q)
    assert keys_per_row(Problem(2, 3, seq_q, 16, seq_kv=seq_kv)) == seq_kv
