"""Counters of whole kernels: executions, conflicts, sectors and divergent warps by instruction and source line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoengine.emulator import Emulator, LaunchReport, Pipe
from evoengine.emulator.counters.instruction_counters import by_line
from evoengine.emulator.counters.report import InstructionCounts
from evoengine.kernel.compile.nvrtc import compile_ptx

FOREIGN = Path(__file__).parent / "foreign"


def counted(
    source: str, grid: Any, block: Any, args: list[Any], entry: str | None = None, **options: Any
) -> LaunchReport:
    return Emulator(compile_ptx(source), entry=entry).launch(grid, block, args, counters=True, **options)


def sites_of(report: LaunchReport, *parts: str) -> list[InstructionCounts]:
    return [site for site in report.sites if all(part in site.opcode.split(".") for part in parts)]


def total(sites: list[InstructionCounts], field: str) -> int:
    return sum(int(getattr(site, field)) for site in sites)


@pytest.mark.parametrize(("kernel", "ways"), [("tiled", 32), ("padded", 1)])
def test_a_transpose_and_its_padding(kernel: str, ways: int) -> None:
    values, out = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    source = (FOREIGN / "transpose.cu").read_text("utf-8")
    report = counted(source, (2, 2), (32, 8), [values, out, 64, 64], f"transpose_{kernel}")
    requests = 4 * 8 * 4  # CTAs, warps, rows per thread
    stores, loads = sites_of(report, "st", "shared"), sites_of(report, "ld", "shared")
    assert (total(stores, "executions"), total(stores, "wavefronts"), total(stores, "conflicts")) == (
        requests,
        requests,
        0,
    )
    assert (total(loads, "wavefronts"), total(loads, "ideal_wavefronts")) == (ways * requests, requests)
    assert total(loads, "conflicts") == (ways - 1) * requests
    for sites in (sites_of(report, "ld", "global"), sites_of(report, "st", "global")):
        assert total(sites, "sectors") == total(sites, "ideal_sectors") == 4 * requests
        assert total(sites, "lanes") == 64 * 64


def test_an_untiled_transpose_writes_one_sector_per_lane() -> None:
    values, out = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    source = (FOREIGN / "transpose.cu").read_text("utf-8")
    report = counted(source, (2, 2), (32, 8), [values, out, 64, 64], "transpose_naive")
    stores, loads = sites_of(report, "st", "global"), sites_of(report, "ld", "global")
    assert total(loads, "sectors") == 4 * 128
    assert (total(stores, "sectors"), total(stores, "ideal_sectors")) == (32 * 128, 4 * 128)


def test_instruction_counts_add_up_to_the_report() -> None:
    a, b, c = (np.zeros((64, 64), np.float32) for _ in range(3))
    source = (FOREIGN / "gemm.cu").read_text("utf-8")
    args = [a, b, c, 64, 64, 64]
    report = counted(source, (4, 4), (16, 16), args, "gemm_tiled")
    plain = Emulator(compile_ptx(source), entry="gemm_tiled").launch((4, 4), (16, 16), args)
    assert plain.sites == ()
    assert plain.warp_instructions == report.warp_instructions == total(list(report.sites), "executions")
    for pipe in Pipe:
        assert report.pipes.get(pipe, 0) == sum(site.executions for site in report.sites if site.pipe is pipe)
    assert report.shared_read_bytes == sum(
        site.lanes * (16 if "v4" in site.opcode else 4) for site in sites_of(report, "ld", "shared")
    )
    lines = by_line(report.sites)
    assert {file for file, line in lines if line} == {"/kernel.cu"}
    product = next(n for n, text in enumerate(source.splitlines(), 1) if "sum += tile_a" in text)
    fused = [site for site in lines["/kernel.cu", product] if site.opcode == "fma.rn.f32"]
    assert sum(site.executions for site in fused) == 16 * 8 * 64
    assert all(site.pipe is Pipe.FMA for site in fused)


def test_guarded_lanes_and_idle_warps() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, int n) {
      int i = threadIdx.x; if (i < n) y[i] = x[i] + 1; }"""
    report = counted(source, 1, 128, [np.zeros(64, np.float32), np.zeros(64, np.float32), 40])
    (load,) = sites_of(report, "ld", "global")
    assert (load.executions, load.lanes, load.sectors) == (2, 40, 5)
    (branch,) = sites_of(report, "bra")
    assert (branch.executions, branch.split_warps) == (4, 1)


def test_a_loop_that_lanes_leave_at_different_iterations() -> None:
    source = """extern "C" __global__ void k(const int* n, int* y) {
      int i = threadIdx.x, s = 0;
      #pragma unroll 1
      for (int j = 0; j < n[i]; ++j) asm volatile("mad.lo.s32 %0, %0, 3, %1;" : "+r"(s) : "r"(j));
      y[i] = s; }"""
    trips = np.repeat(np.array([4, 4, 9], np.int32), 32)
    trips[40] = 6  # in the second warp 31 lanes leave after four iterations
    report = counted(source, 1, 96, [trips, np.zeros(96, np.int32)])
    assert total(list(report.sites), "split_warps") == 1
    (products,) = [site for site in sites_of(report, "mad") if ", 3, " in site.ptx_text]
    assert products.executions == 4 + 6 + 9
    assert products.lanes == 4 * 32 + (4 * 32 + 2) + 9 * 32


def test_shifted_address_patterns_have_equal_counts() -> None:
    """The counter caches address patterns; patterns with different counts must have different keys."""
    source = """extern "C" __global__ void k(const float* x, float* y, const int* shift, int steps) {
      __shared__ float s[512]; for (int i = threadIdx.x; i < 512; i += 32) s[i] = 1; __syncwarp();
      float t = 0;
      #pragma unroll 1
      for (int j = 0; j < steps; ++j) t += s[threadIdx.x * 2 + shift[j]] + x[threadIdx.x + shift[j]];
      y[threadIdx.x] = t; }"""
    shift = np.array([0, 1, 3, 32, 8, 11, 64, 4, 12], np.int32)
    report = counted(source, 1, 32, [np.zeros(128, np.float32), np.zeros(32, np.float32), shift, len(shift)])
    (load,) = [site for site in sites_of(report, "ld", "shared") if site.executions == len(shift)]
    assert load.wavefronts == 2 * len(shift)
    reads = [site for site in sites_of(report, "ld", "global") if site.lanes == 32 * len(shift)]
    aligned = int((shift % 8 == 0).sum())
    assert sorted(site.sectors for site in reads) == [len(shift), 4 * aligned + 5 * (len(shift) - aligned)]


def test_copies_ldmatrix_and_tensor_instructions() -> None:
    m, n, k = 32, 16, 64
    a, b, c = np.zeros((m, k), np.float16), np.zeros((k, n), np.float16), np.zeros((m, n), np.float32)
    source = (FOREIGN / "gemm_tensor.cu").read_text("utf-8")
    report = counted(source, (n // 8, m // 16), 32, [a, b, c, m, n, k], "gemm_mma")
    tiles = (n // 8) * (m // 16) * (k // 16)
    wide, narrow = (
        [site for site in sites_of(report, "ldmatrix") if part in site.opcode] for part in (".x4.", ".x2.trans.")
    )
    assert (total(wide, "executions"), total(wide, "wavefronts"), total(wide, "conflicts")) == (tiles, 4 * tiles, 0)
    assert (total(narrow, "wavefronts"), total(narrow, "conflicts")) == (2 * tiles, 0)
    copies = [site for site in sites_of(report, "cp", "async") if site.sectors]
    assert total(copies, "lanes") == tiles * (32 + 16)
    # Rows of A have 32 bytes at a pitch of 48 bytes in shared memory, so rows 5 and 13 straddle a 128-byte line. Rows
    # of B have 16 bytes, half a sector each.
    assert total(copies, "sectors") == tiles * (16 + 2 + 16)
    assert total(copies, "ideal_sectors") == tiles * (16 + 8)
    tensor = [site for site in report.sites if site.pipe is Pipe.TENSOR]
    assert total(tensor, "executions") == tiles
    assert report.pipes[Pipe.TENSOR] == tiles


@pytest.mark.parametrize(("pitch", "lost_by_load", "lost_by_store"), [(16, 4, 8), (24, 0, 0), (32, 12, 24)])
def test_wmma_counts_as_its_machine_instructions(pitch: int, lost_by_load: int, lost_by_store: int) -> None:
    """An f16 tile is one LDSM.x4; an f32 tile is four stores of 8 bytes, each half warp of which writes four rows.

    Eight f16 rows of 32, 48 and 64 bytes have 2-way, no and 4-way conflicts; so have four f32 rows of 64, 96 and 128
    bytes.
    """
    source = """#include <mma.h>
      using namespace nvcuda;
      extern "C" __global__ void k(float* y) {
        __shared__ __align__(32) half a[16 * PITCH]; __shared__ __align__(32) float c[16 * PITCH];
        for (int i = threadIdx.x; i < 16 * PITCH; i += 32) a[i] = __float2half(1.0f);
        __syncwarp();
        wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
        wmma::fill_fragment(acc, 0.0f);
        wmma::load_matrix_sync(fa, a, PITCH);
        wmma::load_matrix_sync(fb, a, PITCH);
        wmma::mma_sync(acc, fa, fb, acc);
        wmma::store_matrix_sync(c, acc, PITCH, wmma::mem_row_major);
        __syncwarp();
        y[threadIdx.x] = c[threadIdx.x / 16 * PITCH + threadIdx.x % 16]; }"""
    out = np.zeros(32, np.float32)
    ptx = compile_ptx(source, "sm_89", f"-DPITCH={pitch}")
    report = Emulator(ptx).launch(1, 32, [out], counters=True)
    np.testing.assert_array_equal(out, np.full(32, 16, np.float32))
    loads, (store,) = sites_of(report, "wmma", "load"), sites_of(report, "wmma", "store")
    assert [(site.ideal_wavefronts, site.conflicts) for site in loads] == [(4, lost_by_load)] * 2
    assert (store.ideal_wavefronts, store.conflicts) == (8, lost_by_store)


def test_counting_does_not_change_results(compile_cuda: Callable[..., str]) -> None:
    source = (FOREIGN / "histogram.cu").read_text("utf-8")
    values = np.random.default_rng(0).integers(0, 256, 1000, dtype=np.uint8)
    plain, with_counters = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
    emulator = Emulator(compile_cuda(source), entry="histogram")
    emulator.launch(3, 96, [values, plain, 1000])
    report = emulator.launch(3, 96, [values, with_counters, 1000], counters=True, races=True)
    np.testing.assert_array_equal(plain, with_counters)
    atomics = [site for site in report.sites if site.opcode.startswith(("atom.shared", "red.shared"))]
    assert total(atomics, "lanes") == 1000
    assert total(atomics, "wavefronts") > total(atomics, "ideal_wavefronts")
