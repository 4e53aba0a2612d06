"""A family as a beginner writes it: one thread per output element, no shared memory. It is slow on the emulator."""

from __future__ import annotations

from pathlib import Path

SPACE = """\
family = "naive"
doc = "One thread per output element; everything from global memory."
[tunables.THREADS]
kind = "ordinal"
values = [64, 128]
unit = "threads"
doc = "threads of a block"
[tunables.UNROLL]
kind = "ordinal"
values = [1, 2]
unit = "steps"
doc = "unrolling of the dot product"
"""

META = """\
family = "naive"
doc = "One thread per output element"
min_arch = 80
dtypes = ["fp16"]
head_dims = [16, 64]
[launch]
grid = ["ceil_div(seq_q * head_dim, THREADS)", "heads", "batch"]
threads = "THREADS"
smem_bytes = "0"
"""

KERNEL = """\
// Naive attention: each thread computes one output element, with its own pass over the keys.
//% include "prologue.cuh.jinja"
//% include "params.cuh"
//% include "sixteen_bit.cuh"
//% include "softmax.cuh"

__device__ float to_float(unsigned short x) { return unpack_16bit(static_cast<unsigned>(x)).x; }

extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {
    const int index = blockIdx.x * Cfg::THREADS + threadIdx.x;
    const int row = index / Cfg::HEAD_DIM, column = index % Cfg::HEAD_DIM;
    if (row >= p.seq_q) return;
    const long long kv_head = blockIdx.y / p.heads_per_kv_head;
    const unsigned short* q = static_cast<const unsigned short*>(p.q) + blockIdx.z * p.q_batch_stride +
                              blockIdx.y * p.q_head_stride + static_cast<long long>(row) * p.q_row_stride;
    const unsigned short* k = static_cast<const unsigned short*>(p.k) + blockIdx.z * p.k_batch_stride +
                              kv_head * p.k_head_stride;
    const unsigned short* v = static_cast<const unsigned short*>(p.v) + blockIdx.z * p.v_batch_stride +
                              kv_head * p.v_head_stride;
    const int visible = Cfg::CAUSAL ? max(0, min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q)) : p.seq_kv;
    float maximum = negative_infinity(), sum = 0.0f, o = 0.0f;
    for (int key = 0; key < visible; ++key) {
        float dot = 0.0f;
#pragma unroll Cfg::UNROLL
        for (int d = 0; d < Cfg::HEAD_DIM; ++d)
            dot = fmaf(to_float(q[d]), to_float(k[static_cast<long long>(key) * p.k_row_stride + d]), dot);
        const float score = dot * p.scale_log2;
        const float larger = fmaxf(maximum, score);
        const float rescale = exp2_approx(maximum - finite_max(larger));
        const float weight = exp2_approx(score - finite_max(larger));
        maximum = larger;
        sum = sum * rescale + weight;
        o = o * rescale + weight * to_float(v[static_cast<long long>(key) * p.v_row_stride + column]);
    }
    unsigned short* out = static_cast<unsigned short*>(p.o) + blockIdx.z * p.o_batch_stride +
                          blockIdx.y * p.o_head_stride + static_cast<long long>(row) * p.o_row_stride;
    out[column] = static_cast<unsigned short>(pack_16bit(sum > 0.0f ? o / sum : 0.0f, 0.0f) & 0xffffu);
}
"""


def write_naive(folder: Path, *, kernel: str = KERNEL, meta: str = META, space: str = SPACE) -> Path:
    """Writes the family as a folder for ``EVOENGINE_DATA``; partials are EvoEngine's. Returns the folder."""
    (folder / "templates" / "naive").mkdir(parents=True)
    (folder / "search_spaces").mkdir()
    (folder / "templates" / "naive" / "kernel.cu.jinja").write_text(kernel)
    (folder / "templates" / "naive" / "template.toml").write_text(meta)
    (folder / "search_spaces" / "naive.toml").write_text(space)
    return folder
