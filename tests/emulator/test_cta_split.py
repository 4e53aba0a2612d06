"""Splitting a batch where whole CTAs diverge does not change results, counters and faults."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory, LaunchReport
from evoengine.emulator.memory.uniform_memory import UniformMemory

CTAS, THREADS = 24, 256
ALONE, TOGETHER = THREADS, CTAS * THREADS
"""Lanes of a batch with one CTA, which cannot be split, and of one with all CTAs."""

# Each CTA runs 1 to 5 iterations. When it leaves the loop, it has a copy in flight, values in local memory, and has
# passed a barrier reduction. The last CTA to finish adds up the results of all.
SOURCE = """
#define COPY(tile) { \\
    unsigned place = (unsigned)__cvta_generic_to_shared(&s[(tile) & 1][t]); \\
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\\ncp.async.commit_group;" \\
                 :: "r"(place), "l"(x + ((b * 6 + (tile)) * 256 + t)) : "memory"); }
extern "C" __global__ void f(const int* x, int* y, unsigned* arrived, int* total) {
  __shared__ int s[2][256]; __shared__ bool last;
  int t = threadIdx.x, b = blockIdx.x, own[8], sum = 0;
  for (int i = 0; i < 8; i++) own[(t + i) & 7] = i * b;
  #pragma unroll 1
  for (int i = 0; i < t % 3; i++) sum += own[i];
  COPY(0)
  #pragma unroll 1
  for (int tile = 0; tile <= b % 5; tile++) {
    COPY(tile + 1)
    asm volatile("cp.async.wait_group 1;" ::: "memory"); __syncthreads();
    sum += s[tile & 1][255 - t] + own[(t + tile) & 7];
    sum += __syncthreads_count(s[tile & 1][t] & 1);
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory"); __syncthreads();
  y[b * 256 + t] = sum + s[(b % 5 + 1) & 1][t ^ 1];
  __threadfence(); __syncthreads();
  if (t == 0) last = atomicAdd(arrived, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  int all = 0;
  for (int i = 0; i < gridDim.x; i++) all += y[i * 256 + t];
  total[t] = all;
}
"""


def random_x() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 1000, (CTAS, 6, THREADS), dtype=np.int32)


def run(
    ptx: str,
    lanes: int,
    *,
    x: np.ndarray | None = None,
    memory: GlobalMemory | None = None,
    races: bool = False,
    counters: bool = False,
    conflicts: bool = False,
) -> tuple[np.ndarray, np.ndarray, LaunchReport]:
    """Runs the kernel; returns the results of each CTA, their sum, and the report."""
    x = random_x() if x is None else x
    y, total = np.zeros((CTAS, THREADS), np.int32), np.zeros(THREADS, np.int32)
    arguments = [x, y, np.zeros(1, np.uint32), total]
    emulator = Emulator(ptx)
    report = emulator.launch(
        CTAS,
        THREADS,
        arguments,
        memory=memory,
        max_batch_lanes=lanes,
        races=races,
        counters=counters,
        conflicts=conflicts,
    )
    return y, total, report


def expected(x: np.ndarray) -> np.ndarray:
    t, want = np.arange(THREADS), np.zeros((CTAS, THREADS), np.int32)
    for b in range(CTAS):
        for i in range(2):
            want[b] += np.where(i < t % 3, (i - t) % 8 * b, 0)
        for tile in range(b % 5 + 1):
            want[b] += x[b, tile, ::-1] + (tile % 8) * b + np.count_nonzero(x[b, tile] & 1)
        want[b] += x[b, b % 5 + 1, t ^ 1]
    return want


@pytest.mark.parametrize("races", [False, True])
def test_split_ctas_compute_correct_results(compile_cuda: Callable[..., str], races: bool) -> None:
    y, total, _ = run(compile_cuda(SOURCE), TOGETHER, races=races)
    np.testing.assert_array_equal(y, expected(random_x()))
    np.testing.assert_array_equal(total, expected(random_x()).sum(axis=0))


@pytest.mark.parametrize("lanes", [ALONE, TOGETHER])
@pytest.mark.parametrize("byte", [0, 1])
def test_uniform_memory_gives_the_same_results_and_counters(
    compile_cuda: Callable[..., str], lanes: int, byte: int
) -> None:
    """All inputs are uniform, and the kernel reads back values that it has written to uniform buffers."""
    ptx, x = compile_cuda(SOURCE), np.full((CTAS, 6, THREADS), byte * 0x01010101, np.int32)
    (y, total, report), plain = (
        run(ptx, lanes, x=x, memory=memory(), counters=True) for memory in (UniformMemory, GlobalMemory)
    )
    np.testing.assert_array_equal(y, expected(x))
    np.testing.assert_array_equal(total, expected(x).sum(axis=0, dtype=np.int32))
    assert report == plain[2]


def test_counters_do_not_depend_on_the_batch(compile_cuda: Callable[..., str]) -> None:
    ptx = compile_cuda(SOURCE.replace("if (!last) return;", "return;"))  # without the sum: any CTA may be the last
    (_, _, together), (_, _, alone) = (run(ptx, lanes, counters=True) for lanes in (TOGETHER, ALONE))
    assert together == alone


def test_conflicts_option_agrees_with_all_counters(compile_cuda: Callable[..., str]) -> None:
    ptx = compile_cuda(SOURCE.replace("s[tile & 1][255 - t]", "s[tile & 1][t * 8 & 255]"))
    every, some = run(ptx, TOGETHER, counters=True)[2], run(ptx, TOGETHER, conflicts=True)[2]
    assert some.conflicts == every.conflicts > 1.2
    assert not some.sites
    assert run(ptx, TOGETHER)[2].conflicts == 1


def test_a_race_after_a_split_is_reported_in_its_cta(compile_cuda: Callable[..., str]) -> None:
    """CTAs that have left the loop read data of another warp without a barrier."""
    racy = SOURCE.replace(
        "__threadfence(); __syncthreads();", "if (b % 5 == 3) { s[0][t] = t; y[b * 256 + t] = s[0][t ^ 32]; }"
    )
    ptx = compile_cuda(racy)
    with pytest.raises(EmulatorError) as caught:
        run(ptx, TOGETHER, races=True)
    assert caught.value.kind is FaultKind.DATA_RACE
    assert caught.value.fault.block is not None
    assert caught.value.fault.block[0] % 5 == 3


def test_a_race_across_a_split_is_found(compile_cuda: Callable[..., str]) -> None:
    """CTAs that leave the loop read data that another warp wrote in the last iteration."""
    late = SOURCE.replace("bool last;", "bool last; __shared__ int left[256];")
    late = late.replace("& 1);\n  }", "& 1);\n    left[t] = tile;\n  }\n  if (b % 5 == 0) sum += left[t ^ SHIFT];")
    run(compile_cuda(late.replace("SHIFT", "1")), TOGETHER, races=True)
    with pytest.raises(EmulatorError) as caught:
        run(compile_cuda(late.replace("SHIFT", "32")), TOGETHER, races=True)
    assert caught.value.kind is FaultKind.DATA_RACE


def test_a_cta_may_poll_a_cta_of_another_batch(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(volatile int* flags, int* y) {
      int b = blockIdx.x, t = threadIdx.x;
      if (b % 2 == 0) { while (flags[b + 1] == 0) { } y[b * 256 + t] = flags[b + 1]; }
      else { __syncthreads(); flags[b] = b; }
    }"""
    y = np.zeros((CTAS, THREADS), np.int32)
    Emulator(compile_cuda(source)).launch(CTAS, THREADS, [np.zeros(CTAS, np.int32), y], max_batch_lanes=TOGETHER)
    want = np.where(np.arange(CTAS) % 2, 0, np.arange(CTAS) + 1)
    np.testing.assert_array_equal(y, np.broadcast_to(want[:, None], y.shape))
