"""A small kernel of the shared ABI, written here so that export is tested apart from the templates."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from evoengine.export import ExportRecord
from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.artifact import LaunchSpec
from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Resources, Status, Timing, Verdict

PARTIALS = Path(__file__).resolve().parents[2] / "templates" / "partials"

KERNEL = """\
struct Cfg {{
    static constexpr int PARAM_BYTES = {param_bytes};
    static constexpr int HEAD_DIM = 64;
    static constexpr int BLOCK_M = 64;
    static constexpr bool CAUSAL = {causal};
}};
{params}
__device__ float from_half(unsigned short bits) {{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}}
__device__ unsigned short to_half(float x) {{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}}

// One thread for one query row, online softmax in base 2, the output row in shared memory.
extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {{
    extern __shared__ __align__(16) unsigned char smem[];
    float* o = reinterpret_cast<float*>(smem) + threadIdx.x * Cfg::HEAD_DIM;
    const int row = blockIdx.x * Cfg::BLOCK_M + threadIdx.x;
    if (row >= p.seq_q) return;
    const int kv_head = blockIdx.y / p.heads_per_kv_head;
    const unsigned short* q = static_cast<const unsigned short*>(p.q) + blockIdx.z * p.q_batch_stride +
                              blockIdx.y * p.q_head_stride + (long long)row * p.q_row_stride;
    const unsigned short* k =
        static_cast<const unsigned short*>(p.k) + blockIdx.z * p.k_batch_stride + kv_head * p.k_head_stride;
    const unsigned short* v =
        static_cast<const unsigned short*>(p.v) + blockIdx.z * p.v_batch_stride + kv_head * p.v_head_stride;
    unsigned short* g_o = static_cast<unsigned short*>(p.o) + blockIdx.z * p.o_batch_stride +
                          blockIdx.y * p.o_head_stride + (long long)row * p.o_row_stride;
    float maximum = -1e30f, sum = 0.0f;
    for (int d = 0; d < Cfg::HEAD_DIM; ++d) o[d] = 0.0f;
    const int visible = Cfg::CAUSAL ? min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q) : p.seq_kv;
    for (int j = 0; j < visible; ++j) {{
        float s = 0.0f;
        for (int d = 0; d < Cfg::HEAD_DIM; ++d) s += from_half(q[d]) * from_half(k[(long long)j * p.k_row_stride + d]);
        s *= p.scale_log2;
        const float next = fmaxf(maximum, s);
        const float rescale = exp2f(maximum - next), weight = exp2f(s - next);
        maximum = next;
        sum = sum * rescale + weight;
        for (int d = 0; d < Cfg::HEAD_DIM; ++d)
            o[d] = o[d] * rescale + weight * from_half(v[(long long)j * p.v_row_stride + d]);
    }}
    for (int d = 0; d < Cfg::HEAD_DIM; ++d) g_o[d] = to_half(sum > 0.0f ? o[d] / sum : 0.0f);
}}
"""


@pytest.fixture
def kernel_text() -> str:
    """The plain kernel, without a mask."""
    return KERNEL.format(param_bytes=PARAM_BYTES, params=(PARTIALS / "params.cuh").read_text(), causal="false")


@pytest.fixture
def record(kernel_text: str) -> ExportRecord:
    """A complete measured row of the plain kernel on ``1x2x96x64-fp16``."""
    evaluation = Evaluation(
        config=Config.of("plain", {"BLOCK_M": 64, "LAYOUT": "swizzle"}),
        status=Status.OK,
        source_hash="5052c3",
        code_hash="c0de",
        template_hash="7e3914",
        source=kernel_text,
        resources=Resources(40, 0, 0, 0, 64 * 64 * 4, 64),
        verdict=Verdict(True, 1.5e-4, 9.0e-4, 2e-4, 12, "ragged"),
        timing=Timing(5.25, 5.2, 5.3, False, "graph-warm", (5.2, 5.25, 5.3), 9.2, "cudnn"),
    )
    launch = LaunchSpec(
        grid=("ceil_div(seq_q, BLOCK_M)", "heads", "batch"),
        threads=64,
        smem_bytes=64 * 64 * 4,
        names=(("BLOCK_M", 64), ("LAYOUT", "swizzle")),
    )
    device = DeviceInfo("cuda", "NVIDIA H200", "sm_90", False, "13.0", "13.0.88")
    return ExportRecord(Problem(1, 2, 96, 64), evaluation, device, launch, 0, "7", "2026-01-02", "2026-01-03")


@pytest.fixture
def causal_record(record: ExportRecord) -> ExportRecord:
    """The same kernel with a causal mask and grouped heads."""
    source = KERNEL.format(param_bytes=PARAM_BYTES, params=(PARTIALS / "params.cuh").read_text(), causal="true")
    return dataclasses.replace(
        record,
        problem=Problem(1, 4, 96, 64, kv_heads=2, seq_kv=130, causal=True),
        evaluation=dataclasses.replace(record.evaluation, source=source),
    )


@pytest.fixture(scope="session")
def nvcc() -> str:
    """Path of nvcc; the test is skipped without it."""
    found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        pytest.skip("nvcc is not installed")
    return found
