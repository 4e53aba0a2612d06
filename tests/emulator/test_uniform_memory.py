"""Uniform memory gives the same results as global memory, also where values of one row and of many are combined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, GlobalMemory, LaunchReport
from evoengine.emulator.memory.uniform_memory import UniformMemory
from evoengine.emulator.semantics.mma import add_each
from evoengine.kernel.compile.nvrtc import header_dirs

CTAS = 3


def run(ptx: str, x: np.ndarray, y: np.ndarray, memory: GlobalMemory) -> tuple[np.ndarray, LaunchReport]:
    y = y.copy()
    report = Emulator(ptx).launch(CTAS, 64, [x, y], memory=memory, counters=True)
    return y, report


COPIES = """
extern "C" __global__ void f(const int4* x, int4* y) {
    __shared__ int4 s[64];
    int t = threadIdx.x, b = blockIdx.x;
    unsigned place = (unsigned)__cvta_generic_to_shared(&s[t]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\\ncp.async.wait_all;"
                 :: "r"(place), "l"(x + b * 64 + t), "r"((t + b) % 3 * 8) : "memory");
    __syncthreads();
    y[b * 64 + t] = s[t];
}
"""


@pytest.mark.parametrize("byte", [0, 1])
def test_partial_copies_are_zero_filled(compile_cuda: Callable[..., str], byte: int) -> None:
    x = np.full((CTAS, 64, 4), byte * 0x01010101, np.int32)
    t, b, word = np.arange(64)[:, None], np.arange(CTAS)[:, None, None], np.arange(4)
    want = np.where(word < (t + b) % 3 * 2, x, 0)
    ptx = compile_cuda(COPIES)
    (y, report), (_, plain) = (run(ptx, x, np.zeros_like(x), memory()) for memory in (UniformMemory, GlobalMemory))
    np.testing.assert_array_equal(y, want)
    assert report == plain


REWRITTEN = """
extern "C" __global__ void f(int* x, int* y) {
    int t = threadIdx.x, b = blockIdx.x, at = b * 64 + t;
    y[at] = x[at];
    if (t == b) x[at] = 5;
    y[at] += 10 * ((volatile int*)x)[at];
    atomicAdd(&x[at], t);
    y[at] += 1000 * ((volatile int*)x)[at];
}
"""


def test_values_written_by_a_kernel_are_read(compile_cuda: Callable[..., str]) -> None:
    x, t, b = np.zeros((CTAS, 64), np.int32), np.arange(64), np.arange(CTAS)[:, None]
    y, _ = run(compile_cuda(REWRITTEN), x, np.zeros_like(x), UniformMemory())
    five = np.where(t == b, 5, 0)
    np.testing.assert_array_equal(y, 10 * five + 1000 * (five + t))


def test_values_written_by_the_host_are_read(compile_cuda: Callable[..., str]) -> None:
    memory = UniformMemory()
    x, y = memory.alloc(np.zeros((CTAS, 64), np.int32)), memory.alloc(4 * CTAS * 64)
    held = np.arange(CTAS * 64, dtype=np.int32)
    memory.write(x, held)
    source = 'extern "C" __global__ void f(int* x, int* y) { int i = blockIdx.x * 64 + threadIdx.x; y[i] = x[i]; }'
    Emulator(compile_cuda(source)).launch(CTAS, 64, [x, y], memory=memory)
    np.testing.assert_array_equal(memory.read(y, np.int32), held)


FRAGMENTS = """
#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void f(const half* x, float* y) {
    fragment<matrix_a, 16, 16, 16, half, row_major> a;
    fragment<matrix_b, 16, 16, 16, half, col_major> b;
    fragment<accumulator, 16, 16, 16, float> c;
    fill_fragment(c, 0.0f);
    load_matrix_sync(a, x, 16);
    load_matrix_sync(b, x, 16);
    c.x[1] = blockIdx.x;
    mma_sync(c, a, b, c);
    store_matrix_sync(y + (blockIdx.x * 2 + threadIdx.x / 32) * 256, c, 16, mem_row_major);
}
"""


def test_a_fragment_may_differ_between_ctas_in_one_register(compile_cuda: Callable[..., str]) -> None:
    x, y = np.full((16, 16), 0x0101, np.uint16), np.zeros((CTAS, 2, 256), np.float32)
    headers = [f"--include-path={folder}" for folder in header_dirs()]
    y, _ = run(compile_cuda(FRAGMENTS, *headers, "-default-device"), x, y, UniformMemory())
    square = 16 * float(np.uint16(0x0101).view(np.float16)) ** 2
    np.testing.assert_allclose(y.sum(axis=2), np.arange(CTAS)[:, None] * [32, 32] + 256 * square, rtol=1e-6)


def test_accumulators_may_differ_between_ctas_where_products_do_not() -> None:
    product = np.arange(64, dtype=np.float32).reshape(2, 1, 32)
    sums = add_each(product.copy(), [np.ones((1, 1), np.float32), np.arange(3, dtype=np.float32)[:, None]])
    np.testing.assert_array_equal(sums[0], np.broadcast_to(product[0] + 1, (3, 32)))
    np.testing.assert_array_equal(sums[1], product[1] + np.arange(3)[:, None])
