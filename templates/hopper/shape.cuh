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
