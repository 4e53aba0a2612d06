// EvoEngine, family wgmma, template 0000000000000000: BLOCK_N=32 CACHE_OP=cg EPILOGUE=direct EXP2_POLY=0 EXP_WITH_PV=False KEY_ORDER=forward L2_PREFETCH_BYTES=0 MAXRREGCOUNT=0 MERGE=rows MIN_CTAS=1 OVERLAP=False PACK_GQA=False PEEL_FIRST=False PERSISTENT=False PV_KEYS=16 STAGES_K=1 STAGES_V=1 STORE_OP=plain TILE_ORDER=natural UNROLL=1 WARPS_M=4 WARPS_N=1
// Fused attention forward on Hopper's warpgroup tensor cores (wgmma): O = softmax(logits) V, logits = scale · Q Kᵀ.
//
// The plan of family mma: WARPS_N key groups are FlashAttention streams of their own (Dao et al. 2022, section 3.1), each over
// its share of the key tiles, and merge their results at the end (MERGE). A group's WARPS_M warps are whole warpgroups of 64
// rows. Q, K and V go from shared memory to the tensor cores past the registers; S, P and O stay in registers. With PACK_GQA the
// rows are those of all query heads that share a K/V head. With PERSISTENT a CTA takes one piece of work after the other.
//
//   a tile's life, in its group            with OVERLAP, tile j
//     copy K and V into the rings            wait for K(j), barrier; copy further tiles; start S(j) = Q Kᵀ(j)
//     wait for K, proxy fence, barrier A     wait for V(j-1), barrier; start O += P(j-1) V(j-1)
//     S = Q Kᵀ; softcap, mask, maxima        wait for S(j); softcap, mask, P(j) = 2^(S - maximum), beside that product
//     P = 2^(S - maximum)                    wait for O; O = O · rescale
//     wait for V, proxy fence, barrier B
//     O += P V
//
// Barrier A makes the tile's K visible to the group, and frees the slot of the last tile's V; barrier B makes V visible, and frees
// the slot of the tile's K. What cp.async has written is read through the async proxy, hence the fence before each of them.
//
// Shared memory: [Q tile] [group 0: ring of STAGES_K tiles of K, ring of STAGES_V tiles of V] [group 1: …]. At the end the groups'
// partial results take the rings' bytes; with one group, a staged tile of O takes those of Q and of its rings. A tile is panels of
// 64 columns, [rows][128 bytes] with the 128-byte swizzle of wgmma (wgmma/panel_tile.cuh).

struct Cfg {
    // Tunables.
    static constexpr int WARPS_M = 4;  // warps: warps over query rows: the warpgroups of one key group
    static constexpr int WARPS_N = 1;  // warpgroups: key groups: warps over keys, merged through shared memory at the end
    static constexpr int BLOCK_N = 32;  // keys: keys in one tile of one key group
    static constexpr bool PACK_GQA = false;  // switch: fill a query tile with the rows of all query heads that share a K/V head
    static constexpr int KEY_ORDER_FORWARD = 0, KEY_ORDER_BACKWARD = 1;
    static constexpr int KEY_ORDER = KEY_ORDER_FORWARD;  // order: walk over the keys from the first tile, or from the last, where a mask's edge lies
    static constexpr int TILE_ORDER_NATURAL = 0, TILE_ORDER_LONGEST_FIRST = 1, TILE_ORDER_FOLDED = 2;
    static constexpr int TILE_ORDER = TILE_ORDER_NATURAL;  // order: which query tiles start first: as they come, under a causal mask those that see the most keys, or long and short ones in turn
    static constexpr bool PERSISTENT = false;  // switch: launch MIN_CTAS CTAs per SM that walk over the work, instead of a CTA for each piece
    static constexpr int STAGES_K = 1;  // tiles: cp.async depth for K: slots in a key group's K ring
    static constexpr int STAGES_V = 1;  // tiles: cp.async depth for V: slots in a key group's V ring
    static constexpr int CACHE_OP_CG = 0, CACHE_OP_CA = 1;
    static constexpr int CACHE_OP = CACHE_OP_CG;  // cp.async operator: cache K and V in L2 only, or in L1 too
    static constexpr int L2_PREFETCH_BYTES = 0;  // bytes: L2 prefetch size that cp.async asks for
    static constexpr int STORE_OP_PLAIN = 0, STORE_OP_STREAMING = 1;
    static constexpr int STORE_OP = STORE_OP_PLAIN;  // st operator: store O as usual, or as data that is not needed again (st.global.cs)
    static constexpr bool EXP_WITH_PV = false;  // switch: make each 16 keys' exponentials just before their P·V is started, to overlap the two, instead of all before V is waited for
    static constexpr bool OVERLAP = false;  // switch: start a tile's scores with the P V of the tile before, and make its softmax beside that
    static constexpr int PV_KEYS = 16;  // keys: keys whose P V is started at once
    static constexpr int EXP2_POLY = 0;  // %: share of the exponentials that a polynomial on the FMA pipe makes instead of the special-function unit
    static constexpr bool PEEL_FIRST = false;  // switch: compute the first key tile apart from the loop, without rescaling what is still zero
    static constexpr int MERGE_ROWS = 0, MERGE_THREADS = 1;
    static constexpr int MERGE = MERGE_ROWS;  // way: merge the key groups row by row, or thread to thread, each group a share of the columns
    static constexpr int EPILOGUE_DIRECT = 0, EPILOGUE_SHARED = 1;
    static constexpr int EPILOGUE = EPILOGUE_DIRECT;  // path: store O from the fragments, 4 bytes a lane, or through shared memory, 16 bytes a lane
    static constexpr int MIN_CTAS = 1;  // CTAs: CTAs per SM that __launch_bounds__ asks for: caps the registers
    static constexpr int MAXRREGCOUNT = 0;  // registers: register cap per thread, 0 for none
    static constexpr int UNROLL = 1;  // iterations: unrolling of the loop over key tiles
    // Derived from them.
    static constexpr int THREADS = 128;  // threads: threads per CTA
    static constexpr int BLOCK_M = 64;  // rows: query rows per CTA
    static constexpr int ROW_HALVES = 64;  // halves: pitch of a shared-memory row: whole lines of the swizzle
    static constexpr int RING_BYTES = 8192;  // bytes: K and V rings of one key group
    static constexpr int MERGE_GROUP_BYTES = 0;  // bytes: partial result of one key group: O in f32, row pitch an odd number of eights, then maximum and sum
    static constexpr int Q_BYTES = 8192;  // bytes: Q tile, or O tile on its way out
    static constexpr int GROUP_BYTES = 8192;  // bytes: rings of one key group, or what takes their bytes at the end
    static constexpr int SMEM_BYTES = 16384;  // bytes: shared memory per CTA
    static constexpr int LIVE_REGISTERS = 96;  // registers: estimate per thread: O, S and P, and 40 for addresses, masks and loop state
    static constexpr int SPLITS = 1;  // CTAs: CTAs that share the keys of a query tile
    static constexpr int M_ATOMS = 1;  // 16-row atoms: query rows of one warp
    static constexpr int PERSISTENT_CTAS = 0;  // CTAs: most CTAs of a persistent grid
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
    static constexpr int LAUNCH_THREADS = 128;  // threads per CTA
    static constexpr int LAUNCH_SMEM_BYTES = 16384;  // bytes of dynamic shared memory per CTA
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
// ---- addresses -------------------------------------------------------------------------------------------------------------

// Hides from the compiler how an address was computed, so that addresses at constant distances from it become offsets of
// instructions. Without this, the compiler computes each of them from pointer and strides, in up to six instructions.
template <typename T>
__device__ __forceinline__ T* settled(T* address) {
    asm("" : "+l"(address));
    return address;
}
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
// ---- tensor cores: fragments of m16n8k16 and the loads that fill them --------------------------------------------------
// A lane is (g, t) = (lane / 4, lane % 4). Two 16-bit values share a register, the lower column in the lower half.
//   A[16x16]: a[0] = (row g, cols 2t..)   a[1] = (row g+8, cols 2t..)   a[2], a[3] = the same rows, cols 2t+8..
//   B[16x8]:  b[0] = (rows 2t.., col g)   b[1] = (rows 2t+8.., col g)
//   D[16x8]:  d[0], d[1] = (row g, cols 2t, 2t+1)   d[2], d[3] = (row g+8, the same cols)

// D[16x8] = A[16x16] · B[16x8] + C[16x8], products exact, sums in f32.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float c0,
                                            float c1, float c2, float c3) {
#define EVO_MMA(TYPE)                                                                                            \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%10, %11, %12, %13};"                                                                                  \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3))
    if constexpr (Cfg::IS_BF16) {
        EVO_MMA("bf16");
    } else {
        EVO_MMA("f16");
    }
#undef EVO_MMA
}

// D += A · B.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_16x8x16(d, a, b0, b1, d[0], d[1], d[2], d[3]);
}

// D = A · B: the zeros come with the instruction and need not be written into D before.
__device__ __forceinline__ void mma_16x8x16_first(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_16x8x16(d, a, b0, b1, 0.0f, 0.0f, 0.0f, 0.0f);
}

// Loads four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrix_x4(unsigned (&r)[4], unsigned smem_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address)
                 : "memory");
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void load_matrix_x4_transposed(unsigned (&r)[4], unsigned smem_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address)
                 : "memory");
}
// ---- shared-memory tiles as wgmma reads them: [rows][HEAD_DIM] of 16-bit values ---------------------------------------------

constexpr int CHUNK_BYTES = 16;                        // what one cp.async moves
constexpr int CHUNKS = Cfg::HEAD_DIM / 8;              // chunks in a row of the tensor
constexpr int FILLED_CHUNKS = (CHUNKS + 1) / 2 * 2;    // the same with zeros up to a whole tensor-core step of 16 columns
constexpr int ROW_BYTES = Cfg::ROW_HALVES * 2;         // bytes of a row, whole panels
constexpr int PANELS = ROW_BYTES / 128;                // of 64 columns
constexpr int ATOM_BYTES = 8 * 128;                    // eight rows of one panel
constexpr int EIGHT_ROWS_BYTES = PANELS * ATOM_BYTES;  // from one group of eight rows to the next

// Byte offset of a chunk. wgmma's 128-byte swizzle works on blocks of eight rows of 128 bytes, whose 16-byte chunks are XORed
// with the row; a wider row has one block for each of its panels, side by side.
__device__ __forceinline__ int tile_offset(int row, int chunk) {
    return row / 8 * EIGHT_ROWS_BYTES + chunk / 8 * ATOM_BYTES + row % 8 * 128 + ((chunk ^ row) & 7) * CHUNK_BYTES;
}

static_assert(FILLED_CHUNKS * CHUNK_BYTES <= ROW_BYTES && ROW_BYTES % 128 == 0, "a row is whole panels and holds its chunks");

// Descriptor of a tile from an address in it: 128-byte swizzle, groups of eight rows EIGHT_ROWS_BYTES apart, panels ATOM_BYTES.
__device__ __forceinline__ unsigned long long tile_descriptor(unsigned smem_address) {
    constexpr unsigned long long FIXED = 1ull << 62 | static_cast<unsigned long long>(EIGHT_ROWS_BYTES / 16) << 32 |
                                         static_cast<unsigned long long>(ATOM_BYTES / 16) << 16;
    return FIXED | (smem_address & 0x3ffff) >> 4;
}
// ---- copies of tiles from global to shared memory, 16 bytes a thread ------------------------------------------------------------

// Copies tiles of ROWS rows of a matrix by THREADS threads. A thread copies the same 16-byte chunk of a row in all rows and tiles;
// the threads that are left over after whole rows idle. The caller commits.
template <int ROWS, int THREADS>
struct TileCopy {
    static constexpr int ROWS_PER_STEP = THREADS / FILLED_CHUNKS;
    static constexpr int STEPS = (ROWS + ROWS_PER_STEP - 1) / ROWS_PER_STEP;
    static constexpr int COPIERS = ROWS_PER_STEP * FILLED_CHUNKS;  // threads that copy
    static_assert(ROWS_PER_STEP > 0, "the threads are enough for one row");

    int row;    // this thread's first row of a tile
    int chunk;  // and its chunk in all rows
    int bytes;  // of the matrix in it; none in a filling chunk, which becomes zeros
    bool copies;

    __device__ __forceinline__ explicit TileCopy(int thread)
        : row(thread / FILLED_CHUNKS), chunk(thread % FILLED_CHUNKS), bytes(chunk < CHUNKS ? CHUNK_BYTES : 0),
          copies(COPIERS == THREADS || thread < COPIERS) {}

    // Copies the tile that begins at row `first` of the matrix at `global`. Rows from `count` on become zeros: for them
    // nothing is read, but the address is valid.
    __device__ __forceinline__ void copy(unsigned smem_tile, const unsigned short* global, unsigned row_stride, int first,
                                         int count) const {
        if (!copies) return;
        const char* own = reinterpret_cast<const char*>(settled(global + min(chunk, CHUNKS - 1) * 8));
        const unsigned row_bytes = row_stride * 2;
        const int left = count - first - row;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int below = step * ROWS_PER_STEP;
            if (below + ROWS_PER_STEP > ROWS && row + below >= ROWS) break;
            const unsigned source = min(first + row + below, count - 1);
            copy_async_16(smem_tile + tile_offset(row + below, chunk), own + static_cast<unsigned long long>(source) * row_bytes,
                          below < left ? bytes : 0);
        }
    }
};
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
// ---- softcap: logits bounded by a tanh, in base 2 ----------------------------------------------------------------------------

__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// cap · tanh(argument_scale · s), with tanh(x) = 1 - 2 / (2^(2x·log2 e) + 1): absolute error 3e-7 · cap, where tanh.approx has
// 5e-4. The exponential overflows to infinity or vanishes where tanh is 1 or -1.
__device__ __forceinline__ float softcap(float s, float argument_scale, float cap) {
    const float reciprocal = reciprocal_approx(exp2_approx(s * (argument_scale * 2.885390082f)) + 1.0f);
    return fmaf(-2.0f * cap, reciprocal, cap);
}
// ---- derived constants ---------------------------------------------------------------------------------------------------
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int WARP = 32;
constexpr int WARPGROUP_ROWS = 64;
constexpr int GROUP_THREADS = Cfg::WARPS_M * WARP;
constexpr int WARP_ROWS = 16;                            // query rows of one warp
constexpr int K_STEPS = FILLED_CHUNKS / 2;               // tensor-core steps over head_dim in S = Q Kᵀ
constexpr int KEY_TILES = Cfg::BLOCK_N / 8;              // eights of columns of S
constexpr int D_TILES = Cfg::HEAD_DIM / 8;               // eights of columns of O
constexpr int TILE_BYTES = Cfg::BLOCK_N * ROW_BYTES;     // one slot of a ring
constexpr int K_RING_BYTES = Cfg::STAGES_K * TILE_BYTES;
constexpr int V_RING_BYTES = Cfg::STAGES_V * TILE_BYTES;
constexpr int PROLOGUE_PAIRS = larger(Cfg::STAGES_K, Cfg::STAGES_V);

constexpr int Q_BYTES = Cfg::BLOCK_M * ROW_BYTES;

constexpr bool SUM_ON_TENSOR = false;
constexpr bool LAZY_RESCALE = true;
constexpr bool MAXIMA_OF_THREE = true;  // Hopper compares three integers at once
constexpr bool SPLIT = false;                            // one CTA sees all keys of its rows
constexpr bool STAGED = Cfg::EPILOGUE == Cfg::EPILOGUE_SHARED && Cfg::WARPS_N == 1;
constexpr int SHARE = (D_TILES + Cfg::WARPS_N - 1) / Cfg::WARPS_N;  // tiles of O that a key group ends
constexpr int MERGE_PITCH = Cfg::HEAD_DIM / 16 * 16 + 8; // floats; an odd number of eights: eight rows, different banks
constexpr int MERGE_BYTES = Cfg::WARPS_N == 1 ? 0 : Cfg::BLOCK_M * (MERGE_PITCH + 2) * 4;  // O, then (maximum, sum) a row
constexpr int EXCHANGE_BYTES = Cfg::WARPS_N * (1 + SHARE) * GROUP_THREADS * 16;            // merging by threads instead
constexpr int GROUP_BYTES =
    (larger(larger(K_RING_BYTES + V_RING_BYTES, MERGE_BYTES), STAGED ? Q_BYTES : 0) + ATOM_BYTES - 1) / ATOM_BYTES * ATOM_BYTES;
constexpr int SMEM_BYTES = Q_BYTES + Cfg::WARPS_N * GROUP_BYTES;

static_assert(Cfg::WARPS_M % 4 == 0 && Cfg::BLOCK_M == Cfg::WARPS_M * WARP_ROWS, "BLOCK_M is the rows of whole warpgroups");
static_assert(Cfg::LAUNCH_THREADS == Cfg::WARPS_N * GROUP_THREADS, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == SMEM_BYTES, "host and kernel disagree on shared memory");
static_assert(Cfg::HEAD_DIM % 8 == 0 && Cfg::BLOCK_N % 16 == 0, "rows are 16-byte chunks; P V takes 16 keys at once");
static_assert(Cfg::MERGE == Cfg::MERGE_ROWS || EXCHANGE_BYTES <= GROUP_BYTES, "what a group sends takes the bytes of its rings");
static_assert(Cfg::WARPS_N <= 15, "hardware barrier 0 is the CTA's, 1 to 15 are the groups'");

// ---- barriers --------------------------------------------------------------------------------------------------------------
// Waits for all warps of one key group, and makes their shared-memory accesses and finished copies visible to each other.
__device__ __forceinline__ void group_barrier(int group) {
    if constexpr (Cfg::WARPS_N == 1) {
        __syncthreads();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
    }
}
// ---- warpgroup tensor cores: wgmma.m64nNk16 of 128 threads --------------------------------------------------------------------
// Accumulators lie as those of mma.m16n8k16: warp w of the warpgroup holds rows 16 w to 16 w + 15, four values for each eight
// columns. B, and A where it is not in registers, are read from shared memory through descriptors, by the asynchronous proxy.
// All 16-deep steps of a product are one statement: NVRTC's time grows with the statements that name all accumulators.
// The first instruction of a statement writes accumulators before the last one reads its operands; operands have other types than
// accumulators, so that they share no PTX register.

// Orders register and shared-memory accesses before the wgmma's that follow.
__device__ __forceinline__ void warpgroup_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// After the next barrier, wgmma sees what this thread wrote, or copied with cp.async and waited for.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Keeps the compiler from moving accesses to accumulators, or to operands in registers, across a point where the tensor
// cores may be at them, and from giving an operand's registers to something else until then.
template <int TILES>
__device__ __forceinline__ void pin(float (&d)[TILES][4]) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[tile][i])::"memory");
}
template <int STEPS>
__device__ __forceinline__ void pin(unsigned (&a)[STEPS][4]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[step][i])::"memory");
}

// S[64 x BLOCK_N] = A[64 x HEAD_DIM] · B[BLOCK_N x HEAD_DIM]ᵀ; each step has a descriptor of B, and a descriptor or registers of A
__device__ __forceinline__ void wgmma_scores(float (&d)[KEY_TILES][4], const unsigned long long (&a)[K_STEPS],
                                             const unsigned long long (&b)[K_STEPS]) {
    asm volatile("{\n.reg .pred more;\n"
                 "setp.ne.b32 more, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %20, more, 1, 1, 0, 0;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%17, %21, more, 1, 1, 0, 0;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%18, %22, more, 1, 1, 0, 0;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%19, %23, more, 1, 1, 0, 0;\n"
                 "}"
                 : "=f"(d[0][0]), "=f"(d[0][1]), "=f"(d[0][2]), "=f"(d[0][3]), "=f"(d[1][0]), "=f"(d[1][1]), "=f"(d[1][2]), "=f"(d[1][3]), "=f"(d[2][0]), "=f"(d[2][1]), "=f"(d[2][2]), "=f"(d[2][3]), "=f"(d[3][0]), "=f"(d[3][1]), "=f"(d[3][2]), "=f"(d[3][3])
                 : "l"(a[0]), "l"(a[1]), "l"(a[2]), "l"(a[3]), 
"l"(b[0]), "l"(b[1]), "l"(b[2]), "l"(b[3]));

}
// O[64 x HEAD_DIM] += A[64 x BLOCK_N] · B[BLOCK_N x HEAD_DIM], A in registers
__device__ __forceinline__ void wgmma_values(float (&d)[D_TILES][4], const unsigned (&a)[KEY_TILES / 2][4],
                                             const unsigned long long (&b)[KEY_TILES / 2]) {
    asm volatile("{\n.reg .pred more;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %40, more, 1, 1, 1;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%36, %37, %38, %39}, %41, more, 1, 1, 1;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]), 
"l"(b[0]), "l"(b[1]));

}
// The same for one step.
__device__ __forceinline__ void wgmma_values(float (&d)[D_TILES][4], const unsigned (&registers)[4], unsigned long long descriptor) {
    const unsigned a[1][4] = {{registers[0], registers[1], registers[2], registers[3]}};
    const unsigned long long b[1] = {descriptor};
    asm volatile("{\n.reg .pred more;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, more, 1, 1, 1;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), 
"l"(b[0]));

}
// ---- rows: the queries of one piece of work, where they lie, and which keys they see ------------------------------------------
// Work is cut into (query tile, head, sequence, split). Rows are queries of one head; with PACK_GQA a tile belongs to a K/V
// head and the query heads that share it take turns: row = query · group + head of the group. Neighbouring rows then see
// (almost) the same keys, and few queries still fill a tile.
// Counts are unsigned where they are divided, or multiplied by 64-bit strides, because that is cheaper.
struct Work {
    int tile;
    unsigned head;      // query head; with PACK_GQA, K/V head
    unsigned sequence;
    unsigned split;     // which share of the tile's keys
};

__device__ __forceinline__ int rows_per_query(const AttentionParams& p) { return Cfg::PACK_GQA ? p.heads_per_kv_head : 1; }
__device__ __forceinline__ int work_heads(const AttentionParams& p) { return p.heads / rows_per_query(p); }

// The rows of one sequence and head (or group of heads), where they lie, and what each of them sees.
struct Rows {
    const AttentionParams& p;
    unsigned sequence;
    unsigned head;    // first query head
    unsigned kv_head;
    int group;        // heads that take turns in the rows
    unsigned inverse; // (2^32 - 1) / group
    int queries;      // of this sequence
    int keys;
    int first_query;  // where the sequence starts in memory
    const unsigned short* g_q;  // first query of the first head; strides are in elements
    const unsigned short* g_k;  // first key
    const unsigned short* g_v;
    unsigned short* g_o;

    __device__ __forceinline__ Rows(const AttentionParams& p, const Work& work)
        : p(p), sequence(work.sequence), group(rows_per_query(p)), inverse(0xffffffffu / group), queries(p.seq_q), keys(p.seq_kv),
          first_query(0) {
        head = work.head * group;
        const bool alone = Cfg::PACK_GQA || p.heads_per_kv_head == 1;  // a division takes longer than this test
        kv_head = alone ? work.head : work.head / p.heads_per_kv_head;
        g_q = static_cast<const unsigned short*>(p.q) + sequence * p.q_batch_stride + head * p.q_head_stride;
        g_k = static_cast<const unsigned short*>(p.k) + sequence * p.k_batch_stride + kv_head * p.k_head_stride;
        g_v = static_cast<const unsigned short*>(p.v) + sequence * p.v_batch_stride + kv_head * p.v_head_stride;
        g_o = static_cast<unsigned short*>(p.o) + sequence * p.o_batch_stride + head * p.o_head_stride;
        if constexpr (Cfg::PACKED) {
            first_query = p.cu_seqlens_q[sequence];
            queries = p.cu_seqlens_q[sequence + 1] - first_query;
            const int first_key = p.cu_seqlens_kv[sequence];
            keys = p.cu_seqlens_kv[sequence + 1] - first_key;
            g_q += static_cast<long long>(first_query) * p.q_row_stride;
            g_k += static_cast<long long>(first_key) * p.k_row_stride;
            g_v += static_cast<long long>(first_key) * p.v_row_stride;
            g_o += static_cast<long long>(first_query) * p.o_row_stride;
        }
    }

    __device__ __forceinline__ int count() const { return queries * group; }
    // row / group, exact while (row + 1) · group is at most 2^32: A. D. Robison, N-bit unsigned division via N-bit multiply-add,
    // ARITH 2005. A division takes some twenty instructions, and a mask needs the query of each row in each tile.
    // Not mul.hi: ptxas 13.0 fuses it with the additions in begin_of and end_of, and once used one sum in place of the other.
    __device__ __forceinline__ int query(int row) const {
        if constexpr (!Cfg::PACK_GQA) return row;
        int quotient;
        asm("{\n.reg .b32 low;\n.reg .b64 product;\nmul.wide.u32 product, %1, %2;\nmov.b64 {low, %0}, product;\n}"
            : "=r"(quotient)
            : "r"(row + 1), "r"(inverse));
        return quotient;
    }
    __device__ __forceinline__ int turn(int row) const { return Cfg::PACK_GQA ? row - query(row) * group : 0; }  // row % group

    // A query sees the keys [begin_of, end_of); none where end_of <= begin_of.
    __device__ __forceinline__ int begin_of(int query) const {
        return Cfg::HAS_WINDOW_LEFT ? max(0, query + keys - queries - p.window_left) : 0;
    }
    __device__ __forceinline__ int end_of(int query) const {
        if constexpr (Cfg::CAUSAL) return min(keys, query + 1 + keys - queries);
        if constexpr (Cfg::HAS_WINDOW_RIGHT) return min(keys, query + 1 + keys - queries + p.window_right);
        return keys;
    }

    __device__ __forceinline__ const unsigned short* q(int row) const {
        return g_q + turn(row) * p.q_head_stride + static_cast<long long>(query(row)) * p.q_row_stride;
    }
    __device__ __forceinline__ unsigned short* o(int row) const {
        return g_o + turn(row) * p.o_head_stride + static_cast<long long>(query(row)) * p.o_row_stride;
    }
    __device__ __forceinline__ float* lse(int row) const {
        return p.lse + sequence * p.lse_batch_stride + (head + turn(row)) * p.lse_head_stride + first_query + query(row);
    }
    __device__ __forceinline__ float sink(int row) const { return p.sink[head + turn(row)]; }
};
// ---- work: which rows and keys a CTA computes ------------------------------------------------------------------------------
__device__ __forceinline__ int query_tiles(const AttentionParams& p) {  // of the longest sequence
    return (p.seq_q * rows_per_query(p) + Cfg::BLOCK_M - 1) / Cfg::BLOCK_M;
}

// Under a causal mask, tiles near the end see the most keys. "Longest first" reverses their order. "Folded" reverses the order of
// the longer half, and continues with the shortest of the others, so that the two CTAs that an SM runs one after the other see
// about the same number of keys together.
__device__ __forceinline__ int tile_in_order(int place, int count) {
    if constexpr (Cfg::TILE_ORDER == Cfg::TILE_ORDER_NATURAL) return place;
    const int longer = (count + 1) / 2;
    if (Cfg::TILE_ORDER == Cfg::TILE_ORDER_FOLDED && place >= longer) return place - longer;
    return count - 1 - place;
}

// One CTA for each piece of work. Blocks start in the order of x, then y, then z. Orders other than "natural" have the tiles on
// the last axis, so that the long tiles of all heads start before any short one.
__device__ __forceinline__ Work work_of_block() {
    if constexpr (Cfg::TILE_ORDER != Cfg::TILE_ORDER_NATURAL)
        return {tile_in_order(blockIdx.z, gridDim.z), blockIdx.x / Cfg::SPLITS, blockIdx.y, blockIdx.x % Cfg::SPLITS};
    return {static_cast<int>(blockIdx.x), blockIdx.y / Cfg::SPLITS, blockIdx.z, blockIdx.y % Cfg::SPLITS};
}

// The same orders, for a grid that walks over all work.
__device__ __forceinline__ int work_count(const AttentionParams& p) {
    return query_tiles(p) * work_heads(p) * p.batch * Cfg::SPLITS;
}
__device__ __forceinline__ Work work_of_number(const AttentionParams& p, unsigned number) {
    const unsigned tiles = query_tiles(p), columns = work_heads(p) * Cfg::SPLITS;
    const bool tiles_last = Cfg::TILE_ORDER != Cfg::TILE_ORDER_NATURAL;
    const unsigned place = tiles_last ? number / (columns * p.batch) : number % tiles;
    const unsigned rest = tiles_last ? number % (columns * p.batch) : number / tiles;
    const unsigned column = rest % columns;
    return {tile_in_order(place, tiles), column / Cfg::SPLITS, rest / columns, column % Cfg::SPLITS};
}

// The key tiles of one key group of one CTA. All rows of the CTA together see keys [begin, …); tiles start at `begin`, a
// split takes a run of them, and its groups take them in turn.
struct KeyTiles {
    int begin;  // first key of the split's first tile
    int tiles;  // of the split
    int group;
    int count;  // of the group

    __device__ __forceinline__ KeyTiles(const Rows& rows, int cta_row, int split, int group) : group(group) {
        const int last_row = min(cta_row + Cfg::BLOCK_M, rows.count()) - 1;
        begin = rows.begin_of(rows.query(cta_row));
        const int visible_keys = rows.end_of(rows.query(last_row)) - begin;
        tiles = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
        if constexpr (SPLIT) {  // as even as can be; some are empty where tiles are few
            const int first = tiles * split / Cfg::SPLITS;
            begin += first * Cfg::BLOCK_N;
            tiles = tiles * (split + 1) / Cfg::SPLITS - first;
        }
        count = tiles > group ? (tiles - group + Cfg::WARPS_N - 1) / Cfg::WARPS_N : 0;
    }

    // Backward begins with the tiles that the mask's edge crosses.
    __device__ __forceinline__ int first_key(int index) const {
        const int place = group + index * Cfg::WARPS_N;
        return begin + (Cfg::KEY_ORDER == Cfg::KEY_ORDER_BACKWARD ? tiles - 1 - place : place) * Cfg::BLOCK_N;
    }
};
// ---- Q fragments -------------------------------------------------------------------------------------------------------------
struct QueryFragments {
    unsigned r[Cfg::M_ATOMS][K_STEPS][4];  // A operands of this warp's rows
};

// Lane's ldmatrix address inside a tile for an A operand: matrices (rows 0-7, 8-15) × (chunk, chunk + 1).
__device__ __forceinline__ unsigned query_address(unsigned s_q, int warp_row, int atom, int step, int lane) {
    return s_q + tile_offset(warp_row + atom * 16 + (lane & 15), 2 * step + (lane >> 4));
}

__device__ __forceinline__ void load_queries_from_smem(QueryFragments& q, unsigned s_q, int warp_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
            load_matrix_x4(q.r[atom][step], query_address(s_q, warp_row, atom, step, lane));
}

__device__ __forceinline__ void negate_queries(QueryFragments& q) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) q.r[atom][step][i] ^= TWO_SIGNS;
}

// Each lane fetches its own fragment values, two halves at a time; rows and columns past the end become zeros.
__device__ __forceinline__ void load_queries_from_global(QueryFragments& q, const Rows& rows, int first_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + atom * 16 + half * 8 + (lane >> 2);
            const unsigned short* source = settled(rows.q(row) + (lane & 3) * 2);
#pragma unroll
            for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
                for (int column = 0; column < 2; ++column) {
                    const bool inside = row < rows.count() && 2 * step + column < CHUNKS;
                    q.r[atom][step][half + 2 * column] =
                        inside ? __ldg(reinterpret_cast<const unsigned*>(source + step * 16 + column * 8)) : 0u;
                }
        }
}

using QueryCopy = TileCopy<Cfg::BLOCK_M, Cfg::LAUNCH_THREADS>;

// All threads of the CTA start copying the Q tile; rows past the end become zeros. The caller commits.
__device__ __forceinline__ void copy_queries(unsigned s_q, const Rows& rows, int cta_row, int thread) {
    const QueryCopy copy(thread);
    if constexpr (Cfg::PACK_GQA) {  // neighbouring rows lie in different heads
        if (!copy.copies) return;
#pragma unroll 1
        for (int row = copy.row; row < Cfg::BLOCK_M; row += QueryCopy::ROWS_PER_STEP)
            copy_async_16(s_q + tile_offset(row, copy.chunk),
                          rows.q(min(cta_row + row, rows.count() - 1)) + min(copy.chunk, CHUNKS - 1) * 8,
                          cta_row + row < rows.count() ? copy.bytes : 0);
    } else {
        copy.copy(s_q, rows.g_q, rows.p.q_row_stride, cta_row, rows.count());
    }
}

// Negates the chunks of the Q tile that this thread copied: copy_queries deals them out alike in both of its ways.
__device__ __forceinline__ void negate_queries(unsigned char* s_q, int thread) {
    const QueryCopy copy(thread);
    if (!copy.copies) return;
#pragma unroll 1
    for (int row = copy.row; row < Cfg::BLOCK_M; row += QueryCopy::ROWS_PER_STEP)
        negate_16bit(*reinterpret_cast<uint4*>(s_q + tile_offset(row, copy.chunk)));
}
// ---- logits: softcap, mask and scale of the scores S = Q Kᵀ before the softmax -----------------------------------------------------
using Scores = float[Cfg::M_ATOMS][KEY_TILES][4];

// Factor from S to logits in base 2: the softmax scale, or 1 where the softcap has scaled already.
__device__ __forceinline__ float logit_scale(const AttentionParams& p) { return Cfg::HAS_SOFTCAP ? 1.0f : p.positive_scale; }

// Whether Q must be negated: the factor above has no sign.
__device__ __forceinline__ bool negates_queries(const AttentionParams& p) { return !Cfg::HAS_SOFTCAP && scale_is_negative(p); }

__device__ __forceinline__ void cap_scores(Scores& s, const AttentionParams& p) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[atom][tile][i] = softcap(s[atom][tile][i], p.softcap_scale, p.softcap_log2);
}

// A mask compares each key with the bounds of its row or, where that takes longer, tests a word with a bit for each key: seven
// bits become predicates in one instruction.
constexpr int WORD_TILES = 16;  // eights of keys in a word, two keys of a lane in each
constexpr int COMPARISONS = KEY_TILES * (Cfg::CAUSAL + Cfg::HAS_WINDOW_RIGHT + Cfg::HAS_WINDOW_LEFT);  // for one key of each two
constexpr bool MASK_BY_WORDS = COMPARISONS > 12;

// The keys before `end` among those of a lane in WORD_TILES eights: bit 2 · tile + i stands for key 8 · tile + i.
__device__ __forceinline__ unsigned keys_before(int end) {
    const int count = max((end >> 3) * 2 + min(end & 7, 2), 0);
    unsigned next;
    asm("shl.b32 %0, 1, %1;" : "=r"(next) : "r"(count));  // 0 where the count is 32 or more, which C++ leaves open
    return next - 1;
}

// Whether all rows see the same keys: no mask but the end of the keys.
constexpr bool ONLY_END = !(Cfg::CAUSAL || Cfg::HAS_WINDOW_LEFT || Cfg::HAS_WINDOW_RIGHT);

// Keys past the end become -inf: from the tile's last eight of keys down to those that lie before the end.
__device__ __forceinline__ void mask_past_end(Scores& s, int keys_left, int lane) {
    const int lane_keys_left = keys_left - (lane & 3) * 2;
#pragma unroll
    for (int tile = KEY_TILES - 1; tile >= 0; --tile) {
        if (8 * tile + 8 <= keys_left) break;
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (8 * tile + i % 2 >= lane_keys_left) s[atom][tile][i] = negative_infinity();
    }
}

// Keys that a row must not see become -inf. Keys are counted from the lane's first one: they are constants then.
__device__ __forceinline__ void mask_scores(Scores& s, const Rows& rows, int first_row, int first_key, int lane) {
    if constexpr (ONLY_END) return mask_past_end(s, rows.keys - first_key, lane);
    const int lane_key = first_key + (lane & 3) * 2;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int query = rows.query(first_row + atom * 16 + half * 8 + (lane >> 2));
            const int begin = rows.begin_of(query) - lane_key;
            const int end = rows.end_of(query) - lane_key;
            unsigned seen = 0;
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile) {
                if (MASK_BY_WORDS && tile % WORD_TILES == 0) {
                    seen = keys_before(end - 8 * tile);
                    if constexpr (Cfg::HAS_WINDOW_LEFT) seen &= ~keys_before(begin - 8 * tile);
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = tile * 8 + i;
                    const bool sees = MASK_BY_WORDS ? seen >> (tile % WORD_TILES * 2 + i) & 1
                                                    : key < end && (!Cfg::HAS_WINDOW_LEFT || key >= begin);
                    if (!sees) s[atom][tile][2 * half + i] = negative_infinity();
                }
            }
        }
}
// ---- scores: S = Q Kᵀ of one tile, from shared memory ------------------------------------------------------------------------
// S[64 x BLOCK_N] = Q · Kᵀ of the tile in slot s_k, for the rows of this warpgroup. Returns while it is under way.
__device__ __forceinline__ void start_scores(Scores& s, unsigned s_q, unsigned s_k, int warp_row) {
    const unsigned s_rows = s_q + warp_row / WARPGROUP_ROWS * (WARPGROUP_ROWS / 8 * EIGHT_ROWS_BYTES);
    unsigned long long a[K_STEPS], b[K_STEPS];
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        const int offset = step / 4 * ATOM_BYTES + step % 4 * 32;  // a panel holds four steps of 32 bytes
        a[step] = tile_descriptor(s_rows + offset);
        b[step] = tile_descriptor(s_k + offset);
    }
    warpgroup_fence();
    wgmma_scores(s[0], a, b);
    warpgroup_commit();
}
// ---- one step of the online softmax ----------------------------------------------------------------------------------------
struct Accumulators {
    float o[Cfg::M_ATOMS][D_TILES][4];   // unnormalised output
    float maximum[Cfg::M_ATOMS][2];      // running row maximum of S, the same in the four lanes of a row
    float sum[Cfg::M_ATOMS][4];          // running row sums of P: D fragment of P · ones, or this lane's share in [0] and [2]

    __device__ __forceinline__ Accumulators() {
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
            maximum[atom][0] = maximum[atom][1] = negative_infinity();
            sum[atom][0] = sum[atom][1] = sum[atom][2] = sum[atom][3] = 0.0f;
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 4; ++i) o[atom][tile][i] = 0.0f;
        }
    }
};

// The running row sum of P of rows g (half 0) and g + 8, the same in the four lanes of a row.
__device__ __forceinline__ float row_sum(const Accumulators& acc, int atom, int half) {
    return SUM_ON_TENSOR ? acc.sum[atom][2 * half] : quad_sum(acc.sum[atom][2 * half]);
}

struct Subtrahends {
    float r[Cfg::M_ATOMS][2];  // each row's running maximum, scaled: what is taken off before 2^
};

// Raises the running maxima to those of S, and scales down what was summed under the older, smaller ones. Before a peeled
// first tile nothing was summed.
template <bool FIRST>
__device__ __forceinline__ Subtrahends raise_maxima(const Scores& s, Accumulators& acc, float scale) {
    Subtrahends subtrahends;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float maximum = FIRST ? negative_infinity() : acc.maximum[atom][half];
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
                maximum = fmaxf(maximum, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
            maximum = quad_max(maximum);
            const float subtrahend = finite_max(maximum) * scale;
            if constexpr (!FIRST) {
                const float rescale = exp2_approx(fmaf(acc.maximum[atom][half], scale, -subtrahend));
                acc.sum[atom][2 * half] *= rescale;
#pragma unroll
                for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
                    for (int i = 0; i < 2; ++i) acc.o[atom][tile][2 * half + i] *= rescale;
            }
            acc.maximum[atom][half] = maximum;
            subtrahends.r[atom][half] = subtrahend;
        }
    return subtrahends;
}

// 2^x for x <= 0 on the FMA pipe, relative error 3e-6: x = n + f with |f| <= 1/2, 2^f by a polynomial (minimax, exact at
// 0), n added to its exponent. Below -127 it yields 0, as 2^-127 does.
__device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float SHIFTER = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, held in the low bits
    const float clamped = fmaxf(x, -127.0f);
    const float shifted = clamped + SHIFTER;
    const float f = clamped - (shifted - SHIFTER);
    float y = fmaf(f, 0.009582853235f, 0.055906425943f);
    y = fmaf(f, y, 0.240240986158f);
    y = fmaf(f, y, 0.693124193260f);
    y = fmaf(f, y, 1.0f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(shifted) << 23));
}

// S becomes P = 2^(S · scale - subtrahend), for the 16 keys that one mma step over keys takes. The polynomial
// computes none, one or two of a lane's four keys in a row, to share the work between the special-function unit and the FMA pipe.
__device__ __forceinline__ void exponentiate(Scores& s, Accumulators& acc, const Subtrahends& subtrahends, float scale,
                                             int step) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& score = s[atom][2 * step + i / 2][2 * half + i % 2];
                const float x = fmaf(score, scale, -subtrahends.r[atom][half]);
                score = i < Cfg::EXP2_POLY / 25 ? exp2_polynomial(x) : exp2_approx(x);
                if constexpr (!SUM_ON_TENSOR) acc.sum[atom][2 * half] += score;
            }
}
// ---- lazy rescale: what was summed under older, smaller maxima follows them where it must -------------------------------------
// FlashAttention-4 (Zadouri et al. 2026): the maximum that is subtracted may be too small. P is then above 1, but its quotient by
// the sum is the same. It is raised only where P would exceed 2^8. So most tiles need no rescale of O, nor the maxima of their
// rows: each lane compares its own scores with the row's limit, and the warp votes.
constexpr float TOLERATED = 8.0f;  // in base 2: P · 2^8 is far from fp16's 2^16

// What the rows of a lane tolerate, and take off, as long as their maxima stay.
struct Limits {
    float highest[Cfg::M_ATOMS][2];  // a score above it raises the row's maximum
    Subtrahends subtrahends;
    bool below_zero;  // whether one of the warp's limits is, or is not known yet

    __device__ __forceinline__ void follow(const Accumulators& acc, float scale) {
        bool below = false;
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                highest[atom][half] = acc.maximum[atom][half] + __fdividef(TOLERATED, scale);
                subtrahends.r[atom][half] = finite_max(acc.maximum[atom][half]) * scale;
                below |= !(highest[atom][half] >= 0.0f);
            }
        if constexpr (MAXIMA_OF_THREE) below_zero = __any_sync(0xffffffffu, below);
    }
};

// The highest score of one row in this lane.
__device__ __forceinline__ float lane_max(const Scores& s, int atom, int half) {
    float highest = negative_infinity();
#pragma unroll
    for (int tile = 0; tile < KEY_TILES; ++tile)
        highest = fmaxf(highest, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
    return highest;
}

// The same if it is not negative; if it is, any of the scores. The bits of floats from 0 on order as integers do, above those of
// all negative ones, and Hopper compares three integers at once, but two floats. Two chains, so that neither waits for itself.
__device__ __forceinline__ float lane_max_from_zero(const Scores& s, int atom, int half) {
    int highest[2] = {__float_as_int(s[atom][0][2 * half]), __float_as_int(s[atom][0][2 * half + 1])};
#pragma unroll
    for (int tile = 1; tile < KEY_TILES; ++tile) {
        int& chain = highest[tile % 2];
        chain = max(max(chain, __float_as_int(s[atom][tile][2 * half])), __float_as_int(s[atom][tile][2 * half + 1]));
    }
    return __int_as_float(max(highest[0], highest[1]));
}

struct Raised {
    bool any;                       // whether a row of the warp was raised
    float factor[Cfg::M_ATOMS][2];  // of what was summed before, if one was
};

// Raises the maxima of rows with a score above their limit. O is scaled down later: it may be under way. `after_vote` runs before
// anything is raised, in all warps.
template <class AfterVote>
__device__ __forceinline__ Raised raise_where_needed(const Scores& s, Accumulators& acc, Limits& limits, float scale,
                                                     AfterVote after_vote) {
    float highest[Cfg::M_ATOMS][2];
    bool above = false;
    if (MAXIMA_OF_THREE && !limits.below_zero) {
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int half = 0; half < 2; ++half) highest[atom][half] = lane_max_from_zero(s, atom, half);
    } else {
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int half = 0; half < 2; ++half) highest[atom][half] = lane_max(s, atom, half);
    }
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) above |= !(highest[atom][half] <= limits.highest[atom][half]);
    Raised raised;
    raised.any = __any_sync(0xffffffffu, above);
    after_vote();
    if (!raised.any) return raised;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float before = acc.maximum[atom][half], now = quad_max(highest[atom][half]);
            const bool raises = (now - before) * scale > TOLERATED;  // also from -inf; false where both are
            raised.factor[atom][half] = raises ? exp2_approx((before - now) * scale) : 1.0f;
            acc.maximum[atom][half] = raises ? now : before;
            acc.sum[atom][2 * half] *= raised.factor[atom][half];
        }
    limits.follow(acc, scale);
    return raised;
}

__device__ __forceinline__ void rescale_output(Accumulators& acc, const Raised& raised) {
    if (!raised.any) return;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc.o[atom][tile][i] *= raised.factor[atom][i / 2];
}

// Raises the maxima, lazily if the config says so, and scales down what was summed.
template <bool FIRST>
__device__ __forceinline__ Subtrahends raise_and_rescale(const Scores& s, Accumulators& acc, Limits& limits, float scale) {
    if constexpr (!LAZY_RESCALE) return raise_maxima<FIRST>(s, acc, scale);
    if constexpr (FIRST) {
        raise_maxima<true>(s, acc, scale);
        limits.follow(acc, scale);
    } else {
        rescale_output(acc, raise_where_needed(s, acc, limits, scale, [] {}));
    }
    return limits.subtrahends;
}
// ---- the softmax beside a P V that is under way ---------------------------------------------------------------------------------
// P as A operands.
__device__ __forceinline__ void pack_weights(const Scores& s, unsigned (&a)[KEY_TILES / 2][4]) {
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&pair)[4] = s[0][2 * step + i / 2];
            a[step][i] = pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1]);
        }
}

// Ends a basic block after the softmax that made `sum`, which is never negative. Without it, ptxas moves the wait for P V in
// front of the softmax, and nothing overlaps.
__device__ __forceinline__ void keep_before(float sum) {
    if (sum < 0.0f) __nanosleep(1);
}

// Waits for a P V that is under way: then O and the registers of P are free again.
__device__ __forceinline__ void end_values(Accumulators& acc, unsigned (&a)[KEY_TILES / 2][4]) {
    warpgroup_wait<0>();
    pin(acc.o[0]);
    pin(a);
}
// ---- values: O += P V of one tile ---------------------------------------------------------------------------------------------
// O[64 x HEAD_DIM] += P · V of the tile in slot s_v. Two neighbouring 8-key tiles of P are one 16-deep A operand.
// `before(step)` runs before each 16 keys; the wgmma's start every PV_KEYS keys and run beside what comes next. All are done
// on return.
template <typename Before>
__device__ __forceinline__ void weighted_values(Scores& s, Accumulators& acc, unsigned s_v, Before before) {
    constexpr int STEPS = KEY_TILES / 2;
    constexpr int TOGETHER = Cfg::PV_KEYS / 16;
    unsigned a[STEPS][4];
    pin(acc.o[0]);
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        before(step);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float(&pair)[4] = s[0][2 * step + i / 2];
            a[step][i] = pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1]);
            asm volatile("" : "+r"(a[step][i])::"memory");  // it is there before the fence
        }
        if ((step + 1) % TOGETHER == 0 || step + 1 == STEPS) {
            warpgroup_fence();
            const int first = step / TOGETHER * TOGETHER;
#pragma unroll
            for (int done = first; done <= step; ++done)
                wgmma_values(acc.o[0], a[done], tile_descriptor(s_v + done * 2 * EIGHT_ROWS_BYTES));
            warpgroup_commit();
        }
    }
    warpgroup_wait<0>();
    pin(acc.o[0]);
    pin(a);
}

// Starts O += P · V of a whole tile. Returns while it is under way.
__device__ __forceinline__ void start_values(Accumulators& acc, unsigned (&a)[KEY_TILES / 2][4], unsigned s_v) {
    unsigned long long b[KEY_TILES / 2];
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step) b[step] = tile_descriptor(s_v + step * 2 * EIGHT_ROWS_BYTES);
    pin(acc.o[0]);
    pin(a);
    warpgroup_fence();
    wgmma_values(acc.o[0], a, b);
    warpgroup_commit();
}
// ---- the end of a row: normaliser, log-sum-exp, store ---------------------------------------------------------------------------
struct RowEnd {
    float factor;  // on the unnormalised output
    float lse;     // natural logarithm of the sum of exponentials of all logits
};

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_or_zero(float sum) { return sum > 0.0f ? reciprocal_approx(sum) : 0.0f; }

// From a row's maximum of S and its sum of P under that maximum. A row that saw no key has sum 0 and yields zeros, and -inf.
// The sink is one more logit, which adds to the sum only.
__device__ __forceinline__ RowEnd end_row(const Rows& rows, int row, float maximum, float sum) {
    constexpr float LN_2 = 0.693147180560f, LOG2_E = 1.442695040889f;
    float weight = 1.0f;
    float top = finite_max(maximum) * logit_scale(rows.p);  // in base 2
    if constexpr (Cfg::HAS_SINK) {
        const float sink = rows.sink(row) * LOG2_E;
        const float logit = maximum * logit_scale(rows.p);  // -inf where no key was seen
        top = finite_max(fmaxf(logit, sink));
        weight = exp2_approx(logit - top);
        sum = fmaf(sum, weight, exp2_approx(sink - top));
    }
    return {weight * reciprocal_or_zero(sum), (top + log2_approx(sum)) * LN_2};
}

// O is not read again: streaming stores let what is read again keep its place in the caches. Both name global memory, which the
// compiler does not see in a settled address.
template <typename Vector>
__device__ __forceinline__ void store_values(unsigned short* target, Vector values) {
    if constexpr (Cfg::STORE_OP == Cfg::STORE_OP_STREAMING) {
        __stcs(reinterpret_cast<Vector*>(target), values);
    } else {
        __stwb(reinterpret_cast<Vector*>(target), values);
    }
}
// ---- stores of finished rows ---------------------------------------------------------------------------------------------------
// One key group: straight from the fragments (4 bytes a lane) or through shared memory (16 bytes).
__device__ __forceinline__ void store_output(const Accumulators& acc, const Rows& rows, unsigned char* s_stage, int cta_row,
                                             int warp_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int tile_row = warp_row + atom * 16 + half * 8 + (lane >> 2);
            const int row = cta_row + tile_row;
            const bool inside = row < rows.count();
            const RowEnd end = end_row(rows, inside ? row : 0, acc.maximum[atom][half], row_sum(acc, atom, half));
            if (Cfg::HAS_LSE && inside && (lane & 3) == 0) *rows.lse(row) = end.lse;
            unsigned short* target = settled(rows.o(row) + (lane & 3) * 2);
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile) {
                const unsigned packed = pack_16bit(acc.o[atom][tile][2 * half] * end.factor,
                                                   acc.o[atom][tile][2 * half + 1] * end.factor);
                if constexpr (STAGED) {
                    *reinterpret_cast<unsigned*>(s_stage + tile_offset(tile_row, tile) + (lane & 3) * 4) = packed;
                } else if (inside) {
                    store_values(target + tile * 8, packed);
                }
            }
        }
    if constexpr (STAGED) {
        __syncwarp();  // the warp's rows are written by all its lanes and now read by others of them
#pragma unroll
        for (int first = 0; first < WARP_ROWS * CHUNKS; first += WARP) {
            const int row = warp_row + (first + lane) / CHUNKS;
            const int chunk = (first + lane) % CHUNKS;
            if (first + lane < WARP_ROWS * CHUNKS && cta_row + row < rows.count())
                store_values(rows.o(cta_row + row) + chunk * 8,
                             *reinterpret_cast<const uint4*>(s_stage + tile_offset(row, chunk)));
        }
    }
}
// ---- partial results: unnormalised O with each row's maximum and sum ------------------------------------------------------------
// Key groups leave theirs in shared memory, splits in the workspace:
//   float O[BLOCK_M][PITCH], then float2 (maximum, sum)[BLOCK_M]
// A merge takes the partials in their order, so that its sums come out the same in every run.
template <int PITCH>
struct Partial {
    float* o;

    __device__ __forceinline__ float* at(int row, int column) const { return o + row * PITCH + column; }
    __device__ __forceinline__ float2* stats(int row) const {
        return reinterpret_cast<float2*>(o + Cfg::BLOCK_M * PITCH) + row;
    }
};

// A warp leaves its rows, those below `rows_left` of the tile.
template <int PITCH>
__device__ __forceinline__ void leave_partial(const Accumulators& acc, Partial<PITCH> partial, int rows_left, int warp_row,
                                              int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + atom * 16 + half * 8 + (lane >> 2);
            const float sum = row_sum(acc, atom, half);
            if (row < rows_left) {
                if ((lane & 3) == 0) *partial.stats(row) = make_float2(acc.maximum[atom][half], sum);
#pragma unroll
                for (int tile = 0; tile < D_TILES; ++tile)
                    *reinterpret_cast<float2*>(partial.at(row, tile * 8 + (lane & 3) * 2)) =
                        make_float2(acc.o[atom][tile][2 * half], acc.o[atom][tile][2 * half + 1]);
            }
        }
}

// One thread's share of a merged row: COLUMNS columns in each of PIECES pieces, ROW_THREADS threads side by side.
template <int ROW_THREADS>
struct MergedRow {
    static constexpr int COLUMNS = 4;  // 16 bytes
    static constexpr int PIECES = (Cfg::HEAD_DIM + ROW_THREADS * COLUMNS - 1) / (ROW_THREADS * COLUMNS);

    float maximum = negative_infinity();
    float sum = 0.0f;
    float4 o[PIECES] = {};

    static __device__ __forceinline__ int column(int piece, int thread) {
        return (piece * ROW_THREADS + thread % ROW_THREADS) * COLUMNS;
    }
    static __device__ __forceinline__ bool has(int piece, int thread) {
        return (piece + 1) * ROW_THREADS * COLUMNS <= Cfg::HEAD_DIM || column(piece, thread) < Cfg::HEAD_DIM;
    }

    // Adds a part whose sum and O were taken under another maximum.
    __device__ __forceinline__ void add_sum(float part, float weight) { sum = fmaf(part, weight, sum); }
    __device__ __forceinline__ void add(int piece, const float4& part, float weight) {
        o[piece].x = fmaf(part.x, weight, o[piece].x);
        o[piece].y = fmaf(part.y, weight, o[piece].y);
        o[piece].z = fmaf(part.z, weight, o[piece].z);
        o[piece].w = fmaf(part.w, weight, o[piece].w);
    }

    __device__ __forceinline__ void scale_down(float weight) {
        sum *= weight;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            o[piece].x *= weight;
            o[piece].y *= weight;
            o[piece].z *= weight;
            o[piece].w *= weight;
        }
    }

    __device__ __forceinline__ void store(const Rows& rows, int row, int thread) const {
        const RowEnd end = end_row(rows, row, maximum, sum);
        if (Cfg::HAS_LSE && thread % ROW_THREADS == 0) *rows.lse(row) = end.lse;
        unsigned short* target = settled(rows.o(row) + column(0, thread));
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            if (has(piece, thread))
                store_values(target + piece * ROW_THREADS * COLUMNS,
                             make_uint2(pack_16bit(o[piece].x * end.factor, o[piece].y * end.factor),
                                        pack_16bit(o[piece].z * end.factor, o[piece].w * end.factor)));
    }

    __device__ __forceinline__ void leave(Partial<Cfg::HEAD_DIM> partial, int row, int thread) const {
        if (thread % ROW_THREADS == 0) *partial.stats(row) = make_float2(maximum, sum);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            if (has(piece, thread)) *reinterpret_cast<float4*>(partial.at(row, column(piece, thread))) = o[piece];
    }
};
// ---- merge of the key groups, row by row -------------------------------------------------------------------------------------
// Merges the key groups of the CTA, after its barrier: eight threads take a row and hand what they made to `finish(row, …)`.
template <typename Finish>
__device__ __forceinline__ void merge_groups(unsigned char* s_groups, float scale, int rows_left, int thread, Finish finish) {
    constexpr int ROW_THREADS = 8;  // a 16-byte read each covers all banks
    using Row = MergedRow<ROW_THREADS>;
#pragma unroll 1
    for (int row = thread / ROW_THREADS; row < rows_left; row += Cfg::LAUNCH_THREADS / ROW_THREADS) {
        auto partial_of = [&](int group) {
            return Partial<MERGE_PITCH>{reinterpret_cast<float*>(s_groups + group * GROUP_BYTES)};
        };
        Row merged;
        float2 stats[Cfg::WARPS_N];
#pragma unroll
        for (int group = 0; group < Cfg::WARPS_N; ++group) {
            stats[group] = *partial_of(group).stats(row);
            merged.maximum = fmaxf(merged.maximum, stats[group].x);
        }
        const float subtrahend = finite_max(merged.maximum) * scale;
#pragma unroll
        for (int group = 0; group < Cfg::WARPS_N; ++group) {
            const float weight = exp2_approx(fmaf(stats[group].x, scale, -subtrahend));
            merged.add_sum(stats[group].y, weight);
#pragma unroll
            for (int piece = 0; piece < Row::PIECES; ++piece)
                if (Row::has(piece, thread))
                    merged.add(piece, *reinterpret_cast<const float4*>(partial_of(group).at(row, Row::column(piece, thread))),
                               weight);
        }
        finish(row, merged);
    }
}
// ---- kernel ----------------------------------------------------------------------------------------------------------------------
struct Peeled {  // a group's first key tile, computed before the loop
    static constexpr bool FIRST = true;
};
struct Looped {
    static constexpr bool FIRST = false;
};

// What follows the last key tile: merges the key groups and stores the rows.
__device__ __forceinline__ void end_work(const Accumulators& acc, const Rows& rows, int cta_row, unsigned char* smem) {
    const int group = threadIdx.x / GROUP_THREADS;
    const int group_thread = threadIdx.x % GROUP_THREADS;
    const int warp_row = group_thread / WARP * WARP_ROWS;
    if constexpr (Cfg::WARPS_N > 1) {
        copy_async_wait<0>();
        group_barrier(group);  // all warps of the group are done with its rings, whose bytes take their partial results
        unsigned char* smem_groups = smem + Q_BYTES;
        leave_partial(acc, Partial<MERGE_PITCH>{reinterpret_cast<float*>(smem_groups + group * GROUP_BYTES)}, Cfg::BLOCK_M,
                      warp_row, group_thread % WARP);
        __syncthreads();  // the partial results of all groups are visible to all threads
        const int rows_left = min(Cfg::BLOCK_M, rows.count() - cta_row);  // of the tile
        merge_groups(smem_groups, logit_scale(rows.p), rows_left, threadIdx.x,
                     [&](int row, const auto& merged) { merged.store(rows, cta_row + row, threadIdx.x); });
    } else {
        // Staging takes this warp's own rows of the Q tile; other warps of its warpgroup read them too, as those of the rings.
        if constexpr (STAGED) {
            copy_async_wait<0>();
            group_barrier(group);  // all warps are done with Q and the rings, whose bytes become the staging tile
        }
        store_output(acc, rows, smem, cta_row, warp_row, group_thread % WARP);
    }
}

// Computes one piece of work, all threads of the CTA together.
__device__ __forceinline__ void attend(const AttentionParams& p, const Work& work, unsigned char* smem) {
    const int thread = threadIdx.x;
    const int lane = thread % WARP;
    // The shuffle makes it uniform for the compiler, too: descriptors then take uniform registers.
    const int group = __shfl_sync(0xffffffffu, thread / GROUP_THREADS, 0);
    const int group_thread = thread % GROUP_THREADS;
    const int warp_row = __shfl_sync(0xffffffffu, group_thread / WARP * WARP_ROWS, 0);  // this warp's first row in the CTA's tile
    const int cta_row = work.tile * Cfg::BLOCK_M;
    const Rows rows(p, work);
    if (Cfg::PACKED && cta_row >= rows.count()) return;  // the sequence is shorter than the longest

    const unsigned s_q = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    const unsigned s_k = s_q + Q_BYTES + group * GROUP_BYTES;
    const unsigned s_v = s_k + K_RING_BYTES;

    const KeyTiles tiles(rows, cta_row, work.split, group);  // keys that no row of the CTA sees are never loaded
    const int group_tiles = tiles.count;
    const TileCopy<Cfg::BLOCK_N, GROUP_THREADS> keys_copy(group_thread);
    auto copy_k = [&](int index) {
        if (index < group_tiles)
            keys_copy.copy(s_k + index % Cfg::STAGES_K * TILE_BYTES, rows.g_k, p.k_row_stride, tiles.first_key(index), rows.keys);
        copy_async_commit();  // also when empty: the waits below count groups
    };
    auto copy_v = [&](int index) {
        if (index < group_tiles)
            keys_copy.copy(s_v + index % Cfg::STAGES_V * TILE_BYTES, rows.g_v, p.v_row_stride, tiles.first_key(index), rows.keys);
        copy_async_commit();
    };

    // Groups of copies, in order: Q K0 V0 K1 V1 … (PROLOGUE_PAIRS pairs), then in the loop V and K in turn.
    copy_queries(s_q, rows, cta_row, thread);
    copy_async_commit();
#pragma unroll
    for (int stage = 0; stage < PROLOGUE_PAIRS; ++stage) {
        copy_k(stage < Cfg::STAGES_K ? stage : group_tiles);
        copy_v(stage < Cfg::STAGES_V ? stage : group_tiles);
    }
    copy_async_wait<2 * PROLOGUE_PAIRS - 1>();
    if (negates_queries(p)) negate_queries(smem, thread);
    fence_async_proxy();
    __syncthreads();  // Q, copied by all threads of the CTA, and each group's first K are visible

    Accumulators acc;
    const float scale = logit_scale(p);
    Limits limits;
    if constexpr (!Cfg::OVERLAP && !Cfg::PEEL_FIRST) limits.follow(acc, scale);
    const int warp_first_query = rows.query(cta_row + warp_row);
    const int warp_last_query = rows.query(cta_row + warp_row + WARP_ROWS - 1);
    auto cap_and_mask = [&](Scores& s, int index) {
        const int first_key = tiles.first_key(index);
        if constexpr (Cfg::HAS_SOFTCAP) cap_scores(s, p);
        const bool crosses_end = first_key + Cfg::BLOCK_N > rows.end_of(warp_first_query);
        const bool crosses_begin = Cfg::HAS_WINDOW_LEFT && first_key < rows.begin_of(warp_last_query);
        if (crosses_end || crosses_begin) mask_scores(s, rows, cta_row + warp_row, first_key, lane);
    };
    auto attend_tile = [&](int index, auto place) {
        if (index > 0) {
            copy_async_wait<2 * Cfg::STAGES_K - 2>();
            fence_async_proxy();
            group_barrier(group);  // A: K of this tile is visible; all warps are done with V of the last tile, its slot is free
            copy_v(index - 1 + Cfg::STAGES_V);
        }

        Scores s;
        start_scores(s, s_q, s_k + index % Cfg::STAGES_K * TILE_BYTES, warp_row);
        warpgroup_wait<0>();
        pin(s[0]);
        cap_and_mask(s, index);

        const Subtrahends subtrahends = raise_and_rescale<decltype(place)::FIRST>(s, acc, limits, scale);
        if constexpr (!Cfg::EXP_WITH_PV) {
#pragma unroll
            for (int step = 0; step < KEY_TILES / 2; ++step) exponentiate(s, acc, subtrahends, scale, step);
        }

        copy_async_wait<2 * Cfg::STAGES_V - 2>();
        fence_async_proxy();
        group_barrier(group);  // B: V of this tile is visible; all warps are done with K of this tile, its slot is free
        copy_k(index + Cfg::STAGES_K);

        weighted_values(s, acc, s_v + index % Cfg::STAGES_V * TILE_BYTES, [&](int step) {
            if constexpr (Cfg::EXP_WITH_PV) exponentiate(s, acc, subtrahends, scale, step);
        });
    };
    // The same for all tiles, S of a tile started with P V of the one before, and the softmax made beside that P V.
    auto attend_overlapped = [&] {
        Scores s;
        unsigned weights[KEY_TILES / 2][4];
        start_scores(s, s_q, s_k, warp_row);
        warpgroup_wait<0>();
        pin(s[0]);
        cap_and_mask(s, 0);
        const Subtrahends first = raise_and_rescale<true>(s, acc, limits, scale);
#pragma unroll
        for (int step = 0; step < KEY_TILES / 2; ++step) exponentiate(s, acc, first, scale, step);
        pack_weights(s, weights);
#pragma unroll 1
        for (int index = 1; index < group_tiles; ++index) {
            copy_async_wait<2 * larger(Cfg::STAGES_K, 2) - 3>();
            fence_async_proxy();
            group_barrier(group);  // K of this tile is visible; K of the last and V of the one before it are free
            copy_k(index - 1 + Cfg::STAGES_K);
            copy_v(index == 1 ? group_tiles : index - 2 + Cfg::STAGES_V);
            start_scores(s, s_q, s_k + index % Cfg::STAGES_K * TILE_BYTES, warp_row);
            copy_async_wait<2 * Cfg::STAGES_V - 2>();
            fence_async_proxy();
            group_barrier(group);  // V of the last tile is visible
            start_values(acc, weights, s_v + (index - 1) % Cfg::STAGES_V * TILE_BYTES);
            warpgroup_wait<1>();
            pin(s[0]);
            cap_and_mask(s, index);
            const Raised raised = raise_where_needed(s, acc, limits, scale, [] {});
#pragma unroll
            for (int step = 0; step < KEY_TILES / 2; ++step) exponentiate(s, acc, limits.subtrahends, scale, step);
            if constexpr (Cfg::HEAD_DIM > 64) keep_before(acc.sum[0][0]);  // a shorter P V gains less than this costs
            end_values(acc, weights);
            rescale_output(acc, raised);
            pack_weights(s, weights);
        }
        copy_async_wait<0>();
        fence_async_proxy();
        group_barrier(group);  // V of the last tile is visible
        start_values(acc, weights, s_v + (group_tiles - 1) % Cfg::STAGES_V * TILE_BYTES);
        end_values(acc, weights);
    };
    if constexpr (Cfg::OVERLAP) {
        if (group_tiles > 0) attend_overlapped();
    } else {
        if constexpr (Cfg::PEEL_FIRST) {
            if (group_tiles > 0) attend_tile(0, Peeled());
        }
#pragma unroll Cfg::UNROLL
        for (int index = Cfg::PEEL_FIRST ? 1 : 0; index < group_tiles; ++index) attend_tile(index, Looped());
    }

    end_work(acc, rows, cta_row, smem);
}

// A register cap and a CTA count per SM are two ways to say the same: one at a time.
extern "C" __global__ void
__launch_bounds__(Cfg::LAUNCH_THREADS, Cfg::MIN_CTAS)
evo_attention(const __grid_constant__ AttentionParams p) {
    extern __shared__ __align__(1024) unsigned char smem[];  // blocks of the 128-byte swizzle begin at multiples of 1024 bytes
    __builtin_assume(threadIdx.x < Cfg::LAUNCH_THREADS);  // divisions of what may be negative take four instructions, not one
    if constexpr (Cfg::PERSISTENT) {  // fewer CTAs than work: each takes a piece, then the one a grid's length on
        const int count = work_count(p);
#pragma unroll 1
        for (int number = blockIdx.x; number < count; number += gridDim.x) {
            attend(p, work_of_number(p, number), smem);
            __syncthreads();  // all threads are done with shared memory, which the next piece fills again
        }
    } else {
        attend(p, work_of_block(), smem);
    }
}
