"""Member masks of warp-level operations, and the lanes that must execute warp-wide instructions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind

Compile = Callable[..., str]
LANES = np.arange(64)
HALF = "(t % 32 < 16 ? 0xffffu : 0xffff0000u)"
"""Member mask of half a warp, as that of ``tiled_partition<16>``."""


def warps(compile_cuda: Compile, statement: str, before: str = "", threads: int = 64) -> np.ndarray:
    """Runs a statement that sets ``r`` in the threads ``t`` of two warps; returns ``r`` of each."""
    source = f'extern "C" __global__ void f(int* y) {{ int t = threadIdx.x, r = -1; {before} {statement} y[t] = r; }}'
    out = np.zeros(64, np.int32)
    Emulator(compile_cuda(source)).launch(1, threads, [out], races=True)
    return out


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (f"r = __any_sync({HALF}, t % 32 >= 16);", LANES % 32 >= 16),
        (f"r = __all_sync({HALF}, t % 32 < 16);", LANES % 32 < 16),
        (f"r = __ballot_sync({HALF}, t % 3 == 0) == 0x9249;", LANES < 16),
        (f"r = __popc(__ballot_sync({HALF}, t % 2));", np.full(64, 8)),
        (f"r = __popc(__match_any_sync({HALF}, t / 8));", np.full(64, 8)),
        (f"int same; __match_all_sync({HALF}, t / 16, &same); r = same;", np.ones(64)),
        (f"r = __reduce_add_sync({HALF}, t);", LANES // 16 * 256 + 120),
        (f"r = __reduce_max_sync({HALF}, t);", LANES // 16 * 16 + 15),
        (f"r = __reduce_xor_sync({HALF}, t % 16 == 0);", np.ones(64)),
        (f"r = __shfl_sync({HALF}, t, 3, 16);", LANES // 16 * 16 + 3),
        ("if (t % 32 < 16) r = __shfl_down_sync(0xffff, t, 8, 16);", None),
    ],
)
def test_each_group_of_a_warp_has_its_own_result(
    compile_cuda: Compile, statement: str, expected: np.ndarray | None
) -> None:
    if expected is None:
        lane = LANES % 32
        expected = np.where(lane < 8, LANES + 8, np.where(lane < 16, LANES, -1))
    np.testing.assert_array_equal(warps(compile_cuda, statement), expected.astype(np.int32))


PREDICATED = (
    """asm volatile("{{.reg .pred p; setp.lt.s32 p, %1, {bound}; @p {instruction}}}" : "+r"(r) : "r"(t), "r"(at));"""
)
TILE = "__shared__ __align__(16) int s[64]; s[t] = t; __syncthreads(); unsigned at = __cvta_generic_to_shared(s);"


@pytest.mark.parametrize(
    "instruction",
    ["shfl.sync.idx.b32 %0, %1, 31, 31, 0xffffffff;", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%2];"],
)
def test_a_guard_must_not_leave_out_lanes_of_a_warp(compile_cuda: Compile, instruction: str) -> None:
    whole = PREDICATED.format(bound=32, instruction=instruction)
    assert (warps(compile_cuda, whole, TILE)[32:] == -1).all()
    with pytest.raises(EmulatorError) as caught:
        warps(compile_cuda, PREDICATED.format(bound=16, instruction=instruction), TILE)
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE


EXIT = 'asm volatile("{.reg .pred p; setp.ge.s32 p, %0, 48; @p exit;}" :: "r"(t));'
"""Exit of half a warp of which the compiler does not know."""
MATRIX = 'asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(at));'
PRODUCT = """asm volatile("{.reg .f32 d<4>; mov.f32 d0, 0f00000000; mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
"{d0, d1, d2, d3}, {%0, %0}, {%0}, {d0, d0, d0, d0}; cvt.rzi.s32.f32 %0, d0;}" : "+r"(r));"""


@pytest.mark.parametrize(("before", "threads"), [("", 48), (EXIT, 64)], ids=["block of 48", "exited"])
@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("r = __shfl_xor_sync(~0u, t, 8);", True),
        ("r = __shfl_xor_sync(~0u, t, 16);", False),
        ("r = __shfl_xor_sync(t < 32 ? ~0u : 0xffffu, t, t / 32 ? 8 : 16) ^ (t / 32 ? 0 : 24);", True),
        (MATRIX, False),
        (PRODUCT, False),
    ],
    ids=["shuffle within", "shuffle beyond", "own masks", "ldmatrix", "mma"],
)
def test_lanes_that_are_not_there_are_not_read(
    compile_cuda: Compile, before: str, threads: int, statement: str, *, allowed: bool
) -> None:
    if allowed:
        found = warps(compile_cuda, statement, TILE + before, threads)
        np.testing.assert_array_equal(found, np.where(LANES < 48, LANES ^ 8, 0))
        return
    with pytest.raises(EmulatorError) as caught:
        warps(compile_cuda, statement, TILE + before, threads)
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE


@pytest.mark.parametrize(
    "statement",
    [
        "if (t % 32 < 16) r = __shfl_down_sync(0xffff, t, 8);",
        "r = __shfl_sync(1, t, 0);",
        "r = __any_sync(t < 32 ? 0xffffffff : 0xffff, 1);",
        "if (t % 32 < 8) r = __reduce_add_sync(0xffff, t);",
    ],
    ids=["reads a lane outside", "is not in its own mask", "lanes beyond the mask", "a member is elsewhere"],
)
def test_member_masks_must_name_the_lanes_that_take_part(compile_cuda: Compile, statement: str) -> None:
    with pytest.raises(EmulatorError) as caught:
        warps(compile_cuda, statement)
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("if (t % 32 < 16) __syncwarp();", False),
        ("for (int i = 0; i < t % 32 / 16 + 1; i++) __syncwarp();", False),
        ("if (t % 32 < 16) __syncwarp(0xffff);", True),
        ("if (t % 32 < 16) __syncwarp(0xff);", False),
        ("if (t % 32 < 16) { r = 2; __syncwarp(); r = y[t] + 1; } else { r = y[t]; __syncwarp(); r += 3; }", True),
        ("if (t % 32 >= 16) { y[t] = -1; return; } __syncwarp();", True),
    ],
    ids=["alone", "more often", "own mask", "left out by its mask", "in two branches", "others exited"],
)
def test_lanes_wait_for_all_members_at_a_warp_barrier(compile_cuda: Compile, statement: str, *, allowed: bool) -> None:
    if allowed:
        warps(compile_cuda, statement + "__syncthreads();")
        return
    with pytest.raises(EmulatorError) as caught:
        warps(compile_cuda, statement + "__syncthreads();")
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE


BARRIER = """asm volatile("bar.sync %0, %1;" :: "r"({number}), "r"({count}) : "memory"); r = 1;"""


@pytest.mark.parametrize(
    ("number", "count", "allowed"),
    [
        ("1", "64", True),
        ("1 + t / 32", "32", True),
        ("15", "64", True),
        ("1", "32", False),
        ("16", "64", False),
        ("1", "0", False),
        ("1", "t < 32 ? 32 : 64", False),
        ("1", "48", False),
    ],
)
def test_named_barriers(compile_cuda: Compile, number: str, count: str, *, allowed: bool) -> None:
    statement = BARRIER.format(number=number, count=count)
    if allowed:
        assert warps(compile_cuda, statement).all()
        return
    with pytest.raises(EmulatorError) as caught:
        warps(compile_cuda, statement)
    assert caught.value.kind is FaultKind.ILLEGAL_VALUE


@pytest.mark.parametrize(
    ("barrier", "lanes", "allowed"),
    [
        ("bar.sync 0;", "t % 2", False),
        ("bar.sync 0;", "t / 32", True),
        ("barrier.sync.aligned 0;", "t % 2", False),
        ("barrier.sync 0;", "t % 2", True),
        ("{.reg .pred p; setp.ne.s32 p, %0, 99; barrier.red.popc.aligned.u32 %0, 0, p;}", "t % 2", False),
        ("{.reg .pred p; setp.ne.s32 p, %0, 99; barrier.red.popc.u32 %0, 0, p;}", "t % 2", True),
    ],
)
def test_warps_arrive_whole_at_aligned_barriers(
    compile_cuda: Compile, barrier: str, lanes: str, *, allowed: bool
) -> None:
    wait = f'asm volatile("{barrier}" : "+r"(r) :: "memory");'
    statement = f"if ({lanes}) {{ {wait} r += 2; }} else {{ {wait} r += 3; }}"
    if allowed:
        assert (warps(compile_cuda, statement) > 0).all()
        return
    with pytest.raises(EmulatorError) as caught:
        warps(compile_cuda, statement)
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE


def test_diverged_lanes_may_come_to_one_barrier_after_each_other() -> None:
    ptx = """.version 9.0
.target sm_89
.address_size 64
.visible .entry k()
{
.reg .b32 %t; .reg .pred %p;
mov.u32 %t, %tid.x;
and.b32 %t, %t, 1;
setp.eq.u32 %p, %t, 0;
@%p bra LATER;
WAIT: bar.sync 0;
ret;
LATER: bra WAIT;
}
"""
    assert Emulator(ptx).launch(1, 64, []).ctas == 1


@pytest.mark.parametrize(("operation", "expected"), [("count", 48), ("and", 0), ("or", 1)])
def test_reductions_over_a_barrier_at_two_places(compile_cuda: Compile, operation: str, expected: int) -> None:
    vote = f"__syncthreads_{operation}"
    statement = f"r = 0; for (int i = 0; i < 2; i++) if (t < 32) r += {vote}(t % 2); else r += 10 * {vote}(1);"
    found = warps(compile_cuda, statement) // np.where(LANES < 32, 1, 10)
    np.testing.assert_array_equal(found, np.full(64, 2 * expected))


def test_movmatrix_transposes_within_each_warp(compile_cuda: Callable[..., str]) -> None:
    source = """extern "C" __global__ void f(const unsigned* in, unsigned* out) {
      const int t = threadIdx.x;
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out[t]) : "r"(in[t])); }"""
    values = np.arange(128, dtype=np.uint16).reshape(2, 8, 8)
    out = np.zeros((2, 8, 8), np.uint16)
    Emulator(compile_cuda(source)).launch(1, 64, [values, out])
    np.testing.assert_array_equal(out, np.swapaxes(values, 1, 2))
    broken = source.replace("asm volatile", "if (threadIdx.x % 32 != 7) asm volatile")
    with pytest.raises(EmulatorError) as caught:
        Emulator(compile_cuda(broken)).launch(1, 64, [values, out])
    assert caught.value.kind is FaultKind.WARP_DIVERGENCE
