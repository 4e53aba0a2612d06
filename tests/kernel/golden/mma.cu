// EvoEngine, family mma, template 0000000000000000: BLOCK_N=16 CACHE_OP=cg EPILOGUE=direct EXP_WITH_PV=False L2_PREFETCH_BYTES=0 MAXRREGCOUNT=0 MIN_CTAS=1 M_ATOMS=1 PAD_HALVES=0 Q_LOCATION=direct SMEM_LAYOUT=swizzle STAGES_K=1 STAGES_V=1 UNROLL=1 WARPS_M=1 WARPS_N=1
// Fused attention forward, FlashAttention-2 class, on mma.sync tensor cores: O = softmax(scale · Q Kᵀ) V.
//
// A CTA owns BLOCK_M query rows of one head; its WARPS_M × WARPS_N warps form WARPS_N key groups of WARPS_M warps.
//
//                       group 0          group 1            The keys are cut into tiles of BLOCK_N; group i takes the tiles
//   queries   warp 0 [ 16·M_ATOMS ]   [ 16·M_ATOMS ]        i, i + WARPS_N, … and is a FlashAttention stream of its own:
//   BLOCK_M   warp 1 [    rows    ]   [    rows    ]        own shared-memory ring, own barrier, own running maximum, sum
//                        keys t            keys t+1         and O. Only at the end the groups' partial results are merged.
//
// A tile's life: cp.async into the ring → S = Q Kᵀ in registers → online softmax in base 2, the scale folded into the
// exponent's FMA → P stays in registers, for the accumulator layout of S is the operand layout of P → O += P V.
// Two barriers a tile: A (this tile's K has arrived) and B (its V has arrived); each also frees the slot read before it.
//
// Shared memory: [Q tile, unless Q goes straight to registers][group 0: K ring, V ring][group 1: …]; the merge and the
// epilogue reuse these bytes once nobody reads them any more.

struct Cfg {
    // Tunables.
    static constexpr int WARPS_M = 1;  // warps: warps over query rows: the warps of one key group
    static constexpr int WARPS_N = 1;  // warps: key groups: warps over keys, merged through shared memory at the end
    static constexpr int M_ATOMS = 1;  // 16-row atoms: query rows of one warp; each K and V fragment is used this many times
    static constexpr int BLOCK_N = 16;  // keys: keys in one tile of one key group
    static constexpr int STAGES_K = 1;  // tiles: cp.async depth for K: slots in a key group's K ring
    static constexpr int STAGES_V = 1;  // tiles: cp.async depth for V: slots in a key group's V ring
    static constexpr int SMEM_LAYOUT_SWIZZLE = 0, SMEM_LAYOUT_PADDED = 1;
    static constexpr int SMEM_LAYOUT = SMEM_LAYOUT_SWIZZLE;  // layout: how rows avoid bank conflicts: XOR of 16-byte chunks, or padding
    static constexpr int PAD_HALVES = 0;  // halves: padding of a row in the padded layout; 0 is the control without any remedy
    static constexpr int Q_LOCATION_DIRECT = 0, Q_LOCATION_REGISTERS = 1, Q_LOCATION_SHARED = 2;
    static constexpr int Q_LOCATION = Q_LOCATION_DIRECT;  // place: Q straight to registers, through shared memory to registers, or read from shared memory for every tile
    static constexpr int CACHE_OP_CG = 0, CACHE_OP_CA = 1;
    static constexpr int CACHE_OP = CACHE_OP_CG;  // cp.async operator: cache K and V in L2 only, or in L1 too
    static constexpr int L2_PREFETCH_BYTES = 0;  // bytes: L2 prefetch size that cp.async asks for
    static constexpr bool EXP_WITH_PV = false;  // switch: make each 16 keys' exponentials just before their P·V mma's, to overlap the two, instead of all before V is waited for
    static constexpr int EPILOGUE_DIRECT = 0, EPILOGUE_SHARED = 1;
    static constexpr int EPILOGUE = EPILOGUE_DIRECT;  // path: store O from the fragments, 4 bytes a lane, or through shared memory, 16 bytes a lane
    static constexpr int MIN_CTAS = 1;  // CTAs: CTAs per SM that __launch_bounds__ asks for: caps the registers
    static constexpr int MAXRREGCOUNT = 0;  // registers: register cap per thread, 0 for none
    static constexpr int UNROLL = 1;  // iterations: unrolling of the loop over key tiles
    // Derived from them.
    static constexpr int THREADS = 32;  // threads: threads per CTA
    static constexpr int BLOCK_M = 16;  // rows: query rows per CTA
    static constexpr int ROW_HALVES = 64;  // halves: pitch of a shared-memory row
    static constexpr int RING_BYTES = 4096;  // bytes: K and V rings of one key group
    static constexpr int MERGE_GROUP_BYTES = 0;  // bytes: partial result of one key group: O in f32, row pitch head_dim + 8, then maximum and sum
    static constexpr int STAGE_OUT_BYTES = 0;  // bytes: O tile on its way out
    static constexpr int Q_TILE_BYTES = 0;  // bytes: Q tile
    static constexpr int SMEM_BYTES = 4096;  // bytes: shared memory per CTA
    static constexpr int LIVE_REGISTERS = 88;  // registers: estimate per thread: O, S and Q fragments, and 32 for addresses and loop state
    // The problem's traits; batch, heads and lengths are arguments, so one binary serves them all.
    static constexpr int HEAD_DIM = 64;  // elements
    static constexpr bool CAUSAL = false;
    static constexpr bool IS_BF16 = false;
    // The host's launch: the kernel asserts that it agrees.
    static constexpr int LAUNCH_THREADS = 32;  // threads per CTA
    static constexpr int LAUNCH_SMEM_BYTES = 4096;  // bytes of dynamic shared memory per CTA
    static constexpr int PARAM_BYTES = 128;  // bytes of AttentionParams
};
// The one argument of every kernel, mirrored from evoengine/kernel/abi.py (PARAMS_DTYPE). Needs Cfg::PARAM_BYTES.
// Strides are in elements; the head_dim axis is contiguous. 64-bit strides, because batch x head offsets pass 2^31.
struct AttentionParams {
    const void* q;  // [batch, heads, seq_q, head_dim]
    const void* k;  // [batch, kv_heads, seq_kv, head_dim]
    const void* v;  // [batch, kv_heads, seq_kv, head_dim]
    void* o;        // [batch, heads, seq_q, head_dim]
    long long q_batch_stride;
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
    int seq_q;
    int seq_kv;
    int heads_per_kv_head;  // query heads that share one K/V head
    float scale_log2;       // softmax scale times log2(e): softmax runs in base 2
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
// ---- tensor cores: fragments of m16n8k16 and the loads that fill them --------------------------------------------------
// A lane is (g, t) = (lane / 4, lane % 4). Two 16-bit values share a register, the lower column in the lower half.
//   A[16x16]: a[0] = (row g, cols 2t..)   a[1] = (row g+8, cols 2t..)   a[2], a[3] = the same rows, cols 2t+8..
//   B[16x8]:  b[0] = (rows 2t.., col g)   b[1] = (rows 2t+8.., col g)
//   D[16x8]:  d[0], d[1] = (row g, cols 2t, 2t+1)   d[2], d[3] = (row g+8, the same cols)

// D[16x8] += A[16x16] · B[16x8], products exact, sums in f32.
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define EVO_MMA(TYPE)                                                                                            \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%0, %1, %2, %3};"                                                                                      \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (Cfg::IS_BF16) {
        EVO_MMA("bf16");
    } else {
        EVO_MMA("f16");
    }
#undef EVO_MMA
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

// Rounds two f32 to the problem's 16-bit type, `low` into the lower half.
__device__ __forceinline__ unsigned pack_16bit(float low, float high) {
    unsigned packed;
    if constexpr (Cfg::IS_BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}
// ---- shared-memory tiles: [rows][HEAD_DIM] of 16-bit values, read by ldmatrix eight rows at a time -------------------------

constexpr int CHUNK_BYTES = 16;                        // what one ldmatrix row and one cp.async move
constexpr int CHUNKS = Cfg::HEAD_DIM / 8;              // chunks in a row
constexpr int ROW_BYTES = Cfg::ROW_HALVES * 2;         // row pitch, padding included

// Byte offset of a chunk. ldmatrix reads the same chunk of eight consecutive rows; they must fall into different banks.
// Swizzle: the chunk's number is XORed with bits of the row, so that the eight land in the eight 16-byte columns of the
// 128-byte bank line: rows of a multiple of 128 bytes need row % 8, the others (64, 192 bytes) alternate by row % 2
// already and need (row / 2) % 4. Padding instead shifts each row by the padding.
__device__ __forceinline__ int tile_offset(int row, int chunk) {
    if constexpr (Cfg::SMEM_LAYOUT == Cfg::SMEM_LAYOUT_SWIZZLE) {
        const int bits = (CHUNKS % 8 == 0) ? (row & 7) : ((row >> 1) & 3);
        return row * ROW_BYTES + (chunk ^ bits) * CHUNK_BYTES;
    } else {
        return row * ROW_BYTES + chunk * CHUNK_BYTES;
    }
}

// Copies one tile of ROWS rows from global to shared memory by THREADS threads, a chunk each in turn. The caller commits.
template <int ROWS, int THREADS>
struct TileCopy {
    static constexpr int TILE_CHUNKS = ROWS * CHUNKS;
    static constexpr int STEPS = (TILE_CHUNKS + THREADS - 1) / THREADS;
    static constexpr bool COLUMN_FIXED = THREADS % CHUNKS == 0;  // a thread keeps its chunk and walks down the rows
    static constexpr int ROWS_PER_STEP = THREADS / CHUNKS;

    unsigned smem_tile;
    const unsigned short* global;  // row 0 of the tile, rows `row_stride` elements apart
    int row_stride;
    int thread;
    const unsigned short* source;  // this thread's next chunk: one pointer that walks takes fewer registers than STEPS

    __device__ __forceinline__ TileCopy(unsigned smem_tile, const unsigned short* global, int row_stride, int thread)
        : smem_tile(smem_tile), global(global), row_stride(row_stride), thread(thread),
          source(global + static_cast<long long>(thread / CHUNKS) * row_stride + thread % CHUNKS * 8) {}

    // This thread's chunk number `step`, in turn, of a tile that lies wholly inside the tensor.
    __device__ __forceinline__ void copy_next(int step) {
        const int index = thread + step * THREADS;
        const int row = COLUMN_FIXED ? thread / CHUNKS + step * ROWS_PER_STEP : index / CHUNKS;
        const int chunk = COLUMN_FIXED ? thread % CHUNKS : index % CHUNKS;
        if constexpr (!COLUMN_FIXED) source = global + static_cast<long long>(row) * row_stride + chunk * 8;
        if (TILE_CHUNKS % THREADS == 0 || index < TILE_CHUNKS)
            copy_async_16(smem_tile + tile_offset(row, chunk), source, CHUNK_BYTES);
        source += static_cast<long long>(ROWS_PER_STEP) * row_stride;
    }

    // Rows from `valid_rows` on become zeros; nothing is read for them.
    __device__ __forceinline__ void copy_tail(int valid_rows) const {
#pragma unroll 1
        for (int index = thread; index < TILE_CHUNKS; index += THREADS) {
            const int row = index / CHUNKS;
            const int chunk = index % CHUNKS;
            const int source_row = min(row, valid_rows - 1);  // a valid address, even where nothing is read
            copy_async_16(smem_tile + tile_offset(row, chunk),
                          global + static_cast<long long>(source_row) * row_stride + chunk * 8,
                          row < valid_rows ? CHUNK_BYTES : 0);
        }
    }

    __device__ __forceinline__ void copy(int valid_rows) {
        if (valid_rows >= ROWS) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) copy_next(step);
        } else {
            copy_tail(valid_rows);
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
// ---- derived constants ---------------------------------------------------------------------------------------------------
constexpr int WARP = 32;
constexpr int GROUP_THREADS = Cfg::WARPS_M * WARP;
constexpr int WARP_ROWS = 16 * Cfg::M_ATOMS;             // query rows of one warp
constexpr int K_STEPS = Cfg::HEAD_DIM / 16;              // mma steps over head_dim in S = Q Kᵀ
constexpr int KEY_TILES = Cfg::BLOCK_N / 8;              // mma columns of S
constexpr int D_TILES = Cfg::HEAD_DIM / 8;               // mma columns of O
constexpr int TILE_BYTES = Cfg::BLOCK_N * ROW_BYTES;     // one slot of a ring
constexpr int K_RING_BYTES = Cfg::STAGES_K * TILE_BYTES;
constexpr int V_RING_BYTES = Cfg::STAGES_V * TILE_BYTES;
constexpr int Q_BYTES = Cfg::Q_LOCATION == Cfg::Q_LOCATION_DIRECT ? 0 : Cfg::BLOCK_M * ROW_BYTES;
constexpr int MERGE_PITCH = Cfg::HEAD_DIM + 8;           // floats; 8 more so that eight rows fall into different banks
constexpr int MERGE_BYTES = Cfg::WARPS_N == 1 ? 0 : Cfg::BLOCK_M * (MERGE_PITCH + 2) * 4;  // O, then (maximum, sum) a row
constexpr int STAGING_BYTES =
    Cfg::EPILOGUE == Cfg::EPILOGUE_SHARED && Cfg::WARPS_N == 1 ? Cfg::BLOCK_M * ROW_BYTES : 0;
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int GROUP_BYTES = larger(larger(K_RING_BYTES + V_RING_BYTES, MERGE_BYTES), STAGING_BYTES);
constexpr int PROLOGUE_PAIRS = larger(Cfg::STAGES_K, Cfg::STAGES_V);

static_assert(Cfg::BLOCK_M == Cfg::WARPS_M * WARP_ROWS, "BLOCK_M is the rows of all warps of a group");
static_assert(Cfg::LAUNCH_THREADS == Cfg::WARPS_N * GROUP_THREADS, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == Q_BYTES + Cfg::WARPS_N * GROUP_BYTES, "host and kernel disagree on shared memory");
static_assert(Cfg::HEAD_DIM % 32 == 0 && Cfg::BLOCK_N % 16 == 0, "ldmatrix.x4 takes two 8-wide tiles at once");
static_assert(ROW_BYTES % CHUNK_BYTES == 0, "rows start on a 16-byte boundary");
static_assert(Cfg::WARPS_N <= 15, "hardware barrier 0 is the CTA's, 1 to 15 are the groups'");

// ---- barriers --------------------------------------------------------------------------------------------------------------
// Waits for all warps of one key group, and makes their shared-memory accesses and finished copies visible to each other.
__device__ __forceinline__ void group_barrier(int group) {
    if constexpr (Cfg::WARPS_M == 1) {
        __syncwarp();
    } else if constexpr (Cfg::WARPS_N == 1) {
        __syncthreads();
    } else {
        asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP_THREADS) : "memory");
    }
}

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

// Each lane fetches its own fragment values, two halves at a time; rows past the end become zeros.
__device__ __forceinline__ void load_queries_from_global(QueryFragments& q, const unsigned short* g_q, int row_stride,
                                                         int first_row, int seq_q, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + atom * 16 + half * 8 + (lane >> 2);
            const unsigned short* source = g_q + static_cast<long long>(row) * row_stride + (lane & 3) * 2;
#pragma unroll
            for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
                for (int column = 0; column < 2; ++column)
                    q.r[atom][step][half + 2 * column] =
                        row < seq_q ? *reinterpret_cast<const unsigned*>(source + step * 16 + column * 8) : 0u;
        }
}

// ---- one tile ----------------------------------------------------------------------------------------------------------------
struct Accumulators {
    float o[Cfg::M_ATOMS][D_TILES][4];   // unnormalised output
    float maximum[Cfg::M_ATOMS][2];      // running row maximum of S, the same in the four lanes of a row
    float sum[Cfg::M_ATOMS][2];          // this lane's share of the running row sum of P
};

// S[WARP_ROWS x BLOCK_N] = Q · Kᵀ of the tile in slot s_k.
__device__ __forceinline__ void scores(float (&s)[Cfg::M_ATOMS][KEY_TILES][4], QueryFragments& q, unsigned s_q,
                                       unsigned s_k, int warp_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) s[atom][tile][i] = 0.0f;
    const int key = (lane & 7) + ((lane >> 4) << 3);  // matrices: keys 0-7 chunk 0, keys 0-7 chunk 1, keys 8-15 …
    const int chunk = (lane >> 3) & 1;
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
        if constexpr (Cfg::Q_LOCATION == Cfg::Q_LOCATION_SHARED) {
#pragma unroll
            for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
                load_matrix_x4(q.r[atom][step], query_address(s_q, warp_row, atom, step, lane));
        }
#pragma unroll
        for (int pair = 0; pair < KEY_TILES / 2; ++pair) {
            unsigned b[4];  // B operands of two 8-key tiles
            load_matrix_x4(b, s_k + tile_offset(pair * 16 + key, 2 * step + chunk));
#pragma unroll
            for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
                mma_16x8x16(s[atom][2 * pair], q.r[atom][step], b[0], b[1]);
                mma_16x8x16(s[atom][2 * pair + 1], q.r[atom][step], b[2], b[3]);
            }
        }
    }
}

// Keys that a row must not see become -inf: those at or past seq_kv and, under the causal mask, those past the diagonal.
__device__ __forceinline__ void mask_scores(float (&s)[Cfg::M_ATOMS][KEY_TILES][4], int first_row, int first_key,
                                            const AttentionParams& p, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + atom * 16 + half * 8 + (lane >> 2);
            const int visible = Cfg::CAUSAL ? min(p.seq_kv, row + 1 + p.seq_kv - p.seq_q) : p.seq_kv;
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    if (first_key + tile * 8 + (lane & 3) * 2 + i >= visible) s[atom][tile][2 * half + i] = negative_infinity();
        }
}

struct Subtrahends {
    float r[Cfg::M_ATOMS][2];  // each row's running maximum, scaled: what is taken off before 2^
};

// Raises the running maxima to those of S, and scales down what was summed under the older, smaller ones.
__device__ __forceinline__ Subtrahends raise_maxima(const float (&s)[Cfg::M_ATOMS][KEY_TILES][4], Accumulators& acc,
                                                    float scale_log2) {
    Subtrahends subtrahends;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float maximum = acc.maximum[atom][half];
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; ++tile)
                maximum = fmaxf(maximum, fmaxf(s[atom][tile][2 * half], s[atom][tile][2 * half + 1]));
            maximum = quad_max(maximum);
            const float subtrahend = finite_max(maximum) * scale_log2;
            const float rescale = exp2_approx(fmaf(acc.maximum[atom][half], scale_log2, -subtrahend));
            acc.maximum[atom][half] = maximum;
            subtrahends.r[atom][half] = subtrahend;
            acc.sum[atom][half] *= rescale;
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
                for (int i = 0; i < 2; ++i) acc.o[atom][tile][2 * half + i] *= rescale;
        }
    return subtrahends;
}

// S becomes P = 2^(S · scale_log2 - subtrahend), for the 16 keys that one mma step over keys takes.
__device__ __forceinline__ void exponentiate(float (&s)[Cfg::M_ATOMS][KEY_TILES][4], Accumulators& acc,
                                             const Subtrahends& subtrahends, float scale_log2, int step) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& score = s[atom][2 * step + i / 2][2 * half + i % 2];
                score = exp2_approx(fmaf(score, scale_log2, -subtrahends.r[atom][half]));
                acc.sum[atom][half] += score;
            }
}

// O[WARP_ROWS x HEAD_DIM] += P · V of the tile in slot s_v. Two neighbouring 8-key tiles of P are one 16-deep A operand.
// `before(step)` runs before each 16 keys: exponentials made there overlap with the mma's of the keys before.
template <typename Before>
__device__ __forceinline__ void weighted_values(const float (&s)[Cfg::M_ATOMS][KEY_TILES][4], Accumulators& acc,
                                                unsigned s_v, int lane, Before before) {
    const int key = lane & 15;  // matrices: keys 0-7 chunk 0, keys 8-15 chunk 0, keys 0-7 chunk 1 …
    const int chunk = lane >> 4;
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step) {
        before(step);
        unsigned a[Cfg::M_ATOMS][4];
#pragma unroll
        for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = s[atom][2 * step + i / 2];
                a[atom][i] = pack_16bit(pair[(i % 2) * 2], pair[(i % 2) * 2 + 1]);
            }
#pragma unroll
        for (int pair = 0; pair < D_TILES / 2; ++pair) {
            unsigned b[4];  // B operands of two 8-column tiles
            load_matrix_x4_transposed(b, s_v + tile_offset(step * 16 + key, 2 * pair + chunk));
#pragma unroll
            for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
                mma_16x8x16(acc.o[atom][2 * pair], a[atom], b[0], b[1]);
                mma_16x8x16(acc.o[atom][2 * pair + 1], a[atom], b[2], b[3]);
            }
        }
    }
}

// ---- epilogue ------------------------------------------------------------------------------------------------------------------
// A row that saw no key has sum 0 and yields zeros.
__device__ __forceinline__ float reciprocal_or_zero(float sum) { return sum > 0.0f ? __fdividef(1.0f, sum) : 0.0f; }

// One key group: normalise and store, straight from the fragments (4 bytes a lane) or through shared memory (16 bytes).
__device__ __forceinline__ void store_output(const Accumulators& acc, unsigned short* g_o, const AttentionParams& p,
                                             unsigned char* s_stage, int first_row, int warp_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float inverse = reciprocal_or_zero(quad_sum(acc.sum[atom][half]));
            const int tile_row = atom * 16 + half * 8 + (lane >> 2);
            const int row = first_row + tile_row;
            unsigned short* target = g_o + static_cast<long long>(row) * p.o_row_stride + (lane & 3) * 2;
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile) {
                const unsigned packed =
                    pack_16bit(acc.o[atom][tile][2 * half] * inverse, acc.o[atom][tile][2 * half + 1] * inverse);
                if constexpr (Cfg::EPILOGUE == Cfg::EPILOGUE_SHARED) {
                    *reinterpret_cast<unsigned*>(s_stage + tile_offset(warp_row + tile_row, tile) + (lane & 3) * 4) = packed;
                } else if (row < p.seq_q) {
                    *reinterpret_cast<unsigned*>(target + tile * 8) = packed;
                }
            }
        }
    if constexpr (Cfg::EPILOGUE == Cfg::EPILOGUE_SHARED) {
        __syncwarp();  // the warp's rows are written by all its lanes and now read by others of them
#pragma unroll
        for (int step = 0; step < WARP_ROWS * CHUNKS / WARP; ++step) {
            const int tile_row = (step * WARP + lane) / CHUNKS;
            const int chunk = (step * WARP + lane) % CHUNKS;
            if (first_row + tile_row < p.seq_q)
                *reinterpret_cast<uint4*>(g_o + static_cast<long long>(first_row + tile_row) * p.o_row_stride + chunk * 8) =
                    *reinterpret_cast<const uint4*>(s_stage + tile_offset(warp_row + tile_row, chunk));
        }
    }
}

// Several key groups, first half: each warp leaves its unnormalised O, maxima and sums in its group's bytes.
//   s_group: float O[BLOCK_M][MERGE_PITCH], then float2 (maximum, sum)[BLOCK_M]
__device__ __forceinline__ void leave_partial(const Accumulators& acc, unsigned char* s_group, int warp_row, int lane) {
    float* s_o = reinterpret_cast<float*>(s_group);
    float2* s_stats = reinterpret_cast<float2*>(s_o + Cfg::BLOCK_M * MERGE_PITCH);
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + atom * 16 + half * 8 + (lane >> 2);
            const float sum = quad_sum(acc.sum[atom][half]);
            if ((lane & 3) == 0) s_stats[row] = make_float2(acc.maximum[atom][half], sum);
#pragma unroll
            for (int tile = 0; tile < D_TILES; ++tile)
                *reinterpret_cast<float2*>(s_o + row * MERGE_PITCH + tile * 8 + (lane & 3) * 2) =
                    make_float2(acc.o[atom][tile][2 * half], acc.o[atom][tile][2 * half + 1]);
        }
}

// Second half, after the CTA's barrier: eight threads take a row, sum the groups' partials and store it.
__device__ __forceinline__ void merge_and_store(const unsigned char* s_groups, unsigned short* g_o, const AttentionParams& p,
                                                int first_row, int thread) {
    constexpr int ROW_THREADS = 8;
    constexpr int COLUMNS = 4;                           // one 16-byte read each; eight threads then cover all banks
    constexpr int PIECES = Cfg::HEAD_DIM / (ROW_THREADS * COLUMNS);
#pragma unroll 1
    for (int row = thread / ROW_THREADS; row < Cfg::BLOCK_M; row += Cfg::LAUNCH_THREADS / ROW_THREADS) {
        float2 stats[Cfg::WARPS_N];
        float maximum = negative_infinity();
#pragma unroll
        for (int group = 0; group < Cfg::WARPS_N; ++group) {
            const float* s_o = reinterpret_cast<const float*>(s_groups + group * GROUP_BYTES);
            stats[group] = reinterpret_cast<const float2*>(s_o + Cfg::BLOCK_M * MERGE_PITCH)[row];
            maximum = fmaxf(maximum, stats[group].x);
        }
        const float subtrahend = finite_max(maximum) * p.scale_log2;
        float sum = 0.0f;
        float4 o[PIECES] = {};
#pragma unroll
        for (int group = 0; group < Cfg::WARPS_N; ++group) {
            const float* s_o = reinterpret_cast<const float*>(s_groups + group * GROUP_BYTES);
            const float weight = exp2_approx(fmaf(stats[group].x, p.scale_log2, -subtrahend));
            sum = fmaf(stats[group].y, weight, sum);
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece) {
                const int column = (piece * ROW_THREADS + thread % ROW_THREADS) * COLUMNS;
                const float4 part = *reinterpret_cast<const float4*>(s_o + row * MERGE_PITCH + column);
                o[piece].x = fmaf(part.x, weight, o[piece].x);
                o[piece].y = fmaf(part.y, weight, o[piece].y);
                o[piece].z = fmaf(part.z, weight, o[piece].z);
                o[piece].w = fmaf(part.w, weight, o[piece].w);
            }
        }
        const float inverse = reciprocal_or_zero(sum);
        if (first_row + row < p.seq_q) {
#pragma unroll
            for (int piece = 0; piece < PIECES; ++piece)
                *reinterpret_cast<uint2*>(g_o + static_cast<long long>(first_row + row) * p.o_row_stride +
                                          (piece * ROW_THREADS + thread % ROW_THREADS) * COLUMNS) =
                    make_uint2(pack_16bit(o[piece].x * inverse, o[piece].y * inverse),
                               pack_16bit(o[piece].z * inverse, o[piece].w * inverse));
        }
    }
}

// ---- kernel ----------------------------------------------------------------------------------------------------------------------
// grid: (query tiles, heads, batch). A register cap and a CTA count per SM are two ways to say the same: one at a time.
extern "C" __global__ void
__launch_bounds__(Cfg::LAUNCH_THREADS, Cfg::MIN_CTAS)
evo_attention(const __grid_constant__ AttentionParams p) {
    extern __shared__ __align__(128) unsigned char smem[];

    const int thread = threadIdx.x;
    const int lane = thread % WARP;
    const int group = thread / GROUP_THREADS;
    const int group_thread = thread % GROUP_THREADS;
    const int warp_row = group_thread / WARP * WARP_ROWS;  // first row of this warp inside the CTA's tile
    const int cta_row = blockIdx.x * Cfg::BLOCK_M;
    const int kv_head = blockIdx.y / p.heads_per_kv_head;

    const unsigned short* g_q = static_cast<const unsigned short*>(p.q) + blockIdx.z * p.q_batch_stride + blockIdx.y * p.q_head_stride;
    const unsigned short* g_k = static_cast<const unsigned short*>(p.k) + blockIdx.z * p.k_batch_stride + kv_head * p.k_head_stride;
    const unsigned short* g_v = static_cast<const unsigned short*>(p.v) + blockIdx.z * p.v_batch_stride + kv_head * p.v_head_stride;
    unsigned short* g_o = static_cast<unsigned short*>(p.o) + blockIdx.z * p.o_batch_stride + blockIdx.y * p.o_head_stride;

    unsigned char* smem_groups = smem + Q_BYTES;
    unsigned char* smem_group = smem_groups + group * GROUP_BYTES;
    const unsigned s_q = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    const unsigned s_k = static_cast<unsigned>(__cvta_generic_to_shared(smem_group));
    const unsigned s_v = s_k + K_RING_BYTES;

    // Keys past the last one that any row of the CTA sees are never loaded.
    const int last_row = min(cta_row + Cfg::BLOCK_M, p.seq_q) - 1;
    const int visible_keys = Cfg::CAUSAL ? min(p.seq_kv, last_row + 1 + p.seq_kv - p.seq_q) : p.seq_kv;
    const int tiles = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
    const int group_tiles = tiles > group ? (tiles - group + Cfg::WARPS_N - 1) / Cfg::WARPS_N : 0;

    using KeyTileCopy = TileCopy<Cfg::BLOCK_N, GROUP_THREADS>;
    auto first_key_of = [&](int index) { return (group + index * Cfg::WARPS_N) * Cfg::BLOCK_N; };
    auto tile_copy = [&](const unsigned short* g_tensor, int row_stride, unsigned s_ring, int stages, int index) {
        return KeyTileCopy(s_ring + index % stages * TILE_BYTES,
                           g_tensor + static_cast<long long>(first_key_of(index)) * row_stride, row_stride, group_thread);
    };
    auto copy_k = [&](int index) {
        if (index < group_tiles)
            tile_copy(g_k, p.k_row_stride, s_k, Cfg::STAGES_K, index).copy(p.seq_kv - first_key_of(index));
        copy_async_commit();  // also when empty: the waits below count groups
    };
    auto copy_v = [&](int index) {
        if (index < group_tiles)
            tile_copy(g_v, p.v_row_stride, s_v, Cfg::STAGES_V, index).copy(p.seq_kv - first_key_of(index));
        copy_async_commit();
    };

    // Groups of copies, in order: [Q] K0 V0 K1 V1 … (PROLOGUE_PAIRS pairs), then in the loop V and K in turn.
    QueryFragments q;
    if constexpr (Cfg::Q_LOCATION == Cfg::Q_LOCATION_DIRECT) {
        load_queries_from_global(q, g_q, p.q_row_stride, cta_row + warp_row, p.seq_q, lane);
    } else {
        TileCopy<Cfg::BLOCK_M, Cfg::LAUNCH_THREADS>(s_q, g_q + static_cast<long long>(cta_row) * p.q_row_stride,
                                                    p.q_row_stride, thread)
            .copy(p.seq_q - cta_row);
        copy_async_commit();
    }
#pragma unroll
    for (int stage = 0; stage < PROLOGUE_PAIRS; ++stage) {
        copy_k(stage < Cfg::STAGES_K ? stage : group_tiles);
        copy_v(stage < Cfg::STAGES_V ? stage : group_tiles);
    }

    Accumulators acc;
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom) {
        acc.maximum[atom][0] = acc.maximum[atom][1] = negative_infinity();
        acc.sum[atom][0] = acc.sum[atom][1] = 0.0f;
#pragma unroll
        for (int tile = 0; tile < D_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc.o[atom][tile][i] = 0.0f;
    }

    if constexpr (Cfg::Q_LOCATION != Cfg::Q_LOCATION_DIRECT) {
        copy_async_wait<2 * PROLOGUE_PAIRS>();
        __syncthreads();  // Q, copied by all threads of the CTA, is visible to all of them
        if constexpr (Cfg::Q_LOCATION == Cfg::Q_LOCATION_REGISTERS) load_queries_from_smem(q, s_q, warp_row, lane);
    }

#pragma unroll Cfg::UNROLL
    for (int index = 0; index < group_tiles; ++index) {
        const int first_key = first_key_of(index);

        if (index == 0) {
            copy_async_wait<2 * PROLOGUE_PAIRS - 1>();
        } else {
            copy_async_wait<2 * Cfg::STAGES_K - 2>();
        }
        group_barrier(group);  // A: K of this tile is visible; all warps are done with V of the last tile, its slot is free

        if (index > 0) copy_v(index - 1 + Cfg::STAGES_V);

        float s[Cfg::M_ATOMS][KEY_TILES][4];
        scores(s, q, s_q, s_k + index % Cfg::STAGES_K * TILE_BYTES, warp_row, lane);
        const bool crosses_end = first_key + Cfg::BLOCK_N > p.seq_kv;
        const bool crosses_diagonal = Cfg::CAUSAL && first_key + Cfg::BLOCK_N > cta_row + warp_row + 1 + p.seq_kv - p.seq_q;
        if (crosses_end || crosses_diagonal) mask_scores(s, cta_row + warp_row, first_key, p, lane);

        const Subtrahends subtrahends = raise_maxima(s, acc, p.scale_log2);
        if constexpr (!Cfg::EXP_WITH_PV) {
#pragma unroll
            for (int step = 0; step < KEY_TILES / 2; ++step) exponentiate(s, acc, subtrahends, p.scale_log2, step);
        }

        copy_async_wait<2 * Cfg::STAGES_V - 2>();
        group_barrier(group);  // B: V of this tile is visible; all warps are done with K of this tile, its slot is free
        copy_k(index + Cfg::STAGES_K);

        weighted_values(s, acc, s_v + index % Cfg::STAGES_V * TILE_BYTES, lane, [&](int step) {
            if constexpr (Cfg::EXP_WITH_PV) exponentiate(s, acc, subtrahends, p.scale_log2, step);
        });
    }

    if constexpr (Cfg::WARPS_N == 1) {
        // Staging takes this warp's own rows of the Q tile, which only it reads; without one, the rings', which all read.
        if constexpr (Cfg::EPILOGUE == Cfg::EPILOGUE_SHARED && Cfg::Q_LOCATION == Cfg::Q_LOCATION_DIRECT) {
            copy_async_wait<0>();
            group_barrier(group);  // all warps are done with the rings, whose bytes become the staging tile
        }
        store_output(acc, g_o, p, smem, cta_row + warp_row, warp_row, lane);
    } else {
        copy_async_wait<0>();
        group_barrier(group);  // all warps of the group are done with its rings, whose bytes take their partial results
        leave_partial(acc, smem_group, warp_row, lane);
        __syncthreads();  // the partial results of all groups are visible to all threads
        merge_and_store(smem_groups, g_o, p, cta_row, thread);
    }
}
