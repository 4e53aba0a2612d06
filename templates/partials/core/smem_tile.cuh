// ---- shared-memory tiles: [rows][HEAD_DIM] of 16-bit values, read by ldmatrix eight rows at a time -------------------------

constexpr int CHUNK_BYTES = 16;                        // what one ldmatrix row and one cp.async move
constexpr int CHUNKS = Cfg::HEAD_DIM / 8;              // chunks in a row of the tensor
constexpr int FILLED_CHUNKS = (CHUNKS + 1) / 2 * 2;    // the same with zeros up to a whole mma step of 16 columns
constexpr int ROW_BYTES = Cfg::ROW_HALVES * 2;         // row pitch, padding included

// Byte offset of a chunk. ldmatrix reads the same chunk of eight consecutive rows; they must fall into different banks.
// Swizzle: the chunk's number is XORed with bits of the row, so that the eight land in the eight 16-byte columns of the
// 128-byte bank line. Over 128 bytes, three bits serve rows of a multiple of 128 bytes. Over 64 bytes, two bits serve rows
// of an odd multiple of 64 bytes, which alternate by row % 2 already; others keep two rows in each column.
// Padding instead shifts each row by the padding.
__device__ __forceinline__ int tile_offset(int row, int chunk) {
    if constexpr (Cfg::SMEM_LAYOUT == Cfg::SMEM_LAYOUT_SWIZZLE128) {
        return row * ROW_BYTES + (chunk ^ (row & 7)) * CHUNK_BYTES;
    } else if constexpr (Cfg::SMEM_LAYOUT == Cfg::SMEM_LAYOUT_SWIZZLE64) {
        return row * ROW_BYTES + (chunk ^ (ROW_BYTES % 128 == 0 ? row & 3 : (row >> 1) & 3)) * CHUNK_BYTES;
    } else {
        return row * ROW_BYTES + chunk * CHUNK_BYTES;
    }
}

static_assert(FILLED_CHUNKS * CHUNK_BYTES <= ROW_BYTES && ROW_BYTES % CHUNK_BYTES == 0, "a row holds its chunks");
static_assert(Cfg::SMEM_LAYOUT != Cfg::SMEM_LAYOUT_SWIZZLE128 || ROW_BYTES % 128 == 0, "XOR over 8 chunks stays inside the row");
static_assert(Cfg::SMEM_LAYOUT != Cfg::SMEM_LAYOUT_SWIZZLE64 || ROW_BYTES % 64 == 0, "XOR over 4 chunks stays inside the row");

// Copies one tile of ROWS rows from global to shared memory by THREADS threads, a chunk each in turn. The caller commits.
template <int ROWS, int THREADS>
struct TileCopy {
    static constexpr int TILE_CHUNKS = ROWS * FILLED_CHUNKS;
    static constexpr int STEPS = (TILE_CHUNKS + THREADS - 1) / THREADS;
    static constexpr bool COLUMN_FIXED = THREADS % FILLED_CHUNKS == 0;  // a thread keeps its chunk and walks down the rows
    static constexpr int ROWS_PER_STEP = THREADS / FILLED_CHUNKS;

    unsigned smem_tile;
    const unsigned short* global;  // row 0 of the tile, rows `row_stride` elements apart
    int row_stride;
    int thread;
    const unsigned short* source;  // this thread's next chunk: one pointer that walks takes fewer registers than STEPS

    __device__ __forceinline__ TileCopy(unsigned smem_tile, const unsigned short* global, int row_stride, int thread)
        : smem_tile(smem_tile), global(global), row_stride(row_stride), thread(thread),
          source(address(thread / FILLED_CHUNKS, thread % FILLED_CHUNKS)) {}

    // A filling chunk has the address of the last one, which is valid, but reads nothing.
    __device__ __forceinline__ const unsigned short* address(int row, int chunk) const {
        return global + static_cast<long long>(row) * row_stride + min(chunk, CHUNKS - 1) * 8;
    }
    __device__ __forceinline__ static int bytes(int chunk) { return chunk < CHUNKS ? CHUNK_BYTES : 0; }

    // This thread's chunk number `step`, in turn, of a tile that lies wholly inside the tensor.
    __device__ __forceinline__ void copy_next(int step) {
        const int index = thread + step * THREADS;
        const int row = COLUMN_FIXED ? thread / FILLED_CHUNKS + step * ROWS_PER_STEP : index / FILLED_CHUNKS;
        const int chunk = COLUMN_FIXED ? thread % FILLED_CHUNKS : index % FILLED_CHUNKS;
        if constexpr (!COLUMN_FIXED) source = address(row, chunk);
        if (TILE_CHUNKS % THREADS == 0 || index < TILE_CHUNKS)
            copy_async_16(smem_tile + tile_offset(row, chunk), source, bytes(chunk));
        source += static_cast<long long>(ROWS_PER_STEP) * row_stride;
    }

    // Rows from `valid_rows` on become zeros; nothing is read for them.
    __device__ __forceinline__ void copy_tail(int valid_rows) const {
#pragma unroll 1
        for (int index = thread; index < TILE_CHUNKS; index += THREADS) {
            const int row = index / FILLED_CHUNKS;
            const int chunk = index % FILLED_CHUNKS;
            const int source_row = min(row, valid_rows - 1);  // a valid address, even where nothing is read
            copy_async_16(smem_tile + tile_offset(row, chunk), address(source_row, chunk),
                          row < valid_rows ? bytes(chunk) : 0);
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
