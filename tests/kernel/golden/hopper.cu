// EvoEngine, family hopper, template 0000000000000000: BESIDE_VALUES=0 BLOCK_N=48 CONSUMERS=1 CTAS_PER_SM=1 EXP2_POLY=0 HEAD_GROUP=0 KEY_GROUPS=1 OVERLAP=False PACK_GQA=False PINGPONG=False Q_SLOTS=1 Q_SOURCE=smem SCHEDULE=static SHARE_LAST_ROUND=False SHARE_QO=False SPLIT_TILES=1 SPLIT_WAVES=0 STAGES=1 STORE_OP=plain
// Fused attention forward for Hopper, specialised by warpgroup: O = softmax(logits) V, logits = scale · Q Kᵀ
// (FlashAttention-3, Shah et al. 2024, sections 3.1 and 3.2).
//
//   warpgroup 0      producer: one thread copies tiles of Q, K and V to shared memory by TMA
//   warpgroup 1..C   consumers: 64 query rows each; S = Q Kᵀ and O += P V by wgmma, the softmax in registers between them;
//                    KEY_GROUPS of them share rows, take their key tiles in turn and merge their results at the end
//
//                 keys  ->                    A consumer, OVERLAP, tile j (the last keys come first):
//        K0 K1 K2 … (ring of STAGES tiles)      start S(j) = Q Kᵀ(j);  start O += P(j-1) V(j-1)
//   Q  [ S0 S1 S2 …                             wait for S(j); free K(j); raise maxima and rescale O where it must be
//        V0 V1 V2 … (ring of STAGES tiles)      P(j) = 2^(S - maximum); BESIDE_VALUES % of it done, wait for O; free V(j-1)
//
// A consumer passes the tiles that a mask hides from all of its rows, and releases their slots unread.
// With PINGPONG the consumers take turns to start products, so that one computes its softmax while another keeps the tensor
// cores busy. Registers move from the producer to the consumers (setmaxnreg).
//
// Shared memory: [Q: C / KEY_GROUPS × 64 rows] [O: the same, or the key groups' partial results; from Q's first byte on with
// SHARE_QO] [K ring] [V ring] [barriers]. A tile is panels of 64 columns, [rows][128 bytes] with TMA's and wgmma's 128-byte
// swizzle.
//
// With PACK_GQA the rows are those of all query heads that share a K/V head (row = query · group + head); the maps of Q and O have
// an axis for them. With SPLIT_WAVES several CTAs share the keys of a query tile: they leave partial results in the workspace,
// which the last of them merges. Of packed sequences, V rows past the end are zeroed in shared memory, and the rows of O past
// the end are not stored.
//
// Barriers: each slot has two mbarriers. `full` ends its phase when the bytes are there; the producer's thread announces them.
// `empty` ends its phase when every warp that reads the slot has released it (of K and V, the warps of one key group). Q is a
// ring of Q_SLOTS, the next piece of work, where the producer sends it, is in one of two slots. Named barriers 1 to 4 are the
// consumers' turns, 5 to 8 those among the warps of one consumer, 9 that of all consumers. Of packed sequences, a further mbarrier
// ends its phase when all consumers' warps have zeroed their share of V past the end.

struct Cfg {
    // Tunables.
    static constexpr int CONSUMERS = 1;  // warpgroups: consumer warpgroups: query groups of 64 rows each, times key groups; each has fewer registers the more there are
    static constexpr int BLOCK_N = 48;  // keys: keys in one tile
    static constexpr bool PACK_GQA = false;  // switch: fill a query tile with the rows of all query heads that share a K/V head
    static constexpr int SPLIT_WAVES = 0;  // waves: as many CTAs share the keys of a query tile as fill this many rounds of resident CTAs; 0 for one CTA a tile
    static constexpr int SPLIT_TILES = 1;  // tiles: fewest key tiles of a split, on average
    static constexpr int SCHEDULE_STATIC = 0, SCHEDULE_PERSISTENT = 1, SCHEDULE_DYNAMIC = 2;
    static constexpr int SCHEDULE = SCHEDULE_STATIC;  // order: a CTA for each piece of work, a fixed share of the pieces for each resident CTA, or the next piece from a counter
    static constexpr bool SHARE_LAST_ROUND = false;  // switch: share the key tiles of pieces that do not fill a round of the persistent grid among all its CTAs
    static constexpr int KEY_GROUPS = 1;  // consumers: consumers that share query rows: they take the key tiles in turn and merge their results through shared memory at the end
    static constexpr int HEAD_GROUP = 0;  // MiB: where tiles differ in length: size of K and V of the heads that are computed together, 0 for all heads
    static constexpr int CTAS_PER_SM = 1;  // CTAs: CTAs per SM that registers are divided among
    static constexpr int STAGES = 1;  // tiles: slots in the rings of K and of V
    static constexpr int Q_SLOTS = 1;  // tiles: query tiles in shared memory: with two, Q of the next piece of work is copied while this one is computed
    static constexpr bool SHARE_QO = false;  // switch: O leaves through the bytes of Q, and key groups merge in those of Q and the rings; the next piece of work waits for them
    static constexpr int STORE_OP_PLAIN = 0, STORE_OP_STREAMING = 1;
    static constexpr int STORE_OP = STORE_OP_PLAIN;  // st operator: store merged rows as usual, or as data that is not needed again (st.global.cs)
    static constexpr int Q_SOURCE_SMEM = 0, Q_SOURCE_REGISTERS = 1;
    static constexpr int Q_SOURCE = Q_SOURCE_SMEM;  // place: where wgmma reads Q
    static constexpr bool OVERLAP = false;  // switch: compute a tile's softmax beside the P V of the tile before
    static constexpr int BESIDE_VALUES = 0;  // %: share of a tile's exponentials made before the P V of the tile before is waited for; P is rounded beside the others
    static constexpr bool PINGPONG = false;  // switch: consumers take turns to start products, so that the softmax of one meets the products of another
    static constexpr int EXP2_POLY = 0;  // %: share of the exponentials that a polynomial on the FMA pipe makes instead of the special-function unit
    // Derived from them.
    static constexpr int THREADS = 256;  // threads: threads per CTA: the producer's warpgroup and the consumers
    static constexpr int BLOCK_M = 64;  // rows: query rows per CTA; with PACK_GQA those of whole queries, so that the last ones of a consumer may idle
    static constexpr int Q_BYTES = 8192;  // bytes: Q tile, or O tile on its way out: panels of 64 columns
    static constexpr int OUT_BYTES = 8192;  // bytes: O on its way out, or what each thread of each key group sends to each group: 16 bytes of statistics, and its share of O
    static constexpr int RING_BYTES = 12288;  // bytes: rings of K and V
    static constexpr int SMEM_BYTES = 28928;  // bytes: shared memory per CTA; splits leave no O there; the last 256 or 512 bytes are for barriers
    static constexpr int ENTRY_REGISTERS = 248;  // registers: per thread at launch, before they move from the producer to the consumers
    static constexpr int PRODUCER_REGISTERS = 24;  // registers: per thread of the producer's warpgroup
    static constexpr int CONSUMER_REGISTERS = 240;  // registers: per thread of a consumer
    static constexpr int LIVE_REGISTERS = 96;  // registers: estimate per thread of a consumer: O, S, P, Q, and the rest for addresses, masks and loop state
    static constexpr int M_ATOMS = 1;  // 16-row atoms: query rows of one warp
    static constexpr int WARPS_N = 1;  // warpgroups: the key groups, under the name that the merge shared with mma and wgmma has for them
    static constexpr int RESIDENT_CTAS = 58;  // CTAs: CTAs of a grid whose CTAs take several pieces of work
    static constexpr bool UNEQUAL_TILES = false;  // switch: whether query tiles see different numbers of keys
    static constexpr bool THREE_AXES = true;  // switch: whether the grid has an axis each for query tiles, heads and sequences
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
    static constexpr int LAUNCH_THREADS = 256;  // threads per CTA
    static constexpr int LAUNCH_SMEM_BYTES = 28928;  // bytes of dynamic shared memory per CTA
    static constexpr int Q_BOX_ROWS = 64;  // rows of a box of Q
    static constexpr int Q_BOX_COLUMNS = 64;  // elements of each of its rows
    static constexpr int Q_SWIZZLE_BYTES = 128;  // span of its swizzle in shared memory
    static constexpr int K_BOX_ROWS = 48;  // rows of a box of K
    static constexpr int K_BOX_COLUMNS = 64;  // elements of each of its rows
    static constexpr int K_SWIZZLE_BYTES = 128;  // span of its swizzle in shared memory
    static constexpr int V_BOX_ROWS = 48;  // rows of a box of V
    static constexpr int V_BOX_COLUMNS = 64;  // elements of each of its rows
    static constexpr int V_SWIZZLE_BYTES = 128;  // span of its swizzle in shared memory
    static constexpr int O_BOX_ROWS = 64;  // rows of a box of O
    static constexpr int O_BOX_COLUMNS = 64;  // elements of each of its rows
    static constexpr int O_SWIZZLE_BYTES = 128;  // span of its swizzle in shared memory
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
// The second argument of kernels that copy with TMA, mirrored from evoengine/kernel/tensor_maps.py: one tensor map for each
// [[maps]] table of template.toml, in their order. The axes of a map are head_dim, rows, heads, sequences; of packed sequences,
// all rows are one sequence. Elements outside the tensor are read as zero and not written.
struct __align__(128) TensorMap {
    unsigned char opaque[128];
};
struct TensorMaps {
    TensorMap q;  // boxes of 64 rows and 64 columns, swizzle 128
    TensorMap k;  // boxes of 48 rows and 64 columns, swizzle 128
    TensorMap v;  // boxes of 48 rows and 64 columns, swizzle 128
    TensorMap o;  // boxes of 64 rows and 64 columns, swizzle 128
};
static_assert(sizeof(TensorMaps) == 512, "TensorMaps differs between host and device");
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
constexpr int WARPGROUP = 128;
constexpr int WARPS = WARPGROUP / WARP;             // of one warpgroup
constexpr int WARPGROUP_ROWS = 64;
constexpr int WARP_ROWS = 16;
constexpr int PANEL_COLUMNS = 64;                   // one line of the 128-byte swizzle
constexpr int PANEL_ROW_BYTES = 128;
constexpr int EIGHT_ROWS_BYTES = 8 * PANEL_ROW_BYTES;
constexpr int PANELS = (Cfg::HEAD_DIM + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
constexpr int K_STEPS = (Cfg::HEAD_DIM + 15) / 16;  // tensor-core steps over head_dim in S = Q Kᵀ
constexpr int KEY_TILES = Cfg::BLOCK_N / 8;         // eights of columns of S
constexpr int D_TILES = Cfg::HEAD_DIM / 8;          // eights of columns of O

constexpr int ROWS_PANEL_BYTES = WARPGROUP_ROWS * PANEL_ROW_BYTES;  // a panel of one consumer's rows of Q or O
constexpr int ROWS_BYTES = PANELS * ROWS_PANEL_BYTES;
constexpr int KEYS_PANEL_BYTES = Cfg::BLOCK_N * PANEL_ROW_BYTES;    // a panel of one tile of K or V
constexpr int KEYS_BYTES = PANELS * KEYS_PANEL_BYTES;
constexpr int QUERY_GROUPS = Cfg::CONSUMERS / Cfg::KEY_GROUPS;
constexpr int Q_BYTES = QUERY_GROUPS * ROWS_BYTES;
constexpr int RING_BYTES = Cfg::STAGES * KEYS_BYTES;

constexpr bool SPLIT = Cfg::SPLIT_WAVES > 0;         // other CTAs take the rest of the keys
constexpr bool KEYS_FIRST = SPLIT || Cfg::PACK_GQA;  // few queries: the keys are what takes time to read

// Merge of the key groups (flash/exchange.cuh).
constexpr int GROUP_THREADS = QUERY_GROUPS * WARPGROUP;
constexpr int SHARE = (D_TILES + Cfg::KEY_GROUPS - 1) / Cfg::KEY_GROUPS;         // tiles of O that a key group ends
constexpr int GROUP_BYTES = Cfg::KEY_GROUPS * (1 + SHARE) * GROUP_THREADS * 16;  // what a key group sends

// Shared memory: Q, O, rings of K and V, barriers. In O's place key groups have their partial results; splits leave no O. With
// SHARE_QO, O takes the place of its own Q, and partial results begin where Q does and reach into the rings.
constexpr int OUT_BYTES = SPLIT ? 0 : Cfg::KEY_GROUPS == 1 ? Q_BYTES : Cfg::KEY_GROUPS * GROUP_BYTES;
constexpr int O_OFFSET = Cfg::SHARE_QO ? 0 : Cfg::Q_SLOTS * Q_BYTES;
constexpr int K_OFFSET = Cfg::Q_SLOTS * Q_BYTES + (Cfg::SHARE_QO ? 0 : OUT_BYTES);
constexpr int V_OFFSET = K_OFFSET + RING_BYTES;
constexpr int BARRIERS_OFFSET = larger(V_OFFSET + RING_BYTES, O_OFFSET + OUT_BYTES);
constexpr int BARRIERS_BYTES = Cfg::STAGES > 4 ? 512 : 256;
constexpr int SMEM_BYTES = BARRIERS_OFFSET + BARRIERS_BYTES;

constexpr bool SUM_ON_TENSOR = false;
constexpr bool LAZY_RESCALE = true;
constexpr bool MAXIMA_OF_THREE = true;  // Hopper compares three integers at once
constexpr bool STAYS = Cfg::SCHEDULE != Cfg::SCHEDULE_STATIC;  // a CTA may have further pieces of work
constexpr bool Q_IN_REGISTERS = Cfg::Q_SOURCE == Cfg::Q_SOURCE_REGISTERS;

static_assert(QUERY_GROUPS * Cfg::KEY_GROUPS == Cfg::CONSUMERS, "consumers are query groups times key groups");
static_assert(Cfg::BLOCK_M == QUERY_GROUPS * WARPGROUP_ROWS, "a query group has 64 rows");
static_assert(Cfg::STAGES % Cfg::KEY_GROUPS == 0, "a slot belongs to one key group");
static_assert(Cfg::LAUNCH_THREADS == (Cfg::CONSUMERS + 1) * WARPGROUP, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == SMEM_BYTES, "host and kernel disagree on shared memory");
static_assert(Cfg::BLOCK_N % 16 == 0 && Cfg::BLOCK_N <= 256, "P V takes 16 keys at once, and a box has 256 rows at most");
static_assert(!(Q_IN_REGISTERS && Cfg::SHARE_QO), "Q in registers leaves its bytes early, O takes them late");
static_assert(Cfg::Q_SLOTS == 1 || Cfg::KEY_GROUPS == 1 || !Cfg::SHARE_QO, "partial results in the rings are of one piece");
static_assert(!(Cfg::PACKED && Cfg::KEY_GROUPS > 1), "all consumers read the tile of V that they clear past a sequence's end");
static_assert(!(SPLIT && (STAYS || Cfg::SHARE_QO)), "a split leaves no O in shared memory, and has no second piece of work");

// Query rows of one consumer: with PACK_GQA those of whole queries, so that a few of the 64 may idle.
__device__ __forceinline__ int consumer_rows(const AttentionParams& p) {
    return Cfg::PACK_GQA ? WARPGROUP_ROWS / p.heads_per_kv_head * p.heads_per_kv_head : WARPGROUP_ROWS;
}
__device__ __forceinline__ int cta_rows(const AttentionParams& p) { return QUERY_GROUPS * consumer_rows(p); }
__device__ __forceinline__ int query_tiles(const AttentionParams& p) {  // of the longest sequence
    const unsigned rows = p.seq_q * (Cfg::PACK_GQA ? p.heads_per_kv_head : 1), of_tile = cta_rows(p);
    return (rows + of_tile - 1) / of_tile;
}
// The grid has a CTA for each split of each piece.
__device__ __forceinline__ int split_count(const AttentionParams& p) {
    return gridDim.x / (query_tiles(p) * (Cfg::PACK_GQA ? p.heads / p.heads_per_kv_head : p.heads) * p.batch);
}
// This CTA's share of its piece's keys. The splits of a piece start together, so that they end together.
__device__ __forceinline__ unsigned own_split(const AttentionParams& p) { return SPLIT ? blockIdx.x % split_count(p) : 0; }
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
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                 "%24, %28, more, 1, 1, 0, 0;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                 "%25, %29, more, 1, 1, 0, 0;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                 "%26, %30, more, 1, 1, 0, 0;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23}, "
                 "%27, %31, more, 1, 1, 0, 0;\n"
                 "}"
                 : "=f"(d[0][0]), "=f"(d[0][1]), "=f"(d[0][2]), "=f"(d[0][3]), "=f"(d[1][0]), "=f"(d[1][1]), "=f"(d[1][2]), "=f"(d[1][3]), "=f"(d[2][0]), "=f"(d[2][1]), "=f"(d[2][2]), "=f"(d[2][3]), "=f"(d[3][0]), "=f"(d[3][1]), "=f"(d[3][2]), "=f"(d[3][3]), "=f"(d[4][0]), "=f"(d[4][1]), "=f"(d[4][2]), "=f"(d[4][3]), "=f"(d[5][0]), "=f"(d[5][1]), "=f"(d[5][2]), "=f"(d[5][3])
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
                 "{%32, %33, %34, %35}, %44, more, 1, 1, 1;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%36, %37, %38, %39}, %45, more, 1, 1, 1;\n"
                 "setp.ne.b32 more, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%40, %41, %42, %43}, %46, more, 1, 1, 1;\n"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
                 : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]), "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]), 
"l"(b[0]), "l"(b[1]), "l"(b[2]));

}
// ---- mbarriers: when bytes have arrived, and when a slot is free ----------------------------------------------------------------
// A phase of an mbarrier ends when all its arrivals and all announced bytes are there. A wait names the parity of the phase; on a
// fresh barrier, the wait for parity 1 (the phase before the first) succeeds at once.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives in the lanes whose `arrives` is set, by a predicate: after a branch that some lanes take, ptxas 13.0 does not always bring
// the warp together again, and stmatrix and shuffles need all lanes.
__device__ __forceinline__ void barrier_arrive_if(bool arrives, unsigned barrier) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%1];\n}" ::"r"(
                     static_cast<int>(arrives)),
                 "r"(barrier)
                 : "memory");
}
// Arrives, and announces bytes that copies will report.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ bool barrier_is_done(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    while (!barrier_is_done(barrier, parity)) {
    }
}

constexpr int MBARRIER_BYTES = 8;

// Two barriers for each of SLOTS slots: full (its bytes are there) and empty (all its readers, READERS consumers, are done).
template <int SLOTS, int READERS = Cfg::CONSUMERS>
struct Slots {
    static constexpr int PAIR_BYTES = 2 * MBARRIER_BYTES;
    static constexpr int BYTES = SLOTS * PAIR_BYTES;

    unsigned barriers;
    int slot = 0;
    unsigned phase = 0;  // parity of the slot's present use

    __device__ __forceinline__ explicit Slots(unsigned barriers) : barriers(barriers) {}
    __device__ __forceinline__ unsigned full() const { return barriers + slot * PAIR_BYTES; }
    __device__ __forceinline__ unsigned empty() const { return full() + MBARRIER_BYTES; }

    // One thread of the CTA, before all others come. Readers arrive once a warp.
    __device__ __forceinline__ void init() const {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            barrier_init(barriers + i * PAIR_BYTES, 1);
            barrier_init(barriers + i * PAIR_BYTES + MBARRIER_BYTES, READERS * WARPS);
        }
    }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty(), phase ^ 1); }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full(), phase); }
    // This warp does not read the slot any more, and has waited for its wgmma's that did.
    __device__ __forceinline__ void release(int lane) const {
        barrier_arrive_if(lane == 0, empty());
    }
    // The same after reads by the warp's threads: without a fence of each thread, the next copy could overtake them.
    __device__ __forceinline__ void release_read(int lane) const {
        fence_async_proxy();
        __syncwarp();  // all lanes have executed it
        release(lane);
    }
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
    // Goes to the slot of a ring's use number `use`, counted from the kernel's start.
    __device__ __forceinline__ void seek(unsigned use) {
        slot = use % SLOTS;
        phase = use / SLOTS & 1;
    }
    // STEPS times advance().
    template <int STEPS>
    __device__ __forceinline__ void skip() {
        slot += STEPS % SLOTS;
        phase ^= STEPS / SLOTS & 1;
        if (slot >= SLOTS) {
            slot -= SLOTS;
            phase ^= 1;
        }
    }
};

using QuerySlots = Slots<Cfg::Q_SLOTS>;
using KeySlots = Slots<Cfg::STAGES, QUERY_GROUPS>;  // a tile is read by one key group
using WorkSlots = Slots<2>;  // the next pieces of work, which the producer found

// Barrier of all consumers that each reaches at its own place in the code. A hardware barrier would do, but compute-sanitizer
// reports one that warps reach by different instructions as divergence.
struct ConsumerBarrier {
    unsigned barrier;
    unsigned phase = 0;

    __device__ __forceinline__ explicit ConsumerBarrier(unsigned barrier) : barrier(barrier) {}
    __device__ __forceinline__ void init() const { barrier_init(barrier, Cfg::CONSUMERS * WARPS); }  // one thread of the CTA
    // Waits for all warps of all consumers; what each has written before is visible to all.
    __device__ __forceinline__ void wait(int lane) {
        __syncwarp();  // all lanes have written: lane 0 arrives for them
        barrier_arrive_if(lane == 0, barrier);
        barrier_wait(barrier, phase);
        phase ^= 1;
    }
};

// The barriers lie one after the other, with the pieces of work that WorkSlots guards.
constexpr int Q_BARRIERS = 0;
constexpr int K_BARRIERS = Q_BARRIERS + QuerySlots::BYTES;
constexpr int V_BARRIERS = K_BARRIERS + KeySlots::BYTES;
constexpr int WORK_BARRIERS = V_BARRIERS + KeySlots::BYTES;
constexpr int NEXT_PIECES = WORK_BARRIERS + WorkSlots::BYTES;
constexpr int LAST_SPLIT = NEXT_PIECES + 2 * sizeof(int4);  // whether this CTA is the last of its tile's splits
constexpr int VALUES_CLEARED = LAST_SPLIT + 8;    // of packed sequences: V has zeros past the end
static_assert(VALUES_CLEARED + MBARRIER_BYTES <= BARRIERS_BYTES, "the barriers fit");

// Initialises all barriers; one thread. They are visible to all threads, and to the copies, after the CTA's barrier.
__device__ __forceinline__ void init_barriers(unsigned s_barriers) {
    QuerySlots(s_barriers + Q_BARRIERS).init();
    KeySlots(s_barriers + K_BARRIERS).init();
    KeySlots(s_barriers + V_BARRIERS).init();
    WorkSlots(s_barriers + WORK_BARRIERS).init();
    if constexpr (Cfg::PACKED) ConsumerBarrier(s_barriers + VALUES_CLEARED).init();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // for the arrivals of other threads
    fence_async_proxy();                                                // for the bytes that copies report
}

// ---- hardware barriers among warpgroups -----------------------------------------------------------------------------------------
// Numbers of the first barrier of each kind; 0 is the CTA's.
constexpr int TURN_BARRIER = 1;           // one for each consumer: its turn has come
constexpr int CONSUMER_BARRIER = 5;       // one for each consumer: all its warps
constexpr int ALL_CONSUMERS_BARRIER = 9;
static_assert(TURN_BARRIER + Cfg::CONSUMERS <= CONSUMER_BARRIER && CONSUMER_BARRIER + Cfg::CONSUMERS <= ALL_CONSUMERS_BARRIER,
              "each consumer has two hardware barriers");

__device__ __forceinline__ void named_barrier_sync(int name, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// Waits for all warps of one consumer.
__device__ __forceinline__ void consumer_barrier(int consumer) { named_barrier_sync(CONSUMER_BARRIER + consumer, WARPGROUP); }
// Waits for all consumers.
__device__ __forceinline__ void consumers_barrier() { named_barrier_sync(ALL_CONSUMERS_BARRIER, Cfg::CONSUMERS * WARPGROUP); }
// ---- bulk copies of tiles by TMA: [rows][64 columns] panels with 128-byte swizzle ---------------------------------------------
// A map holds address, sizes and strides of its tensor, and the size of the box that one copy moves. Rows past the end and
// columns past head_dim are read as zeros, and not written.

// Starts the copy of one tile, a panel at a time; it reports its bytes to the barrier.
template <int PANEL_BYTES>
__device__ __forceinline__ void load_tile(unsigned s_tile, const TensorMap& map, unsigned barrier, int row, int head,
                                          int sequence) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
        asm volatile(
            "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(
                s_tile + panel * PANEL_BYTES),
            "l"(&map), "r"(barrier), "r"(panel * PANEL_COLUMNS), "r"(row), "r"(head), "r"(sequence)
            : "memory");
}

// The same for one consumer's rows of Q. With PACK_GQA a box holds all heads of a group, a query at a time, and `head` is the
// group's.
__device__ __forceinline__ void load_queries(unsigned s_rows, const TensorMap& map, unsigned barrier, int query, int head,
                                             int sequence) {
    if constexpr (Cfg::PACK_GQA) {
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel)
            asm volatile(
                "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, 0, %4, %5, %6}], "
                "[%2];" ::"r"(s_rows + panel * ROWS_PANEL_BYTES),
                "l"(&map), "r"(barrier), "r"(panel * PANEL_COLUMNS), "r"(query), "r"(head), "r"(sequence)
                : "memory");
    } else {
        load_tile<ROWS_PANEL_BYTES>(s_rows, map, barrier, query, head, sequence);
    }
}

// Starts the copy of one consumer's rows of O to global memory, as one group.
__device__ __forceinline__ void store_rows(const TensorMap& map, unsigned s_rows, int query, int head, int sequence) {
#pragma unroll
    for (int panel = 0; panel < PANELS; ++panel)
        if constexpr (Cfg::PACK_GQA) {
            asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, 0, %3, %4, %5}], [%1];" ::"l"(&map),
                         "r"(s_rows + panel * ROWS_PANEL_BYTES), "r"(panel * PANEL_COLUMNS), "r"(query), "r"(head),
                         "r"(sequence)
                         : "memory");
        } else {
            asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
                         "r"(s_rows + panel * ROWS_PANEL_BYTES), "r"(panel * PANEL_COLUMNS), "r"(query), "r"(head),
                         "r"(sequence)
                         : "memory");
        }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until this thread's stores have read their bytes in shared memory.
__device__ __forceinline__ void wait_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Waits until they are done.
__device__ __forceinline__ void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Fetches a map, which lies in the kernel's parameters, before the first copy needs it.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
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
// ---- products of tiles by wgmma -------------------------------------------------------------------------------------------------
// Descriptor of a tile: 128-byte swizzle, groups of eight rows side by side; PANEL_BYTES from one panel to the next, which
// matters where wgmma's columns run over panels (V). Its lower half is made once a tile: a step further in the tile adds a
// constant to it.
template <int PANEL_BYTES>
struct TileDescriptor {
    static constexpr unsigned HIGH = 1u << 30 | EIGHT_ROWS_BYTES / 16;

    unsigned low;

    __device__ __forceinline__ explicit TileDescriptor(unsigned smem_address) : low((PANEL_BYTES / 16) << 16 | smem_address / 16) {}
    __device__ __forceinline__ unsigned long long at(int offset_bytes) const {
        return static_cast<unsigned long long>(HIGH) << 32 | (low + offset_bytes / 16);
    }
};

// Byte offset of a 16-byte chunk in one consumer's rows of Q or O.
__device__ __forceinline__ int rows_offset(int row, int chunk) {
    return chunk / 8 * ROWS_PANEL_BYTES + row * PANEL_ROW_BYTES + ((chunk ^ row) & 7) * 16;
}

// Q of one consumer: an address in shared memory, or all A operands of this lane.
struct Queries {
    unsigned s_rows;
    unsigned r[Q_IN_REGISTERS ? K_STEPS : 1][4];

    __device__ __forceinline__ void load(int warp, int lane) {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
            load_matrix_x4(r[step], s_rows + rows_offset(warp * WARP_ROWS + (lane & 15), 2 * step + (lane >> 4)));
    }
    __device__ __forceinline__ void negate_registers() {
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) r[step][i] ^= TWO_SIGNS;
    }
};

// Negates one consumer's rows of Q where they lie; all its threads.
__device__ __forceinline__ void negate_rows(unsigned char* rows, int thread) {
#pragma unroll 1
    for (int offset = thread * 16; offset < ROWS_BYTES; offset += WARPGROUP * 16)
        negate_16bit(*reinterpret_cast<uint4*>(rows + offset));
}

// Starts S[64 x BLOCK_N] = Q · Kᵀ of the tile at s_k.
__device__ __forceinline__ void start_scores(Scores& s, Queries& q, unsigned s_k) {
    if constexpr (Q_IN_REGISTERS) pin(q.r);
    const TileDescriptor<KEYS_PANEL_BYTES> keys(s_k);
    // Descriptors of each step; a panel holds four steps of 32 bytes.
    unsigned long long b[K_STEPS];
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) b[step] = keys.at(step / 4 * KEYS_PANEL_BYTES + step % 4 * 32);
    const TileDescriptor<ROWS_PANEL_BYTES> rows(q.s_rows);
    unsigned long long a[K_STEPS];
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) a[step] = rows.at(step / 4 * ROWS_PANEL_BYTES + step % 4 * 32);
    warpgroup_fence();
    wgmma_scores(s[0], a, b);
    warpgroup_commit();
}

// Starts O += P · V of the tile at s_v.
__device__ __forceinline__ void start_values(Accumulators& acc, unsigned (&weights)[KEY_TILES / 2][4], unsigned s_v) {
    const TileDescriptor<KEYS_PANEL_BYTES> values(s_v);
    unsigned long long b[KEY_TILES / 2];
#pragma unroll
    for (int step = 0; step < KEY_TILES / 2; ++step) b[step] = values.at(step * 2 * EIGHT_ROWS_BYTES);
    pin(acc.o[0]);
    pin(weights);
    warpgroup_fence();
    wgmma_values(acc.o[0], weights, b);
    warpgroup_commit();
}
// ---- packed sequences: copies end with the tensor, not with a sequence -------------------------------------------------------
// Where a piece's rows and keys begin in the tensors. Packed sequences are one sequence of the maps.
struct Place {
    int head;  // of Q and O; with PACK_GQA, the group's
    int sequence;
    int first_query = 0;
    int first_key = 0;

    __device__ __forceinline__ Place(const AttentionParams& p, const Work& work) : head(work.head), sequence(work.sequence) {
        if constexpr (Cfg::PACKED) {
            first_query = p.cu_seqlens_q[sequence];
            first_key = p.cu_seqlens_kv[sequence];
            sequence = 0;
        }
    }
};

// Zeros rows [first, end) of a tile in shared memory, whose panels lie `panel_bytes` apart; `count` threads, of which this is one.
__device__ __forceinline__ void clear_rows(unsigned s_tile, int panel_bytes, int first, int end, int thread, int count) {
    constexpr int CHUNK = 16;
#pragma unroll 1
    for (int panel = 0; panel < PANELS; ++panel)
#pragma unroll 1
        for (int offset = first * PANEL_ROW_BYTES + thread * CHUNK; offset < end * PANEL_ROW_BYTES; offset += count * CHUNK)
            asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(s_tile + panel * panel_bytes + offset), "r"(0)
                         : "memory");
}

// Zeros what a tile of V has past the sequence's end: rows of another sequence, whose weights are zero, but 0 · NaN is not. Only
// the first tile can have any. All consumers read the tile, and clear it together before any of them starts P V.
__device__ __forceinline__ void clear_values_past_end(const KeySlots& v_slots, ConsumerBarrier& cleared, const Rows& rows,
                                                      int first_key, unsigned s_v) {
    const int inside = rows.keys - first_key;
    if (inside >= Cfg::BLOCK_N) return;
    v_slots.wait_full();
    clear_rows(s_v, KEYS_PANEL_BYTES, inside, Cfg::BLOCK_N, threadIdx.x - WARPGROUP, Cfg::CONSUMERS * WARPGROUP);
    fence_async_proxy();
    cleared.wait(threadIdx.x % WARP);  // the zeros are visible to the wgmma's of all consumers
}

// Stores one consumer's rows of O that belong to the sequence; the threads of its warpgroup. TMA would write the others too.
__device__ __forceinline__ void copy_rows_inside(const Rows& rows, int first_row, const unsigned char* s_rows, int thread) {
    constexpr int CHUNKS = Cfg::HEAD_DIM / 8;
    const int count = min(rows.count() - first_row, consumer_rows(rows.p));
#pragma unroll 1
    for (int index = thread; index < count * CHUNKS; index += WARPGROUP) {
        const int row = index / CHUNKS, chunk = index % CHUNKS;
        store_values(rows.o(first_row + row) + chunk * 8, *reinterpret_cast<const uint4*>(s_rows + rows_offset(row, chunk)));
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
// ---- split-KV: CTAs that share the keys of a query tile leave partial results in the workspace, and one step combines them ----
constexpr long long PARTIAL_FLOATS = Cfg::BLOCK_M * (Cfg::HEAD_DIM + 2);

// One query tile whose keys several CTAs share.
struct SplitTile {
    int counter;              // index of the tile's counter
    int splits;               // CTAs that share it
    int split;                // number of this one
    long long first_partial;  // where the partial results of its splits begin in the workspace, in their order
};

// Number of a work's query tile among those of all sequences and heads.
__device__ __forceinline__ int tile_number(const AttentionParams& p, const Work& work) {
    return (work.sequence * work_heads(p) + work.head) * query_tiles(p) + work.tile;
}

// Where every tile has the same number of splits.
__device__ __forceinline__ SplitTile split_tile(const AttentionParams& p, const Work& work, int splits) {
    const int number = tile_number(p, work);
    return {number, splits, static_cast<int>(work.split), static_cast<long long>(number) * splits};
}

__device__ __forceinline__ Partial<Cfg::HEAD_DIM> split_partial(const AttentionParams& p, const SplitTile& tile, int split) {
    return {static_cast<float*>(p.workspace) + (tile.first_partial + split) * PARTIAL_FLOATS};
}

// Merges rows [first, end) of a tile over all splits and stores them. Reads bypass L1, which may hold older bytes. A read
// has a long latency, so the reads of TOGETHER splits of ROWS rows are under way at once.
template <int THREADS, int TOGETHER, int ROWS = 1>
__device__ __forceinline__ void combine_splits(const Rows& rows, const SplitTile& tile, int cta_row, int first, int end, int thread) {
    constexpr int ROW_THREADS = Cfg::HEAD_DIM > 64 ? 32 : Cfg::HEAD_DIM > 32 ? 16 : 8;  // four columns each
    constexpr int APART = THREADS / ROW_THREADS;                                        // one thread's rows
    using Row = MergedRow<ROW_THREADS>;
    const int splits = tile.splits;
    const float scale = logit_scale(rows.p);
#pragma unroll 1
    for (int top = first + thread / ROW_THREADS; top < end; top += ROWS * APART) {
        Row merged[ROWS];
#pragma unroll 1
        for (int from = 0; from < splits; from += TOGETHER) {
            float2 parts[ROWS][TOGETHER];
            float4 o[ROWS][TOGETHER][Row::PIECES];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    const int row = ROWS == 1 ? top : min(top + r * APART, end - 1);
                    const Partial<Cfg::HEAD_DIM> partial = split_partial(rows.p, tile, min(from + i, splits - 1));
                    parts[r][i] = __ldcg(partial.stats(row));
#pragma unroll
                    for (int piece = 0; piece < Row::PIECES; ++piece)
                        if (Row::has(piece, thread))
                            o[r][i][piece] = __ldcg(reinterpret_cast<const float4*>(partial.at(row, Row::column(piece, thread))));
                }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float maximum = merged[r].maximum;
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) maximum = fmaxf(maximum, parts[r][i].x);
                const float subtrahend = finite_max(maximum) * scale;
                if (from > 0) merged[r].scale_down(exp2_approx(fmaf(merged[r].maximum, scale, -subtrahend)));
                merged[r].maximum = maximum;
#pragma unroll
                for (int i = 0; i < TOGETHER; ++i) {
                    if (from + i >= splits) continue;
                    const float weight = exp2_approx(fmaf(parts[r][i].x, scale, -subtrahend));
                    merged[r].add_sum(parts[r][i].y, weight);
#pragma unroll
                    for (int piece = 0; piece < Row::PIECES; ++piece)
                        if (Row::has(piece, thread)) merged[r].add(piece, o[r][i][piece], weight);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (ROWS == 1 || top + r * APART < end) merged[r].store(rows, cta_row + top + r * APART, thread);
    }
}

// Increments a counter, which wraps to 0 after `last`; returns the value before. Releases the writes that this thread sees to the
// whole GPU, and acquires those that other threads released by their increments.
__device__ __forceinline__ unsigned count_up(unsigned* counter, unsigned last) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// Whether this CTA is the last of its tile's splits to get here. Then all their partial results are visible to it, and the
// tile's counter is back at zero. `barrier` waits for all threads that call this.
template <typename Barrier>
__device__ __forceinline__ bool last_split(const AttentionParams& p, const SplitTile& tile, bool& s_last, int thread, Barrier barrier) {
    barrier();  // the CTA's partial result is written, and no thread reads shared memory any more
    if (thread == 0) {
        const unsigned last = tile.splits - 1;
        s_last = count_up(p.counters + tile.counter, last) == last;
    }
    barrier();  // s_last is visible to all threads
    return s_last;
}
// ---- the last round of a persistent grid, shared (a hybrid of Stream-K, Osama et al. 2023, section 4.3) ---------------------------
// Pieces that are too few for a round of their own would leave CTAs idle. Their key tiles, laid one after the other, are dealt out
// in equal runs instead. A run may cross from one piece to the next; CTAs that share a piece leave partial results, as splits do.
//
//   3 pieces of 4 key tiles, 5 CTAs:   | 0 0 1 1 | 2 2 2 3 | 3 4 4 4 |   (the CTA of each tile; the run of CTA c begins at 12 · c / 5)
struct LastRound {
    int pieces;
    int length;  // key tiles of a piece: all pieces have as many
    int tiles;   // of all these pieces
    int ctas;    // that take tiles

    __device__ __forceinline__ LastRound(int pieces, int length)
        : pieces(pieces), length(length), tiles(pieces * length), ctas(min(static_cast<int>(gridDim.x), tiles)) {}

    // The run of a CTA begins here, and ends where the next one's begins.
    __device__ __forceinline__ int begin(int cta) const {
        const int first = min(cta, ctas), each = tiles / ctas, left = tiles % ctas;
        return each * first + left * first / ctas;  // tiles · first / ctas, which could pass 2^31
    }
    __device__ __forceinline__ int cta_of(int tile) const {
        return static_cast<int>((static_cast<long long>(tile + 1) * ctas - 1) / tiles);
    }
    // End of this CTA's share of the piece that `tile` belongs to.
    __device__ __forceinline__ int end_of_share(int tile) const {
        return min((tile / length + 1) * length, begin(blockIdx.x + 1));
    }

    // The piece that `tile` belongs to. Counted along the row of tiles, CTA and piece go up in turn or together, so that their sum
    // numbers the partial results.
    __device__ __forceinline__ SplitTile split_tile(int tile) const {
        const int piece = tile / length, first = cta_of(piece * length), last = cta_of((piece + 1) * length - 1);
        return {piece, last - first + 1, static_cast<int>(blockIdx.x) - first, static_cast<long long>(first) + piece};
    }
};
// ---- schedule: which piece of work a CTA computes, and in which order ----------------------------------------------------------
// A piece of work is a query tile of one head (with PACK_GQA: of the heads that share a K/V head) of one sequence. Pieces are
// numbered. With splits, a piece has as many CTAs as fill the config's number of waves, each with a share of the keys.
//   static      one CTA a piece; the grid has an axis each for tiles, heads and sequences where the order allows it
//   persistent  a CTA takes every gridDim.x-th piece; where tiles differ in length, every second round in opposite order; with
//               SHARE_LAST_ROUND, the pieces that do not fill a round are shared by all CTAs
//   dynamic     a CTA takes the next piece by a counter in global memory
// Tiles that see the most keys come first, where tiles differ. Heads then come in groups whose K and V stay in the L2 cache.
constexpr bool UNEQUAL_TILES = (Cfg::CAUSAL || Cfg::HAS_WINDOW_RIGHT) && !Cfg::HAS_WINDOW_LEFT;
// Divisions take long, and the first copies wait for them: a CTA with one piece reads its place from its block index instead.
constexpr bool THREE_AXES = !STAYS && !SPLIT && !(UNEQUAL_TILES && Cfg::HEAD_GROUP > 0);
// Finding a piece takes divisions, which would delay the consumers at the end of each piece: the producer finds it for them while
// they compute. On a persistent grid of equal tiles it takes one division, and each consumer finds its next piece itself.
constexpr bool PIECES_SENT = Cfg::SCHEDULE == Cfg::SCHEDULE_DYNAMIC || (STAYS && UNEQUAL_TILES);

// The key tiles that some row of a query tile sees, or a share of them: keys [begin, …), the last tile first, where a mask's edge
// lies.
struct KeyTiles {
    int begin;
    int count;

    __device__ __forceinline__ KeyTiles(const Rows& rows, int cta_row) {
        const int last_row = min(cta_row + cta_rows(rows.p), rows.count()) - 1;
        begin = rows.begin_of(rows.query(cta_row));
        const int visible_keys = rows.end_of(rows.query(last_row)) - begin;
        count = visible_keys > 0 ? (visible_keys + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N : 0;
    }

    __device__ __forceinline__ void keep(int first, int end) {
        begin += first * Cfg::BLOCK_N;
        count = end - first;
    }
    __device__ __forceinline__ int first_key(int index) const { return begin + (count - 1 - index) * Cfg::BLOCK_N; }
};

// Piece of work that a CTA computes next.
struct Piece {
    int number;  // among all pieces; from the schedule's count on there is none
    Work work;

    // Packs it into 16 bytes. The split is left out: a CTA with several pieces computes whole ones.
    __device__ __forceinline__ int4 packed() const {
        return make_int4(number, work.tile, static_cast<int>(work.head), static_cast<int>(work.sequence));
    }
    // Unpacks bytes that are the same in all lanes of a warp; the shuffles make them uniform for the compiler.
    __device__ __forceinline__ static Piece unpacked(const int4& bytes) {
        auto same = [](int value) { return __shfl_sync(0xffffffffu, value, 0); };
        return {same(bytes.x), {same(bytes.y), static_cast<unsigned>(same(bytes.z)), static_cast<unsigned>(same(bytes.w)), 0}};
    }
};

// Divides by multiplying: a division takes some twenty instructions, one after the other.
struct Divisor {
    unsigned value;
    unsigned inverse;

    __device__ __forceinline__ explicit Divisor(unsigned value) : value(value), inverse(0xffffffffu / value) {}

    // n / value for all n: the product is less than one below it, so that the whole part is right or one too small.
    __device__ __forceinline__ unsigned quotient(unsigned n) const {
        const unsigned whole = static_cast<unsigned>(static_cast<unsigned long long>(n) * inverse >> 32);
        return whole + (n - whole * value >= value);
    }
};

struct Schedule {
    Divisor tiles;        // query tiles of one head
    Divisor of_sequence;  // heads of one sequence
    unsigned heads;       // of all sequences
    unsigned group_size;  // heads whose tiles of one length follow each other
    int whole;  // pieces of complete rounds; the numbers after them are those of the last round's key tiles, if it is shared
    LastRound last_round;

    __device__ __forceinline__ explicit Schedule(const AttentionParams& p)
        : tiles(query_tiles(p)), of_sequence(work_heads(p)), heads(work_heads(p) * p.batch), group_size(heads),
          whole(pieces() / gridDim.x * gridDim.x),
          last_round(pieces() - whole, (p.seq_kv + Cfg::BLOCK_N - 1) / Cfg::BLOCK_N) {
        if constexpr (UNEQUAL_TILES && Cfg::HEAD_GROUP > 0) {
            constexpr unsigned MIB = 1u << 20, KEY_BYTES = 2 * 2 * Cfg::HEAD_DIM;  // of K and V
            constexpr unsigned FITTING_KEYS = Cfg::HEAD_GROUP * MIB / KEY_BYTES;
            const unsigned fitting = FITTING_KEYS / p.seq_kv * (p.heads_per_kv_head / rows_per_query(p));
            group_size = min(max(fitting, 1u), heads);
        }
    }

    __device__ __forceinline__ int pieces() const { return tiles.value * heads; }

    __device__ __forceinline__ int count() const {
        if constexpr (THREE_AXES) return 1;
        return Cfg::SHARE_LAST_ROUND ? whole + last_round.tiles : pieces();
    }
    __device__ __forceinline__ bool shares(int number) const { return Cfg::SHARE_LAST_ROUND && number >= whole; }

    __device__ __forceinline__ Work work(const AttentionParams& p, int number) const {
        if constexpr (THREE_AXES && UNEQUAL_TILES)
            return {static_cast<int>(gridDim.z - 1 - blockIdx.z), blockIdx.x, blockIdx.y, 0};
        if constexpr (THREE_AXES) return {static_cast<int>(blockIdx.x), blockIdx.y, blockIdx.z, 0};
        if (shares(number)) number = whole + (number - whole) / last_round.length;
        unsigned head = tiles.quotient(number), tile = number - head * tiles.value;
        if constexpr (UNEQUAL_TILES) {
            const unsigned first_head = Cfg::HEAD_GROUP > 0 ? number / (group_size * tiles.value) * group_size : 0;
            const unsigned place = number - first_head * tiles.value;
            const unsigned size = min(group_size, heads - first_head);  // the last group may be smaller
            const unsigned longer = place / size;                       // tiles that come before
            tile = tiles.value - 1 - longer;
            head = first_head + place - longer * size;
        }
        const unsigned sequence = of_sequence.quotient(head);
        return {static_cast<int>(tile), head - sequence * of_sequence.value, sequence, own_split(p)};
    }

    // The key tiles of a piece that this CTA takes. Splits are as even as can be; some are empty where tiles are few.
    __device__ __forceinline__ KeyTiles key_tiles(const Rows& rows, const Work& work, int number) const {
        KeyTiles all(rows, work.tile * cta_rows(rows.p));
        if constexpr (SPLIT) {
            const int splits = split_count(rows.p);
            const int split = work.split;
            all.keep(all.count * split / splits, all.count * (split + 1) / splits);
        }
        if (shares(number)) {
            const int first_tile = (number - whole) / last_round.length * last_round.length;
            all.keep(number - whole - first_tile, last_round.end_of_share(number - whole) - first_tile);
        }
        return all;
    }

    __device__ __forceinline__ SplitTile split_tile(const AttentionParams& p, const Work& work, int number) const {
        if constexpr (SPLIT) return ::split_tile(p, work, split_count(p));
        if (shares(number)) return last_round.split_tile(number - whole);
        return {0, 1, 0, 0};
    }

    // This CTA's piece after `number`; `round` is that of the piece asked for.
    __device__ __forceinline__ Piece next(const AttentionParams& p, int number, int round) const {
        const int following = Cfg::SCHEDULE == Cfg::SCHEDULE_DYNAMIC ? draw(p) : in_round(number, round);
        return {following, work(p, following)};
    }
    __device__ __forceinline__ int in_round(int number, int round) const {
        if (shares(number)) {
            const int end = last_round.end_of_share(number - whole);
            return end < last_round.begin(blockIdx.x + 1) ? whole + end : count();
        }
        const bool backward = UNEQUAL_TILES && round % 2 == 1;
        const int following = backward ? (round + 1) * gridDim.x - 1 - blockIdx.x : round * gridDim.x + blockIdx.x;
        return shares(following) ? first_in_last_round() : following;
    }
    __device__ __forceinline__ Piece first(const AttentionParams& p) const {
        int number = THREE_AXES ? 0 : SPLIT ? blockIdx.x / split_count(p) : blockIdx.x;
        if (shares(number)) number = first_in_last_round();
        return {number, work(p, number)};
    }
    __device__ __forceinline__ int first_in_last_round() const {
        return static_cast<int>(blockIdx.x) < last_round.ctas ? whole + last_round.begin(blockIdx.x) : count();
    }

    // Draws the next piece of a dynamic schedule. The last draw of all resets the counter to zero for the next launch.
    __device__ __forceinline__ int draw(const AttentionParams& p) const {
        const unsigned ticket = atomicAdd(p.counters, 1u);
        if (ticket + 1 == static_cast<unsigned>(count())) atomicExch(p.counters, 0u);
        return gridDim.x + ticket;
    }
};
// ---- key groups: consumers that share the rows of a query group and take its key tiles in turn -----------------------------
// Group g has the tiles g, g + KEY_GROUPS, … from rings that all groups share. Each group has its own O, sums and maxima.
struct GroupTiles {
    KeyTiles all;
    int group;
    int count;  // of the group

    __device__ __forceinline__ GroupTiles(const KeyTiles& all, int group)
        : all(all), group(group), count(of_group(all.count)) {}

    // How many of the first `tiles` of all tiles are the group's.
    __device__ __forceinline__ int of_group(int tiles) const {
        return Cfg::KEY_GROUPS == 1 ? max(tiles, 0) : max(tiles - group + Cfg::KEY_GROUPS - 1, 0) / Cfg::KEY_GROUPS;
    }

    __device__ __forceinline__ int first_key(int index) const { return all.first_key(group + index * Cfg::KEY_GROUPS); }
    // Whether the group has one tile fewer than the first group.
    __device__ __forceinline__ bool one_fewer() const { return count * Cfg::KEY_GROUPS < all.count; }
};

// The tiles of a group, [first, end) in their order, in which one consumer's rows see a key. A mask's edge leaves some of the CTA's
// tiles to other consumers; rows past the last one see nothing.
struct SeenTiles {
    int first;
    int end;

    __device__ __forceinline__ SeenTiles(const Rows& rows, const GroupTiles& tiles, int first_row) : first(0), end(tiles.count) {
        if constexpr (QUERY_GROUPS > 1) {
            const int last_row = min(first_row + consumer_rows(rows.p), rows.count()) - 1;
            const int seen_keys = rows.end_of(rows.query(max(last_row, 0))) - tiles.all.begin;
            const int hidden_keys = rows.begin_of(rows.query(first_row)) - tiles.all.begin;
            const int seen = last_row < first_row ? 0 : max(seen_keys + Cfg::BLOCK_N - 1, 0) / Cfg::BLOCK_N;
            first = min(tiles.of_group(tiles.all.count - seen), tiles.count);
            end = min(tiles.of_group(tiles.all.count - max(hidden_keys, 0) / Cfg::BLOCK_N), tiles.count);
        }
    }

    __device__ __forceinline__ int count() const { return end - first; }
};

// From the slot of a group's tile to that of its next one.
__device__ __forceinline__ void next_tile(KeySlots& slots) {
    if constexpr (Cfg::KEY_GROUPS == 1) {
        slots.advance();
    } else {
        slots.skip<Cfg::KEY_GROUPS>();
    }
}

// Loads one tile for each group, from tile `first` on: K of all groups, which they need first, then V. A slot is waited for only
// after all copies without which its readers would not release it: the rings have a slot for each group.
template <typename LoadK, typename LoadV>
__device__ __forceinline__ void load_round(int first, int count, LoadK load_k, LoadV load_v) {
    const int end = min(first + Cfg::KEY_GROUPS, count);
#pragma unroll 1
    for (int index = first; index < end; ++index) load_k(index);
#pragma unroll 1
    for (int index = first; index < end; ++index) load_v(index);
}
// ---- the end of a split's CTA ---------------------------------------------------------------------------------------------------
// Loads under way at once in the merge: splits have few rows, a shared last round has few splits of a piece.
constexpr int SPLITS_TOGETHER = SPLIT ? 8 : 2;
constexpr int ROWS_TOGETHER = SPLIT ? 1 : 4;

// Leaves the partial results of all consumers in the workspace, their rows side by side; the last CTA of a tile merges them.
__device__ __forceinline__ void end_split(const Rows& rows, const Work& work, const SplitTile& tile, const Accumulators& acc,
                                          unsigned char* smem) {
    constexpr int THREADS = Cfg::CONSUMERS * WARPGROUP;
    const int thread = threadIdx.x - WARPGROUP;  // among the consumers'
    const int first_row = thread / WARPGROUP * consumer_rows(rows.p);
    const int cta_row = work.tile * cta_rows(rows.p);
    const int rows_left = min(cta_rows(rows.p), rows.count() - cta_row);
    leave_partial(acc, split_partial(rows.p, tile, tile.split), min(rows_left, first_row + consumer_rows(rows.p)),
                  first_row + thread % WARPGROUP / WARP * WARP_ROWS, thread % WARP);
    bool& s_last = *reinterpret_cast<bool*>(smem + BARRIERS_OFFSET + LAST_SPLIT);
    if (last_split(rows.p, tile, s_last, thread, [] { consumers_barrier(); }))
        combine_splits<THREADS, SPLITS_TOGETHER, ROWS_TOGETHER>(rows, tile, cta_row, 0, rows_left, thread);
}
// ---- producer: one thread that keeps the rings full ----------------------------------------------------------------------------
// Loads the rows of Q of all query groups.
__device__ __forceinline__ void produce_queries(QuerySlots& slot, const TensorMaps& maps, const Rows& rows, const Place& place,
                                                unsigned s_base, int cta_row) {
    slot.wait_empty();  // all consumers are done with Q, and with O in its place, of the piece before
    barrier_expect(slot.full(), cta_rows(rows.p) * PANELS * PANEL_ROW_BYTES);
#pragma unroll
    for (int group = 0; group < QUERY_GROUPS; ++group)
        load_queries(s_base + slot.slot * Q_BYTES + group * ROWS_BYTES, maps.q, slot.full(),
                     place.first_query + rows.query(cta_row + group * consumer_rows(rows.p)), place.head, place.sequence);
    slot.advance();
}

__device__ __forceinline__ void produce(const AttentionParams& p, const TensorMaps& maps, unsigned s_base, int4* next_pieces) {
    const unsigned s_barriers = s_base + BARRIERS_OFFSET;
    QuerySlots q_slots(s_barriers + Q_BARRIERS);
    KeySlots k_slots(s_barriers + K_BARRIERS), v_slots(s_barriers + V_BARRIERS);
    WorkSlots work_slots(s_barriers + WORK_BARRIERS);
    const Schedule schedule(p);

    Piece piece = schedule.first(p);
#pragma unroll 1
    for (int round = 1; piece.number < schedule.count(); ++round) {
        const Work work = piece.work;
        const Rows rows(p, work);
        const int cta_row = work.tile * cta_rows(p);
        const bool has_rows = !Cfg::PACKED || cta_row < rows.count();
        const Place place(p, work);
        const KeyTiles tiles = schedule.key_tiles(rows, work, piece.number);
        const int count = has_rows ? tiles.count : 0;
        auto load_k = [&](int index) {
            k_slots.wait_empty();  // all its readers have computed S from what the slot held
            barrier_expect(k_slots.full(), KEYS_BYTES);
            load_tile<KEYS_PANEL_BYTES>(s_base + K_OFFSET + k_slots.slot * KEYS_BYTES, maps.k, k_slots.full(),
                                        place.first_key + tiles.first_key(index), rows.kv_head, place.sequence);
            k_slots.advance();
        };
        auto load_v = [&](int index) {
            v_slots.wait_empty();  // all its readers have added P V of what the slot held
            barrier_expect(v_slots.full(), KEYS_BYTES);
            load_tile<KEYS_PANEL_BYTES>(s_base + V_OFFSET + v_slots.slot * KEYS_BYTES, maps.v, v_slots.full(),
                                        place.first_key + tiles.first_key(index), rows.kv_head, place.sequence);
            v_slots.advance();
        };

        if (!KEYS_FIRST && has_rows) produce_queries(q_slots, maps, rows, place, s_base, cta_row);
        if constexpr (Cfg::KEY_GROUPS > 1) {
            load_round(0, count, load_k, load_v);
        } else if (count > 0) {
            load_k(0);
        }
        if (KEYS_FIRST && has_rows) produce_queries(q_slots, maps, rows, place, s_base, cta_row);
        Piece following{schedule.count(), work};
        auto find_next = [&] {
            if constexpr (STAYS) following = schedule.next(p, piece.number, round);
            if constexpr (PIECES_SENT) {
                work_slots.wait_empty();  // all consumers have read the piece two before
                next_pieces[work_slots.slot] = following.packed();
                barrier_arrive(work_slots.full());
                work_slots.advance();
            }
        };
        if constexpr (Cfg::KEY_GROUPS > 1) {
            find_next();
#pragma unroll 1
            for (int first = Cfg::KEY_GROUPS; first < count; first += Cfg::KEY_GROUPS) load_round(first, count, load_k, load_v);
        } else {
#pragma unroll 1
            for (int index = 1; index <= count; ++index) {
                if (index < count) load_k(index);
                load_v(index - 1);
                if (index == 1) find_next();  // the first copies do not wait for it
            }
            if (count == 0) find_next();
        }
        piece = following;
    }
}
// ---- consumers: a warpgroup computes 64 rows of each piece of work, over all keys or its key group's ----------------------------
// State that a consumer keeps from one piece to the next.
struct Consumer {
    int index;        // among the consumers, the same in all lanes
    int query_group;  // place of its 64 rows in the query tile
    int key_group;    // place of its key tiles among those that the groups share
    int thread;       // of the warpgroup
    int warp;         // of the warpgroup
    int lane;
    QuerySlots q_slots;
    KeySlots k_slots, v_slots;
    WorkSlots work_slots;
    ConsumerBarrier values_cleared;

    __device__ __forceinline__ Consumer(int index, unsigned s_barriers)
        : index(index), query_group(Cfg::KEY_GROUPS == 1 ? index : index % QUERY_GROUPS),
          key_group(Cfg::KEY_GROUPS == 1 ? 0 : index / QUERY_GROUPS), thread(threadIdx.x % WARPGROUP),
          warp(threadIdx.x % WARPGROUP / WARP), lane(threadIdx.x % WARP),
          q_slots(s_barriers + Q_BARRIERS), k_slots(s_barriers + K_BARRIERS), v_slots(s_barriers + V_BARRIERS),
          work_slots(s_barriers + WORK_BARRIERS), values_cleared(s_barriers + VALUES_CLEARED) {}

    __device__ __forceinline__ int first_row(const AttentionParams& p, const Work& work) const {
        return work.tile * cta_rows(p) + query_group * consumer_rows(p);
    }

    // Ping-pong: a consumer starts its products in its turn, while the others are at their softmax.
    __device__ __forceinline__ void begin_turns() const {
        if (Cfg::PINGPONG && index == Cfg::CONSUMERS - 1) named_barrier_arrive(TURN_BARRIER, 2 * WARPGROUP);  // the first one begins
    }
    __device__ __forceinline__ void wait_turn() const {
        if constexpr (Cfg::PINGPONG) named_barrier_sync(TURN_BARRIER + index, 2 * WARPGROUP);
    }
    __device__ __forceinline__ void end_turn() const {
        if constexpr (Cfg::PINGPONG) named_barrier_arrive(TURN_BARRIER + (index + 1) % Cfg::CONSUMERS, 2 * WARPGROUP);
    }
};

// Applies softcap and mask to a tile's scores, where it needs them.
__device__ __forceinline__ void cap_and_mask(Scores& s, const Rows& rows, int first_row, int first_key, const Consumer& me) {
    if constexpr (Cfg::HAS_SOFTCAP) cap_scores(s, rows.p);
    const bool crosses_end = first_key + Cfg::BLOCK_N > rows.end_of(rows.query(first_row));
    const int last_query = rows.query(first_row + consumer_rows(rows.p) - 1);
    const bool crosses_begin = Cfg::HAS_WINDOW_LEFT && first_key < rows.begin_of(last_query);
    if (crosses_end || crosses_begin) mask_scores(s, rows, first_row + me.warp * WARP_ROWS, first_key, me.lane);
}

// Leaves tiles [first, end) to the other consumers: passes their turns on, and releases their slots.
__device__ __forceinline__ void pass_tiles(Consumer& me, const Rows& rows, const GroupTiles& tiles, int first, int end,
                                           unsigned s_base) {
#pragma unroll 1
    for (int index = first; index < end; ++index) {
        me.k_slots.wait_full();  // an earlier release would count for the use of the slot before
        me.k_slots.release(me.lane);
        next_tile(me.k_slots);
        me.wait_turn();
        me.end_turn();
        if (Cfg::PACKED && index == 0)  // all consumers wait for each other there, some after their turn
            clear_values_past_end(me.v_slots, me.values_cleared, rows, tiles.first_key(0),
                                  s_base + V_OFFSET + me.v_slots.slot * KEYS_BYTES);
        me.v_slots.wait_full();
        me.v_slots.release(me.lane);
        next_tile(me.v_slots);
    }
}

// Computes unnormalised O, row sums and maxima of one consumer's rows, from the tiles that they see.
__device__ __forceinline__ void attend(Consumer& me, const Rows& rows, const GroupTiles& tiles, const SeenTiles& seen,
                                       int first_row, Queries& q, unsigned s_base, Accumulators& acc) {
    const float scale = logit_scale(rows.p);
    Scores s;
    Limits limits;
    unsigned weights[KEY_TILES / 2][4];
    auto s_k = [&] { return s_base + K_OFFSET + me.k_slots.slot * KEYS_BYTES; };
    auto s_v = [&] { return s_base + V_OFFSET + me.v_slots.slot * KEYS_BYTES; };
    auto end_k = [&] {
        me.k_slots.release(me.lane);
        next_tile(me.k_slots);
    };
    auto end_v = [&] {
        me.v_slots.release(me.lane);
        next_tile(me.v_slots);
    };
    // The steps of a tile, of 16 keys each, that are made before P V of the tile before is waited for.
    constexpr int BESIDE = Cfg::OVERLAP ? KEY_TILES / 2 * Cfg::BESIDE_VALUES / 100 : 0;
    auto exponentiate_steps = [&](const Subtrahends& subtrahends, int first, int end) {
#pragma unroll
        for (int step = first; step < end; ++step) exponentiate(s, acc, subtrahends, scale, step);
    };

    me.k_slots.wait_full();
    me.wait_turn();
    start_scores(s, q, s_k());
    me.end_turn();
    if constexpr (Q_IN_REGISTERS && STAYS) me.q_slots.release_read(me.lane);  // Q of the next piece takes these bytes
    warpgroup_wait<0>();
    pin(s[0]);
    end_k();
    cap_and_mask(s, rows, first_row, tiles.first_key(seen.first), me);
    exponentiate_steps(raise_and_rescale<true>(s, acc, limits, scale), 0, KEY_TILES / 2);
    pack_weights(s, weights);
    if (Cfg::PACKED && seen.first == 0)
        clear_values_past_end(me.v_slots, me.values_cleared, rows, tiles.first_key(0), s_v());
#pragma unroll 1
    for (int index = seen.first + 1; index < seen.end; ++index) {
        if constexpr (Cfg::OVERLAP) {  // S of this tile, then P V of the last one, and some of the softmax beside that
            me.k_slots.wait_full();
            me.wait_turn();
            start_scores(s, q, s_k());
            me.v_slots.wait_full();
            start_values(acc, weights, s_v());
            me.end_turn();
            warpgroup_wait<1>();
            pin(s[0]);
            end_k();
            cap_and_mask(s, rows, first_row, tiles.first_key(index), me);
            auto end_last = [&] {
                end_values(acc, weights);
                end_v();
            };
            const Raised raised = raise_where_needed(s, acc, limits, scale, [&] {
                if constexpr (BESIDE == 0) end_last();
            });
            if constexpr (BESIDE > 0) {
                exponentiate_steps(limits.subtrahends, 0, BESIDE);
                keep_before(acc.sum[0][0]);  // ptxas would move the wait for P V in front of the softmax
                end_last();
            }
            rescale_output(acc, raised);
            exponentiate_steps(limits.subtrahends, BESIDE, KEY_TILES / 2);
        } else {  // P V of the last tile and S of this one together, then the softmax alone
            me.v_slots.wait_full();
            me.wait_turn();
            start_values(acc, weights, s_v());
            me.k_slots.wait_full();
            start_scores(s, q, s_k());
            me.end_turn();
            end_values(acc, weights);
            pin(s[0]);
            end_v();
            end_k();
            cap_and_mask(s, rows, first_row, tiles.first_key(index), me);
            exponentiate_steps(raise_and_rescale<false>(s, acc, limits, scale), 0, KEY_TILES / 2);
        }
        pack_weights(s, weights);
    }
    if constexpr (!Q_IN_REGISTERS && !Cfg::SHARE_QO) me.q_slots.release(me.lane);  // no further S needs Q
    me.v_slots.wait_full();
    start_values(acc, weights, s_v());
    end_values(acc, weights);
    end_v();
}

// Normalises O and leaves it in shared memory as TMA reads it, each warp its 16 rows.
__device__ __forceinline__ void stage_output(const Consumer& me, const Rows& rows, int first_row, unsigned s_rows,
                                             const Accumulators& acc) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own_row = me.warp * WARP_ROWS + half * 8 + me.lane / 4;
        const int row = first_row + own_row;
        const bool inside = row < rows.count() && (!Cfg::PACK_GQA || own_row < consumer_rows(rows.p));
        const RowEnd end = end_row(rows, inside ? row : 0, acc.maximum[0][half], row_sum(acc, 0, half));
        if (Cfg::HAS_LSE && inside && me.lane % 4 == 0) *rows.lse(row) = end.lse;
        factor[half] = end.factor;
    }
    const int row = me.warp * WARP_ROWS + (me.lane & 15);  // the row whose address this lane passes
#pragma unroll
    for (int tile = 0; tile < D_TILES; tile += 2) {
        const bool paired = tile + 1 < D_TILES;  // an odd count ends with a column block that the store leaves out
        unsigned r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* pair = &acc.o[0][i < 2 || paired ? tile + i / 2 : tile][i % 2 * 2];
            r[i] = pack_16bit(pair[0] * factor[i % 2], pair[1] * factor[i % 2]);
        }
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         s_rows + rows_offset(row, tile + (me.lane >> 4))),
                     "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                     : "memory");
    }
}

// Ends a piece of work: O through shared memory to its place, and Q's bytes free for the next piece.
__device__ __forceinline__ void store_output(Consumer& me, const TensorMaps& maps, const Rows& rows, const Place& place,
                                             int first_row, unsigned char* smem, unsigned s_base, const Accumulators& acc) {
    const int offset = O_OFFSET + (Cfg::SHARE_QO ? me.q_slots.slot * Q_BYTES : 0) + me.index * ROWS_BYTES;
    const unsigned s_rows = s_base + offset;
    if constexpr (STAYS && !Cfg::SHARE_QO) {
        if (me.thread == 0) wait_stores_read();  // of the piece before
    }
    // All warps are done with Q in these bytes, and the store of the piece before has read them.
    if constexpr (STAYS || Cfg::SHARE_QO) consumer_barrier(me.index);
    stage_output(me, rows, first_row, s_rows, acc);
    fence_async_proxy();
    consumer_barrier(me.index);  // the rows of all warps are there, and visible to the copy
    if (Cfg::PACKED && first_row + consumer_rows(rows.p) > rows.count()) {
        copy_rows_inside(rows, first_row, smem + offset, me.thread);
    } else if (me.thread == 0) {
        store_rows(maps.o, s_rows, place.first_query + rows.query(first_row), place.head, place.sequence);
        if constexpr (STAYS && Cfg::SHARE_QO) wait_stores_read();
    }
    if constexpr (STAYS && Cfg::SHARE_QO) {
        consumer_barrier(me.index);  // the store has read its bytes, which Q of the next piece takes
        if constexpr (Cfg::PACKED) {
            me.q_slots.release_read(me.lane);  // threads have read the last rows of a sequence
        } else {
            me.q_slots.release(me.lane);
        }
    }
}
// The CTA's piece of work after the one in this round.
__device__ __forceinline__ Piece next_piece(Consumer& me, const AttentionParams& p, const Schedule& schedule, const Piece& piece,
                                            int round, const int4* next_pieces) {
    if constexpr (PIECES_SENT) {
        me.work_slots.wait_full();
        const int4 sent = next_pieces[me.work_slots.slot];
        __syncwarp();  // all lanes have read it
        me.work_slots.release(me.lane);
        me.work_slots.advance();
        return Piece::unpacked(sent);
    }
    if constexpr (STAYS) return schedule.next(p, piece.number, round);
    return {schedule.count(), piece.work};
}

__device__ __forceinline__ void consume(const AttentionParams& p, const TensorMaps& maps, int index, unsigned char* smem,
                                        const int4* next_pieces) {
    const unsigned s_base = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    Consumer me(index, s_base + BARRIERS_OFFSET);
    const Schedule schedule(p);
    me.begin_turns();
    Piece piece = schedule.first(p);
    if constexpr (Cfg::PACK_GQA) {
        if (consumer_rows(p) < WARPGROUP_ROWS) {  // no copy fills the idle rows, which wgmma reads
#pragma unroll
            for (int slot = 0; slot < Cfg::Q_SLOTS; ++slot)
                clear_rows(s_base + slot * Q_BYTES + me.query_group * ROWS_BYTES, ROWS_PANEL_BYTES, consumer_rows(p), WARPGROUP_ROWS,
                           me.thread, WARPGROUP);
            fence_async_proxy();
            consumer_barrier(me.index);  // the zeros are visible to the wgmma's of all warps
        }
    }
    unsigned first_tile = 0;  // of this piece, among all tiles that the rings hold one after the other
#pragma unroll 1
    for (int round = 1; piece.number < schedule.count(); ++round) {
        const Work& work = piece.work;
        const Rows rows(p, work);
        if (Cfg::PACKED && work.tile * cta_rows(p) >= rows.count()) {  // the sequence is shorter than the longest
            piece = next_piece(me, p, schedule, piece, round, next_pieces);
            continue;
        }
        GroupTiles tiles(schedule.key_tiles(rows, work, piece.number), me.key_group);
        if constexpr (Cfg::SHARE_LAST_ROUND) tiles.count = __shfl_sync(0xffffffffu, tiles.count, 0);  // uniform, too
        const int first_row = me.first_row(p, work);
        const SeenTiles seen(rows, tiles, first_row);
        Queries q{s_base + me.q_slots.slot * Q_BYTES + me.query_group * ROWS_BYTES};
        me.q_slots.wait_full();
        if constexpr (Q_IN_REGISTERS) {
            q.load(me.warp, me.lane);
            if (negates_queries(p)) q.negate_registers();
        } else if (negates_queries(p)) {
            if (me.key_group == 0) negate_rows(smem + me.q_slots.slot * Q_BYTES + me.query_group * ROWS_BYTES, me.thread);
            fence_async_proxy();
            // Q is negated for all warps, whose rows one wgmma reads.
            if constexpr (Cfg::KEY_GROUPS == 1) consumer_barrier(me.index);
            if constexpr (Cfg::KEY_GROUPS > 1) consumers_barrier();
        }
        if constexpr (Cfg::KEY_GROUPS > 1) {
            me.k_slots.seek(first_tile + me.key_group);
            me.v_slots.seek(first_tile + me.key_group);
            first_tile += tiles.all.count;
        }
        Accumulators acc;
        if (seen.count() > 0) {
            pass_tiles(me, rows, tiles, 0, seen.first, s_base);
            attend(me, rows, tiles, seen, first_row, q, s_base, acc);
            pass_tiles(me, rows, tiles, seen.end, tiles.count, s_base);
        } else {
            if constexpr (Q_IN_REGISTERS && STAYS) me.q_slots.release_read(me.lane);
            if constexpr (!Q_IN_REGISTERS && !Cfg::SHARE_QO) me.q_slots.release(me.lane);
            pass_tiles(me, rows, tiles, 0, tiles.count, s_base);
        }
        if (Cfg::PINGPONG && tiles.one_fewer()) {  // the others count on this turn
            me.wait_turn();
            me.end_turn();
        }
        const SplitTile tile = schedule.split_tile(p, work, piece.number);
        if (SPLIT || tile.splits > 1) {
            end_split(rows, work, tile, acc, smem);
            if constexpr (Cfg::SHARE_QO) me.q_slots.release(me.lane);
        } else if constexpr (!SPLIT) {
            store_output(me, maps, rows, Place(p, work), first_row, smem, s_base, acc);
        }
        me.q_slots.advance();
        piece = next_piece(me, p, schedule, piece, round, next_pieces);
    }
    if (me.thread == 0) wait_stores();  // shared memory must live until they are done
}
// ---- kernel ----------------------------------------------------------------------------------------------------------------------
extern "C" __global__ void __launch_bounds__(Cfg::LAUNCH_THREADS, Cfg::CTAS_PER_SM)
evo_attention(const __grid_constant__ AttentionParams p, const __grid_constant__ TensorMaps maps) {
    extern __shared__ __align__(1024) unsigned char smem[];  // blocks of the 128-byte swizzle begin at multiples of 1024 bytes
    const unsigned s_base = static_cast<unsigned>(__cvta_generic_to_shared(smem));
    const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);  // uniform for the compiler, too
    int4* next_pieces = reinterpret_cast<int4*>(smem + BARRIERS_OFFSET + NEXT_PIECES);
    if (threadIdx.x == 0) {
        prefetch_map(maps.k);
        prefetch_map(maps.q);
        prefetch_map(maps.v);
        init_barriers(s_base + BARRIERS_OFFSET);
    }
    __syncthreads();  // the barriers are initialised
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Cfg::PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(p, maps, s_base, next_pieces);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Cfg::CONSUMER_REGISTERS));
        consume(p, maps, warpgroup - 1, smem, next_pieces);
    }
}
