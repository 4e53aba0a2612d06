// ---- shared-memory tiles as wgmma reads them: [rows][HEAD_DIM] of 16-bit values ---------------------------------------------

constexpr int CHUNK_BYTES = 16;                        // what one cp.async moves
constexpr int CHUNKS = Cfg::HEAD_DIM / 8;              // chunks in a row of the tensor
constexpr int FILLED_CHUNKS = (CHUNKS + 1) / 2 * 2;    // the same with zeros up to a whole tensor-core step of 16 columns
constexpr int ROW_BYTES = Cfg::ROW_HALVES * 2;         // bytes of a row, whole panels
constexpr int PANELS = ROW_BYTES / 128;                // of 64 columns
constexpr int ATOM_BYTES = 8 * 128;                    // eight rows of one panel
constexpr int EIGHT_ROWS_BYTES = PANELS * ATOM_BYTES;  // from one group of eight rows to the next

// Byte offset of a chunk. wgmma's 128-byte swizzle knows blocks of eight rows of 128 bytes, whose 16-byte chunks are XORed
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
