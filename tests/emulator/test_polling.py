"""Kernels in which CTAs or warps poll for what others write: results, and the number of executed instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorTimeoutError

CTAS = 96

# A scan with decoupled look-back: one thread waits for the sum of the CTA before, the others wait at a barrier.
CHAIN = """
__device__ int seen(int* flag) { READ }
extern "C" __global__ void chain(const int* in, int* out, int* ticket, int* flag, int* total) {
  __shared__ int tile, before;
  if (threadIdx.x == 0) tile = atomicAdd(ticket, 1);
  __syncthreads();
  const int t = tile;
  int sum = in[t * blockDim.x + threadIdx.x];
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, sum, d);
    if (threadIdx.x % 32 >= d) sum += other;
  }
  __shared__ int ends[2];
  if (threadIdx.x % 32 == 31) ends[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) sum += ends[0];
  if (threadIdx.x == 0) {
    int prefix = 0;
    if (t > 0) {
      while (seen(flag + t - 1) == 0) { PAUSE }
      __threadfence();
      prefix = total[t - 1];
    }
    total[t] = prefix + ends[0] + ends[1];
    __threadfence();
    atomicExch(flag + t, 1);
    before = prefix;
  }
  __syncthreads();
  out[t * blockDim.x + threadIdx.x] = before + sum;
}
"""
READS = {
    "atomic": "return atomicAdd(flag, 0);",
    "volatile": "return *(volatile int*)flag;",
    "acquire": 'int x; asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory"); return x;',
}


@pytest.mark.parametrize("order_seed", [None, 1])
@pytest.mark.parametrize(("read", "pause"), [("atomic", ""), ("volatile", "__nanosleep(20);"), ("acquire", "")])
@pytest.mark.every(3)
def test_a_chain_of_waiting_ctas(
    compile_cuda: Callable[..., str], read: str, pause: str, order_seed: int | None
) -> None:
    ctas = CTAS // 2
    text = CHAIN.replace("READ", READS[read]).replace("PAUSE", pause)
    values = np.random.default_rng(0).integers(0, 99, ctas * 64).astype(np.int32)
    out, ticket, flag, total = (np.zeros(size, np.int32) for size in (values.size, 1, ctas, ctas))
    emulator = Emulator(compile_cuda(text))
    report = emulator.launch(ctas, 64, [values, out, ticket, flag, total], races=True, order_seed=order_seed)
    np.testing.assert_array_equal(out, np.cumsum(values))
    assert report.warp_instructions < 75_000  # a turn of 512 blocks for each CTA takes hundreds of thousands


LOCK = """
extern "C" __global__ void locked(int* lock, volatile int* sum, int* ended) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    *sum = *sum + blockIdx.x;
    __threadfence();
    atomicExch(lock, 0);
  }
  __syncthreads();
  if (threadIdx.x == 40) atomicAdd(ended, 1);
}
"""
WARPS = """
extern "C" __global__ void warps(int* out) {
  __shared__ int ready; __shared__ int box[32];
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x < 32) {
    while (atomicAdd(&ready, 0) < 3) {}
    __threadfence_block();
    out[blockIdx.x * 32 + threadIdx.x] = box[threadIdx.x];
    return;
  }
  int x = threadIdx.x;
  #pragma unroll 1
  for (int i = 0; i < 300; i++) x = x * 5 + 1;
  if (threadIdx.x >= 96) box[threadIdx.x - 96] = x;
  __threadfence_block(); __syncwarp();
  if (threadIdx.x % 32 == 0) atomicAdd(&ready, 1);
}
"""


def test_a_lock_and_warps_that_poll_for_others(compile_cuda: Callable[..., str]) -> None:
    lock, total, ended = (np.zeros(1, np.int32) for _ in range(3))
    report = Emulator(compile_cuda(LOCK)).launch(CTAS, 64, [lock, total, ended], races=True)
    assert (lock[0], total[0], ended[0]) == (0, CTAS * (CTAS - 1) // 2, CTAS)
    assert report.warp_instructions < 100_000
    out = np.zeros(8 * 32, np.int32)
    report = Emulator(compile_cuda(WARPS)).launch(8, 128, [out], races=True)
    want = np.arange(96, 128, dtype=np.uint32)
    for _ in range(300):
        want = want * np.uint32(5) + np.uint32(1)
    np.testing.assert_array_equal(out.view(np.uint32), np.tile(want, 8))
    assert report.warp_instructions < 8 * 3 * 300 * 6


RING = """
extern "C" __global__ void ring(int* out) {
  __shared__ int turn; __shared__ int spins[32];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) turn = 0;
  if (threadIdx.x < 32) spins[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < 4; round++) {
    if (warp == 0) { while (atomicAdd(&turn, 0) % 3 != 0) {} }
    else if (warp == 1) { while (atomicAdd(&turn, 0) % 3 != 1) atomicAdd(&spins[threadIdx.x % 32], 1); }
    else { while (atomicAdd(&turn, 0) % 3 != 2) __nanosleep(20); }
    __syncwarp();
    if (threadIdx.x % 32 == 0) { out[atomicAdd(&turn, 0)] = warp; __threadfence_block(); atomicAdd(&turn, 1); }
    __syncwarp();
  }
}
"""


def test_warps_that_wait_in_different_loops_all_have_their_turn(compile_cuda: Callable[..., str]) -> None:
    """The loop of warp 1 has an effect, so it does not count as one that only polls."""
    out = np.zeros(12, np.int32)
    Emulator(compile_cuda(RING)).launch(1, 96, [out], max_steps=30_000)
    np.testing.assert_array_equal(out, np.arange(12) % 3)


def test_a_flag_that_is_never_set_ends_as_an_endless_loop(compile_cuda: Callable[..., str]) -> None:
    emulator = Emulator(compile_cuda(LOCK.replace("atomicExch(lock, 0);", "")))
    with pytest.raises(EmulatorTimeoutError):
        emulator.launch(2, 64, [np.zeros(1, np.int32) for _ in range(3)], max_steps=4_000)
