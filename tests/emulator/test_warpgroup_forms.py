"""wgmma on tf32, 8-bit floats and 8-bit integers, with f16 and s32 accumulators, negated, and without a swizzle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, GlobalMemory
from evoengine.emulator.semantics.fp8 import FP8_VALUES

KERNEL = """
typedef unsigned u32; typedef unsigned long long u64; typedef unsigned char u8;
constexpr int N = NN, BYTES = 32 * STEPS, BLOCK = 8 * SPAN, PANELS = (BYTES + SPAN - 1) / SPAN;
// Offset of a byte of a line: blocks are eight lines of SPAN bytes, 16-byte chunks XORed with the number of 128 bytes.
__device__ int place(int line, int byte) {
  const int chunk = (byte % SPAN / 16) ^ (line % 8 * SPAN / 128);
  return (line / 8 * PANELS + byte / SPAN) * BLOCK + line % 8 * SPAN + chunk * 16 + byte % 16;
}
__device__ u64 descriptor(u32 at) {
  return (at & 0x3ffff) >> 4 | (u64)(BLOCK / 16) << 16 | (u64)(PANELS * BLOCK / 16) << 32 | (u64)LAYOUT << 62;
}
extern "C" __global__ void gemm(const u8* a, const u8* b, const u32* c, u32* d) {
  extern __shared__ __align__(1024) unsigned char smem[];
  unsigned char* sb = smem + 64 * PANELS * SPAN;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < 64 * BYTES; i += 128) smem[place(i / BYTES, i % BYTES)] = a[i];
  for (int i = threadIdx.x; i < N * BYTES; i += 128) sb[place(i / BYTES, i % BYTES)] = b[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  u32 r[COUNT];
  for (int i = 0; i < COUNT; i++) r[i] = c[threadIdx.x * COUNT + i];
  const u32 pa = (u32)__cvta_generic_to_shared(smem), pb = (u32)__cvta_generic_to_shared(sb);
#pragma unroll
  for (int k = 0; k < STEPS; k++) {
    const u64 db = descriptor(pb + k * 32 / SPAN * BLOCK + k * 32 % SPAN);
#if REGISTERS
    u32 x[4];
    for (int i = 0; i < 4; i++)
      x[i] = *(u32*)(smem + place(warp * 16 + lane / 4 + i % 2 * 8, k * 32 + i / 2 * 16 + lane % 4 * 4));
#else
    const u64 da = descriptor(pa + k * 32 / SPAN * BLOCK + k * 32 % SPAN);
#endif
    asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.fence.sync.aligned;\\nwgmma.mma_async.sync.aligned.SHAPE "
      "{OUT}, LEFT, %BP, pFACTORS;}" : OPERANDS : INPUTS);
  }
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < COUNT; i++) d[threadIdx.x * COUNT + i] = r[i];
}
"""
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}


def source(shape: str, columns: int, count: int, steps: int, span: int, registers: bool, factors: str) -> str:
    """Source of a kernel with ``count`` accumulators per thread and ``steps`` instructions along K."""
    first = count
    left = "{" + ", ".join(f"%{first + i}" for i in range(4)) + "}" if registers else f"%{first}"
    facts = {
        "NN": str(columns),
        "STEPS": str(steps),
        "SPAN": str(span),
        "LAYOUT": {128: "1", 64: "2", 32: "3", 16: "0"}[span],
        "COUNT": str(count),
        "REGISTERS": str(int(registers)),
        "SHAPE": shape,
        "FACTORS": factors,
        "LEFT": left,
        "%BP": f"%{first + (4 if registers else 1)}",
        "OUT": ", ".join(f"%{i}" for i in range(count)),
        "OPERANDS": ", ".join(f'"+r"(r[{i}])' for i in range(count)),
        "INPUTS": '"r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(db)' if registers else '"l"(da), "l"(db)',
    }
    text = KERNEL
    for name, value in facts.items():
        text = text.replace(name, value)
    return text


def operand(kind: str, lines: int, row_bytes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes ``[lines, row_bytes]`` of random elements, and their values; small integers where sums must be exact."""
    generator = np.random.default_rng(seed)
    columns = row_bytes // ELEMENT_BYTES.get(kind, 1)
    if kind in FP8_VALUES:
        raw = generator.integers(0, 0x60, (lines, columns), dtype=np.uint8) | generator.choice(
            [0, 128], (lines, columns)
        )
        sign = np.where(raw & 128, -1, 1)
        mantissa, bias = (3, 7) if kind == "e4m3" else (2, 15)
        exponent, fraction = (raw & 127) >> mantissa, raw & ((1 << mantissa) - 1)
        size = (fraction / (1 << mantissa) + (exponent > 0)) * 2.0 ** (np.maximum(exponent, 1) - bias)
        return raw.astype(np.uint8), sign * size
    if kind in ("s8", "u8"):
        raw = generator.integers(0, 256, (lines, columns), dtype=np.uint8)
        return raw, raw.view(np.int8 if kind == "s8" else np.uint8).astype(np.float64)
    values = generator.integers(-9, 10, (lines, columns)).astype(np.float32)
    if kind == "tf32":
        noise = generator.integers(0, 1 << 13, values.shape, dtype=np.uint32)  # bits that tf32 does not have
        return (values.view(np.uint32) | np.where(values == 0, 0, noise)).astype(np.uint32).view(np.uint8), values
    half = values.astype(np.float16) if kind == "f16" else (values.view(np.uint32) >> 16).astype(np.uint16)
    return half.view(np.uint8), values


def unpack(words: np.ndarray, columns: int, dtype: type) -> np.ndarray:
    """Accumulators ``[128, count]`` as a matrix ``[64, columns]``. Source: PTX ISA 9.0, "wgmma", fragment of D."""
    values: np.ndarray = np.ascontiguousarray(words).view(dtype).reshape(128, columns // 2)
    out: np.ndarray = np.zeros((64, columns), dtype)
    for thread in range(128):
        for i in range(columns // 2):
            row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
            out[row, i // 4 * 8 + thread % 4 * 2 + i % 2] = values[thread, i]
    return out


@pytest.mark.parametrize(
    ("kinds", "depth", "accumulator", "columns", "steps", "span", "registers", "factors"),
    [
        ("e4m3.e4m3", 32, "f32", 64, 3, 128, False, ", 1, 1"),
        ("e5m2.e4m3", 32, "f32", 24, 2, 64, True, ", 1, -1"),
        ("e4m3.e5m2", 32, "f16", 16, 1, 32, False, ", 1, 1"),
        ("tf32.tf32", 8, "f32", 40, 5, 128, True, ", -1, -1"),
        ("tf32.tf32", 8, "f32", 8, 2, 16, False, ", -1, 1"),
        ("s8.s8", 32, "s32", 48, 3, 64, False, ""),
        ("u8.s8", 32, "s32", 24, 2, 128, True, ""),
        ("u8.u8.satfinite", 32, "s32", 32, 1, 32, False, ""),
        ("f16.f16", 16, "f16", 72, 4, 128, True, ", 1, 1, 0"),
        ("f16.f16", 16, "f16", 16, 2, 16, False, ", -1, 1, 0, 0"),
        ("bf16.bf16", 16, "f32", 32, 3, 16, False, ", 1, -1, 0, 0"),
    ],
)
@pytest.mark.every(3)
def test_forms(
    compile_cuda: Callable[..., str],
    kinds: str,
    depth: int,
    accumulator: str,
    columns: int,
    steps: int,
    span: int,
    registers: bool,
    factors: str,
) -> None:
    left_kind, right_kind, *saturates = kinds.split(".")
    a_raw, a = operand(left_kind, 64, 32 * steps, 0)
    b_raw, b = operand(right_kind, columns, 32 * steps, 1)
    count = columns // 4 if accumulator == "f16" else columns // 2
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[accumulator]
    start = np.random.default_rng(2).integers(-50, 50, (128, columns // 2)).astype(dtype)
    if accumulator == "s32":
        start[::2] += 2**31 - 60 if saturates else 2**31 - 1000
    shape = f"m64n{columns}k{depth}.{accumulator}.{kinds}"
    memory = GlobalMemory()
    buffers = [memory.alloc(data) for data in (a_raw, b_raw, start)] + [memory.alloc(128 * count * 4)]
    ptx = compile_cuda(source(shape, columns, count, steps, span, registers, factors), arch="sm_90a")
    smem = (64 + columns) * -(-32 * steps // span) * span
    report = Emulator(ptx).launch(1, 128, buffers, memory=memory, smem_bytes=smem, races=True)
    sign = -1 if factors.count("-1") == 1 else 1
    want = unpack(start, columns, dtype) + sign * (a.astype(np.float64) @ b.astype(np.float64).T)
    got = unpack(memory.read(buffers[3], np.uint32), columns, dtype)
    if saturates:
        want = np.clip(want, -(2**31), 2**31 - 1)
    if accumulator == "s32":
        np.testing.assert_array_equal(got, want.astype(np.int64).astype(np.int32))
    else:
        np.testing.assert_allclose(got, want, rtol=2e-3 if accumulator == "f16" else 1e-5, atol=1e-3)
    assert report.tensor_flops == 2 * 64 * columns * depth * steps
