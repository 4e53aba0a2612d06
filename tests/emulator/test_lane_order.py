"""Lanes of one warp that exchange data through shared memory without a barrier of the warp are reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind

SYNC = "__syncwarp();"
EXCHANGE = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ TYPE s[64]; const int t = threadIdx.x;
  s[t] = x[t]; FIRST
  const int v = s[t ^ 5]; SECOND
  s[t] = v + 1; THIRD
  y[t] = s[t ^ 9]; }
"""


def launch(ptx: str, *, lanes: bool = True, threads: int = 64) -> np.ndarray:
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    Emulator(ptx).launch(1, threads, [x, y], races=True, lanes=lanes)
    return y


def exchange(first: str = SYNC, second: str = SYNC, third: str = SYNC, kind: str = "int") -> str:
    return EXCHANGE.replace("FIRST", first).replace("SECOND", second).replace("THIRD", third).replace("TYPE", kind)


def race_of(ptx: str, threads: int = 64) -> str:
    """PTX of the instruction at which a race is found."""
    with pytest.raises(EmulatorError) as caught:
        launch(ptx, threads=threads)
    assert caught.value.kind is FaultKind.DATA_RACE
    return caught.value.fault.ptx_text


@pytest.mark.parametrize("sync", [SYNC, "__syncthreads();", 'asm volatile("bar.sync 1, 64;" ::: "memory");'])
def test_a_barrier_of_the_warp_or_the_cta_orders_its_lanes(compile_cuda: Callable[..., str], sync: str) -> None:
    expected = ((np.arange(64) ^ 9) ^ 5) + 1
    np.testing.assert_array_equal(launch(compile_cuda(exchange(sync, sync, sync))), expected)


@pytest.mark.parametrize("threads", [32, 64])
@pytest.mark.parametrize(
    ("missing", "found"), [("first", "ld.shared"), ("second", "st.shared"), ("third", "ld.shared")]
)
def test_a_missing_barrier_is_a_race(compile_cuda: Callable[..., str], missing: str, found: str, threads: int) -> None:
    fence = 'asm volatile("" ::: "memory");'  # keeps the compiler's order of the accesses
    ptx = compile_cuda(exchange(**{missing: fence}))
    assert found in race_of(ptx, threads=threads)
    launch(ptx, lanes=False, threads=threads)


def test_a_barrier_of_half_a_warp_orders_its_lanes_alone(compile_cuda: Callable[..., str]) -> None:
    halves = "if (t % 32 < 16) __syncwarp(0xffffu); else __syncwarp(0xffff0000u);"
    np.testing.assert_array_equal(launch(compile_cuda(exchange(halves, halves, halves))), ((np.arange(64) ^ 9) ^ 5) + 1)
    across = exchange(halves, halves, halves).replace("t ^ 5", "t ^ 21")
    assert "ld.shared" in race_of(compile_cuda(across))
    for one in ("if (t % 32 < 16) __syncwarp(0xffffu);", "if (t % 32 == 0) __syncwarp(1u);"):
        assert "ld.shared" in race_of(compile_cuda(exchange(first=one)))
        assert "st.shared" in race_of(compile_cuda(exchange(second=one)))


@pytest.mark.parametrize("kind", ["short", "char"])
def test_parts_of_a_word_are_told_apart(compile_cuda: Callable[..., str], kind: str) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(exchange(kind=kind))), ((np.arange(64) ^ 9) ^ 5) + 1)
    for missing, found in (("first", "ld.shared"), ("second", "st.shared"), ("third", "ld.shared")):
        ptx = compile_cuda(exchange(kind=kind, **{missing: 'asm volatile("" ::: "memory");'}))
        assert found in race_of(ptx)


SAME = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ KIND s[64]; const int t = threadIdx.x;
  if (t % 32 < LANES) s[t / 32] = VALUE;
  __syncwarp();
  y[t] = (int)s[t / 32]; }"""


@pytest.mark.parametrize("kind", ["char", "short", "int", "double"])
def test_lanes_store_equal_values_alone_to_one_address(compile_cuda: Callable[..., str], kind: str) -> None:
    def same(lanes: int, value: str) -> str:
        return compile_cuda(SAME.replace("KIND", kind).replace("LANES", str(lanes)).replace("VALUE", value))

    np.testing.assert_array_equal(launch(same(32, "x[t / 32]")), np.repeat([0, 1], 32))
    np.testing.assert_array_equal(launch(same(1, "x[t]")), np.repeat([0, 32], 32))
    assert "st.shared" in race_of(same(2, "x[t]"))


def test_a_barrier_of_another_warp_orders_nothing(compile_cuda: Callable[..., str]) -> None:
    half = "if (t < 32) __syncwarp();"
    assert "ld.shared" in race_of(compile_cuda(exchange(first=half)))


MATRICES = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(16) int s[64]; const int t = threadIdx.x;
  s[t] = x[t]; FIRST
  unsigned v, at = (unsigned)__cvta_generic_to_shared(s + t / 32 * 32 + t % 8 * 4);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(v) : "r"(at) : "memory");
  s[t] = v + 1; __syncwarp();
  y[t] = s[t ^ 9]; }
"""


def test_a_write_does_not_overtake_ldmatrix_but_needs_a_barrier_before_it(compile_cuda: Callable[..., str]) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(MATRICES.replace("FIRST", SYNC))), (np.arange(64) ^ 9) + 1)
    assert "ldmatrix" in race_of(compile_cuda(MATRICES.replace("FIRST", "")))


COPIED = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(s + t);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(x + t) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory"); FIRST
  y[t] = s[t ^ 9]; }
"""


def test_a_copy_of_another_lane_needs_a_barrier_after_the_wait(compile_cuda: Callable[..., str]) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(COPIED.replace("FIRST", SYNC))), np.arange(64) ^ 9)
    assert "ld.shared" in race_of(compile_cuda(COPIED.replace("FIRST", "")))


WIDER = COPIED.replace("__shared__ int s[64]", "__shared__ __align__(8) int s[64]").replace(
    "y[t] = s[t ^ 9]", "const long long v = ((const long long*)s)[t / 2 ^ 4]; y[t] = (int)(t % 2 ? v >> 32 : v)"
)


def test_a_copy_smaller_than_all_loads_needs_a_barrier_too(compile_cuda: Callable[..., str]) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(WIDER.replace("FIRST", SYNC))), np.arange(64) ^ 8)
    assert "ld.shared" in race_of(compile_cuda(WIDER.replace("FIRST", "")))


PIECES = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x;
  if (blockIdx.x % 2) { s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 9]; return; }
  s[t] = x[t]; asm volatile("" ::: "memory"); y[t] = s[t ^ 9]; }
"""


def test_ctas_that_take_different_branches_are_told_apart(compile_cuda: Callable[..., str]) -> None:
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(PIECES)).launch(128, 64, [x, y], lanes=True)
    assert caught.value.fault.block is not None
    assert caught.value.fault.block[0] % 2 == 0


SHIFTED = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x, at = (t + blockIdx.x) % 64;
  s[at] = x[t]; asm volatile("" ::: "memory"); y[blockIdx.x * 64 + t] = s[at]; }
"""


def test_ctas_have_records_of_their_own(compile_cuda: Callable[..., str]) -> None:
    """Each lane reads what it wrote itself; a word of one CTA is another lane's in the next CTA."""
    x, y = np.arange(64, dtype=np.int32), np.zeros(4 * 64, np.int32)
    Emulator(compile_cuda(SHIFTED)).launch(4, 64, [x, y], lanes=True)
    np.testing.assert_array_equal(y, np.tile(np.arange(64), 4))


TWO_READERS = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x; int v = 0;
  s[t] = x[t]; __syncwarp();
  if (t % 32 == FIRST) v = *(volatile int*)(s + t / 32 * 32 + 1); asm volatile("" ::: "memory");
  if (t % 32 == 7) v = *(volatile int*)(s + t / 32 * 32 + 1); asm volatile("" ::: "memory");
  if (t % 32 == 7) s[t / 32 * 32 + 1] = 9;
  y[t] = v; }
"""


@pytest.mark.parametrize("first", [3, 7])
def test_the_last_but_one_reader_counts_too(compile_cuda: Callable[..., str], first: int) -> None:
    ptx = compile_cuda(TWO_READERS.replace("FIRST", str(first)))
    if first == 7:  # the lane that overwrites is the only reader
        launch(ptx)
    else:
        assert "st.shared" in race_of(ptx)


BULK = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(16) int s[64]; const int t = threadIdx.x;
  const unsigned at = __cvta_generic_to_shared(s + t / 32 * 32);
  s[t] = x[t];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  SYNC
  if (t % 32 == 7) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;\\n"
    "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" :: "l"(y + t / 32 * 32), "r"(at) : "memory"); }"""


def test_a_bulk_copy_reads_what_other_lanes_have_written(compile_cuda: Callable[..., str]) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(BULK.replace("SYNC", SYNC), arch="sm_90")), np.arange(64))
    assert "cp.async.bulk" in race_of(compile_cuda(BULK.replace("SYNC", ""), arch="sm_90"))


ONE_WRITER = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(16) int s[64]; const int t = threadIdx.x, first = t / 32 * 32;
  const unsigned at = __cvta_generic_to_shared(s + first);
  for (int i = 0; i < 32; i++) if (t % 32 == (blockIdx.x == OWN ? 7 : i)) s[first + i] = x[first + i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (t % 32 == 7 && blockIdx.x == 1) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;\\n"
    "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" :: "l"(y + first), "r"(at) : "memory"); }"""


def test_a_bulk_copy_is_compared_with_its_own_cta(compile_cuda: Callable[..., str]) -> None:
    """CTA 1 copies; in one of the two CTAs the copying lane has written everything itself."""
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    Emulator(compile_cuda(ONE_WRITER.replace("OWN", "1"), arch="sm_90")).launch(2, 64, [x, y], lanes=True)
    np.testing.assert_array_equal(y, x)
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(ONE_WRITER.replace("OWN", "0"), arch="sm_90")).launch(2, 64, [x, y], lanes=True)
    assert caught.value.kind is FaultKind.DATA_RACE
    assert caught.value.fault.block == (1, 0, 0)


OVER = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(128) int s[64]; __shared__ __align__(8) unsigned long long done[2];
  const int t = threadIdx.x, first = t / 32 * 32;
  const unsigned at = __cvta_generic_to_shared(s + first), full = __cvta_generic_to_shared(done + t / 32);
  if (t % 32 == 7) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\n"
    "fence.mbarrier_init.release.cluster;" :: "r"(full) : "memory");
  s[t] = x[t];
  __syncwarp();
  const int seen = s[t ^ 9];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  SYNC
  if (t % 32 == 7) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], 128;\\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%2], 128, [%1];"
    :: "r"(at), "r"(full), "l"(x + first) : "memory");
  unsigned is_done;
  do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
    : "=r"(is_done) : "r"(full) : "memory"); while (!is_done);
  y[t] = seen + s[t]; }"""


def test_a_bulk_copy_overwrites_what_other_lanes_have_read(compile_cuda: Callable[..., str]) -> None:
    found = launch(compile_cuda(OVER.replace("SYNC", SYNC), arch="sm_90"))
    np.testing.assert_array_equal(found, np.arange(64) + (np.arange(64) ^ 9))
    assert "cp.async.bulk" in race_of(compile_cuda(OVER.replace("SYNC", ""), arch="sm_90"))


LOADED = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(128) int s[64]; __shared__ __align__(8) unsigned long long done; __shared__ unsigned seen;
  const int t = threadIdx.x;
  const unsigned at = __cvta_generic_to_shared(s), full = __cvta_generic_to_shared(&done);
  if (t == 0) {
    seen = 0;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\n"
      "fence.mbarrier_init.release.cluster;" :: "r"(full) : "memory");
  }
  __syncthreads();
  if (t == 0) asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], 256;\\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%2], 256, [%1];"
    :: "r"(at), "r"(full), "l"(x) : "memory");
  if (WHO) {
    unsigned is_done;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
      : "=r"(is_done) : "r"(full) : "memory"); while (!is_done);
  }
  THEN
  y[t] = READ; }"""
ONE, ALL = "t % 32 == 3", "true"
WORD, HALF = "s[t ^ 9]", "reinterpret_cast<unsigned short*>(s)[2 * (t ^ 9)]"
ATOMIC = "atomicAdd(&seen, 1u);"


def loaded(who: str, then: str, read: str = WORD) -> str:
    return LOADED.replace("WHO", who).replace("THEN", then).replace("READ", read)


@pytest.mark.parametrize("read", [WORD, HALF])
@pytest.mark.parametrize(("who", "then"), [(ALL, ""), (ONE, SYNC), (ONE, "__syncthreads();"), (ONE, ATOMIC)])
def test_lanes_that_wait_for_a_bulk_copy_or_for_who_has_may_read_it(
    compile_cuda: Callable[..., str], who: str, then: str, read: str
) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(loaded(who, then, read), arch="sm_90")), np.arange(64) ^ 9)


@pytest.mark.parametrize("read", [WORD, HALF])
def test_a_wait_for_a_bulk_copy_is_that_of_the_waiting_lane(compile_cuda: Callable[..., str], read: str) -> None:
    ptx = compile_cuda(loaded(ONE, "", read), arch="sm_90")
    with pytest.raises(EmulatorError) as caught:
        launch(ptx)
    assert caught.value.kind is FaultKind.BULK_COPY_NOT_WAITED
    assert caught.value.fault.ptx_text.startswith("ld.shared")
    launch(ptx, lanes=False)


def test_a_barrier_before_the_wait_does_not_order_a_bulk_copy(compile_cuda: Callable[..., str]) -> None:
    source = loaded(ONE, "").replace(f"if ({ONE})", f"__syncthreads();\n  if ({ONE})")
    assert source.count("__syncthreads();") == 2
    with pytest.raises(EmulatorError) as caught:
        launch(compile_cuda(source, arch="sm_90"))
    assert caught.value.kind is FaultKind.BULK_COPY_NOT_WAITED


STORED = """
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;\\n"
    "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group 0;" :: "l"(y), "r"(at) : "memory");"""


@pytest.mark.parametrize(
    ("then", "found"),
    [
        ("if (t == 5) s[9] = 1;", "st.shared.u32"),
        ("if (t == 5) reinterpret_cast<short*>(s)[9] = 1;", "st.shared.u16"),
        ("if (t == 5) {" + STORED + "}", "cp.async.bulk.global"),
    ],
)
def test_no_other_lane_may_overwrite_or_copy_it(compile_cuda: Callable[..., str], then: str, found: str) -> None:
    ptx = compile_cuda(loaded("t == 3", "if (t < 32) {" + then + "__syncwarp();} __syncthreads();"), arch="sm_90")
    with pytest.raises(EmulatorError) as caught:
        launch(ptx)
    assert caught.value.kind is FaultKind.BULK_COPY_NOT_WAITED
    assert caught.value.fault.ptx_text.startswith(found)
    launch(compile_cuda(loaded("t == 5", "if (t < 32) {" + then + "__syncwarp();} __syncthreads();"), arch="sm_90"))


HANDED = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; __shared__ __align__(8) unsigned long long done; __shared__ volatile int flag;
  const int t = threadIdx.x; const unsigned full = __cvta_generic_to_shared(&done);
  if (t == 0) { flag = 0; asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" :: "r"(full) : "memory"); }
  __syncthreads();
  s[t] = x[t];
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(full) : "memory");
  if (WHO) {
    unsigned is_done;
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
      : "=r"(is_done) : "r"(full) : "memory"); while (!is_done);
  }
  THEN
  y[t] = s[t ^ 41]; }"""


ACQUIRE = """int taken; asm volatile("ld.acquire.cta.shared.b32 %0, [%1];"
    : "=r"(taken) : "r"((unsigned)__cvta_generic_to_shared((void*)&flag)) : "memory");"""
FAR = 'int far; asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(far) : "l"(x) : "memory");'


@pytest.mark.parametrize(
    ("who", "then", "ordered"),
    [
        (ALL, "", True),
        (ONE, SYNC, True),
        (ONE, "flag;", True),
        (ONE, ACQUIRE, True),
        (ONE, FAR, True),
        (ONE, "atomicAdd(y + t, 1);", True),
        (ONE, "", False),
    ],
)
def test_a_wait_for_other_warps_is_that_of_the_waiting_lane(
    compile_cuda: Callable[..., str], who: str, then: str, ordered: bool
) -> None:
    ptx = compile_cuda(HANDED.replace("WHO", who).replace("THEN", then), arch="sm_90")
    if ordered:
        np.testing.assert_array_equal(launch(ptx), np.arange(64) ^ 41)
    else:
        assert race_of(ptx).startswith("ld.shared")
        launch(ptx, lanes=False)


MET = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ volatile int s[64]; __shared__ __align__(8) unsigned long long bars[2];
  const int t = threadIdx.x; const unsigned first = __cvta_generic_to_shared(bars), second = first + 8;
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(first), "r"(FIRST) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(second) : "memory");
  }
  __syncthreads();
  if (t >= 32) { if (t == 32) { WAIT(first) ARRIVE(second) } return; }
  s[t] = x[t];
  BETWEEN
  y[t] = s[t ^ 9]; }"""
TRY = """{ unsigned is_done; do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
  "selp.u32 %0, 1, 0, p; }" : "=r"(is_done) : "r"(BAR) : "memory"); while (!is_done); }"""
ARRIVE = 'asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(BAR) : "memory");'


@pytest.mark.parametrize(
    ("arrivals", "between", "ordered"),
    [
        (32, "ARRIVE(first) WAIT(first)", True),
        (32, "ARRIVE(first) WAIT(second)", True),
        (1, "__syncwarp(); if (t == 0) ARRIVE(first) WAIT(second)", True),
        (1, "if (t == 0) ARRIVE(first) WAIT(first)", False),
        (1, "if (t == 0) ARRIVE(first) WAIT(second)", False),
        (32, "ARRIVE(first) if (t == 0) WAIT(first)", False),
    ],
)
def test_an_mbarrier_orders_the_lanes_that_arrive_before_those_that_wait(
    compile_cuda: Callable[..., str], arrivals: int, between: str, ordered: bool
) -> None:
    """Lanes of one warp exchange words, without volatile accesses being a barrier; warp 1 passes on what it learns."""
    text = MET.replace("BETWEEN", between).replace("FIRST", str(arrivals))
    for bar in ("first", "second"):
        text = text.replace(f"WAIT({bar})", TRY.replace("BAR", bar)).replace(
            f"ARRIVE({bar})", ARRIVE.replace("BAR", bar)
        )
    ptx = compile_cuda(text, arch="sm_90")
    if ordered:
        np.testing.assert_array_equal(launch(ptx)[:32], np.arange(32) ^ 9)
    else:
        assert race_of(ptx).startswith("ld.volatile.shared")
    launch(ptx, lanes=False)


DRAINED = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ __align__(128) int s[64]; const int t = threadIdx.x;
  s[t] = x[t];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncwarp();
  if (t % 32 == 0) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 128;\\n"
    "cp.async.bulk.commit_group;\\ncp.async.bulk.wait_group.read 0;"
    :: "l"(y + t), "r"((unsigned)__cvta_generic_to_shared(s + t)) : "memory");
  SYNC
  s[t] = -1; }"""


def test_a_wait_for_the_reads_of_bulk_copies_is_that_of_the_waiting_lane(compile_cuda: Callable[..., str]) -> None:
    np.testing.assert_array_equal(launch(compile_cuda(DRAINED.replace("SYNC", SYNC), arch="sm_90")), np.arange(64))
    ptx = compile_cuda(DRAINED.replace("SYNC", 'asm volatile("" ::: "memory");'), arch="sm_90")
    assert race_of(ptx).startswith("st.shared")
    launch(ptx, lanes=False)


COUNTED = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; __shared__ unsigned count; const int t = threadIdx.x;
  if (t == 0) count = 0;
  __syncthreads();
  s[t] = x[t];
  __syncwarp();
  if (t % 32 == 0) { __threadfence_block(); atomicAdd(&count, 1u); while (SEEN != 2) {} __threadfence_block(); }
  SYNC
  y[t] = s[t ^ 41]; }"""


@pytest.mark.parametrize("seen", ["atomicAdd(&count, 0u)", "*(volatile unsigned*)&count"])
def test_what_one_lane_learns_by_an_atomic_others_know_after_a_barrier(
    compile_cuda: Callable[..., str], seen: str
) -> None:
    text = COUNTED.replace("SEEN", seen).replace(
        "__threadfence_block(); }", "__threadfence_block(); atomicAdd(&count, 0u); }"
    )
    np.testing.assert_array_equal(launch(compile_cuda(text.replace("SYNC", SYNC))), np.arange(64) ^ 41)
    ptx = compile_cuda(text.replace("SYNC", ""))
    assert race_of(ptx).startswith("ld.shared")
    launch(ptx, lanes=False)


def test_volatile_accesses_order_no_lanes(compile_cuda: Callable[..., str]) -> None:
    text = exchange(first="", second="", third="").replace("__shared__ int s", "__shared__ volatile int s")
    assert race_of(compile_cuda(text)).startswith("ld.volatile.shared")


WIDE = """if (t < 32) { int4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "r"((unsigned)__cvta_generic_to_shared(s + t % 16 * 4)) : "memory"); y[t] = v.w; } }"""


def test_all_words_of_a_wide_read_are_checked(compile_cuda: Callable[..., str]) -> None:
    """The reading warp has written the first one of two neighbouring words."""
    text = HANDED.replace("s[t] = x[t]", "s[t % 32 * 2 + t / 32] = x[t]").replace("y[t] = s[t ^ 41]; }", WIDE)
    text = text.replace("__shared__ int s", "__shared__ __align__(16) int s")
    found = launch(compile_cuda(text.replace("WHO", ONE).replace("THEN", SYNC), arch="sm_90"))
    np.testing.assert_array_equal(found[:32], 33 + np.arange(32) % 16 * 2)
    ptx = compile_cuda(text.replace("WHO", ONE).replace("THEN", ""), arch="sm_90")
    assert race_of(ptx).startswith("ld.shared.v4")


GLOBAL = """extern "C" __global__ void f(const int* x, int* y) {
  const int t = threadIdx.x; TYPE* s = (TYPE*)(y + 64);
  s[t] = x[t]; FIRST
  const int v = *(LOAD TYPE*)(s + (t ^ 5)); SECOND
  s[t] = v + 1; THIRD
  const int w = *(LOAD TYPE*)(s + (t ^ 9)); __syncwarp();
  s[t] = 3; if (t % 2) s[t ^ 1] = 3;
  y[t] = w; }
"""


def exchange_far(kind: str, load: str = "", first: str = SYNC, third: str = SYNC) -> str:
    text = GLOBAL.replace("TYPE", kind).replace("LOAD", load).replace("SECOND", SYNC)
    return text.replace("FIRST", first).replace("THIRD", third)


@pytest.mark.parametrize("kind", ["short", "int", "double"])
def test_lanes_that_exchange_through_global_memory_need_a_barrier(compile_cuda: Callable[..., str], kind: str) -> None:
    def launch_far(ptx: str, lanes: bool = True) -> np.ndarray:
        y = np.zeros(64 + 64 * 2, np.int32)
        Emulator(ptx).launch(1, 64, [np.arange(64, dtype=np.int32), y], races=True, lanes=lanes)
        return y[:64]

    expected = ((np.arange(64) ^ 9) ^ 5) + 1
    for barrier in (SYNC, "__syncthreads();"):
        ptx = compile_cuda(exchange_far(kind, first=barrier, third=barrier))
        np.testing.assert_array_equal(launch_far(ptx), expected)
    np.testing.assert_array_equal(launch_far(compile_cuda(exchange_far(kind, "volatile", first=""))), expected)
    fence = 'asm volatile("" ::: "memory");'  # keeps the compiler's order of the accesses
    for missing in ("first", "third"):
        ptx = compile_cuda(exchange_far(kind, **{missing: fence}))
        with pytest.raises(EmulatorError, match="another lane") as caught:
            launch_far(ptx)
        assert caught.value.kind is FaultKind.DATA_RACE
        assert caught.value.fault.ptx_text.startswith("ld.global")
        launch_far(ptx, lanes=False)


OVERWRITTEN = """extern "C" __global__ void f(const int* x, int* y) {
  const int t = threadIdx.x; y[t] = VALUE; BETWEEN y[t ^ 1] = 7; }"""


def test_lanes_overwrite_other_values_after_a_barrier_alone(compile_cuda: Callable[..., str]) -> None:
    def launched(value: str, between: str) -> np.ndarray:
        return launch(compile_cuda(OVERWRITTEN.replace("VALUE", value).replace("BETWEEN", between)))

    fence = 'asm volatile("" ::: "memory");'
    np.testing.assert_array_equal(launched("x[t]", SYNC), 7)
    np.testing.assert_array_equal(launched("x[t] * 0 + 7", fence), 7)
    with pytest.raises(EmulatorError, match=r"overwrites .*another lane") as caught:
        launched("x[t]", fence)
    assert caught.value.kind is FaultKind.DATA_RACE


SPLIT = """extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[64]; const int t = threadIdx.x; int v;
  if (t % 32 < 16) { s[t] = x[t]; FIRST v = s[t + 16]; } else { s[t] = 2 * x[t]; __syncwarp(); v = s[t - 16]; }
  __syncthreads();
  y[t] = v; }"""


def test_lanes_meet_at_different_barriers_of_their_warp(compile_cuda: Callable[..., str]) -> None:
    halves = np.arange(64) // 16 % 2 == 0
    expected = np.where(halves, 2 * (np.arange(64) + 16), np.arange(64) - 16)
    np.testing.assert_array_equal(launch(compile_cuda(SPLIT.replace("FIRST", SYNC))), expected)
    with pytest.raises(EmulatorError) as caught:
        launch(compile_cuda(SPLIT.replace("FIRST", 'asm volatile("" ::: "memory");')))
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE


GROUPS = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[128]; const int t = threadIdx.x; int v = x[t];
  if (t < 64) { v = v * 2 + 1; s[t] = v; asm volatile("bar.sync FIRST, 64;" ::: "memory"); y[t] = s[t ^ 32]; }
  else { v = v * 3 + 1; s[t] = v; asm volatile("bar.sync SECOND, 64;" ::: "memory"); y[t] = s[t ^ 32]; } }
"""
PARTS = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[128]; const int t = threadIdx.x; int v = x[t]; s[t] = v;
  if (t < 64) { asm volatile("bar.sync FIRST, 64;" ::: "memory"); v += s[t ^ 32]; }
  asm volatile("bar.sync SECOND;" ::: "memory"); y[t] = v + s[t ^ 64]; }
"""
RING = """
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ int s[2][64]; const int t = threadIdx.x, lane = t % 64; int sum = 0;
  if (t < 64) for (int i = 0; i < 4; ++i) {
    if (i >= 2) asm volatile("bar.sync %0, 128;" :: "r"(FIRST) : "memory");
    s[i & 1][lane] = x[lane] + i;
    asm volatile("bar.arrive %0, 128;" :: "r"(SECOND) : "memory"); }
  else { for (int i = 0; i < 4; ++i) {
    asm volatile("bar.sync %0, 128;" :: "r"(SECOND) : "memory");
    sum += s[i & 1][lane ^ 32];
    if (i < 2) asm volatile("bar.arrive %0, 128;" :: "r"(FIRST) : "memory"); }
  y[lane] = sum; } }
"""


@pytest.mark.parametrize(
    ("source", "first", "second", "shared"),
    [(GROUPS, "1", "2", "1"), (PARTS, "1", "0", "0"), (RING, "1 + (i & 1)", "3 + (i & 1)", "1")],
    ids=["two groups", "a part and the CTA", "ring"],
)
def test_a_barrier_is_not_used_by_warps_that_may_lap_each_other(
    compile_cuda: Callable[..., str], source: str, first: str, second: str, shared: str
) -> None:
    """A GPU counts threads at a barrier, whichever warps they are of."""

    def run(ptx: str) -> None:
        x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
        Emulator(ptx).launch(1, 128, [x, y], races=True, lanes=True)

    run(compile_cuda(source.replace("FIRST", first).replace("SECOND", second)))
    wrong = source.replace("FIRST", shared).replace("SECOND", shared if source is not RING else second)
    with pytest.raises(EmulatorError, match="phase") as caught:
        run(compile_cuda(wrong))
    assert caught.value.kind is FaultKind.DATA_RACE


@pytest.mark.parametrize("whole", ["t < 64", "t >= 64"])
def test_different_thread_counts_at_one_barrier_are_a_fault(compile_cuda: Callable[..., str], whole: str) -> None:
    source = """extern "C" __global__ void f(const int* x, int* y) { const int t = threadIdx.x;
      if (WHOLE) asm volatile("bar.sync 0;" ::: "memory"); else asm volatile("bar.sync 0, 64;" ::: "memory");
      y[t] = x[t]; }"""
    emulator = Emulator(compile_cuda(source.replace("WHOLE", whole)))
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(1, 128, [x, y], races=True)
    assert caught.value.kind is FaultKind.ILLEGAL_VALUE
