// EvoEngine, family wmma, template 0000000000000000: BLOCK_M=16 BLOCK_N=16 CACHE_OP=cg L2_PREFETCH_BYTES=0 MIN_CTAS=1 O_LOCATION=fragments PAD_FLOATS=0 PAD_HALVES=0 P_LOCATION=own Q_LOCATION=fragments STAGES=1 STAGING=plain THREADS_PER_ROW=2 UNROLL=1 WARPS_M=1 WARPS_N=1
// Fused attention forward on nvcuda::wmma fragments of 16x16x16: O = softmax(scale · Q Kᵀ) V.
//
// A CTA owns BLOCK_M query rows of one head and walks over the keys in tiles of BLOCK_N. Its WARPS_M × WARPS_N warps
// cut both products alike: a warp has BLOCK_M / WARPS_M rows, and BLOCK_N / WARPS_N keys of S or HEAD_DIM / WARPS_N
// columns of O.
//
//                 keys of S              columns of O         A tile's life, with a barrier before each arrow:
//   rows      [warp 0][warp 1]         [warp 0][warp 1]         S = Q Kᵀ        fragments  → s_scores, f32
//   BLOCK_M   [warp 2][warp 3]         [warp 2][warp 3]         P = 2^(S - max) by rows    → s_probabilities, 16 bits
//                                                               O = O · rescale + P V      fragments
//
// Which lane holds which element of a fragment is unspecified, so nothing here depends on it: the softmax works on
// shared memory, where THREADS_PER_ROW neighbouring lanes share a row, and the rescale of O by rows goes one of two ways:
//   O_LOCATION fragments: the factors are laid out as 16 equal columns and loaded as accumulator fragments; fragments of
//                         one type map their elements alike, so multiplying them element by element scales the rows.
//   O_LOCATION shared:    O lives in shared memory in f32; the threads of the softmax scale the rows in place, and
//                         the accumulators are loaded and stored around each tile's products.
// No atomics: every element of O is summed by one warp, in one order.
//
// Shared memory: [Q][K ring][V ring][S][P, unless it overwrites S][factors or O]; with O in fragments the epilogue
// lays O over all of it, once no thread reads it any more.
#include <mma.h>


struct Cfg {
    // Tunables.
    static constexpr int BLOCK_M = 16;  // rows: query rows per CTA
    static constexpr int BLOCK_N = 16;  // keys: keys in one tile
    static constexpr int WARPS_M = 1;  // warps: warps over query rows, in both products
    static constexpr int WARPS_N = 1;  // warps: warps over keys of S, and over columns of O
    static constexpr int THREADS_PER_ROW = 2;  // lanes: neighbouring lanes that share a row in the softmax
    static constexpr int STAGING_PLAIN = 0, STAGING_ASYNC = 1;
    static constexpr int STAGING = STAGING_PLAIN;  // path: copy to shared memory through registers, or with cp.async
    static constexpr int STAGES = 1;  // tiles: slots of the K ring and of the V ring
    static constexpr int PAD_HALVES = 0;  // halves: padding of the 16-bit rows of Q, K, V and P: D 64 becomes 72 with 8
    static constexpr int PAD_FLOATS = 0;  // floats: padding of the f32 rows of S and O
    static constexpr int Q_LOCATION_FRAGMENTS = 0, Q_LOCATION_SHARED = 1;
    static constexpr int Q_LOCATION = Q_LOCATION_FRAGMENTS;  // place: keep Q in fragments, or load them from shared memory for every tile
    static constexpr int P_LOCATION_OWN = 0, P_LOCATION_SCORES = 1;
    static constexpr int P_LOCATION = P_LOCATION_OWN;  // place: P in a tile of its own, or over the bytes of S
    static constexpr int O_LOCATION_FRAGMENTS = 0, O_LOCATION_SHARED = 1;
    static constexpr int O_LOCATION = O_LOCATION_FRAGMENTS;  // place: keep O in accumulator fragments, or in shared memory between the tiles
    static constexpr int CACHE_OP_CG = 0, CACHE_OP_CA = 1;
    static constexpr int CACHE_OP = CACHE_OP_CG;  // cp.async operator: cache what is copied in L2 only, or in L1 too
    static constexpr int L2_PREFETCH_BYTES = 0;  // bytes: L2 prefetch size that cp.async asks for
    static constexpr int MIN_CTAS = 1;  // CTAs: CTAs per SM that __launch_bounds__ asks for: caps the registers
    static constexpr int UNROLL = 1;  // iterations: unrolling of the loop over key tiles
    // Derived from them.
    static constexpr int THREADS = 32;  // threads: threads per CTA
    static constexpr int ROW_HALVES = 64;  // halves: pitch of a row of Q, K or V
    static constexpr int S_PITCH = 16;  // floats: pitch of a row of S
    static constexpr int P_PITCH = 16;  // halves: pitch of a row of P; over S, that of S
    static constexpr int O_PITCH = 64;  // floats: pitch of a row of O in shared memory
    static constexpr int O_TILE_BYTES = 4096;  // bytes: O in f32
    static constexpr int INPUT_BYTES = 6144;  // bytes: the Q tile and the rings of K and V
    static constexpr int SCORE_BYTES = 1536;  // bytes: S in f32 and P in 16 bits
    static constexpr int SMEM_BYTES = 8960;  // bytes: shared memory per CTA: all of it in the loop (with O, or with the factors for O), or O on its way out
    static constexpr int WARP_ATOMS = 1;  // 16-row atoms: query rows of one warp
    static constexpr int SPLITS = 1;  // CTAs: CTAs that share the keys of a query tile
    static constexpr int LIVE_REGISTERS = 146;  // registers: estimate per thread: fragments of O and Q, those of S or a softmax row, row statistics; the rest for addresses
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
    static constexpr int LAUNCH_SMEM_BYTES = 8960;  // bytes of dynamic shared memory per CTA
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
// ---- the softmax scale: any finite number ------------------------------------------------------------------------------------
// The running maximum is taken over unscaled scores, and hidden keys score -inf: both need a positive factor. The factor is
// p.positive_scale; for a negative scale, Q is negated once. The host computes |scale|, because an operand in constant
// memory takes no register in the loop. It is never 0: a scale of 0 becomes 1e-38, which makes all logits equal, but keeps -inf.
// With a softcap none of this applies: the scale is applied before the mask.

__device__ __forceinline__ bool scale_is_negative(const AttentionParams& p) { return p.scale_log2 < 0.0f; }

constexpr unsigned TWO_SIGNS = 0x80008000u;  // the signs of two 16-bit values that share a register

__device__ __forceinline__ void negate_16bit(uint4& values) {
    values = make_uint4(values.x ^ TWO_SIGNS, values.y ^ TWO_SIGNS, values.z ^ TWO_SIGNS, values.w ^ TWO_SIGNS);
}
// ---- derived constants ---------------------------------------------------------------------------------------------------
namespace wmma = nvcuda::wmma;
constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int ATOM = 16;  // edge of a fragment
constexpr bool O_IN_FRAGMENTS = Cfg::O_LOCATION == Cfg::O_LOCATION_FRAGMENTS;
constexpr bool P_OVER_SCORES = Cfg::P_LOCATION == Cfg::P_LOCATION_SCORES;
constexpr bool Q_IN_FRAGMENTS = Cfg::Q_LOCATION == Cfg::Q_LOCATION_FRAGMENTS;
constexpr bool ASYNC = Cfg::STAGING == Cfg::STAGING_ASYNC;
constexpr int M_FRAGS = Cfg::BLOCK_M / Cfg::WARPS_M / ATOM;   // fragments of a warp over its rows
constexpr int S_FRAGS = Cfg::BLOCK_N / Cfg::WARPS_N / ATOM;   // … over its keys of S
constexpr int O_FRAGS = Cfg::HEAD_DIM / Cfg::WARPS_N / ATOM;  // … over its columns of O
constexpr int K_STEPS = Cfg::HEAD_DIM / ATOM;
constexpr int V_STEPS = Cfg::BLOCK_N / ATOM;
constexpr int FACTOR_PITCH = ATOM + 4;                        // floats; 4 more so that rows fall into different banks
constexpr int CHUNK = 8;                                      // halves that one copy or store moves: 16 bytes
constexpr int ROW_CHUNKS = Cfg::HEAD_DIM / CHUNK;
constexpr int ROWS_PER_PASS = Cfg::THREADS / Cfg::THREADS_PER_ROW;
constexpr int PASSES = Cfg::BLOCK_M / ROWS_PER_PASS;          // rows that one thread of the softmax serves
constexpr int PAIRS = Cfg::BLOCK_N / Cfg::THREADS_PER_ROW / 2;  // pairs of keys that it holds of each

constexpr int Q_BYTES = Cfg::BLOCK_M * Cfg::ROW_HALVES * 2;
constexpr int TILE_BYTES = Cfg::BLOCK_N * Cfg::ROW_HALVES * 2;  // one slot of a ring
constexpr int RING_BYTES = Cfg::STAGES * TILE_BYTES;
constexpr int S_BYTES = Cfg::BLOCK_M * Cfg::S_PITCH * 4;
constexpr int P_BYTES = P_OVER_SCORES ? 0 : Cfg::BLOCK_M * Cfg::P_PITCH * 2;
constexpr int O_BYTES = Cfg::BLOCK_M * Cfg::O_PITCH * 4;
constexpr int FACTOR_BYTES = Cfg::BLOCK_M * FACTOR_PITCH * 4;
constexpr int K_OFFSET = Q_BYTES;
constexpr int V_OFFSET = K_OFFSET + RING_BYTES;
constexpr int S_OFFSET = V_OFFSET + RING_BYTES;
constexpr int P_OFFSET = P_OVER_SCORES ? S_OFFSET : S_OFFSET + S_BYTES;
constexpr int REST_OFFSET = S_OFFSET + S_BYTES + P_BYTES;  // the factors, or O
constexpr int LOOP_BYTES = REST_OFFSET + (O_IN_FRAGMENTS ? FACTOR_BYTES : O_BYTES);
constexpr int SMEM_BYTES = O_IN_FRAGMENTS && O_BYTES > LOOP_BYTES ? O_BYTES : LOOP_BYTES;

static_assert(Cfg::LAUNCH_THREADS == Cfg::THREADS && Cfg::THREADS == Cfg::WARPS_M * Cfg::WARPS_N * WARP,
              "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == SMEM_BYTES, "host and kernel disagree on shared memory");
static_assert(M_FRAGS * Cfg::WARPS_M * ATOM == Cfg::BLOCK_M && S_FRAGS * Cfg::WARPS_N * ATOM == Cfg::BLOCK_N &&
                  O_FRAGS * Cfg::WARPS_N * ATOM == Cfg::HEAD_DIM,
              "every warp has whole fragments of S and of O");
static_assert(Cfg::ROW_HALVES % 8 == 0 && Cfg::P_PITCH % 8 == 0 && Cfg::S_PITCH % 4 == 0 && Cfg::O_PITCH % 4 == 0,
              "wmma takes pitches of whole 16 bytes, and with them its 32-byte alignment holds for every fragment");
static_assert(PASSES * ROWS_PER_PASS == Cfg::BLOCK_M, "in every pass of the softmax each thread has a row");
static_assert(PAIRS * 2 * Cfg::THREADS_PER_ROW == Cfg::BLOCK_N, "the threads of a row share its keys in pairs");
static_assert(ASYNC || Cfg::STAGES == 1, "plain copies are finished where they are written: nothing to keep in flight");

template <bool IS_BF16>
struct SixteenBit {
    using Type = __half;
};
template <>
struct SixteenBit<true> {
    using Type = __nv_bfloat16;
};
using Element = SixteenBit<Cfg::IS_BF16>::Type;
using QueryFragment = wmma::fragment<wmma::matrix_a, ATOM, ATOM, ATOM, Element, wmma::row_major>;
using KeyFragment = wmma::fragment<wmma::matrix_b, ATOM, ATOM, ATOM, Element, wmma::col_major>;    // Kᵀ: rows are columns
using ValueFragment = wmma::fragment<wmma::matrix_b, ATOM, ATOM, ATOM, Element, wmma::row_major>;
using Accumulator = wmma::fragment<wmma::accumulator, ATOM, ATOM, ATOM, float>;

// ---- copies into shared memory ------------------------------------------------------------------------------------------------
// Copies ROWS rows of 16-bit values, a 16-byte chunk a thread in turn; rows at or past valid_rows (at least 1) become zeros.
// With cp.async the copies are under way when this returns, and the caller commits; else they are written.
template <int ROWS>
__device__ __forceinline__ void copy_tile(unsigned char* s_tile, const unsigned short* g_rows, int row_stride, int valid_rows,
                                          int thread) {
#pragma unroll 4
    for (int index = thread; index < ROWS * ROW_CHUNKS; index += Cfg::LAUNCH_THREADS) {
        const int row = index / ROW_CHUNKS;
        const int column = index % ROW_CHUNKS * CHUNK;
        const int source_row = min(row, valid_rows - 1);  // a valid address, even where nothing is read
        const unsigned short* source = g_rows + static_cast<long long>(source_row) * row_stride + column;
        unsigned char* target = s_tile + (row * Cfg::ROW_HALVES + column) * 2;
        if constexpr (ASYNC) {
            copy_async_16(static_cast<unsigned>(__cvta_generic_to_shared(target)), source, row < valid_rows ? CHUNK * 2 : 0);
        } else {
            *reinterpret_cast<uint4*>(target) =
                row < valid_rows ? *reinterpret_cast<const uint4*>(source) : make_uint4(0u, 0u, 0u, 0u);
        }
    }
}

// Negates the chunks of the Q tile that this thread copied.
__device__ __forceinline__ void negate_queries(unsigned char* s_q, int thread) {
#pragma unroll 1
    for (int index = thread; index < Cfg::BLOCK_M * ROW_CHUNKS; index += Cfg::LAUNCH_THREADS)
        negate_16bit(*reinterpret_cast<uint4*>(s_q + (index / ROW_CHUNKS * Cfg::ROW_HALVES + index % ROW_CHUNKS * CHUNK) * 2));
}

__device__ __forceinline__ void commit_copies() {
    if constexpr (ASYNC) copy_async_commit();
}
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    if constexpr (ASYNC) copy_async_wait<PENDING>();
}

// ---- the two products ------------------------------------------------------------------------------------------------------------
// A 16-bit tile from a warp's first element on. The offset passes through the empty asm as a number of bytes, because ptxas
// (13.0 to 13.5, sm_90 and later) joins a doubled index with the offset of the warp's f32 tile and gets it twice as large:
// warps then read the P of others.
__device__ __forceinline__ const Element* of_warp(const Element* s_tile, int elements) {
    int bytes = elements * 2;
    asm("" : "+r"(bytes));
    return reinterpret_cast<const Element*>(reinterpret_cast<const unsigned char*>(s_tile) + bytes);
}

__device__ __forceinline__ void load_query(QueryFragment& fragment, const Element* s_q, int warp_row, int atom, int step) {
    wmma::load_matrix_sync(fragment, of_warp(s_q, warp_row * Cfg::ROW_HALVES) + atom * ATOM * Cfg::ROW_HALVES + step * ATOM,
                           Cfg::ROW_HALVES);
}

// s_scores[warp's rows][warp's keys] = Q Kᵀ.
__device__ __forceinline__ void scores(float* s_scores, const QueryFragment (&q)[Q_IN_FRAGMENTS ? M_FRAGS : 1][K_STEPS],
                                       const Element* s_q, const Element* s_k, int warp_row, int warp_column) {
    Accumulator s[M_FRAGS][S_FRAGS];
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < S_FRAGS; ++n) wmma::fill_fragment(s[m][n], 0.0f);
    const int first_key = warp_column * S_FRAGS * ATOM;
    const Element* s_warp_k = of_warp(s_k, first_key * Cfg::ROW_HALVES);
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        QueryFragment a[M_FRAGS];
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m) {
            if constexpr (Q_IN_FRAGMENTS) {
                a[m] = q[m][step];
            } else {
                load_query(a[m], s_q, warp_row, m, step);
            }
        }
#pragma unroll
        for (int n = 0; n < S_FRAGS; ++n) {
            KeyFragment b;
            wmma::load_matrix_sync(b, s_warp_k + n * ATOM * Cfg::ROW_HALVES + step * ATOM, Cfg::ROW_HALVES);
#pragma unroll
            for (int m = 0; m < M_FRAGS; ++m) wmma::mma_sync(s[m][n], a[m], b, s[m][n]);
        }
    }
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < S_FRAGS; ++n)
            wmma::store_matrix_sync(s_scores + (warp_row + m * ATOM) * Cfg::S_PITCH + first_key + n * ATOM, s[m][n], Cfg::S_PITCH,
                                    wmma::mem_row_major);
}

// Where a warp's fragment (m, n) of O lies in a tile of O in shared memory.
__device__ __forceinline__ float* output_tile(float* s_o, int warp_row, int warp_column, int m, int n) {
    return s_o + (warp_row + m * ATOM) * Cfg::O_PITCH + (warp_column * O_FRAGS + n) * ATOM;
}
using OutputFragments = Accumulator[M_FRAGS][O_FRAGS];

__device__ __forceinline__ void load_output(OutputFragments& o, float* s_o, int warp_row, int warp_column) {
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < O_FRAGS; ++n)
            wmma::load_matrix_sync(o[m][n], output_tile(s_o, warp_row, warp_column, m, n), Cfg::O_PITCH, wmma::mem_row_major);
}
__device__ __forceinline__ void store_output(float* s_o, const OutputFragments& o, int warp_row, int warp_column) {
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < O_FRAGS; ++n)
            wmma::store_matrix_sync(output_tile(s_o, warp_row, warp_column, m, n), o[m][n], Cfg::O_PITCH, wmma::mem_row_major);
}

// Multiplies the rows of O by their factors. s_factors[row][0..15] are equal.
__device__ __forceinline__ void rescale_output(OutputFragments& o, const float* s_factors, int warp_row) {
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m) {
        Accumulator factors;
        wmma::load_matrix_sync(factors, s_factors + (warp_row + m * ATOM) * FACTOR_PITCH, FACTOR_PITCH, wmma::mem_row_major);
#pragma unroll
        for (int n = 0; n < O_FRAGS; ++n)
#pragma unroll
            for (int i = 0; i < factors.num_elements; ++i) o[m][n].x[i] *= factors.x[i];
    }
}

// O += P V over the warp's rows and columns.
__device__ __forceinline__ void weighted_values(OutputFragments& o, const Element* s_p, const Element* s_v, int warp_row,
                                                int warp_column) {
    const Element* s_warp_p = of_warp(s_p, warp_row * Cfg::P_PITCH);
    const Element* s_warp_v = of_warp(s_v, warp_column * O_FRAGS * ATOM);
#pragma unroll
    for (int step = 0; step < V_STEPS; ++step) {
        QueryFragment a[M_FRAGS];
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
            wmma::load_matrix_sync(a[m], s_warp_p + m * ATOM * Cfg::P_PITCH + step * ATOM, Cfg::P_PITCH);
#pragma unroll
        for (int n = 0; n < O_FRAGS; ++n) {
            ValueFragment b;
            wmma::load_matrix_sync(b, s_warp_v + step * ATOM * Cfg::ROW_HALVES + n * ATOM, Cfg::ROW_HALVES);
#pragma unroll
            for (int m = 0; m < M_FRAGS; ++m) wmma::mma_sync(o[m][n], a[m], b, o[m][n]);
        }
    }
}

// ---- softmax -----------------------------------------------------------------------------------------------------------------------
// Combines a value over the THREADS_PER_ROW neighbouring lanes of a row.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int offset = 1; offset < Cfg::THREADS_PER_ROW; offset *= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int offset = 1; offset < Cfg::THREADS_PER_ROW; offset *= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

struct RowState {
    float maximum[PASSES];  // running row maximum of S, the same in all lanes of the row
    float sum[PASSES];      // this lane's share of the running row sum of P
};

// S becomes P; returns the factor for what was summed under an older, smaller maximum.
__device__ __forceinline__ float softmax_row(const float* s_score_row, unsigned char* s_probability_row, float& row_maximum,
                                             float& sum, int visible_columns, float scale, int row_lane) {
    float2 s[PAIRS];
    float maximum = row_maximum;
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        const int column = 2 * (j * Cfg::THREADS_PER_ROW + row_lane);
        s[j] = *reinterpret_cast<const float2*>(s_score_row + column);
        if (column >= visible_columns) s[j].x = negative_infinity();
        if (column + 1 >= visible_columns) s[j].y = negative_infinity();
        maximum = fmaxf(maximum, fmaxf(s[j].x, s[j].y));
    }
    maximum = row_max(maximum);
    const float subtrahend = finite_max(maximum) * scale;
    const float rescale = exp2_approx(fmaf(row_maximum, scale, -subtrahend));
    row_maximum = maximum;
    sum *= rescale;
    if constexpr (P_OVER_SCORES) __syncwarp();  // the row's lanes have read all of S before any of them overwrites it
#pragma unroll
    for (int j = 0; j < PAIRS; ++j) {
        const float low = exp2_approx(fmaf(s[j].x, scale, -subtrahend));
        const float high = exp2_approx(fmaf(s[j].y, scale, -subtrahend));
        sum += low + high;
        reinterpret_cast<unsigned*>(s_probability_row)[j * Cfg::THREADS_PER_ROW + row_lane] = pack_16bit(low, high);
    }
    return rescale;
}

// Leaves the factor where the products find it: in 16 equal columns, or multiplied into the row of O.
__device__ __forceinline__ void hand_on_factor(float factor, float* s_factors_or_o, int row, int row_lane) {
    if constexpr (O_IN_FRAGMENTS) {
#pragma unroll
        for (int column = row_lane; column < ATOM; column += Cfg::THREADS_PER_ROW)
            s_factors_or_o[row * FACTOR_PITCH + column] = factor;
    } else {
#pragma unroll
        for (int column = 2 * row_lane; column < Cfg::HEAD_DIM; column += 2 * Cfg::THREADS_PER_ROW) {
            float2& pair = *reinterpret_cast<float2*>(s_factors_or_o + row * Cfg::O_PITCH + column);
            pair = make_float2(pair.x * factor, pair.y * factor);
        }
    }
}

// Normalises a row of O and stores it, 16 bytes a lane in turn. A row that saw no key has sum 0 and yields zeros.
__device__ __forceinline__ void store_row(const float* s_o_row, float sum, unsigned short* g_row, int row_lane) {
    const float inverse = sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f;
#pragma unroll
    for (int chunk = row_lane; chunk < ROW_CHUNKS; chunk += Cfg::THREADS_PER_ROW) {
        const float4 low = *reinterpret_cast<const float4*>(s_o_row + chunk * CHUNK);
        const float4 high = *reinterpret_cast<const float4*>(s_o_row + chunk * CHUNK + 4);
        *reinterpret_cast<uint4*>(g_row + chunk * CHUNK) =
            make_uint4(pack_16bit(low.x * inverse, low.y * inverse), pack_16bit(low.z * inverse, low.w * inverse),
                       pack_16bit(high.x * inverse, high.y * inverse), pack_16bit(high.z * inverse, high.w * inverse));
    }
}

// ---- kernel ----------------------------------------------------------------------------------------------------------------------
// grid: (query tiles, heads, batch).
extern "C" __global__ void __launch_bounds__(Cfg::LAUNCH_THREADS, Cfg::MIN_CTAS)
evo_attention(const __grid_constant__ AttentionParams p) {
    extern __shared__ __align__(128) unsigned char smem[];
    __builtin_assume(threadIdx.x < Cfg::LAUNCH_THREADS);  // divisions of what may be negative take four instructions, not one

    const int thread = threadIdx.x;
    const int warp_row = thread / WARP / Cfg::WARPS_N * M_FRAGS * ATOM;  // first row of this warp inside the CTA's tile
    const int warp_column = thread / WARP % Cfg::WARPS_N;
    const int row_lane = thread % Cfg::THREADS_PER_ROW;
    const int pass_row = thread / Cfg::THREADS_PER_ROW;
    const int cta_row = blockIdx.x * Cfg::BLOCK_M;
    const int kv_head = blockIdx.y / p.heads_per_kv_head;

    const unsigned short* g_q = static_cast<const unsigned short*>(p.q) + blockIdx.z * p.q_batch_stride + blockIdx.y * p.q_head_stride;
    const unsigned short* g_k = static_cast<const unsigned short*>(p.k) + blockIdx.z * p.k_batch_stride + kv_head * p.k_head_stride;
    const unsigned short* g_v = static_cast<const unsigned short*>(p.v) + blockIdx.z * p.v_batch_stride + kv_head * p.v_head_stride;
    unsigned short* g_o = static_cast<unsigned short*>(p.o) + blockIdx.z * p.o_batch_stride + blockIdx.y * p.o_head_stride;

    const Element* s_q = reinterpret_cast<const Element*>(smem);
    float* s_scores = reinterpret_cast<float*>(smem + S_OFFSET);
    unsigned char* s_probabilities = smem + P_OFFSET;
    float* s_rest = reinterpret_cast<float*>(smem + REST_OFFSET);

    // Keys past the last one that any row of the CTA sees are never loaded.
    const int last_row = min(cta_row + Cfg::BLOCK_M, p.seq_q) - 1;
    const int visible_keys = Cfg::CAUSAL ? min(p.seq_kv, last_row + 1 + p.seq_kv - p.seq_q) : p.seq_kv;
    const int tiles = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;

    auto copy_kv = [&](const unsigned short* g_tensor, int row_stride, int ring_offset, int index) {
        if (index < tiles) {
            const int first_key = index * Cfg::BLOCK_N;
            copy_tile<Cfg::BLOCK_N>(smem + ring_offset + index % Cfg::STAGES * TILE_BYTES,
                                    g_tensor + static_cast<long long>(first_key) * row_stride, row_stride,
                                    p.seq_kv - first_key, thread);
        }
        commit_copies();  // also when empty: the waits below count groups
    };

    // Groups of copies, in order: Q, K0 V0 K1 V1 … (STAGES pairs), then in the loop V and K in turn.
    copy_tile<Cfg::BLOCK_M>(smem, g_q + static_cast<long long>(cta_row) * p.q_row_stride, p.q_row_stride, p.seq_q - cta_row, thread);
    commit_copies();
#pragma unroll
    for (int stage = 0; stage < Cfg::STAGES; ++stage) {
        copy_kv(g_k, p.k_row_stride, K_OFFSET, stage);
        copy_kv(g_v, p.v_row_stride, V_OFFSET, stage);
    }
    if (scale_is_negative(p)) {
        wait_for_copies<2 * Cfg::STAGES>();  // for this thread's chunks of Q
        negate_queries(smem, thread);
    }

    RowState rows;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        rows.maximum[pass] = negative_infinity();
        rows.sum[pass] = 0.0f;
    }
    OutputFragments o;
#pragma unroll
    for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
        for (int n = 0; n < O_FRAGS; ++n) wmma::fill_fragment(o[m][n], 0.0f);
    if constexpr (!O_IN_FRAGMENTS) store_output(s_rest, o, warp_row, warp_column);

    QueryFragment q[Q_IN_FRAGMENTS ? M_FRAGS : 1][K_STEPS];
    if constexpr (Q_IN_FRAGMENTS) {
        wait_for_copies<2 * Cfg::STAGES>();
        __syncthreads();  // Q, copied by all threads, is visible to all of them
#pragma unroll
        for (int m = 0; m < M_FRAGS; ++m)
#pragma unroll
            for (int step = 0; step < K_STEPS; ++step) load_query(q[m][step], s_q, warp_row, m, step);
    }

#pragma unroll Cfg::UNROLL
    for (int index = 0; index < tiles; ++index) {
        const int first_key = index * Cfg::BLOCK_N;
        const unsigned char* s_slot = smem + index % Cfg::STAGES * TILE_BYTES;

        if (index == 0) {
            wait_for_copies<2 * Cfg::STAGES - 1>();
        } else {
            wait_for_copies<2 * Cfg::STAGES - 2>();
        }
        __syncthreads();  // A: Q and K of this tile are visible; all warps are done with S, P, factors and V of the last tile
        if (index > 0) copy_kv(g_v, p.v_row_stride, V_OFFSET, index - 1 + Cfg::STAGES);

        scores(s_scores, q, s_q, reinterpret_cast<const Element*>(s_slot + K_OFFSET), warp_row, warp_column);
        __syncthreads();  // B: S (and O, where it is kept there) is visible; all warps are done with K of this tile
        copy_kv(g_k, p.k_row_stride, K_OFFSET, index + Cfg::STAGES);

#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int row = pass * ROWS_PER_PASS + pass_row;
            const int query = cta_row + row;
            const int visible = Cfg::CAUSAL ? min(p.seq_kv, query + 1 + p.seq_kv - p.seq_q) : p.seq_kv;
            const float factor = softmax_row(s_scores + row * Cfg::S_PITCH, s_probabilities + row * Cfg::P_PITCH * 2,
                                             rows.maximum[pass], rows.sum[pass], visible - first_key, p.positive_scale, row_lane);
            hand_on_factor(factor, s_rest, row, row_lane);
        }

        wait_for_copies<2 * Cfg::STAGES - 1>();
        __syncthreads();  // C: V of this tile is visible, and so are P and the factors, or the rescaled O
        if constexpr (O_IN_FRAGMENTS) {
            rescale_output(o, s_rest, warp_row);
        } else {
            load_output(o, s_rest, warp_row, warp_column);
        }
        weighted_values(o, reinterpret_cast<const Element*>(s_probabilities), reinterpret_cast<const Element*>(s_slot + V_OFFSET),
                        warp_row, warp_column);
        if constexpr (!O_IN_FRAGMENTS) store_output(s_rest, o, warp_row, warp_column);
    }

    float* s_o = s_rest;
    if constexpr (O_IN_FRAGMENTS) {
        s_o = reinterpret_cast<float*>(smem);
        wait_for_copies<0>();
        __syncthreads();  // D: all warps are done with shared memory, whose bytes take O
        store_output(s_o, o, warp_row, warp_column);
    }
    __syncthreads();  // E: O of all warps is visible to all threads
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const int row = pass * ROWS_PER_PASS + pass_row;
        const float sum = row_sum(rows.sum[pass]);
        if (cta_row + row < p.seq_q)
            store_row(s_o + row * Cfg::O_PITCH, sum, g_o + static_cast<long long>(cta_row + row) * p.o_row_stride, row_lane);
    }
}
