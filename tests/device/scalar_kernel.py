"""A plain attention kernel in CUDA, small enough to be broken on purpose in one place at a time.

One warp per query row; keys in tiles of 32, one key per lane; online softmax in base 2; then each lane owns head_dim/32
(at least one) columns of the output. It is written for the tests alone and shares nothing with the templates.
"""

from __future__ import annotations

from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.artifact import Binary, Kernel, LaunchSpec, Source
from evoengine.kernel.compiler import Compiler
from evoengine.model import Config, DType, Problem

ROWS = 4
ARCH = "sm_89"

SOURCE = """
typedef unsigned short u16;
struct AttentionParams {
    const u16* q; const u16* k; const u16* v; u16* o;
    long long q_batch_stride, q_head_stride, k_batch_stride, k_head_stride;
    long long v_batch_stride, v_head_stride, o_batch_stride, o_head_stride;
    int q_row_stride, k_row_stride, v_row_stride, o_row_stride;
    int seq_q, seq_kv, heads_per_kv_head;
    float scale_log2;
};
static_assert(sizeof(AttentionParams) == PARAM_BYTES, "");

__device__ float load(const u16* p) {
    float x;
    if (BF16) return __int_as_float(int(*p) << 16);
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(*p));
    return x;
}
__device__ void store(u16* p, float x) {
    u16 bits;
    if (BF16) asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    else asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    *p = bits;
}
__device__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * ROWS + threadIdx.x / 32;
    const int head = blockIdx.y, kv_head = head / p.heads_per_kv_head, batch = blockIdx.z;
    const int v_head = kv_head;
    if (row >= p.seq_q) return;
    const u16* q = p.q + batch * p.q_batch_stride + head * p.q_head_stride + (long long)row * p.q_row_stride;
    const u16* k = p.k + batch * p.k_batch_stride + kv_head * p.k_head_stride;
    const u16* v = p.v + batch * p.v_batch_stride + v_head * p.v_head_stride;
    u16* o = p.o + batch * p.o_batch_stride + head * p.o_head_stride + (long long)row * p.o_row_stride;

    const int last_key = CAUSAL ? row + p.seq_kv - p.seq_q : 0x7fffffff;
    const int tiles = (p.seq_kv + 31) / 32;
    float top = -1e30f, total = 0.f, out[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) out[c] = 0.f;
    for (int tile = 0; tile < tiles; ++tile) {
        const int key = tile * 32 + lane;
        const int safe_key = min(key, p.seq_kv - 1);
        float score = 0.f;
        for (int d = 0; d < HEAD_DIM; ++d)
            score += load(q + d) * load(k + (long long)safe_key * p.k_row_stride + d);
        score *= p.scale_log2;
        const bool seen = key < p.seq_kv && key <= last_key;
        if (!seen) score = -1e30f;
        float new_top = fmaxf(top, score);
        for (int step = 16; step; step /= 2) new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, step));
        float weight = seen ? exp2_approx(score - new_top) : 0.f;
        float sum = weight;
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        const float keep = exp2_approx(top - new_top);
        total = total * keep + sum;
        for (int c = 0; c < COLUMNS; ++c) out[c] *= keep;
        top = new_top;
        const int in_tile = min(32, p.seq_kv - tile * 32);
        for (int j = 0; j < in_tile; ++j) {
            const float w = __shfl_sync(~0u, weight, j);
            for (int c = 0; c < COLUMNS; ++c)
                out[c] += w * load(v + (long long)(tile * 32 + j) * p.v_row_stride + c * 32 + lane % WIDTH);
        }
    }
    for (int c = 0; c < COLUMNS; ++c)
        if (lane < WIDTH) store(o + c * 32 + lane, total > 0.f ? out[c] / total : 0.f);
}
"""

MUTANTS: dict[str, tuple[str, str]] = {
    "no-rescale": ("out[c] *= keep", "out[c] *= 1.f"),
    "sum-not-rescaled": ("total = total * keep + sum", "total = total + sum"),
    "skip-last-tile": ("tile < tiles;", "tile < (tiles > 1 ? tiles - 1 : 1);"),
    "drop-one-key": ("const bool seen = ", "const bool seen = key != 77 && "),
    "wrong-v-head": ("v_head = kv_head", "v_head = (kv_head + 1) % (gridDim.y / p.heads_per_kv_head)"),
    "wrong-kv-group": ("kv_head = head / p.heads_per_kv_head", "kv_head = head % (gridDim.y / p.heads_per_kv_head)"),
    "scale-10-percent": ("score *= p.scale_log2", "score *= p.scale_log2 * 1.1f"),
    "natural-base": ("score *= p.scale_log2", "score *= p.scale_log2 * 0.6931472f"),
    "sequence-lengths-swapped": ("if (row >= p.seq_q) return;", "if (row >= min(p.seq_q, p.seq_kv)) return;"),
    "last-row-unwritten": ("if (row >= p.seq_q) return;", "if (row >= p.seq_q - (p.seq_q > 1)) return;"),
    "fixed-row-stride": ("(long long)row * p.o_row_stride", "(long long)row * HEAD_DIM"),
    "no-normalisation": ("out[c] / total", "out[c]"),
}
"""Faults of any mask: what to replace, by what."""

FULL_MUTANTS: dict[str, tuple[str, str]] = {"tail-not-masked": ("key < p.seq_kv && ", "")}
"""Faults that a causal mask would hide: no row sees a key past the end there."""

CAUSAL_MUTANTS: dict[str, tuple[str, str]] = {
    "causal-one-more": ("key <= last_key", "key <= last_key + 1"),
    "causal-one-less": ("key <= last_key", "key < last_key"),
    "causal-top-left": ("row + p.seq_kv - p.seq_q", "row"),
    "no-mask": ("CAUSAL ? row", "false ? row"),
    "dead-rows-averaged": ("float weight = seen ?", "float weight = true ?"),
}
"""Faults that only a causal mask can show."""

FAULTS: dict[str, tuple[str, str]] = {
    "writes-past-the-end": ("o + c * 32 + lane,", "o + (row == p.seq_q - 1 ? HEAD_DIM : 0) + c * 32 + lane,"),
    "reads-far-outside": ("load(q + d)", "load(q + d + (1ll << 40))"),
    "writes-an-input": ("    const int tiles", "    ((u16*)q)[0] = 0;\n    const int tiles"),
}
"""Faults that a device must report as a LaunchError."""


def source_of(problem: Problem, change: tuple[str, str] | None = None) -> Source:
    """The kernel for a problem's head_dim, dtype and mask, changed in one place."""
    text = SOURCE
    if change is not None:
        assert text.count(change[0]) == 1, change
        text = text.replace(*change)
    facts = {
        "PARAM_BYTES": PARAM_BYTES,
        "BF16": int(problem.dtype is DType.BF16),
        "CAUSAL": str(problem.causal).lower(),
        "HEAD_DIM": problem.head_dim,
        "COLUMNS": max(1, problem.head_dim // 32),
        "WIDTH": min(32, problem.head_dim),
        "ROWS": ROWS,
    }
    head = "".join(f"#define {name} {value}\n" for name, value in facts.items())
    launch = LaunchSpec((f"ceil_div(seq_q, {ROWS})", "heads", "batch"), 32 * ROWS, 0, ())
    config = Config.of("scalar", {"CHANGE": change[1] if change else ""})
    return Source(config, head + text, "0" * 16, "0" * 16, 0, launch)


def build(problem: Problem, change: tuple[str, str] | None = None, arch: str = ARCH) -> Kernel:
    """Compiles it."""
    source = source_of(problem, change)
    binary: Binary = Compiler(None).compile(source, arch)
    return Kernel(source, binary)
