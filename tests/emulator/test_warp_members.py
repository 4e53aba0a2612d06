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


def warps(compile_cuda: Compile, statement: str, before: str = "") -> np.ndarray:
    """Runs a statement that sets ``r`` in the threads ``t`` of two warps; returns ``r`` of each."""
    source = f'extern "C" __global__ void f(int* y) {{ int t = threadIdx.x, r = -1; {before} {statement} y[t] = r; }}'
    out = np.zeros(64, np.int32)
    Emulator(compile_cuda(source)).launch(1, 64, [out], races=True)
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
