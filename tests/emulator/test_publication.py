"""Order in global memory: writes of other CTAs must be published, and warps of one CTA must meet before they read."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind

CTAS, THREADS = 6, 64

LAST_BLOCK = """
__device__ unsigned ordered(unsigned* c) {
  unsigned old;
  asm volatile("atom.acq_rel.SCOPE.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(c) : "memory");
  return old;
}
extern "C" __global__ void f(const float* x, float* part, unsigned* count, float* y) {
  __shared__ bool last;
  unsigned t = threadIdx.x, at = blockIdx.x * 64 + t;
  EARLY
  part[at] = x[at];
  AFTER
  if (WHO) { FENCE; last = COUNT == WHEN; }
  __syncthreads();
  if (!last) return;
  float sum = 0;
  for (unsigned b = 0; b < gridDim.x; ++b) sum += LOAD(part + b * 64 + (t + 32) % 64);
  y[t] = sum;
  if (t == 0) *count = 0;
}
"""
PUBLISHED = {
    "EARLY": "",
    "AFTER": "__syncthreads();",
    "WHO": "t == 0",
    "FENCE": "__threadfence()",
    "COUNT": "atomicInc(count, gridDim.x)",
    "WHEN": "gridDim.x - 1",
    "LOAD": "__ldcg",
    "SCOPE": "gpu",
}
CORRECT = {
    "fence of the counting thread": {},
    "fences of all threads before the barrier": {"AFTER": "__threadfence(); __syncthreads();", "FENCE": ""},
    "acquiring and releasing atomic": {"FENCE": "", "COUNT": "ordered(count)"},
    "system scope": {"FENCE": "__threadfence_system()"},
    "named barrier": {"AFTER": 'asm volatile("bar.sync 3, 64;" ::: "memory");'},
    "volatile loads": {"LOAD": "*(volatile float*)"},
    "warps counted in shared memory": {
        "EARLY": "__shared__ unsigned warps; if (t == 0) { warps = 0; last = false; } __syncthreads();",
        "AFTER": "__threadfence(); __syncwarp(); const bool ends = t % 32 == 0 && atomicAdd(&warps, 1u) == 1;",
        "WHO": "ends",
    },
    "warps counted one after the other": {
        "EARLY": "__shared__ unsigned warps; if (t == 0) { warps = 0; last = false; } __syncthreads();",
        "AFTER": """__threadfence(); __syncwarp(); bool ends = false;
            if (t == 0) ends = atomicAdd(&warps, 1u) == 1;
            if (t == 32) ends = atomicAdd(&warps, 1u) == 1;""",
        "WHO": "ends",
    },
}
WRONG = {
    "no fence": {"FENCE": ""},
    "no barrier": {"AFTER": ""},
    "fences but no barrier": {"AFTER": "__threadfence();", "FENCE": ""},
    "releasing atomic but no barrier": {"AFTER": "", "FENCE": "", "COUNT": "ordered(count)"},
    "fence for its own CTA": {"FENCE": "__threadfence_block()"},
    "fence before the write": {"EARLY": "__threadfence();", "FENCE": ""},
    "fence of a thread that knows no other warp": {
        "AFTER": "if (t == 0) __threadfence(); __syncthreads();",
        "FENCE": "",
    },
    "atomic for its own CTA": {"COUNT": "ordered(count)", "SCOPE": "cta"},
    "atomic before the write": {"EARLY": "unsigned n = 0; if (t == 0) n = ordered(count);", "COUNT": "n"},
    "combined by the second": {"WHEN": "1"},
    "read through the non-coherent cache": {"LOAD": "__ldg"},
    "own write read through the non-coherent cache": {"AFTER": "__syncthreads(); y[t] = __ldg(part + at);"},
}


def last_block(changes: dict[str, str]) -> str:
    """The last-block reduction of the CUDA samples (threadFenceReduction), with some parts replaced."""
    text = LAST_BLOCK
    for name, part in {**PUBLISHED, **changes}.items():
        text = text.replace(name, part)
    return text


def reduce(ptx: str, order_seed: int | None = None) -> np.ndarray:
    x = np.arange(CTAS * THREADS, dtype=np.float32).reshape(CTAS, THREADS)
    y, count = np.zeros(THREADS, np.float32), np.zeros(1, np.uint32)
    Emulator(ptx).launch(CTAS, THREADS, [x, np.zeros_like(x), count, y], races=True, order_seed=order_seed)
    return y


@pytest.mark.parametrize("name", CORRECT)
def test_published_writes_may_be_read(compile_cuda: Callable[..., str], name: str) -> None:
    ptx = compile_cuda(last_block(CORRECT[name]))
    expected = np.roll(np.arange(CTAS * THREADS).reshape(CTAS, THREADS).sum(axis=0), -32)
    for seed in (None, 1, 2, 3):
        got = reduce(ptx, order_seed=seed)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", WRONG)
def test_unpublished_writes_must_not_be_read(compile_cuda: Callable[..., str], name: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        reduce(compile_cuda(last_block(WRONG[name])))
    fault = caught.value.fault
    assert fault.kind is FaultKind.UNPUBLISHED_READ
    assert "ld.global" in fault.ptx_text
    assert fault.source_line is not None
    assert None not in (fault.block, fault.thread, fault.address)


TOLD_BY_ATOMICS = """
extern "C" __global__ void f(const float* x, float* part, unsigned* count, float* y) {
  __shared__ unsigned told;
  unsigned t = threadIdx.x, at = blockIdx.x * 64 + t;
  if (t == 0) told = 0;
  part[at] = x[at];
  __syncthreads();
  if (t == 0) {
    __threadfence();
    const bool last = atomicInc(count, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
    atomicExch(&told, last ? 2u : 1u);
  }
  if (t >= 32) {
    unsigned heard = 0;
    while (heard == 0) heard = atomicAdd(&told, 0u);
    if (heard == 1) return;
    for (unsigned half = 0; half < 64; half += 32) {
      float sum = 0;
      for (unsigned b = 0; b < gridDim.x; ++b) sum += __ldcg(part + b * 64 + (t + half) % 64);
      y[(t + half + 32) % 64] = sum;
    }
  }
}
"""


def test_what_a_warp_has_acquired_is_passed_on_by_shared_atomics(compile_cuda: Callable[..., str]) -> None:
    expected = np.roll(np.arange(CTAS * THREADS).reshape(CTAS, THREADS).sum(axis=0), -32)
    np.testing.assert_array_equal(reduce(compile_cuda(TOLD_BY_ATOMICS)), expected)


GRID_SYNC = """
extern "C" __global__ void f(float* x, float* y, unsigned* arrived) {
  unsigned b = blockIdx.x, n = gridDim.x;
  for (int turn = 0; turn < 3; ++turn) {
    x[turn * n * 64 + b * 64 + threadIdx.x] = b + turn;
    __syncthreads();
    if (threadIdx.x == 0) {
      FENCE;
      atomicAdd(arrived, 1u);
      while (*(volatile unsigned*)arrived < (turn + 1) * n) {}
      __threadfence();
    }
    __syncthreads();
    y[turn * n * 64 + b * 64 + threadIdx.x] = x[turn * n * 64 + (b + 1) % n * 64 + (threadIdx.x + 32) % 64];
  }
}
"""


@pytest.mark.parametrize("fence", ["__threadfence()", ""])
def test_barrier_of_the_whole_grid(compile_cuda: Callable[..., str], fence: str) -> None:
    """As in cooperative groups: an atomic of each CTA, and polling."""
    emulator = Emulator(compile_cuda(GRID_SYNC.replace("FENCE", fence)))
    x, y = np.zeros((3, 4, 64), np.float32), np.zeros((3, 4, 64), np.float32)
    arguments = [x, y, np.zeros(1, np.uint32)]
    if fence:
        for seed in (None, 5, 6):
            emulator.launch(4, 64, [x, y, np.zeros(1, np.uint32)], races=True, order_seed=seed)
            np.testing.assert_array_equal(y[:, :, 0], (np.arange(4) + 1) % 4 + np.arange(3)[:, None])
    else:
        with pytest.raises(EmulatorError, match="unpublished_read"):
            emulator.launch(4, 64, arguments, races=True)


def test_a_lock_orders_the_updates_of_many_ctas(compile_cuda: Callable[..., str]) -> None:
    text = """extern "C" __global__ void f(unsigned* lock, int* sum) {
      if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0u, 1u)) {}
        __threadfence();
        *sum += blockIdx.x;
        RELEASE; *(volatile unsigned*)lock = 0;
      } }"""
    for seed in (None, 1):
        total = np.zeros(1, np.int32)
        good = Emulator(compile_cuda(text.replace("RELEASE", "__threadfence()")))
        good.launch(3, 32, [np.zeros(1, np.uint32), total], races=True, order_seed=seed)
        assert total[0] == 3
    bad = Emulator(compile_cuda(text.replace("RELEASE", "")))
    with pytest.raises(EmulatorError, match="unpublished_read"):
        bad.launch(3, 32, [np.zeros(1, np.uint32), np.zeros(1, np.int32)], races=True)


def test_who_has_seen_the_last_count_may_reset_it(compile_cuda: Callable[..., str]) -> None:
    text = """extern "C" __global__ void f(int* data, unsigned* count) {
      if (blockIdx.x < 2) { data[blockIdx.x] = 7; __threadfence(); atomicAdd(count, 1u); return; }
      POLL
      *count = 0; }"""
    for poll in ("while (*(volatile unsigned*)count < 2) {} __syncthreads();", "while (atomicAdd(count, 0u) < 2) {}"):
        data, count = np.zeros(2, np.int32), np.zeros(1, np.uint32)
        Emulator(compile_cuda(text.replace("POLL", poll))).launch(3, 1, [data, count], races=True)
        assert (*data, *count) == (7, 7, 0)
    with pytest.raises(EmulatorError, match="unordered_write"):
        Emulator(compile_cuda(text.replace("POLL", ""))).launch(3, 1, [data, count], races=True)


@pytest.mark.parametrize("kind", [np.int32, np.int8])
def test_a_flag_is_written_and_polled_by_strong_accesses(compile_cuda: Callable[..., str], kind: type) -> None:
    text = """#define flag_t KIND
    extern "C" __global__ void f(int* data, STRENGTH flag_t* flag) {
      if (blockIdx.x == 0) { *data = 7; __threadfence(); *flag = 1; }
      else { while (!*(volatile flag_t*)flag) {} data[1] = __ldcg(data); } }""".replace(
        "KIND", "int" if kind is np.int32 else "signed char"
    )
    data = np.zeros(2, np.int32)
    strong = Emulator(compile_cuda(text.replace("STRENGTH", "volatile")))
    strong.launch(2, 1, [data, np.zeros(1, kind)], races=True)
    assert data.tolist() == [7, 7]
    weak = Emulator(compile_cuda(text.replace("STRENGTH", "")))
    with pytest.raises(EmulatorError, match="unpublished_read"):
        weak.launch(2, 1, [data, np.zeros(1, kind)], races=True)


LANES = """
extern "C" __global__ void f(KIND* y) { if (threadIdx.x < 32) y[threadIdx.x / 2] = VALUE; }
"""


@pytest.mark.parametrize("kind", ["char", "short", "int", "double", "float4"])
def test_lanes_store_equal_values_alone_to_one_address(compile_cuda: Callable[..., str], kind: str) -> None:
    def stored(value: str) -> np.ndarray:
        given = f"make_float4({value}, 0, 0, 0)" if kind == "float4" else value
        y = np.zeros(256, np.uint8)
        Emulator(compile_cuda(LANES.replace("KIND", kind).replace("VALUE", given))).launch(1, 64, [y], races=True)
        return y

    assert np.count_nonzero(stored("threadIdx.x / 2")) >= 15
    with pytest.raises(EmulatorError, match="different values") as caught:
        stored("threadIdx.x")
    assert caught.value.kind is FaultKind.DATA_RACE


STORES = """
extern "C" __global__ void f(float4* y, float value) {
  if (threadIdx.x < 3) y[threadIdx.x] = make_float4(VALUE, 0.f, -0.f, 1.f);
}
"""


def test_two_ctas_may_write_the_same_value(compile_cuda: Callable[..., str]) -> None:
    same = Emulator(compile_cuda(STORES.replace("VALUE", "value")))
    same.launch(3, 32, [np.zeros(12, np.float32), np.float32(np.nan)], races=True)
    other = Emulator(compile_cuda(STORES.replace("VALUE", "value + blockIdx.x")))
    with pytest.raises(EmulatorError) as caught:
        other.launch(3, 32, [np.zeros(12, np.float32), np.float32(1)], races=True)
    assert caught.value.kind is FaultKind.UNORDERED_WRITE


QUEUE = """
__device__ unsigned next;
extern "C" __global__ void f(int* taken, unsigned count) {
  __shared__ unsigned piece;
  for (;;) {
    if (threadIdx.x == 0) piece = atomicAdd(&next, 1u);
    __syncthreads();
    unsigned own = piece;
    __syncthreads();
    if (own >= count) return;
    if (threadIdx.x == 0) taken[own] = blockIdx.x;
  }
}
"""


def test_random_orders_change_who_takes_which_piece(compile_cuda: Callable[..., str]) -> None:
    emulator = Emulator(compile_cuda(QUEUE))
    assert emulator.synchronises
    found = set()
    for seed in (None, None, 0, 0, 1, 2):
        taken = np.full(40, -1, np.int32)
        emulator.launch(8, 64, [taken, np.uint32(40)], races=True, order_seed=seed)
        assert set(taken.tolist()) <= set(range(8))
        found.add(tuple(taken.tolist()))
    assert len(found) == 4, "a seed gives one order, and no two of the four are equal"


def test_kernels_whose_ctas_do_not_synchronise(compile_cuda: Callable[..., str]) -> None:
    assert not Emulator(compile_cuda(STORES.replace("VALUE", "value"))).synchronises


SUMS = """extern "C" __global__ void f(const float* x, float* y) {
  __shared__ float sum; __shared__ int count;
  if (threadIdx.x == 0) sum = 0, count = 0;
  __syncthreads();
  atomicAdd(&sum, x[threadIdx.x]); atomicAdd(&count, 1);
  __syncthreads();
  if (threadIdx.x == 0) y[0] = sum, y[1] = count;
}"""


def test_a_random_order_reverses_the_lanes_of_an_atomic(compile_cuda: Callable[..., str]) -> None:
    values = np.random.default_rng(3).standard_normal(128).astype(np.float32)
    emulator = Emulator(compile_cuda(SUMS))
    assert emulator.synchronises
    counts = SUMS.replace("atomicAdd(&sum, x[threadIdx.x]);", "")
    assert not Emulator(compile_cuda(counts)).synchronises
    assert Emulator(compile_cuda(counts.replace("atomicAdd(&count, 1)", "y[2] = atomicAdd(&count, 1)"))).synchronises
    for seed, order in ((None, values), (1, values[::-1])):
        out = np.zeros(2, np.float32)
        emulator.launch(1, 128, [values, out], races=True, order_seed=seed)
        np.testing.assert_array_equal(out, [functools.reduce(np.add, order, np.float32(0)), 128])


PARTNERS = """
extern "C" __global__ void f(const float* x, float* part, float* y) {
  __shared__ __align__(8) unsigned long long bar; __shared__ unsigned count; __shared__ unsigned flag;
  const unsigned t = threadIdx.x, first = blockIdx.x * 64;
  if (t == 0) { flag = count = 0; INIT }
  __syncthreads();
  part[first + t] = x[first + t];
  BETWEEN
  y[first + t] = LOAD(part + first + (t + 32) % 64);
}
"""
ARRIVE = (
    'asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"((unsigned)__cvta_generic_to_shared(&bar)) : "memory");'
)
WAIT = """unsigned ready; do asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; "
  "selp.u32 %0, 1, 0, p; }" : "=r"(ready) : "r"((unsigned)__cvta_generic_to_shared(&bar)) : "memory");
  while (!ready);"""
INIT = 'asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"((unsigned)__cvta_generic_to_shared(&bar)) : "memory");'
MEETINGS = {
    "barrier": "__syncthreads();",
    "named barrier": 'asm volatile("bar.sync 2, 64;" ::: "memory");',
    "mbarrier": ARRIVE + WAIT,
    "atomics": "__threadfence_block(); atomicAdd(&count, 1u); while (atomicAdd(&count, 0u) < 64) __nanosleep(20);",
    "flag": """__syncwarp(); const unsigned at = (unsigned)__cvta_generic_to_shared(&flag);
      if (t == 32) asm volatile("st.release.cta.shared.u32 [%0], 1;" :: "r"(at) : "memory");
      if (t >= 32) return;
      unsigned set; do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(set) : "r"(at) : "memory");
      while (!set);""",
}


def partners(compile_cuda: Callable[..., str], between: str, load: str = "__ldcg", arch: str = "sm_89") -> None:
    text = PARTNERS.replace("BETWEEN", between).replace("LOAD", load).replace("INIT", INIT)
    x, part, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32), np.zeros(128, np.float32)
    Emulator(compile_cuda(text, arch=arch)).launch(2, 64, [x, part, y], races=True)
    readers = slice(0, 1) if "return" in between else slice(0, 2)
    np.testing.assert_array_equal(y.reshape(2, 2, 32)[:, readers], x.reshape(2, 2, 32)[:, ::-1][:, readers])


@pytest.mark.parametrize("meeting", MEETINGS)
def test_warps_that_have_met_may_read_what_each_has_written(compile_cuda: Callable[..., str], meeting: str) -> None:
    partners(compile_cuda, MEETINGS[meeting], arch="sm_90")


@pytest.mark.parametrize("between", ["", "__syncwarp();", "__threadfence();", "if (t < 32) __syncwarp();"])
def test_warps_of_one_cta_that_have_not_met(compile_cuda: Callable[..., str], between: str) -> None:
    with pytest.raises(EmulatorError, match=r"reads what warp [01] of block") as caught:
        partners(compile_cuda, between)
    assert caught.value.kind is FaultKind.DATA_RACE
    partners(compile_cuda, "__syncthreads();")


def test_warps_of_one_cta_overwrite_each_other(compile_cuda: Callable[..., str]) -> None:
    partners(compile_cuda, "__syncthreads(); part[first + (t + 32) % 64] = x[first + (t + 32) % 64];")  # equal values
    for between in ("part[first + (t + 32) % 64] = 1;", "part[first + t % 32] = t;"):
        with pytest.raises(EmulatorError, match=r"overwrites .*warp [01] of block") as caught:
            partners(compile_cuda, between)
        assert caught.value.kind is FaultKind.DATA_RACE
