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

// Merge of the key groups (flash/exchange.cuh).
constexpr int GROUP_THREADS = QUERY_GROUPS * WARPGROUP;
constexpr int SHARE = (D_TILES + Cfg::KEY_GROUPS - 1) / Cfg::KEY_GROUPS;         // tiles of O that a key group ends
constexpr int GROUP_BYTES = Cfg::KEY_GROUPS * (1 + SHARE) * GROUP_THREADS * 16;  // what a key group sends

// Shared memory: Q, O, rings of K and V, barriers. In O's place key groups have their partial results. With SHARE_QO it begins
// where Q does; partial results then reach into the rings.
constexpr int OUT_BYTES = Cfg::KEY_GROUPS == 1 ? Q_BYTES : Cfg::KEY_GROUPS * GROUP_BYTES;
constexpr int O_OFFSET = Cfg::SHARE_QO ? 0 : Q_BYTES;
constexpr int K_OFFSET = Cfg::SHARE_QO ? Q_BYTES : Q_BYTES + OUT_BYTES;
constexpr int V_OFFSET = K_OFFSET + RING_BYTES;
constexpr int BARRIERS_OFFSET = larger(V_OFFSET + RING_BYTES, O_OFFSET + OUT_BYTES);
constexpr int BARRIERS_BYTES = 256;
constexpr int SMEM_BYTES = BARRIERS_OFFSET + BARRIERS_BYTES;

constexpr bool SUM_ON_TENSOR = false;
constexpr bool STAYS = Cfg::SCHEDULE != Cfg::SCHEDULE_STATIC;  // a CTA may have further pieces of work
constexpr bool Q_IN_REGISTERS = Cfg::Q_SOURCE == Cfg::Q_SOURCE_REGISTERS;

static_assert(QUERY_GROUPS * Cfg::KEY_GROUPS == Cfg::CONSUMERS, "consumers are query groups times key groups");
static_assert(Cfg::BLOCK_M == QUERY_GROUPS * WARPGROUP_ROWS, "a query group has 64 rows");
static_assert(Cfg::KEY_GROUPS <= Cfg::STAGES, "key groups need slots of their own: the producer fills them in rounds");
static_assert(Cfg::LAUNCH_THREADS == (Cfg::CONSUMERS + 1) * WARPGROUP, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == SMEM_BYTES, "host and kernel disagree on shared memory");
static_assert(Cfg::BLOCK_N % 16 == 0 && Cfg::BLOCK_N <= 256, "P V takes 16 keys at once, and a box has 256 rows at most");
static_assert(!(Q_IN_REGISTERS && Cfg::SHARE_QO), "Q in registers leaves its bytes early, O takes them late");
static_assert(Cfg::CONSUMERS <= 3, "hardware barriers 1 to 3 order the consumers, 4 to 6 are their own, 7 is of all");
