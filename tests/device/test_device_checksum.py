"""The checksum of GPU memory: the compiled kernel, run by the emulator, beside the same sum on the host."""

from __future__ import annotations

import numpy as np
import pytest

from evoengine.device.cuda import device_checksum
from evoengine.emulator.emulator import Emulator
from evoengine.kernel.compile.nvrtc import run_nvrtc


@pytest.fixture(scope="module")
def kernel() -> Emulator:
    compiled = run_nvrtc(device_checksum.SOURCE, "/device_checksum.cu", ["-arch=sm_90", "--std=c++17"])
    assert compiled.cubin, "a GPU loads the machine code"
    return Emulator(compiled.ptx, entry=device_checksum.ENTRY)


def of_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count).astype(np.uint8)


@pytest.mark.parametrize("count", [4, 4 * device_checksum.THREADS, 4 * (3 * device_checksum.THREADS + 7), 40_000])
def test_the_kernel_and_the_host_agree(kernel: Emulator, count: int) -> None:
    data = of_bytes(count)
    total = np.array([2**64 - 5], np.uint64)  # it adds to what is there, and wraps around
    words = data.view(np.uint32)
    kernel.launch((2, 1, 1), (device_checksum.THREADS, 1, 1), (words, np.uint64(len(words)), total))
    assert (int(total[0]) + 5) % 2**64 == device_checksum.host_checksum(data)


def test_any_change_changes_it() -> None:
    """One bit, two words that change places, zeros after the end; a large buffer too."""
    data = of_bytes(2**20 + 4)
    known = device_checksum.host_checksum(data)
    for place in (0, 3, 2**18, len(data) - 1):
        changed = data.copy()
        changed[place] ^= 0x40
        assert device_checksum.host_checksum(changed) != known
    swapped = data.copy()
    swapped[:4], swapped[4:8] = data[4:8], data[:4]
    assert device_checksum.host_checksum(swapped) != known
    assert device_checksum.host_checksum(np.zeros(8, np.uint8)) != device_checksum.host_checksum(np.zeros(4, np.uint8))


def test_ctas_cover_all_words_and_are_not_too_many() -> None:
    assert device_checksum.ctas(1) == 1
    assert device_checksum.ctas(device_checksum.THREADS + 1) == 2
    assert device_checksum.ctas(2**30) == device_checksum.MAX_CTAS
