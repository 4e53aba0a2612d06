"""wmma.load, wmma.mma and wmma.store against matrix products in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory, Pipe
from evoengine.kernel.compile.nvrtc import header_dirs

KERNEL = """
#include <mma.h>
using namespace nvcuda;
using T = TYPE;
// Each warp: d = a · b + c on 16x16 tiles, all with their own pitch; a and b pass through shared memory if STAGED.
extern "C" __global__ void gemm(const T* a, const T* b, const float* c, float* d) {
  extern __shared__ __align__(128) T smem[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, w = blockIdx.x * (blockDim.x >> 5) + warp;
  a += w * 16 * 24; b += w * 16 * 32; c += w * 16 * 20; d += w * 16 * 16;
  if (STAGED) {
    T* sa = smem + warp * 16 * 56; T* sb = sa + 16 * 24;
    for (int i = lane; i < 16 * 24; i += 32) sa[i] = a[i];
    for (int i = lane; i < 16 * 32; i += 32) sb[i] = b[i];
    __syncwarp(); a = sa; b = sb;
  }
  wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::A_ORDER> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::B_ORDER> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::load_matrix_sync(x, a SHIFT, PITCH);
  wmma::load_matrix_sync(y, b, 32);
  wmma::load_matrix_sync(z, c, 20, wmma::C_ORDER);
  wmma::mma_sync(z, x, y, z);
  for (int i = 0; i < z.num_elements; i++) z.x[i] *= 2.0f;
  wmma::store_matrix_sync(d, z, 16, wmma::D_ORDER);
}
"""
WARPS = 6
DEFAULTS = {
    "TYPE": "__half",
    "STAGED": "1",
    "A_ORDER": "row_major",
    "B_ORDER": "row_major",
    "C_ORDER": "mem_row_major",
    "D_ORDER": "mem_row_major",
    "SHIFT": "",
    "PITCH": "24",
}

Compile = Callable[..., str]


def compile_kernel(compile_cuda: Compile, **changes: str) -> str:
    text = KERNEL
    for name, value in (DEFAULTS | changes).items():
        text = text.replace(name, value)
    return compile_cuda(text, *(f"--include-path={folder}" for folder in header_dirs()), "-default-device")


def encode(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Bits and values of an array rounded to the type."""
    if kind == "__half":
        half = values.astype(np.float16)
        return half.view(np.uint16), half.astype(np.float64)
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def padded(tiles: np.ndarray, pitch: int, column_major: bool) -> np.ndarray:
    """Tiles ``[n, 16, 16]`` with padding of NaN, ``[n, 16, pitch]``."""
    filler = 0xFFFF if tiles.dtype == np.uint16 else np.nan
    out = np.full((len(tiles), 16, pitch), filler, tiles.dtype)
    out[:, :, :16] = tiles.transpose(0, 2, 1) if column_major else tiles
    return out


@pytest.mark.parametrize("kind", ["__half", "__nv_bfloat16"])
@pytest.mark.parametrize("staged", ["0", "1"], ids=["global", "shared"])
@pytest.mark.parametrize("columns", ["", "A", "B", "C", "D", "ABCD"])
@pytest.mark.every(5)
def test_gemm(compile_cuda: Compile, kind: str, staged: str, columns: str) -> None:
    generator = np.random.default_rng(0)
    a_bits, a = encode(generator.standard_normal((WARPS, 16, 16)), kind)
    b_bits, b = encode(generator.standard_normal((WARPS, 16, 16)), kind)
    c = generator.standard_normal((WARPS, 16, 16)).astype(np.float32)
    orders = {f"{name}_ORDER": "col_major" for name in columns if name in "AB"}
    orders |= {f"{name}_ORDER": "mem_col_major" for name in columns if name in "CD"}
    ptx = compile_kernel(compile_cuda, TYPE=kind, STAGED=staged, **orders)
    memory = GlobalMemory()
    buffers = [
        memory.alloc(padded(a_bits, 24, "A" in columns)),
        memory.alloc(padded(b_bits, 32, "B" in columns)),
        memory.alloc(padded(c, 20, "C" in columns)),
        memory.alloc(WARPS * 16 * 16 * 4, initialised=False),
    ]
    report = Emulator(ptx).launch(3, 64, buffers, memory=memory, smem_bytes=2 * 16 * 56 * 2)
    got = memory.read(buffers[3], np.float32, (WARPS, 16, 16))
    if "D" in columns:
        got = got.transpose(0, 2, 1)
    np.testing.assert_allclose(got, 2 * (a @ b + c), rtol=1e-5, atol=2e-5)
    assert report.pipes[Pipe.TENSOR] == WARPS
    assert report.tensor_flops == WARPS * 2 * 16**3


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"SHIFT": "+ 8"}, FaultKind.MISALIGNED),
        ({"PITCH": "20"}, FaultKind.MISALIGNED),
        ({"PITCH": "24 + 8 * (lane & 1)"}, FaultKind.ILLEGAL_VALUE),
        ({"SHIFT": "+ 16 * (lane & 1)"}, FaultKind.ILLEGAL_VALUE),
        ({"SHIFT": "+ 16 * 24 * 600"}, FaultKind.OUT_OF_BOUNDS),
    ],
    ids=["pointer off by 16 bytes", "pitch of 40 bytes", "pitches differ", "pointers differ", "past the end"],
)
@pytest.mark.parametrize("staged", ["0", "1"], ids=["global", "shared"])
def test_misuse_is_an_error(compile_cuda: Compile, changes: dict[str, str], kind: FaultKind, staged: str) -> None:
    memory = GlobalMemory()
    buffers = [memory.alloc(np.zeros(n * 16, np.uint32)) for n in (WARPS * 12, WARPS * 16, WARPS * 20, WARPS * 16)]
    emulator = Emulator(compile_kernel(compile_cuda, STAGED=staged, **changes))
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(3, 64, buffers, memory=memory, smem_bytes=2 * 16 * 56 * 2)
    assert caught.value.kind is kind


def test_divergent_warp_is_an_error(compile_cuda: Compile) -> None:
    source = KERNEL.replace("wmma::mma_sync(", "if (lane < 16) wmma::mma_sync(")
    for name, value in DEFAULTS.items():
        source = source.replace(name, value)
    memory = GlobalMemory()
    buffers = [memory.alloc(np.zeros(n * 16, np.uint32)) for n in (WARPS * 12, WARPS * 16, WARPS * 20, WARPS * 16)]
    emulator = Emulator(
        compile_cuda(source, *(f"--include-path={folder}" for folder in header_dirs()), "-default-device")
    )
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(3, 64, buffers, memory=memory, smem_bytes=2 * 16 * 56 * 2)
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE
