"""The device self-check: a kernel with a known output that runs through the same code as candidates.

A candidate that corrupts a context or kills a worker may leave the device in an unknown state. Before the next
candidate is examined, the device must run this kernel correctly: load it, launch it, check its guard bands and read its
output.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from evoengine.device.protocols import Device
from evoengine.errors import LaunchError
from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.call import AttentionInputs
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.memory_layout import Bits
from evoengine.kernel.records import Kernel, LaunchSpec, Source
from evoengine.model import Config, Problem

_PROBLEM: Final = Problem(1, 4, 32, 64)
_SOURCE: Final = """// The known-good kernel: O[row][d] = Q[row][d] + K[row][d] + V[row][63 - d], as 16-bit integers.
//
// One CTA of 64 threads per row, one thread per column. V is turned around through shared memory, so that a row is
// right only if loads, stores, shared memory and the barrier work.
struct Params {
    const unsigned short* q;
    const unsigned short* k;
    const unsigned short* v;
    unsigned short* o;
    long long strides[4][2];  // of the batch, which has one entry, and of the heads
    int row_strides[4];
    unsigned char rest[PARAM_BYTES - 112];
};

__device__ long long place(const Params& p, int tensor) {
    return blockIdx.y * p.strides[tensor][1] + blockIdx.x * static_cast<long long>(p.row_strides[tensor]);
}

extern "C" __global__ void evo_attention(const __grid_constant__ Params p) {
    __shared__ unsigned short s_row[64];
    const int column = threadIdx.x;
    s_row[column] = p.v[place(p, 2) + column];
    __syncthreads();  // the whole row is there
    p.o[place(p, 3) + column] = p.q[place(p, 0) + column] + p.k[place(p, 1) + column] + s_row[63 - column];
}
"""


def build_known_good(arch: str, cache_dir: Path | None) -> Kernel:
    """Compiles the known-good kernel.

    Args:
        arch: Architecture that candidates are compiled for.
        cache_dir: Folder of the compile cache; None compiles every time.

    Raises:
        MissingDependencyError: NVRTC is not installed.
    """
    launch = LaunchSpec(("seq_q", "heads", "batch"), _PROBLEM.head_dim, 0, ())
    text = _SOURCE.replace("PARAM_BYTES", str(PARAM_BYTES))
    source = Source(Config.of("known-good", {}), text, "known-good", "known-good", 0, launch)
    return Kernel(source, Compiler(cache_dir).compile(source, arch))


def check_device(device: Device, known_good: Kernel) -> None:
    """Runs the known-good kernel.

    Raises:
        CandidateError: The device did not run it, or its output is wrong.
    """
    rng = np.random.default_rng(0)
    q, k, v = (_bits(rng) for _ in range(3))
    with closing(device.load(known_good)) as loaded:
        out = loaded.attention(AttentionInputs.of(_PROBLEM, q, k, v)).o
    wrong = int(np.count_nonzero(out != q + k + v[..., ::-1]))
    if wrong:
        raise LaunchError(f"a known-good kernel got {wrong} of {out.size} values wrong on this device")


def _bits(rng: np.random.Generator) -> Bits:
    shape = (_PROBLEM.batch, _PROBLEM.heads, _PROBLEM.seq_q, _PROBLEM.head_dim)
    return rng.integers(0, 2**16, shape, np.uint16)
