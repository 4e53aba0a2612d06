"""The CUDA device whose buffers are filled and checked on the GPU, as those of large problems are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from evoengine.device.contract import Broken, DeviceContract, KernelMaker, Merge, assert_attention, random_inputs
from evoengine.device.protocols import Device
from evoengine.kernel.records import Kernel
from evoengine.model import Problem
from tests.device.makers import make

if TYPE_CHECKING:
    from evoengine.device.cuda.device import CudaDevice

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    from evoengine.device.cuda.device import CudaDevice

    opened = CudaDevice(resident_bytes=1)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def make_kernel(device: Device) -> KernelMaker:
    def maker(problem: Problem, broken: Broken | None, merge: Merge = "none") -> Kernel:
        return make(problem, broken, merge, device.info.arch)

    return maker


class TestResidentBuffers(DeviceContract):
    """The shipped contract, with nothing that passes through the host."""


def test_an_overwritten_image_is_repaired(device: CudaDevice, make_kernel: KernelMaker) -> None:
    inputs, originals = random_inputs(DeviceContract.RICH, 1), device.resident_inputs
    loaded = device.load(make_kernel(DeviceContract.RICH, None))
    assert_attention(loaded, inputs)
    before = originals.repaired
    for original in originals.kept:
        original.image.data.memset_async(0x11, original.image.nbytes, device.stream)
    device.stream.synchronize()
    assert_attention(loaded, inputs)
    assert originals.repaired - before == 5, "Q, K and V; O and the log-sum-exp"
