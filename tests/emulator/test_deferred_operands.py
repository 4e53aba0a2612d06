"""Operands of a wgmma stay in use until the wait for its group, in shared memory and in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind
from evoengine.emulator.emulator import Asynchrony

MODES = ("early", "late")
# A warpgroup multiplies A [64x16] with two matrices B [8x16] in two groups. One more warp changes the first B. Tiles
# have a swizzle of 32 bytes: chunks of 16 bytes are XORed with bit 7 of the address.
KERNEL = """
DEVICE int place(int row, int column) { return row * 16 + ((column / 8) ^ (row / 4 & 1)) * 8 + column % 8; }
DEVICE u64 descriptor(const u16* at) { return shared_address(at) >> 4 | 1ull << 16 | 16ull << 32 | 3ull << 62; }
DEVICE void multiply(float (&d)[4], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
DEVICE void multiply(float (&d)[4], u32 (&a)[4], u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wait_group() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }

extern "C" __global__ void f(const u16* a, const u16* b, float* out) {
  __shared__ __align__(1024) u16 sa[64 * 16]; __shared__ __align__(1024) u16 sb[2][8 * 16];
  const int t = threadIdx.x;
  for (int i = t; i < 64 * 16; i += 160) sa[place(i / 16, i % 16)] = a[i];
  for (int i = t; i < 2 * 8 * 16; i += 160) sb[i / 128][place(i % 128 / 16, i % 16)] = b[i];
  PROXY
  __syncthreads();
  AFTER
  if (__builtin_expect(t >= 128, 0)) { OTHER return; }  // at the end of the PTX: the emulator runs it late
  float d[2][4] = {};
  u32 x[4] = {ZERO, ZERO, ZERO, ZERO};
  FENCE
  multiply(d[0], A, descriptor(sb[0]));
  commit_group();
  multiply(d[1], descriptor(sa), descriptor(sb[1]));
  commit_group();
  ISSUED
  wait_group<1>();
  FIRST
  wait_group<0>();
  SECOND
  for (int g = 0; g < 2; g++)
    for (int i = 0; i < 4; i++)
      out[g * 512 + (t / 32 * 16 + t % 32 / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = d[g][i];
}
"""
STEPS = {
    "ZERO": "(u32)t >> 9",
    "PROXY": "fence_proxy();",
    "AFTER": "",
    "OTHER": "",
    "FENCE": "fence();",
    "A": "descriptor(sa)",
    "ISSUED": "",
    "FIRST": "",
    "SECOND": "",
}


def products(compile_hopper: Callable[[str], str], asynchrony: Asynchrony = "early", **steps: str) -> None:
    """Runs the kernel with some steps replaced, and checks the products."""
    text = KERNEL
    for name, step in {**STEPS, **steps}.items():
        text = text.replace(f"{name}, desc" if name == "A" else name, f"{step}, desc" if name == "A" else step)
    generator = np.random.default_rng(0)
    a = generator.standard_normal((64, 16)).astype(np.float16)
    b = generator.standard_normal((2, 8, 16)).astype(np.float16)
    out = np.zeros((2, 64, 8), np.float32)
    Emulator(compile_hopper(text)).launch(1, 160, [a, b, out], races=True, asynchrony=asynchrony)
    expected = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
    if "A" in steps:
        expected[0] = 0
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


REGISTER = 'asm volatile("add.u32 %0, %0, 1;" : "+r"(x[0]) :: "memory");'
WRITE = "sb[{}][t] = 0;"
CHANGE = "bar_sync(1, 160); sb[0][t - 128] = 0;"


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize(
    "steps",
    [
        {},
        {"A": "x"},
        {"FIRST": WRITE.format(0)},
        {"SECOND": WRITE.format(1)},
        {"FIRST": "bar_arrive(1, 160);", "OTHER": CHANGE},
        {"FIRST": "d[0][0] *= 1.0f + (float)(t >> 9);"},
    ],
    ids=["plain", "A in registers", "first B", "second B", "other warp", "first product"],
)
def test_operands_are_free_after_the_wait(
    compile_hopper: Callable[[str], str], steps: dict[str, str], asynchrony: Asynchrony
) -> None:
    products(compile_hopper, asynchrony, **steps)


def test_the_warps_of_a_warpgroup_wait_for_each_other(compile_hopper: Callable[[str], str]) -> None:
    """One warp takes many more blocks than the others to the product that they execute together."""
    late = 'for (int i = 0; i < (t < 32 ? 19999 : 1); i++) asm volatile("" ::: "memory");'
    products(compile_hopper, ZERO=f"[&] {{ {late} return (u32)t >> 9; }}()")


MBARRIER = "__shared__ u64 bar; if (t == 0) { init(shared_address(&bar), 1); fence_init(); }"


def test_fences_come_before_the_wgmma(compile_hopper: Callable[[str], str]) -> None:
    own = f"{MBARRIER} if (t < 128) fence_proxy();"
    with pytest.raises(EmulatorError, match=r"wgmma .*warp 4 wrote.*fence\.proxy\.async") as caught:
        products(compile_hopper, PROXY=own, AFTER="if (t >= 128) fence_proxy();")
    assert caught.value.kind is FaultKind.MISSING_PROXY_FENCE
    products(compile_hopper, PROXY=own, AFTER="fence_proxy();")
    products(compile_hopper, PROXY=own, AFTER="if (t >= 128) fence_proxy(); __syncthreads();")


@pytest.mark.parametrize("asynchrony", MODES)
@pytest.mark.parametrize(
    ("steps", "kinds", "said"),
    [
        ({"PROXY": ""}, (FaultKind.MISSING_PROXY_FENCE,), "a wgmma reads what thread"),
        ({"PROXY": "if (t != 15) fence_proxy();"}, (FaultKind.MISSING_PROXY_FENCE,), "thread 15 wrote without"),
        ({"ISSUED": WRITE.format(0)}, (FaultKind.OPERAND_IN_FLIGHT,), "pending wgmma"),
        ({"FIRST": WRITE.format(1)}, (FaultKind.OPERAND_IN_FLIGHT,), "pending wgmma"),
        ({"ISSUED": "sa[t] = 0;"}, (FaultKind.OPERAND_IN_FLIGHT,), "pending wgmma"),
        ({"ISSUED": "atomicAdd((int*)sa, 1);"}, (FaultKind.OPERAND_IN_FLIGHT,), "pending wgmma"),
        (
            {"ISSUED": "bar_arrive(1, 160);", "OTHER": CHANGE},
            (FaultKind.OPERAND_IN_FLIGHT, FaultKind.DATA_RACE),
            "wgmma",
        ),
        (
            {"ISSUED": "bar_sync(1, 160);", "OTHER": CHANGE},
            (FaultKind.OPERAND_IN_FLIGHT, FaultKind.DATA_RACE),
            "wgmma",
        ),
        (
            {"OTHER": "sb[0][t - 128] = 0;"},
            (FaultKind.OPERAND_IN_FLIGHT, FaultKind.DATA_RACE, FaultKind.MISSING_PROXY_FENCE),
            "w",
        ),
        ({"FENCE": ""}, (FaultKind.OPERAND_IN_FLIGHT,), "no wgmma.fence before it"),
        ({"A": "x", "FENCE": "fence(); " + REGISTER}, (FaultKind.OPERAND_IN_FLIGHT,), "after the last wgmma.fence"),
        ({"FENCE": "if (a[0]) fence();"}, (FaultKind.OPERAND_IN_FLIGHT,), "no wgmma.fence before it"),
        ({"ISSUED": "out[0] = d[0][0];"}, (FaultKind.OPERAND_IN_FLIGHT,), "reads an accumulator"),
        ({"FIRST": "d[1][0] *= 2;"}, (FaultKind.OPERAND_IN_FLIGHT,), "reads an accumulator"),
        ({"A": "x", "ISSUED": REGISTER}, (FaultKind.OPERAND_IN_FLIGHT,), "writes an input register"),
    ],
    ids=[
        "no proxy fence",
        "no proxy fence of one thread",
        "first B before the wait",
        "second B after the wait for the first group",
        "A before the wait",
        "atomic on A",
        "released before the wait",
        "released by a barrier before the wait",
        "not released",
        "no fence",
        "A written after the fence",
        "no fence on one path",
        "accumulator read",
        "accumulator of the second group",
        "register of A",
    ],
)
def test_operands_in_use_are_protected(
    compile_hopper: Callable[[str], str],
    steps: dict[str, str],
    kinds: tuple[FaultKind, ...],
    said: str,
    asynchrony: Asynchrony,
) -> None:
    with pytest.raises(EmulatorError, match=said) as caught:
        products(compile_hopper, asynchrony, **steps)
    assert caught.value.kind in kinds
