// EvoEngine, family scalar, template 0000000000000000: CACHE_OP=cg KEYS_PER_STEP=1 L2_PREFETCH_BYTES=0 LANES_PER_KEY=2 MERGE=shuffle MIN_CTAS=1 PAD_HALVES=0 STAGES=1 STAGING=direct THREADS=32 UNROLL=1 VECTOR=2
// Fused attention forward without tensor cores, the teaching baseline: o = softmax(scale · q Kᵀ) V, a block per query row.
//
// The block's THREADS lanes form TEAMS teams of LANES_PER_KEY. A team is a small FlashAttention stream of its own: it
// takes every TEAMS-th key, and each of its lanes holds DIMS columns of q and of the running, unnormalised o in f32.
//
//                    columns of the head                    A step: KEYS_PER_STEP keys per team, TILE_KEYS per block
//             lane 0   lane 1   …   lane 0   lane 1   …       score = Σ q·k over the lane's columns, summed over the team
//   key t    [VECTOR] [VECTOR]  …  [VECTOR] [VECTOR]  …       online softmax in base 2, once for all keys of the step
//   key t+1  the next team                                    o = o · rescale + Σ p · v
//
// No team waits for another before the end, when the teams' (maximum, sum, o) are merged: first within the warp, if
// MERGE says so, then through shared memory. K and V come straight from L2 (STAGING direct), or through a ring of
// tiles in shared memory that cp.async fills (STAGING shared): with one query row per block nothing is reused there.
//
// Shared memory: [ring of STAGES × (K tile, V tile)]; the partial results reuse these bytes after the last tile.

struct Cfg {
    // Tunables.
    static constexpr int THREADS = 32;  // threads: threads of the block, all of which work on one query row
    static constexpr int LANES_PER_KEY = 2;  // lanes: lanes of a team, which split the columns of the head among them
    static constexpr int KEYS_PER_STEP = 1;  // keys: keys of a team between two rescalings
    static constexpr int MERGE_SHUFFLE = 0, MERGE_SHARED = 1;
    static constexpr int MERGE = MERGE_SHUFFLE;  // path: merge the teams of a warp by shuffles first, or all teams through shared memory at once
    static constexpr int VECTOR = 2;  // halves: values that a lane reads of a row at once
    static constexpr int STAGING_DIRECT = 0, STAGING_SHARED = 1;
    static constexpr int STAGING = STAGING_DIRECT;  // path: read K and V straight from L2, or copy tiles to shared memory first
    static constexpr int STAGES = 1;  // tiles: cp.async depth: slots of the ring, each with a K and a V tile
    static constexpr int PAD_HALVES = 0;  // halves: padding of a shared-memory row against bank conflicts
    static constexpr int CACHE_OP_CG = 0, CACHE_OP_CA = 1;
    static constexpr int CACHE_OP = CACHE_OP_CG;  // cache operator: cache what is read in L2 only, or in L1 too
    static constexpr int L2_PREFETCH_BYTES = 0;  // bytes: L2 prefetch size that the loads ask for
    static constexpr int MIN_CTAS = 1;  // CTAs: CTAs per SM that __launch_bounds__ asks for: caps the registers
    static constexpr int UNROLL = 1;  // iterations: unrolling of the loop over tiles
    // Derived from them.
    static constexpr int TEAMS = 16;  // teams: keys in work at a time
    static constexpr int TILE_KEYS = 16;  // keys: keys of one step of the whole block
    static constexpr int DIMS = 32;  // columns: columns of the head that one lane holds
    static constexpr int ROW_HALVES = 64;  // halves: pitch of a shared-memory row
    static constexpr int PARTIALS = 1;  // partial results: what the merge through shared memory sums
    static constexpr int SMEM_BYTES = 264;  // bytes: shared memory per CTA: the ring, whose bytes the partial results reuse
    static constexpr int LIVE_REGISTERS = 121;  // registers: estimate per thread: q, o, scores, one row in flight, and 40 for addresses and loop state
    // The problem's traits; batch, heads and lengths are arguments, so one binary serves them all.
    static constexpr int HEAD_DIM = 64;  // elements
    static constexpr bool IS_BF16 = false;
    static constexpr bool CAUSAL = false;
    static constexpr bool HAS_WINDOW_LEFT = false;  // keys too far before the diagonal are hidden
    static constexpr bool HAS_WINDOW_RIGHT = false;  // keys too far after it, too
    static constexpr bool HAS_SOFTCAP = false;
    static constexpr bool HAS_SINK = false;
    static constexpr bool HAS_LSE = false;  // the log-sum-exp of each row is an output
    static constexpr bool PACKED = false;  // sequences of different lengths lie one after the other
    // The host's launch: the kernel asserts that it agrees.
    static constexpr int LAUNCH_THREADS = 32;  // threads per CTA
    static constexpr int LAUNCH_SMEM_BYTES = 264;  // bytes of dynamic shared memory per CTA
    static constexpr int PARAM_BYTES = 216;  // bytes of AttentionParams
};
// First argument of every kernel, mirrored from evoengine/kernel/abi.py (PARAMS_DTYPE). Needs Cfg::PARAM_BYTES.
// Strides are in elements; the head_dim axis is contiguous. 64-bit strides, because batch x head offsets pass 2^31.
// Fields that a problem does not use are 0; the traits in Cfg say which may be read.
struct AttentionParams {
    // 128 bytes that every kernel needs: two lines of the constant cache.
    const void* q;  // [batch, heads, seq_q, head_dim]
    const void* k;  // [batch, kv_heads, seq_kv, head_dim]
    const void* v;  // [batch, kv_heads, seq_kv, head_dim]
    void* o;        // [batch, heads, seq_q, head_dim]
    long long q_batch_stride;  // all batch strides are 0 where sequences are packed
    long long q_head_stride;
    long long k_batch_stride;
    long long k_head_stride;
    long long v_batch_stride;
    long long v_head_stride;
    long long o_batch_stride;
    long long o_head_stride;
    int q_row_stride;
    int k_row_stride;
    int v_row_stride;
    int o_row_stride;
    int heads_per_kv_head;  // query heads that share one K/V head
    int seq_q;              // of packed sequences, the longest
    int seq_kv;
    float scale_log2;       // softmax scale, any finite number, times log2(e): softmax runs in base 2
    // Fields that only some problems use.
    float* lse;                // [batch, heads, seq_q], natural logarithm
    const float* sink;         // [heads], natural logits
    const int* cu_seqlens_q;   // [batch + 1], first row of each packed sequence
    const int* cu_seqlens_kv;  // [batch + 1]
    void* workspace;           // partial results between CTAs
    unsigned* counters;        // zero before every call; the call leaves them at zero
    long long lse_batch_stride;
    long long lse_head_stride;
    int batch;            // sequences
    int heads;
    int window_left;      // keys that a row sees before its diagonal
    int window_right;     // and after it
    float softcap_log2;   // softcap times log2(e)
    union {
        float softcap_scale;   // with a softcap: softmax scale over softcap, the argument of tanh per unit of Q K^T
        float positive_scale;  // without: |scale_log2|, at least the smallest normal number (softmax_scale.cuh)
    };
};
static_assert(sizeof(AttentionParams) == Cfg::PARAM_BYTES, "AttentionParams differs between host and device");
// ---- asynchronous copies: global memory to shared memory, 16 bytes a thread, past the registers ------------------------

// Starts copying 16 bytes. `bytes` below 16 copies that many and fills the rest with zeros; nothing is read for 0.
// The data may be read only after the copy's group has been waited for, and by other threads only after a barrier.
__device__ __forceinline__ void copy_async_16(unsigned smem_address, const void* global, int bytes) {
#define EVO_CP_ASYNC(CACHE_AND_PREFETCH)                                                                  \
    asm volatile("cp.async." CACHE_AND_PREFETCH " [%0], [%1], 16, %2;" ::"r"(smem_address), "l"(global), \
                 "r"(bytes)                                                                               \
                 : "memory")
    if constexpr (Cfg::CACHE_OP == Cfg::CACHE_OP_CG) {
        if constexpr (Cfg::L2_PREFETCH_BYTES == 0) EVO_CP_ASYNC("cg.shared.global");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 128) EVO_CP_ASYNC("cg.shared.global.L2::128B");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 256) EVO_CP_ASYNC("cg.shared.global.L2::256B");
    } else {
        if constexpr (Cfg::L2_PREFETCH_BYTES == 0) EVO_CP_ASYNC("ca.shared.global");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 128) EVO_CP_ASYNC("ca.shared.global.L2::128B");
        if constexpr (Cfg::L2_PREFETCH_BYTES == 256) EVO_CP_ASYNC("ca.shared.global.L2::256B");
    }
#undef EVO_CP_ASYNC
}

// Closes the group of copies that this thread has started since the last commit; an empty group counts as one too.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's latest groups are still under way.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// ---- the problem's 16-bit type, without headers: two values share a register, the first in the lower half ----------------

__device__ __forceinline__ float2 unpack_16bit(unsigned packed) {
    float2 values;
    if constexpr (Cfg::IS_BF16) {  // bf16 is the upper half of an f32
        values.x = __uint_as_float(packed << 16);
        values.y = __uint_as_float(packed & 0xffff0000u);
    } else {
        asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
            : "=f"(values.x), "=f"(values.y)
            : "r"(packed));
    }
    return values;
}

// Rounds to nearest even.
__device__ __forceinline__ unsigned pack_16bit(float low, float high) {
    unsigned packed;
    if constexpr (Cfg::IS_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}
// ---- online softmax in base 2 (FlashAttention-2, Dao 2023, algorithm 1) --------------------------------------------------

__device__ __forceinline__ float negative_infinity() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Combines a value over the four lanes that share a fragment row.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The running maximum as a subtrahend: a row that has seen no key yet has maximum -inf, and -inf - -inf would be NaN.
__device__ __forceinline__ float finite_max(float maximum) { return maximum == negative_infinity() ? 0.0f : maximum; }
// ---- derived constants ---------------------------------------------------------------------------------------------------
constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr bool STAGED = Cfg::STAGING == Cfg::STAGING_SHARED;
constexpr bool WARP_MERGE = Cfg::MERGE == Cfg::MERGE_SHUFFLE;
constexpr int CHUNK_STRIDE = Cfg::LANES_PER_KEY * Cfg::VECTOR;  // columns that a team reads with one load per lane
constexpr int LANE_CHUNKS = Cfg::HEAD_DIM / CHUNK_STRIDE;       // loads per lane and row
constexpr int WORDS = Cfg::VECTOR / 2;                          // registers of one load
constexpr int COPY_HALVES = 8;                                  // what one cp.async moves
constexpr int ROW_COPIES = Cfg::HEAD_DIM / COPY_HALVES;
constexpr int TILE_BYTES = Cfg::TILE_KEYS * Cfg::ROW_HALVES * 2;  // the K or the V half of a ring slot
constexpr int SLOT_BYTES = 2 * TILE_BYTES;
constexpr int RING_BYTES = STAGED ? Cfg::STAGES * SLOT_BYTES : 0;
constexpr int MERGE_BYTES = Cfg::PARTIALS * (Cfg::HEAD_DIM + 2) * 4;  // o, then (maximum, sum) of each partial result

static_assert(Cfg::LAUNCH_THREADS == Cfg::THREADS, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == (RING_BYTES > MERGE_BYTES ? RING_BYTES : MERGE_BYTES),
              "host and kernel disagree on shared memory");
static_assert(Cfg::TEAMS * Cfg::LANES_PER_KEY == Cfg::THREADS, "the teams are all threads");
static_assert(Cfg::TILE_KEYS == Cfg::TEAMS * Cfg::KEYS_PER_STEP, "a step is KEYS_PER_STEP keys of every team");
static_assert(Cfg::DIMS * Cfg::LANES_PER_KEY == Cfg::HEAD_DIM, "a team's lanes share the columns");
static_assert(LANE_CHUNKS * Cfg::VECTOR == Cfg::DIMS, "a lane's columns are whole loads");
static_assert(Cfg::PARTIALS == (WARP_MERGE ? Cfg::THREADS / WARP : Cfg::TEAMS), "one partial result a warp, or a team");
static_assert(Cfg::ROW_HALVES % COPY_HALVES == 0, "rows start on a 16-byte boundary");
static_assert(STAGED || Cfg::STAGES == 1, "without a ring there are no stages");

// ---- loads -----------------------------------------------------------------------------------------------------------------
// VECTOR 16-bit values from global memory. The indices of `words` exist for every WORDS, because each branch is compiled.
__device__ __forceinline__ void load_global(unsigned (&words)[WORDS], const unsigned short* source) {
#define EVO_LOAD_WIDTHS(HOW)                                                                                         \
    if constexpr (WORDS == 1) asm("ld.global." HOW ".b32 %0, [%1];" : "=r"(words[0]) : "l"(source));                 \
    if constexpr (WORDS == 2)                                                                                        \
        asm("ld.global." HOW ".v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[WORDS - 1]) : "l"(source));      \
    if constexpr (WORDS == 4)                                                                                        \
        asm("ld.global." HOW ".v4.b32 {%0, %1, %2, %3}, [%4];"                                                       \
            : "=r"(words[0]), "=r"(words[WORDS / 4]), "=r"(words[WORDS / 2]), "=r"(words[WORDS - 1])                 \
            : "l"(source))
    if constexpr (Cfg::CACHE_OP == Cfg::CACHE_OP_CG) {
        if constexpr (Cfg::L2_PREFETCH_BYTES == 0) { EVO_LOAD_WIDTHS("cg"); }
        if constexpr (Cfg::L2_PREFETCH_BYTES == 128) { EVO_LOAD_WIDTHS("cg.L2::128B"); }
    } else {
        if constexpr (Cfg::L2_PREFETCH_BYTES == 0) { EVO_LOAD_WIDTHS("ca"); }
        if constexpr (Cfg::L2_PREFETCH_BYTES == 128) { EVO_LOAD_WIDTHS("ca.L2::128B"); }
    }
#undef EVO_LOAD_WIDTHS
}

// The same from shared memory, in one access.
__device__ __forceinline__ void load_shared(unsigned (&words)[WORDS], const unsigned char* source) {
    if constexpr (WORDS == 1) {
        words[0] = *reinterpret_cast<const unsigned*>(source);
    } else if constexpr (WORDS == 2) {
        const uint2 pair = *reinterpret_cast<const uint2*>(source);
        words[0] = pair.x, words[1] = pair.y;
    } else {
        const uint4 four = *reinterpret_cast<const uint4*>(source);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    }
}

// First column of a lane's chunk: the lanes of a team read neighbouring chunks, so that their loads coalesce.
__device__ __forceinline__ int column_of(int chunk, int team_lane) { return chunk * CHUNK_STRIDE + team_lane * Cfg::VECTOR; }

// One row of K or V: lane's columns in f32. The row is a tile row in shared memory, or a key in global memory.
struct Rows {
    const unsigned char* s_tile;
    const unsigned short* g_tensor;
    int row_stride;
};
__device__ __forceinline__ void load_row(float (&values)[Cfg::DIMS], const Rows& rows, int tile_row, int key, int team_lane) {
#pragma unroll
    for (int chunk = 0; chunk < LANE_CHUNKS; ++chunk) {
        const int column = column_of(chunk, team_lane);
        unsigned words[WORDS];
        if constexpr (STAGED) {
            load_shared(words, rows.s_tile + (tile_row * Cfg::ROW_HALVES + column) * 2);
        } else {
            load_global(words, rows.g_tensor + static_cast<long long>(key) * rows.row_stride + column);
        }
#pragma unroll
        for (int word = 0; word < WORDS; ++word) {
            const float2 pair = unpack_16bit(words[word]);
            values[chunk * Cfg::VECTOR + 2 * word] = pair.x;
            values[chunk * Cfg::VECTOR + 2 * word + 1] = pair.y;
        }
    }
}

// Starts the copy of one tile of K or V. Keys at or past `visible` repeat the last one that the row sees: their address is
// valid, and their probability will be zero. The caller commits.
__device__ __forceinline__ void copy_keys_async(unsigned s_tile, const unsigned short* g_tensor, int row_stride, int first_key,
                                                int visible, int thread) {
#pragma unroll 4
    for (int index = thread; index < Cfg::TILE_KEYS * ROW_COPIES; index += Cfg::LAUNCH_THREADS) {
        const int row = index / ROW_COPIES;
        const int column = index % ROW_COPIES * COPY_HALVES;
        const int key = min(first_key + row, visible - 1);
        copy_async_16(s_tile + (row * Cfg::ROW_HALVES + column) * 2,
                      g_tensor + static_cast<long long>(key) * row_stride + column, COPY_HALVES * 2);
    }
}

// ---- one stream ---------------------------------------------------------------------------------------------------------------
struct Stream {
    float q[Cfg::DIMS];  // the lane's columns of the query, times the softmax scale and log2(e)
    float o[Cfg::DIMS];  // the lane's columns of the unnormalised output
    float maximum;       // of the scores so far, the same in all lanes of the team
    float sum;           // of the probabilities so far, the same in all lanes of the team
};

__device__ __forceinline__ float team_sum(float x) {
#pragma unroll
    for (int offset = 1; offset < Cfg::LANES_PER_KEY; offset *= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// One step: the team's KEYS_PER_STEP keys of the tile that starts at first_key. All lanes take part, also past the end.
__device__ __forceinline__ void consume_tile(Stream& stream, const Rows& k_rows, const Rows& v_rows, int first_key, int visible,
                                             int team, int team_lane) {
    float score[Cfg::KEYS_PER_STEP];
    float maximum = stream.maximum;
#pragma unroll
    for (int j = 0; j < Cfg::KEYS_PER_STEP; ++j) {
        const int tile_row = j * Cfg::TEAMS + team;
        const int key = first_key + tile_row;
        float k[Cfg::DIMS];
        load_row(k, k_rows, tile_row, min(key, visible - 1), team_lane);
        float dot = 0.0f;
#pragma unroll
        for (int d = 0; d < Cfg::DIMS; ++d) dot = fmaf(stream.q[d], k[d], dot);
        dot = team_sum(dot);
        score[j] = key < visible ? dot : negative_infinity();
        maximum = fmaxf(maximum, score[j]);
    }
    const float subtrahend = finite_max(maximum);
    const float rescale = exp2_approx(stream.maximum - subtrahend);
    stream.maximum = maximum;
    stream.sum *= rescale;
#pragma unroll
    for (int d = 0; d < Cfg::DIMS; ++d) stream.o[d] *= rescale;
#pragma unroll
    for (int j = 0; j < Cfg::KEYS_PER_STEP; ++j) {
        const int tile_row = j * Cfg::TEAMS + team;
        const float probability = exp2_approx(score[j] - subtrahend);
        stream.sum += probability;
        float v[Cfg::DIMS];
        load_row(v, v_rows, tile_row, min(first_key + tile_row, visible - 1), team_lane);
#pragma unroll
        for (int d = 0; d < Cfg::DIMS; ++d) stream.o[d] = fmaf(probability, v[d], stream.o[d]);
    }
}

// ---- merge -----------------------------------------------------------------------------------------------------------------------
// Merges the teams of a warp pairwise; afterwards every team holds the warp's result.
__device__ __forceinline__ void merge_teams_of_warp(Stream& stream) {
#pragma unroll
    for (int offset = Cfg::LANES_PER_KEY; offset < WARP; offset *= 2) {
        const float other_maximum = __shfl_xor_sync(ALL_LANES, stream.maximum, offset);
        const float other_sum = __shfl_xor_sync(ALL_LANES, stream.sum, offset);
        const float maximum = fmaxf(stream.maximum, other_maximum);
        const float subtrahend = finite_max(maximum);
        const float weight = exp2_approx(stream.maximum - subtrahend);
        const float other_weight = exp2_approx(other_maximum - subtrahend);
        stream.maximum = maximum;
        stream.sum = stream.sum * weight + other_sum * other_weight;
#pragma unroll
        for (int d = 0; d < Cfg::DIMS; ++d)
            stream.o[d] = stream.o[d] * weight + __shfl_xor_sync(ALL_LANES, stream.o[d], offset) * other_weight;
    }
}

// Leaves a partial result: float o[PARTIALS][HEAD_DIM], then float2 (maximum, sum)[PARTIALS].
__device__ __forceinline__ void leave_partial(const Stream& stream, unsigned char* smem, int partial, int team_lane) {
    float* s_o = reinterpret_cast<float*>(smem) + partial * Cfg::HEAD_DIM;
    float2* s_stats = reinterpret_cast<float2*>(reinterpret_cast<float*>(smem) + Cfg::PARTIALS * Cfg::HEAD_DIM);
    if (team_lane == 0) s_stats[partial] = make_float2(stream.maximum, stream.sum);
#pragma unroll
    for (int chunk = 0; chunk < LANE_CHUNKS; ++chunk)
#pragma unroll
        for (int i = 0; i < Cfg::VECTOR; i += 2)
            *reinterpret_cast<float2*>(s_o + column_of(chunk, team_lane) + i) =
                make_float2(stream.o[chunk * Cfg::VECTOR + i], stream.o[chunk * Cfg::VECTOR + i + 1]);
}

// Sums the partial results under their common maximum, two columns a thread in turn, and stores the row.
// A row that saw no key has sum 0 and yields zeros.
__device__ __forceinline__ void merge_and_store(const unsigned char* smem, unsigned short* g_row, int thread) {
    const float* s_o = reinterpret_cast<const float*>(smem);
    const float2* s_stats = reinterpret_cast<const float2*>(s_o + Cfg::PARTIALS * Cfg::HEAD_DIM);
    for (int column = 2 * thread; column < Cfg::HEAD_DIM; column += 2 * Cfg::LAUNCH_THREADS) {
        float maximum = negative_infinity();
#pragma unroll 4
        for (int partial = 0; partial < Cfg::PARTIALS; ++partial) maximum = fmaxf(maximum, s_stats[partial].x);
        const float subtrahend = finite_max(maximum);
        float sum = 0.0f;
        float2 o = make_float2(0.0f, 0.0f);
#pragma unroll 4
        for (int partial = 0; partial < Cfg::PARTIALS; ++partial) {
            const float2 stats = s_stats[partial];
            const float weight = exp2_approx(stats.x - subtrahend);
            const float2 part = *reinterpret_cast<const float2*>(s_o + partial * Cfg::HEAD_DIM + column);
            sum = fmaf(stats.y, weight, sum);
            o.x = fmaf(part.x, weight, o.x);
            o.y = fmaf(part.y, weight, o.y);
        }
        const float inverse = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
        *reinterpret_cast<unsigned*>(g_row + column) = pack_16bit(o.x * inverse, o.y * inverse);
    }
}

// ---- kernel ----------------------------------------------------------------------------------------------------------------------
// grid: (query rows, heads, batch).
extern "C" __global__ void __launch_bounds__(Cfg::LAUNCH_THREADS, Cfg::MIN_CTAS)
evo_attention(const __grid_constant__ AttentionParams p) {
    extern __shared__ __align__(128) unsigned char smem[];
    __builtin_assume(threadIdx.x < Cfg::LAUNCH_THREADS);  // divisions of what may be negative take four instructions, not one

    const int thread = threadIdx.x;
    const int team = thread / Cfg::LANES_PER_KEY;
    const int team_lane = thread % Cfg::LANES_PER_KEY;
    const int row = blockIdx.x;
    const int kv_head = blockIdx.y / p.heads_per_kv_head;

    const unsigned short* g_q = static_cast<const unsigned short*>(p.q) + blockIdx.z * p.q_batch_stride + blockIdx.y * p.q_head_stride;
    const unsigned short* g_k = static_cast<const unsigned short*>(p.k) + blockIdx.z * p.k_batch_stride + kv_head * p.k_head_stride;
    const unsigned short* g_v = static_cast<const unsigned short*>(p.v) + blockIdx.z * p.v_batch_stride + kv_head * p.v_head_stride;
    unsigned short* g_o = static_cast<unsigned short*>(p.o) + blockIdx.z * p.o_batch_stride + blockIdx.y * p.o_head_stride;

    const int visible = Cfg::CAUSAL ? max(0, min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q)) : p.seq_kv;
    const int tiles = (visible + Cfg::TILE_KEYS - 1) / Cfg::TILE_KEYS;
    const unsigned s_ring = static_cast<unsigned>(__cvta_generic_to_shared(smem));

    auto copy_tile = [&](int tile) {
        if (tile < tiles) {
            const unsigned s_slot = s_ring + tile % Cfg::STAGES * SLOT_BYTES;
            copy_keys_async(s_slot, g_k, p.k_row_stride, tile * Cfg::TILE_KEYS, visible, thread);
            copy_keys_async(s_slot + TILE_BYTES, g_v, p.v_row_stride, tile * Cfg::TILE_KEYS, visible, thread);
        }
        copy_async_commit();  // also when empty: the wait below counts groups
    };
    if constexpr (STAGED) {
#pragma unroll
        for (int stage = 0; stage < Cfg::STAGES; ++stage) copy_tile(stage);
    }

    Stream stream;
#pragma unroll
    for (int chunk = 0; chunk < LANE_CHUNKS; ++chunk) {
        unsigned words[WORDS];
        load_global(words, g_q + static_cast<long long>(row) * p.q_row_stride + column_of(chunk, team_lane));
#pragma unroll
        for (int word = 0; word < WORDS; ++word) {
            const float2 pair = unpack_16bit(words[word]);
            stream.q[chunk * Cfg::VECTOR + 2 * word] = pair.x * p.scale_log2;
            stream.q[chunk * Cfg::VECTOR + 2 * word + 1] = pair.y * p.scale_log2;
        }
    }
    stream.maximum = negative_infinity();
    stream.sum = 0.0f;
#pragma unroll
    for (int d = 0; d < Cfg::DIMS; ++d) stream.o[d] = 0.0f;

#pragma unroll Cfg::UNROLL
    for (int tile = 0; tile < tiles; ++tile) {
        const unsigned char* s_slot = smem + tile % Cfg::STAGES * SLOT_BYTES;
        if constexpr (STAGED) {
            copy_async_wait<Cfg::STAGES - 1>();
            __syncthreads();  // A: this tile, copied by all threads, is visible to all of them
        }
        const Rows k_rows = {s_slot, g_k, p.k_row_stride};
        const Rows v_rows = {s_slot + TILE_BYTES, g_v, p.v_row_stride};
        consume_tile(stream, k_rows, v_rows, tile * Cfg::TILE_KEYS, visible, team, team_lane);
        if constexpr (STAGED) {
            __syncthreads();  // B: all threads are done with this tile; its slot, or at the end the ring, may be overwritten
            copy_tile(tile + Cfg::STAGES);
        }
    }

    if constexpr (WARP_MERGE) {
        merge_teams_of_warp(stream);
        if (thread % WARP < Cfg::LANES_PER_KEY) leave_partial(stream, smem, thread / WARP, team_lane);
    } else {
        leave_partial(stream, smem, team, team_lane);
    }
    __syncthreads();  // C: the partial results of all threads are visible to all of them
    merge_and_store(smem, g_o + static_cast<long long>(row) * p.o_row_stride, thread);
}
