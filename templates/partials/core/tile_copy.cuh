// ---- copies of a tile from global to shared memory, 16 bytes a thread -----------------------------------------------------------

// Copies one tile of ROWS rows by THREADS threads. A thread keeps its chunk of a row and walks down the rows, because the next
// address then is an addition away; threads that are too few for a row of their own idle. The caller commits.
template <int ROWS, int THREADS>
struct TileCopy {
    static constexpr int TILE_CHUNKS = ROWS * FILLED_CHUNKS;
    static constexpr int ROWS_PER_STEP = THREADS / FILLED_CHUNKS;
    static constexpr int STEPS = (ROWS + ROWS_PER_STEP - 1) / ROWS_PER_STEP;
    static constexpr int COPIERS = ROWS_PER_STEP * FILLED_CHUNKS;  // threads that copy
    static_assert(ROWS_PER_STEP > 0, "the threads are enough for one row");

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

    // The chunks of a thread are those from this one on, each COPIERS after the last.
    __device__ __forceinline__ static int first_chunk(int thread) {
        return COPIERS == THREADS || thread < COPIERS ? thread : TILE_CHUNKS;
    }

    // This thread's chunk number `step`, in turn, of a tile that lies wholly inside the tensor.
    __device__ __forceinline__ void copy_next(int step) {
        const int row = thread / FILLED_CHUNKS + step * ROWS_PER_STEP, chunk = thread % FILLED_CHUNKS;
        if ((COPIERS == THREADS || thread < COPIERS) && (ROWS % ROWS_PER_STEP == 0 || row < ROWS))
            copy_async_16(smem_tile + tile_offset(row, chunk), source, bytes(chunk));
        source += static_cast<long long>(ROWS_PER_STEP) * row_stride;
    }

    __device__ __forceinline__ void copy(int valid_rows) {
        if (valid_rows >= ROWS) {
#pragma unroll
            for (int step = 0; step < STEPS; ++step) copy_next(step);
        } else {  // rows from `valid_rows` on become zeros; nothing is read for them, at a valid address
#pragma unroll 1
            for (int index = first_chunk(thread); index < TILE_CHUNKS; index += COPIERS) {
                const int row = index / FILLED_CHUNKS, chunk = index % FILLED_CHUNKS;
                copy_async_16(smem_tile + tile_offset(row, chunk), address(min(row, valid_rows - 1), chunk),
                              row < valid_rows ? bytes(chunk) : 0);
            }
        }
    }
};
