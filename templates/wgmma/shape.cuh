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
