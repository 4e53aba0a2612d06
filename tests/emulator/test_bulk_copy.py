"""Bulk copies against NumPy: boxes of tensors, swizzles, edges; a fault for every planted bug of a ring of tiles."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, GlobalMemory, LaunchReport, Pipe
from evoengine.emulator.emulator import Asynchrony
from evoengine.emulator.memory.tensor_map import TensorMap

MODES: tuple[Asynchrony, ...] = ("early", "late")
RING = """
struct Maps { TensorMap in, out; };
constexpr int STAGES = 2, TILE = 4096;
// One thread loads tiles of 32x64 values into a ring; 128 threads add the tiles up and store the sum.
extern "C" __global__ void __launch_bounds__(160) ring(const __grid_constant__ Maps maps, int tiles) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const u32 full = shared_address(smem), empty = full + 64, slots = full + 1024, result = slots + STAGES * TILE;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { init(full + 8 * i, 1); init(empty + 8 * i, 4); }
    fence_init();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128)
      for (int t = 0; t < tiles; t++) {
        const int i = t % STAGES;
        wait(empty + 8 * i, (t / STAGES & 1) ^ 1);
        expect(full + 8 * i, TILE);
        load(slots + i * TILE, &maps.in, full + 8 * i, blockIdx.x * 64, t * 32);
      }
    return;
  }
  const int row = threadIdx.x / 4, first = threadIdx.x % 4 * 2;
  u32 sum[16] = {};
  for (int t = 0; t < tiles; t++) {
    const int i = t % STAGES;
    wait(full + 8 * i, t / STAGES & 1);
    const u16* tile = (const u16*)(smem + 1024 + i * TILE) + row * 64;
    for (int k = 0; k < 16; k++) sum[k] += tile[((first + k / 8) ^ (row & 7)) * 8 + k % 8];
    fence_proxy(); __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(empty + 8 * i);
  }
  u16* out = (u16*)(smem + 1024 + STAGES * TILE) + row * 64;
  for (int k = 0; k < 16; k++) out[((first + k / 8) ^ (row & 7)) * 8 + k % 8] = (u16)sum[k];
  fence_proxy();
  bar_sync(1, 128);
  if (threadIdx.x == 0) { store(&maps.out, result, blockIdx.x * 64, 0); commit(); wait_read<0>(); }
}
"""
TILES, CTAS, ROWS = 5, 3, 20


def ring(
    ptx: str, *, asynchrony: Asynchrony = "early", races: bool = True, rows: int = ROWS
) -> tuple[bool, LaunchReport]:
    """Runs the ring on a tensor that ends inside the last tile and the last column of CTAs; stores 20 of 32 rows.

    Returns:
        Whether the sums are right and nothing else was written, and the report.
    """
    values = np.random.default_rng(0).integers(0, 999, (TILES * 32 - 7, CTAS * 64 - 8)).astype(np.uint16)
    columns = values.shape[1]
    memory = GlobalMemory()
    source = memory.alloc(values, name="in")
    target = memory.alloc(ROWS * columns * 2, initialised=False, name="out")
    guard = memory.alloc(32 * columns * 2, initialised=False)
    shape = ((columns * 2,), (64, 32), 2, 128)
    maps = [
        TensorMap(buffer.address, (columns, count), *shape) for buffer, count in ((source, len(values)), (target, rows))
    ]
    args = [b"".join(one.encode() for one in maps), TILES]
    report = Emulator(ptx).launch(
        CTAS, 160, args, memory=memory, smem_bytes=1024 + 3 * 4096, asynchrony=asynchrony, races=races
    )
    padded = np.zeros((TILES * 32, columns), np.uint16)
    padded[: len(values)] = values
    sums = padded.reshape(TILES, 32, columns).sum(axis=0, dtype=np.uint16)[:ROWS]
    right = np.array_equal(memory.read(target, np.uint16, sums.shape), sums)
    return right and bool(memory.written(target).all()) and not memory.written(guard).any(), report


@pytest.mark.parametrize("races", [False, True], ids=["fast", "races"])
@pytest.mark.parametrize("asynchrony", MODES)
def test_a_ring_of_tiles(compile_hopper: Callable[[str], str], asynchrony: Asynchrony, races: bool) -> None:
    right, report = ring(compile_hopper(RING), asynchrony=asynchrony, races=races)
    assert right
    columns = CTAS * 64 - 8
    assert report.cp_async_bytes == (TILES * 32 - 7) * columns * 2  # zeros out of bounds move no bytes
    assert report.global_written_bytes == ROWS * columns * 2
    assert report.pipes.get(Pipe.LSU_GLOBAL, 0) == 0


RELEASE = "fence_proxy(); __syncwarp();\n    if (threadIdx.x % 32 == 0) arrive(empty + 8 * i);"
SYNCHRONISED = (FaultKind.DATA_RACE, FaultKind.BULK_COPY_NOT_WAITED, FaultKind.UNINITIALISED_READ)
BUGS = {
    "slot released early": ("    const u16* tile", f"    {RELEASE}\n    const u16* tile", SYNCHRONISED),
    "wrong phase": (
        "wait(full + 8 * i, t / STAGES & 1)",
        "wait(full + 8 * i, (t / STAGES & 1) ^ 1)",
        (FaultKind.BARRIER_DEADLOCK, *SYNCHRONISED),
    ),
    "wrong mbarrier": ("wait(full + 8 * i, t", "wait(full + 8 * ((t + 1) % STAGES), t", SYNCHRONISED),
    "no wait for the slot": (
        "wait(empty + 8 * i, (t / STAGES & 1) ^ 1);",
        "",
        (FaultKind.ILLEGAL_VALUE, *SYNCHRONISED),
    ),
    "slot passed before its copy has landed": (
        "    wait(full + 8 * i, t / STAGES & 1);",
        f"    if (t == 1) {{ {RELEASE} continue; }}\n    wait(full + 8 * i, t / STAGES & 1);",
        (FaultKind.DATA_RACE, FaultKind.ILLEGAL_VALUE),
    ),
    "byte count short": (
        "expect(full + 8 * i, TILE)",
        "expect(full + 8 * i, TILE - 16)",
        (FaultKind.BARRIER_DEADLOCK,),
    ),
    "arrival missing": (RELEASE, "", (FaultKind.BARRIER_DEADLOCK,)),
    "double arrival": (
        "% 32 == 0) arrive",
        "% 16 == 0) arrive",
        (FaultKind.BARRIER_DEADLOCK, FaultKind.ILLEGAL_VALUE, *SYNCHRONISED),
    ),
    "no fence after init": ("    fence_init();\n", "", (FaultKind.MISSING_PROXY_FENCE,)),
    "no barrier after init": ("  __syncthreads();", "", (FaultKind.DATA_RACE, FaultKind.ILLEGAL_VALUE)),
    "no proxy fence": ("  fence_proxy();\n", "\n", (FaultKind.MISSING_PROXY_FENCE,)),
    "proxy fence of one thread": (
        "  fence_proxy();\n",
        "if (threadIdx.x == 0) fence_proxy();\n",
        (FaultKind.MISSING_PROXY_FENCE,),
    ),
    "no proxy fence after the reads": (
        "fence_proxy(); __syncwarp();",
        "__syncwarp();",
        (FaultKind.MISSING_PROXY_FENCE,),
    ),
    "proxy fence of the releasing lanes": (
        "fence_proxy(); __syncwarp();",
        "if (threadIdx.x % 32 == 0) fence_proxy(); __syncwarp();",
        (FaultKind.MISSING_PROXY_FENCE,),
    ),
    "proxy fence after the barrier of the warp": (
        "fence_proxy(); __syncwarp();",
        "__syncwarp(); fence_proxy();",
        (FaultKind.MISSING_PROXY_FENCE,),
    ),
    "proxy fence after the arrival": (
        RELEASE,
        RELEASE.removeprefix("fence_proxy(); ") + "\n    fence_proxy();",
        (FaultKind.MISSING_PROXY_FENCE,),
    ),
    "proxy fence of other warps after the barrier": (
        "  fence_proxy();\n  bar_sync(1, 128);\n",
        "  if (threadIdx.x < 32) fence_proxy();\n  bar_sync(1, 128);\n  if (threadIdx.x >= 32) fence_proxy();\n",
        (FaultKind.MISSING_PROXY_FENCE,),
    ),
    "no barrier before the store": ("  bar_sync(1, 128);", "", (FaultKind.DATA_RACE,)),
    "store not waited for": (" wait_read<0>();", "", (FaultKind.BULK_COPY_NOT_WAITED,)),
    "store source reused": (
        "commit(); wait_read<0>();",
        "commit(); out[0] = 1; wait_read<0>();",
        (FaultKind.OPERAND_IN_FLIGHT,),
    ),
    "store waits for other groups": (
        "commit(); wait_read<0>();",
        "commit(); wait_read<1>(); out[0] = 1; wait_read<0>();",
        (FaultKind.OPERAND_IN_FLIGHT,),
    ),
    "a load too many": (
        "if (threadIdx.x == 128)",
        "if (threadIdx.x == 128) tiles++;\n    if (threadIdx.x == 128)",
        (FaultKind.BULK_COPY_NOT_WAITED,),
    ),
    "mbarrier overwritten": (
        "  __syncthreads();",
        "  __syncthreads(); if (threadIdx.x == 0) smem[0] = 1;",
        (FaultKind.ILLEGAL_VALUE,),
    ),
}


def test_the_issuing_warp_may_fence_what_others_did(compile_hopper: Callable[[str], str]) -> None:
    before, after = "  fence_proxy();\n  bar_sync(1, 128);\n", "  bar_sync(1, 128);\n  fence_proxy();\n"
    assert before in RING
    right, _ = ring(compile_hopper(RING.replace(before, after)))
    assert right


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_faults(compile_hopper: Callable[[str], str], bug: str, asynchrony: Asynchrony) -> None:
    old, new, kinds = BUGS[bug]
    assert old in RING
    with pytest.raises(EmulatorError) as caught:
        ring(compile_hopper(RING.replace(old, new)), asynchrony=asynchrony)
    assert caught.value.kind in kinds, caught.value
    assert caught.value.fault.source_line
    assert caught.value.fault.block


HINTED = """
DEVICE void hinted(u32 to, const TensorMap* map, u32 bar, int column, int row) {
  u64 policy; u32 first;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(first));
  if (first) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(to), "l"(map), "r"(bar), "r"(column), "r"(row), "l"(policy) : "memory");
  }
  asm volatile("griddepcontrol.launch_dependents;");
}
"""


def test_hints_and_an_elected_thread(compile_hopper: Callable[[str], str]) -> None:
    """A whole warp produces; one elected lane loads."""
    changes = {
        "if (threadIdx.x == 128)\n": "if (true)\n",
        "expect(full + 8 * i, TILE);": "if (threadIdx.x == 128) expect(full + 8 * i, TILE); __syncwarp();",
        "load(slots": "hinted(slots",
    }
    text = RING
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    for asynchrony in MODES:
        assert ring(compile_hopper(HINTED + text), asynchrony=asynchrony)[0]


def test_a_deadlock_names_the_mbarriers(compile_hopper: Callable[[str], str]) -> None:
    short = RING.replace("expect(full + 8 * i, TILE)", "expect(full + 8 * i, TILE - 16)")
    with pytest.raises(
        EmulatorError,
        match=r"\[4\] .*0x40 .*phase 0.* 4 of 4 arrivals and 0 bytes",
    ):
        ring(compile_hopper(short))


def test_rows_past_the_end_of_the_buffer(compile_hopper: Callable[[str], str]) -> None:
    with pytest.raises(EmulatorError, match=r"\bend of out\b") as caught:
        ring(compile_hopper(RING), rows=ROWS + 1)
    assert caught.value.kind is FaultKind.OUT_OF_BOUNDS


BOX = """
extern "C" __global__ void copy(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to,
                                const int* at, unsigned char* seen) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const u32 bar = shared_address(smem), box = bar + 1024;
  if (threadIdx.x == 0) {
    init(bar, 1);
    fence_proxy();
    expect(bar, BYTES);
    asm volatile("cp.async.bulk.tensor.RANKd.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {COORDS}], [%2];" :: "r"(box), "l"(&from), "r"(bar) OPERANDS : "memory");
    wait(bar, 0);
    asm volatile("cp.async.bulk.tensor.RANKd.global.shared::cta.bulk_group [%1, {COORDS}], [%0];"
                 :: "r"(box), "l"(&to), "r"(bar) OPERANDS : "memory");
    commit();
    wait_write<0>();
  }
  __syncthreads();
  for (int i = threadIdx.x; i < BYTES; i += blockDim.x) seen[i] = smem[1024 + i];
}
"""


@pytest.mark.parametrize(
    ("sizes", "box", "corner", "dtype"),
    [
        ((100,), (48,), (70,), np.uint8),
        ((24, 5), (8, 3), (16, 3), np.uint16),
        ((20, 6), (12, 4), (-3, -2), np.uint32),
        ((12, 7, 3), (8, 4, 2), (6, 5, -1), np.uint16),
        ((8, 3, 4, 2), (2, 2, 3, 1), (7, 2, 2, 1), np.uint64),
        ((8, 3, 2, 4, 2), (8, 2, 1, 3, 2), (0, -1, 1, 3, 1), np.uint16),
        ((8, 3), (8, 2), (0, 9), np.uint16),
    ],
)
@pytest.mark.parametrize("asynchrony", MODES)
def test_boxes(
    compile_hopper: Callable[[str], str],
    sizes: tuple[int, ...],
    box: tuple[int, ...],
    corner: tuple[int, ...],
    dtype: type,
    asynchrony: Asynchrony,
) -> None:
    """A box is read with zeros out of bounds, and written back without them, whatever its rank and element size."""
    element, rank = np.dtype(dtype).itemsize, len(sizes)
    pitch = -(-sizes[0] * element // 16) * 16 // element
    stored = (*reversed(sizes[1:]), pitch)
    values: np.ndarray = np.random.default_rng(0).integers(1, 250, stored).astype(dtype)
    strides = tuple(values.strides[rank - 1 - n] for n in range(1, rank))
    memory = GlobalMemory()
    source = memory.alloc(values)
    target = memory.alloc(values.nbytes, initialised=False)
    maps = [TensorMap(b.address, sizes, strides, box, element, 0).encode() for b in (source, target)]
    seen = memory.alloc(int(np.prod(box)) * element)
    text = BOX.replace("RANK", str(rank)).replace("BYTES", str(seen.size))
    text = text.replace("COORDS", ", ".join(f"%{3 + n}" for n in range(rank)))
    text = text.replace("OPERANDS", "".join(f', "r"(at[{n}])' for n in range(rank)))
    at = memory.alloc(np.array(corner, np.int32))
    Emulator(compile_hopper(text)).launch(
        1, 64, [*maps, at, seen], memory=memory, smem_bytes=1024 + seen.size, asynchrony=asynchrony, races=True
    )
    expected: np.ndarray = np.zeros(tuple(reversed(box)), dtype)
    written = np.zeros(stored, np.bool_)
    for offsets in itertools.product(*(range(size) for size in box)):
        where = tuple(first + offset for first, offset in zip(corner, offsets, strict=True))
        if all(0 <= position < size for position, size in zip(where, sizes, strict=True)):
            expected[offsets[::-1]] = values[where[::-1]]
            written[where[::-1]] = True
    np.testing.assert_array_equal(memory.read(seen, dtype, expected.shape), expected)
    np.testing.assert_array_equal(memory.written(target).reshape(*stored, element).all(axis=-1), written)
    np.testing.assert_array_equal(memory.read(target, dtype, stored)[written], values[written])


@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_swizzles(compile_hopper: Callable[[str], str], span: int) -> None:
    """Chunks of 16 bytes are XORed with the number of their 128 bytes, as far as they are within the span."""
    width = (span or 64) // 2
    values = np.random.default_rng(0).integers(0, 60000, (16, width)).astype(np.uint16)
    memory = GlobalMemory()
    source, target, seen = memory.alloc(values), memory.alloc(values.nbytes), memory.alloc(values.nbytes)
    maps = [TensorMap(b.address, (width, 16), (width * 2,), (width, 16), 2, span).encode() for b in (source, target)]
    text = BOX.replace("RANK", "2").replace("BYTES", str(seen.size)).replace("COORDS", "%3, %4")
    at = memory.alloc(np.zeros(2, np.int32))
    ptx = compile_hopper(text.replace("OPERANDS", ', "r"(at[0]), "r"(at[1])'))
    Emulator(ptx).launch(1, 64, [*maps, at, seen], memory=memory, smem_bytes=1024 + seen.size, races=True)
    expected = np.zeros((values.nbytes // 16, 8), np.uint16)
    for row, chunk in itertools.product(range(16), range(width // 8)):
        line = row * width * 2 // 128
        place = chunk ^ (line % (span // 16)) if span else chunk
        expected[row * (width // 8) + place] = values[row, chunk * 8 : chunk * 8 + 8]
    np.testing.assert_array_equal(memory.read(seen, np.uint16, expected.shape), expected)
    np.testing.assert_array_equal(memory.read(target, np.uint16, values.shape), values)


LINES = """
extern "C" __global__ void lines(const u16* in, u16* out, int bytes) {
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 bar = shared_address(smem), slot = bar + 128 + SKEW;
  in += blockIdx.x * bytes / 2; out += blockIdx.x * bytes / 2;
  if (threadIdx.x == 0) { init(bar, 1); fence_init(); expect(bar, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(slot), "l"(in), "r"(bytes), "r"(bar) : "memory"); }
  __syncthreads();
  wait(bar, 0);
  u16* own = (u16*)(smem + 128) + threadIdx.x;
  *own = *own * 2;
  fence_proxy();
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(out), "r"(slot), "r"(bytes) : "memory");
    commit(); wait_write<0>(); }
}
"""


@pytest.mark.parametrize("asynchrony", MODES)
def test_contiguous_copies(compile_hopper: Callable[[str], str], asynchrony: Asynchrony) -> None:
    values = np.arange(4 * 64, dtype=np.uint16)
    out = np.zeros_like(values)
    ptx = compile_hopper(LINES.replace("SKEW", "0"))
    Emulator(ptx).launch(4, 64, [values, out, 128], smem_bytes=256, races=True, asynchrony=asynchrony)
    np.testing.assert_array_equal(out, values * 2)


TURNS = """
// Two warps take the tiles of a ring in turn and double their values; one thread loads.
extern "C" __global__ void turns(const u16* in, u16* out, int tiles) {
  constexpr int BYTES = 64;
  extern __shared__ __align__(128) unsigned char smem[];
  const u32 full = shared_address(smem), empty = full + 64, slots = full + 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) { init(full + 8 * i, 1); init(empty + 8 * i, 1); }
    fence_init();
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 2) {
    for (int t = 0; t < tiles && lane == 0; t++) {
      const int i = t % STAGES;
      wait(empty + 8 * i, (t / STAGES & 1) ^ 1);
      expect(full + 8 * i, BYTES);
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   :: "r"(slots + i * BYTES), "l"(in + t * 32), "r"(BYTES), "r"(full + 8 * i) : "memory");
    }
    return;
  }
  for (int t = warp; t < tiles; t += 2) {
    const int i = t % STAGES;
    wait(full + 8 * i, t / STAGES & 1);
    out[t * 32 + lane] = 2 * ((const u16*)(smem + 128 + i * BYTES))[lane];
    fence_proxy(); __syncwarp();
    if (lane == 0) arrive(empty + 8 * i);
  }
}
"""


def test_copies_that_end_out_of_order(compile_hopper: Callable[[str], str]) -> None:
    """A warp that never waits for the first use of a slot may take its barrier for one lap ahead."""
    values = np.arange(12 * 32, dtype=np.uint16)

    def turns(stages: int, asynchrony: Asynchrony) -> np.ndarray:
        out = np.zeros_like(values)
        ptx = compile_hopper(TURNS.replace("STAGES", str(stages)))
        Emulator(ptx).launch(1, 96, [values, out, 12], smem_bytes=512, races=True, asynchrony=asynchrony)
        return out

    for asynchrony in MODES:
        np.testing.assert_array_equal(turns(4, asynchrony), values * 2)
    with pytest.raises(EmulatorError) as caught:
        turns(3, "late")
    assert caught.value.kind is FaultKind.BULK_COPY_NOT_WAITED


OVER = """
extern "C" __global__ void over(const u16* in, int* out) {
  __shared__ __align__(128) int box[32]; __shared__ __align__(8) u64 bars;
  const u32 bar = shared_address(&bars);
  if (threadIdx.x == 0) { init(bar, 1); fence_init(); }
  if (threadIdx.x < 32) box[threadIdx.x] = threadIdx.x;
  FENCE
  __syncthreads();
  if (threadIdx.x >= 32) out[threadIdx.x - 32] = box[63 - threadIdx.x];
  BARRIER
  if (threadIdx.x == 0) {
    expect(bar, 128);
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                 :: "r"(shared_address(box)), "l"(in), "r"(bar) : "memory");
    wait(bar, 0);
  }
}
"""


def test_a_copy_over_what_another_warp_reads(compile_hopper: Callable[[str], str]) -> None:
    out = np.zeros(32, np.int32)

    def over(barrier: str, fence: str) -> None:
        ptx = compile_hopper(OVER.replace("BARRIER", barrier).replace("FENCE", fence))
        Emulator(ptx).launch(1, 64, [np.zeros(64, np.uint16), out], races=True)

    over("fence_proxy(); __syncthreads();", "fence_proxy();")
    np.testing.assert_array_equal(out, np.arange(31, -1, -1))
    with pytest.raises(EmulatorError, match=r"bulk copy .*warp 0 .*warp 1 reads") as caught:
        over("fence_proxy();", "fence_proxy();")
    assert caught.value.kind is FaultKind.DATA_RACE
    over("__syncthreads(); fence_proxy();", "fence_proxy();")
    with pytest.raises(EmulatorError, match=r"warp 1 .*fence\.proxy\.async") as caught:
        over("__syncthreads(); if (threadIdx.x >= 32) fence_proxy();", "fence_proxy();")
    assert caught.value.kind is FaultKind.MISSING_PROXY_FENCE
    # Half of the threads write the box, and the other half read it: each half needs a fence of its own.
    for barrier, fence, did in (
        ("if (threadIdx.x >= 32) fence_proxy(); __syncthreads();", "", "wrote"),
        ("__syncthreads();", "fence_proxy();", "read"),
    ):
        with pytest.raises(EmulatorError, match=f"bulk copy .*thread [0-9]+ {did}") as caught:
            over(barrier, fence)
        assert caught.value.kind is FaultKind.MISSING_PROXY_FENCE


@pytest.mark.parametrize(
    ("skew", "size", "kind"),
    [(8, 64, FaultKind.MISALIGNED), (0, 120, FaultKind.ILLEGAL_VALUE), (0, 256, FaultKind.OUT_OF_BOUNDS)],
)
def test_invalid_copies(compile_hopper: Callable[[str], str], skew: int, size: int, kind: FaultKind) -> None:
    values = np.zeros(4 * 128, np.uint16)
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_hopper(LINES.replace("SKEW", str(skew)))).launch(
            1, 64, [values, values.copy(), size], smem_bytes=256
        )
    assert caught.value.kind is kind


def test_what_another_launch_argument_calls_a_map(compile_hopper: Callable[[str], str]) -> None:
    with pytest.raises(EmulatorError, match="tensor map") as caught:
        Emulator(compile_hopper(RING)).launch(1, 160, [bytes(256), 1], smem_bytes=1024 + 3 * 4096)
    assert caught.value.kind is FaultKind.ILLEGAL_VALUE


@pytest.mark.parametrize(
    ("smem", "shift", "kind"), [(4096, 0, FaultKind.OUT_OF_BOUNDS), (16384, 32, FaultKind.MISALIGNED)]
)
def test_maps_that_cannot_be_used(compile_hopper: Callable[[str], str], smem: int, shift: int, kind: FaultKind) -> None:
    """The box does not fit into shared memory; the map is not aligned to 64 bytes."""
    text = RING.replace(
        "struct Maps { TensorMap in, out; };", f"struct Maps {{ char pad[{shift}]; char in[128], out[128]; }};"
    )
    text = text.replace("struct Maps { char pad[0];", "struct __align__(64) Maps {").replace(
        "&maps.", "(const TensorMap*)&maps."
    )
    memory = GlobalMemory()
    source = memory.alloc(np.zeros((64, 64), np.uint16))
    encoded = TensorMap(source.address, (64, 64), (128,), (64, 32), 2, 128).encode()
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_hopper(text)).launch(1, 160, [bytes(shift) + encoded * 2, 1], memory=memory, smem_bytes=smem)
    assert caught.value.kind is kind


VALID = TensorMap(1 << 40, (64, 100, 4), (128, 12800), (64, 32, 1), 2, 128)


def test_a_map_survives_its_encoding() -> None:
    assert len(VALID.encode()) == 128
    assert TensorMap.decode(VALID.encode()) == VALID


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"address": (1 << 40) + 8}, "address"),
        ({"sizes": (64, 0, 4)}, "size 0"),
        ({"strides_bytes": (128,)}, "3 sizes need 2 strides"),
        ({"strides_bytes": (128, 12808)}, "stride of 12808"),
        ({"strides_bytes": (128, 1 << 40)}, "below 2\\^40"),
        ({"box": (64, 257, 1)}, "box size 257"),
        ({"box": (60, 32, 1)}, "have 120 bytes"),
        ({"box": (128, 32, 1)}, "more than the swizzle"),
        ({"swizzle_bytes": 16}, "swizzle of 16"),
        ({"element_bytes": 3}, "elements of 3"),
        ({"sizes": (), "strides_bytes": (), "box": ()}, "0 dimensions"),
    ],
)
def test_maps_that_a_driver_rejects(changes: dict[str, object], said: str) -> None:
    fields = {name: getattr(VALID, name) for name in VALID.__dataclass_fields__}
    with pytest.raises(EmulatorError, match=said):
        TensorMap(**{**fields, **changes})


HANDED_OVER = """
extern "C" __global__ void handed_over(const u16* in, u16* between, u16* out) {
  __shared__ __align__(128) u16 box[64]; __shared__ __align__(8) u64 full;
  const u32 bar = shared_address(&full), t = threadIdx.x;
  between += blockIdx.x * 64; out += blockIdx.x * 64;
  if (t == 0) { init(bar, 1); fence_init(); }
  between[t] = in[blockIdx.x * 64 + t];
  WRITER
  __syncthreads();
  if (t == 0) { READER expect(bar, 128);
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                 :: "r"(shared_address(box)), "l"(between), "r"(bar) : "memory"); }
  wait(bar, 0);
  out[t] = box[t];
}
"""
BOTH, GLOBAL, SHARED = (
    f'asm volatile("fence.proxy.async{space};" ::: "memory");' for space in ("", ".global", ".shared::cta")
)


@pytest.mark.parametrize(
    ("writer", "reader", "fenced"),
    [(BOTH, "", True), (GLOBAL, "", True), ("", BOTH, True), ("", "", False), (SHARED, "", False)],
)
def test_a_bulk_copy_reads_what_threads_wrote_to_global_memory_after_a_proxy_fence(
    compile_hopper: Callable[[str], str], writer: str, reader: str, fenced: bool
) -> None:
    values = np.arange(3 * 64, dtype=np.uint16)
    out = np.zeros_like(values)
    emulator = Emulator(compile_hopper(HANDED_OVER.replace("WRITER", writer).replace("READER", reader)))
    if fenced:
        emulator.launch(3, 64, [values, np.zeros_like(values), out], races=True)
        np.testing.assert_array_equal(out, values)
        return
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(3, 64, [values, np.zeros_like(values), out], races=True)
    assert caught.value.kind is FaultKind.MISSING_PROXY_FENCE


POLLED = """
extern "C" __global__ void polled(const u16* in, u16* out) {
  __shared__ __align__(128) u16 box[64]; __shared__ __align__(8) u64 bars[2];
  const u32 full = shared_address(bars), seen = full + 8;
  if (threadIdx.x == 0) { init(full, 1); init(seen, 1); fence_init(); }
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(full, 128);
    asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                 :: "r"(shared_address(box)), "l"(in), "r"(full) : "memory");
    wait(full, 0); arrive(seen); }
  if (threadIdx.x >= 32) {
    u32 done = 0;
    while (!done) asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; "
                               "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(seen) : "memory");
    out[threadIdx.x - 32] = box[threadIdx.x - 32]; }
}
"""


@pytest.mark.parametrize("asynchrony", MODES)
def test_a_late_copy_ends_while_other_threads_poll(
    compile_hopper: Callable[[str], str], asynchrony: Asynchrony
) -> None:
    values = np.arange(64, dtype=np.uint16)
    out = np.zeros(32, np.uint16)
    Emulator(compile_hopper(POLLED)).launch(1, 64, [values, out], races=True, lanes=True, asynchrony=asynchrony)
    np.testing.assert_array_equal(out, values[:32])


OVERLAP = """
DEVICE void store_bytes(int* to, const int* from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
}
extern "C" __global__ void f(const int* x, int* y) {
  __shared__ alignas(128) int one[128], two[128]; const int t = threadIdx.x;
  one[t] = x[t]; two[t] = -x[t]; BEFORE
  fence_proxy(); __syncthreads();
  if (t == 0) {
    store_bytes(y, one, 512); commit(); BETWEEN
    store_bytes(y + 64, two, 256); commit(); wait_write<0>(); } }
"""


def overlapping(ptx: str, asynchrony: Asynchrony) -> np.ndarray:
    x, y = np.arange(1, 129, dtype=np.int32), np.zeros(128, np.int32)
    Emulator(ptx).launch(1, 128, [x, y], races=True, asynchrony=asynchrony)
    return y


@pytest.mark.parametrize(("between", "ordered"), [("wait_write<0>();", True), ("wait_read<0>();", False), ("", False)])
def test_only_a_wait_for_the_write_orders_stores_to_the_same_bytes(
    compile_hopper: Callable[[str], str], between: str, ordered: bool
) -> None:
    ptx = compile_hopper(OVERLAP.replace("BEFORE", "").replace("BETWEEN", between))
    early, late = (overlapping(ptx, mode) for mode in MODES)
    assert np.array_equal(early, late) is ordered


@pytest.mark.parametrize(("apart", "ordered"), [(128, True), (64, False)])
def test_nothing_orders_stores_of_several_lanes_to_the_same_bytes(
    compile_hopper: Callable[[str], str], apart: int, ordered: bool
) -> None:
    together = f"if (t < 2) {{ store_bytes(y + {apart} * t, t == 0 ? one : two, 512); commit(); wait_write<0>(); }} }}"
    ptx = compile_hopper(OVERLAP.partition("if (t == 0)")[0].replace("BEFORE", "") + together)
    x, early, late = np.arange(1, 129, dtype=np.int32), np.zeros(256, np.int32), np.zeros(256, np.int32)
    for y, mode in zip((early, late), MODES, strict=True):
        Emulator(ptx).launch(1, 128, [x, y], races=True, asynchrony=mode)
    assert np.array_equal(early, late) is ordered


@pytest.mark.parametrize(
    ("fence", "fenced"), [("", False), ('asm volatile("fence.proxy.async.global;" ::: "memory");', True)]
)
def test_a_store_over_what_threads_wrote_needs_a_fence_for_global_memory(
    compile_hopper: Callable[[str], str], fence: str, fenced: bool
) -> None:
    ptx = compile_hopper(OVERLAP.replace("BEFORE", f"y[t] = 7; {fence}").replace("BETWEEN", "wait_write<0>();"))
    if fenced:
        np.testing.assert_array_equal(overlapping(ptx, "early")[64:], -np.arange(1, 65))
        return
    with pytest.raises(EmulatorError) as caught:
        overlapping(ptx, "early")
    assert caught.value.kind is FaultKind.MISSING_PROXY_FENCE
