"""ldmatrix and mma.sync against matrix products in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory, Pipe

LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4

KERNEL = """
typedef unsigned u32;
// Every warp multiplies its own A [16xK] and B [Kx8N], row-major, read by ldmatrix (.trans for B).
extern "C" __global__ void gemm(const u32* a, const u32* b, float* c) {
  extern __shared__ __align__(128) unsigned char smem[];
  constexpr int K = KDIM, N = 32; const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31,
  w = blockIdx.x * (blockDim.x >> 5) + warp;
  u32* sa = (u32*)smem + warp * (8 * K + K * N / 2); u32* sb = sa + 8 * K;
  for (int i = lane; i < 8 * K; i += 32) sa[i] = a[w * 8 * K + i];
  for (int i = lane; i < K * N / 2; i += 32) sb[i] = b[w * K * N / 2 + i];
  __syncwarp();
  float d[4][4] = {};
  for (int k = 0; k < K; k += 16) {
    u32 x[4];
    u32 addr = (u32)__cvta_generic_to_shared(sa) + (lane & 15) * K * 2 + k * 2 + (lane >> 4) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]),
    "=r"(x[2]), "=r"(x[3]) : "r"(addr));
    for (int n = 0; n < 4; n++) {
      u32 y[2], at = (u32)__cvta_generic_to_shared(sb) + (k + (lane & 15)) * N * 2 + n * 16;
      asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(at));
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.TYPE.TYPE.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]),
        "r"(y[0]), "r"(y[1]));
    }
  }
  for (int n = 0; n < 4; n++) for (int e = 0; e < 4; e++)
    c[w * 16 * N + (lane / 4 + 8 * (e >> 1)) * N + n * 8 + (lane & 3) * 2 + (e & 1)] = d[n][e];
}
"""


def encode(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Bits and values of an array rounded to f16 or bf16."""
    if kind == "f16":
        half = values.astype(np.float16)
        return half.view(np.uint16), half.astype(np.float64)
    bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("depth", [16, 64])
def test_gemm(compile_cuda: Callable[..., str], kind: str, depth: int) -> None:
    generator = np.random.default_rng(0)
    a_bits, a = encode(generator.standard_normal((6, 16, depth)), kind)
    b_bits, b = encode(generator.standard_normal((6, depth, 32)), kind)
    memory = GlobalMemory()
    buffers = [memory.alloc(a_bits), memory.alloc(b_bits), memory.alloc(6 * 16 * 32 * 4, initialised=False)]
    ptx = compile_cuda(KERNEL.replace("TYPE", kind).replace("KDIM", str(depth)))
    report = Emulator(ptx).launch(3, 64, buffers, memory=memory, smem_bytes=2 * (8 * depth + depth * 16) * 4)
    got = memory.read(buffers[2], np.float32, (6, 16, 32))
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=2e-5)
    assert report.pipes[Pipe.TENSOR] == 6 * 4 * depth // 16
    assert report.tensor_flops == 2 * 6 * 16 * 32 * depth


def mma_ptx(statement: str, a: int, b: int, c: int, d: int) -> str:
    """PTX of one warp that loads fragments as b32 words ``[register, lane]``, runs ``statement`` and stores ``%d``."""
    lines = ["mov.u32 %i, %tid.x;", "mul.wide.u32 %o, %i, 4;"]
    for name, count, param in (("a", a, 0), ("b", b, 1), ("c", c, 2)):
        lines += [f"ld.param.u64 %p, [p{param}];", "add.s64 %p, %p, %o;"]
        lines += [f"ld.global.b32 %{name}{n}, [%p+{128 * n}];" for n in range(count)]
    lines += [statement, "ld.param.u64 %p, [p3];", "add.s64 %p, %p, %o;"]
    lines += [f"st.global.b32 [%p+{128 * n}], %d{n};" for n in range(d)]
    body = "\n".join(lines)
    return f""".version 9.0
.target sm_89
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)
{{
.reg .b32 %i, %a<4>, %b<2>, %c<4>, %d<4>; .reg .b64 %o, %p;
{body}
ret;
}}
"""


def run_mma(statement: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, outputs: int) -> np.ndarray:
    """Runs one mma on fragments of uint32 ``[registers, 32]``."""
    memory = GlobalMemory()
    buffers = [memory.alloc(x) for x in (a, b, c)] + [memory.alloc(outputs * 128)]
    Emulator(mma_ptx(statement, len(a), len(b), len(c), outputs)).launch(1, 32, buffers, memory=memory)
    return memory.read(buffers[3], np.uint32, (outputs, 32))


def fragments(matrix: np.ndarray, rows: int, halves: int) -> np.ndarray:
    """Fragment registers ``[halves * rows / 8, 32]`` of a float16 matrix ``[rows, 8 * halves]``; B is transposed."""
    out = []
    for half in range(halves):
        for block in range(rows // 8):
            pair = np.stack([matrix[GROUP + 8 * block, 8 * half + 2 * THREAD + e] for e in range(2)], axis=1)
            out.append(np.ascontiguousarray(pair).view(np.uint32)[:, 0])
    return np.stack(out)


@pytest.mark.parametrize("depth", [8, 16])
@pytest.mark.parametrize("accumulator", ["f32", "f16"])
def test_mma_fragments(depth: int, accumulator: str) -> None:
    generator = np.random.default_rng(1)
    a = generator.standard_normal((16, depth)).astype(np.float16)
    b = generator.standard_normal((depth, 8)).astype(np.float16)
    wide = accumulator == "f32"
    c: np.ndarray = generator.standard_normal((16, 8)).astype(np.float32 if wide else np.float16)
    halves = depth // 8
    left, right = fragments(a, 16, halves), fragments(np.ascontiguousarray(b.T), 8, halves)
    names = [", ".join(f"%{x}{n}" for n in range(count)) for x, count in (("a", 2 * halves), ("b", halves))]
    want = a.astype(np.float64) @ b.astype(np.float64) + c
    cd = [", ".join(f"%{x}{n}" for n in range(4 if wide else 2)) for x in "dc"]
    opcode = f"mma.sync.aligned.m16n8k{depth}.row.col.{accumulator}.f16.f16.{accumulator}"
    statement = f"{opcode} {{{cd[0]}}}, {{{names[0]}}}, {{{names[1]}}}, {{{cd[1]}}};"
    if wide:
        start: np.ndarray = np.stack([c[GROUP + 8 * (e >> 1), 2 * THREAD + (e & 1)] for e in range(4)]).view(np.uint32)
        got = run_mma(statement, left, right, start, 4).view(np.float32)
        for e in range(4):
            np.testing.assert_allclose(got[e], want[GROUP + 8 * (e >> 1), 2 * THREAD + (e & 1)], rtol=1e-6, atol=1e-6)
    else:
        start = fragments(c, 16, 1)
        halved = np.ascontiguousarray(run_mma(statement, left, right, start, 2)).view(np.float16).reshape(2, 32, 2)
        for block in range(2):
            for e in range(2):
                np.testing.assert_allclose(
                    halved[block, :, e], want[GROUP + 8 * block, 2 * THREAD + e], rtol=2e-3, atol=2e-3
                )


def test_mma_carries_infinities_nan_and_subnormals() -> None:
    a = np.zeros((16, 16), np.float16)
    b = np.zeros((16, 8), np.float16)
    a[0, 0], a[1, 0], a[2, 0], a[3, 0] = np.inf, np.nan, 6e-8, 65504
    b[0, :] = 1
    c = np.zeros((4, 32), np.uint32)
    statement = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
    statement += "{%d0,%d1,%d2,%d3}, {%a0,%a1,%a2,%a3}, {%b0,%b1}, {%c0,%c1,%c2,%c3};"
    got = run_mma(statement, fragments(a, 16, 2), fragments(np.ascontiguousarray(b.T), 8, 2), c, 4).view(np.float32)
    np.testing.assert_array_equal(got[0, [0, 4, 8, 12]], np.array([np.inf, np.nan, a[2, 0], 65504], np.float32))
    a[:2] = 0
    got = run_mma(statement, fragments(a, 16, 2), fragments(np.ascontiguousarray(b.T), 8, 2), c, 4).view(np.float32)
    np.testing.assert_array_equal(got[0, [0, 8, 12]], np.array([0, a[2, 0], 65504], np.float32))


def test_stmatrix_inverts_ldmatrix(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(const unsigned* x, unsigned* y) {
      __shared__ __align__(16) unsigned s[256]; int t = threadIdx.x; for (int i = 0; i < 4; i++)
      s[t + 32 * i] = x[t + 32 * i];
      __syncwarp(); unsigned a = (unsigned)__cvta_generic_to_shared(s) + t * 16, r0, r1, r2, r3;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r0), "=r"(r1),
      "=r"(r2), "=r"(r3) : "r"(a));
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" :: "r"(a + 512), "r"(r0),
      "r"(r1), "r"(r2), "r"(r3));
      __syncwarp(); for (int i = 0; i < 4; i++) y[t + 32 * i] = s[128 + t + 32 * i]; }"""
    x = np.random.default_rng(2).integers(0, 1 << 32, 128, dtype=np.uint32)
    memory = GlobalMemory()
    buffers = [memory.alloc(x), memory.alloc(512)]
    Emulator(compile_cuda(source, arch="sm_90")).launch(1, 32, buffers, memory=memory)
    np.testing.assert_array_equal(memory.read(buffers[1], np.uint32), x)


def test_ldmatrix_rows_must_be_16_byte_aligned(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(unsigned* y) {
      __shared__ __align__(16) unsigned s[256]; int t = threadIdx.x; for (int i = 0; i < 8; i++) s[t + 32 * i] = t;
      __syncwarp(); unsigned a = (unsigned)__cvta_generic_to_shared(s) + t * 8, r;
      asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(a)); y[t] = r; }"""
    memory = GlobalMemory()
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(source)).launch(1, 32, [memory.alloc(128)], memory=memory)
    assert caught.value.kind is FaultKind.MISALIGNED
    assert caught.value.fault.thread == (1, 0, 0)
