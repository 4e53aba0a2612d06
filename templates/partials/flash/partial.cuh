// ---- partial results: unnormalised O with each row's maximum and sum ------------------------------------------------------------
// Key groups leave theirs in shared memory, splits in the workspace:
//   float O[BLOCK_M][PITCH], then float2 (maximum, sum)[BLOCK_M]
// A merge takes the partials in their order, so that its sums come out the same in every run.
template <int PITCH>
struct Partial {
    float* o;

    __device__ __forceinline__ float* at(int row, int column) const { return o + row * PITCH + column; }
    __device__ __forceinline__ float2* stats(int row) const {
        return reinterpret_cast<float2*>(o + Cfg::BLOCK_M * PITCH) + row;
    }
};

// A warp leaves its rows, those below `rows_left` of the tile.
template <int PITCH>
__device__ __forceinline__ void leave_partial(const Accumulators& acc, Partial<PITCH> partial, int rows_left, int warp_row,
                                              int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = warp_row + atom * 16 + half * 8 + (lane >> 2);
            const float sum = row_sum(acc, atom, half);
            if (row < rows_left) {
                if ((lane & 3) == 0) *partial.stats(row) = make_float2(acc.maximum[atom][half], sum);
#pragma unroll
                for (int tile = 0; tile < D_TILES; ++tile)
                    *reinterpret_cast<float2*>(partial.at(row, tile * 8 + (lane & 3) * 2)) =
                        make_float2(acc.o[atom][tile][2 * half], acc.o[atom][tile][2 * half + 1]);
            }
        }
}

// One thread's share of a merged row: COLUMNS columns in each of PIECES pieces, ROW_THREADS threads side by side.
template <int ROW_THREADS>
struct MergedRow {
    static constexpr int COLUMNS = 4;  // 16 bytes
    static constexpr int PIECES = (Cfg::HEAD_DIM + ROW_THREADS * COLUMNS - 1) / (ROW_THREADS * COLUMNS);

    float maximum = negative_infinity();
    float sum = 0.0f;
    float4 o[PIECES] = {};

    static __device__ __forceinline__ int column(int piece, int thread) {
        return (piece * ROW_THREADS + thread % ROW_THREADS) * COLUMNS;
    }
    static __device__ __forceinline__ bool has(int piece, int thread) {
        return (piece + 1) * ROW_THREADS * COLUMNS <= Cfg::HEAD_DIM || column(piece, thread) < Cfg::HEAD_DIM;
    }

    // Adds a part whose sum and O were taken under another maximum.
    __device__ __forceinline__ void add_sum(float part, float weight) { sum = fmaf(part, weight, sum); }
    __device__ __forceinline__ void add(int piece, const float4& part, float weight) {
        o[piece].x = fmaf(part.x, weight, o[piece].x);
        o[piece].y = fmaf(part.y, weight, o[piece].y);
        o[piece].z = fmaf(part.z, weight, o[piece].z);
        o[piece].w = fmaf(part.w, weight, o[piece].w);
    }

    __device__ __forceinline__ void scale_down(float weight) {
        sum *= weight;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            o[piece].x *= weight;
            o[piece].y *= weight;
            o[piece].z *= weight;
            o[piece].w *= weight;
        }
    }

    __device__ __forceinline__ void store(const Rows& rows, int row, int thread) const {
        const RowEnd end = end_row(rows, row, maximum, sum);
        if (Cfg::HAS_LSE && thread % ROW_THREADS == 0) *rows.lse(row) = end.lse;
        unsigned short* target = settled(rows.o(row) + column(0, thread));
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            if (has(piece, thread))
                store_values(target + piece * ROW_THREADS * COLUMNS,
                             make_uint2(pack_16bit(o[piece].x * end.factor, o[piece].y * end.factor),
                                        pack_16bit(o[piece].z * end.factor, o[piece].w * end.factor)));
    }

    __device__ __forceinline__ void leave(Partial<Cfg::HEAD_DIM> partial, int row, int thread) const {
        if (thread % ROW_THREADS == 0) *partial.stats(row) = make_float2(maximum, sum);
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            if (has(piece, thread)) *reinterpret_cast<float4*>(partial.at(row, column(piece, thread))) = o[piece];
    }
};
