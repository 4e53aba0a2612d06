// ---- derived constants ---------------------------------------------------------------------------------------------------
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
constexpr int Q_BYTES = Cfg::CONSUMERS * ROWS_BYTES;

constexpr bool SPLIT = Cfg::SPLIT_WAVES > 0;                   // other CTAs take the rest of the keys
constexpr bool KEYS_FIRST = SPLIT || Cfg::PACK_GQA;            // few queries: the keys are what takes time to read

// Shared memory: Q, O (in Q's place with SHARE_QO; none with splits), rings of K and V, barriers.
constexpr bool HAS_O_BYTES = !Cfg::SHARE_QO && !SPLIT;
constexpr int O_OFFSET = HAS_O_BYTES ? Q_BYTES : 0;
constexpr int K_OFFSET = HAS_O_BYTES ? 2 * Q_BYTES : Q_BYTES;
constexpr int V_OFFSET = K_OFFSET + Cfg::STAGES * KEYS_BYTES;
constexpr int BARRIERS_OFFSET = V_OFFSET + Cfg::STAGES * KEYS_BYTES;
constexpr int BARRIERS_BYTES = Cfg::STAGES > 6 ? 512 : 256;
constexpr int SMEM_BYTES = BARRIERS_OFFSET + BARRIERS_BYTES;

constexpr bool SUM_ON_TENSOR = false;
constexpr bool STAYS = Cfg::SCHEDULE != Cfg::SCHEDULE_STATIC;  // a CTA may have further pieces of work
constexpr bool Q_IN_REGISTERS = Cfg::Q_SOURCE == Cfg::Q_SOURCE_REGISTERS;

static_assert(Cfg::BLOCK_M == Cfg::CONSUMERS * WARPGROUP_ROWS, "a consumer warpgroup has 64 rows");
static_assert(Cfg::LAUNCH_THREADS == (Cfg::CONSUMERS + 1) * WARPGROUP, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == SMEM_BYTES, "host and kernel disagree on shared memory");
static_assert(Cfg::BLOCK_N % 16 == 0 && Cfg::BLOCK_N <= 256, "P V takes 16 keys at once, and a box has 256 rows at most");
static_assert(!(Q_IN_REGISTERS && Cfg::SHARE_QO), "Q in registers leaves its bytes early, O takes them late");
static_assert(Cfg::CONSUMERS <= 3, "hardware barriers 1 to 3 order the consumers, 4 to 6 are their own, 7 is that of all");
static_assert(!(SPLIT && (STAYS || Cfg::SHARE_QO)), "a split leaves no O in shared memory, and has no second piece of work");

// Query rows of one consumer: with PACK_GQA those of whole queries, so that a few of the 64 may idle.
__device__ __forceinline__ int consumer_rows(const AttentionParams& p) {
    return Cfg::PACK_GQA ? WARPGROUP_ROWS / p.heads_per_kv_head * p.heads_per_kv_head : WARPGROUP_ROWS;
}
__device__ __forceinline__ int cta_rows(const AttentionParams& p) { return Cfg::CONSUMERS * consumer_rows(p); }
__device__ __forceinline__ int query_tiles(const AttentionParams& p) {  // of the longest sequence
    return (p.seq_q * (Cfg::PACK_GQA ? p.heads_per_kv_head : 1) + cta_rows(p) - 1) / cta_rows(p);
}
// The grid has a CTA for each split of each piece.
__device__ __forceinline__ int split_count(const AttentionParams& p) {
    return gridDim.x / (query_tiles(p) * (Cfg::PACK_GQA ? p.heads / p.heads_per_kv_head : p.heads) * p.batch);
}
