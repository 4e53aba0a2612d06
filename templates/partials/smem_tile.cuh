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
