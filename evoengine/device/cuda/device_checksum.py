"""A checksum of device memory, computed by a kernel, so that a large buffer need not be copied to the host.

The checksum is the sum, modulo 2^64, of every 32-bit word mixed with its index. Integer addition is independent of the
order of CTAs, so the same bytes give the same checksum everywhere, on the host too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ENTRY: Final = "evo_checksum"
THREADS: Final = 256
MAX_CTAS: Final = 2048

_SPREAD: Final = 0x9E3779B97F4A7C15
_FOLD: Final = 0xD6E8FEB86659FD93
_CHUNK_WORDS: Final = 2**16
"""Words of a chunk on the host, whose temporaries fit in the cache."""

SOURCE: Final = f"""\
// sum[0] += the checksum of words[0 .. count), which must lie on a 4-byte boundary. One atomic addition for each CTA:
// those of all threads to one address would take longer than reading the words.
extern "C" __global__ void {ENTRY}(const unsigned* words, unsigned long long count, unsigned long long* sum) {{
    __shared__ unsigned long long s_sums[{THREADS // 32}];  // of each warp
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long own = 0;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {{
        unsigned long long mixed = (i << 32 | words[i]) * {_SPREAD:#x}ull;
        own += (mixed ^ mixed >> 32) * {_FOLD:#x}ull;
    }}
    for (int distance = 16; distance > 0; distance /= 2) own += __shfl_down_sync(0xffffffffu, own, distance);
    if (threadIdx.x % 32 == 0) s_sums[threadIdx.x / 32] = own;
    __syncthreads();  // the sums of all warps are visible to the first thread
    if (threadIdx.x > 0) return;
    for (int warp = 1; warp < {THREADS // 32}; ++warp) own += s_sums[warp];
    atomicAdd(sum, own);
}}
"""
"""CUDA C++ without a header."""


def ctas(count: int) -> int:
    """Returns the number of CTAs for ``count`` words."""
    return max(1, min(MAX_CTAS, -(-count // THREADS)))


def host_checksum(data: NDArray[np.uint8]) -> int:
    """Computes the checksum of bytes on the host.

    Args:
        data: Contiguous bytes, a whole number of 32-bit words.
    """
    words = data.view(np.uint32)
    total = 0
    for start in range(0, len(words), _CHUNK_WORDS):
        chunk = words[start : start + _CHUNK_WORDS].astype(np.uint64)
        chunk |= np.arange(start, start + len(chunk), dtype=np.uint64) << np.uint64(32)
        chunk *= np.uint64(_SPREAD)
        chunk ^= chunk >> np.uint64(32)
        chunk *= np.uint64(_FOLD)
        total += int(chunk.sum(dtype=np.uint64))
    return total % 2**64


class DeviceChecksums:
    """Computes checksums of arrays on the GPU.

    Args:
        cupy: The CuPy module.
        stream: Stream on which the arrays are written.
        function: CuPy's function of the kernel above.
    """

    def __init__(self, cupy: Any, stream: Any, function: Any) -> None:
        self._cupy = cupy
        self._stream = stream
        self._function = function

    def __call__(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        """Waits for all earlier work and returns one checksum for each array of bytes."""
        with self._stream:
            sums = self._cupy.zeros(len(arrays), self._cupy.uint64)
            for place, array in enumerate(arrays):
                self.add(array, sums[place : place + 1])
            found = sums.get(stream=self._stream)
        self._stream.synchronize()
        return tuple(map(int, found))

    def add(self, array: Any, total: Any) -> None:
        """Enqueues the addition of an array's checksum to a uint64 on the GPU, on the current stream."""
        words = array.nbytes // 4
        self._function((ctas(words),), (THREADS,), (array, np.uint64(words), total))
