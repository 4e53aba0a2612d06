// ---- Q fragments -------------------------------------------------------------------------------------------------------------
struct QueryFragments {
    unsigned r[Cfg::M_ATOMS][K_STEPS][4];  // A operands of this warp's rows
};

// Lane's ldmatrix address inside a tile for an A operand: matrices (rows 0-7, 8-15) × (chunk, chunk + 1).
__device__ __forceinline__ unsigned query_address(unsigned s_q, int warp_row, int atom, int step, int lane) {
    return s_q + tile_offset(warp_row + atom * 16 + (lane & 15), 2 * step + (lane >> 4));
}

/*# region query fragments #*/
__device__ __forceinline__ void load_queries_from_smem(QueryFragments& q, unsigned s_q, int warp_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
            load_matrix_x4(q.r[atom][step], query_address(s_q, warp_row, atom, step, lane));
}
/*# endregion #*/

__device__ __forceinline__ void negate_queries(QueryFragments& q) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) q.r[atom][step][i] ^= TWO_SIGNS;
}

// Each lane fetches its own fragment values, two halves at a time; rows and columns past the end become zeros.
__device__ __forceinline__ void load_queries_from_global(QueryFragments& q, const Rows& rows, int first_row, int lane) {
#pragma unroll
    for (int atom = 0; atom < Cfg::M_ATOMS; ++atom)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + atom * 16 + half * 8 + (lane >> 2);
            const unsigned short* source = settled(rows.q(row) + (lane & 3) * 2);
#pragma unroll
            for (int step = 0; step < K_STEPS; ++step)
#pragma unroll
                for (int column = 0; column < 2; ++column) {
                    const bool inside = row < rows.count() && 2 * step + column < CHUNKS;
                    q.r[atom][step][half + 2 * column] =
                        inside ? __ldg(reinterpret_cast<const unsigned*>(source + step * 16 + column * 8)) : 0u;
                }
        }
}

using QueryCopy = TileCopy<Cfg::BLOCK_M, Cfg::LAUNCH_THREADS>;

// All threads of the CTA start copying the Q tile; rows past the end become zeros. The caller commits.
__device__ __forceinline__ void copy_queries(unsigned s_q, const Rows& rows, int cta_row, int thread) {
    const QueryCopy copy(thread);
    if constexpr (Cfg::PACK_GQA) {  // neighbouring rows lie in different heads
        if (!copy.copies) return;
#pragma unroll 1
        for (int row = copy.row; row < Cfg::BLOCK_M; row += QueryCopy::ROWS_PER_STEP)
            copy_async_16(s_q + tile_offset(row, copy.chunk),
                          rows.q(min(cta_row + row, rows.count() - 1)) + min(copy.chunk, CHUNKS - 1) * 8,
                          cta_row + row < rows.count() ? copy.bytes : 0);
    } else {
        copy.copy(s_q, rows.g_q, rows.p.q_row_stride, cta_row, rows.count());
    }
}

// Negates the chunks of the Q tile that this thread copied: copy_queries deals them out alike in both of its ways.
__device__ __forceinline__ void negate_queries(unsigned char* s_q, int thread) {
    const QueryCopy copy(thread);
    if (!copy.copies) return;
#pragma unroll 1
    for (int row = copy.row; row < Cfg::BLOCK_M; row += QueryCopy::ROWS_PER_STEP)
        negate_16bit(*reinterpret_cast<uint4*>(s_q + tile_offset(row, copy.chunk)));
}
