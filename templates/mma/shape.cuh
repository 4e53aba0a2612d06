// ---- derived constants ---------------------------------------------------------------------------------------------------
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

constexpr int WARP = 32;
constexpr int GROUP_THREADS = Cfg::WARPS_M * WARP;
constexpr int WARP_ROWS = 16 * Cfg::M_ATOMS;             // query rows of one warp
constexpr int K_STEPS = FILLED_CHUNKS / 2;               // mma steps over head_dim in S = Q Kᵀ
constexpr int KEY_TILES = Cfg::BLOCK_N / 8;              // mma columns of S
constexpr int D_TILES = Cfg::HEAD_DIM / 8;               // mma columns of O
constexpr int TILE_BYTES = Cfg::BLOCK_N * ROW_BYTES;     // one slot of a ring
constexpr int K_RING_BYTES = Cfg::STAGES_K * TILE_BYTES;
constexpr int V_RING_BYTES = Cfg::STAGES_V * TILE_BYTES;
constexpr int PROLOGUE_PAIRS = larger(Cfg::STAGES_K, Cfg::STAGES_V);

// Q's way to the fragments: straight; through a tile of its own, once or for every key tile; or once through the rings'
// bytes, before K and V come there.
constexpr bool Q_DIRECT = Cfg::Q_LOCATION == Cfg::Q_LOCATION_DIRECT;
constexpr bool Q_SHARES_K = Cfg::Q_LOCATION == Cfg::Q_LOCATION_SHARES_K;
constexpr bool Q_STAYS_SHARED = Cfg::Q_LOCATION == Cfg::Q_LOCATION_SHARED;
constexpr int Q_BYTES = Cfg::BLOCK_M * ROW_BYTES;
constexpr int Q_TILE_BYTES = Q_DIRECT || Q_SHARES_K ? 0 : Q_BYTES;

constexpr bool SUM_ON_TENSOR = Cfg::ROW_SUM == Cfg::ROW_SUM_TENSOR;
constexpr bool LAZY_RESCALE = Cfg::LAZY_RESCALE;
constexpr bool MAXIMA_OF_THREE = false;  // no comparison of three integers before Hopper
constexpr unsigned TWO_ONES = Cfg::IS_BF16 ? 0x3f803f80u : 0x3c003c00u;  // two of the problem's 1.0

constexpr bool SPLIT = Cfg::SPLITS > 1;                  // other CTAs take the rest of the keys
constexpr bool STAGED = Cfg::EPILOGUE == Cfg::EPILOGUE_SHARED && Cfg::WARPS_N == 1 && !SPLIT;
constexpr int MERGE_PITCH = Cfg::HEAD_DIM / 16 * 16 + 8; // floats; an odd number of eights: eight rows, different banks
constexpr int SHARE = (D_TILES + Cfg::WARPS_N - 1) / Cfg::WARPS_N;  // tiles of O that a key group ends, merging by threads
constexpr int MERGE_BYTES = Cfg::WARPS_N == 1 ? 0 : Cfg::BLOCK_M * (MERGE_PITCH + 2) * 4;  // O, then (maximum, sum) a row
constexpr int EXCHANGE_BYTES = Cfg::WARPS_N * Cfg::M_ATOMS * (1 + SHARE) * GROUP_THREADS * 16;  // merging by threads instead
constexpr int GROUP_BYTES = larger(larger(K_RING_BYTES + V_RING_BYTES, MERGE_BYTES), STAGED ? Q_BYTES : 0);
constexpr int SMEM_BYTES = larger(Q_TILE_BYTES + Cfg::WARPS_N * GROUP_BYTES, Q_SHARES_K ? Q_BYTES : 0);

static_assert(Cfg::BLOCK_M == Cfg::WARPS_M * WARP_ROWS, "BLOCK_M is the rows of all warps of a group");
static_assert(Cfg::LAUNCH_THREADS == Cfg::WARPS_N * GROUP_THREADS, "host and kernel disagree on threads");
static_assert(Cfg::LAUNCH_SMEM_BYTES == SMEM_BYTES, "host and kernel disagree on shared memory");
static_assert(Cfg::HEAD_DIM % 8 == 0 && Cfg::BLOCK_N % 16 == 0, "rows are 16-byte chunks; ldmatrix.x4 takes 16 keys at once");
static_assert(Cfg::MERGE == Cfg::MERGE_ROWS || EXCHANGE_BYTES <= GROUP_BYTES, "what a group sends takes the bytes of its rings");
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
