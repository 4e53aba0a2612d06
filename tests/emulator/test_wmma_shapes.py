"""wmma on tiles of 32x8, 8x32, tf32, 8-bit integers and f64, against NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory
from evoengine.kernel.compile.nvrtc import header_dirs

KERNEL = """
#include <mma.h>
using namespace nvcuda;
constexpr int M = MM, N = NN, K = KK;
// Each of two warps: d = a · b + c, doubled; a through global memory, b through shared memory.
extern "C" __global__ void gemm(const STORED* a, const STORED* b, const SUM* c, SUM* d) {
  __shared__ __align__(128) STORED tile[2][N * K];
  const int warp = threadIdx.x / 32;
  for (int i = threadIdx.x % 32; i < N * K; i += 32) tile[warp][i] = b[warp * N * K + i];
  __syncwarp();
  wmma::fragment<wmma::matrix_a, M, N, K, TYPE, wmma::A_ORDER> x;
  wmma::fragment<wmma::matrix_b, M, N, K, TYPE, wmma::B_ORDER> y;
  wmma::fragment<wmma::accumulator, M, N, K, SUM> z;
  wmma::load_matrix_sync(x, a + warp * M * K SKEW, A_PITCH);
  wmma::load_matrix_sync(y, tile[warp], B_PITCH);
  wmma::load_matrix_sync(z, c + warp * M * N, N, wmma::mem_row_major);
  wmma::mma_sync(z, x, y, zSATURATES);
  for (int i = 0; i < z.num_elements; i++) z.x[i] = z.x[i] / (SUM)2;
  wmma::store_matrix_sync(d + warp * M * N, z, M, wmma::mem_col_major);
}
"""


def launch(
    compile_cuda: Callable[..., str], facts: dict[str, str], shape: tuple[int, int, int], orders: str, *data: np.ndarray
) -> bytes:
    """Runs the kernel on A, B and C; returns the bytes of D."""
    rows, columns, depth = shape
    facts = {"SATURATES": "", "SKEW": ""} | facts | dict(zip(("MM", "NN", "KK"), map(str, shape), strict=True))
    facts |= {f"{name}_ORDER": "row_major" if name in orders else "col_major" for name in "AB"}
    facts |= {"A_PITCH": str(depth if "A" in orders else rows), "B_PITCH": str(columns if "B" in orders else depth)}
    text = KERNEL
    for name, value in facts.items():
        text = text.replace(name, value)
    ptx = compile_cuda(
        text, *(f"--include-path={folder}" for folder in header_dirs()), "-default-device", arch="sm_90a"
    )
    memory = GlobalMemory()
    buffers = [*(memory.alloc(one) for one in data), memory.alloc(data[2].nbytes, initialised=False)]
    Emulator(ptx).launch(1, 64, buffers, memory=memory, races=True, lanes=True)
    return memory.read(buffers[3], np.uint8).tobytes()


CASES = {
    "half32": ("__half", "__half", "float", (32, 8, 16)),
    "half8": ("__half", "__half", "__half", (8, 32, 16)),
    "bfloat32": ("__nv_bfloat16", "__nv_bfloat16", "float", (32, 8, 16)),
    "bfloat8": ("__nv_bfloat16", "__nv_bfloat16", "float", (8, 32, 16)),
    "signed": ("signed char", "signed char", "int", (16, 16, 16)),
    "unsigned": ("unsigned char", "unsigned char", "int", (8, 32, 16)),
    "saturating": ("signed char", "signed char", "int", (32, 8, 16)),
    "tf32": ("wmma::precision::tf32", "float", "float", (16, 16, 8)),
    "double": ("double", "double", "double", (8, 8, 4)),
}
DTYPES = {
    "__half": np.float16,
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "int": np.int32,
    "float": np.float32,
    "double": np.float64,
}


NARROW = ("unsigned", "saturating")
"""Cases in which lines of eight bytes would be too short for a pitch."""


@pytest.mark.parametrize(
    ("case", "orders"), [(case, orders) for case in CASES for orders in "AB" if case not in NARROW or orders == "A"]
)
@pytest.mark.every(5)
def test_tiles(compile_cuda: Callable[..., str], case: str, orders: str) -> None:
    kind, stored, total, shape = CASES[case]
    rows, columns, depth = shape
    generator = np.random.default_rng(0)
    low, high = (0, 256) if stored == "unsigned char" else (-100, 101) if total == "int" else (-8, 9)
    a, b = generator.integers(low, high, (2, rows, depth)), generator.integers(low, high, (2, depth, columns))
    c = generator.integers(-50, 50, (2, rows, columns))
    if case == "saturating":
        c[0] += 2**31 - 51
    bits = [
        (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if stored == "__nv_bfloat16"
        else x.astype(DTYPES[stored])
        for x in (a if "A" in orders else a.swapaxes(1, 2), b if "B" in orders else b.swapaxes(1, 2))
    ]
    facts = {"TYPE": kind, "STORED": stored, "SUM": total}
    if case == "saturating":
        facts["SATURATES"] = ", true"
    found = launch(compile_cuda, facts, shape, orders, *map(np.ascontiguousarray, bits), c.astype(DTYPES[total]))
    got = np.frombuffer(found, DTYPES[total]).reshape(2, columns, rows).swapaxes(1, 2)
    want = a @ b + c
    if total == "int":
        want = np.clip(want, -(2**31), 2**31 - 1) if case == "saturating" else want
        np.testing.assert_array_equal(got, np.trunc(want / 2))
    else:
        np.testing.assert_array_equal(got, (want / 2).astype(DTYPES[total]))


def test_a_misaligned_tile_is_a_fault(compile_cuda: Callable[..., str]) -> None:
    facts = {"TYPE": "signed char", "STORED": "signed char", "SUM": "int", "SKEW": "+ 16"}
    data = np.zeros((2, 16, 16), np.int8)
    with pytest.raises(EmulatorError, match="32-byte aligned") as caught:
        launch(compile_cuda, facts, (16, 16, 16), "A", data, data, np.zeros((2, 16, 16), np.int32))
    assert caught.value.kind is FaultKind.MISALIGNED
