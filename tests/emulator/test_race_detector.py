"""Races between warps in shared memory are reported if and only if a barrier is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory

KERNEL = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[128]; int t = threadIdx.x;
  s[t] = x[t]; SYNC1
  int v = s[(t + SHIFT) & 127]; SYNC2
  s[t] = v + 1; SYNC3
  y[t] = s[127 - t]; }
"""
SYNC = "__syncthreads();"


def source(first: str = SYNC, second: str = SYNC, third: str = SYNC, shift: int = 32) -> str:
    """Source of the kernel with its three barriers."""
    text = KERNEL.replace("SHIFT", str(shift))
    return text.replace("SYNC1", first).replace("SYNC2", second).replace("SYNC3", third)


def launch(ptx: str, races: bool = True) -> np.ndarray:
    """Runs the kernel on three CTAs."""
    memory = GlobalMemory()
    x, y = memory.alloc(np.arange(128, dtype=np.int32)), memory.alloc(512)
    Emulator(ptx).launch(3, 128, [x, y], memory=memory, races=races)
    return memory.read(y, np.int32)


def test_a_synchronised_kernel_has_no_race(compile_cuda: Callable[..., str]) -> None:
    got = launch(compile_cuda(source()))
    np.testing.assert_array_equal(got, ((np.arange(128) + 32) % 128 + 1)[::-1])


@pytest.mark.parametrize("missing", ["first", "second", "third"])
def test_a_missing_barrier_is_a_race(compile_cuda: Callable[..., str], missing: str) -> None:
    first, second, third = ("" if place == missing else SYNC for place in ("first", "second", "third"))
    ptx = compile_cuda(source(first, second, third))
    with pytest.raises(EmulatorError) as caught:
        launch(ptx)
    assert caught.value.kind is FaultKind.DATA_RACE
    assert ("st.shared" if missing == "second" else "ld.shared") in caught.value.fault.ptx_text
    launch(ptx, races=False)


def test_exchange_within_a_warp_is_no_race(compile_cuda: Callable[..., str]) -> None:
    text = source(first="__syncwarp();", second="__syncwarp();", shift=0)
    np.testing.assert_array_equal(launch(compile_cuda(text)), (np.arange(128) + 1)[::-1])


def test_writes_of_two_warps_at_once(compile_cuda: Callable[..., str]) -> None:
    text = """extern "C" __global__ void f(const int* x, int* y) {
      __shared__ int s[32]; s[threadIdx.x & 31] = x[threadIdx.x]; __syncthreads();
      y[threadIdx.x] = s[threadIdx.x & 31]; }"""
    Emulator(compile_cuda(text)).launch(
        1, 64, [np.tile(np.arange(32, dtype=np.int32), 2), np.zeros(64, np.int32)], races=True
    )
    with pytest.raises(EmulatorError, match="different values"):
        launch(compile_cuda(text))


def test_each_barrier_of_flash_is_needed(compile_cuda: Callable[..., str]) -> None:
    """The second barrier of the loop protects the V buffer that the next copy overwrites."""
    text = (Path(__file__).parent / "flash.cu").read_text()
    memory = GlobalMemory()
    params = np.zeros((), np.dtype([("p", np.uint64, 4), ("s", np.int32, 2), ("scale", np.float32), ("pad", np.int32)]))
    tensors = [memory.alloc(np.zeros(256 * 64, np.float16)) for _ in range(4)]
    params["p"], params["s"], params["scale"] = [b.address for b in tensors], (64, 256), 0.1
    smem = 4 * 2048 + 4 * 64 * 128
    Emulator(compile_cuda(text, "-DWARPS=4")).launch(1, 128, [params], memory=memory, smem_bytes=smem, races=True)
    one_buffer = text.replace("sv + (t & 1) * BN * 128", "sv").replace("sv + ((t + 1) & 1) * BN * 128", "sv")
    assert one_buffer != text
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(one_buffer, "-DWARPS=4")).launch(
            1, 128, [params], memory=memory, smem_bytes=smem, races=True
        )
    assert caught.value.kind in (FaultKind.DATA_RACE, FaultKind.CP_ASYNC_NOT_WAITED)


ORDERED = """
extern "C" __global__ void f(int* y) {
  __shared__ int s[128]; __shared__ int flag; int t = threadIdx.x;
  if (t == 0) flag = 0;
  __syncthreads();
  s[t] = t + 1;
  __syncwarp();
  SYNCHRONISE
}
"""
COUNTED = """__threadfence_block(); int n = 0; if (t % 32 == 0) n = atomicAdd(&flag, 1);
  n = __shfl_sync(~0u, n, 0); if (n != LAST) return; __threadfence_block();
  for (int i = t % 32; i < 128; i += 32) y[i] = s[i];"""


def ordered(compile_cuda: Callable[..., str], synchronise: str) -> np.ndarray:
    """Runs a kernel whose warps are ordered without a barrier."""
    out = np.zeros(128, np.int32)
    Emulator(compile_cuda(ORDERED.replace("SYNCHRONISE", synchronise))).launch(2, 128, [out], races=True)
    return out


def test_the_last_of_warps_that_count_in_shared_memory_may_read(compile_cuda: Callable[..., str]) -> None:
    np.testing.assert_array_equal(ordered(compile_cuda, COUNTED.replace("LAST", "3")), np.arange(1, 129))
    with pytest.raises(EmulatorError) as caught:
        ordered(compile_cuda, COUNTED.replace("LAST", "0"))
    assert caught.value.kind is FaultKind.DATA_RACE


@pytest.mark.parametrize("between", ["", 'asm volatile("bar.warp.sync -1;" ::: "memory");', "__syncwarp();"])
def test_an_atomic_of_one_lane_releases_what_its_whole_warp_has_done_before(
    compile_cuda: Callable[..., str], between: str
) -> None:
    """Without an instruction of the whole warp, the other lanes may not have written yet."""
    text = ORDERED.replace("__syncwarp();", between).replace("SYNCHRONISE", COUNTED.replace("LAST", "3"))
    ptx = compile_cuda(text)
    out = np.zeros(128, np.int32)
    if between:
        Emulator(ptx).launch(2, 128, [out], races=True)
        np.testing.assert_array_equal(out, np.arange(1, 129))
        return
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(2, 128, [out], races=True)
    assert caught.value.kind is FaultKind.DATA_RACE
    assert caught.value.fault.ptx_text.startswith("ld.shared")


MAXIMUM = """extern "C" __global__ void f(int* y) {
  __shared__ int most; const int t = threadIdx.x;
  if (t == 0) most = -1;
  FIRST
  atomicMax(&most, t);
  SECOND
  int m = 127; m = most;
  THIRD
  atomicMin(&most, 64); y[t] = m;
}"""
BARRIERS = dict.fromkeys(("FIRST", "SECOND", "THIRD"), "__syncthreads();")
VOLATILE = {"SECOND": "while (*(volatile int*)&most != 127) {}", "m = most;": ""}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        (VOLATILE, ""),
        ({"FIRST": ""}, "changes with an atomic what warp 0 writes"),
        ({"SECOND": ""}, "reads what an atomic of warp"),
        ({"THIRD": ""}, "changes with an atomic what warp"),
        (VOLATILE | {"SECOND": "", "THIRD": "", "atomicMin(&most, 64)": "if (t == 0) most = 64"}, "overwrites what an"),
    ],
    ids=["all barriers", "volatile reads", "before", "after", "next", "overwritten"],
)
def test_atomics_race_with_other_accesses(compile_cuda: Callable[..., str], changes: dict[str, str], said: str) -> None:
    text, out = MAXIMUM, np.zeros(128, np.int32)
    for name, new in (BARRIERS | changes).items():
        assert text.count(name) == 1
        text = text.replace(name, new)
    if not said:
        Emulator(compile_cuda(text)).launch(2, 128, [out], races=True)
        np.testing.assert_array_equal(out, 127)
        return
    with pytest.raises(EmulatorError, match=said) as caught:
        Emulator(compile_cuda(text)).launch(2, 128, [out], races=True)
    assert caught.value.kind is FaultKind.DATA_RACE


COMPARED = """
// From the CUDA C++ Programming Guide, "Atomic Functions".
__device__ double add(double* address, double val) {
  unsigned long long* word = (unsigned long long*)address;
  unsigned long long old = *word, assumed;
  do {
    assumed = old;
    old = atomicCAS(word, EXPECTED, __double_as_longlong(val + __longlong_as_double(assumed)));
  } while (assumed != old);
  return __longlong_as_double(old);
}
extern "C" __global__ void f(double* y) {
  __shared__ double s[2]; const int t = threadIdx.x;
  if (t < 2) s[t] = 0;
  __syncthreads();
  for (int i = t / 32 + blockIdx.x; i < 6; ++i) add(SPACE + (t & 1), 1.0);
  __syncthreads();
  if (t < 2) add(y + t, s[t]); }
"""


@pytest.mark.parametrize("space", ["s", "y"])
def test_the_first_guess_of_a_compare_and_swap_is_no_race(compile_cuda: Callable[..., str], space: str) -> None:
    ptx = compile_cuda(COMPARED.replace("SPACE", space).replace("EXPECTED", "assumed"))
    for options in ({}, {"lanes": True}, {"order_seed": 1}):
        out = np.zeros(2)
        Emulator(ptx).launch(3, 64, [out], races=True, **options)
        np.testing.assert_array_equal(out, 16 * sum(6 - warp - block for warp in range(2) for block in range(3)))


@pytest.mark.parametrize(("space", "kind"), [("s", FaultKind.DATA_RACE), ("y", FaultKind.UNPUBLISHED_READ)])
def test_a_load_that_no_compare_and_swap_compares_is_a_race(
    compile_cuda: Callable[..., str], space: str, kind: FaultKind
) -> None:
    ptx = compile_cuda(COMPARED.replace("SPACE", space).replace("EXPECTED", "0ull"))
    with pytest.raises(EmulatorError) as caught:
        Emulator(ptx).launch(3, 64, [np.zeros(2)], races=True, max_steps=10_000)
    assert caught.value.kind is kind


PASSED_ON = """const unsigned at = __cvta_generic_to_shared(&flag); int seen = 0;
  if (t == 32) asm volatile("st.release.cta.shared.u32 [%0], 1;" :: "r"(at) : "memory");
  if (t >= 32) { AFTER return; }
  while (!seen) asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(seen) : "r"(at) : "memory");
  y[t] = s[t + FROM];"""


@pytest.mark.parametrize(
    ("after", "start", "right"),
    [("", 32, True), ("", 64, False), ("s[t] = 0;", 32, False)],
    ids=["released", "of a warp that released nothing", "written after the release"],
)
def test_a_released_flag_orders_what_came_before(
    compile_cuda: Callable[..., str], after: str, start: int, *, right: bool
) -> None:
    synchronise = PASSED_ON.replace("AFTER", after).replace("FROM", str(start))
    if right:
        np.testing.assert_array_equal(ordered(compile_cuda, synchronise)[:32], np.arange(33, 65))
        return
    with pytest.raises(EmulatorError) as caught:
        ordered(compile_cuda, synchronise)
    assert caught.value.kind is FaultKind.DATA_RACE


SINGLE_BYTES = """
extern "C" __global__ void f(unsigned char* y) {
  __shared__ unsigned char s[256]; int t = threadIdx.x;
  s[INDEX] = t;
  __syncthreads();
  y[t] = s[INDEX]; }
"""


def test_two_warps_may_write_neighbouring_bytes(compile_cuda: Callable[..., str]) -> None:
    out = np.zeros(128, np.uint8)
    Emulator(compile_cuda(SINGLE_BYTES.replace("INDEX", "t % 64 * 2 + t / 64"))).launch(1, 128, [out], races=True)
    np.testing.assert_array_equal(out, np.arange(128))
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(SINGLE_BYTES.replace("INDEX", "t % 64 * 2"))).launch(1, 128, [out], races=True)
    assert caught.value.kind is FaultKind.DATA_RACE


ANY = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ KIND any[16]; const int t = threadIdx.x;
  if (t < 16) any[t] = 0;
  __syncthreads();
  for (int i = 0; i < 4; i++) if (x[4 * t + i] > 90) any[x[4 * t + i] % 8] = VALUE;
  BETWEEN
  y[t] = (int)any[t % 8]; }"""


@pytest.mark.parametrize("kind", ["bool", "short", "int", "double"])
def test_threads_may_store_equal_values_in_any_order(compile_cuda: Callable[..., str], kind: str) -> None:
    def found(value: str, between: str = "__syncthreads();") -> np.ndarray:
        text = ANY.replace("KIND", kind).replace("VALUE", value).replace("BETWEEN", between)
        y = np.zeros(128, np.int32)
        Emulator(compile_cuda(text)).launch(1, 128, [x, y], races=True, lanes=True)
        return y

    x = np.random.default_rng(5).integers(0, 97, 512).astype(np.int32)
    expected = np.isin(np.arange(128) % 8, x[x > 90] % 8)
    np.testing.assert_array_equal(found("1"), expected)
    for value, between in (("1", ""), ("t % 2", "__syncthreads();")):
        with pytest.raises(EmulatorError) as caught:
            found(value, between)
        assert caught.value.kind is FaultKind.DATA_RACE
