"""wgmma against matrix products in float64: all supported operand layouts, and faults for invalid use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory, Pipe

KERNEL = """
typedef unsigned u32; typedef unsigned long long u64; typedef unsigned short u16;
constexpr int N = NN, K = KK, PANEL = SPAN / 2, BLOCK = 8 * SPAN;
__device__ constexpr int panels_of(int columns) { return (columns + PANEL - 1) / PANEL; }
// Byte offset of an element of a tile whose lines have `columns` 16-bit values: lines of a panel have SPAN bytes, the
// panels of eight lines are side by side, chunks of eight values are XORed with the number of 128 bytes.
__device__ int place(int line, int column, int columns) {
  const int block = line / 8 * panels_of(columns) + column / PANEL;
  const int chunk = (column % PANEL / 8) ^ (line % 8 * SPAN / 128);
  return block * BLOCK + line % 8 * SPAN + chunk * 16 + column % 8 * 2;
}
// Without a swizzle, the two offsets of an operand with lines along K change places.
__device__ u64 descriptor(u32 at, int columns, bool swap = false) {
  const u64 leading = BLOCK / 16, stride = panels_of(columns) * BLOCK / 16;
  return (at & 0x3ffff) >> 4 | (swap ? stride : leading) << 16 | (swap ? leading : stride) << 32 | (u64)LAYOUT << 62;
}
// Every warpgroup multiplies its own A [64xK] and B, which is [NxK], or [KxN] where B_ROWS.
extern "C" __global__ void gemm(const u16* a, const u16* b, float* c) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
  const int lines = B_ROWS ? K : N, columns = B_ROWS ? N : K, a_bytes = 64 * panels_of(K) * SPAN;
  const int bytes = a_bytes + lines * panels_of(columns) * SPAN, number = blockIdx.x * (blockDim.x / 128) + group;
  unsigned char* sa = smem + group * bytes; unsigned char* sb = sa + a_bytes;
  a += number * 64 * K; b += number * N * K; c += number * 64 * N;
  for (int i = thread; i < 64 * K; i += 128) *(u16*)(sa + place(i / K, i % K, K)) = a[i];
  for (int i = thread; i < N * K; i += 128) *(u16*)(sb + place(i / columns, i % columns, columns)) = b[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  BARRIER
  float d[N / 2];
  for (int i = 0; i < N / 2; i++) d[i] = 1e9f;  // the first step does not add
  const u32 pa = (u32)__cvta_generic_to_shared(sa), pb = (u32)__cvta_generic_to_shared(sb);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < K; k += 16) {
    const u64 db = descriptor(pb + (B_ROWS ? place(k, 0, N) : k / PANEL * BLOCK + k % PANEL * 2), columns,
                              B_ROWS && SPAN == 16);
#if A_REGISTERS
    u32 x[4];
    for (int i = 0; i < 4; i++)
      x[i] = *(u32*)(sa + place(warp * 16 + lane / 4 + i % 2 * 8, k + i / 2 * 8 + lane % 4 * 2, K));
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{.reg .pred p; setp.ne.b32 p, %A4, 0;\\nwgmma.mma_async.sync.aligned.m64nNNk16.f32.TYPE.TYPE "
      "{OUT}, {%A0, %A1, %A2, %A3}, %A5, p, 1, 1, B_ROWS;}" : OPERANDS
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(k), "l"(db));
#else
    const u64 da = descriptor(pa + k / PANEL * BLOCK + k % PANEL * 2 + (SKEW ? lane / 16 * 1024 : 0), K);
    asm volatile("{.reg .pred p; setp.ne.b32 p, %A2, 0;\\nwgmma.mma_async.sync.aligned.m64nNNk16.f32.TYPE.TYPE "
      "{OUT}, %A0, %A1, p, 1, 1, 0, B_ROWS;}" : OPERANDS : "l"(da), "l"(db), "r"(k));
#endif
  }
  asm volatile("wgmma.commit_group.sync.aligned;\\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < N / 2; i++)
    c[(warp * 16 + lane / 4 + i / 2 % 2 * 8) * N + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}
"""


def source(
    columns: int,
    depth: int,
    kind: str = "f16",
    rows: bool = False,
    registers: bool = False,
    span: int = 128,
    changes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Source of the kernel; ``changes`` replaces values of macros, to make it invalid."""
    outputs = columns // 2
    facts = {
        "LAYOUT": {128: "1", 64: "2", 32: "3", 16: "0"}[span],
        "SPAN": str(span),
        "BARRIER": "__syncthreads();",
        "SKEW": "0",
        **changes,
    }
    facts |= {"OUT": ", ".join(f"%{i}" for i in range(outputs)), "A_REGISTERS": str(int(registers))}
    facts |= {"OPERANDS": ", ".join(f'"+f"(d[{i}])' for i in range(outputs)), "B_ROWS": str(int(rows))}
    facts |= {"TYPE": kind, "NN": str(columns), "KK": str(depth)} | {f"%A{i}": f"%{outputs + i}" for i in range(6)}
    text = KERNEL
    for name, value in facts.items():
        text = text.replace(name, value)
    return text


def smem_bytes(columns: int, depth: int, rows: bool, span: int = 128) -> int:
    """Bytes of shared memory of the kernel."""
    lines, across = (depth, columns) if rows else (columns, depth)
    return span * (64 * -(-2 * depth // span) + lines * -(-2 * across // span))


def encode(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Bits and values of an array rounded to f16 or truncated to bf16."""
    if kind == "f16":
        half = values.astype(np.float16)
        return half.view(np.uint16), half.astype(np.float64)
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("registers", [False, True], ids=["smem", "registers"])
@pytest.mark.parametrize("rows", [False, True], ids=["NxK", "KxN"])
@pytest.mark.parametrize(
    ("columns", "depth", "kind", "span"),
    [
        (8, 16, "f16", 128),
        (64, 80, "bf16", 128),
        (136, 48, "f16", 128),
        (48, 80, "f16", 64),
        (24, 48, "f16", 32),
        (24, 48, "bf16", 16),
    ],
)
@pytest.mark.every(5)
def test_gemm(
    compile_cuda: Callable[..., str], columns: int, depth: int, kind: str, span: int, rows: bool, registers: bool
) -> None:
    generator = np.random.default_rng(0)
    a_bits, a = encode(generator.standard_normal((4, 64, depth)), kind)
    b_bits, b = encode(generator.standard_normal((4, depth, columns)), kind)
    memory = GlobalMemory()
    inputs = (a_bits, b_bits if rows else np.ascontiguousarray(b_bits.transpose(0, 2, 1)))
    buffers = [*(memory.alloc(bits) for bits in inputs), memory.alloc(4 * 64 * columns * 4, initialised=False)]
    ptx = compile_cuda(source(columns, depth, kind, rows, registers, span), arch="sm_90a")
    report = Emulator(ptx).launch(2, 256, buffers, memory=memory, smem_bytes=2 * smem_bytes(columns, depth, rows, span))
    got = memory.read(buffers[2], np.float32, (4, 64, columns))
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=2e-5)
    assert report.pipes[Pipe.TENSOR] == 4 * 4 * depth // 16  # by warp, as all counts
    assert report.tensor_flops == 2 * 4 * 64 * columns * depth


@pytest.mark.parametrize(
    ("changes", "threads", "kind", "said"),
    [
        ({"LAYOUT": "1 << 62 | (u64)1 << 49 | (u64)0"}, 128, FaultKind.ILLEGAL_VALUE, "base offset"),
        ({"SKEW": "1"}, 128, FaultKind.ILLEGAL_VALUE, "descriptor differs"),
        ({}, 96, FaultKind.ILLEGAL_VALUE, "whole warpgroups"),
        ({"BARRIER": "if (threadIdx.x >= 64) return;"}, 128, FaultKind.WARP_DIVERGENCE, "without this lane"),
    ],
    ids=["layout", "descriptors", "threads", "lanes"],
)
def test_misuse_is_a_fault(
    compile_cuda: Callable[..., str], changes: dict[str, str], threads: int, kind: FaultKind, said: str
) -> None:
    memory = GlobalMemory()
    buffers = [memory.alloc(np.zeros(64 * 16, np.uint16)) for _ in range(2)] + [memory.alloc(64 * 64 * 4)]
    emulator = Emulator(compile_cuda(source(64, 16, changes=changes), arch="sm_90a"))
    with pytest.raises(EmulatorError, match=said) as caught:
        emulator.launch(1, threads, buffers, memory=memory, smem_bytes=smem_bytes(64, 16, False))
    assert caught.value.fault.kind is kind


def test_uninitialised_operands_are_a_fault(compile_cuda: Callable[..., str]) -> None:
    text = source(64, 16).replace("i < N * K; i += 128", "i < N * K / 2; i += 128")
    memory = GlobalMemory()
    buffers = [memory.alloc(np.zeros(64 * 16, np.uint16)) for _ in range(2)] + [memory.alloc(64 * 64 * 4)]
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(text, arch="sm_90a")).launch(
            1, 128, buffers, memory=memory, smem_bytes=smem_bytes(64, 16, False)
        )
    assert caught.value.fault.kind is FaultKind.UNINITIALISED_READ


def test_landed_copies_of_other_warps_are_a_fault(compile_cuda: Callable[..., str]) -> None:
    """The whole warpgroup reads an operand, although the emulator assigns each chunk to one lane."""
    copies = """for (int i = thread; i < N * K / 8; i += 128) {
      const u32 at = (u32)__cvta_generic_to_shared(sb + place(i * 8 / columns, i * 8 % columns, columns));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(b + i * 8));
    }
    asm volatile("cp.async.wait_all;" ::: "memory");"""
    loop = "for (int i = thread; i < N * K; i += 128) *(u16*)(sb + place(i / columns, i % columns, columns)) = b[i];"
    memory = GlobalMemory()
    buffers = [memory.alloc(np.zeros(64 * 16, np.uint16)) for _ in range(2)] + [memory.alloc(64 * 64 * 4)]

    def launch(barrier: str) -> None:
        text = source(64, 16, changes={"BARRIER": barrier}).replace(loop, copies)
        assert copies in text
        emulator = Emulator(compile_cuda(text.replace("N * K", "64 * 16"), arch="sm_90a"))
        emulator.launch(1, 128, buffers, memory=memory, smem_bytes=smem_bytes(64, 16, False))

    launch("__syncthreads();")
    with pytest.raises(EmulatorError, match="without a barrier") as caught:
        launch("")
    assert caught.value.fault.kind is FaultKind.CP_ASYNC_NOT_WAITED
