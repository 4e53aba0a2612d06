"""A plain attention kernel in CUDA, small enough to be broken on purpose in one place at a time.

One warp per query row; keys in tiles of 32, one key per lane; online softmax in base 2; then each lane owns head_dim/32
(at least one) columns of the output. It does every feature of a problem. The keys of a row may be split among warps,
whose partial results are merged by a second kernel, or by the warp that comes last. It is written for the tests alone
and shares nothing with the templates.
"""

from __future__ import annotations

from evoengine.device.contract import Merge
from evoengine.kernel.abi import PARAM_BYTES
from evoengine.kernel.compile.cache import default_cache_dir
from evoengine.kernel.compile.compiler import Compiler
from evoengine.kernel.records import Binary, Kernel, LaunchSpec, Source, StepSpec
from evoengine.model import Config, DType, Problem

ROWS = 4
SPLITS = 3
"""Warps that share the keys of a row where they are split."""
ARCH = "sm_89"

SOURCE = """
typedef unsigned short u16;
struct AttentionParams {
    const u16* q; const u16* k; const u16* v; u16* o;
    long long q_batch_stride, q_head_stride, k_batch_stride, k_head_stride;
    long long v_batch_stride, v_head_stride, o_batch_stride, o_head_stride;
    int q_row_stride, k_row_stride, v_row_stride, o_row_stride;
    int heads_per_kv_head, seq_q, seq_kv;
    float scale_log2;
    float* lse; const float* sink; const int* cu_seqlens_q; const int* cu_seqlens_kv;
    float* workspace; unsigned* counters;
    long long lse_batch_stride, lse_head_stride;
    int batch, heads, window_left, window_right;
    float softcap_log2, softcap_scale;
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

// Softmax of some keys of one row: the largest score in base 2, the sum of weights, this lane's columns.
struct Partial {
    float top, total, out[COLUMNS];
};
__device__ Partial nothing() { return {-1e30f, 0.f, {}}; }
__device__ void raise_top(Partial& mine, float top) {
    const float keep = exp2_approx(mine.top - top);
    mine.total *= keep;
    for (int c = 0; c < COLUMNS; ++c) mine.out[c] *= keep;
    mine.top = top;
}

// Where one row lies: packed sequences follow each other, others have a place of their own.
struct Place {
    int batch, head, row, queries, keys, q_row, kv_row;
};
__device__ Place place_of(const AttentionParams& p, int batch, int head, int row) {
    if (!PACKED) return {batch, head, row, p.seq_q, p.seq_kv, row, 0};
    const int q_start = p.cu_seqlens_q[batch], kv_start = p.cu_seqlens_kv[batch];
    const int queries = p.cu_seqlens_q[batch + 1] - q_start, keys = p.cu_seqlens_kv[batch + 1] - kv_start;
    return {batch, head, row, queries, keys, q_start + row, kv_start};
}

__device__ void store_row(const AttentionParams& p, const Place& at, Partial mine) {
    const int lane = threadIdx.x % 32;
    u16* o = p.o + at.batch * p.o_batch_stride + at.head * p.o_head_stride + (long long)at.q_row * p.o_row_stride;
    if (HAS_SINK) {
        const float sink = p.sink[at.head] * 1.4426950408889634f;
        raise_top(mine, fmaxf(mine.top, sink));
        mine.total += exp2_approx(sink - mine.top);
    }
    if (HAS_LSE && lane == 0)
        p.lse[at.batch * p.lse_batch_stride + at.head * p.lse_head_stride + at.q_row] =
            mine.total > 0.f ? (mine.top + log2f(mine.total)) * 0.6931471805599453f : __int_as_float(0xff800000);
    const float total = mine.total;
    for (int c = 0; c < COLUMNS; ++c)
        if (lane < WIDTH) store(o + c * 32 + lane, total == 0.f ? 0.f : mine.out[c] / total);  // NaN stays NaN
}

// Partial results in the workspace: [rows][SPLITS][HEAD_DIM + 2].
__device__ float* shelf_of(const AttentionParams& p, const Place& at, int split) {
    const long long row = ((long long)at.batch * p.heads + at.head) * p.seq_q + at.row;
    return p.workspace + (row * SPLITS + split) * (HEAD_DIM + 2);
}
__device__ void leave(float* shelf, const Partial& mine) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) shelf[0] = mine.top, shelf[1] = mine.total;
    for (int c = 0; c < COLUMNS; ++c)
        if (lane < WIDTH) shelf[2 + c * 32 + lane] = mine.out[c];
}
__device__ Partial merged(const AttentionParams& p, const Place& at) {
    const int lane = threadIdx.x % 32;
    Partial all = nothing();
    for (int split = 0; split < SPLITS; ++split) {
        const volatile float* shelf = shelf_of(p, at, split);
        const float top = shelf[0];
        raise_top(all, fmaxf(all.top, top));
        const float weight = exp2_approx(top - all.top);
        all.total += weight * shelf[1];
        for (int c = 0; c < COLUMNS; ++c) all.out[c] += weight * shelf[2 + c * 32 + lane % WIDTH];
    }
    return all;
}

extern "C" __global__ void evo_attention(const __grid_constant__ AttentionParams p) {
    const int lane = threadIdx.x % 32;
    const int split = blockIdx.z % SPLITS;
    const Place at = place_of(p, blockIdx.z / SPLITS, blockIdx.y, blockIdx.x * ROWS + threadIdx.x / 32);
    const int row = at.row, queries = at.queries, keys = at.keys;
    const int head = at.head, kv_head = head / p.heads_per_kv_head, batch = at.batch;
    const int v_head = kv_head;
    if (row >= queries) return;
    const u16* q = p.q + batch * p.q_batch_stride + head * p.q_head_stride + (long long)at.q_row * p.q_row_stride;
    const u16* k = p.k + batch * p.k_batch_stride + kv_head * p.k_head_stride + (long long)at.kv_row * p.k_row_stride;
    const u16* v = p.v + batch * p.v_batch_stride + v_head * p.v_head_stride + (long long)at.kv_row * p.v_row_stride;

    const int diagonal = row + keys - queries;
    const int first_key = HAS_WINDOW_LEFT ? diagonal - p.window_left : 0;
    const int last_key = CAUSAL ? diagonal : HAS_WINDOW_RIGHT ? diagonal + p.window_right : 0x7fffffff;
    const int tiles = (keys + 31) / 32;
    Partial mine = nothing();
    for (int tile = split; tile < tiles; tile += SPLITS) {
        const int key = tile * 32 + lane;
        const int safe_key = min(key, keys - 1);
        float score = 0.f;
        for (int d = 0; d < HEAD_DIM; ++d)
            score += load(q + d) * load(k + (long long)safe_key * p.k_row_stride + d);
        if (HAS_SOFTCAP) score = p.softcap_log2 * tanhf(p.softcap_scale * score);
        else score *= p.scale_log2;
        const bool seen = key < keys && key >= first_key && key <= last_key;
        if (!seen) score = -1e30f;
        float new_top = fmaxf(mine.top, score);
        for (int step = 16; step; step /= 2) new_top = fmaxf(new_top, __shfl_xor_sync(~0u, new_top, step));
        float weight = seen ? exp2_approx(score - new_top) : 0.f;
        float sum = weight;
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
        const float keep = exp2_approx(mine.top - new_top);
        mine.total = mine.total * keep + sum;
        for (int c = 0; c < COLUMNS; ++c) mine.out[c] *= keep;
        mine.top = new_top;
        const int in_tile = min(32, keys - tile * 32);
        for (int j = 0; j < in_tile; ++j) {
            const float w = __shfl_sync(~0u, weight, j);
            for (int c = 0; c < COLUMNS; ++c)
                mine.out[c] += w * load(v + (long long)(tile * 32 + j) * p.v_row_stride + c * 32 + lane % WIDTH);
        }
    }
    if (SPLITS == 1) {
        store_row(p, at, mine);
        return;
    }
    leave(shelf_of(p, at, split), mine);
    if (!BY_COUNTERS) return;
    __threadfence();  // what this warp left is there before it is counted
    __syncwarp();
    unsigned* counter = p.counters + ((long long)batch * p.heads + head) * p.seq_q + row;
    unsigned before = 0;
    if (lane == 0) before = atomicAdd(counter, 1u);
    if (__shfl_sync(~0u, before, 0) != SPLITS - 1) return;
    __threadfence();  // what the others left is read after they were counted
    store_row(p, at, merged(p, at));
    if (lane == 0) *counter = 0;
}

extern "C" __global__ void evo_combine(const __grid_constant__ AttentionParams p) {
    const Place at = place_of(p, blockIdx.z, blockIdx.y, blockIdx.x);
    if (at.row < at.queries) store_row(p, at, merged(p, at));
}
"""

MUTANTS: dict[str, tuple[str, str]] = {
    "no-rescale": ("mine.out[c] *= keep;\n        mine.top", "mine.out[c] *= 1.f;\n        mine.top"),
    "sum-not-rescaled": ("mine.total = mine.total * keep + sum", "mine.total = mine.total + sum"),
    "skip-last-tile": ("tile < tiles;", "tile < (tiles > 1 ? tiles - 1 : 1);"),
    "drop-one-key": ("const bool seen = ", "const bool seen = key != 77 && "),
    "wrong-v-head": ("v_head = kv_head", "v_head = (kv_head + 1) % (gridDim.y / p.heads_per_kv_head)"),
    "wrong-kv-group": ("kv_head = head / p.heads_per_kv_head", "kv_head = head % (gridDim.y / p.heads_per_kv_head)"),
    "scale-10-percent": ("score *= p.scale_log2", "score *= p.scale_log2 * 1.1f"),
    "natural-base": ("score *= p.scale_log2", "score *= p.scale_log2 * 0.6931472f"),
    "sequence-lengths-swapped": ("if (row >= queries) return;", "if (row >= min(queries, keys)) return;"),
    "last-row-unwritten": ("if (row >= queries) return;", "if (row >= queries - (queries > 1)) return;"),
    "fixed-row-stride": ("(long long)at.q_row * p.o_row_stride", "(long long)at.q_row * HEAD_DIM"),
    "no-normalisation": ("mine.out[c] / total", "mine.out[c]"),
    "wrong-at-some-times": ("score *= p.scale_log2", "score *= p.scale_log2 * (clock64() >> 20 & 1 ? 2.f : 1.f)"),
}
"""Faults of any mask: what to replace, by what."""

FULL_MUTANTS: dict[str, tuple[str, str]] = {"tail-not-masked": ("key < keys && ", "")}
"""Faults that a causal mask would hide: no row sees a key past the end there."""

CAUSAL_MUTANTS: dict[str, tuple[str, str]] = {
    "causal-one-more": ("key <= last_key", "key <= last_key + 1"),
    "causal-one-less": ("key <= last_key", "key < last_key"),
    "causal-top-left": ("row + keys - queries", "row"),
    "no-mask": ("CAUSAL ? diagonal", "false ? diagonal"),
    "dead-rows-averaged": ("float weight = seen ?", "float weight = true ?"),
}
"""Faults that only a causal mask can show."""

FAULTS: dict[str, tuple[str, str]] = {
    "writes-past-the-end": ("o + c * 32 + lane,", "o + (at.row == at.queries - 1 ? HEAD_DIM : 0) + c * 32 + lane,"),
    "reads-far-outside": ("load(q + d)", "load(q + d + (1ll << 40))"),
    "writes-an-input": ("    const int tiles", "    ((u16*)q)[0] = 0;\n    const int tiles"),
}
"""Faults that a device must report as a LaunchError."""

FEATURE_FAULTS: dict[str, tuple[str, str]] = {
    "unwritten-lse": ("HAS_LSE && lane == 0", "HAS_LSE && lane == 0 && at.row > 0"),
    "writes-past-the-lse": ("at.head * p.lse_head_stride + at.q_row]", "at.head * p.lse_head_stride + at.q_row + 1]"),
    "writes-the-sink": ("    const int tiles", "    ((float*)p.sink)[head] = 7.f;\n    const int tiles"),
    "writes-the-offsets": ("    const int tiles", "    ((int*)p.cu_seqlens_kv)[0] = 1;\n    const int tiles"),
    "leaves-a-counter": ("if (lane == 0) *counter = 0;", ""),
    "writes-past-the-workspace": ("row * SPLITS + split) *", "row * SPLITS + split + 1) *"),
    "reads-what-the-call-before-left": (
        "    const float total = mine.total;",
        """    __shared__ volatile float left[32 * ROWS];
    const float total = mine.total + left[threadIdx.x];
    left[threadIdx.x] = 0.f;""",
    ),
    "reads-what-nobody-left": ("if (lane == 0) shelf[0]", "if (split_of() == 1) return;\n    if (lane == 0) shelf[0]"),
}
"""Faults of one feature, for a problem that has it and a kernel that needs it."""


def source_of(problem: Problem, change: tuple[str, str] | None = None, merge: Merge = "none") -> Source:
    """The kernel for a problem's head_dim, dtype and features, changed in one place."""
    text = SOURCE
    if change is not None:
        assert text.count(change[0]) == 1, change
        text = text.replace(*change)
    splits = 1 if merge == "none" else SPLITS
    facts = {
        "PARAM_BYTES": PARAM_BYTES,
        "BF16": problem.dtype is DType.BF16,
        "CAUSAL": problem.causal,
        "HAS_WINDOW_LEFT": problem.window_left is not None,
        "HAS_WINDOW_RIGHT": problem.window_right is not None,
        "HAS_SOFTCAP": problem.softcap > 0,
        "HAS_SINK": problem.sink,
        "HAS_LSE": problem.lse,
        "PACKED": problem.packed,
        "HEAD_DIM": problem.head_dim,
        "COLUMNS": max(1, problem.head_dim // 32),
        "WIDTH": min(32, problem.head_dim),
        "ROWS": ROWS,
        "SPLITS": splits,
        "BY_COUNTERS": merge == "counters",
        "split_of()": "(blockIdx.z % SPLITS)",
    }
    head = "".join(
        f"#define {name} {str(value).lower() if isinstance(value, bool) else value}\n" for name, value in facts.items()
    )
    config = Config.of("scalar", {"CHANGE": change[1] if change else "", "MERGE": merge})
    return Source(config, head + text, "0" * 16, "0" * 16, 0, launch_of(problem.head_dim, merge))


def launch_of(head_dim: int, merge: Merge) -> LaunchSpec:
    """How it is launched: with one step, with a second one that merges, or with counters."""
    if merge == "none":
        return LaunchSpec((f"ceil_div(seq_q, {ROWS})", "heads", "batch"), 32 * ROWS, 0, ())
    return LaunchSpec(
        grid=(f"ceil_div(seq_q, {ROWS})", "heads", f"batch * {SPLITS}"),
        threads=32 * ROWS,
        smem_bytes=0,
        names=(),
        workspace_bytes=f"batch * heads * seq_q * {SPLITS * 4 * (head_dim + 2)}",
        counters="batch * heads * seq_q" if merge == "counters" else "0",
        then=(StepSpec("evo_combine", ("seq_q", "heads", "batch"), 32, 0),) if merge == "steps" else (),
    )


def build(problem: Problem, change: tuple[str, str] | None = None, arch: str = ARCH, merge: Merge = "none") -> Kernel:
    """Compiles it."""
    source = source_of(problem, change, merge)
    binary: Binary = Compiler(default_cache_dir()).compile(source, arch)
    return Kernel(source, binary)
