"""A small kernel with the shared ABI, so that export is tested independently of the templates."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evoengine.export import ExportRecord
from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.records import LaunchSpec, StepSpec
from evoengine.model import Config, DeviceInfo, Evaluation, Problem, Resources, Status, Timing, Verdict

PARTIALS = Path(__file__).resolve().parents[2] / "templates" / "partials" / "core"

KERNEL = """\
struct Cfg {{
    static constexpr int PARAM_BYTES = {param_bytes};
    static constexpr int HEAD_DIM = {head_dim};
    static constexpr int BLOCK_M = 64;
    static constexpr bool CAUSAL = {causal}, HAS_WINDOW_LEFT = {left}, HAS_WINDOW_RIGHT = {right}, PACKED = {packed};
    static constexpr bool HAS_SOFTCAP = {softcap}, HAS_SINK = {sink}, HAS_LSE = {lse}, TWO_STEPS = {two_steps};
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

struct Place {{
    int queries, keys, q_row, kv_row;
}};
__device__ Place place_of(const AttentionParams& p, int batch, int row) {{
    if (!Cfg::PACKED) return {{p.seq_q, p.seq_kv, row, 0}};
    const int q = p.cu_seqlens_q[batch], kv = p.cu_seqlens_kv[batch];
    return {{p.cu_seqlens_q[batch + 1] - q, p.cu_seqlens_kv[batch + 1] - kv, q + row, kv}};
}}

// Normalises a row and stores it with its log-sum-exp; the sink is one more term of the sum.
__device__ void store_row(const AttentionParams& p, int batch, int head, int q_row, const float* o, float maximum,
                          float sum) {{
    unsigned short* g_o = static_cast<unsigned short*>(p.o) + batch * p.o_batch_stride + head * p.o_head_stride +
                          (long long)q_row * p.o_row_stride;
    float rescale = 1.0f;
    if (Cfg::HAS_SINK) {{
        const float sink = p.sink[head] * 1.44269504f, next = fmaxf(maximum, sink);
        rescale = exp2f(maximum - next);
        sum = sum * rescale + exp2f(sink - next);
        maximum = next;
    }}
    for (int d = 0; d < Cfg::HEAD_DIM; ++d) g_o[d] = to_half(sum > 0.0f ? o[d] * rescale / sum : 0.0f);
    if (Cfg::HAS_LSE)
        p.lse[batch * p.lse_batch_stride + head * p.lse_head_stride + q_row] =
            sum > 0.0f ? (maximum + log2f(sum)) * 0.693147181f : __int_as_float(0xff800000);
}}

// Unnormalised rows in the workspace: [rows][HEAD_DIM + 2].
__device__ float* shelf_of(const AttentionParams& p, int batch, int head, int row) {{
    const long long index = ((long long)batch * p.heads + head) * p.seq_q + row;
    return static_cast<float*>(p.workspace) + index * (Cfg::HEAD_DIM + 2);
}}

// One thread for one query row, online softmax in base 2, the output row in shared memory.
extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {{
    extern __shared__ __align__(16) unsigned char smem[];
    float* o = reinterpret_cast<float*>(smem) + threadIdx.x * Cfg::HEAD_DIM;
    const int row = blockIdx.x * Cfg::BLOCK_M + threadIdx.x;
    const int batch = blockIdx.z, head = blockIdx.y;
    if (Cfg::TWO_STEPS && threadIdx.x == 0) {{
        unsigned* counter = p.counters + batch * p.heads + head;
        if (atomicAdd(counter, 1u) + 1 == gridDim.x) *counter = 0;  // the head's last CTA leaves it as it was
    }}
    const Place at = place_of(p, batch, row);
    if (row >= at.queries) return;
    const int kv_head = head / p.heads_per_kv_head;
    const unsigned short* q = static_cast<const unsigned short*>(p.q) + batch * p.q_batch_stride +
                              head * p.q_head_stride + (long long)at.q_row * p.q_row_stride;
    const unsigned short* k = static_cast<const unsigned short*>(p.k) + batch * p.k_batch_stride +
                              kv_head * p.k_head_stride + (long long)at.kv_row * p.k_row_stride;
    const unsigned short* v = static_cast<const unsigned short*>(p.v) + batch * p.v_batch_stride +
                              kv_head * p.v_head_stride + (long long)at.kv_row * p.v_row_stride;
    float maximum = -1e30f, sum = 0.0f;
    for (int d = 0; d < Cfg::HEAD_DIM; ++d) o[d] = 0.0f;
    const int diagonal = row + at.keys - at.queries;
    const int first = Cfg::HAS_WINDOW_LEFT ? max(0, diagonal - p.window_left) : 0;
    const int right = Cfg::CAUSAL ? 0 : p.window_right;
    const int visible = Cfg::CAUSAL || Cfg::HAS_WINDOW_RIGHT ? min(at.keys, diagonal + right + 1) : at.keys;
    for (int j = first; j < visible; ++j) {{
        float s = 0.0f;
        for (int d = 0; d < Cfg::HEAD_DIM; ++d) s += from_half(q[d]) * from_half(k[(long long)j * p.k_row_stride + d]);
        s = Cfg::HAS_SOFTCAP ? p.softcap_log2 * tanhf(p.softcap_scale * s) : s * p.scale_log2;
        const float next = fmaxf(maximum, s);
        const float rescale = exp2f(maximum - next), weight = exp2f(s - next);
        maximum = next;
        sum = sum * rescale + weight;
        for (int d = 0; d < Cfg::HEAD_DIM; ++d)
            o[d] = o[d] * rescale + weight * from_half(v[(long long)j * p.v_row_stride + d]);
    }}
    if (Cfg::TWO_STEPS) {{
        float* shelf = shelf_of(p, batch, head, row);
        for (int d = 0; d < Cfg::HEAD_DIM; ++d) shelf[d] = o[d];
        shelf[Cfg::HEAD_DIM] = maximum;
        shelf[Cfg::HEAD_DIM + 1] = sum;
    }} else {{
        store_row(p, batch, head, at.q_row, o, maximum, sum);
    }}
}}
"""

COMBINE = """\
extern "C" __global__ void evo_combine(const __grid_constant__ AttentionParams p) {
    const int batch = blockIdx.z, head = blockIdx.y, row = blockIdx.x;
    const Place at = place_of(p, batch, row);
    if (row >= at.queries) return;
    const float* shelf = shelf_of(p, batch, head, row);
    store_row(p, batch, head, at.q_row, shelf, shelf[Cfg::HEAD_DIM], shelf[Cfg::HEAD_DIM + 1]);
}
"""


def kernel_of(problem: Problem, *, two_steps: bool = False) -> str:
    """Returns the plain kernel for a problem's traits."""
    facts = {
        "causal": problem.causal,
        "left": problem.window_left is not None,
        "right": problem.window_right is not None,
        "packed": problem.packed,
        "softcap": problem.softcap > 0,
        "sink": problem.sink,
        "lse": problem.lse,
        "two_steps": two_steps,
    }
    flags = {name: "true" if value else "false" for name, value in facts.items()}
    params = (PARTIALS / "params.cuh").read_text()
    text = KERNEL.format(param_bytes=PARAM_BYTES, params=params, head_dim=problem.head_dim, **flags)
    return text + COMBINE if two_steps else text


def record_of(record: ExportRecord, problem: Problem, *, two_steps: bool = False) -> ExportRecord:
    """Returns the record of the plain kernel on another problem; two steps need workspace and counters."""
    launch = dataclasses.replace(record.launch, smem_bytes=64 * problem.head_dim * 4)
    if two_steps:
        launch = dataclasses.replace(
            launch,
            grid=("ceil_div(seq_q,\n    BLOCK_M)", "heads", "batch"),
            names=(*launch.names, ("head_dim", problem.head_dim)),
            workspace_bytes="batch * heads * seq_q * (head_dim + 2) * 4",
            counters="batch * heads",
            then=(StepSpec("evo_combine", ("seq_q", "heads", "batch"), 1, 0),),
        )
    source = kernel_of(problem, two_steps=two_steps)
    return dataclasses.replace(
        record,
        problem=problem,
        launch=launch,
        evaluation=dataclasses.replace(record.evaluation, source=source),
    )


@pytest.fixture(scope="session")
def kernel_text() -> str:
    """The plain kernel, without a mask."""
    return kernel_of(Problem(1, 2, 96, 64))


@pytest.fixture(scope="session")
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


@pytest.fixture(scope="session")
def causal_record(record: ExportRecord) -> ExportRecord:
    """The same kernel with a causal mask and grouped heads."""
    return record_of(record, Problem(1, 4, 96, 64, kv_heads=2, seq_kv=130, causal=True))


RICH = Problem(2, 4, 96, 72, kv_heads=2, seq_kv=130, window_left=40, window_right=9, softcap=5.0, sink=True, lse=True)
"""Problem with every feature except packed sequences, and a head dim that is a multiple of 8 but not of 16."""
PACKED = dataclasses.replace(
    RICH, batch=4, lengths_q=(5, 96, 0, 33), lengths_kv=(9, 40, 3, 130), window_right=None, causal=True
)


@pytest.fixture(scope="session")
def rich_record(record: ExportRecord) -> ExportRecord:
    """All features at once, in one step."""
    return record_of(record, RICH)


@pytest.fixture(scope="session")
def packed_record(record: ExportRecord) -> ExportRecord:
    """All features and packed sequences, in two steps."""
    return record_of(record, PACKED, two_steps=True)
