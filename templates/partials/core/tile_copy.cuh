// ---- copies of tiles from global to shared memory, 16 bytes a thread ------------------------------------------------------------

// Copies tiles of ROWS rows of a matrix by THREADS threads. A thread copies the same 16-byte chunk of a row in all rows and tiles;
// the threads that are left over after whole rows idle. The caller commits.
template <int ROWS, int THREADS>
struct TileCopy {
    static constexpr int ROWS_PER_STEP = THREADS / FILLED_CHUNKS;
    static constexpr int STEPS = (ROWS + ROWS_PER_STEP - 1) / ROWS_PER_STEP;
    static constexpr int COPIERS = ROWS_PER_STEP * FILLED_CHUNKS;  // threads that copy
    static_assert(ROWS_PER_STEP > 0, "the threads are enough for one row");

    int row;    // this thread's first row of a tile
    int chunk;  // and its chunk in all rows
    int bytes;  // of the matrix in it; none in a filling chunk, which becomes zeros
    bool copies;

    __device__ __forceinline__ explicit TileCopy(int thread)
        : row(thread / FILLED_CHUNKS), chunk(thread % FILLED_CHUNKS), bytes(chunk < CHUNKS ? CHUNK_BYTES : 0),
          copies(COPIERS == THREADS || thread < COPIERS) {}

    // Copies the tile that begins at row `first` of the matrix at `global`. Rows from `count` on become zeros: for them
    // nothing is read, but the address is valid.
    __device__ __forceinline__ void copy(unsigned smem_tile, const unsigned short* global, unsigned row_stride, int first,
                                         int count) const {
        if (!copies) return;
        const char* own = reinterpret_cast<const char*>(settled(global + min(chunk, CHUNKS - 1) * 8));
        const unsigned row_bytes = row_stride * 2;
        const int left = count - first - row;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int below = step * ROWS_PER_STEP;
            if (below + ROWS_PER_STEP > ROWS && row + below >= ROWS) break;
            const unsigned source = min(first + row + below, count - 1);
            copy_async_16(smem_tile + tile_offset(row + below, chunk), own + static_cast<unsigned long long>(source) * row_bytes,
                          below < left ? bytes : 0);
        }
    }
};
