"""Warp divergence, loops, barriers, warp-level operations and atomics, in kernels compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import (
    Emulator,
    EmulatorError,
    EmulatorTimeoutError,
    FaultKind,
    GlobalMemory,
    LaunchReport,
    Pipe,
)

RunCuda = Callable[..., tuple[list[np.ndarray], LaunchReport]]


def test_vector_add_with_a_ragged_tail(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }"""
    a, b = np.random.default_rng(0).standard_normal((2, 1000)).astype(np.float32)
    (_, _, c), report = run_cuda(source, 8, 128, [a, b, np.zeros_like(a)], [np.int32(1000)])
    np.testing.assert_array_equal(c, a + b)
    assert report.global_read_bytes == 8000
    assert report.global_written_bytes == 4000
    assert report.ctas == 8
    assert report.warps == 32
    assert report.pipes[Pipe.FMA] >= 32


def test_loops_with_a_trip_count_per_thread(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void collatz(const unsigned* x, int* steps) {
      int i = blockIdx.x * blockDim.x + threadIdx.x; unsigned v = x[i]; int n = 0;
      while (v != 1) { if (v & 1) v = 3 * v + 1; else v >>= 1; n++; if (n > 100) break; }
      steps[i] = n; }"""
    x = np.arange(1, 257, dtype=np.uint32)

    def collatz(v: int) -> int:
        n = 0
        while v != 1:
            v = 3 * v + 1 if v & 1 else v >> 1
            n += 1
            if n > 100:
                break
        return n

    (_, steps), _ = run_cuda(source, 4, 64, [x, np.zeros(256, np.int32)])
    np.testing.assert_array_equal(steps, [collatz(int(v)) for v in x])


def test_nested_divergence_and_switch(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void f(const int* x, int* y) {
      int i = threadIdx.x, v = x[i], r = 0;
      for (int k = 0; k < (i & 7); k++) {
        switch (v & 7) { case 0: r += 3; break; case 1: r ^= 5; break; case 2: r -= k; break; case 3: r *= 3; break;
                         case 4: r += v; break; case 5: continue; case 6: r ^= k; break; default: r -= 7; }
        if (r & 1) { if (k & 1) r += 10; else r -= 20; }
        v = v * 1664525 + 1013904223;
      }
      y[i] = r; }"""
    x = np.random.default_rng(1).integers(-1000, 1000, 96).astype(np.int32)

    def reference(i: int, v: int) -> int:
        r = 0

        def wrap(value: int) -> int:
            return (value + (1 << 31)) % (1 << 32) - (1 << 31)

        for k in range(i & 7):
            case = v & 7
            if case == 5:
                continue
            r = wrap([r + 3, r ^ 5, r - k, r * 3, r + v, r, r ^ k, r - 7][case])
            if r & 1:
                r = wrap(r + 10 if k & 1 else r - 20)
            v = wrap(v * 1664525 + 1013904223)
        return r

    (_, y), _ = run_cuda(source, 1, 96, [x, np.zeros(96, np.int32)])
    np.testing.assert_array_equal(y, [reference(i, int(v)) for i, v in enumerate(x)])


def test_block_reduction_through_shared_memory(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void sum(const float* x, float* out) {
      __shared__ float s[256]; int t = threadIdx.x; s[t] = x[blockIdx.x * 256 + t]; __syncthreads();
      for (int d = 128; d > 0; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
      if (t == 0) out[blockIdx.x] = s[0]; }"""
    x = np.random.default_rng(2).integers(-50, 50, (5, 256)).astype(np.float32)
    (_, out), report = run_cuda(source, 5, 256, [x, np.zeros(5, np.float32)])
    np.testing.assert_array_equal(out, x.sum(1))
    assert report.barriers == 9 * 8 * 5


def test_transpose_and_vectors(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void transpose(const float4* x, float* y, int n) {
      __shared__ float s[32][36]; int tx = threadIdx.x, ty = threadIdx.y;
      float4 v = x[((blockIdx.y * 32 + ty) * n + blockIdx.x * 32) / 4 + tx];
      *(float4*)&s[ty][4 * tx] = v; __syncthreads();
      for (int j = 0; j < 4; j++) y[(blockIdx.x * 32 + ty) * n + blockIdx.y * 32 + tx + 8 * j] = s[tx + 8 * j][ty]; }"""
    x = np.random.default_rng(3).standard_normal((96, 96)).astype(np.float32)
    options = ("-I.",)
    source = "struct __align__(16) float4_ { float x, y, z, w; };\n#define float4 float4_\n" + source
    (_, y), _ = run_cuda(source, (3, 3), (8, 32), [x, np.zeros_like(x)], [np.int32(96)], options=options)
    np.testing.assert_array_equal(y, x.T)


def test_named_barriers_between_producer_and_consumer_warps(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void pipe(const int* x, int* y, int rounds) {
      __shared__ int s[2][32]; int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
      if (warp == 0) {
        for (int r = 0; r < rounds; r++) {
          asm volatile("bar.sync %0, 64;" :: "r"(3 + (r & 1)) : "memory");
          s[r & 1][lane] = x[r * 32 + lane];
          asm volatile("bar.arrive %0, 64;" :: "r"(1 + (r & 1)) : "memory"); }
      } else {
        asm volatile("bar.arrive 3, 64;" ::: "memory"); asm volatile("bar.arrive 4, 64;" ::: "memory");
        for (int r = 0; r < rounds; r++) {
          asm volatile("bar.sync %0, 64;" :: "r"(1 + (r & 1)) : "memory");
          y[r * 32 + lane] = s[r & 1][31 - lane];
          if (r + 2 < rounds) asm volatile("bar.arrive %0, 64;" :: "r"(3 + (r & 1)) : "memory"); } } }"""
    x = np.random.default_rng(4).integers(0, 1000, (7, 32)).astype(np.int32)
    (_, y), _ = run_cuda(source, 1, 64, [x, np.zeros_like(x)], [np.int32(7)])
    np.testing.assert_array_equal(y, x[:, ::-1])


def test_shuffles_and_votes(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void f(const int* x, int* y) {
      int t = threadIdx.x, v = x[t], *o = y + t * 10; unsigned m = ~0u;
      o[0] = __shfl_sync(m, v, 5); o[1] = __shfl_sync(m, v, t & 3, 8); o[2] = __shfl_up_sync(m, v, 3);
      o[3] = __shfl_down_sync(m, v, 2, 16); o[4] = __shfl_xor_sync(m, v, 7); o[5] = __ballot_sync(m, v > 0);
      o[6] = __any_sync(m, v > 900); o[7] = __all_sync(m, v > -2000); o[8] = __reduce_max_sync(m, v);
      o[9] = __match_any_sync(m, v & 3); }"""
    x = np.random.default_rng(5).integers(-1000, 1000, 64).astype(np.int32)
    (_, y), _ = run_cuda(source, 1, 64, [x, np.zeros((64, 10), np.int32)])
    for warp in range(2):
        v = x[32 * warp : 32 * warp + 32].tolist()
        for i in range(32):
            got = y[32 * warp + i].tolist()
            ballot = sum((value > 0) << n for n, value in enumerate(v))
            match = sum(((value & 3) == (v[i] & 3)) << n for n, value in enumerate(v))
            up, down = v[i - 3] if i >= 3 else v[i], v[i + 2] if i % 16 + 2 < 16 else v[i]
            want = [v[5], v[i // 8 * 8 + (i & 3)], up, down, v[i ^ 7], ballot, max(v) > 900, 1, max(v), match]
            assert [g & 0xFFFFFFFF for g in got] == [int(w) & 0xFFFFFFFF for w in want]


def test_atomics(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void f(const int* x, int* sums, int* order, float* fsum, unsigned* most) {
      __shared__ int bins[8]; int t = threadIdx.x, v = x[blockIdx.x * blockDim.x + t];
      if (t < 8) bins[t] = 0; __syncthreads();
      atomicAdd(&bins[v & 7], v); order[blockIdx.x * blockDim.x + t] = atomicAdd(&sums[8], 1);
      atomicAdd(fsum, 0.5f); atomicMax(most, (unsigned)v); __syncthreads();
      if (t < 8) atomicAdd(&sums[t], bins[t]); }"""
    x = np.random.default_rng(6).integers(0, 1000, 256).astype(np.int32)
    arrays = [x, np.zeros(9, np.int32), np.zeros(256, np.int32), np.zeros(1, np.float32), np.zeros(1, np.uint32)]
    (_, sums, order, fsum, most), _ = run_cuda(source, 4, 64, arrays)
    np.testing.assert_array_equal(sums[:8], [x[x & 7 == k].sum() for k in range(8)])
    assert sums[8] == 256
    assert sorted(order.tolist()) == list(range(256))
    assert fsum[0] == 128
    assert most[0] == x.max()


def test_local_arrays_and_generic_pointers(run_cuda: RunCuda) -> None:
    source = """__device__ __noinline__ int pick(const int* p, int i) { return p[i]; }
    extern "C" __global__ void f(const int* x, int* y, int k) {
      __shared__ int s[64]; int a[8], t = threadIdx.x; s[t] = x[t] * 2; __syncthreads();
      for (int i = 0; i < 8; i++) a[(i * 5 + t) & 7] = x[(t + i) & 63] + i;
      const int* p = (t & 1) ? s : x; y[t] = a[(t + k) & 7] + p[63 - t]; }"""
    x = np.random.default_rng(7).integers(0, 1000, 64).astype(np.int32)
    (_, y), _ = run_cuda(source, 1, 64, [x, np.zeros(64, np.int32)], [np.int32(3)])
    want = []
    for t in range(64):
        a = [0] * 8
        for i in range(8):
            a[(i * 5 + t) & 7] = int(x[(t + i) & 63]) + i
        want.append(a[(t + 3) & 7] + int(x[63 - t]) * (2 if t & 1 else 1))
    np.testing.assert_array_equal(y, want)


def test_module_constants(run_cuda: RunCuda) -> None:
    source = """__constant__ float table[4] = {1.5f, -2.0f, 0.25f, 8.0f}; __device__ int bias[2] = {7, -9};
    extern "C" __global__ void f(float* y) { int t = threadIdx.x; y[t] = table[t & 3] + bias[t & 1]; }"""
    (y,), _ = run_cuda(source, 1, 32, [np.zeros(32, np.float32)])
    np.testing.assert_array_equal(y, np.tile([8.5, -11.0, 7.25, -1.0], 8))


def test_only_used_module_variables_are_allocated(compile_cuda: Callable[..., str]) -> None:
    source = """namespace facts { constexpr int ROWS = 3, COLUMNS = 4; }
    __device__ int bias[2] = {7, -9}, spare[2] = {1, 1}, calls = 0;
    __device__ __noinline__ int biased(int i) { return bias[i]; }
    extern "C" __global__ void f(int* y) { y[threadIdx.x] = biased(threadIdx.x & 1); }
    extern "C" __global__ void g(int* y) { if (threadIdx.x == 0) calls += facts::ROWS; y[threadIdx.x] = spare[0]; }"""
    ptx, memory = compile_cuda(source), GlobalMemory()
    assert ".global" in ptx
    assert "ROWS" in ptx
    y = np.zeros(32, np.int32)
    Emulator(ptx, entry="f").launch(1, 32, [y], memory=memory)
    np.testing.assert_array_equal(y, np.tile([7, -9], 16))
    assert {name for _, name in memory.symbols()} == {"bias"}
    for times in (1, 2):  # a later launch reads the values that this one leaves in module variables
        Emulator(ptx, entry="g").launch(1, 32, [y], memory=memory)
        held = {name: contents.view(np.int32)[0] for (_, name), contents in memory.symbols().items()}
        assert held == {"bias": 7, "spare": 1, "calls": 3 * times}


def test_grids_in_three_axes_and_odd_batches(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void f(int* y) {
      int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      y[b * 40 + t] = blockIdx.z * 100000 + blockIdx.y * 10000 + blockIdx.x * 1000
        + threadIdx.z * 100 + threadIdx.y * 10 + threadIdx.x; }"""
    (y,), _ = run_cuda(source, (3, 2, 2), (5, 4, 2), [np.zeros(480, np.int32)], max_batch_lanes=200)
    z, yy, x, tz, ty, tx = np.meshgrid(*(np.arange(n) for n in (2, 2, 3, 2, 4, 5)), indexing="ij")
    np.testing.assert_array_equal(y, (z * 100000 + yy * 10000 + x * 1000 + tz * 100 + ty * 10 + tx).ravel())


def test_parameters_read_through_a_pointer(compile_cuda: Callable[..., str]) -> None:
    source = """struct P { int* out; int table[8]; };
    extern "C" __global__ void f(const __grid_constant__ P p, int k) {
      p.out[threadIdx.x] = p.table[(threadIdx.x + k) & 7]; }"""
    memory = GlobalMemory()
    out = memory.alloc(128)
    params = np.zeros((), np.dtype([("out", np.uint64), ("table", np.int32, 8)]))
    params["out"], params["table"] = out.address, np.arange(10, 18)
    Emulator(compile_cuda(source)).launch(1, 32, [params, np.int32(3)], memory=memory)
    np.testing.assert_array_equal(memory.read(out, np.int32), 10 + (np.arange(32) + 3) % 8)


def test_a_barrier_under_a_predicate() -> None:
    ptx = """.version 9.0
.target sm_89
.address_size 64
.visible .entry k(.param .u64 out)
{
.reg .b32 %t, %v; .reg .b64 %a, %o; .reg .pred %p;
.shared .align 4 .b8 box[128];
mov.u32 %t, %tid.x;
setp.lt.u32 %p, %t, 64;
ld.param.u64 %a, [out];
mul.wide.u32 %o, %t, 4;
add.s64 %a, %a, %o;
mov.u32 %v, 7;
@%p bar.sync 1, 64;
@!%p add.u32 %v, %v, 1;
st.global.u32 [%a], %v;
ret;
}
"""
    memory = GlobalMemory()
    out = memory.alloc(96 * 4)
    Emulator(ptx).launch(1, 96, [out], memory=memory)
    np.testing.assert_array_equal(memory.read(out, np.int32), np.where(np.arange(96) < 64, 7, 8))


def test_a_warp_may_poll_a_flag_of_another_warp(run_cuda: RunCuda) -> None:
    source = """extern "C" __global__ void f(int* y) {
      __shared__ volatile int flag; int t = threadIdx.x;
      if (t == 0) flag = 0;
      __syncthreads();
      if (t < 32) { while (flag == 0) { } y[t] = flag + t; }
      else { int s = 0; for (int i = 0; i < 20; i++) s += y[64 + i]; if (t == 63) flag = s; } }"""
    (y,), _ = run_cuda(source, 2, 64, [np.ones(128, np.int32)])
    np.testing.assert_array_equal(y[:32], 20 + np.arange(32))


def test_infinite_loops_time_out(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(volatile int* x) {
      while (x[0] == 0) { }
      x[1] = 1; }"""
    memory = GlobalMemory()
    buffer = memory.alloc(np.zeros(2, np.int32))
    emulator = Emulator(compile_cuda(source))
    with pytest.raises(EmulatorTimeoutError, match=r"infinite loop.*kernel\.cu:2$"):
        emulator.launch(1, 32, [buffer], memory=memory, max_steps=1000)
    with pytest.raises(EmulatorTimeoutError, match=r"deadline.*kernel\.cu:2$"):
        emulator.launch(1, 32, [buffer], memory=memory, deadline_s=0.05)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ('printf("%d", y[0]);', "printf"),
        ("y[0] = *(int*)malloc(y[1]);", "malloc"),
        ("y[0] = factorial(y[1]);", "factorial"),
        ("int (*f)(int) = y[1] ? one : factorial; y[0] = f(y[1]);", "address of .*(one|factorial)"),
    ],
)
def test_calls_that_are_not_supported_are_named(compile_cuda: Callable[..., str], statement: str, named: str) -> None:
    source = """
    __device__ __noinline__ int factorial(int n) { return n < 2 ? 1 : n + factorial(n - 1) * n; }
    __device__ __noinline__ int one(int n) { return n + 1; }
    extern "C" __global__ void f(int* y) { STATEMENT }""".replace("STATEMENT", statement)
    with pytest.raises(EmulatorError, match=named) as caught:
        Emulator(compile_cuda(source)).launch(1, 1, [np.full(2, 3, np.int32)])
    assert caught.value.kind is FaultKind.UNSUPPORTED_INSTRUCTION


def test_a_barrier_that_some_warps_skip_is_a_deadlock(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(int* x) { if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
      else asm volatile("bar.sync 2, 64;");
      x[threadIdx.x] = 1; }"""
    memory = GlobalMemory()
    buffer = memory.alloc(np.zeros(64, np.int32))
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(source)).launch(1, 64, [buffer], memory=memory)
    assert caught.value.kind is FaultKind.BARRIER_DEADLOCK
    assert "warps [0] at barrier [1]" in str(caught.value)
    assert "warps [1] at barrier [2]" in str(caught.value)


def test_a_jump_beyond_its_targets_names_instruction_and_thread() -> None:
    ptx = """.version 8.0
.target sm_89
.address_size 64
.visible .entry jump() {
  .reg .b32 %r<2>;
  mov.u32 %r0, %tid.x;
  add.u32 %r0, %r0, 1;
  mov.u32 %r1, 7;
  targets: .branchtargets A, B, C;
  brx.idx %r0, targets;
A:
B:
C:
  ret;
}
"""
    Emulator(ptx).launch(1, 2, [])
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(1, 32, [])
    fault = caught.value.fault
    assert fault.kind is FaultKind.ILLEGAL_VALUE
    assert fault.ptx_text.startswith("brx.idx")
    assert fault.ptx_line == 10
    assert fault.thread == (2, 0, 0)
    assert fault.detail == "brx.idx 3 of 3 targets"


def test_threads_that_have_exited_do_not_jump() -> None:
    ptx = """.version 8.0
.target sm_89
.address_size 64
.visible .entry jump(.param .u64 p) {
  .reg .b32 %r<2>;
  .reg .b64 %rd<3>;
  .reg .pred %p<1>;
  mov.u32 %r0, %tid.x;
  setp.gt.u32 %p0, %r0, 2;
  @%p0 exit;
  mov.u32 %r1, 7;
  targets: .branchtargets A, B, C;
  brx.idx %r0, targets;
A:
  mov.u32 %r1, 3;
B:
  add.u32 %r1, %r1, 1;
C:
  ld.param.u64 %rd0, [p];
  mul.wide.u32 %rd1, %r0, 4;
  add.u64 %rd2, %rd0, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
"""
    out = np.zeros(4, np.int32)
    Emulator(ptx).launch(1, 33, [out])
    assert out.tolist() == [4, 8, 7, 0]
