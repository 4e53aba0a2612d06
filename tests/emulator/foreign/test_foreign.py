"""CUDA kernels in the style of public examples, unrelated to this project, for three architectures, against NumPy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoengine.emulator import Emulator, EmulatorError, FaultKind, LaunchReport
from evoengine.kernel.compile.nvrtc import compile_ptx

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
Array = np.ndarray
Run = Callable[..., LaunchReport]


def random(shape: int | tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, shape: int | tuple[int, ...], dtype: Any = np.int32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, high, shape, dtype=dtype)


# --- reductions -------------------------------------------------------------------------------------------------------


def test_reductions(run: Run) -> None:
    values = random(3000)
    want = values.sum(dtype=np.float64)
    partial = np.zeros(6, np.float32)
    run("reduction.sum_tree", 6, 256, [values, partial, 3000])
    assert partial.sum(dtype=np.float64) == pytest.approx(want, abs=1e-3)
    for kernel, block in (("sum_shuffle", 96), ("sum_atomic", 128)):
        total = np.zeros(1, np.float32)
        run(f"reduction.{kernel}", -(-3000 // block), block, [values, total, 3000])
        assert total[0] == pytest.approx(want, abs=1e-3)
    total = np.zeros(1, np.float32)
    run("reduction.sum_last_block", 5, 128, [values, np.zeros(5, np.float32), total, 3000])
    assert total[0] == pytest.approx(want, abs=1e-3)


def test_extremes(run: Run) -> None:
    values = integers(-(2**31), 2**31, 700)
    low, high, bits = np.full(1, 2**31 - 1, np.int32), np.full(1, -(2**31), np.int32), np.zeros(1, np.uint32)
    run("reduction.extremes", 3, 64, [values, low, high, bits, 700])
    assert (low[0], high[0]) == (values.min(), values.max())
    assert bits[0] == np.bitwise_or.reduce(values.view(np.uint32))


def test_barrier_reductions(run: Run) -> None:
    values = integers(-60, 100, (7, 96))
    values[2], values[3] = 96, -60
    count, every, large = (np.zeros(7, np.int32) for _ in range(3))
    run("reduction.votes", 7, 96, [values, count, every, large])
    np.testing.assert_array_equal(count, (values > 0).sum(axis=1) * 1000 + (values <= 0).sum(axis=1))
    np.testing.assert_array_equal(every, (values > -50).all(axis=1))
    np.testing.assert_array_equal(large, (values > 95).any(axis=1))


# --- transposes and products ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["naive", "tiled", "padded"])
def test_transposes(run: Run, kernel: str) -> None:
    values = random((70, 45))
    out = np.zeros((45, 70), np.float32)
    run(f"transpose.transpose_{kernel}", (2, 3), (32, 8), [values, out, 45, 70])
    np.testing.assert_array_equal(out, values.T)


@pytest.mark.parametrize(
    ("kernel", "sizes"), [("naive", (37, 29, 41)), ("tiled", (37, 29, 41)), ("buffered", (128, 64, 48))]
)
def test_products(run: Run, kernel: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b, c = random((m, k)), random((k, n), 1), np.zeros((m, n), np.float32)
    tile = 64 if kernel == "buffered" else 16
    run(f"gemm.gemm_{kernel}", (-(-n // tile), -(-m // tile)), (16, 16), [a, b, c, m, n, k])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=2e-5)


@pytest.mark.parametrize("kernel", ["wmma", "wmma_half", "mma", "tf32"])
def test_products_on_tensor_cores(run: Run, kernel: str) -> None:
    m, n, k = 32, 48, 64
    kind = np.float32 if kernel == "tf32" else np.float16
    a, b = random((m, k)).astype(kind), random((k, n), 1).astype(kind)
    c = np.zeros((m, n), np.float16 if kernel == "wmma_half" else np.float32)
    columns = 16 if kernel.startswith("wmma") else 8
    report = run(f"gemm_tensor.gemm_{kernel}", (n // columns, m // 16), 32, [a, b, c, m, n, k])
    want = a.astype(np.float64) @ b.astype(np.float64)
    bound = {"tf32": 2e-2, "wmma_half": 3e-2}.get(kernel, 2e-5)
    np.testing.assert_allclose(c.astype(np.float64), want, atol=bound)
    assert report.tensor_flops == 2 * m * n * k


def test_product_of_bytes(run: Run) -> None:
    m, n, k = 32, 16, 96
    a, b = integers(-128, 128, (m, k), np.int8), integers(-128, 128, (k, n), np.int8, 1)
    c = np.zeros((m, n), np.int32)
    run("gemm_tensor.gemm_s8", (n // 8, m // 16), 32, [a, np.ascontiguousarray(b.T), c, m, n, k])
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))


# --- rows -------------------------------------------------------------------------------------------------------------


def test_softmax(run: Run) -> None:
    values = 4 * random((5, 200))
    wide = np.exp(values.astype(np.float64) - values.max(axis=1, keepdims=True))
    want = wide / wide.sum(axis=1, keepdims=True)
    out = np.zeros_like(values)
    run("rows.softmax", 5, 96, [values, out, 200])
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-8)
    run("rows.softmax_online", 1, 32, [values[:, :40].copy(), out, 40, 5])
    wide = wide[:, :40] / wide[:, :40].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(out.reshape(-1)[:200].reshape(5, 40), wide, rtol=1e-5, atol=1e-8)


def test_layer_norm(run: Run) -> None:
    values, gamma, beta = 3 * random((6, 100)) + 1, random(100, 1), random(100, 2)
    out = np.zeros_like(values)
    run("rows.layernorm", 2, (32, 3), [values, gamma, beta, out, 100, 1e-5])
    wide = values.astype(np.float64)
    want = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(out, want, atol=2e-5)


def test_matrix_vector(run: Run) -> None:
    a, x, y = random((10, 260)), random(260, 1), np.zeros(10, np.float32)
    run("rows.matvec", 3, 128, [a, x, y, 10, 260])
    np.testing.assert_allclose(y, a.astype(np.float64) @ x, atol=2e-4)


# --- scans, histograms, stencils --------------------------------------------------------------------------------------


def test_scans(run: Run) -> None:
    values, out = integers(-50, 50, 256), np.zeros(256, np.int32)
    run("scan.scan_hillis_steele", 1, 256, [values, out, 256], smem_bytes=2 * 256 * 4)
    np.testing.assert_array_equal(out, values.cumsum())
    run("scan.scan_blelloch", 1, 128, [values, out, 256], smem_bytes=(256 + 8) * 4)
    np.testing.assert_array_equal(out, np.concatenate(([0], values.cumsum()[:-1])))
    floats, sums = random((2, 192)), np.zeros((2, 192), np.float32)
    run("scan.scan_warp", 2, 192, [floats, sums])
    np.testing.assert_allclose(sums, floats.cumsum(axis=1, dtype=np.float64), atol=2e-5)


def test_compaction(run: Run) -> None:
    values, out, count = integers(-9, 10, 300), np.zeros(300, np.int32), np.zeros(1, np.uint32)
    run("scan.compact", 3, 128, [values, out, count, 300])
    assert count[0] == (values > 0).sum()
    np.testing.assert_array_equal(np.sort(out[: count[0]]), np.sort(values[values > 0]))


def test_histograms(run: Run) -> None:
    values, bins = integers(0, 256, 2000, np.uint8), np.zeros(256, np.uint32)
    run("histogram.histogram", 3, 128, [values, bins, 2000])
    np.testing.assert_array_equal(bins, np.bincount(values, minlength=256))
    keys, few = integers(0, 7, 333), np.zeros(7, np.uint32)
    run("histogram.histogram_matched", 4, 96, [keys, few, 333])
    np.testing.assert_array_equal(few, np.bincount(keys, minlength=7))


def test_other_atomics(run: Run) -> None:
    values = np.abs(random(150))
    largest, total, count = np.zeros(1, np.float32), np.zeros(1, np.float64), np.zeros(1, np.uint64)
    run("histogram.other_atomics", 2, 96, [values, largest, total, count, 150])
    assert largest[0] == values.max()
    assert total[0] == pytest.approx(values.sum(dtype=np.float64), rel=1e-12)
    assert count[0] == sum(range(1, 151)) << 20


def test_stencils(run: Run) -> None:
    line, out = random(300), np.zeros(300, np.float32)
    run("stencil.stencil_1d", 5, 64, [line, out, 300], smem_bytes=(64 + 6) * 4)
    np.testing.assert_allclose(out, np.convolve(line.astype(np.float64), np.ones(7), "same"), atol=1e-5)
    grid = random((20, 37)).astype(np.float64)
    result = np.zeros_like(grid)
    run("stencil.stencil_2d", (3, 2), (16, 16), [grid, result, 37, 20])
    wide = np.pad(grid, 1)
    around = wide[1:-1, :-2] + wide[1:-1, 2:] + wide[:-2, 1:-1] + wide[2:, 1:-1]
    np.testing.assert_allclose(result, 0.5 * grid + 0.125 * around, rtol=1e-14)


def test_a_grid_stride_loop(run: Run) -> None:
    x, y = random(1000).astype(np.float64), random(1000, 1).astype(np.float64)
    want = 1.25 * x + y
    run("stencil.saxpy", 3, 64, [1000, 1.25, x, y])
    np.testing.assert_allclose(y, want, rtol=1e-15, atol=1e-15)


# --- the language -----------------------------------------------------------------------------------------------------


def test_constants_and_module_variables(run: Run) -> None:
    pick, out, table = integers(0, 100, 90), np.zeros(90, np.float32), np.zeros(90, np.int32)
    run("language.constants", 3, 32, [pick, out, table, 90])
    np.testing.assert_array_equal(out, np.array([0.5, -1, 2, 0.25, 4, -0.125, 1.5, 3], np.float32)[pick & 7])
    np.testing.assert_array_equal(table, np.array([3, 1, 4, 1, 5, 9])[pick % 6])


def collatz(n: int) -> int:
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n & 1 else n // 2
        steps += 1
    return steps


def test_device_functions(run: Run) -> None:
    values = integers(1, 60, 70)
    steps, a, b, c = (np.zeros(70, kind) for kind in (np.int32, np.float64, np.int32, np.float32))
    run("language.calls", 2, 64, [values, steps, a, b, c, 70])
    for i, v in enumerate(values.tolist()):
        turns = [v % 5] if v & 1 else [2, 3]
        assert steps[i] == collatz(v)
        assert a[i] == v * np.prod(turns)
        assert b[i] == v - sum(turns)
        assert c[i] == 0.5 + sum(collatz(turn + 1) for turn in turns)


def test_local_arrays(run: Run) -> None:
    values, out = integers(0, 1000, 50), np.zeros(50, np.int32)
    run("language.local_arrays", 1, 64, [values, out, 50])
    for i, v in enumerate(values.tolist()):
        held = [0] * 16
        for j in range(16):
            held[(j * 5 + v) & 15] = v + j * j
        last = v & 7
        held[0], held[last] = held[last], held[0]
        total = 0
        for j in range((v & 15) + 1):
            total = total * 3 + held[j]
        assert out[i] == np.array(total & 0xFFFFFFFF, np.uint32).view(np.int32)


def switched(op: int, x: int) -> int:
    mask = 0xFFFFFFFF
    if op == 4:
        v = x
        for j in range(x & 3):
            v = v * v + j
        return v
    bits = x & mask
    return {
        0: x + 7,
        1: x * 3 ^ 0x55,
        2: x ^ 0x55,
        3: (bits << 4 | bits >> 28),
        5: -x,
        6: ~x,
        7: int(np.fmod(x, 1000)),
        8: 77,
    }.get(op, 0)


def test_switches(run: Run) -> None:
    ops, values = integers(-1, 12, 200), integers(-5000, 5000, 200, seed=1)
    out = np.full(200, 77, np.int32)
    run("language.switches", 2, 128, [ops, values, out, 200])
    want = [switched(op, x) & 0xFFFFFFFF for op, x in zip(ops.tolist(), values.tolist(), strict=True)]
    np.testing.assert_array_equal(out.view(np.uint32), np.array(want, np.uint32))


def test_structures(run: Run) -> None:
    node = np.dtype([("box", "f4", 4), ("child", "i4", 2), ("tag", "i2"), ("flags", "u1", 6)])
    nodes = np.zeros(40, node)
    nodes["box"], nodes["child"], nodes["tag"] = random((40, 4)), integers(0, 9, (40, 2)), integers(-99, 99, 40)
    nodes["flags"] = integers(0, 256, (40, 6))
    area, tags = np.zeros(40, np.float32), np.zeros(40, np.int32)
    run("language.structures", 1, 64, [nodes, nodes[3], area, tags, 40])
    box, six = nodes["box"], np.arange(40) % 6
    np.testing.assert_allclose(area, (box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1]) + box[3, 0], atol=1e-6)
    flags = nodes["flags"][np.arange(40), six].astype(int) + nodes["flags"][3][six]
    less = nodes["child"][:, 0] < nodes["child"][:, 1]
    np.testing.assert_array_equal(tags, nodes["tag"].astype(int) * 2 + flags + less)


def test_named_barriers(run: Run) -> None:
    values, out = integers(0, 99, 96), np.zeros(96, np.int32)
    run("language.handover", 1, 64, [values, out])
    turned = values.reshape(3, 32)[:, np.arange(32) ^ 5]
    np.testing.assert_array_equal(out.reshape(3, 32), 2 * turned)


# --- supported and unsupported code -----------------------------------------------------------------------------------


def test_every_instruction_is_supported(every_ptx: Callable[[], list[tuple[str, list[str]]]]) -> None:
    for text, entries in every_ptx():
        for entry in entries:
            Emulator(text, entry=entry).check()


COMPILE_DEBUG = """import sys
from evoengine.kernel.compile.nvrtc import compile_ptx
sys.stdout.write(compile_ptx(sys.stdin.read(), "sm_90", "-G"))"""
"""Script for a separate process: after one compilation with -G, NVRTC generates different code for later sources."""


def test_a_debug_build_runs() -> None:
    source = (Path(__file__).parent / "language.cu").read_text("utf-8")
    compiled = subprocess.run(
        [sys.executable, "-c", COMPILE_DEBUG], input=source, capture_output=True, text=True, check=True, cwd=ROOT
    )
    values, steps = np.arange(1, 41, dtype=np.int32), np.zeros(40, np.int32)
    rest = [np.zeros(40), np.zeros(40, np.int32), np.zeros(40, np.float32)]
    Emulator(compiled.stdout, entry="calls").launch(1, 64, [values, steps, *rest, 40])
    assert steps.tolist() == [collatz(value) for value in values.tolist()]


RECURSION = """__device__ __noinline__ int f(int n) { return n < 2 ? 1 : n * f(n - 2) + f(n - 1); }
extern "C" __global__ void k(int* o) { o[0] = f(o[1]); }"""
ASSERTION = """extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
#define assert(what) ((what) ? (void)0 : __assertfail(#what, __FILE__, __LINE__, "", 1))
extern "C" __global__ void k(int* o) { assert(o[0] == 3); o[1] = 1; }"""


@pytest.mark.parametrize(
    ("source", "kind"),
    [(RECURSION, FaultKind.UNSUPPORTED_INSTRUCTION), (ASSERTION, FaultKind.TRAP)],
    ids=["recursion", "a failed assertion"],
)
def test_calls_that_do_not_return(source: str, kind: FaultKind) -> None:
    emulator = Emulator(compile_ptx(source), entry="k")
    with pytest.raises(EmulatorError) as caught:
        emulator.launch(1, 1, [np.array([2, 7], np.int32)])
    assert caught.value.kind is kind


def test_an_assertion_that_passes() -> None:
    out = np.array([3, 7], np.int32)
    Emulator(compile_ptx(ASSERTION), entry="k").launch(1, 32, [out])
    assert out.tolist() == [3, 1]
