"""Invalid kernels and launches: the error states kind, PTX and source line, block, thread and address."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory
from evoengine.kernel.compile.nvrtc import compile_ptx

Compile = Callable[..., str]
Dims = int | np.integer[Any] | tuple[int, ...]


def fault_of(
    ptx: str, grid: int, block: int, args: Sequence[Any], memory: GlobalMemory, smem_bytes: int = 0
) -> EmulatorError:
    """Runs an invalid launch and returns its error."""
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(grid, block, args, memory=memory, smem_bytes=smem_bytes)
    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return caught.value


def test_out_of_bounds_error_has_all_fields(compile_cuda: Compile) -> None:
    source = """extern "C" __global__ void f(const float* x, float* y) {
      int i = blockIdx.x * 64 + threadIdx.x;
      y[i] = 1.0f +
        x[i]; }"""
    memory = GlobalMemory()
    x, y = memory.alloc(np.zeros(200, np.float32), name="x"), memory.alloc(1024 * 4, name="y")
    error = fault_of(compile_cuda(source), 4, 64, [x, y], memory)
    fault = error.fault
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert fault.block == (3, 0, 0)
    assert fault.thread == (8, 0, 0)
    assert fault.address == x.address + 800
    assert fault.source_line == 4
    assert "ld.global" in fault.ptx_text
    for part in ("out_of_bounds", "(3, 0, 0)", "(8, 0, 0)", hex(x.address + 800), f"line {fault.ptx_line}"):
        assert part in str(error)


def test_use_after_free_and_null(compile_cuda: Compile) -> None:
    source = """extern "C" __global__ void f(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }"""
    memory = GlobalMemory()
    x, y = memory.alloc(np.zeros(32, np.float32)), memory.alloc(128)
    memory.free(x)
    assert fault_of(compile_cuda(source), 1, 32, [x, y], memory).kind is FaultKind.OUT_OF_BOUNDS
    assert fault_of(compile_cuda(source), 1, 32, [0, y], memory).kind is FaultKind.OUT_OF_BOUNDS


def test_misaligned_vector(compile_cuda: Compile) -> None:
    source = """struct __align__(16) V { float a, b, c, d; };
    extern "C" __global__ void f(const float* x, float* y) { V v = *(const V*)(x + 2 * threadIdx.x);
    y[threadIdx.x] = v.a + v.d; }"""
    memory = GlobalMemory()
    x, y = memory.alloc(np.zeros(128, np.float32)), memory.alloc(128)
    fault = fault_of(compile_cuda(source), 1, 32, [x, y], memory).fault
    assert fault.kind is FaultKind.MISALIGNED
    assert fault.thread == (1, 0, 0)
    assert fault.address == x.address + 8


def test_uninitialised_shared_and_global(compile_cuda: Compile) -> None:
    source = """extern "C" __global__ void f(float* y) { __shared__ float s[64]; int t = threadIdx.x;
      if (t != 5) s[t] = 1.0f; __syncthreads(); y[t] = s[63 - t]; }"""
    memory = GlobalMemory()
    fault = fault_of(compile_cuda(source), 2, 64, [memory.alloc(256)], memory).fault
    assert fault.kind is FaultKind.UNINITIALISED_READ
    assert fault.thread == (58, 0, 0)
    assert fault.address == 20
    source = """extern "C" __global__ void f(float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }"""
    x, y = memory.alloc(128, initialised=False), memory.alloc(128, initialised=False)
    fault = fault_of(compile_cuda(source), 1, 32, [x, y], memory).fault
    assert fault.kind is FaultKind.UNINITIALISED_READ
    assert fault.address == x.address
    assert not memory.written(y).any()


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        ("f32", "setp.nan.f32 p, u, u;"),
        ("f64", "setp.nan.f64 p, u, u;"),
        ("b16", "setp.nan.f16 p, u, u;"),
        ("u32", "setp.ne.u32 p, u, 0;"),
        ("u64", "setp.ne.u64 p, u, 0;"),
        ("pred", "mov.pred p, u;"),
    ],
)
def test_a_register_that_is_read_before_it_is_written_holds_nan(compile_cuda: Compile, kind: str, test: str) -> None:
    source = f"""extern "C" __global__ void f(int* y) {{
      asm volatile("{{ .reg .{kind} u; .reg .pred p; {test} selp.u32 %0, 1, 0, p; }}" : "=r"(y[threadIdx.x])); }}"""
    y = np.zeros(32, np.int32)
    Emulator(compile_cuda(source)).launch(1, 32, [y])
    np.testing.assert_array_equal(y, 1)


def test_inactive_lanes_may_hold_invalid_addresses(compile_cuda: Compile) -> None:
    source = """extern "C" __global__ void f(const int* x, int* y, int n) {
      __shared__ int s[16]; int t = threadIdx.x;
      if (t < 16) s[t] = t;
      __syncthreads();
      y[t] = 0;
      if (t < n) y[t] = x[t * 3] + s[t]; }"""
    memory = GlobalMemory()
    x, y = memory.alloc(np.arange(30, dtype=np.int32)), memory.alloc(64 * 4, initialised=False)
    Emulator(compile_cuda(source)).launch(1, 64, [x, y, np.int32(10)], memory=memory)
    got = memory.read(y, np.int32)
    np.testing.assert_array_equal(got[:10], np.arange(10) * 4)
    assert not got[10:].any()


def test_shared_bounds(compile_cuda: Compile) -> None:
    source = """extern __shared__ float s[]; extern "C" __global__ void f(float* y) { s[threadIdx.x] = 1;
      y[threadIdx.x] = s[threadIdx.x]; }"""
    memory = GlobalMemory()
    fault = fault_of(compile_cuda(source), 1, 64, [memory.alloc(256)], memory, smem_bytes=200).fault
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert fault.thread == (50, 0, 0)
    assert fault.address == 200


@pytest.mark.parametrize(
    ("declared", "load"),
    [
        ("__shared__ int", '"ld.shared.u32 %0, [%1];" : "=r"(v) : "r"((unsigned)(unsigned long long)at)'),
        ("int", '"ld.local.u32 %0, [%1];" : "=r"(v) : "l"(at)'),
    ],
    ids=["shared", "local"],
)
def test_a_generic_address_is_no_address_of_its_space(compile_cuda: Compile, declared: str, load: str) -> None:
    source = f"""extern "C" __global__ void f(int* y) {{ {declared} s[64]; int t = threadIdx.x, v, *at = &s[63 - t];
      *at = t; __syncthreads(); asm volatile({load} : "memory"); y[t] = v; }}"""
    memory = GlobalMemory()
    assert fault_of(compile_cuda(source), 1, 64, [memory.alloc(256)], memory).kind is FaultKind.OUT_OF_BOUNDS


def test_unsupported_instructions_name_the_line() -> None:
    for statement in (
        "tex.1d.v4.f32.s32 {%r, %r, %r, %r}, [%r];",
        "add.rz.f16 %r, %r, %r;",
        "frobnicate.u32 %r, %r;",
        "mov.u32 %r, %pm0;",
        "cvt.rm.tf32.f32 %r, %r;",
        "vset4.u32.u32.eq %r, %r, %r, %r;",
        "cvt.rna.bf16.s32 %r, %r;",
        "ld.global.v4.u64 {%a, %a, %a, %a}, [%a];",
        "st.global.v8.b32 [%a], {%r, %r, %r, %r, %r, %r, %r, %r};",
    ):
        head = ".version 9.0\n.target sm_89\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r; .reg .b64 %a;"
        ptx = f"{head}\n{statement}\nret;\n}}\n"
        fault = fault_of(ptx, 1, 32, [], GlobalMemory()).fault
        assert fault.kind is FaultKind.UNSUPPORTED_INSTRUCTION
        assert fault.ptx_line == 7
        assert fault.ptx_text == statement


def test_trap_and_warp_divergence(compile_cuda: Compile) -> None:
    memory = GlobalMemory()
    buffer = memory.alloc(256)
    source = """extern "C" __global__ void f(int* x) { if (threadIdx.x == 7) __trap(); x[threadIdx.x] = 1; }"""
    fault = fault_of(compile_cuda(source), 1, 32, [buffer], memory).fault
    assert fault.kind is FaultKind.TRAP
    assert fault.thread == (7, 0, 0)
    source = """extern "C" __global__ void f(int* x) {
      if (threadIdx.x < 20) x[threadIdx.x] = __shfl_xor_sync(~0u, (int)threadIdx.x, 1); else x[threadIdx.x] = 3; }"""
    fault = fault_of(compile_cuda(source), 1, 64, [buffer], memory).fault
    assert fault.kind is FaultKind.WARP_DIVERGENCE
    assert fault.thread == (20, 0, 0)


@pytest.mark.parametrize("kind", [FaultKind.UNINITIALISED_READ, FaultKind.OUT_OF_BOUNDS])
def test_faults_of_local_memory_name_block_and_thread(compile_cuda: Compile, kind: FaultKind) -> None:
    """One thread, which is not the first one of the first block, reads what is not there."""
    source = """extern "C" __global__ void f(float* x, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      float own[8];
      for (int j = 0; j < n; j++) own[(i + j) % 8] = j;
      x[i] = own[i == 45 ? OTHER : (i + n / 2) % 8]; }""".replace(
        "OTHER", "n + 1" if kind is FaultKind.OUT_OF_BOUNDS else "4"
    )
    memory = GlobalMemory()
    n = 7 if kind is FaultKind.OUT_OF_BOUNDS else 3
    fault = fault_of(compile_cuda(source), 2, 32, [memory.alloc(256), np.int32(n)], memory).fault
    assert fault.kind is kind
    assert (fault.block, fault.thread, fault.source_line) == ((1, 0, 0), (13, 0, 0), 5)


def test_faults_in_functions_of_a_header_name_the_line_of_the_kernel() -> None:
    source = """#include <cuda_pipeline_primitives.h>
    extern "C" __global__ void f(const float4* x, float4* y) {
      __shared__ float4 s[32];
      __pipeline_memcpy_async(s + threadIdx.x, x + threadIdx.x, 16);
      __pipeline_commit(); __pipeline_wait_prior(0);
      y[threadIdx.x] = s[threadIdx.x]; }"""
    memory = GlobalMemory()
    x, y = memory.alloc(np.zeros(31 * 4, np.float32)), memory.alloc(512)
    fault = fault_of(compile_ptx(source, name="own.cu"), 1, 32, [x, y], memory).fault
    assert fault.kind is FaultKind.OUT_OF_BOUNDS
    assert (fault.source_file, fault.source_line) == ("/own.cu", 4)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("float", 3, 3.0),
        ("float", True, 1.0),
        ("float", np.float64(0.5), 0.5),
        ("double", -3, -3.0),
        ("int", -7, -7.0),
        ("unsigned", 2**32 - 1, float(2**32 - 1)),
        ("bool", True, 1.0),
        ("int", 1.5, None),
        ("int", np.float32(2), None),
        ("int", 2**32, None),
        ("int", -(2**31) - 1, None),
        ("long long", 1.0, None),
        ("float", np.int32(3), None),
        pytest.param("float", 10**400, None, id="float-large"),
        ("float", np.array(1, ">f4"), None),
    ],
)
def test_numbers_are_passed_by_the_type_of_their_parameter(
    compile_cuda: Compile, kind: str, value: object, expected: float | None
) -> None:
    ptx = compile_cuda(f"""extern "C" __global__ void f(double* x, {kind} given) {{ x[0] = given; }}""")
    out = np.zeros(1)
    if expected is None:
        with pytest.raises(EmulatorError) as caught:
            Emulator(ptx).launch(1, 1, [out, value])
        assert caught.value.kind is FaultKind.BAD_LAUNCH
    else:
        Emulator(ptx).launch(1, 1, [out, value])
        assert out[0] == expected


@pytest.mark.parametrize("dtype", [">f4", "O"])
def test_arrays_that_a_gpu_cannot_read_are_refused(compile_cuda: Compile, dtype: str) -> None:
    ptx = compile_cuda("""extern "C" __global__ void f(float* x) { x[0] = 1; }""")
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(1, 1, [np.zeros(4, dtype)])
    assert caught.value.kind is FaultKind.BAD_LAUNCH


def test_invalid_launches(compile_cuda: Compile) -> None:
    ptx = compile_cuda("""extern "C" __global__ void f(int* x, short s) { x[0] = s; }""")
    memory = GlobalMemory()
    buffer = memory.alloc(4)
    for options in (
        {"block": 2048},
        {"grid": 0},
        {"grid": 2.5},
        {"block": (32, 1.0)},
        {"smem_bytes": 300_000},
        {"smem_bytes": 64.0},
        {"args": [buffer]},
        {"args": [buffer, np.int32(1)]},
    ):
        call: dict[str, Any] = {"grid": 1, "block": 32, "args": [buffer, np.int16(1)], **options}
        error = fault_of(ptx, memory=memory, **call)
        assert error.kind is FaultKind.BAD_LAUNCH


CP_ASYNC = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(16) int s[2][256]; int t = threadIdx.x;
  unsigned a = (unsigned)__cvta_generic_to_shared(&s[0][4 * t]), b = (unsigned)__cvta_generic_to_shared(&s[1][4 * t]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(x + 4 * t) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(b), "l"(x + 256 + 4 * t), "r"(SRC) :
  "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  WAIT
  BARRIER
  for (int i = 0; i < 4; i++) y[4 * t + i] = s[WHICH][INDEX]; }
"""


def cp_async(wait: str, barrier: str, which: int, index: str = "(4 * t + i + 128) & 255", src: str = "16") -> str:
    """Source of the kernel with one choice for each placeholder."""
    text = CP_ASYNC
    for hole, choice in (("WAIT", wait), ("BARRIER", barrier), ("WHICH", str(which)), ("INDEX", index), ("SRC", src)):
        text = text.replace(hole, choice)
    return text


WAIT = {n: f'asm volatile("cp.async.wait_group {n};" ::: "memory");' for n in (0, 1)}
OTHER, OWN = "(4 * t + i + 128) & 255", "4 * t + i"


@pytest.mark.parametrize(
    ("wait", "barrier", "which", "index", "good"),
    [
        (WAIT[0], "__syncthreads();", 1, OTHER, True),
        (WAIT[1], "__syncthreads();", 0, OTHER, True),
        ('asm volatile("cp.async.wait_all;" ::: "memory");', "__syncthreads();", 1, OTHER, True),
        (WAIT[1], "", 0, OWN, True),
        (WAIT[1], "__syncwarp();", 0, "(4 * t + i ^ 12)", True),
        ("", "__syncthreads();", 0, OWN, False),
        (WAIT[1], "__syncthreads();", 1, OTHER, False),
        (WAIT[1], "", 0, OTHER, False),
        ("", "", 0, OWN, False),
    ],
)
def test_cp_async_is_visible_after_wait_and_barrier(
    compile_cuda: Compile, wait: str, barrier: str, which: int, index: str, good: bool
) -> None:
    x = np.arange(512, dtype=np.int32)
    memory = GlobalMemory()
    buffers = [memory.alloc(x), memory.alloc(1024)]
    ptx = compile_cuda(cp_async(wait, barrier, which, index))
    if good:
        Emulator(ptx).launch(3, 64, buffers, memory=memory)
        t, i = np.divmod(np.arange(256), 4)
        where = {OTHER: (np.arange(256) + 128) & 255, OWN: np.arange(256)}.get(index, (4 * t + i) ^ 12)
        np.testing.assert_array_equal(memory.read(buffers[1], np.int32), x[256 * which + where])
    else:
        assert fault_of(ptx, 3, 64, buffers, memory).kind is FaultKind.CP_ASYNC_NOT_WAITED


@pytest.mark.parametrize("waits", [True, False])
def test_two_copies_to_one_place_need_a_wait_between_them(compile_cuda: Compile, waits: bool) -> None:
    """No order is defined between the copies, though the older group is waited for in both."""
    memory = GlobalMemory()
    buffers = [memory.alloc(np.arange(512, dtype=np.int32)), memory.alloc(1024)]
    source = cp_async(WAIT[0], "__syncthreads();", 0, OWN).replace("&s[1][4 * t]", "&s[0][4 * t]")
    first = 'asm volatile("cp.async.commit_group;" ::: "memory");'
    ptx = compile_cuda(source.replace(first, f"{first} {WAIT[0]}", 1) if waits else source)
    if waits:
        Emulator(ptx).launch(1, 64, buffers, memory=memory)
        np.testing.assert_array_equal(memory.read(buffers[1], np.int32), np.arange(256, 512))
    else:
        assert fault_of(ptx, 1, 64, buffers, memory).kind is FaultKind.CP_ASYNC_NOT_WAITED


@pytest.mark.parametrize("keep", [0, 4, 10, 16])
def test_cp_async_zero_fills(compile_cuda: Compile, keep: int) -> None:
    x = np.arange(1, 513, dtype=np.int32)
    memory = GlobalMemory()
    buffers = [memory.alloc(x if keep == 16 else x[: 508 + (keep + 3) // 4]), memory.alloc(1024)]
    ptx = compile_cuda(cp_async(WAIT[0], "__syncthreads();", 1, OWN, f"t == 63 ? {keep} : 16"))
    Emulator(ptx).launch(1, 64, buffers, memory=memory)
    want = x[256:].copy()
    raw = want[-4:].view(np.uint8)
    raw[keep:] = 0
    np.testing.assert_array_equal(memory.read(buffers[1], np.int32), want)


def test_copy_groups_are_counted_per_lane(compile_cuda: Compile) -> None:
    source = """extern "C" __global__ void f(const int* x, int* y, int late) {
      __shared__ __align__(16) int s[256]; int t = threadIdx.x;
      unsigned a = (unsigned)__cvta_generic_to_shared(&s[4 * t]);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(x + 4 * t) : "memory");
      asm volatile("cp.async.commit_group;" ::: "memory");
      if (t >= late) asm volatile("cp.async.commit_group;" ::: "memory");
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      __syncthreads();
      if (t >= late) for (int i = 0; i < 4; i++) y[4 * t + i] = s[4 * t + i]; else if (late == 64) y[t] = s[4 * t]; }"""
    memory = GlobalMemory()
    x, y = memory.alloc(np.arange(256, dtype=np.int32)), memory.alloc(1024)
    Emulator(compile_cuda(source)).launch(1, 64, [x, y, np.int32(32)], memory=memory)
    np.testing.assert_array_equal(memory.read(y, np.int32)[128:], np.arange(128, 256))
    assert fault_of(compile_cuda(source), 1, 64, [x, y, np.int32(64)], memory).kind is FaultKind.CP_ASYNC_NOT_WAITED


BYTES = """extern "C" __global__ void f(unsigned char* y) {
  __shared__ volatile unsigned char s[128]; volatile unsigned char own[8]; int t = threadIdx.x;
  s[2 * t] = t; LOWER
  own[2 * (t & 3)] = t;
  __syncthreads();
  y[t] = READ; }"""


@pytest.mark.parametrize("read", ["s[2 * (63 - t)]", "own[2 * (t & 3)]", "*(volatile unsigned short*)(s + 2 * t)"])
def test_single_bytes_are_initialised_alone(compile_cuda: Compile, read: str) -> None:
    out = np.zeros(64, np.uint8)
    whole = BYTES.replace("LOWER", "s[2 * t + 1] = 0;").replace("READ", read)
    Emulator(compile_cuda(whole)).launch(1, 64, [out], races=True)
    np.testing.assert_array_equal(out, np.arange(64)[:: -1 if "63" in read else 1])


@pytest.mark.parametrize(
    "read", ["s[2 * t + 1]", "own[2 * (t & 3) + 1]", "*(volatile unsigned short*)(s + 2 * t)", "s[2 * (63 - t) + 1]"]
)
def test_a_byte_beside_one_that_was_written(compile_cuda: Compile, read: str) -> None:
    memory = GlobalMemory()
    half = BYTES.replace("LOWER", "").replace("READ", read)
    assert fault_of(compile_cuda(half), 1, 64, [memory.alloc(64)], memory).kind is FaultKind.UNINITIALISED_READ


@pytest.mark.parametrize(
    ("bounds", "grid", "block", "fits"),
    [
        ("__launch_bounds__(64)", 1, 64, True),
        ("__launch_bounds__(64)", 1, (16, 8), False),
        ("__launch_bounds__(64)", 1, 32, True),
        ("", 1, (1, 1, 64), True),
        ("", 1, (1, 1, 65), False),
        ("", (1, 65535), 1, True),
        ("", (1, 65536), 1, False),
        ("", (1, 1, 65536), 1, False),
        ("", 70000, 1, True),
        ("", np.int64(2), np.uint8(32), True),
        ("", np.int64(2), np.int32(-1), False),
    ],
)
def test_sizes_of_launches(compile_cuda: Compile, bounds: str, grid: Dims, block: Dims, *, fits: bool) -> None:
    ptx = compile_cuda(f'extern "C" __global__ void {bounds} f(int* y) {{ if (blockIdx.x + blockIdx.y == 0) *y = 1; }}')
    out = np.zeros(1, np.int32)
    if fits:
        Emulator(ptx).launch(grid, block, [out])
        assert out[0] == 1
        return
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(grid, block, [out])
    assert caught.value.kind is FaultKind.BAD_LAUNCH


@pytest.mark.parametrize(
    ("cluster", "grid", "fits"),
    [("2", 4, True), ("2", 3, False), ("2, 4", (4, 4), True), ("2, 4", (4, 6), False), ("2, 8", (4, 8), False)],
)
def test_a_grid_consists_of_whole_clusters(
    compile_cuda: Compile, cluster: str, grid: int | tuple[int, ...], *, fits: bool
) -> None:
    text = f'extern "C" __global__ void __cluster_dims__({cluster}) f(int* y) {{ if (blockIdx.x == 0) *y = 1; }}'
    emulator, out = Emulator(compile_cuda(text, arch="sm_90a")), np.zeros(1, np.int32)
    if fits:
        emulator.launch(grid, 32, [out])
        assert out[0] == 1
        return
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(grid, 32, [out])
    assert caught.value.kind is FaultKind.BAD_LAUNCH


COPY = """extern "C" __global__ void f(const int* x, int* y, int bytes) {
  __shared__ __align__(16) int s[128]; int t = threadIdx.x;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\\ncp.async.wait_all;"
               :: "r"((unsigned)__cvta_generic_to_shared(s + 4 * t)), "l"(x + 4 * t), "r"(bytes) : "memory");
  __syncthreads();
  for (int i = t; i < 128; i += 32) y[i] = s[i]; }"""


@pytest.mark.parametrize("size", [0, 4, 12, 16])
def test_source_sizes_of_copies(compile_cuda: Compile, size: int) -> None:
    x, y = np.arange(1, 129, dtype=np.int32), np.zeros(128, np.int32)
    Emulator(compile_cuda(COPY)).launch(1, 32, [x, y, size])
    np.testing.assert_array_equal(y, np.where(np.arange(128) % 4 < size // 4, x, 0))


def test_a_copy_of_more_than_its_size(compile_cuda: Compile) -> None:
    memory = GlobalMemory()
    x, y = memory.alloc(np.zeros(1024, np.int32)), memory.alloc(512)
    assert fault_of(compile_cuda(COPY), 1, 32, [x, y, 32], memory).kind is FaultKind.ILLEGAL_VALUE


def test_cache_policies_change_no_result(compile_cuda: Compile) -> None:
    source = """extern "C" __global__ void f(const float* in, float* out) {
      __shared__ __align__(16) float s[128]; const int t = threadIdx.x; float x; unsigned long long policy;
      const unsigned at = (unsigned)__cvta_generic_to_shared(s + 4 * t);
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;\\ncp.async.wait_all;"
        :: "r"(at), "l"(in + 4 * t), "l"(policy) : "memory");
      asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;\\ncp.async.wait_all;"
        :: "r"(at), "l"(in + 4 * t), "r"(t % 2 * 8), "l"(policy) : "memory");
      asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(x) : "l"(in + t), "l"(policy));
      asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" :: "l"(out + t), "f"(x), "l"(policy) : "memory");
      asm volatile("red.global.add.L2::cache_hint.f32 [%0], %1, %2;" :: "l"(out + t), "f"(s[4 * t + 1]), "l"(policy));
      out[t + 32] = s[4 * t + 2]; }"""
    values, out = np.arange(128, dtype=np.float32), np.zeros(64, np.float32)
    Emulator(compile_cuda(source)).launch(1, 32, [values, out], races=True)
    copied = values.reshape(32, 4) * (np.arange(32)[:, None] % 2) * [1, 1, 0, 0]
    np.testing.assert_array_equal(out, [*(values[:32] + copied[:, 1]), *copied[:, 2]])
