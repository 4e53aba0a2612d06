#!/usr/bin/env python3
"""Measures the shortest time to read a buffer: a lower bound for kernels that must read these bytes once.

    python scripts/measure/read_floor.py --mib 128 --out docs/results/read-floor-h200.md
    python scripts/measure/read_floor.py --mib 16,32,48 --out docs/results/read-sizes-h200.md

Times kernels that only read, in the two ways in which attention kernels read K and V: 16-byte loads into registers
(grid-stride over the buffer), and cp.async into a ring buffer in shared memory (one contiguous part per CTA). Each is
timed as in 'compare': 20 calls in a CUDA graph, median of 30 replays, over one buffer, which should exceed the L2.
Prints the fastest ways for each number of CTAs. For several sizes it prints the fastest way of each: smaller buffers
show how much of the L2 serves reads of the same bytes in call after call.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import common

from evoengine.errors import UsageError
from evoengine.target import Target, target_for_gpu

CALLS: Final = 20
REPLAYS: Final = 30
RING_BYTES: Final = 200 * 1024
"""Limit on the shared memory of all ring buffers of one SM."""
MIB: Final = 2**20
EMPTY: Final = 'extern "C" __global__ void nothing() {}'
SOURCE: Final = r"""
// LOADS 16-byte loads a thread are under way at once; a step is what the whole grid reads together.
template <int LOADS>
__global__ void by_loads(const uint4* from, size_t count, unsigned* never) {
    unsigned seen = 0;
    const size_t step = (size_t)blockDim.x * LOADS;
    for (size_t at = step * blockIdx.x; at < count; at += step * gridDim.x) {
        uint4 loaded[LOADS] = {};
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const size_t place = at + (size_t)i * blockDim.x + threadIdx.x;
            if (place < count)
                asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(loaded[i].x), "=r"(loaded[i].y), "=r"(loaded[i].z), "=r"(loaded[i].w)
                             : "l"(from + place));
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) seen ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    }
    if (seen == 0x12345678u) *never = seen;  // or the compiler leaves the loads out
}

// A ring of STAGES steps, each of LOADS 16-byte copies a thread; a CTA reads one share from its begin to its end.
template <int LOADS, int STAGES>
__global__ void by_copies(const char* from, size_t bytes) {
    extern __shared__ __align__(128) unsigned char smem[];
    const size_t step = (size_t)blockDim.x * LOADS * 16;
    const long long steps = bytes / step, first = steps * blockIdx.x / gridDim.x;
    const int own = (int)(steps * (blockIdx.x + 1) / gridDim.x - first);
    const unsigned ring = (unsigned)__cvta_generic_to_shared(smem) + threadIdx.x * 16;
    auto copy = [&](int index) {
        if (index < own) {
            const char* source = from + (first + index) * step + threadIdx.x * 16;
#pragma unroll
            for (int i = 0; i < LOADS; ++i)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
                                 "r"(ring + (index % STAGES * LOADS + i) * blockDim.x * 16),
                                 "l"(source + (size_t)i * blockDim.x * 16));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int index = 0; index < STAGES; ++index) copy(index);
    for (int index = 0; index < own; ++index) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 1) : "memory");
        copy(index + STAGES);
    }
}
"""
LOADS: Final = (4, 8)
RINGS: Final = ((4, 4), (8, 2), (4, 8), (8, 4), (2, 8))
"""Copies per thread, and stages."""


@dataclass(frozen=True)
class Reading:
    """Time of one way to read."""

    us: float
    ctas: int
    way: str


def timed_us(launch: Callable[[], object]) -> float:
    """Median time of one call in a CUDA graph of several."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        launch()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(CALLS):
            launch()
        graph = stream.end_capture()
        times_us: list[float] = []
        for _ in range(REPLAYS + 3):
            begin, end = cupy.cuda.Event(), cupy.cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times_us.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3 / CALLS)
    return median(times_us[3:])


def readings(module: Any, sms: int, bytes_read: int) -> list[Reading]:
    """Times all ways to read; fastest first."""
    import cupy

    buffer, never = cupy.zeros(bytes_read, cupy.uint8), cupy.zeros(1, cupy.uint32)
    found: list[Reading] = []
    for ctas in sorted({64, 128, sms // 2, sms, 2 * sms, 4 * sms, 8 * sms}):
        for threads in (128, 256, 512):
            for loads in LOADS:
                data: tuple[Any, ...] = (buffer, cupy.uint64(bytes_read // 16), never)
                call = partial(module.get_function(f"by_loads<{loads}>"), (ctas,), (threads,), data)
                found.append(Reading(timed_us(call), ctas, f"{loads} loads a thread, {threads} threads"))
            for copies, stages in RINGS:
                ring_bytes = threads * copies * stages * 16
                if ring_bytes * -(-ctas // sms) > RING_BYTES:
                    continue
                kernel = module.get_function(f"by_copies<{copies}, {stages}>")
                kernel.max_dynamic_shared_size_bytes = ring_bytes
                data = (buffer, cupy.uint64(bytes_read))
                us = timed_us(partial(kernel, (ctas,), (threads,), data, shared_mem=ring_bytes))
                found.append(Reading(us, ctas, f"cp.async, ring of {ring_bytes // 1024} KiB, {threads} threads"))
    return sorted(found, key=lambda reading: reading.us)


def main() -> int:
    arguments = _arguments()
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    target = target_for_gpu(properties["name"].decode(), properties["totalGlobalMem"])
    if target is None:
        raise UsageError(f"{properties['name'].decode()}: no data sheet with its bandwidth")
    names = [f"by_loads<{loads}>" for loads in LOADS] + [f"by_copies<{copies}, {stages}>" for copies, stages in RINGS]
    module = cupy.RawModule(code=SOURCE, options=("--std=c++17",), name_expressions=names)
    sms = properties["multiProcessorCount"]
    found = {mib: readings(module, sms, mib * MIB) for mib in map(int, arguments.mib)}
    empty_us = timed_us(partial(cupy.RawKernel(EMPTY, "nothing"), (64,), (128,), ()))
    lines = [
        f"# Reading {', '.join(arguments.mib)} MiB on {target.marketing_name}",
        "",
        f"`scripts/measure/read_floor.py --mib {','.join(arguments.mib)}`: {CALLS} calls in a CUDA graph, median of",
        f"{REPLAYS} replays, one buffer. Share: of {target.dram_gbps:,.0f} GB/s, with launch. Empty: {empty_us:.2f}.",
        "",
        *(_by_ctas(found, target, arguments.best) if len(found) == 1 else _by_size(found, target)),
    ]
    common.write_table(arguments.out, "\n".join(lines))
    return 0


def _arguments() -> argparse.Namespace:
    parser = common.parser(__doc__)
    parser.add_argument("--mib", type=common.comma_list, default=["128"], help="MiB to read; several by commas.")
    parser.add_argument("--best", type=int, default=2, help="Rows per number of CTAs, of one size.")
    parser.add_argument("--out", type=Path, help="File to write the table to.")
    return parser.parse_args()


def _by_ctas(found: Mapping[int, Sequence[Reading]], target: Target, best: int) -> list[str]:
    """The fastest ways to read one size, by number of CTAs."""
    [(mib, ways)] = found.items()
    lines = ["| CTAs | µs | share of DRAM bandwidth | how |", "|---:|---:|---:|---|"]
    for ctas in sorted({reading.ctas for reading in ways}):
        lines += [
            f"| {ctas} | {one.us:.2f} | {_share(mib, one, target):.1%} | {one.way} |"
            for one in [one for one in ways if one.ctas == ctas][:best]
        ]
    return lines


def _by_size(found: Mapping[int, Sequence[Reading]], target: Target) -> list[str]:
    """The fastest way to read each size."""
    lines = ["| MiB | µs | share of DRAM bandwidth | CTAs | how |", "|---:|---:|---:|---:|---|"]
    for mib, (reading, *_) in found.items():
        share = f"{_share(mib, reading, target):.1%}"
        lines.append(f"| {mib} | {reading.us:.2f} | {share} | {reading.ctas} | {reading.way} |")
    return lines


def _share(mib: int, reading: Reading, target: Target) -> float:
    return mib * MIB / reading.us / 1e3 / target.dram_gbps


if __name__ == "__main__":
    common.run(main)
