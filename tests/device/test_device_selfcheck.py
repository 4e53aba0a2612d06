"""The known-good kernel: right on a sound device, and no device that spoils anything passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evoengine.costmodel.device import EmulatorDevice
from evoengine.device.device_selfcheck import build_known_good, check_device
from evoengine.device.protocols import Device, LoadedKernel
from evoengine.errors import CandidateTimeoutError, LaunchError
from evoengine.kernel.call import AttentionInputs, AttentionOutput
from evoengine.kernel.records import Kernel
from evoengine.target import get_target


@pytest.fixture(scope="module")
def known_good() -> Kernel:
    return build_known_good("sm_89", None)


class Spoiling:
    """A device that changes one bit of what a kernel wrote."""

    def __init__(self, bit: int) -> None:
        self._device = EmulatorDevice(get_target("l4"))
        self._bit = bit

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)

    def load(self, kernel: Kernel) -> LoadedKernel:
        loaded, bit = self._device.load(kernel), self._bit

        class Loaded:
            def attention(self, inputs: AttentionInputs, before: AttentionOutput | None = None) -> AttentionOutput:
                o = np.array(loaded.attention(inputs, before).o)
                o.flat[bit // 16] ^= 1 << bit % 16
                return AttentionOutput(o)

            def close(self) -> None:
                loaded.close()

        return Loaded()


def test_a_working_device_passes(known_good: Kernel) -> None:
    check_device(EmulatorDevice(get_target("l4")), known_good)


@pytest.mark.parametrize("bit", [0, 16 * 4097 + 15, 16 * 8191])
def test_one_wrong_bit_is_detected(known_good: Kernel, bit: int) -> None:
    device: Device = Spoiling(bit)  # type: ignore[assignment]
    with pytest.raises(LaunchError, match="1 of 8192"):
        check_device(device, known_good)


@pytest.mark.thorough
def test_a_device_that_does_not_run_it_fails(known_good: Kernel) -> None:
    hangs = known_good.binary.ptx.replace("bar.sync", "$L_on: bra $L_on;\n\tbar.sync", 1)
    stuck = Kernel(known_good.source, replace(known_good.binary, ptx=hangs))
    with pytest.raises(CandidateTimeoutError):
        check_device(EmulatorDevice(get_target("l4")), stuck)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a"])
def test_it_compiles_for_every_architecture(arch: str) -> None:
    assert build_known_good(arch, None).binary.arch == arch


@pytest.mark.gpu
def test_a_gpu_passes_too() -> None:
    from evoengine.device.cuda.device import CudaDevice

    device = CudaDevice()
    check_device(device, build_known_good(device.info.arch, None))
    device.close()
